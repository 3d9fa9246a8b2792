#include "engine/requests/marker_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

typedef struct {
    td_marker_token *at;
    size_t           n, room;
    bool             failed;
} list;

static void add(list *l, uint32_t id, size_t from) {
    if (l->n == l->room) {
        size_t           room = l->room ? 2 * l->room : 64;
        td_marker_token *at = realloc(l->at, room * sizeof *at);
        if (!at) {
            l->failed = true;
            return;
        }
        l->at = at;
        l->room = room;
    }
    l->at[l->n++] = (td_marker_token){id, (uint32_t)from};
}

static void look_at(const td_marker_tokens *t, uint32_t id, const char *bytes, size_t len, list *opening, list *beyond) {
    for (size_t from = 0; from + len <= t->open_len; from++)
        if (!memcmp(bytes, t->open + from, len)) add(opening, id, from);
    for (size_t from = 1; from < t->close_len; from++)
        if (len > t->close_len - from && !memcmp(bytes, t->close + from, t->close_len - from)) add(beyond, id, from);
    const char *whole = memmem(bytes, len, t->close, t->close_len);
    if (whole && whole + t->close_len < bytes + len) add(beyond, id, 0);
}

td_status td_marker_tokens_make(const td_tokenizer *tok, uint32_t vocab, const char *open, const char *close,
                                td_marker_tokens **out) {
    list              opening = {0}, beyond = {0};
    td_marker_tokens *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return TD_ENOMEM;
    t->open = open;
    t->close = close;
    t->open_len = strlen(open);
    t->close_len = strlen(close);
    for (uint32_t id = 0; id < vocab && id < td_tokenizer_vocab_size(tok); id++) {
        size_t      len;
        bool        special;
        const char *bytes = td_tokenizer_token(tok, id, &len, &special);
        if (bytes && len) look_at(t, id, bytes, len, &opening, &beyond);
    }
    t->opening = opening.at;
    t->n_opening = opening.n;
    t->beyond = beyond.at;
    t->n_beyond = beyond.n;
    atomic_init(&t->refs, 1);
    if (opening.failed || beyond.failed) {
        td_marker_tokens_release(t);
        return TD_ENOMEM;
    }
    *out = t;
    return TD_OK;
}

td_marker_tokens *td_marker_tokens_hold(td_marker_tokens *t) {
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void td_marker_tokens_release(td_marker_tokens *t) {
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
    free(t->opening);
    free(t->beyond);
    free(t);
}
