/*
 * The engine with a page store, over the fake model, whose answers change with any wrong bit of KV. Whatever the store has,
 * loses, brings late or never brings, every stream is what a plain loop gives. Pages that the store has are taken instead of
 * computed. Nothing of a lookup is left behind.
 */
#include <pthread.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "fake_model.h"
#include "probe_check.h"
#include "tests/td_test.h"

#define SEED 977u
#define PAGE 128
#define PAGES_MAX 4096
#define LOOKUPS 16

static _Atomic uint64_t g_draws;
static uint32_t         draw(uint32_t n) {
            return (uint32_t)(td_rng_u64(SEED, 3, g_draws++) % n);
}

/* ---- a store in memory, shared by engines ---- */

typedef struct {
    td_page_key key, parent;
    uint32_t    tokens[PAGE];
    char       *bytes;
} kept_page;

typedef struct {
    bool        open;
    td_page_key keys[64];
    uint32_t    n, at;
    uint32_t    patience; /* looks at it until the next page is there */
} kept_lookup;

typedef enum { GIVES, HANGS, REFUSES } manner;

typedef struct {
    pthread_mutex_t  lock;
    kept_page        pages[PAGES_MAX];
    uint32_t         n;
    _Atomic int      manner;
    _Atomic uint32_t slow; /* a page comes after up to so many looks, each of which is a wake */
    _Atomic uint32_t lost; /* of a hundred pages that are there, so many are not found */
    td_page_key      fingerprint;
    size_t           page_bytes;
} memory_store;

typedef struct {
    memory_store  *memory;
    td_page_format format;
    td_page_store  ops;
    char          *out; /* [page_bytes] the page on its way out */
    td_page_name   out_name;
    uint32_t       out_tokens[PAGE];
    kept_lookup    lookups[LOOKUPS];
    pthread_t      bell;
    _Atomic bool   stop;
    _Atomic int    n_open, n_pages_in, n_late, n_closed;
} engine_store;

/* Wakes the engine now and then, as a store does. */
static void *ring(void *arg) {
    engine_store *s = arg;
    while (!s->stop) {
        usleep(300);
        if (s->n_open) s->format.wake(s->format.wake_user);
    }
    return NULL;
}

static td_status store_open(void *user, const td_page_format *f, td_error *err) {
    engine_store *s = user;
    (void)err;
    assert_int_equal(f->page_tokens, PAGE);
    s->format = *f;
    s->out = malloc(f->page_bytes);
    if (s->memory->page_bytes) { /* engines of the same options have the same fingerprint */
        assert_memory_equal(&s->memory->fingerprint, &f->fingerprint, sizeof f->fingerprint);
        assert_int_equal(s->memory->page_bytes, f->page_bytes);
    }
    s->memory->fingerprint = f->fingerprint;
    s->memory->page_bytes = f->page_bytes;
    return pthread_create(&s->bell, NULL, ring, s) ? TD_ENOMEM : TD_OK;
}

static void store_close(void *user) {
    engine_store *s = user;
    s->stop = true;
    pthread_join(s->bell, NULL);
    free(s->out);
    s->n_closed++;
}

static kept_page *find(memory_store *m, td_page_key key) {
    for (uint32_t i = 0; i < m->n; i++)
        if (m->pages[i].key.low == key.low && m->pages[i].key.high == key.high) return &m->pages[i];
    return NULL;
}

static void *store_put(void *user, const td_page_name *name) {
    engine_store *s = user;
    s->out_name = *name;
    memcpy(s->out_tokens, name->tokens, sizeof s->out_tokens);
    return s->memory->n < PAGES_MAX ? s->out : NULL;
}

static void store_put_end(void *user, void *memory, bool filled) {
    engine_store *s = user;
    memory_store *m = s->memory;
    assert_ptr_equal(memory, s->out);
    pthread_mutex_lock(&m->lock);
    kept_page *there = find(m, s->out_name.key);
    if (there && filled) { /* the same key: the same bits */
        assert_memory_equal(there->tokens, s->out_tokens, sizeof there->tokens);
        assert_memory_equal(there->bytes, memory, s->format.page_bytes);
    } else if (filled) {
        kept_page *p = &m->pages[m->n++];
        p->key = s->out_name.key;
        p->parent = s->out_name.parent;
        memcpy(p->tokens, s->out_tokens, sizeof p->tokens);
        p->bytes = malloc(s->format.page_bytes);
        memcpy(p->bytes, memory, s->format.page_bytes);
    }
    pthread_mutex_unlock(&m->lock);
}

