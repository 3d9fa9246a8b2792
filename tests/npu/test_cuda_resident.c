/*
 * Routed experts in slots of an NVIDIA card, on the stand-in. The words of their exact sums are those of the host's block.
 * Joined with the CPU tier's part, they are what the CPU tier gives alone. In every format and every layout of tiles, this
 * processor's or not; one graph for all placements.
 */
#include "coded_matrices.h"
#include "cuda_pair.h"
#include "kernels/rows/row_quant.h"
#include "tests/cpu_experts/mixed_experts.h"
#include "tests/standins/cuda/use_cuda_standin.h"

static const char *const LAYOUTS[TD_PRODUCTS][5] = {
    [TD_PRODUCT_INT4C] = {"int4c_16x4", "int4c_32x4", "int4c_16x4s", "int4c_16x8s"},
    [TD_PRODUCT_BF16] = {"bf16_16", "bf16_32"},
    [TD_PRODUCT_INT8C] = {"int8c_16x4", "int8c_32x4", "int8c_16x4s", "int8c_16x8s"},
    [TD_PRODUCT_INT4G] = {"int4g_16x4", "int4g_32x4", "int4g_16x4s", "int4g_16x8s"},
    [TD_PRODUCT_FP4G] = {"fp4g_16x4", "fp4g_32x4", "fp4g_16x8"}};

/* What the blocks read and write, on the card, behind p.first rows that nobody may touch. */
typedef struct {
    both x, q, scale, ids, weights, slots, slot_of, parts[2], out;
} arrays;

static both rows_of(pair *p, size_t row_bytes) {
    return put(p, NULL, all_rows(p) * row_bytes);
}

static void send_rows(pair *p, both *b, const void *rows, size_t row_bytes) {
    memcpy((char *)b->at[HOST] + p->first * row_bytes, rows, p->rows * row_bytes);
    copy(p, b->at[HOST], b->at[CARD], b->bytes, TD_COPY_H2D);
}

static void *fetched(pair *p, both *b, size_t row_bytes) {
    copy(p, b->at[HOST], b->at[CARD], b->bytes, TD_COPY_D2H);
    return (char *)b->at[HOST] + p->first * row_bytes;
}

static arrays arrays_open(pair *p, mixed *m) {
    const size_t hidden = m->s.hidden, words = td_exact_words(hidden) * sizeof(int32_t);
    arrays       a =
        WITH(arrays, .x = rows_of(p, hidden * sizeof(td_bf16)), .q = rows_of(p, hidden), .scale = rows_of(p, sizeof(float)),
             .ids = rows_of(p, MIXED_K * sizeof(uint16_t)), .weights = rows_of(p, MIXED_K * sizeof(float)),
             .slots = put(p, NULL, MIXED_SLOTS * m->packed.bytes), .slot_of = put(p, NULL, sizeof m->slot_of),
             .parts = {rows_of(p, words), rows_of(p, words)}, .out = rows_of(p, hidden * sizeof(td_bf16)));
    FREED int8_t *codes = malloc(p->rows * hidden);
    FREED float  *scale = malloc(p->rows * sizeof *scale);
    td_quantize_rows_i8(TD_DT_BF16, m->x, p->rows, hidden, hidden, codes, hidden, scale, NULL);
    send_rows(p, &a.x, m->x, hidden * sizeof(td_bf16));
    send_rows(p, &a.q, codes, hidden);
    send_rows(p, &a.scale, scale, sizeof *scale);
    send_rows(p, &a.weights, m->tokens.weights, MIXED_K * sizeof(float));
    return a;
}

/* A placement as the card gets it, and the CPU tier's part. */
static void send_placement(pair *p, mixed *m, arrays *a) {
    copy(p, m->slots, a->slots.at[CARD], a->slots.bytes, TD_COPY_H2D);
    copy(p, m->slot_of, a->slot_of.at[CARD], a->slot_of.bytes, TD_COPY_H2D);
    send_rows(p, &a->ids, m->ids, MIXED_K * sizeof(uint16_t));
    mixed_ffn(m, m->ids, m->parts[1], true);
    send_rows(p, &a->parts[1], m->parts[1], td_exact_words(m->s.hidden) * sizeof(int32_t));
}

