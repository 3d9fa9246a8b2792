/* The buckets of a step, whole and in halves, checked row by row against the rows they were filled from, on random steps. */

#include "core/math/rng.h"
#include "model/step_buf.h"
#include "npu/host/host_npu.h"
#include "tests/td_test.h"

#define SEED 20261122u
#define MAX_TOK 700
#define MAX_OUT 20
#define PAGES 3
#define STEPS 2000

static uint64_t g_draws;
static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(SEED, 0, g_draws++) % n);
}

static td_pool *g_pool;
static td_npu  *g_npu;

BEFORE_ALL {
    td_worker_place place = {.cpu = TD_CPU_ANY};
    OK(td_pool_create(&place, 1, &g_pool, NULL));
    td_npu_config c = {.act_dtype = TD_DT_F32, .host = &(td_host_npu_config){.pool = g_pool}};
    OK(td_npu_open("host", &c, &g_npu, NULL));
}

AFTER_ALL {
    g_npu->ops->close(g_npu);
    td_pool_destroy(g_pool);
}

/* Sequences of 1 to 2 * mean - 1 rows. */
static void random_rows(td_step_rows *r, uint32_t n_tok, uint32_t mean) {
    static uint32_t    tokens[MAX_TOK];
    static const float features[1]; /* only their place counts here */
    td_step_rows_clear(r);
    while (r->n_tok < n_tok) {
        uint32_t n = 1 + draw(2 * mean - 1), pages[PAGES];
        if (n > n_tok - r->n_tok) n = n_tok - r->n_tok;
        if (n > PAGES * TD_KV_PAGE) n = PAGES * TD_KV_PAGE;
        uint32_t first = draw(PAGES * TD_KV_PAGE - n + 1);
        for (uint32_t i = 0; i < PAGES; i++) pages[i] = draw(1000);
        for (uint32_t i = 0; i < n; i++) tokens[i] = draw(1000);
        td_sequence_state       state = {draw(1000), draw(1000), draw(1000)};
        const td_sequence_image image = {
            .first = draw(100), .rows = 1 + draw(9), .columns = 1 + draw(9), .features = draw(2) ? features : NULL};
        td_step_rows_add(r, tokens, first, n,
                         &(td_step_sequence){.pages = pages,
                                             .n_pages = PAGES,
                                             .absorbed = draw(2),
                                             .state = state,
                                             .images = &image,
                                             .n_images = draw(2)});
    }
}

static uint32_t sequence_of(const uint32_t *seq_start, uint32_t row) {
    uint32_t s = 0;
    while (seq_start[s + 1] <= row) s++;
    return s;
}

/* That the step is rows begin .. end - 1. @param images where the rows' features begin in their buffer */
static void check_step(const td_step *s, const td_step_rows *r, uint32_t begin, uint32_t end, uint32_t images) {
    const td_step_arrays *a = &s->host;
    assert_int_equal(s->first_row, begin);
    assert_int_equal(a->counts->n_tok, end - begin);
    assert_true(a->counts->n_tok <= s->max_tok && a->counts->n_seq <= s->max_seq && a->counts->n_out <= s->max_out);
    assert_int_equal(a->seq_start[0], 0);
    assert_int_equal(a->seq_start[a->counts->n_seq], end - begin);
    for (uint32_t q = 0; q < a->counts->n_seq;
         q++) { /* the rule of npu.h: a sequence's keys end with its last row of the step */
        assert_true(a->seq_start[q] < a->seq_start[q + 1]);
        assert_int_equal(a->kv_len[q], a->pos[a->seq_start[q + 1] - 1] + 1);
    }
    /* A sequence that is cut goes on from the state of the first part's last block, if one ended there. */
    for (uint32_t q = 0; q < a->counts->n_seq; q++) {
        uint32_t first = a->seq_start[q], of_rows = sequence_of(r->seq_start, begin + first);
        uint32_t before = r->pos[r->seq_start[of_rows]];
        assert_int_equal(a->state_in[q], before / TD_STATE_BLOCK < a->pos[first] / TD_STATE_BLOCK ? r->state_out[of_rows]
                                                                                                  : r->state_in[of_rows]);
    }
    for (uint32_t row = begin; row < end; row++) {
        uint32_t of_rows = sequence_of(r->seq_start, row), of_step = sequence_of(a->seq_start, row - begin);
        assert_int_equal(a->token[row - begin], r->token[row]);
        assert_int_equal(a->slot[row - begin], r->slot[row]);
        assert_int_equal(a->pos[row - begin], r->pos[row]);
        assert_memory_equal(a->rope_pos + 3 * (row - begin), r->rope_pos + 3 * row, 3 * sizeof *r->rope_pos);
        assert_int_equal(a->image_row[row - begin],
                         r->image_row[row] == TD_NO_IMAGE ? TD_NO_IMAGE : images + r->image_row[row]);
        assert_int_equal(a->absorbed[of_step], r->absorbed[of_rows]);
        assert_int_equal(a->state_out[of_step], r->state_out[of_rows]);
        assert_int_equal(a->state_open[of_step], r->state_open[of_rows]);
        for (uint32_t p = 0; p <= r->pos[row] / TD_KV_PAGE; p++)
            assert_int_equal(a->block_table[of_step * s->block_stride + p], r->block_table[of_rows * r->block_stride + p]);
        assert_int_equal(r->slot[row], r->block_table[of_rows * r->block_stride + r->pos[row] / TD_KV_PAGE] * TD_KV_PAGE +
                                           r->pos[row] % TD_KV_PAGE);
    }
}