static void *store_look(void *user, td_page_key parent, const td_page_key *keys, const uint32_t *tokens, uint32_t n) {
    engine_store *s = user;
    assert_true(n >= 1 && n <= s->format.max_pages && n <= 64);
    if (s->memory->manner == REFUSES) return NULL;
    pthread_mutex_lock(&s->memory->lock);
    for (uint32_t i = 0; i < n; i++) {
        const kept_page *p = find(s->memory, keys[i]);
        if (!p) continue;
        assert_memory_equal(p->tokens, tokens + (size_t)i * PAGE, sizeof p->tokens);
        assert_memory_equal(&p->parent, i ? &keys[i - 1] : &parent, sizeof parent);
    }
    pthread_mutex_unlock(&s->memory->lock);
    for (kept_lookup *l = s->lookups; l < s->lookups + LOOKUPS; l++) {
        if (l->open) continue;
        *l = (kept_lookup){.open = true, .n = n, .patience = draw(s->memory->slow + 1)};
        memcpy(l->keys, keys, n * sizeof *keys);
        s->n_open++;
        return l;
    }
    fail_msg("more lookups than the engine says");
    return NULL;
}

static td_pages_state store_next(void *user, void *lookup, const void **page) {
    engine_store *s = user;
    kept_lookup  *l = lookup;
    assert_true(l->open);
    if (s->memory->manner == HANGS) return TD_PAGES_COMING;
    if (l->patience) {
        l->patience--;
        return TD_PAGES_COMING;
    }
    pthread_mutex_lock(&s->memory->lock);
    const kept_page *p = l->at < l->n && draw(100) >= s->memory->lost ? find(s->memory, l->keys[l->at]) : NULL;
    pthread_mutex_unlock(&s->memory->lock);
    if (!p) return TD_PAGES_OVER;
    *page = p->bytes;
    return TD_PAGES_HERE;
}

static void store_taken(void *user, void *lookup) {
    engine_store *s = user;
    kept_lookup  *l = lookup;
    l->at++;
    l->patience = draw(s->memory->slow + 1);
    s->n_pages_in++;
}

static void store_end(void *user, void *lookup, bool late) {
    engine_store *s = user;
    ((kept_lookup *)lookup)->open = false;
    s->n_open--;
    s->n_late += late;
}

static void store_stats(void *user, td_page_store_stats *out) {
    engine_store *s = user;
    *out = (td_page_store_stats){.up = true, .pages_in = (uint64_t)s->n_pages_in};
}

