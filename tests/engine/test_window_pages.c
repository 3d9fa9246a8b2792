/* Pages of layers with a window: how many a request holds, which idle ones are kept, and where prompts can go on. */
#include "core/math/rng.h"
#include "engine/kv/request_windows.h"
#include "tests/td_test.h"

#define SEED 20261128u
#define PAGES 512
#define PAGE TD_KV_PAGE

typedef struct {
    td_kv_pages     pages;
    td_prefix_cache cache;
    td_window_pages windows;
} rig;

static void open_rig(rig *r, uint32_t n, uint32_t window, bool cached) {
    OK(td_kv_pages_open(&r->pages, PAGES, NULL));
    OK(td_prefix_cache_open(&r->cache, &r->pages, cached, NULL));
    OK(td_window_pages_open(&r->windows, n, window, &r->cache, NULL));
}

/* Every one is free in the end, as idle ones go with the cache. */
static void close_rig(rig *r) {
    td_prefix_cache_flush(&r->cache);
    assert_int_equal(r->windows.n_free, r->windows.n);
    assert_int_equal(r->windows.n_idle, 0);
    td_window_pages_close(&r->windows);
    td_prefix_cache_close(&r->cache);
    td_kv_pages_close(&r->pages);
}

/* A request whose tokens say which text they are of. */
typedef struct {
    uint32_t           tokens[PAGES * PAGE], pages[PAGES], table[PAGES], n_pages, n_computed, n_published, n_prompt;
    td_request_windows windows;
} sequence;

/* @param own tokens are of a text of the sequence's own from here on. @return whether something of it was cached */
static uint32_t begin(rig *g, sequence *s, uint32_t text, uint32_t own, uint32_t n_prompt) {
    *s = (sequence){.n_prompt = n_prompt, .windows.table = s->table};
    for (uint32_t i = 0; i < PAGES * PAGE; i++) s->tokens[i] = i < own ? i : (text << 20) + i;
    const uint32_t found = td_prefix_cache_match(&g->cache, s->tokens, (n_prompt - 1) / PAGE, s->pages),
                   n = td_window_pages_reach(&g->windows, s->pages, found);
    td_request_windows_begin(&s->windows, &g->windows, s->pages, n, found);
    for (s->n_pages = found; s->n_pages > n; s->n_pages--) td_prefix_cache_drop(&g->cache, s->pages[s->n_pages - 1]);
    s->n_published = n;
    s->n_computed = n * PAGE;
    return n;
}

/* Compute so many tokens more. */
static void compute(rig *g, sequence *s, uint32_t n) {
    const uint32_t end = s->n_computed + n;
    while (s->n_pages * PAGE < end) assert_true(td_prefix_cache_take(&g->cache, &s->pages[s->n_pages++], 1));
    td_request_windows_extend(&s->windows, &g->windows, s->pages, end);
    s->n_computed = end;
    for (; g->cache.on && s->n_published < end / PAGE; s->n_published++) {
        const uint32_t i = s->n_published, own = s->pages[i];
        td_prefix_cache_publish(&g->cache, s->tokens, i, i + 1, s->pages);
        if (s->pages[i] != own) td_request_windows_replaced(&s->windows, &g->windows, i, s->pages[i]);
    }
    td_request_windows_pass(&s->windows, &g->windows, end, s->n_prompt);
    for (uint32_t i = s->windows.first; i < s->windows.end; i++)
        assert_int_equal(s->table[i], g->windows.of_page[s->pages[i]]);
}

static void end(rig *g, sequence *s) {
    td_request_windows_end(&s->windows, &g->windows);
    while (s->n_pages) td_prefix_cache_drop(&g->cache, s->pages[--s->n_pages]);
}

