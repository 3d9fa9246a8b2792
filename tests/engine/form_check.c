/*
 * The rules of docs/structured-output.md (which tokens follow without a choice, when the grammar begins) as plain loops over
 * all bytes and all tokens. Of the library it uses the masks of a grammar, which test_grammar_mask tests, and the sampler.
 */
#include "form_check.h"

#include "engine/step/sampler.h"
#include "fake_model.h"
#include "tests/td_test.h"
#include "text/grammar/grammar.h"

#define TEXT_MAX 4096
#define JUMP_BYTES_MAX 1024

typedef struct {
    const probe        *p;
    const form         *f;
    const td_tokenizer *tok;
    td_grammar         *grammar;
    td_vocab_trie      *trie;
    uint32_t            tokens[1024];
    uint32_t            n_prompt, n, n_jumped;
    char                text[TEXT_MAX];
    size_t              len;
    uint32_t            stops[64], n_stops;
} run;

static const char *bytes_of(const run *r, uint32_t id, size_t *len) {
    bool        special = false;
    const char *bytes = td_tokenizer_token(r->tok, id, len, &special);
    if (!bytes || (special && r->p->params.skip_special_tokens)) *len = 0;
    return bytes;
}

static bool stops_at(const run *r, uint32_t id) {
    for (uint32_t i = 0; i < r->n_stops; i++)
        if (r->stops[i] == id) return true;
    return false;
}

/* Where the grammar's text begins; SIZE_MAX: it has not, and *opening says whether it still may at 0. */
static size_t form_begin(const run *r, const char *text, size_t len, bool *opening) {
    *opening = false;
    if (!r->f->close) return 0;
    size_t n_open = strlen(r->f->open), n_close = strlen(r->f->close), from = 0;
    if (!r->f->opened) {
        if (len < n_open && !memcmp(text, r->f->open, len)) {
            *opening = true;
            return SIZE_MAX;
        }
        if (len < n_open || memcmp(text, r->f->open, n_open) != 0) return 0;
        from = n_open;
    }
    const char *end = memmem(text + from, len - from, r->f->close, n_close);
    return end ? (size_t)(end - text) + n_close : SIZE_MAX;
}

static bool begins_text(const run *r, const char *text, size_t len, bool *whole) {
    size_t at;
    OK(td_grammar_check(r->grammar, text, len, whole, &at));
    return at == len;
}

/* Every token by itself. */
static void make_mask(const run *r, uint32_t *mask) {
    bool   opening, whole = false;
    size_t begin = form_begin(r, r->text, r->len, &opening), words = TD_TRIE_WORDS(FAKE_VOCAB), n;
    bool   in_grammar = begin != SIZE_MAX || (opening && begins_text(r, r->text, r->len, &whole));
    memset(mask, 0, words * sizeof *mask);
    if (in_grammar) {
        td_grammar_place *place;
        uint32_t         *of_grammar;
        size_t            from = begin == SIZE_MAX ? 0 : begin;
        OK(td_grammar_place_open(r->grammar, r->trie, &place, NULL));
        OK(td_grammar_place_advance(place, r->text + from, r->len - from));
        OK(td_grammar_place_mask(place, &of_grammar));
        memcpy(mask, of_grammar, words * sizeof *mask);
        whole = td_grammar_place_may_end(place);
        td_grammar_place_close(place);
    }
    for (uint32_t id = 0; id < FAKE_VOCAB && begin == SIZE_MAX; id++) {
        const char *bytes = bytes_of(r, id, &n);
        char        text[TEXT_MAX];
        bool        still;
        memcpy(text, r->text, r->len);
        if (n) memcpy(text + r->len, bytes, n);
        size_t then = form_begin(r, text, r->len + n, &still);
        bool   may = opening ? n && r->len + n <= strlen(r->f->open) && !memcmp(text, r->f->open, r->len + n)
                             : then == SIZE_MAX || then == r->len + n;
        if (may) mask[id / 32] |= 1u << id % 32;
    }
    for (uint32_t i = 0; i < r->n_stops; i++) {
        uint32_t bit = 1u << r->stops[i] % 32, *word = &mask[r->stops[i] / 32];
        *word = whole && in_grammar ? *word | bit : *word & ~bit;
    }
}

/* The bytes that every text goes on with; *ends: none can follow them. */
static size_t forced(const run *r, size_t begin, char *bytes, bool *ends) {
    char   text[TEXT_MAX + JUMP_BYTES_MAX + 1];
    size_t len = r->len - begin;
    bool   whole, longer;
    memcpy(text, r->text + begin, len);
    for (size_t n = 0;; n++) {
        int only = 0, choices = 0;
        begins_text(r, text, len + n, &whole);
        for (int b = 0; b < 256 && choices < 2; b++) {
            text[len + n] = (char)b;
            if (!begins_text(r, text, len + n + 1, &longer)) continue;
            only = b;
            choices++;
        }
        *ends = whole && !choices;
        if (whole || choices != 1 || n == JUMP_BYTES_MAX) return n;
        bytes[n] = text[len + n] = (char)only;
    }
}

static bool some_token_goes_on(const run *r, const char *end, size_t n) {
    for (uint32_t id = 0; id < FAKE_VOCAB; id++) {
        size_t      len;
        bool        special;
        const char *bytes = td_tokenizer_token(r->tok, id, &len, &special);
        if (bytes && !special && len > n && !memcmp(bytes, end, n)) return true;
    }
    return false;
}

static void add(run *r, uint32_t token) {
    size_t      n;
    const char *bytes = bytes_of(r, token, &n);
    r->tokens[r->n++] = token;
    assert_true(r->len + n < TEXT_MAX);
    if (n) memcpy(r->text + r->len, bytes, n);
    r->len += n;
}

