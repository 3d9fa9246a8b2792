/* Experts of which some lie in a device's slots, for tests: an expert store, rows that chose among its experts, placements,
 * and what the CPU tier gives alone. */
#ifndef TD_TESTS_CPU_EXPERTS_MIXED_EXPERTS_H
#define TD_TESTS_CPU_EXPERTS_MIXED_EXPERTS_H

#include "kernels/exact_sum.h"
#include "tests/cpu_experts/expert_fixture.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/npu/npu_test_util.h"

#define MIXED_SEED 1618u

enum { MIXED_K = 4, MIXED_EXPERTS = 12, MIXED_SLOTS = 7 };

typedef struct {
    td_expert_format format;
    td_dtype         act;
    uint32_t         hidden, inter, shards, rows;
    bool             gated;
} mixed_shape;

/** Experts in the codes of a checkpoint, in these groups. */
typedef struct {
    const td_expert_weights *experts; /* [MIXED_EXPERTS], without biases */
    td_expert_groups         groups;
} mixed_codes;

typedef struct {
    mixed_shape      s;
    td_experts      *store;
    td_pool         *pool;
    td_packed_expert own, packed; /* as the CPU tier has experts, as slots do */
    fixture_weights  weights;
    fixture_tokens   tokens;
    void            *x;     /* [rows, hidden] act */
    char            *slots; /* [MIXED_SLOTS, packed.bytes] */
    uint16_t         slot_of[MIXED_EXPERTS];
    uint32_t         first, end; /* as the block's descriptor has them */
    uint16_t        *ids;        /* [rows, MIXED_K] */
    int32_t         *parts[2];   /* [rows] sums: of the device, of the CPU tier */
    void            *want;       /* [rows, hidden] act: of the CPU tier alone */
} mixed;

static inline void mixed_ffn(mixed *m, const uint16_t *ids, void *y, bool in_parts) {
    td_experts_ffn(m->store, 0,
                   &WITH(td_ffn_args, .n_tok = m->s.rows, .top_k = MIXED_K, .x = m->x, .ids = ids,
                         .weights = m->tokens.weights, .n_immediate = MIXED_K, .y = y, .in_parts = in_parts));
}

/** Experts packed as `from`, but in tiles of another layout, and in so many pieces. */
static inline td_packed_expert mixed_packed_as(const td_packed_expert *from, const td_tile_layout *tiles, uint32_t pieces) {
    td_packed_expert to = *from;
    const uint32_t   n_gate = (from->inter + tiles->nr - 1) / tiles->nr, n_down = (from->hidden + tiles->nr - 1) / tiles->nr;
    to.tiles = tiles;
    to.sizes.nr = tiles->nr;
    to.sizes.gate_tile_bytes = td_tile_bytes(tiles, to.hidden_k, &to.groups);
    to.sizes.down_tile_bytes = td_tile_bytes(tiles, to.inter_k, &to.groups);
    to.n_pieces = pieces;
    to.bytes = 0;
    for (uint32_t i = 0; i < pieces; i++) {
        td_expert_piece *p = &to.piece[i];
        *p = (td_expert_piece){n_gate * (i + 1) / pieces - n_gate * i / pieces,
                               n_down * (i + 1) / pieces - n_down * i / pieces, 0};
        p->bytes = td_piece_bytes(&to.sizes, p);
        to.bytes += p->bytes;
    }
    return to;
}

/* Those from a row on. */
static inline td_gemm_weights mixed_rows_from(const td_gemm_weights *all, size_t row, size_t k, size_t scales,
                                              size_t element) {
    return WITH(td_gemm_weights, .rows = (char *)all->rows + row * k * element, .scale = all->scale + row * scales,
                .zero = all->zero + row * scales, .factor = all->factor + row);
}

static inline void mixed_repack_matrix(const td_packed_expert *from, const char *src, const td_packed_expert *to, char *dst,
                                       td_expert_matrix m) {
    const bool   down = m == TD_EXPERT_DOWN;
    const size_t n = down ? from->hidden : from->inter, k = down ? from->inter_k : from->hidden_k,
                 rows = (n + TD_GEMM_NR_MAX - 1) / TD_GEMM_NR_MAX * TD_GEMM_NR_MAX,
                 scales = from->groups.size ? k / from->groups.size : 1, element = td_gemm_element(from->product);
    float          *bias = calloc(rows, sizeof *bias);
    td_gemm_weights all =
        WITH(td_gemm_weights, .rows = calloc(rows * k, element), .scale = calloc(rows * scales, sizeof(float)),
             .zero = malloc(rows * scales), .factor = calloc(rows, sizeof(float)));
    size_t bias_at;
    memset(all.zero, 8, rows * scales);
    for (size_t nr = from->sizes.nr, t = 0; t * nr < n; t++) {
        td_gemm_weights w = mixed_rows_from(&all, t * nr, k, scales, element);
        td_tile_unpack(from->tiles, src + td_packed_tile_at(from, m, t, &bias_at), &w, k, &from->groups);
        if (from->sizes.bias) memcpy(bias + t * nr, src + bias_at, nr * sizeof *bias);
    }
    for (size_t nr = to->sizes.nr, t = 0; t * nr < n; t++) {
        const td_gemm_weights w = mixed_rows_from(&all, t * nr, k, scales, element);
        td_tile_pack(to->tiles, dst + td_packed_tile_at(to, m, t, &bias_at), &w, k, &to->groups);
        if (to->sizes.bias) memcpy(dst + bias_at, bias + t * nr, nr * sizeof *bias);
    }
    free(bias), free(all.rows), free(all.scale), free(all.zero), free(all.factor);
}

