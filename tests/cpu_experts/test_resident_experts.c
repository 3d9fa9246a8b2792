/* Experts in slots of a device's memory (TD_BLOCK_RESIDENT, TD_BLOCK_JOIN) beside those of the CPU tier. Together they give
 * the bits that the CPU tier gives alone, whichever experts lie in slots, and in which. */
#include "kernels/exact_sum.h"
#include "tests/cpu_experts/expert_fixture.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/npu/npu_test_util.h"

#define SEED 1618u

enum { N_TOK = 21, K = 4, N_EXPERTS = 12, N_SLOTS = 7 };

typedef struct {
    td_experts      *store;
    td_pool         *pool;
    td_packed_expert packed;
    fixture_weights  weights;
    fixture_tokens   tokens;
    uint32_t         hidden;
    td_dtype         act;
    void            *x;     /* [N_TOK, hidden] act */
    char            *slots; /* [N_SLOTS, packed.bytes] */
    uint16_t         slot_of[N_EXPERTS], ids[N_TOK * K];
    int32_t         *parts[2];      /* [N_TOK] sums: of the device, of the CPU tier */
    void            *want, *joined; /* [N_TOK, hidden] act */
} mixed;

static void open_mixed(mixed *m, td_expert_format format, td_dtype act, uint32_t hidden, uint32_t inter, uint32_t shards,
                       bool gated) {
    td_error err = {0};
    *m = (mixed){.hidden = hidden, .act = act, .weights = fixture_weights_new(SEED, N_EXPERTS, hidden, inter)};
    if (gated) fixture_weights_gate(&m->weights, SEED);
    m->tokens = fixture_tokens_new(SEED, N_TOK, K, N_EXPERTS, hidden);
    m->pool = fixture_pool(shards, shards);
    td_experts_config c = {.n_layers = 1,
                           .n_experts = N_EXPERTS,
                           .hidden = hidden,
                           .inter = inter,
                           .top_k = K,
                           .format = format,
                           .groups = fixture_groups(format),
                           .glu = m->weights.glu,
                           .bias = m->weights.biases != NULL,
                           .act_dtype = act,
                           .max_tok = N_TOK};
    assert_int_equal(td_experts_create(&c, m->pool, &m->store, &err), TD_OK);
    assert_int_equal(load_views(m->store, 0, m->weights.experts, &err), TD_OK);
    assert_int_equal(td_experts_packed(&c, shards, &m->packed, &err), TD_OK);
    m->slots = aligned_alloc(64, N_SLOTS * m->packed.bytes);
    m->x = act_array(act, m->tokens.x, N_TOK * hidden);
    for (int i = 0; i < 2; i++) m->parts[i] = calloc(N_TOK * td_exact_words(hidden), sizeof(int32_t));
    m->want = act_array(act, NULL, N_TOK * hidden);
    m->joined = act_array(act, NULL, N_TOK * hidden);
    td_experts_ffn(m->store, 0,
                   &(td_ffn_args){.n_tok = N_TOK,
                                  .top_k = K,
                                  .x = m->x,
                                  .ids = m->tokens.ids,
                                  .weights = m->tokens.weights,
                                  .n_immediate = K,
                                  .y = m->want});
}

static void close_mixed(mixed *m) {
    void *all[] = {m->slots, m->x, m->parts[0], m->parts[1], m->want, m->joined};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    td_experts_destroy(m->store);
    td_pool_destroy(m->pool);
    fixture_tokens_free(&m->tokens);
    fixture_weights_free(&m->weights);
}

/* n experts into slots, both drawn. */
static void place_experts(mixed *m, uint32_t n, uint64_t draw) {
    for (uint32_t e = 0; e < N_EXPERTS; e++) m->slot_of[e] = TD_NO_SLOT;
    for (uint32_t placed = 0; placed < n; draw++) {
        uint32_t e = (uint32_t)(td_rng_u64(SEED, 20, draw) % N_EXPERTS);
        if (m->slot_of[e] != TD_NO_SLOT) continue;
        uint32_t slot = (placed + (uint32_t)n * 3) % N_SLOTS;
        m->slot_of[e] = (uint16_t)slot;
        td_experts_copy_packed(m->store, 0, e, m->slots + slot * m->packed.bytes);
        placed++;
    }
    for (size_t i = 0; i < N_TOK * K; i++) {
        const uint16_t e = m->tokens.ids[i];
        m->ids[i] = m->slot_of[e] == TD_NO_SLOT ? e : (uint16_t)(e | TD_ID_RESIDENT);
    }
}

