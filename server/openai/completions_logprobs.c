/* Log-probabilities of chats and of completions, and the prompt that a completion echoes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/openai/completions.h"

static size_t count_chars(const char *s, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

/* A token's name for return_tokens_as_token_ids, which tells tokens of the same text apart. */
static void write_id_as_text(td_jbuf *b, uint32_t id) {
    char name[24];
    snprintf(name, sizeof name, "token_id:%u", id);
    td_jw_str(b, name);
}

/* A token as completions name it: its text; or "bytes:\\xe2\\x80", as OpenAI, if it is not whole characters. */
static void write_token(td_jbuf *b, const td_generation *g, uint32_t id) {
    size_t len;
    bool   special;
    if (g->req.shown.tokens_as_ids) {
        write_id_as_text(b, id);
        return;
    }
    const char *bytes = td_token_bytes(g, id, &len, &special);
    if (td_jw_is_utf8(bytes, len)) {
        td_jw_text(b, bytes, len);
        return;
    }
    td_jbuf name = {0};
    td_jbuf_puts(&name, "bytes:");
    for (size_t i = 0; i < len; i++) td_jbuf_printf(&name, "\\x%02x", (unsigned char)bytes[i]);
    td_jw_text(b, name.data, name.failed ? 0 : name.len);
    b->failed = b->failed || name.failed;
    td_jbuf_free(&name);
}

/* ---- chat: content[] of {token, logprob, bytes, top_logprobs} ---- */

static void write_chat_token(td_jbuf *b, const td_generation *g, td_token_logprob t) {
    size_t      len;
    bool        special;
    const char *bytes = td_token_bytes(g, t.id, &len, &special);
    td_jw_key(b, "token");
    if (g->req.shown.tokens_as_ids)
        write_id_as_text(b, t.id);
    else
        td_jw_text(b, bytes, len);
    td_jw_key(b, "logprob");
    td_write_logprob(b, t.logprob);
    td_jw_key(b, "bytes");
    td_jw_open(b, '[');
    for (size_t i = 0; i < len; i++) td_jw_int(b, (unsigned char)bytes[i]);
    td_jw_close(b, ']');
}

void td_write_token_logprobs(td_jbuf *b, const td_generation *g, const td_token_logprob *lp, size_t n) {
    size_t stride = 1 + g->req.shown.top_logprobs;
    for (size_t i = 0; i < n; i++) {
        const td_token_logprob *at = lp + i * stride;
        td_jw_open(b, '{');
        write_chat_token(b, g, at[0]);
        td_jw_key(b, "top_logprobs");
        td_jw_open(b, '[');
        for (size_t k = 1; k < stride && at[k].id != TD_LP_NONE; k++) {
            td_jw_open(b, '{');
            write_chat_token(b, g, at[k]);
            td_jw_close(b, '}');
        }
        td_jw_close(b, ']');
        td_jw_close(b, '}');
    }
}

void td_write_chat_logprobs(td_jbuf *b, const td_generation *g, const td_news *news) {
    if (!g->req.shown.logprobs) {
        td_jw_null(b);
        return;
    }
    td_jw_open(b, '{');
    td_jw_key(b, "content");
    td_jw_open(b, '[');
    td_write_token_logprobs(b, g, news->lp, news->n_lp);
    td_jw_close(b, ']');
    td_jw_close(b, '}');
}

/* ---- completions: parallel lists over the prompt's positions (echo) and the generated ones ---- */

typedef struct {
    const td_token_logprob *at; /* [stride] */
    bool                    of_prompt;
} position;

static position position_at(const td_news *news, size_t i, size_t stride) {
    if (i < news->n_prompt_lp) return (position){news->prompt_lp + i * stride, true};
    return (position){news->lp + (i - news->n_prompt_lp) * stride, false};
}

/* {token: logprob}, best first; the token itself is among them. Tokens whose bytes are the same appear once. */
static void write_top(td_jbuf *b, const td_generation *g, const td_token_logprob *at, size_t stride) {
    if (isnan(at[0].logprob)) { /* the first prompt token: nothing predicts it */
        td_jw_null(b);
        return;
    }
    const char *seen[TD_LOGPROBS_MAX + 1];
    size_t      seen_len[TD_LOGPROBS_MAX + 1], n = 0;
    td_jw_open(b, '{');
    for (size_t k = 1; k <= stride; k++) { /* the top ones, then the token itself */
        const td_token_logprob *t = &at[k < stride ? k : 0];
        if (t->id == TD_LP_NONE) continue;
        bool special, again = false;
        seen[n] = td_token_bytes(g, t->id, &seen_len[n], &special);
        for (size_t i = 0; i < n && !again && !g->req.shown.tokens_as_ids; i++)
            again = seen_len[i] == seen_len[n] && !memcmp(seen[i], seen[n], seen_len[n]);
        if (again) continue;
        n++;
        write_token(b, g, t->id);
        td_jbuf_puts(b, ":");
        td_write_logprob(b, t->logprob);
    }
    td_jw_close(b, '}');
}

