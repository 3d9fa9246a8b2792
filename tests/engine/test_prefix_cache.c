/*
 * The prefix cache: what is found has the tokens that were asked for, and the leaf that has been idle longest is evicted. A
 * random history of sequences with common beginnings neither loses a page nor hands out one with other content.
 */

#include "core/math/rng.h"
#include "engine/kv/prefix_cache.h"
#include "npu/npu.h"
#include "tests/td_test.h"

#define PAGES 40
#define LONGEST 8 /* pages of a sequence */
#define LIVE 6    /* sequences at a time */
#define SEED 20261121u

/* What a listener is told of a page. */
typedef struct {
    bool     held;
    uint32_t parent, branch, n_children;
} told_page;

typedef struct {
    td_kv_pages       pages;
    td_prefix_cache   cache;
    td_cache_listener listener;
    told_page         told[PAGES];
    uint32_t          n_told, n_cleared;
} fixture;

static td_status listen_open(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err) {
    (void)user;
    (void)err;
    assert_true(n_pages <= PAGES && page_tokens == TD_KV_PAGE);
    return TD_OK;
}

static void listen_stored(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    fixture *f = user;
    assert_true(page < PAGES && !f->told[page].held);
    if (parent != UINT32_MAX) assert_true(f->told[parent].held && ++f->told[parent].n_children);
    f->told[page] = (told_page){true, parent, tokens[0] / 1000, 0};
    f->n_told++;
}

static void listen_removed(void *user, uint32_t page) {
    fixture *f = user;
    assert_true(f->told[page].held && f->told[page].n_children == 0);
    if (f->told[page].parent != UINT32_MAX) f->told[f->told[page].parent].n_children--;
    f->told[page].held = false;
    f->n_told--;
}

static void listen_cleared(void *user) {
    fixture *f = user;
    memset(f->told, 0, sizeof f->told);
    f->n_told = 0;
    f->n_cleared++;
}

static void open_fixture(fixture *f, uint32_t n_pages, bool on) {
    memset(f, 0, sizeof *f);
    f->listener = (td_cache_listener){listen_open, listen_stored, listen_removed, listen_cleared, f, false};
    OK(td_kv_pages_open(&f->pages, n_pages, NULL));
    OK(td_prefix_cache_open(&f->cache, &f->pages, on, NULL));
    OK(td_prefix_cache_listen(&f->cache, &f->listener, NULL));
}

/* The page that the listener was told has this beginning, UINT32_MAX: none. */
static uint32_t find_told(const fixture *f, const uint32_t *branch, uint32_t n) {
    uint32_t page = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (k < PAGES && !(f->told[k].held && f->told[k].parent == page && f->told[k].branch == branch[i])) k++;
        if (k == PAGES) return UINT32_MAX;
        page = k;
    }
    return page;
}

static void close_fixture(fixture *f) {
    td_prefix_cache_close(&f->cache);
    td_kv_pages_close(&f->pages);
}

/* Page i of a sequence is full of tokens that name branch[i]. */
static void fill_tokens(uint32_t *tokens, const uint32_t *branch, uint32_t n) {
    for (uint32_t i = 0; i < n * TD_KV_PAGE; i++) tokens[i] = branch[i / TD_KV_PAGE] * 1000 + i % TD_KV_PAGE;
}

/* Match, compute and publish a whole sequence. @return pages found. */
static uint32_t run_sequence(fixture *f, const uint32_t *branch, uint32_t n, uint32_t *pages) {
    uint32_t tokens[LONGEST * TD_KV_PAGE];
    fill_tokens(tokens, branch, n);
    uint32_t found = td_prefix_cache_match(&f->cache, tokens, n, pages);
    assert_true(td_prefix_cache_take(&f->cache, pages + found, n - found));
    td_prefix_cache_publish(&f->cache, tokens, found, n, pages);
    return found;
}

static void drop_all(fixture *f, const uint32_t *pages, uint32_t n) {
    while (n) td_prefix_cache_drop(&f->cache, pages[--n]);
}