typedef struct {
    td_npu_block *resident, *join;
    td_npu_graph *graph;
} captured;

static td_block_desc card_desc(const pair *p, const mixed *m, const arrays *a, bool rows_in_int8) {
    td_block_desc d = mixed_resident_desc(m, all_rows(p));
    d.resident.slots = a->slots.at[CARD];
    d.resident.slot_of = a->slot_of.at[CARD];
    d.resident.in = rows_in_int8 ? NULL : a->x.at[CARD];
    if (rows_in_int8) d.resident.in_i8 = (td_rows_i8){a->q.at[CARD], a->scale.at[CARD]};
    d.resident.ids = a->ids.at[CARD];
    d.resident.weights = a->weights.at[CARD];
    d.resident.sums = a->parts[0].at[CARD];
    return d;
}

static captured capture(pair *p, const mixed *m, const arrays *a, bool rows_in_int8) {
    const td_npu_ops *o = p->card->ops;
    td_error          err = {0};
    captured          c;
    td_block_desc     desc = card_desc(p, m, a, rows_in_int8),
                  join = {.kind = TD_BLOCK_JOIN,
                          .layer = TD_NO_LAYER,
                          .max_tok = all_rows(p),
                          .join = {.hidden = m->s.hidden,
                                   .parts = {a->parts[0].at[CARD], a->parts[1].at[CARD]},
                                   .out = a->out.at[CARD]}};
    set_step(p);
    if (o->block_create(p->card, &desc, &c.resident, &err) != TD_OK) fail_msg("%s", err.text);
    if (o->block_create(p->card, &join, &c.join, &err) != TD_OK) fail_msg("%s", err.text);
    OK(o->enqueue(p->card, p->stream, c.resident, &p->step[CARD])); /* the scratch is made here */
    OK(o->stream_sync(p->card, p->stream));
    OK(o->graph_begin(p->card, p->stream));
    OK(o->enqueue(p->card, p->stream, c.resident, &p->step[CARD]));
    OK(o->enqueue(p->card, p->stream, c.join, &p->step[CARD]));
    OK(o->graph_end(p->card, p->stream, &c.graph, &err));
    return c;
}

static void launch(pair *p, const captured *c) {
    OK(p->card->ops->graph_launch(p->card, p->stream, c->graph));
    OK(p->card->ops->stream_sync(p->card, p->stream));
}

static void release(pair *p, captured *c) {
    p->card->ops->graph_destroy(p->card, c->graph);
    p->card->ops->block_destroy(p->card, c->resident);
    p->card->ops->block_destroy(p->card, c->join);
}

/* The words of the host's block, where its kernels read these tiles. */
static void check_sums(pair *p, mixed *m, arrays *a, const char *what) {
    td_block_desc d = mixed_resident_desc(m, m->s.rows);
    const size_t  words = td_exact_words(m->s.hidden);
    d.resident.slots = m->slots, d.resident.slot_of = m->slot_of, d.resident.in = m->x, d.resident.ids = m->ids;
    d.resident.weights = m->tokens.weights, d.resident.sums = m->parts[0];
    td_npu_block *b = make_block(&p->host, &d);
    run_rows(&p->host, b, m->s.rows);
    const int32_t *got = fetched(p, &a->parts[0], words * sizeof *got);
    for (size_t row = 0; row < m->s.rows; row++)
        for (size_t i = 0; i < m->s.hidden; i++)
            for (size_t half = 0; half < 2; half++) {
                const size_t at = row * words + td_exact_at(i) + half * TD_EXACT_BLOCK;
                /* with none of its experts on the host, a row's words are those of no terms: 0 */
                if (got[at] != m->parts[0][at])
                    fail_msg("%s: row %zu, value %zu: word %d, and %d on the host", what, row, i, got[at], m->parts[0][at]);
            }
}

