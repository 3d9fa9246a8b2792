/*
 * A page of KV is copied out of one model and into another. Tokens that follow it there have the bits that they have where
 * the page was computed. This holds on devices with and without a memory of their own, with their own threads, and on
 * several cards; and from one kind of device to another that computes the same bits.
 */

#include "core/log/log.h"
#include "core/math/rng.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261123u
#define TAIL 9 /* tokens behind the page */

typedef struct {
    const char *name, *device;
    uint32_t    npu_threads, n_cards;
} way;

static const way WAYS[] = {{"host", "host", 0, 1},
                           {"host with threads of its own", "host", 1, 1},
                           {"apart", "apart", 1, 1},
                           {"two cards of host", "host", 2, 2},
                           {"two cards of apart", "apart", 2, 2}};
#define N_WAYS (sizeof WAYS / sizeof WAYS[0])

typedef enum { FLOATS, W8A8, KV_INT8 } numbers; /* the last: W8A8 with a cache in 8 bits */

static void open_way(model_run *r, const char *path, numbers of, const way *w) {
    model_run_options o = WITH(model_run_options, .device = w->device, .path = path, .w8a8 = of != FLOATS,
                               .kv_int8 = of == KV_INT8, .npu_threads = w->npu_threads, .n_cards = w->n_cards,
                               .experts = of == FLOATS ? TD_EXPERT_BF16 : TD_EXPERT_INT4C, .max_tok = TD_KV_PAGE, .n_seq = 2,
                               .max_len = TD_KV_PAGE + TAIL);
    td_error          err = {0};
    model_run_open(r, &o);
    if (td_model_prepare_page_copies(r->model, &err) != TD_OK) fail_msg("%s", err.text);
}

/* Of sequence q, whose tokens are of another kind for each q. */
static void compute(model_run *r, uint32_t seq, uint32_t kind, uint32_t first, uint32_t n) {
    uint32_t    ids[TD_KV_PAGE + TAIL], vocab = td_model_get_config(r->model)->vocab;
    model_piece piece = {.seq = seq, .first = first, .n = n, .ids = ids + first};
    for (uint32_t i = 0; i < TD_KV_PAGE + TAIL; i++) ids[i] = (uint32_t)(td_rng_u64(SEED, kind, i) % vocab);
    model_run_forward(r, &piece, 1);
}

static float *tail_logits(model_run *r, uint32_t seq) {
    float *logits = malloc((size_t)TAIL * td_model_get_config(r->model)->vocab * sizeof *logits);
    assert_non_null(logits);
    compute(r, seq, 0, TD_KV_PAGE, TAIL);
    model_run_logits(r, TAIL, logits);
    return logits;
}

static uint32_t first_page(const model_run *r, uint32_t seq) {
    return r->page[(size_t)seq * r->pages_per_seq];
}

/* One computes the page; the other, where other tokens lay, gets it. */
static void check_ways(const char *path, numbers of, const way *from, const way *to) {
    AT_END(model_run_close) model_run a, b;
    open_way(&a, path, of, from);
    open_way(&b, path, of, to);
    size_t bytes = td_model_page_bytes(a.model),
           logits_bytes = (size_t)TAIL * td_model_get_config(a.model)->vocab * sizeof(float);
    assert_int_equal(td_model_page_bytes(b.model), bytes);
    FREED char *page = malloc(bytes + 1), *again = malloc(bytes);
    assert_non_null(page);
    assert_non_null(again);
    page[bytes] = 77;
    compute(&a, 1, 0, 0, TD_KV_PAGE);
    compute(&b, 0, 1, 0, TD_KV_PAGE);
    compute(&b, 1, 2, 0, TD_KV_PAGE);
    FREED float *computed = tail_logits(&a, 1), *other = tail_logits(&b, 0);
    assert_true(memcmp(computed, other, logits_bytes) != 0);
    OK(td_model_read_page(a.model, first_page(&a, 1), page));
    assert_int_equal(page[bytes], 77);
    OK(td_model_write_page(b.model, first_page(&b, 0), page));
    OK(td_model_read_page(b.model, first_page(&b, 0), again));
    assert_memory_equal(again, page, bytes);
    FREED float *taken = tail_logits(&b, 0);
    if (memcmp(computed, taken, logits_bytes)) fail_msg("%s: from %s to %s: other bits", path, from->name, to->name);
    OK(td_model_write_page(b.model, first_page(&b, 0), page));
    FREED float *neighbour = tail_logits(&b, 1); /* whose page is as it was */
    assert_true(memcmp(computed, neighbour, logits_bytes) != 0);
}

static void check_model(const char *path, numbers of) {
    for (size_t i = 0; i < N_WAYS; i++) check_ways(path, of, &WAYS[i], &WAYS[i]);
    check_ways(path, of, &WAYS[0], &WAYS[2]);
    check_ways(path, of, &WAYS[2], &WAYS[0]);
    check_ways(path, of, &WAYS[4], &WAYS[3]);
}

TEST(latent_attention) {
    check_model("tests/data/golden/deepseek_v2_lite", FLOATS);
    check_model("models/tale-v3-14m", W8A8);
    check_model("models/tale-v3-14m", KV_INT8);
}

TEST(grouped_query_attention) {
    check_model("tests/data/golden/qwen3_moe", FLOATS);
    check_model("tests/data/golden/qwen3_moe", W8A8);
    check_model("tests/data/golden/qwen3_moe", KV_INT8);
}

TEST(keys_of_an_indexer) {
    check_model("tests/data/golden/deepseek_v32", FLOATS);
    check_model("tests/data/golden/deepseek_v32", W8A8);
}

int main(void) {
    td_log_set_level(TD_LOG_WARNING);
    return tests_run();
}