static memory_store *new_memory(void) {
    memory_store *m = calloc(1, sizeof *m);
    assert_non_null(m);
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

static void free_memory(memory_store *m) {
    for (uint32_t i = 0; i < m->n; i++) free(m->pages[i].bytes);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
AT_END_OF(end_memory, memory_store, free_memory)

/* ---- engines ---- */

static td_engine *open_engine(engine_store *s, memory_store *m, uint64_t kv_tokens, double wait_s) {
    td_engine_options o = engine_options(kv_tokens, 100, 4);
    *s = (engine_store){.memory = m};
    s->ops = (td_page_store){store_open,  store_close, store_put,   store_put_end, store_look, store_next,
                             store_taken, store_end,   store_stats, wait_s,        s};
    o.page_store = &s->ops;
    return engine_open(&o);
}

static void close_with_store(td_engine *e, engine_store *s) {
    assert_int_equal(s->n_open, 0);
    close_engine(e);
    assert_int_equal(s->n_closed, 1);
}

typedef struct {
    uint32_t ids[FAKE_CONTEXT];
} prompt;

static void draw_prompt(prompt *p) {
    for (uint32_t i = 0; i < FAKE_CONTEXT; i++) p->ids[i] = draw(FAKE_VOCAB);
}

/* @return its prompt tokens that were not computed. */
static uint32_t ask(td_engine *e, const prompt *p, uint32_t n) {
    probe *r = probe_new(p->ids, n, 20);
    probe_submit(e, r);
    probe_wait(r);
    uint32_t cached = r->last.cached_tokens;
    probe_finish(e, r);
    return cached;
}

/* ---- the tests ---- */

TEST(one_computes_and_the_other_takes) {
    AT_END(end_memory) memory_store *m = new_memory();
    engine_store                     sa, sb;
    prompt                           p;
    draw_prompt(&p);
    td_engine *a = open_engine(&sa, m, 2048, 10), *b = open_engine(&sb, m, 2048, 10);
    assert_int_equal(ask(a, &p, 600), 0);
    assert_int_equal(m->n, 4); /* whole pages of the prompt */
    assert_int_equal(ask(b, &p, 600), 512);
    assert_int_equal(sb.n_pages_in, 4);
    assert_int_equal(m->n, 4);
    assert_int_equal(ask(b, &p, 600), 512); /* now from its own cache */
    assert_int_equal(sb.n_pages_in, 4);
    td_engine_flush_cache(b);
    p.ids[300]++; /* in the third page */
    m->slow = 10;
    assert_int_equal(ask(b, &p, 600), 256);
    assert_int_equal(ask(a, &p, 512), 256 + 128); /* its own two, and the third from b; the last token is computed */
    assert_int_equal(sa.n_pages_in, 1);
    close_with_store(a, &sa);
    close_with_store(b, &sb);
}

TEST(a_store_that_does_not_answer_costs_its_deadline) {
    AT_END(end_memory) memory_store *m = new_memory();
    engine_store                     s;
    prompt                           p, other;
    draw_prompt(&p);
    draw_prompt(&other);
    td_engine *e = open_engine(&s, m, 2048, 0.2);
    m->manner = HANGS;
    assert_int_equal(ask(e, &p, 600), 0); /* alone: the engine sleeps until then */
    assert_int_equal(s.n_late, 1);
    probe *same[5]; /* the first waits for the store, the others for its pages; the last one for nothing */
    for (int i = 0; i < 5; i++) probe_submit(e, same[i] = probe_new(i < 4 ? other.ids : p.ids, i < 4 ? 400 : 100, 5));
    for (int i = 0; i < 5; i++) probe_finish(e, same[i]);
    assert_true(s.n_late >= 2);
    m->manner = REFUSES;
    draw_prompt(&p);
    assert_int_equal(ask(e, &p, 600), 0);
    close_with_store(e, &s);
}

TEST(what_waits_can_be_cancelled_and_flushed) {
    memory_store *m = new_memory();
    engine_store  s;
    prompt        p;
    td_engine    *e = open_engine(&s, m, 2048, 1000);
    m->manner = HANGS;
    draw_prompt(&p);
    probe *r = probe_new(p.ids, 600, 20);
    probe_submit(e, r);
    while (!s.n_open) usleep(100);
    td_request_cancel(r->request);
    probe_wait(r);
    assert_int_equal(r->finish, TD_FINISH_ABORT);
    probe_finish(e, r);
    assert_int_equal(s.n_open, 0);
    r = probe_new(p.ids, 600, 20);
    probe_submit(e, r);
    while (!s.n_open) usleep(100);
    td_engine_flush_cache(e); /* nothing that is under way comes in: it is computed */
    probe_finish(e, r);
    r = probe_new(p.ids + 1, 600, 20);
    probe_submit(e, r);
    while (!s.n_open) usleep(100);
    td_engine_close(e, 0); /* and the end, with a lookup open */
    probe_wait(r);
    probe_free(r);
    assert_int_equal(s.n_open, 0);
    assert_int_equal(s.n_closed, 1);
    free_memory(m);
}

TEST(copies_that_fail_are_computed) {
    AT_END(end_memory) memory_store *m = new_memory();
    engine_store                     sa, sb;
    prompt                           p;
    draw_prompt(&p);
    td_engine *a = open_engine(&sa, m, 2048, 10), *b = open_engine(&sb, m, 2048, 10);
    fake_fail_copies(1);
    assert_int_equal(ask(a, &p, 600), 0);
    assert_int_equal(m->n, 3); /* one was not sent: those behind it are of no use yet */
    assert_int_equal(ask(b, &p, 600), 0);
    assert_int_equal(m->n, 4);
    td_engine_flush_cache(a);
    fake_fail_copies(1); /* on the way in */
    assert_int_equal(ask(a, &p, 600), 0);
    td_engine_flush_cache(a);
    assert_int_equal(ask(a, &p, 600), 512);
    close_with_store(a, &sa);
    close_with_store(b, &sb);
}

/* Two engines short of pages, prompts with common beginnings, a store that is slow and loses pages. */
static void company(bool one_form, uint32_t slow, uint32_t lost) {
    AT_END(end_memory) memory_store *m = new_memory();
    engine_store                     s[2];
    td_engine                       *e[2];
    prompt                           p[4];
    probe                           *running[24];
    fake_one_form(one_form);
    m->slow = slow;
    m->lost = lost;
    for (int i = 0; i < 4; i++) draw_prompt(&p[i]);
    for (int i = 0; i < 2; i++) e[i] = open_engine(&s[i], m, 1024, 0.05);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 24; i++) {
            uint32_t n = 1 + draw(660);
            running[i] = probe_new(p[draw(4)].ids, n, 1 + draw(39));
            running[i]->params.priority = (int32_t)draw(3);
            probe_submit(e[i % 2], running[i]);
        }
        if (round == 3) td_engine_flush_cache(e[0]);
        for (int i = 0; i < 24; i++) {
            if (draw(10) == 0) td_request_cancel(running[i]->request);
            probe_finish(e[i % 2], running[i]);
        }
    }
    assert_true(s[0].n_pages_in + s[1].n_pages_in > 0);
    for (int i = 0; i < 2; i++) close_with_store(e[i], &s[i]);
    fake_one_form(false);
}

TEST(random_company) {
    company(false, 0, 0);
    company(false, 20, 10);
}

TEST(random_company_of_one_form) {
    company(true, 0, 0);
    company(true, 20, 10);
}
