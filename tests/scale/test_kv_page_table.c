/*
 * The knowledge that the table gives a consumer. Pages come and go, with takes, restatements and clearings at any moment.
 * After any such history, an index that applies the changes in order has the hash of every page that is held, and no other.
 * A page's parent is in the index when the page comes. If a change is waiting, the table's event_fd is readable.
 */
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "scale/kv_page_table.h"
#include "tests/td_test.h"

#define PAGES 40
#define TOKENS 4
#define NONE UINT32_MAX
#define SEED 20261123u

typedef struct {
    td_kv_page_table table;
    td_kv_change     change;
    uint32_t         tokens[TD_KV_CHANGE_PAGES * TOKENS];
    int              event_fd;
    uint64_t         index[PAGES]; /* [n_index] hashes that the consumer knows */
    uint32_t         n_index;
    uint64_t         n_told; /* pages, in all */
    atomic_bool      stop;
} fixture;

static void open_fixture(fixture *f) {
    memset(f, 0, sizeof *f);
    f->event_fd = eventfd(0, EFD_NONBLOCK);
    f->change.tokens = f->tokens;
    OK(td_kv_page_table_open(&f->table, PAGES, TOKENS, f->event_fd, NULL));
}

static void close_fixture(fixture *f) {
    td_kv_page_table_close(&f->table);
    close(f->event_fd);
}

static uint32_t find(const fixture *f, uint64_t hash) {
    for (uint32_t i = 0; i < f->n_index; i++)
        if (f->index[i] == hash) return i;
    return NONE;
}

/* @return whether there was anything. */
static bool take(fixture *f) {
    if (!td_kv_page_table_take(&f->table, &f->change)) return false;
    const td_kv_change *c = &f->change;
    assert_true(c->cleared || c->n_removed || c->n_stored);
    if (c->cleared) f->n_index = 0;
    for (uint32_t i = 0; i < c->n_removed; i++) {
        uint32_t at = find(f, c->removed[i]);
        assert_int_not_equal(at, NONE); /* only what was told is taken back */
        f->index[at] = f->index[--f->n_index];
    }
    for (uint32_t i = 0; i < c->n_stored; i++) {
        const td_kv_stored *s = &c->stored[i];
        assert_int_equal(find(f, s->hash), NONE);
        if (s->has_parent) assert_int_not_equal(find(f, s->parent_hash), NONE);
        assert_true(s->hash ==
                    td_kv_page_hash(s->has_parent ? &s->parent_hash : NULL, f->tokens + (size_t)i * TOKENS, TOKENS));
        assert_true(f->n_index < PAGES);
        f->index[f->n_index++] = s->hash;
    }
    f->n_told += c->n_stored;
    return true;
}

/* A prefix cache in small: pages with a parent and one number for their tokens. */
typedef struct {
    bool     held;
    uint32_t parent, number, n_children;
    uint64_t hash;
} model_page;

static bool is_there(const model_page *m, uint32_t parent, uint32_t number) {
    for (uint32_t i = 0; i < PAGES; i++)
        if (m[i].held && m[i].parent == parent && m[i].number == number) return true;
    return false;
}

static void store(fixture *f, model_page *m, uint32_t page, uint32_t parent, uint32_t number) {
    uint32_t tokens[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) tokens[i] = number * 10 + i;
    m[page] =
        (model_page){true, parent, number, 0, td_kv_page_hash(parent == NONE ? NULL : &m[parent].hash, tokens, TOKENS)};
    if (parent != NONE) m[parent].n_children++;
    td_kv_page_table_store(&f->table, page, parent, tokens);
}

static void check_index(const fixture *f, const model_page *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < PAGES; i++) {
        if (!m[i].held) continue;
        assert_int_not_equal(find(f, m[i].hash), NONE);
        n++;
    }
    assert_int_equal(f->n_index, n);
}

static bool has_rung(const fixture *f) {
    uint64_t n;
    return read(f->event_fd, &n, sizeof n) == sizeof n;
}