static bool from_five_rows(const void *user, uint32_t n) {
    (void)user;
    return n >= 5;
}

static const td_step_shape SHAPE = {.max_tok = MAX_TOK,
                                    .max_seq = MAX_TOK,
                                    .max_out = MAX_OUT,
                                    .max_seq_tokens = PAGES * TD_KV_PAGE,
                                    .rope_axes = true,
                                    .images = true,
                                    .recurrent = true,
                                    .splits = from_five_rows};

TEST(buckets_hold_the_rows) {
    AT_END(td_step_buf_close) td_step_buf   buf;
    AT_END(td_step_rows_close) td_step_rows rows;
    uint32_t                                across = 0, between = 0, out_row[MAX_OUT];
    print_message("seed %u\n", SEED);
    OK(td_step_buf_open(&buf, &SHAPE, g_npu, NULL));
    OK(td_step_rows_open(&rows, MAX_TOK, MAX_TOK, PAGES * TD_KV_PAGE, NULL));
    for (int i = 0; i < STEPS; i++) {
        uint32_t n_tok = 1 + draw(i % 2 ? 40 : MAX_TOK), n_out = draw(n_tok < MAX_OUT ? n_tok : MAX_OUT);
        random_rows(&rows, n_tok, 1 + draw(40));
        for (uint32_t k = 0; k < n_out; k++) out_row[k] = draw(n_tok);
        const td_step_bucket *b = td_step_buf_fill(&buf, &rows, NULL, out_row, n_out);
        assert_true(b->max_tok >= n_tok && (b == buf.buckets || b[-1].max_tok < n_tok) && b->bytes <= buf.bytes);
        assert_int_equal(b->n_halves, n_tok > 4 && !(n_tok <= 8 && b->max_tok == 8 && b[-1].max_tok + 1 < 5) ? 2 : 1);
        check_step(&b->whole, &rows, 0, n_tok, 0);
        assert_int_equal(b->whole.host.counts->n_out, n_out);
        assert_memory_equal(b->whole.host.out_row, out_row, n_out * sizeof *out_row);
        if (b->n_halves == 1) continue;
        uint32_t cut = b->half[1].first_row;
        assert_int_equal(cut, td_first_half(b->max_tok));
        check_step(&b->half[0], &rows, 0, cut, 0);
        check_step(&b->half[1], &rows, cut, n_tok, 0);
        *(sequence_of(rows.seq_start, cut - 1) == sequence_of(rows.seq_start, cut) ? &across : &between) += 1;
    }
    print_message("%u cuts within a sequence, %u between two\n", across, between);
    assert_true(across > STEPS / 10 && between > STEPS / 100);
}

/* Of steps whose rows lie behind others', everything but the place in the buffers is as it is without. */
TEST(rows_behind_others) {
    AT_END(td_step_buf_close) td_step_buf   buf;
    AT_END(td_step_rows_close) td_step_rows rows;
    td_step_shape                           behind = SHAPE;
    behind.splits = NULL;
    behind.first_row = 77;
    OK(td_step_buf_open(&buf, &behind, g_npu, NULL));
    OK(td_step_rows_open(&rows, MAX_TOK, MAX_TOK, PAGES * TD_KV_PAGE, NULL));
    for (uint32_t n_tok = 1; n_tok <= MAX_TOK; n_tok += 1 + draw(50)) {
        random_rows(&rows, n_tok, 20);
        td_step step = td_step_buf_fill(&buf, &rows, NULL, NULL, 0)->whole;
        assert_int_equal(step.first_row, 77);
        assert_int_equal(step.max_tok, td_step_bucket_rows(n_tok, MAX_TOK));
        step.first_row = 0;
        check_step(&step, &rows, 0, n_tok, 77);
    }
}

