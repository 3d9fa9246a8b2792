#include "server/request/grammar_cache.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

void td_grammar_cache_init(td_grammar_cache *c) {
    *c = (td_grammar_cache){0};
    pthread_mutex_init(&c->lock, NULL);
}

static td_grammar *find(td_grammar_cache *c, td_grammar_kind kind, const char *source, size_t len) {
    for (size_t i = 0; i < TD_GRAMMAR_CACHE_MAX; i++) {
        td_grammar_entry *e = &c->entries[i];
        if (!e->grammar || e->kind != kind || e->len != len || memcmp(e->source, source, len) != 0) continue;
        e->used = ++c->uses;
        return td_grammar_hold(e->grammar);
    }
    return NULL;
}

static void entry_free(td_grammar_entry *e) {
    td_grammar_release(e->grammar);
    free(e->source);
    *e = (td_grammar_entry){0};
}

/* Put g into the cache under its source; takes `copy` over. */
static void keep(td_grammar_cache *c, td_grammar_kind kind, char *copy, size_t len, td_grammar *g) {
    td_grammar_entry *oldest = &c->entries[0];
    for (size_t i = 1; i < TD_GRAMMAR_CACHE_MAX; i++)
        if (c->entries[i].used < oldest->used) oldest = &c->entries[i];
    entry_free(oldest);
    *oldest = (td_grammar_entry){td_grammar_hold(g), kind, copy, len, ++c->uses};
}

td_grammar *td_grammar_cache_find(td_grammar_cache *c, td_grammar_kind kind, const char *source, size_t len) {
    pthread_mutex_lock(&c->lock);
    td_grammar *g = find(c, kind, source, len);
    pthread_mutex_unlock(&c->lock);
    return g;
}

td_status td_grammar_cache_get(td_grammar_cache *c, td_grammar_kind kind, const char *source, size_t len, td_grammar **out,
                               td_error *err) {
    *out = td_grammar_cache_find(c, kind, source, len);
    if (*out) return TD_OK;
    TD_TRY(td_grammar_compile(kind, source, len, out, err));
    char *copy = malloc(len + 1);
    if (!copy) return TD_OK; /* the grammar is usable, but not kept */
    memcpy(copy, source, len);
    pthread_mutex_lock(&c->lock);
    keep(c, kind, copy, len, *out);
    pthread_mutex_unlock(&c->lock);
    return TD_OK;
}

void td_grammar_cache_close(td_grammar_cache *c) {
    for (size_t i = 0; i < TD_GRAMMAR_CACHE_MAX; i++) entry_free(&c->entries[i]);
    pthread_mutex_destroy(&c->lock);
}
