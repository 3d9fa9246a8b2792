/*
 * A routed expert as the CPU tier packs it, and as a device keeps it in a slot: pieces, one of each shard of the expert store,
 * one behind the other. A piece has
 *   gate tile, up tile, gate tile, up tile, … | down tiles | the biases of these tiles, f32, in this order, if experts have biases
 * and is a multiple of TD_CACHE_LINE bytes. Gate and up are [inter, hidden], down is [hidden, inter]; a piece has consecutive
 * tiles of each, and the pieces follow each other in the order of their tiles.
 */
#ifndef TD_KERNELS_PRODUCT_PACKED_EXPERT_H
#define TD_KERNELS_PRODUCT_PACKED_EXPERT_H

#include "kernels/product/tile_gemm.h"

#define TD_EXPERT_PIECES_MAX 64

typedef struct {
    uint32_t n_gate, n_down; /* tiles of gate, and as many of up; of down */
    size_t   bytes;
} td_expert_piece;

typedef struct {
    td_product            product;
    td_gemm_groups        groups; /* of int4g and fp4g */
    td_glu                glu;
    bool                  bias;
    const td_tile_layout *tiles;
    uint32_t              hidden, inter;
    size_t                hidden_k, inter_k;                /* k of gate and up, k of down: padded to kr */
    size_t                gate_tile_bytes, down_tile_bytes; /* of a tile of gate or up, of down */
    uint32_t              n_pieces;
    td_expert_piece       piece[TD_EXPERT_PIECES_MAX];
    size_t                bytes; /* of all pieces */
} td_packed_expert;

#endif
