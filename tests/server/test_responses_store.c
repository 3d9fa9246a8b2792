/* The store of responses: which are found, which are dropped, which stay because a later response needs them, and several
 * threads that use it. */

#include <pthread.h>

#include "core/math/rng.h"
#include "server/openai/responses_store.h"
#include "tests/td_test.h"

static char *text_of(size_t n) {
    char *text = malloc(n + 1);
    memset(text, 'x', n);
    text[n] = 0;
    return text;
}

/* Keep a response of n bytes that goes on from another (NULL: none; ""). */
static void put(td_response_store *s, const char *id, const char *previous, size_t n) {
    td_stored_response r = {.input = text_of(1), .input_len = 1, .text = text_of(n), .text_len = n};
    snprintf(r.id, sizeof r.id, "%s", id);
    if (previous) r.previous = td_response_store_find(s, previous);
    OK(td_response_store_put(s, &r));
}

static bool has(td_response_store *s, const char *id) {
    td_stored_response *r = td_response_store_find(s, id);
    bool                found = r && !strcmp(r->id, id);
    td_response_store_release(s, r);
    return found;
}

TEST(the_least_recently_used_goes) {
    td_response_store s;
    td_response_store_init(&s, 3, SIZE_MAX);
    put(&s, "a", NULL, 10);
    put(&s, "b", NULL, 10);
    put(&s, "c", NULL, 10);
    assert_true(has(&s, "a"));
    put(&s, "d", NULL, 10);
    assert_true(has(&s, "a") && !has(&s, "b") && has(&s, "c") && has(&s, "d"));
    assert_int_equal(s.n, 3);
    assert_false(td_response_store_delete(&s, "b"));
    assert_true(td_response_store_delete(&s, "c"));
    assert_false(has(&s, "c"));
    assert_int_equal(s.n, 2);
    td_response_store_close(&s);
    assert_int_equal(s.bytes, 0);
}

TEST(bytes_are_bounded) {
    AT_END(td_response_store_close) td_response_store s;
    td_response_store_init(&s, 100, 10000);
    for (int i = 0; i < 50; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        put(&s, id, NULL, 1000);
        assert_true(s.bytes <= 10000);
        assert_true(has(&s, id));
    }
    size_t each = s.bytes / s.n;
    assert_int_equal(s.n, 10000 / each);
    put(&s, "huge", NULL, 20000);
    assert_int_equal(s.n, 0);
    assert_int_equal(s.bytes, 0);
}

TEST(a_conversation_lives_while_it_is_needed) {
    AT_END(td_response_store_close) td_response_store s;
    td_response_store_init(&s, 2, SIZE_MAX);
    put(&s, "1", NULL, 10);
    put(&s, "2", "1", 10);
    size_t two = s.bytes;
    put(&s, "3", "2", 10);
    put(&s, "4", "3", 10);
    assert_false(has(&s, "1"));
    assert_int_equal(s.n, 2);
    assert_int_equal(s.bytes, 2 * two); /* all four */
    td_stored_response *last = td_response_store_find(&s, "4");
    size_t              n = 0;
    for (const td_stored_response *r = last; r; r = r->previous) n++;
    assert_int_equal(n, 4);
    assert_true(td_response_store_delete(&s, "4"));
    assert_string_equal(last->previous->previous->previous->id, "1"); /* this caller needs it */
    td_response_store_release(&s, last);
    assert_int_equal(s.bytes, two / 2 * 3);
    assert_true(td_response_store_delete(&s, "3"));
    assert_int_equal(s.bytes, 0);
}

/* As long as conversations get: freeing one must not take a stack frame for each. */
TEST(long_conversations_end) {
    AT_END(td_response_store_close) td_response_store s;
    char                                              id[16], before[16] = "0";
    td_response_store_init(&s, 1, SIZE_MAX);
    put(&s, before, NULL, 1);
    for (int i = 1; i < 200000; i++) {
        snprintf(id, sizeof id, "%d", i);
        put(&s, id, before, 1);
        strcpy(before, id);
    }
    assert_int_equal(s.n, 1);
    assert_true(td_response_store_delete(&s, before));
    assert_int_equal(s.bytes, 0);
}

typedef struct {
    td_response_store *store;
    uint64_t           seed;
} worker;

static void *work(void *arg) {
    const worker *w = arg;
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t r = td_rng_u64(w->seed, 0, i);
        char     id[16], previous[16];
        snprintf(id, sizeof id, "%u", (unsigned)(r % 20));
        snprintf(previous, sizeof previous, "%u", (unsigned)(r >> 8) % 20);
        if (r >> 16 & 1) {
            td_stored_response kept = {
                .input = text_of(1), .input_len = 1, .text = text_of(r >> 20 & 255), .text_len = r >> 20 & 255};
            snprintf(kept.id, sizeof kept.id, "%s", id);
            kept.previous = td_response_store_find(w->store, previous);
            if (td_response_store_put(w->store, &kept) != TD_OK) return arg;
        } else if (r >> 17 & 1) {
            td_stored_response *found = td_response_store_find(w->store, id);
            for (const td_stored_response *p = found; p; p = p->previous)
                if (p->text[p->text_len] != 0) return arg;
            td_response_store_release(w->store, found);
        } else {
            (void)td_response_store_delete(w->store, id);
        }
    }
    return NULL;
}

TEST(several_threads) {
    td_response_store s;
    pthread_t         threads[4];
    worker            workers[4];
    td_response_store_init(&s, 12, 8000);
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (worker){&s, 20260714 + i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    assert_true(s.n <= 12 && s.bytes <= 8000);
    td_response_store_close(&s);
    assert_int_equal(s.bytes, 0);
}