static td_block_desc resident_desc(const mixed *m) {
    return (td_block_desc){.kind = TD_BLOCK_RESIDENT,
                           .layer = TD_NO_LAYER,
                           .max_tok = N_TOK,
                           .resident = {.hidden = m->hidden,
                                        .inter = m->weights.inter,
                                        .n_experts = N_EXPERTS,
                                        .top_k = K,
                                        .packed = &m->packed,
                                        .slots = m->slots,
                                        .slot_of = m->slot_of,
                                        .in = m->x,
                                        .ids = m->ids,
                                        .weights = m->tokens.weights,
                                        .sums = m->parts[0]}};
}

static void check_mixed(mixed *m) {
    rig           g = rig_open(2, m->act, false);
    td_block_desc desc = resident_desc(m),
                  join = {.kind = TD_BLOCK_JOIN,
                          .layer = TD_NO_LAYER,
                          .max_tok = N_TOK,
                          .join = {.hidden = m->hidden, .parts = {m->parts[0], m->parts[1]}, .out = m->joined}};
    td_npu_block *resident = make_block(&g, &desc), *joiner = make_block(&g, &join);
    for (uint32_t n = 0; n <= N_SLOTS; n++) {
        place_experts(m, n, 100 * n);
        run_rows(&g, resident, N_TOK);
        td_experts_ffn(m->store, 0,
                       &(td_ffn_args){.n_tok = N_TOK,
                                      .top_k = K,
                                      .x = m->x,
                                      .ids = m->ids,
                                      .weights = m->tokens.weights,
                                      .n_immediate = K,
                                      .y = m->parts[1],
                                      .in_parts = true});
        run_rows(&g, joiner, N_TOK);
        assert_memory_equal(m->joined, m->want, N_TOK * m->hidden * td_dtype_bytes(m->act));
    }
    g.npu->ops->block_destroy(g.npu, resident);
    g.npu->ops->block_destroy(g.npu, joiner);
    rig_close(&g);
}

TEST(any_placement_gives_the_bits_of_the_cpu_tier) {
    static const struct { uint32_t hidden, inter, shards; } SHAPES[] = {{128, 96, 1}, {160, 90, 2}, {100, 37, 3}};
    for (int f = 0; f < TD_EXPERT_FORMATS; f++)
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
            for (int gated = 0; gated < 2; gated++) {
                mixed m;
                open_mixed(&m, (td_expert_format)f, i == 1 ? TD_DT_F32 : TD_DT_BF16, SHAPES[i].hidden, SHAPES[i].inter,
                           SHAPES[i].shards, gated);
                check_mixed(&m);
                close_mixed(&m);
            }
}

TEST(ids_that_are_not_in_a_slot_fail) {
    mixed m;
    open_mixed(&m, TD_EXPERT_INT4C, TD_DT_BF16, 128, 96, 1, false);
    rig           g = rig_open(1, m.act, false);
    td_block_desc desc = resident_desc(&m);
    td_npu_block *b = make_block(&g, &desc);
    place_experts(&m, 3, 0);
    td_step_counts counts = {.n_tok = N_TOK};
    td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
    for (uint16_t e = 0; e < N_EXPERTS + 1; e++) {
        if (e < N_EXPERTS && m.slot_of[e] != TD_NO_SLOT) continue;
        m.ids[0] = (uint16_t)(e | TD_ID_RESIDENT);
        td_status st = g.npu->ops->enqueue(g.npu, g.stream, b, &step), sync = g.npu->ops->stream_sync(g.npu, g.stream);
        assert_true(st != TD_OK || sync != TD_OK);
    }
    g.npu->ops->block_destroy(g.npu, b);
    rig_close(&g);
    close_mixed(&m);
}

TEST(blocks_of_other_sizes_are_refused) {
    mixed    m;
    td_error err = {0};
    open_mixed(&m, TD_EXPERT_INT8C, TD_DT_BF16, 128, 96, 1, false);
    rig           g = rig_open(1, m.act, false);
    td_npu_block *b;
    td_block_desc desc = resident_desc(&m);
    desc.resident.inter = 64;
    assert_int_equal(g.npu->ops->block_create(g.npu, &desc, &b, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "packed as [64, 128]"));
    desc = resident_desc(&m);
    desc.resident.top_k = N_EXPERTS + 1;
    assert_int_equal(g.npu->ops->block_create(g.npu, &desc, &b, &err), TD_EINVAL);
    rig_close(&g);
    close_mixed(&m);
}
