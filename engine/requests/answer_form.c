#include "engine/requests/answer_form.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "engine/requests/jump_ahead.h"

/* ---- life ------------------------------------------------------------------------------------ */

td_status td_answer_form_open(const td_answer_form_params *p, td_answer_form **out, td_error *err) {
    *out = NULL;
    td_answer_form *f = calloc(1, sizeof *f);
    if (!f) return td_fail(err, TD_ENOMEM, "out of memory for a request");
    f->p = *p;
    f->p.trie = td_vocab_trie_hold(p->trie);
    f->fits = true;
    f->phase = !p->markers ? TD_FORM_TEXT : p->opened ? TD_FORM_REASONING : TD_FORM_OPENING;
    if (p->markers) {
        td_marker_tokens_hold(p->markers);
        f->mask = malloc(TD_TRIE_WORDS(p->trie->vocab) * sizeof *f->mask);
    }
    td_status st = p->markers && !f->mask ? td_fail(err, TD_ENOMEM, "out of memory for a request")
                                          : td_grammar_place_open(p->grammar, p->trie, &f->place, err);
    if (st != TD_OK) {
        td_answer_form_close(f);
        return st;
    }
    *out = f;
    return TD_OK;
}

void td_answer_form_close(td_answer_form *f) {
    if (!f) return;
    td_grammar_place_close(f->place);
    td_marker_tokens_release(f->p.markers);
    td_vocab_trie_release(f->p.trie);
    free(f->mask);
    free(f);
}

/* ---- masks ----------------------------------------------------------------------------------- */

static void set_bit(uint32_t *mask, uint32_t id, bool on) {
    uint32_t bit = 1u << id % 32;
    mask[id / 32] = on ? mask[id / 32] | bit : mask[id / 32] & ~bit;
}

/* What the client sees of a token. */
static const char *text_of(const td_answer_form *f, uint32_t token, size_t *len) {
    bool        special = false;
    const char *bytes = td_tokenizer_token(f->p.tokenizer, token, len, &special);
    if (!bytes || (special && !f->p.shows_special)) *len = 0;
    return bytes;
}

/* All tokens but those that complete the closing marker and have bytes behind it. */
static void mask_reasoning(td_answer_form *f) {
    const td_marker_tokens *m = f->p.markers;
    memset(f->mask, 0xFF, TD_TRIE_WORDS(f->p.trie->vocab) * sizeof *f->mask);
    for (size_t i = 0; i < m->n_beyond; i++) {
        size_t from = m->beyond[i].from;
        if (from <= f->scan.n && !memcmp(f->scan.held + f->scan.n - from, m->close, from))
            set_bit(f->mask, m->beyond[i].id, false);
    }
}

/* What the grammar allows, if it allows the text so far, and the tokens that go on with the opening marker. */
static td_status mask_opening(td_answer_form *f) {
    const td_marker_tokens *m = f->p.markers;
    size_t                  words = TD_TRIE_WORDS(f->p.trie->vocab), len;
    uint32_t               *of_grammar = NULL;
    if (f->fits) TD_TRY(td_grammar_place_mask(f->place, &of_grammar));
    if (of_grammar)
        memcpy(f->mask, of_grammar, words * sizeof *f->mask);
    else
        memset(f->mask, 0, words * sizeof *f->mask);
    for (size_t i = 0; i < m->n_opening; i++) {
        text_of(f, m->opening[i].id, &len);
        if (m->opening[i].from == f->n_opened && len) set_bit(f->mask, m->opening[i].id, true);
    }
    return TD_OK;
}

td_status td_answer_form_mask(td_answer_form *f, const uint32_t **out) {
    uint32_t *mask = f->mask;
    bool      may_end = f->phase != TD_FORM_REASONING && f->fits && td_grammar_place_may_end(f->place);
    switch (f->phase) {
        case TD_FORM_OPENING: TD_TRY(mask_opening(f)); break;
        case TD_FORM_REASONING: mask_reasoning(f); break;
        default: TD_TRY(td_grammar_place_mask(f->place, &mask));
    }
    for (size_t i = 0; i < f->p.n_stop_ids; i++) set_bit(mask, f->p.stop_ids[i], may_end);
    *out = mask;
    return TD_OK;
}

/* ---- going on -------------------------------------------------------------------------------- */

static td_status advance_opening(td_answer_form *f, const char *bytes, size_t len) {
    const td_marker_tokens *m = f->p.markers;
    bool                    goes_on = len && len <= m->open_len - f->n_opened && !memcmp(bytes, m->open + f->n_opened, len);
    if (!goes_on) {
        f->phase = TD_FORM_TEXT;
        return td_grammar_place_advance(f->place, bytes, len);
    }
    f->n_opened += len;
    f->fits = f->fits && td_grammar_place_advance(f->place, bytes, len) == TD_OK;
    if (f->n_opened < m->open_len) return TD_OK;
    f->phase = TD_FORM_REASONING;
    f->fits = true;
    return td_grammar_place_rewind(f->place);
}

static td_status advance_reasoning(td_answer_form *f, const char *bytes, size_t len) {
    td_marker_set set = {{f->p.markers->close}, 1};
    char          released[TD_MARKER_BYTES_MAX];
    size_t        n;
    for (size_t i = 0; i < len; i++) {
        if (td_marker_scan_byte(&f->scan, &set, bytes[i], released, &n) < 0) continue;
        f->phase = TD_FORM_TEXT;
        return td_grammar_place_advance(f->place, bytes + i + 1, len - i - 1);
    }
    return TD_OK;
}

td_status td_answer_form_advance(td_answer_form *f, uint32_t token) {
    size_t      len = 0;
    const char *bytes = text_of(f, token, &len);
    switch (f->phase) {
        case TD_FORM_OPENING: return advance_opening(f, bytes, len);
        case TD_FORM_REASONING: return advance_reasoning(f, bytes, len);
        default: return td_grammar_place_advance(f->place, bytes, len);
    }
}

td_status td_answer_form_jump(td_answer_form *f, uint32_t *tokens, uint32_t room, uint32_t *n) {
    td_jump_vocabulary v = {f->p.tokenizer, f->p.trie, f->p.stop_ids, f->p.n_stop_ids};
    *n = 0;
    return f->phase == TD_FORM_TEXT ? td_jump_ahead(f->place, &v, tokens, room, n) : TD_OK;
}

bool td_answer_form_must_end(const td_answer_form *f) {
    return f->phase == TD_FORM_TEXT && td_grammar_place_must_end(f->place);
}