TEST(random_history) {
    print_message("seed %u\n", SEED);
    static model_page m[PAGES];
    static fixture    f;
    uint64_t          draws = 0, stored = 0, drained = 0;
    open_fixture(&f);
    for (int step = 0; step < 60000; step++) {
        uint64_t r = td_rng_u64(SEED, 0, draws++);
        uint32_t page = (uint32_t)(r >> 8) % PAGES, parent = (uint32_t)(r >> 24) % (PAGES + 4), what = r % 64;
        if (parent >= PAGES || !m[parent].held) parent = NONE;
        if (what < 30) {
            uint32_t number = (uint32_t)(r >> 40) % 3; /* the same tokens come again and again, in other pages */
            if (m[page].held || parent == page || is_there(m, parent, number)) continue;
            store(&f, m, page, parent, number);
            stored++;
        } else if (what < 50) {
            if (!m[page].held || m[page].n_children) continue;
            m[page].held = false;
            if (m[page].parent != NONE) m[m[page].parent].n_children--;
            td_kv_page_table_remove(&f.table, page);
        } else if (what < 58) {
            take(&f);
        } else if (what < 62) {
            while (take(&f)) continue;
            check_index(&f, m);
            drained++;
            has_rung(&f);
            assert_false(td_kv_page_table_take(&f.table, &f.change));
            assert_false(has_rung(&f));
        } else if (what == 62 && r >> 60 == 0) {
            memset(m, 0, sizeof m);
            td_kv_page_table_clear(&f.table);
            assert_true(f.table.rung);
        } else if (what == 63 && r >> 61 == 0) {
            td_kv_page_table_restate(&f.table);
            assert_true(take(&f) && f.change.cleared);
        }
    }
    while (take(&f)) continue;
    check_index(&f, m);
    print_message("%lu stored, %lu told, %lu times drained\n", (unsigned long)stored, (unsigned long)f.n_told,
                  (unsigned long)drained);
    assert_true(stored > 3000 && drained > 1000);
    close_fixture(&f);
}

TEST(a_change_rings_once) {
    static fixture f;
    model_page     m[PAGES] = {0};
    open_fixture(&f);
    assert_true(take(&f) && f.change.cleared); /* the first */
    assert_false(take(&f));
    assert_false(has_rung(&f));
    store(&f, m, 3, NONE, 1);
    assert_true(has_rung(&f));
    store(&f, m, 4, 3, 2);
    assert_false(has_rung(&f)); /* the publisher comes anyway */
    assert_true(take(&f));
    assert_int_equal(f.change.n_stored, 2);
    store(&f, m, 5, 4, 2);
    assert_false(has_rung(&f)); /* it has not found the table empty yet */
    assert_true(take(&f));
    assert_false(take(&f));
    td_kv_page_table_remove(&f.table, 5);
    assert_true(has_rung(&f));
    assert_true(take(&f));
    assert_false(take(&f));
    td_kv_page_table_remove(&f.table, 4);
    assert_true(has_rung(&f));
    close_fixture(&f);
}

TEST(what_went_before_it_was_told_is_not_told) {
    static fixture f;
    model_page     m[PAGES] = {0};
    open_fixture(&f);
    while (take(&f)) continue;
    store(&f, m, 0, NONE, 1);
    store(&f, m, 1, 0, 2);
    td_kv_page_table_remove(&f.table, 1);
    assert_true(take(&f));
    assert_int_equal(f.change.n_stored, 1);
    assert_int_equal(f.change.n_removed, 0);
    td_kv_page_table_remove(&f.table, 0); /* the same tokens in another page: taken back first, told last */
    store(&f, m, 7, NONE, 1);
    assert_true(take(&f));
    assert_int_equal(f.change.n_removed, 1);
    assert_int_equal(f.change.n_stored, 1);
    assert_true(f.change.removed[0] == f.change.stored[0].hash);
    assert_false(take(&f));
    close_fixture(&f);
}

/* The publisher's side on a thread of its own. */
static void *publish(void *arg) {
    fixture *f = arg;
    for (bool end = false; !end;) {
        while (take(f)) continue;
        end = atomic_load(&f->stop);
        if (end)
            while (take(f)) continue;
    }
    return NULL;
}

TEST(two_threads) {
    static model_page m[PAGES];
    static fixture    f;
    pthread_t         thread;
    open_fixture(&f);
    assert_int_equal(pthread_create(&thread, NULL, publish, &f), 0);
    for (uint32_t step = 0; step < 20000; step++) {
        uint64_t r = td_rng_u64(SEED, 7, step);
        uint32_t page = (uint32_t)r % PAGES, number = (uint32_t)(r >> 32) % 100;
        if (m[page].held) {
            m[page].held = false;
            td_kv_page_table_remove(&f.table, page);
        } else if (!is_there(m, NONE, number)) {
            store(&f, m, page, NONE, number);
        }
    }
    atomic_store(&f.stop, true);
    pthread_join(thread, NULL);
    check_index(&f, m);
    print_message("%lu told\n", (unsigned long)f.n_told);
    close_fixture(&f);
}