/* 65,000 tokens in steps of every size: never more than the window before the last border, and what the step writes. */
TEST(held_at_a_long_context) {
    static sequence       s;
    static const uint32_t windows[] = {1, 20, 128, 129, 200, 1024}, steps[] = {1, 100, 128, 2048};
    for (size_t k = 0; k < 6; k++)
        for (size_t j = 0; j < 4; j++) {
            const uint32_t        before = (windows[k] - 1 + PAGE - 1) / PAGE, most = before + 2 + steps[j] / PAGE;
            AT_END(close_rig) rig g;
            open_rig(&g, most, windows[k], false); /* no more are there: taking another would fail */
            begin(&g, &s, 0, 0, 1);
            while (s.n_computed < 65000) {
                compute(&g, &s, steps[j]);
                assert_int_equal(td_window_pages_used(&g.windows), s.windows.end - s.windows.first);
                assert_true(td_window_pages_used(&g.windows) <= before + 1);
            }
            end(&g, &s);
        }
}

/* After a prompt of 10 pages and an answer of 5, another prompt can begin at the prompt's end and at the answer's, however
 * many pages other requests took meanwhile. */
TEST(borders_where_prompts_begin) {
    static sequence       s;
    AT_END(close_rig) rig g;
    open_rig(&g, 12, 128, true);
    begin(&g, &s, 1, 0, 10 * PAGE + 5);
    for (int i = 0; i < 15; i++) compute(&g, &s, PAGE);
    compute(&g, &s, 60);
    end(&g, &s);
    for (uint32_t other = 0; other < 2; other++) { /* each has two borders, of 9 that the 12 have room for */
        begin(&g, &s, 50 + other, 0, 20 * PAGE);
        for (int i = 0; i < 21; i++) compute(&g, &s, PAGE);
        end(&g, &s);
    }
    assert_true(g.windows.evictions > 20);
    assert_int_equal(begin(&g, &s, 1, 0, 15 * PAGE + 10), 15); /* the next turn */
    end(&g, &s);
    assert_int_equal(begin(&g, &s, 1, 0, 10 * PAGE + 5), 10); /* a retry */
    end(&g, &s);
}

/* Prompts with 10 pages in common: the second finds them, but not the window before its own way, and keeps that for the
 * third. */
TEST(a_branch_is_kept) {
    static sequence       s;
    AT_END(close_rig) rig g;
    open_rig(&g, 8, 128, true);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t n = begin(&g, &s, 1 + i, 10 * PAGE, 20 * PAGE);
        assert_true(i == 0 ? n == 0 : i == 1 ? n < 10 : n == 10);
        for (uint32_t k = n; k < 21; k++) compute(&g, &s, PAGE);
        end(&g, &s);
    }
}

/* Many at a time, which begin and end as they like. */
TEST(random_sequences) {
    enum { N = 4, WINDOW = 300 };
    static sequence       s[N];
    uint64_t              draws = 0;
    bool                  runs[N] = {false};
    uint32_t              found = 0;
    AT_END(close_rig) rig g;
    print_message("seed %u\n", SEED);
    open_rig(&g, N * (3 + 2) + N * 2 + 4, WINDOW, true);
    for (int i = 0; i < 3000; i++) {
        const uint32_t k = (uint32_t)td_rng_u64(SEED, 1, draws++) % N, n = (uint32_t)td_rng_u64(SEED, 1, draws++);
        if (!runs[k]) {
            found += begin(&g, &s[k], 1 + n % 5, n % 3 * 8 * PAGE, 1 + n % (30 * PAGE));
            compute(&g, &s[k], 1);
        } else if (n % 20 == 0 || s[k].n_computed > 40 * PAGE) {
            end(&g, &s[k]);
        } else {
            compute(&g, &s[k], 1 + n % (2 * PAGE));
        }
        runs[k] = s[k].n_pages > 0;
        if (n % 500 != 1) continue;
        for (uint32_t q = 0; q < N; q++) end(&g, &s[q]), runs[q] = false;
        td_prefix_cache_flush(&g.cache);
    }
    for (uint32_t q = 0; q < N; q++) end(&g, &s[q]);
    assert_true(found > 100 && g.windows.evictions > 100);
}