static void run_mixed(const mixed_shape *s, const mixed_codes *codes, const td_tile_layout *tiles, uint32_t bucket,
                      bool rows_in_int8) {
    AT_END(mixed_close) mixed m = mixed_open(s, codes, tiles);
    AT_END(close_pair) pair   p = open_pair(s->rows, bucket);
    arrays                    a = arrays_open(&p, &m);
    captured                  c = capture(&p, &m, &a, rows_in_int8);
    char                      what[96];
    for (uint32_t n = 0; n <= MIXED_SLOTS; n += n ? 4 : 3) {
        mixed_place(&m, n, 100 * n);
        send_placement(&p, &m, &a);
        launch(&p, &c);
        snprintf(what, sizeof what, "%u rows of %u, [%u, %u], %s, %u resident", s->rows, bucket, s->inter, s->hidden,
                 m.packed.tiles->name, n);
        if (m.packed.tiles == m.own.tiles) check_sums(&p, &m, &a, what);
        if (memcmp(fetched(&p, &a.out, s->hidden * sizeof(td_bf16)), m.want, s->rows * s->hidden * sizeof(td_bf16)))
            fail_msg("%s: other bits than the CPU tier's", what);
        const td_bf16 *all = a.out.at[HOST];
        for (size_t i = 0; i < all_rows(&p) * s->hidden; i++)
            if ((i < p.first * s->hidden || i >= (p.first + p.rows) * s->hidden) && all[i])
                fail_msg("%s: a row that is not of the step is written", what);
    }
    release(&p, &c);
}

/* Decoded tokens and prompts, so that both tiles of rows run; sizes that fill no tile; experts in one piece and in
 * several. */
TEST(any_placement_gives_the_bits_of_the_cpu_tier) {
    static const struct {
        uint32_t rows, bucket, hidden, inter, shards;
    } SHAPES[] = {{1, 1, 128, 96, 1}, {5, 8, 160, 90, 2}, {37, 40, 100, 37, 3}};
    for (int f = 0; f < TD_EXPERT_FORMATS; f++)
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
            run_mixed(&(mixed_shape){(td_expert_format)f, TD_DT_BF16, SHAPES[i].hidden, SHAPES[i].inter, SHAPES[i].shards,
                                     SHAPES[i].rows, (f + i) % 2},
                      NULL, NULL, SHAPES[i].bucket, f != TD_EXPERT_BF16 && i == 1);
}

TEST(tiles_of_any_processor) {
    for (int f = 0; f < TD_EXPERT_FORMATS; f++)
        for (size_t i = 0; LAYOUTS[f][i]; i++) {
            const td_tile_layout *l = td_tile_layout_named((td_product)f, LAYOUTS[f][i]);
            assert_non_null(l);
            run_mixed(&(mixed_shape){(td_expert_format)f, TD_DT_BF16, 144, 70, 2, 3, true}, NULL, l, 4, false);
            run_mixed(&(mixed_shape){(td_expert_format)f, TD_DT_BF16, 72, 140, 1, 33, false}, NULL, l, 40, false);
        }
}

/* Scales of every type, and zeros. */
static void run_kind(size_t kind, rnd *r) {
    enum { HIDDEN = 144, INTER = 70 };
    const bool        fp4 = KINDS[kind].format == TD_WEIGHT_FP4G;
    coded             of[MIXED_EXPERTS][TD_EXPERT_MATRICES];
    td_expert_weights views[MIXED_EXPERTS] = {0};
    for (size_t e = 0; e < MIXED_EXPERTS; e++) {
        for (int m = 0; m < TD_EXPERT_MATRICES; m++)
            of[e][m] = make_coded(r, kind, m == TD_EXPERT_DOWN ? HIDDEN : INTER, m == TD_EXPERT_DOWN ? INTER : HIDDEN);
        views[e] = (td_expert_weights){.gate = view_of(&of[e][0]), .up = view_of(&of[e][1]), .down = view_of(&of[e][2])};
    }
    const mixed_shape s = {fp4 ? TD_EXPERT_FP4G : TD_EXPERT_INT4G, TD_DT_BF16, HIDDEN, INTER, 2, 5, false};
    const mixed_codes codes = {views,
                               {.size = KINDS[kind].size ? KINDS[kind].size : 128,
                                .scale_dtype = KINDS[kind].dtype,
                                .zero_points = KINDS[kind].zeros}};
    run_mixed(&s, &codes, NULL, 8, true);
    run_mixed(&s, &codes, fp4 ? &td_fp4g_16x8 : &td_int4g_16x8s, 8, false);
    for (size_t e = 0; e < MIXED_EXPERTS; e++)
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) free_coded(&of[e][m]);
}

