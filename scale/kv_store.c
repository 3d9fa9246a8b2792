#include "scale/kv_store.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/threads/thread.h"
#include "scale/kv_page_frame.h"
#include "scale/listen_address.h"
#include "scale/mooncake_library.h"

#define LOOKUPS_MAX 16
#define BATCH_PAGES 8 /* pages sent or received by one call */
#define ASK_PAGES 64  /* keys asked for by one call */
#define BUFFERS_MIN 8
#define BUFFERS_MAX 8192
#define BACKOFF_FIRST_S 1.0
#define BACKOFF_MAX_S 30.0
#define LOOK_EVERY_S 5.0 /* how often an idle store is asked whether it answers */
#define END_WAIT_S 15.0  /* longest wait for a call that is under way when the server ends */
#define PAGE_ALIGN 4096
#define PROBE_KEY "tandem-kv-probe" /* a key that nobody stores; asking for it shows whether the master answers */

/* A queue of page buffers' numbers, with room for all of them. */
typedef struct {
    uint32_t *at, first, n, room;
} numbers;

typedef struct {
    bool        open;  /* in use by the engine or the thread */
    bool        ended; /* the engine has ended it */
    bool        busy;  /* the thread works on it now */
    bool        over;  /* no more pages will come */
    uint64_t    order;
    uint32_t    n, n_asked, n_there, n_fetched; /* numbers of pages: wanted, asked for, found, received */
    td_page_key parent, *keys;                  /* [max_pages] */
    uint32_t   *tokens;                         /* [max_pages, page_tokens] */
    numbers     arrived;                        /* buffers whose pages the engine has not taken yet */
} lookup;

typedef struct {
    td_page_key key, parent;
    uint32_t   *tokens; /* [page_tokens] */
} out_page;

struct td_kv_store {
    td_kv_store_config config;
    td_listen_address  listen;
    td_page_store      pages;
    td_mooncake        lib;
    td_page_format     format;
    size_t             frame_bytes, stride;
    char              *memory; /* [n_out + n_in, stride] page buffers: those for sending, then those for receiving */
    uint32_t           n_out, n_in;
    out_page          *out;        /* [n_out] the pages in the buffers for sending */
    uint32_t          *out_tokens; /* [n_out, page_tokens] */
    pthread_t          thread;
    bool               started, stuck; /* stuck: the thread did not end, so its memory is never freed */

    pthread_mutex_t     lock; /* guards the fields below */
    pthread_cond_t      changed;
    bool                stop, ended;
    numbers             free_out, ready, free_in;
    lookup              lookups[LOOKUPS_MAX];
    uint64_t            n_lookups;
    double              call_since_s; /* when the thread began its current call of the store; 0: it is in none */
    td_page_store_stats stats;

