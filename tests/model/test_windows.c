/*
 * Layers with a window that give pages back: what the memory plan says of them is what is taken. Rows whose
 * window lies in a few pages, used again and again, have the logits of rows that keep all tokens, bit for bit.
 */
#include "core/log/log.h"
#include "core/math/rng.h"
#include "core/memory/mem.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261128u
#define LEN 480
#define PAGES ((LEN + TD_KV_PAGE - 1) / TD_KV_PAGE)
#define CHUNK 60
#define WINDOW_PAGES 2  /* a window of 20 tokens and the rows of a chunk */
#define IN_USE_PAGES 64 /* by other sequences, which there are none of: so the windows have fewer pages than the rest */

static model_run_options options_of(const char *folder, const char *device, bool w8a8, bool gives, uint32_t n_seq) {
    return WITH(model_run_options, .path = folder, .device = device, .w8a8 = w8a8,
                .experts = w8a8 ? TD_EXPERT_INT4C : TD_EXPERT_BF16, .max_tok = CHUNK, .overlap_min_tok = CHUNK / 2,
                .npu_threads = 1, .gives_windows = gives, .n_seq = n_seq, .max_len = LEN);
}

/* ---- memory ------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t taken, planned, rounding; /* each cache is rounded to whole pages of memory */
} figures;

/* Of the device's memory, with the pages of so many sequences. */
static figures memory_with(const char *folder, bool gives, uint32_t n_seq) {
    const model_run_options o = options_of(folder, "apart", true, gives, n_seq);
    model_run               r;
    td_npu_caps             caps;
    model_run_open(&r, &o);
    r.npu->ops->caps(r.npu, &caps);
    const td_model_memory *m = &r.placed.memory;
    assert_int_equal(m->windows.page_bytes > 0, gives);
    figures f = {.taken = caps.memory_total - caps.memory_free,
                 .planned = td_model_kv_bytes(m, r.n_pages),
                 .rounding = td_model_get_config(r.model)->n_layers * TD_CACHES_MAX * td_page_bytes()};
    model_run_close(&r);
    return f;
}

static void check_memory(const char *folder) {
    figures few = memory_with(folder, true, 8), many = memory_with(folder, true, 40), all = memory_with(folder, false, 40);
    assert_in_range(many.taken - few.taken + few.rounding, many.planned - few.planned,
                    many.planned - few.planned + 2 * few.rounding);
    assert_in_range(all.taken - many.taken + few.rounding, all.planned - many.planned,
                    all.planned - many.planned + 2 * few.rounding);
    assert_true(all.planned - many.planned > 10 * few.rounding && many.planned - few.planned > 10 * few.rounding);
}

/* ---- logits ------------------------------------------------------------------------------------ */

typedef struct {
    uint32_t windows[PAGES], free_page[WINDOW_PAGES], n_free, first, end;
} held_pages;

/* Hold what rows begin .. end - 1 read with a window of 20 tokens, and nothing else. */
static void hold(held_pages *h, uint32_t begin, uint32_t end) {
    const uint32_t first = begin < 20 ? 0 : (begin - 19) / TD_KV_PAGE, last = (end - 1) / TD_KV_PAGE;
    for (; h->first < first; h->first++) {
        h->free_page[h->n_free++] = h->windows[h->first];
        h->windows[h->first] = TD_NO_PAGE;
    }
    for (; h->end <= last; h->end++) {
        assert_true(h->n_free > 0);
        h->windows[h->end] = h->free_page[--h->n_free];
    }
}

/* A prompt in chunks, then tokens one by one. */
static void check_logits(const char *folder, const char *device, bool w8a8) {
    model_run_options whole_o = options_of(folder, device, w8a8, false, 1),
                      o = options_of(folder, device, w8a8, true, IN_USE_PAGES / PAGES);
    model_run  whole, r;
    held_pages h = {.free_page = {1, 0}, .n_free = WINDOW_PAGES};
    uint32_t   ids[LEN];
    model_run_open(&whole, &whole_o);
    model_run_open(&r, &o);
    const uint32_t vocab = td_model_get_config(r.model)->vocab;
    float         *logits = malloc(2 * (size_t)CHUNK * vocab * sizeof *logits), *expected = logits + (size_t)CHUNK * vocab;
    assert_true(td_window_count(r.placed.memory.windows, r.n_pages) < r.n_pages);
    for (uint32_t i = 0; i < PAGES; i++) h.windows[i] = TD_NO_PAGE;
    for (uint32_t i = 0; i < LEN; i++) ids[i] = (uint32_t)td_rng_u64(SEED, 1, i) % vocab;
    for (uint32_t at = 0, n; at < LEN; at += n) {
        n = at < 300 ? CHUNK : at < 400 ? 1 : 5;
        const model_piece piece = {.first = at, .n = n, .ids = ids + at, .absorbed = at >= 300};
        hold(&h, at, at + n);
        td_step_sequence seq = WITH(td_step_sequence, .pages = r.page, .windows = h.windows, .n_pages = PAGES,
                                    .absorbed = piece.absorbed, .state = td_own_state(0, at));
        td_step_rows_clear(&r.rows);
        td_step_rows_add(&r.rows, ids + at, at, n, &seq);
        OK(td_model_forward(r.model, &r.rows, (td_out_rows){0}, NULL));
        model_run_logits(&r, n, logits);
        model_run_forward(&whole, &piece, 1);
        model_run_logits(&whole, n, expected);
        assert_memory_equal(logits, expected, n * vocab * sizeof *logits);
    }
    free(logits);
    model_run_close(&r);
    model_run_close(&whole);
}

static void check_folder(const char *folder) {
    check_memory(folder);
    check_logits(folder, "host", false);
    check_logits(folder, "host", true);
    check_logits(folder, "apart", true);
}

TEST(gpt_oss) {
    check_folder("tests/data/golden/gpt_oss");
}

TEST(deepseek_v4) {
    check_folder("tests/data/golden/deepseek_v4");
}

int main(void) {
    td_log_set_level(TD_LOG_WARNING);
    return tests_run();
}