static void jump(run *r) {
    char            bytes[JUMP_BYTES_MAX];
    bool            opening, ends;
    size_t          begin = form_begin(r, r->text, r->len, &opening), at = 0, n_ids, n;
    FREED uint32_t *ids = NULL;
    if (begin == SIZE_MAX || r->p->params.sampling.n_bias) return;
    size_t len = forced(r, begin, bytes, &ends), closed = len;
    for (size_t k = 1; k <= len && !ends; k++)
        if (some_token_goes_on(r, bytes + len - k, k)) closed = len - k;
    OK(td_tokenizer_encode(r->tok, bytes, len, false, false, &ids, &n_ids));
    for (size_t i = 0; i < n_ids && r->n - r->n_prompt < r->p->params.max_tokens; i++, at += n) {
        bytes_of(r, ids[i], &n);
        if (ids[i] >= FAKE_VOCAB || at + n > closed || stops_at(r, ids[i])) break;
        add(r, ids[i]);
        r->n_jumped++;
    }
}

static bool must_end(const run *r) {
    bool   opening, ends;
    char   bytes[JUMP_BYTES_MAX];
    size_t begin = form_begin(r, r->text, r->len, &opening);
    return begin != SIZE_MAX && forced(r, begin, bytes, &ends) == 0 && ends;
}

static void check_logprobs(const run *r, const char *what) {
    static float logits[FAKE_VOCAB];
    for (uint32_t i = 0; i < r->p->n_logprobs; i++) {
        td_position_logprobs        want = {0};
        const td_position_logprobs *got = &r->p->logprobs[i];
        fake_logits(r->tokens, r->n_prompt + i, r->n_prompt, logits);
        td_logprobs(logits, FAKE_VOCAB, td_log_sum_of(logits, FAKE_VOCAB), r->tokens[r->n_prompt + i],
                    r->p->params.n_top_logprobs, &want);
        bool same = got->id == want.id && got->logprob == want.logprob && got->n_top == want.n_top;
        for (uint32_t k = 0; same && k < want.n_top; k++)
            same = got->top[k].id == want.top[k].id && got->top[k].logprob == want.top[k].logprob;
        if (!same)
            fail_msg("%s: token %u has log-probability %.9g, not %.9g", what, i, (double)got->logprob, (double)want.logprob);
    }
}

uint32_t form_check(const probe *p, const form *f, const td_tokenizer *tok, const char *what) {
    const td_request_params *q = &p->params;
    static float             logits[FAKE_VOCAB];
    uint32_t                 mask[TD_TRIE_WORDS(FAKE_VOCAB)], token, stop_token = UINT32_MAX;
    td_finish                finish = TD_FINISH_NONE;
    td_sampler               s;
    FREED run               *r = calloc(1, sizeof *r);
    r->p = p, r->f = f, r->tok = tok;
    r->n = r->n_prompt = (uint32_t)q->n_prompt;
    memcpy(r->tokens, q->prompt, q->n_prompt * sizeof *r->tokens);
    if (!q->ignore_eos) r->stops[r->n_stops++] = FAKE_EOS;
    for (size_t i = 0; i < q->n_stop_ids; i++) r->stops[r->n_stops++] = q->stop_ids[i];
    OK(td_grammar_compile(f->kind, f->source, strlen(f->source), &r->grammar, NULL));
    OK(td_vocab_trie_make(tok, FAKE_VOCAB, &r->trie));
    OK(td_sampler_open(&s, FAKE_VOCAB, NULL));
    for (jump(r); finish == TD_FINISH_NONE; jump(r)) {
        uint32_t       n = r->n - r->n_prompt;
        td_sample_args a = WITH(td_sample_args, .sampling = &q->sampling, .seed = q->sampling.seed, .prompt = r->tokens,
                                .n_prompt = r->n_prompt, .generated = r->tokens + r->n_prompt, .n_generated = n,
                                .banned = r->stops, .n_banned = n < q->min_tokens ? r->n_stops : 0, .allowed = mask);
        if (n && must_end(r)) {
            finish = TD_FINISH_STOP;
            break;
        }
        if (n == q->max_tokens) {
            finish = TD_FINISH_LENGTH;
            break;
        }
        make_mask(r, mask);
        fake_logits(r->tokens, r->n, r->n_prompt, logits);
        OK(td_sample(&s, logits, &a, &token));
        if (!stops_at(r, token)) {
            add(r, token);
            continue;
        }
        r->tokens[r->n++] = token;
        finish = TD_FINISH_STOP;
        stop_token = token;
        break;
    }
    if (p->finish == TD_FINISH_ERROR) fail_msg("%s: %s", what, p->error.text);
    if (p->n_tokens != r->n - r->n_prompt || memcmp(p->tokens, r->tokens + r->n_prompt, p->n_tokens * sizeof *p->tokens))
        fail_msg("%s: '%.*s' (%zu tokens), not '%.*s' (%u)", what, (int)p->text_len, p->text, p->n_tokens, (int)r->len,
                 r->text, r->n - r->n_prompt);
    assert_int_equal(p->finish, finish);
    assert_int_equal(p->stop_token, stop_token);
    assert_int_equal(p->last.completion_tokens, p->n_tokens);
    assert_int_equal(p->n_logprobs, q->logprobs ? p->n_tokens : 0);
    assert_true(p->n_events == p->n_tokens); /* a token an event */
    check_logprobs(r, what);
    uint32_t n_jumped = r->n_jumped;
    td_sampler_close(&s);
    td_grammar_release(r->grammar);
    td_vocab_trie_release(r->trie);
    return n_jumped;
}