/* Every number of rows has a bucket, and a large one wastes less than an eighth of its copies. */
TEST(buckets_cover_every_step) {
    AT_END(td_step_buf_close) td_step_buf buf;
    OK(td_step_buf_open(&buf, &SHAPE, g_npu, NULL));
    assert_int_equal(buf.buckets[0].max_tok, 1);
    assert_int_equal(buf.buckets[buf.n - 1].max_tok, MAX_TOK);
    for (uint32_t i = 1; i < buf.n; i++) {
        uint32_t before = buf.buckets[i - 1].max_tok, now = buf.buckets[i].max_tok;
        assert_true(before < now && now <= 2 * before);
        if (now > 256) assert_true(8 * (now - before) <= before);
        assert_true(td_first_half(now) <= before); /* the first half of a step in halves is full */
    }
}

/* An MTP pass is fed other tokens at the same places. */
TEST(tokens_can_be_others) {
    AT_END(td_step_buf_close) td_step_buf   buf;
    AT_END(td_step_rows_close) td_step_rows rows;
    uint32_t                                tokens[] = {7, 8, 9}, next[] = {8, 9, 10}, page = 4;
    OK(td_step_buf_open(&buf, &SHAPE, g_npu, NULL));
    OK(td_step_rows_open(&rows, 8, 8, TD_KV_PAGE, NULL));
    td_step_rows_add(&rows, tokens, 5, 3, &(td_step_sequence){.pages = &page, .n_pages = 1});
    const td_step_bucket *b = td_step_buf_fill(&buf, &rows, next, NULL, 0);
    assert_memory_equal(b->whole.host.token, next, sizeof next);
    assert_int_equal(b->whole.host.slot[2], 4 * TD_KV_PAGE + 7);
    assert_int_equal(rows.token[0], 7);
}

/* Tokens of an image have its rows one after the other, wherever the rows of a step begin; text has none. */
TEST(images_of_rows) {
    static const uint32_t                   tokens[20] = {0}, page = 0;
    static const float                      features[1] = {0};
    AT_END(td_step_rows_close) td_step_rows r;
    const td_sequence_image                 images[] = {{.first = 3, .rows = 2, .columns = 2, .features = features},
                                                        {.first = 8, .rows = 1, .columns = 2},
                                                        {.first = 12, .rows = 3, .columns = 1, .features = features}};
    const td_step_sequence                  seq = {.pages = &page, .n_pages = 1, .images = images, .n_images = 3};
    static const uint32_t                   AT[20] = {[3] = 1, [4] = 2, [5] = 3, [6] = 4, [12] = 1, [13] = 2, [14] = 3};
    OK(td_step_rows_open(&r, 20, 1, 20, NULL));
    for (uint32_t first = 0; first < 20; first++)
        for (uint32_t n = 1; first + n <= 20; n++) {
            uint32_t next = 0;
            td_step_rows_clear(&r);
            td_step_rows_add(&r, tokens, first, n, &seq);
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t at = AT[first + i];
                assert_int_equal(r.image_row[i], at ? next : TD_NO_IMAGE);
                if (!at) continue;
                assert_int_equal(r.images[next].at, at - 1);
                assert_int_equal(r.images[next].of, first + i < 8 ? 4 : 3);
                assert_ptr_equal(r.images[next++].features, features);
            }
            assert_int_equal(r.n_images, next);
        }
}

/* What a device is told of a step: by its sequences' rows and forms. */
TEST(kinds) {
    static const struct {
        uint32_t     rows[3];
        bool         absorbed[3];
        td_step_kind kind;
    } CASES[] = {{{1, 1, 2}, {true, true, true}, TD_STEP_GENERATED}, {{4, 70, 9}, {false}, TD_STEP_PROMPTS},
                 {{1, 70, 2}, {true, false, true}, TD_STEP_MIXED},   {{1, 70, 0}, {false}, TD_STEP_MIXED},
                 {{1, 40, 1}, {true, true, true}, TD_STEP_MIXED},    {{70, 70, 0}, {true, false}, TD_STEP_ANY}};
    static const uint32_t tokens[70] = {0}, pages[1] = {0};
    td_error              err = {0};
    td_step_rows          r = {0};
    OK(td_step_rows_open(&r, 256, 3, 128, &err));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        td_step_rows_clear(&r);
        for (int q = 0; q < 3; q++)
            if (CASES[i].rows[q])
                td_step_rows_add(&r, tokens, 0, CASES[i].rows[q],
                                 &(td_step_sequence){.pages = pages, .n_pages = 1, .absorbed = CASES[i].absorbed[q]});
        assert_int_equal(td_step_rows_kind(&r), CASES[i].kind);
    }
    td_step_rows_close(&r);
}
