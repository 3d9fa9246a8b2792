#include "engine/requests/jump_ahead.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static bool is_stop(const td_jump_vocabulary *v, uint32_t id) {
    for (size_t i = 0; i < v->n_stop_ids; i++)
        if (v->stop_ids[i] == id) return true;
    return false;
}

/* The length of token id if it may be taken: its bytes are the next of the text, and at most max. 0: it may not be taken. (A
   tokenizer may normalise what it encodes, and may have ids that the model does not have.) */
static size_t bytes_taken(const td_jump_vocabulary *v, uint32_t id, const char *text, size_t max) {
    size_t      len = 0;
    bool        special = false;
    const char *bytes = id < v->trie->vocab ? td_tokenizer_token(v->tokenizer, id, &len, &special) : NULL;
    return bytes && !special && len <= max && !memcmp(bytes, text, len) && !is_stop(v, id) ? len : 0;
}

td_status td_jump_ahead(td_grammar_place *p, const td_jump_vocabulary *v, uint32_t *tokens, uint32_t room, uint32_t *n) {
    char      text[TD_JUMP_BYTES_MAX];
    bool      ends;
    size_t    len = td_grammar_place_forced(p, text, sizeof text, &ends), at = 0, n_ids = 0, taken;
    uint32_t *ids = NULL;
    *n = 0;
    if (!len || !room) return TD_OK;
    size_t closed = ends ? len : len - td_vocab_trie_open_end(v->trie, text, len);
    if (!closed) return TD_OK;
    TD_TRY(td_tokenizer_encode(v->tokenizer, text, len, false, false, &ids, &n_ids));
    for (size_t i = 0; i < n_ids && *n < room && (taken = bytes_taken(v, ids[i], text + at, closed - at)); i++) {
        tokens[(*n)++] = ids[i];
        at += taken;
    }
    free(ids);
    return td_grammar_place_advance(p, text, at);
}