TEST(finds_the_longest_common_beginning) {
    AT_END(close_fixture) fixture f;
    uint32_t                      a[4], b[4], c[4];
    open_fixture(&f, 16, true);
    assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2, 3, 4}, 4, a), 0);
    assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2, 5, 4}, 4, b), 2);
    assert_int_equal(run_sequence(&f, (uint32_t[]){2, 2, 3, 4}, 4, c), 0); /* the same pages behind another one are others */
    assert_memory_equal(a, b, 2 * sizeof *a);
    assert_int_equal(td_kv_pages_used(&f.pages), 4 + 2 + 4);
    drop_all(&f, a, 4);
    assert_int_equal(f.cache.n_idle, 2);
    drop_all(&f, b, 4);
    drop_all(&f, c, 4);
    assert_int_equal(f.cache.n_idle, 10);
    assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2, 5, 4}, 4, c), 4);
    assert_memory_equal(b, c, sizeof b);
}

TEST(same_tokens_end_in_one_page) {
    AT_END(close_fixture) fixture f;
    const uint32_t                branch[] = {7, 8, 9};
    uint32_t                      tokens[3 * TD_KV_PAGE], a[3], b[3];
    open_fixture(&f, 8, true);
    fill_tokens(tokens, branch, 3);
    assert_true(td_prefix_cache_take(&f.cache, a, 3)); /* two requests compute the same beginning at the same time */
    assert_true(td_prefix_cache_take(&f.cache, b, 3));
    td_prefix_cache_publish(&f.cache, tokens, 0, 2, a);
    td_prefix_cache_publish(&f.cache, tokens, 0, 3, b);
    td_prefix_cache_publish(&f.cache, tokens, 2, 3, a);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(td_kv_pages_used(&f.pages), 3);
    drop_all(&f, a, 3);
    assert_int_equal(f.cache.n_idle, 0);
    drop_all(&f, b, 3);
    assert_int_equal(f.cache.n_idle, 3);
}

TEST(evicts_the_oldest_leaf) {
    AT_END(close_fixture) fixture f;
    uint32_t                      a[3], b[2], got[4];
    open_fixture(&f, 5, true);
    run_sequence(&f, (uint32_t[]){1, 2, 3}, 3, a);
    run_sequence(&f, (uint32_t[]){4, 5}, 2, b);
    drop_all(&f, a, 3);
    drop_all(&f, b, 2);
    assert_int_equal(td_prefix_cache_available(&f.cache), 5);
    assert_false(td_prefix_cache_take(&f.cache, got, 6));
    assert_true(td_prefix_cache_take(&f.cache, got, 1)); /* the end of the older sequence */
    assert_int_equal(got[0], a[2]);
    assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2}, 2, a), 2); /* used again: newer than the other now */
    drop_all(&f, a, 2);
    assert_true(td_prefix_cache_take(&f.cache, got + 1, 2));
    assert_true((got[1] == b[0] && got[2] == b[1]) || (got[1] == b[1] && got[2] == b[0]));
    assert_int_equal(f.cache.evictions, 3);
    assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2}, 2, a), 2);
    assert_false(td_prefix_cache_take(&f.cache, got + 3, 1)); /* what is in use is not evicted */
}

TEST(flush_keeps_pages_in_use) {
    AT_END(close_fixture) fixture f;
    uint32_t                      a[3], b[3];
    open_fixture(&f, 8, true);
    run_sequence(&f, (uint32_t[]){1, 2, 3}, 3, a);
    run_sequence(&f, (uint32_t[]){1, 4}, 2, b);
    drop_all(&f, b, 2);
    td_prefix_cache_flush(&f.cache);
    assert_int_equal(f.cache.n_idle, 0);
    assert_int_equal(td_kv_pages_used(&f.pages), 3);
    assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2, 3}, 3, b), 0);
    drop_all(&f, a, 3);
    assert_int_equal(td_kv_pages_used(&f.pages), 3);
}

