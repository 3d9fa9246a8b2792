/*
 * A routed expert as the CPU tier packs it, and as a device keeps it in a slot: pieces, one of each shard of the expert
 * store, one behind the other. A piece has
 *   gate tile, up tile, gate tile, up tile, … | down tiles | the biases of these tiles, f32, in this order, if experts have biases
 * and is a multiple of TD_CACHE_LINE bytes. Gate and up are [inter, hidden], down is [hidden, inter]; a piece has
 * consecutive tiles of each, and the pieces follow each other in the order of their tiles.
 */
#ifndef TD_KERNELS_PRODUCT_PACKED_EXPERT_H
#define TD_KERNELS_PRODUCT_PACKED_EXPERT_H

#include "core/memory/mem.h"
#include "kernels/product/tile_gemm.h"

#define TD_EXPERT_PIECES_MAX 64

typedef enum {
    TD_EXPERT_GATE,
    TD_EXPERT_UP,
    TD_EXPERT_DOWN
} td_expert_matrix; /* gate and up [inter, hidden], down [hidden, inter] */
#define TD_EXPERT_MATRICES 3

/** What all pieces of an expert have in common. */
typedef struct {
    size_t nr;                               /* output rows of a tile */
    size_t gate_tile_bytes, down_tile_bytes; /* of a tile of gate or up, of down */
    bool   bias;
} td_expert_sizes;

typedef struct {
    uint32_t n_gate, n_down; /* tiles of gate, and as many of up; of down */
    size_t   bytes;
} td_expert_piece;

typedef struct {
    td_product            product;
    td_gemm_groups        groups; /* of int4g and fp4g */
    td_glu                glu;
    const td_tile_layout *tiles;
    uint32_t              hidden, inter;
    size_t                hidden_k, inter_k; /* k of gate and up, k of down: padded to kr */
    td_expert_sizes       sizes;
    uint32_t              n_pieces;
    td_expert_piece       piece[TD_EXPERT_PIECES_MAX];
    size_t                bytes; /* of all pieces */
} td_packed_expert;

/** Where a tile of a piece begins, in bytes from the piece on. @param tile counts within the piece. */
static inline size_t td_piece_tile_at(const td_expert_sizes *s, const td_expert_piece *p, td_expert_matrix m, size_t tile) {
    if (m == TD_EXPERT_DOWN) return p->n_gate * 2 * s->gate_tile_bytes + tile * s->down_tile_bytes;
    return (tile * 2 + (m == TD_EXPERT_UP)) * s->gate_tile_bytes;
}

/** The same of the biases of the tile's rows, [nr] f32, 0 beyond the matrix. */
static inline size_t td_piece_bias_at(const td_expert_sizes *s, const td_expert_piece *p, td_expert_matrix m, size_t tile) {
    const size_t before = m == TD_EXPERT_DOWN ? p->n_gate * 2 + tile : tile * 2 + (m == TD_EXPERT_UP);
    return td_piece_tile_at(s, p, TD_EXPERT_DOWN, p->n_down) + before * s->nr * sizeof(float);
}

/** @return the piece's bytes; its own member is not read. */
static inline size_t td_piece_bytes(const td_expert_sizes *s, const td_expert_piece *p) {
    return s->bias ? td_round_up(td_piece_bias_at(s, p, TD_EXPERT_DOWN, p->n_down), TD_CACHE_LINE)
                   : td_piece_tile_at(s, p, TD_EXPERT_DOWN, p->n_down);
}

/** Where a tile begins, in bytes from the expert on. @param tile counts over all pieces. @param bias out: where the biases
 * of its rows begin, in experts that have some. */
static inline size_t td_packed_tile_at(const td_packed_expert *x, td_expert_matrix m, size_t tile, size_t *bias) {
    size_t                 at = 0;
    const td_expert_piece *p = x->piece;
    for (size_t n; tile >= (n = m == TD_EXPERT_DOWN ? p->n_down : p->n_gate); at += (p++)->bytes) tile -= n;
    *bias = at + td_piece_bias_at(&x->sizes, p, m, tile);
    return at + td_piece_tile_at(&x->sizes, p, m, tile);
}

#endif