void td_write_completion_logprobs(td_jbuf *b, td_choice *c, const td_news *news) {
    const td_generation *g = c->generation;
    if (!g->req.shown.logprobs) {
        td_jw_null(b);
        return;
    }
    const td_api_prompt *prompt = &g->req.prompts[c->index / g->req.n];
    size_t               stride = 1 + g->req.shown.top_logprobs;
    td_news              told = *news;
    if (!g->req.shown.echo) told.n_prompt_lp = 0; /* prompt_logprobs has them */
    size_t n = told.n_prompt_lp + told.n_lp;
    news = &told;
    td_jw_open(b, '{');
    td_jw_key(b, "tokens");
    td_jw_open(b, '[');
    for (size_t i = 0; i < n; i++) write_token(b, g, position_at(news, i, stride).at->id);
    td_jw_close(b, ']');
    td_jw_key(b, "token_logprobs");
    td_jw_open(b, '[');
    for (size_t i = 0; i < n; i++) td_write_logprob(b, position_at(news, i, stride).at->logprob);
    td_jw_close(b, ']');
    td_jw_key(b, "top_logprobs");
    td_jw_open(b, '[');
    for (size_t i = 0; i < n; i++) write_top(b, g, position_at(news, i, stride).at, stride);
    td_jw_close(b, ']');
    td_jw_key(b, "text_offset");
    td_jw_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        position p = position_at(news, i, stride);
        td_jw_int(b, (int64_t)(c->text_chars > c->lead_chars ? c->text_chars - c->lead_chars : 0));
        /* Special tokens take room in the text only where they are shown: in a text prompt, or when not skipped. */
        size_t      len;
        bool        special;
        const char *bytes = td_token_bytes(g, p.at->id, &len, &special);
        bool        shown = !special || (p.of_prompt && prompt->text) || !g->req.shown.skips_special_tokens;
        c->text_chars += shown ? count_chars(bytes, len) : 0;
    }
    td_jw_close(b, ']');
    td_jw_close(b, '}');
}

/* ---- both: prompt_logprobs as vLLM has them, a list of null (nothing predicts the first token) and of objects ---- */

/* {id: {logprob, rank, decoded_token}}: the prompt's own token, then the best ones. The rank of a token that is not among
 * the best is null. */
static void write_prompt_position(td_jbuf *b, const td_generation *g, const td_token_logprob *at, size_t top) {
    size_t own_rank = 0;
    if (isnan(at[0].logprob)) {
        td_jw_null(b);
        return;
    }
    for (size_t k = 1; k <= top; k++)
        if (at[k].id == at[0].id) own_rank = k;
    td_jw_open(b, '{');
    for (size_t k = 0; k <= top; k++) {
        size_t      len, rank = k ? k : own_rank;
        bool        special;
        char        id[16];
        const char *bytes = td_token_bytes(g, at[k].id, &len, &special);
        if (at[k].id == TD_LP_NONE || (k && k == own_rank)) continue;
        snprintf(id, sizeof id, "%u", at[k].id);
        td_jw_key(b, id);
        td_jw_open(b, '{');
        td_jw_key(b, "logprob");
        td_write_logprob(b, at[k].logprob);
        td_jw_key(b, "rank");
        if (rank)
            td_jw_int(b, (int64_t)rank);
        else
            td_jw_null(b);
        td_jw_key(b, "decoded_token");
        td_jw_text(b, bytes, len);
        td_jw_close(b, '}');
    }
    td_jw_close(b, '}');
}

void td_write_prompt_logprobs(td_jbuf *b, const td_choice *c) {
    const td_generation *g = c->generation;
    const td_news       *news = &c->news;
    size_t               top = g->req.shown.top_prompt_logprobs;
    if (!g->req.shown.prompt_logprobs) return;
    td_jw_key(b, "prompt_logprobs");
    td_jw_open(b, '[');
    for (size_t i = 0; i < news->n_prompt_lp; i++) write_prompt_position(b, g, news->prompt_lp + i * (1 + top), top);
    td_jw_close(b, ']');
}

void td_write_echo(td_jbuf *text, td_choice *c) {
    const td_generation *g = c->generation;
    const td_api_prompt *p = &g->req.prompts[c->index / g->req.n];
    char                *decoded = NULL;
    size_t               len = 0;
    bool                 skip = p->text ? false : g->req.shown.skips_special_tokens;
    if (!g->all->tokenizer) return; /* no text at all */
    td_status st = td_tokenizer_decode(g->all->tokenizer, p->ids, p->n_ids, skip, &decoded, &len);
    if (st != TD_OK) len = 0; /* ids that the model has and the tokenizer does not have: no text */
    if (st == TD_ENOMEM) text->failed = true;
    if (!p->text) {
        td_jbuf_put(text, decoded, len);
    } else {
        td_jbuf_put(text, p->text, p->text_len);
        if (len > p->text_len) c->lead_chars = count_chars(decoded, len) - count_chars(p->text, p->text_len);
    }
    free(decoded);
}