/** @param codes NULL: of drawn values. @param tiles NULL: as the CPU tier's kernels here read them */
static inline mixed mixed_open(const mixed_shape *s, const mixed_codes *codes, const td_tile_layout *tiles) {
    mixed    m = {.s = *s, .weights = fixture_weights_new(MIXED_SEED, MIXED_EXPERTS, s->hidden, s->inter)};
    td_error err = {0};
    if (s->gated) fixture_weights_gate(&m.weights, MIXED_SEED);
    m.tokens = fixture_tokens_new(MIXED_SEED, s->rows, MIXED_K, MIXED_EXPERTS, s->hidden);
    m.pool = fixture_pool(s->shards, s->shards);
    td_experts_config c =
        WITH(td_experts_config, .n_layers = 1, .n_experts = MIXED_EXPERTS, .hidden = s->hidden, .inter = s->inter,
             .top_k = MIXED_K, .format = s->format, .groups = codes ? codes->groups : fixture_groups(s->format),
             .glu = m.weights.glu, .bias = m.weights.biases != NULL, .act_dtype = s->act, .max_tok = s->rows);
    OK(td_experts_create(&c, m.pool, &m.store, &err));
    OK(load_views(m.store, 0, codes ? codes->experts : m.weights.experts, &err));
    OK(td_experts_packed(&c, s->shards, &m.own, &err));
    m.packed = tiles ? mixed_packed_as(&m.own, tiles, s->shards) : m.own;
    m.slots = aligned_alloc(64, MIXED_SLOTS * m.packed.bytes);
    memset(m.slots, 0, MIXED_SLOTS * m.packed.bytes);
    m.x = act_array(s->act, m.tokens.x, (size_t)s->rows * s->hidden);
    m.ids = calloc((size_t)s->rows * MIXED_K, sizeof *m.ids);
    for (int i = 0; i < 2; i++) m.parts[i] = calloc(s->rows * td_exact_words(s->hidden), sizeof(int32_t));
    m.want = act_array(s->act, NULL, (size_t)s->rows * s->hidden);
    mixed_ffn(&m, m.tokens.ids, m.want, false);
    return m;
}

static inline void mixed_close(mixed *m) {
    void *all[] = {m->slots, m->x, m->ids, m->parts[0], m->parts[1], m->want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    td_experts_destroy(m->store);
    td_pool_destroy(m->pool);
    fixture_tokens_free(&m->tokens);
    fixture_weights_free(&m->weights);
}

static inline void mixed_fill_slot(mixed *m, uint32_t expert, uint32_t slot) {
    char *to = m->slots + slot * m->packed.bytes, *packed = aligned_alloc(64, m->own.bytes);
    td_experts_copy_packed(m->store, 0, expert, packed);
    if (m->own.tiles == m->packed.tiles) memcpy(to, packed, m->own.bytes);
    for (int i = 0; i < TD_EXPERT_MATRICES && m->own.tiles != m->packed.tiles; i++)
        mixed_repack_matrix(&m->own, packed, &m->packed, to, (td_expert_matrix)i);
    free(packed);
}

/** n experts into slots, both drawn; ids that say so. */
static inline void mixed_place(mixed *m, uint32_t n, uint64_t draw) {
    for (uint32_t e = 0; e < MIXED_EXPERTS; e++) m->slot_of[e] = TD_NO_SLOT;
    for (uint32_t placed = 0; placed < n; draw++) {
        uint32_t e = (uint32_t)(td_rng_u64(MIXED_SEED, 20, draw) % MIXED_EXPERTS), slot = (placed + n * 3) % MIXED_SLOTS;
        if (m->slot_of[e] != TD_NO_SLOT) continue;
        m->slot_of[e] = (uint16_t)slot;
        mixed_fill_slot(m, e, slot);
        placed++;
    }
    for (size_t i = 0; i < (size_t)m->s.rows * MIXED_K; i++) {
        const uint16_t e = m->tokens.ids[i];
        m->ids[i] = m->slot_of[e] == TD_NO_SLOT ? e : (uint16_t)(e | TD_ID_RESIDENT);
    }
}

/** All but the arrays, which are the device's. */
static inline td_block_desc mixed_resident_desc(const mixed *m, uint32_t max_tok) {
    return (td_block_desc){.kind = TD_BLOCK_RESIDENT,
                           .layer = TD_NO_LAYER,
                           .max_tok = max_tok,
                           .resident = {.hidden = m->s.hidden,
                                        .inter = m->s.inter,
                                        .n_experts = MIXED_EXPERTS,
                                        .top_k = MIXED_K,
                                        .first = m->first,
                                        .end = m->end,
                                        .packed = &m->packed}};
}

#endif