TEST(off_keeps_nothing) {
    AT_END(close_fixture) fixture f;
    uint32_t                      a[2];
    open_fixture(&f, 4, false);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_sequence(&f, (uint32_t[]){1, 2}, 2, a), 0);
        drop_all(&f, a, 2);
        assert_int_equal(td_kv_pages_used(&f.pages), 0);
    }
}

typedef struct {
    uint32_t branch[LONGEST], pages[LONGEST], n, n_published;
} sequence;

/* What a page must hold: the whole beginning up to it. */
static uint64_t content_of(const sequence *q, uint32_t i) {
    uint64_t h = 0;
    for (uint32_t k = 0; k <= i; k++) h = h * 31 + q->branch[k] + 1;
    return h;
}

TEST(random_history) {
    print_message("seed %u\n", SEED);
    static uint32_t               tokens[LONGEST * TD_KV_PAGE];
    AT_END(close_fixture) fixture f;
    sequence                      live[LIVE] = {0};
    uint64_t                      content[PAGES] = {0}, draws = 0, found_pages = 0;
    open_fixture(&f, PAGES, true);
    for (int step = 0; step < 30000; step++) {
        uint64_t  r = td_rng_u64(SEED, 0, draws++);
        sequence *q = &live[r % LIVE];
        if (!q->n) { /* begins: what is found must be what it would compute */
            uint32_t n = 1 + (uint32_t)(r >> 8) % LONGEST;
            for (uint32_t i = 0; i < n; i++) q->branch[i] = (uint32_t)td_rng_u64(SEED, 1, draws++) % 2;
            fill_tokens(tokens, q->branch, n);
            uint32_t found = td_prefix_cache_match(&f.cache, tokens, n, q->pages);
            for (uint32_t i = 0; i < n; i++) /* found is what the listener knows */
                assert_int_equal(find_told(&f, q->branch, i + 1), i < found ? q->pages[i] : UINT32_MAX);
            for (uint32_t i = 0; i < found; i++) assert_true(content[q->pages[i]] == content_of(q, i));
            found_pages += found;
            q->n = n;
            q->n_published = found;
            if (!td_prefix_cache_take(&f.cache, q->pages + found, n - found)) {
                assert_true(n - found > td_prefix_cache_available(&f.cache));
                drop_all(&f, q->pages, found);
                q->n = 0;
                continue;
            }
            for (uint32_t i = found; i < n; i++) content[q->pages[i]] = content_of(q, i);
        } else if (q->n_published < q->n) { /* publishes some */
            uint32_t end = q->n_published + 1 + (uint32_t)(r >> 8) % (q->n - q->n_published);
            fill_tokens(tokens, q->branch, q->n);
            td_prefix_cache_publish(&f.cache, tokens, q->n_published, end, q->pages);
            q->n_published = end;
            for (uint32_t i = 0; i < q->n; i++) assert_true(content[q->pages[i]] == content_of(q, i));
        } else {
            drop_all(&f, q->pages, q->n);
            q->n = 0;
        }
        bool     in_use[PAGES] = {false};
        uint32_t n_in_use = 0;
        for (int i = 0; i < LIVE; i++)
            for (uint32_t k = 0; k < live[i].n; k++) {
                n_in_use += !in_use[live[i].pages[k]];
                in_use[live[i].pages[k]] = true;
            }
        assert_int_equal(td_kv_pages_used(&f.pages), n_in_use + f.cache.n_idle);
    }
    print_message("%lu pages found, %lu evicted\n", (unsigned long)found_pages, (unsigned long)f.cache.evictions);
    assert_true(found_pages > 1000 && f.cache.evictions > 100);
    for (int i = 0; i < LIVE; i++) drop_all(&f, live[i].pages, live[i].n);
    assert_int_equal(f.n_told, f.cache.n_idle);
    td_prefix_cache_flush(&f.cache);
    assert_int_equal(td_kv_pages_used(&f.pages), 0);
    assert_true(f.n_told == 0 && f.n_cleared == 1);
}