TEST(groups_of_every_kind) {
    rnd r = rnd_open("groups of every kind");
    for (size_t kind = 0; kind < N_KINDS; kind++) run_kind(kind, &r);
}

/* Rows go through in runs of 1,024. */
TEST(more_rows_than_a_run) {
    run_mixed(&(mixed_shape){TD_EXPERT_INT4C, TD_DT_BF16, 32, 16, 1, 1029, false}, NULL, NULL, 1032, false);
}

/* Experts in slots of another card, and choices of another block, have no part in the words. */
TEST(a_part_of_the_cards_and_of_the_choices) {
    const mixed_shape s = {TD_EXPERT_INT8C, TD_DT_BF16, 64, 48, 1, 5, false};
    mixed             m = mixed_open(&s, NULL, NULL);
    for (m.first = 0; m.first < MIXED_K; m.first++) {
        m.end = m.first ? MIXED_K : 1;
        pair     p = open_pair(s.rows, 8);
        arrays   a = arrays_open(&p, &m);
        captured c = capture(&p, &m, &a, false);
        mixed_place(&m, MIXED_SLOTS - 1, 0);
        for (uint32_t e = 0; e < MIXED_EXPERTS; e++)
            if (m.slot_of[e] != TD_NO_SLOT && m.slot_of[e] % 2) m.slot_of[e] = TD_SLOT_ELSEWHERE;
        send_placement(&p, &m, &a);
        launch(&p, &c);
        check_sums(&p, &m, &a, "a part");
        release(&p, &c);
        close_pair(&p);
    }
    mixed_close(&m);
}

/* A marked expert without a slot, or one that there is not: the row's sum is no number, and the others are what they
 * were. */
TEST(ids_that_are_not_in_a_slot_give_no_number) {
    const mixed_shape         s = {TD_EXPERT_INT8C, TD_DT_BF16, 64, 48, 1, 5, false};
    AT_END(mixed_close) mixed m = mixed_open(&s, NULL, NULL);
    AT_END(close_pair) pair   p = open_pair(s.rows, 8);
    arrays                    a = arrays_open(&p, &m);
    captured                  c = capture(&p, &m, &a, false);
    mixed_place(&m, 3, 0);
    for (uint16_t e = 0; e <= MIXED_EXPERTS; e++) {
        if (e < MIXED_EXPERTS && m.slot_of[e] != TD_NO_SLOT) continue;
        send_placement(&p, &m, &a);
        const uint16_t kept = m.ids[2 * MIXED_K + 1];
        m.ids[2 * MIXED_K + 1] = (uint16_t)(e | TD_ID_RESIDENT);
        send_rows(&p, &a.ids, m.ids, MIXED_K * sizeof(uint16_t));
        m.ids[2 * MIXED_K + 1] = kept;
        launch(&p, &c);
        const td_bf16 *got = fetched(&p, &a.out, s.hidden * sizeof(td_bf16)), *want = m.want;
        for (size_t i = 0; i < s.rows * s.hidden; i++)
            if (i / s.hidden == 2 ? !isnan(td_bf16_to_f32(got[i])) : got[i] != want[i])
                fail_msg("expert %u: row %zu, value %zu", e, i / s.hidden, i % s.hidden);
    }
    release(&p, &c);
}

TEST(blocks_that_the_card_cannot_make) {
    const mixed_shape         s = {TD_EXPERT_BF16, TD_DT_BF16, 64, 48, 1, 1, false};
    AT_END(mixed_close) mixed m = mixed_open(&s, NULL, NULL);
    AT_END(close_pair) pair   p = open_pair(1, 1);
    td_error                  err = {0};
    td_npu_block             *b;
    td_block_desc             d = mixed_resident_desc(&m, 1);
    assert_int_equal(p.card->ops->block_create(p.card, &d, &b, &err), TD_EINVAL); /* no rows in bf16 */
    assert_non_null(strstr(err.text, "rows in bf16"));
    d.resident.in = m.x;
    d.resident.inter = 32;
    assert_int_equal(p.card->ops->block_create(p.card, &d, &b, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "packed as [32, 64]"));
}

int main(void) {
    use_cuda_standin("5", "calls");
    return tests_run();
}
