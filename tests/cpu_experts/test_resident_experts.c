/* Experts in slots of a device's memory (TD_BLOCK_RESIDENT, TD_BLOCK_JOIN) beside those of the CPU tier. Together they give
 * the bits that the CPU tier gives alone, whichever experts lie in slots, and in which. */
#include "tests/cpu_experts/mixed_experts.h"

#define N_TOK 21

static td_block_desc resident_desc(const mixed *m) {
    td_block_desc d = mixed_resident_desc(m, N_TOK);
    d.resident.slots = m->slots;
    d.resident.slot_of = m->slot_of;
    d.resident.in = m->x;
    d.resident.ids = m->ids;
    d.resident.weights = m->tokens.weights;
    d.resident.sums = m->parts[0];
    return d;
}

static void check_mixed(mixed *m) {
    AT_END(rig_close) rig g = rig_open(2, m->s.act, false);
    FREED void           *joined = act_array(m->s.act, NULL, N_TOK * m->s.hidden);
    td_block_desc         desc = resident_desc(m),
                  join = {.kind = TD_BLOCK_JOIN,
                          .layer = TD_NO_LAYER,
                          .max_tok = N_TOK,
                          .join = {.hidden = m->s.hidden, .parts = {m->parts[0], m->parts[1]}, .out = joined}};
    td_npu_block *resident = make_block(&g, &desc), *joiner = make_block(&g, &join);
    for (uint32_t n = 0; n <= MIXED_SLOTS; n++) {
        mixed_place(m, n, 100 * n);
        run_rows(&g, resident, N_TOK);
        mixed_ffn(m, m->ids, m->parts[1], true);
        run_rows(&g, joiner, N_TOK);
        assert_memory_equal(joined, m->want, N_TOK * m->s.hidden * td_dtype_bytes(m->s.act));
    }
}

TEST(any_placement_gives_the_bits_of_the_cpu_tier) {
    static const struct { uint32_t hidden, inter, shards; } SHAPES[] = {{128, 96, 1}, {160, 90, 2}, {100, 37, 3}};
    for (int f = 0; f < TD_EXPERT_FORMATS; f++)
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
            for (int gated = 0; gated < 2; gated++) {
                const mixed_shape         s = {(td_expert_format)f,
                                       i == 1 ? TD_DT_F32 : TD_DT_BF16,
                                               SHAPES[i].hidden,
                                               SHAPES[i].inter,
                                               SHAPES[i].shards,
                                               N_TOK,
                                               gated};
                AT_END(mixed_close) mixed m = mixed_open(&s, NULL, NULL);
                check_mixed(&m);
            }
}

/* Parts of two cards, each of the first choices and of the others, add up to the words of one block of all. */
TEST(parts_of_cards_and_of_choices_add_up) {
    const mixed_shape         s = {TD_EXPERT_INT8C, TD_DT_BF16, 128, 96, 1, N_TOK, false};
    const size_t              words = N_TOK * td_exact_words(s.hidden);
    AT_END(mixed_close) mixed m = mixed_open(&s, NULL, NULL);
    AT_END(rig_close) rig     g = rig_open(2, s.act, false);
    FREED int32_t            *whole = calloc(words, sizeof *whole);
    uint16_t                  slot_of[MIXED_EXPERTS];
    mixed_place(&m, MIXED_SLOTS - 2, 0);
    memcpy(slot_of, m.slot_of, sizeof slot_of);
    for (uint32_t part = 0; part <= 4; part++) { /* the last one is all */
        for (uint32_t e = 0; e < MIXED_EXPERTS; e++)
            m.slot_of[e] =
                part < 4 && slot_of[e] != TD_NO_SLOT && slot_of[e] % 2 == part % 2 ? TD_SLOT_ELSEWHERE : slot_of[e];
        m.first = part < 4 && part / 2 ? 1 : 0;
        m.end = part < 2 ? 1 : 0;
        td_block_desc desc = resident_desc(&m);
        td_npu_block *b = make_block(&g, &desc);
        run_rows(&g, b, N_TOK);
        for (size_t i = 0; i < words && part < 4; i++) whole[i] = (int32_t)((uint32_t)whole[i] + (uint32_t)m.parts[0][i]);
    }
    assert_memory_equal(whole, m.parts[0], words * sizeof *whole);
}

TEST(ids_that_are_not_in_a_slot_fail) {
    const mixed_shape         s = {TD_EXPERT_INT4C, TD_DT_BF16, 128, 96, 1, N_TOK, false};
    AT_END(mixed_close) mixed m = mixed_open(&s, NULL, NULL);
    AT_END(rig_close) rig     g = rig_open(1, s.act, false);
    td_block_desc             desc = resident_desc(&m);
    td_npu_block             *b = make_block(&g, &desc);
    mixed_place(&m, 3, 0);
    td_step_counts counts = {.n_tok = N_TOK};
    td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
    for (uint16_t e = 0; e < MIXED_EXPERTS + 1; e++) {
        if (e < MIXED_EXPERTS && m.slot_of[e] != TD_NO_SLOT) continue;
        m.ids[0] = (uint16_t)(e | TD_ID_RESIDENT);
        td_status st = g.npu->ops->enqueue(g.npu, g.stream, b, &step), sync = g.npu->ops->stream_sync(g.npu, g.stream);
        assert_true(st != TD_OK || sync != TD_OK);
    }
}

TEST(blocks_of_other_sizes_are_refused) {
    const mixed_shape         s = {TD_EXPERT_INT8C, TD_DT_BF16, 128, 96, 1, N_TOK, false};
    AT_END(mixed_close) mixed m = mixed_open(&s, NULL, NULL);
    td_error                  err = {0};
    AT_END(rig_close) rig     g = rig_open(1, s.act, false);
    td_npu_block             *b;
    td_block_desc             desc = resident_desc(&m);
    desc.resident.inter = 64;
    assert_int_equal(g.npu->ops->block_create(g.npu, &desc, &b, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "packed as [64, 128]"));
    desc = resident_desc(&m);
    desc.resident.top_k = MIXED_EXPERTS + 1;
    assert_int_equal(g.npu->ops->block_create(g.npu, &desc, &b, &err), TD_EINVAL);
    desc = resident_desc(&m);
    desc.resident.end = MIXED_K + 1;
    assert_int_equal(g.npu->ops->block_create(g.npu, &desc, &b, &err), TD_EINVAL);
}