    /* used by the thread alone */
    void  *store; /* NULL before it is set up */
    bool   said_down;
    double retry_s, backoff_s; /* retry_s: when to try again; while the store is up, when to ask it if idle */
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- numbers of buffers ---- */

static void put_number(numbers *l, uint32_t number) {
    assert(l->n < l->room);
    l->at[(l->first + l->n++) % l->room] = number;
}

static uint32_t take_number(numbers *l) {
    uint32_t number = l->at[l->first];
    assert(l->n > 0);
    l->first = (l->first + 1) % l->room;
    l->n--;
    return number;
}

static bool open_numbers(numbers *l, uint32_t room) {
    *l = (numbers){.at = calloc(room, sizeof *l->at), .room = room};
    return l->at != NULL;
}

static char *frame_of(const td_kv_store *k, uint32_t number) {
    return k->memory + number * k->stride;
}

/* ---- lookups, under the lock ---- */

static void drop_arrived(td_kv_store *k, lookup *l) {
    while (l->arrived.n) put_number(&k->free_in, take_number(&l->arrived));
}

/* Frees a lookup that both the engine and the thread have finished. */
static void clear_lookup(td_kv_store *k, lookup *l) {
    drop_arrived(k, l);
    l->open = false;
    k->stats.lookups_open--;
}

static void end_all_lookups(td_kv_store *k) {
    for (lookup *l = k->lookups; l < k->lookups + LOOKUPS_MAX; l++) l->over = true;
}

/* Returns the oldest lookup for which something can be done now, or NULL. */
static lookup *next_lookup(td_kv_store *k) {
    lookup *first = NULL;
    for (lookup *l = k->lookups; l < k->lookups + LOOKUPS_MAX; l++) {
        bool waits = !l->open || l->ended || l->over || (l->n_fetched < l->n_there && !k->free_in.n);
        if (!waits && (!first || l->order < first->order)) first = l;
    }
    return first;
}

static td_page_name name_of(const td_kv_store *k, const lookup *l, uint32_t i) {
    return (td_page_name){.key = l->keys[i],
                          .parent = i ? l->keys[i - 1] : l->parent,
                          .tokens = l->tokens + (size_t)i * k->format.page_tokens};
}

/* ---- the thread: the state of the store. The lock is held, except during calls of the store. ---- */

static void begin_call(td_kv_store *k) {
    k->call_since_s = now_s();
    pthread_mutex_unlock(&k->lock);
}

/* @return how long the call took, in seconds. */
static double end_call(td_kv_store *k) {
    pthread_mutex_lock(&k->lock);
    double seconds = now_s() - k->call_since_s;
    k->call_since_s = 0;
    return seconds;
}

static void go_down(td_kv_store *k, const char *what, int code) {
    k->stats.failures++;
    k->stats.up = false;
    k->backoff_s = k->backoff_s > 0 ? fmin(2 * k->backoff_s, BACKOFF_MAX_S) : BACKOFF_FIRST_S;
    k->retry_s = now_s() + k->backoff_s;
    end_all_lookups(k);
    k->stats.pages_unsent += k->ready.n;
    while (k->ready.n) put_number(&k->free_out, take_number(&k->ready));
    k->format.wake(k->format.wake_user);
    if (!k->said_down)
        td_warn("kv store: %s failed (%d), with the master at %s: prompts are computed here until it is back", what, code,
                k->config.master_server_address);
    k->said_down = true;
}

static void come_up(td_kv_store *k) {
    char text[TD_KV_PAGE_KEY_MAX];
    k->retry_s = now_s() + LOOK_EVERY_S;
    if (k->stats.up) return;
    k->stats.up = true;
    k->said_down = false;
    k->backoff_s = 0;
    td_kv_page_key_text(&k->format, k->format.fingerprint, text);
    td_info("kv store: up, with the master at %s; keys begin with %.19s", k->config.master_server_address, text);
}

/* Called without the lock. @return what failed, or NULL. */
static const char *reach(td_kv_store *k, int *code) {
    const td_kv_store_config *c = &k->config;
    if (!k->store) {
        void *s = k->lib.create();
        *code = -1;
        if (!s) return "making a client";
        *code = k->lib.setup(s, c->local_hostname, c->metadata_server, c->global_segment_size, c->local_buffer_size,
                             c->protocol, c->device_name, c->master_server_address);
        const char *what = *code ? "setting up" : NULL;
        if (!what) {
            *code = k->lib.register_buffer(s, k->memory, (k->n_out + k->n_in) * k->stride);
            if (*code) what = "registering the page buffers";
        }
        if (what) {
            k->lib.destroy(s);
            return what;
        }
        k->store = s;
    }
    *code = k->lib.is_exist(k->store, PROBE_KEY);
    return *code < 0 ? "asking for a key" : NULL;
}

static void try_to_reach(td_kv_store *k) {
    int code = 0;
    begin_call(k);
    const char *failed = reach(k, &code);
    end_call(k);
    if (failed)
        go_down(k, failed, code);
    else
        come_up(k);
}

/* ---- the thread: pages in ---- */

typedef struct {
    char        text[ASK_PAGES][TD_KV_PAGE_KEY_MAX];
    const char *list[ASK_PAGES];
} key_texts;

static void add_key(const td_kv_store *k, key_texts *t, uint32_t i, td_page_key key) {
    td_kv_page_key_text(&k->format, key, t->text[i]);
    t->list[i] = t->text[i];
}

/* Asks which of a lookup's next pages the store has. */
static void ask(td_kv_store *k, lookup *l) {
    key_texts t;
    int       there[ASK_PAGES];
    uint32_t  n = l->n - l->n_asked < ASK_PAGES ? l->n - l->n_asked : ASK_PAGES, found = 0;
    for (uint32_t i = 0; i < n; i++) add_key(k, &t, i, l->keys[l->n_asked + i]);
    begin_call(k);
    int st = k->lib.batch_is_exist(k->store, t.list, n, there);
    end_call(k);
    while (st == 0 && found < n && there[found] == 1) found++;
    if (st == 0 && found < n && there[found] < 0) st = there[found];
    l->n_asked += n;
    l->n_there += found;
    if (st != 0) go_down(k, "asking for pages", st);
}

typedef struct {
    uint32_t n;
    uint32_t number[BATCH_PAGES];
    void    *frame[BATCH_PAGES];
    size_t   bytes[BATCH_PAGES];
} batch;

static void add_frame(const td_kv_store *k, batch *b, uint32_t number) {
    b->number[b->n] = number;
    b->frame[b->n] = frame_of(k, number);
    b->bytes[b->n++] = k->frame_bytes;
}

/* Checks what came for page i of a lookup. Called without the lock. @return whether it is good. */
static bool check(td_kv_store *k, const lookup *l, uint32_t i, const char *key, const void *frame, int64_t got) {
    td_page_name name = name_of(k, l, i);
    const char  *fault = got < 0 ? "it has another size" : td_kv_page_frame_fault(&k->format, &name, frame, (size_t)got);
    if (!fault) return true;
    td_warn("kv store: %s is dropped and removed: %s", key, fault);
    k->lib.remove(k->store, key, 1);
    return false;
}

static bool is_page(int64_t got) {
    return got >= 0 || got == TD_MOONCAKE_BAD_SIZE;
}

/* Fetches the next pages that the store has. Only the thread uses the frames and the lookup's arrays meanwhile. */
static void fetch(td_kv_store *k, lookup *l) {
    key_texts t;
    int64_t   got[BATCH_PAGES];
    batch     b = {0};
    uint32_t  first = l->n_fetched, good = 0;
    while (b.n < BATCH_PAGES && first + b.n < l->n_there && k->free_in.n) {
        add_key(k, &t, b.n, l->keys[first + b.n]);
        add_frame(k, &b, take_number(&k->free_in));
    }
    begin_call(k);
    int st = k->lib.batch_get_into(k->store, t.list, b.frame, b.bytes, b.n, got);
    while (st == 0 && good < b.n && is_page(got[good]) && check(k, l, first + good, t.list[good], b.frame[good], got[good]))
        good++;
    double seconds = end_call(k);
    bool   bad = st == 0 && good < b.n && is_page(got[good]);
    if (st == 0 && good < b.n && got[good] == TD_MOONCAKE_RPC_FAILED) st = TD_MOONCAKE_RPC_FAILED;
    if (st == 0 && good < b.n && !bad && got[good] != TD_MOONCAKE_NOT_FOUND) k->stats.failures++; /* the failure of a peer */
    for (uint32_t i = 0; i < b.n; i++) put_number(i < good ? &l->arrived : &k->free_in, b.number[i]);
    l->n_fetched += good;
    l->over |= good < b.n;
    k->stats.pages_in += good;
    k->stats.pages_bad += bad;
    k->stats.in_s += seconds;
    if (st != 0) go_down(k, "fetching pages", st);
}

static void serve(td_kv_store *k, lookup *l) {
    l->busy = true;
    if (l->n_fetched < l->n_there)
        fetch(k, l);
    else
        ask(k, l);
    l->busy = false;
    if (l->n_fetched == l->n_there && (l->n_there < l->n_asked || l->n_asked == l->n)) l->over = true;
    if (l->ended)
        clear_lookup(k, l);
    else if (l->over || l->arrived.n)
        k->format.wake(k->format.wake_user);
}

/* ---- the thread: pages out ---- */

static void send_pages(td_kv_store *k) {
    key_texts   t;
    const char *keys[BATCH_PAGES];
    int         there[BATCH_PAGES], result[BATCH_PAGES];
    batch       b = {0}, sent = {0};
    while (b.n < BATCH_PAGES && k->ready.n) add_frame(k, &b, take_number(&k->ready));
    begin_call(k);
    for (uint32_t i = 0; i < b.n; i++) {
        const out_page *p = &k->out[b.number[i]];
        add_key(k, &t, i, p->key);
        td_kv_page_frame_seal(&k->format, &(td_page_name){p->key, p->parent, p->tokens}, b.frame[i]);
    }
    int st = k->lib.batch_is_exist(k->store, t.list, b.n, there);
    for (uint32_t i = 0; st == 0 && i < b.n; i++) {
        if (there[i] < 0) st = there[i];
        if (there[i] != 0) continue; /* another server has sent it already */
        keys[sent.n] = t.list[i];
        add_frame(k, &sent, b.number[i]);
    }
    if (st == 0 && sent.n) st = k->lib.batch_put_from(k->store, keys, sent.frame, sent.bytes, sent.n, NULL, result);
    double seconds = end_call(k);
    for (uint32_t i = 0; i < sent.n; i++) {
        bool ok = st == 0 && result[i] == TD_MOONCAKE_OK;
        k->stats.pages_out += ok;
        k->stats.pages_unsent += !ok;
        if (st == 0 && !ok && result[i] != TD_MOONCAKE_NO_ROOM) k->stats.failures++;
        if (st == 0 && result[i] == TD_MOONCAKE_RPC_FAILED) st = result[i];
    }
    k->stats.out_s += seconds;
    for (uint32_t i = 0; i < b.n; i++) put_number(&k->free_out, b.number[i]);
    if (st != 0) go_down(k, "sending pages", st);
}

/* ---- the thread ---- */

static void wait_until(td_kv_store *k, double until_s) {
    struct timespec t = {.tv_sec = (time_t)until_s, .tv_nsec = (long)(1e9 * (until_s - floor(until_s)))};
    pthread_cond_timedwait(&k->changed, &k->lock, &t);
}

static void *run(void *arg) {
    td_kv_store *k = arg;
    td_listen_address_set(&k->listen);
    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        lookup *l = k->stats.up ? next_lookup(k) : NULL;
        if (l)
            serve(k, l);
        else if (k->ready.n)
            send_pages(k);
        else if (now_s() >= k->retry_s)
            try_to_reach(k);
        else
            wait_until(k, k->retry_s);
    }
    k->stats.up = false;
    begin_call(k);
    if (k->store) {
        k->lib.unregister_buffer(k->store, k->memory);
        k->lib.destroy(k->store);
    }
    end_call(k);
    k->ended = true;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* ---- the engine's side ---- */

static void *put(void *user, const td_page_name *name) {
    td_kv_store *k = user;
    void        *memory = NULL;
    pthread_mutex_lock(&k->lock);
    if (k->stats.up && k->free_out.n) {
        uint32_t  number = take_number(&k->free_out);
        out_page *p = &k->out[number];
        p->key = name->key;
        p->parent = name->parent;
        memcpy(p->tokens, name->tokens, k->format.page_tokens * sizeof *p->tokens);
        memory = td_kv_page_frame_kv(&k->format, frame_of(k, number));
    } else {
        k->stats.pages_unsent++;
    }
    pthread_mutex_unlock(&k->lock);
    return memory;
}

static void put_end(void *user, void *memory, bool filled) {
    td_kv_store *k = user;
    uint32_t     number = (uint32_t)((size_t)((char *)memory - k->memory) / k->stride);
    pthread_mutex_lock(&k->lock);
    bool goes = filled && k->stats.up;
    put_number(goes ? &k->ready : &k->free_out, number);
    k->stats.pages_unsent += !goes;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static lookup *free_lookup(td_kv_store *k) {
    for (lookup *l = k->lookups; l < k->lookups + LOOKUPS_MAX; l++)
        if (!l->open) return l;
    return NULL;
}

static void *look(void *user, td_page_key parent, const td_page_key *keys, const uint32_t *tokens, uint32_t n) {
    td_kv_store *k = user;
    assert(n >= 1 && n <= k->format.max_pages);
    pthread_mutex_lock(&k->lock);
    bool    slow = k->call_since_s > 0 && now_s() - k->call_since_s > k->pages.wait_s;
    lookup *l = k->stats.up && !slow ? free_lookup(k) : NULL;
    if (l) {
        memcpy(l->keys, keys, n * sizeof *keys);
        memcpy(l->tokens, tokens, (size_t)n * k->format.page_tokens * sizeof *tokens);
        l->open = true;
        l->ended = l->over = false;
        l->order = k->n_lookups++;
        l->n = n;
        l->n_asked = l->n_there = l->n_fetched = 0;
        l->parent = parent;
        k->stats.lookups++;
        k->stats.lookups_open++;
        pthread_cond_signal(&k->changed);
    } else {
        k->stats.lookups_refused++;
    }
    pthread_mutex_unlock(&k->lock);
    return l;
}

static td_pages_state next(void *user, void *handle, const void **page) {
    td_kv_store *k = user;
    lookup      *l = handle;
    pthread_mutex_lock(&k->lock);
    td_pages_state state = l->arrived.n ? TD_PAGES_HERE : l->over && !l->busy ? TD_PAGES_OVER : TD_PAGES_COMING;
    if (state == TD_PAGES_HERE) *page = td_kv_page_frame_kv(&k->format, frame_of(k, l->arrived.at[l->arrived.first]));
    pthread_mutex_unlock(&k->lock);
    return state;
}

static void taken(void *user, void *handle) {
    td_kv_store *k = user;
    lookup      *l = handle;
    pthread_mutex_lock(&k->lock);
    put_number(&k->free_in, take_number(&l->arrived));
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static void end(void *user, void *handle, bool late) {
    td_kv_store *k = user;
    lookup      *l = handle;
    pthread_mutex_lock(&k->lock);
    k->stats.lookups_late += late;
    l->ended = true;
    if (!l->busy) clear_lookup(k, l);
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static void get_stats(void *user, td_page_store_stats *out) {
    td_kv_store *k = user;
    pthread_mutex_lock(&k->lock);
    *out = k->stats;
    out->page_bytes = k->frame_bytes;
    out->buffers = k->n_out + k->n_in;
    out->buffers_used = out->buffers - k->free_out.n - k->free_in.n;
    pthread_mutex_unlock(&k->lock);
}

/* ---- life ---- */

static bool allocate_lookups(td_kv_store *k) {
    const td_page_format *f = &k->format;
    for (lookup *l = k->lookups; l < k->lookups + LOOKUPS_MAX; l++) {
        l->keys = calloc(f->max_pages, sizeof *l->keys);
        l->tokens = calloc(f->max_pages, f->page_tokens * sizeof *l->tokens);
        if (!l->keys || !l->tokens || !open_numbers(&l->arrived, k->n_in)) return false;
    }
    return true;
}

static bool allocate(td_kv_store *k) {
    uint32_t n_tokens = k->format.page_tokens;
    size_t   bytes = ((k->n_out + k->n_in) * k->stride + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
    k->memory = aligned_alloc(PAGE_ALIGN, bytes);
    k->out = calloc(k->n_out, sizeof *k->out);
    k->out_tokens = calloc(k->n_out, n_tokens * sizeof *k->out_tokens);
    if (!k->memory || !k->out || !k->out_tokens) return false;
    memset(k->memory, 0, bytes); /* touches all pages, because the library may need them in memory */
    for (uint32_t i = 0; i < k->n_out; i++) k->out[i].tokens = k->out_tokens + (size_t)i * n_tokens;
    return open_numbers(&k->free_out, k->n_out) && open_numbers(&k->ready, k->n_out) && open_numbers(&k->free_in, k->n_in) &&
           allocate_lookups(k);
}

static td_status open_pages(void *user, const td_page_format *f, td_error *err) {
    td_kv_store *k = user;
    k->format = *f;
    k->frame_bytes = td_kv_page_frame_bytes(f);
    k->stride = (k->frame_bytes + 63) / 64 * 64;
    uint64_t n = k->config.page_buffer_size / k->stride;
    if (n < BUFFERS_MIN) n = BUFFERS_MIN;
    if (n > BUFFERS_MAX) n = BUFFERS_MAX;
    k->n_out = (uint32_t)n / 2;
    k->n_in = (uint32_t)n - k->n_out;
    if (!allocate(k))
        return td_fail(err, TD_ENOMEM, "kv-store: out of memory for %llu page buffers of %zu bytes", (unsigned long long)n,
                       k->stride);
    for (uint32_t i = 0; i < k->n_out; i++) put_number(&k->free_out, i);
    for (uint32_t i = 0; i < k->n_in; i++) put_number(&k->free_in, k->n_out + i);
    TD_TRY(td_thread_start(&k->thread, "kv_store", run, k, err));
    k->started = true;
    return TD_OK;
}

static void wake_nobody(void *user) {
    (void)user;
}

/* Ends the thread. A call that hangs must not delay the end of the process: after a limit the thread is left behind with its
 * memory. */
static void close_pages(void *user) {
    td_kv_store *k = user;
    if (!k->started) return;
    double until_s = now_s() + END_WAIT_S;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_broadcast(&k->changed);
    while (!k->ended && now_s() < until_s) wait_until(k, until_s);
    k->stuck = !k->ended;
    if (k->stuck) k->format.wake = wake_nobody; /* in case the call returns after all */
    pthread_mutex_unlock(&k->lock);
    k->started = false;
    if (k->stuck)
        td_warn("kv store: a call of Mooncake's does not come back: it is left behind");
    else
        pthread_join(k->thread, NULL);
}

/* Sets variables that Mooncake reads from the environment, unless they are set already:
 *   - nothing but TCP where that is asked for (one of its builds would look for accelerator cards);
 *   - the address that it tells others (Mooncake calls it BIND, but does not bind it);
 *   - IPv6 where we listen there;
 *   - a log of what goes wrong only;
 *   - an end of calls when nothing comes for 5 s: over a link that drops everything, calls would last half a minute, or a
 *     whole one. */
static void set_environment(const td_kv_store_config *c, const td_listen_address *listen) {
    td_listen_address told;
    if (!strcmp(c->protocol, "tcp")) setenv("MC_FORCE_TCP", "1", 0);
    if (td_listen_address_parse(c->local_hostname, &told)) setenv("MC_TCP_BIND_ADDRESS", c->local_hostname, 0);
    if (listen->family == AF_INET6) setenv("MC_USE_IPV6", "1", 0);
    setenv("MC_LOG_LEVEL", "WARNING", 0);
    setenv("MC_RPC_TIMEOUT_MS", "5000", 0);
    setenv("MC_RPC_CONNECT_TIMEOUT_MS", "5000", 0);
    setenv("MC_TCP_STATUS_TIMEOUT_SEC", "5", 0);
    setenv("MC_TCP_PROGRESS_TIMEOUT_SEC", "5", 0);
}

td_status td_kv_store_open(const td_kv_store_config *c, td_kv_store **out, td_error *err) {
    *out = NULL;
    td_kv_store *k = calloc(1, sizeof *k);
    if (!k) return td_fail(err, TD_ENOMEM, "out of memory for the KV store");
    k->config = *c;
    k->pages = (td_page_store){.open = open_pages,
                               .close = close_pages,
                               .put = put,
                               .put_end = put_end,
                               .look = look,
                               .next = next,
                               .taken = taken,
                               .end = end,
                               .stats = get_stats,
                               .wait_s = 1e-3 * c->max_wait_ms,
                               .user = k};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    td_status st = td_listen_address_parse(c->listen_address, &k->listen)
                       ? TD_OK
                       : td_fail(err, TD_EINVAL, "listen_address '%s' is no address", c->listen_address);
    if (st == TD_OK) {
        set_environment(c, &k->listen);
        st = td_mooncake_load(&k->lib, c->library, err);
    }
    if (st != TD_OK) {
        td_kv_store_close(k);
        return td_fail_within(err, "kv-store");
    }
    *out = k;
    return TD_OK;
}

const td_page_store *td_kv_store_pages(td_kv_store *k) {
    return &k->pages;
}

void td_kv_store_close(td_kv_store *k) {
    if (!k) return;
    close_pages(k);
    if (k->stuck) return;
    for (lookup *l = k->lookups; l < k->lookups + LOOKUPS_MAX; l++) {
        free(l->keys);
        free(l->tokens);
        free(l->arrived.at);
    }
    free(k->free_out.at);
    free(k->free_in.at);
    free(k->ready.at);
    free(k->out);
    free(k->out_tokens);
    free(k->memory);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    free(k);
}
