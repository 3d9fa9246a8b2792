/* Log-probabilities of chats and of completions; and a completion's text, with the prompt that it echoes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/answer/token_texts.h"
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

static void write_chat_position(td_jbuf *b, const td_writing *w, size_t i) {
    const td_generation *g = w->choice->generation;
    td_write_token_logprobs(b, g, w->news->lp + i * (1 + g->req.shown.top_logprobs), 1);
}

bool td_write_chat_logprobs(td_jbuf *b, td_writing *w) {
    if (!w->choice->generation->req.shown.logprobs) {
        td_jw_member_null(b, "logprobs");
        return true;
    }
    if (w->at == 0) {
        td_jw_key(b, "logprobs");
        td_jw_open(b, '{');
    }
    if (!td_write_list(b, w, "content", w->news->n_lp, write_chat_position)) return false;
    td_jw_close(b, '}');
    return true;
}

/* ---- completions: parallel lists over the prompt's positions (echo) and the generated ones ---- */

/* Positions of the prompt that are told: those of an echo. prompt_logprobs has the others. */
static size_t n_of_prompt(const td_writing *w) {
    return w->choice->generation->req.shown.echo ? w->news->n_prompt_lp : 0;
}

/* [1 + top_logprobs] of a position */
static const td_token_logprob *position_at(const td_writing *w, size_t i) {
    size_t stride = 1 + w->choice->generation->req.shown.top_logprobs, n = n_of_prompt(w);
    return i < n ? w->news->prompt_lp + i * stride : w->news->lp + (i - n) * stride;
}

static void write_position_token(td_jbuf *b, const td_writing *w, size_t i) {
    write_token(b, w->choice->generation, position_at(w, i)->id);
}

static void write_position_logprob(td_jbuf *b, const td_writing *w, size_t i) {
    td_write_logprob(b, position_at(w, i)->logprob);
}

/* {token: logprob}, best first; the token itself is among them. Tokens whose bytes are the same appear once. */
static void write_position_top(td_jbuf *b, const td_writing *w, size_t i) {
    const td_generation    *g = w->choice->generation;
    const td_token_logprob *at = position_at(w, i);
    size_t                  stride = 1 + g->req.shown.top_logprobs;
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
        for (size_t m = 0; m < n && !again && !g->req.shown.tokens_as_ids; m++)
            again = seen_len[m] == seen_len[n] && !memcmp(seen[m], seen[n], seen_len[n]);
        if (again) continue;
        n++;
        write_token(b, g, t->id);
        td_jbuf_puts(b, ":");
        td_write_logprob(b, t->logprob);
    }
    td_jw_close(b, '}');
}

/* Where the text of a position's token begins, in characters. */
static void write_position_offset(td_jbuf *b, const td_writing *w, size_t i) {
    td_choice           *c = w->choice;
    const td_generation *g = c->generation;
    td_jw_int(b, (int64_t)(c->text_chars > c->lead_chars ? c->text_chars - c->lead_chars : 0));
    /* Special tokens take room in the text only where they are shown: in a text prompt, or when not skipped. */
    size_t      len;
    bool        special, of_prompt = i < n_of_prompt(w);
    const char *bytes = td_token_bytes(g, position_at(w, i)->id, &len, &special);
    bool        shown = !special || (of_prompt && td_choice_prompt(c)->text) || !g->req.shown.skips_special_tokens;
    c->text_chars += shown ? count_chars(bytes, len) : 0;
}

bool td_write_completion_logprobs(td_jbuf *b, td_writing *w) {
    static const struct {
        const char *key;
        void (*entry)(td_jbuf *b, const td_writing *w, size_t i);
    } LISTS[] = {{"tokens", write_position_token},
                 {"token_logprobs", write_position_logprob},
                 {"top_logprobs", write_position_top},
                 {"text_offset", write_position_offset}};
    size_t n = n_of_prompt(w) + w->news->n_lp, n_lists = sizeof LISTS / sizeof *LISTS;
    if (!w->choice->generation->req.shown.logprobs) {
        td_jw_member_null(b, "logprobs");
        return true;
    }
    if (w->list == 0 && w->at == 0) {
        td_jw_key(b, "logprobs");
        td_jw_open(b, '{');
    }
    while (w->list < n_lists) {
        if (!td_write_list(b, w, LISTS[w->list].key, n, LISTS[w->list].entry)) return false;
        w->list++;
    }
    td_jw_close(b, '}');
    return true;
}

/* ---- both: prompt_logprobs as vLLM has them, a list of null (nothing predicts the first token) and of objects ---- */

/* {id: {logprob, rank, decoded_token}}: the prompt's own token, then the best ones. The rank of a token that is not among
 * the best is null. */
static void write_prompt_position(td_jbuf *b, const td_writing *w, size_t i) {
    const td_generation    *g = w->choice->generation;
    size_t                  top = g->req.shown.top_prompt_logprobs, own_rank = 0;
    const td_token_logprob *at = w->news->prompt_lp + i * (1 + top);
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

bool td_write_prompt_logprobs(td_jbuf *b, td_writing *w) {
    if (!w->choice->generation->req.shown.prompt_logprobs) return true;
    return td_write_list(b, w, "prompt_logprobs", w->news->n_prompt_lp, write_prompt_position);
}

/* ---- completions: the text ---- */

/* Whether a tokenizer has all ids of a prompt. A model may have more. */
static bool has_texts(const td_tokenizer *tok, const td_api_prompt *p) {
    size_t len, i = 0;
    bool   special;
    while (tok && i < p->n_ids && td_tokenizer_token(tok, p->ids[i], &len, &special)) i++;
    return tok && i == p->n_ids;
}

/* Characters of a decoded prompt (BOS) that its text does not begin with. */
static size_t count_lead(const td_tokenizer *tok, const td_api_prompt *p, td_jbuf *b) {
    size_t at = 0, bytes = 0, chars = 0;
    while (at < p->n_ids) {
        char     *decoded;
        size_t    len;
        td_status st = td_decode_some(tok, p->ids, p->n_ids, false, &at, &decoded, &len);
        b->failed = b->failed || st != TD_OK;
        if (st != TD_OK) return 0;
        bytes += len;
        chars += count_chars(decoded, len);
        free(decoded);
    }
    return bytes > p->text_len ? chars - count_chars(p->text, p->text_len) : 0;
}

/* Set what an echo shows of the prompt: its text, as it came or of its ids. */
static void begin_echo(td_choice *c, td_jbuf *b) {
    const td_generation *g = c->generation;
    const td_api_prompt *p = td_choice_prompt(c);
    bool                 in_texts = has_texts(g->all->tokenizer, p);
    if (!g->req.shown.echo || !g->all->tokenizer) return;
    c->echo = p->text ? p->text_len : in_texts ? p->n_ids : 0;
    if (p->text && in_texts && g->req.shown.logprobs) c->lead_chars = count_lead(g->all->tokenizer, p, b);
}

/* Write on the prompt, w->at of its bytes or ids. */
static bool write_echo(td_jbuf *b, td_writing *w) {
    const td_generation *g = w->choice->generation;
    const td_api_prompt *p = td_choice_prompt(w->choice);
    if (p->text) return td_write_slices(b, w, p->text, w->choice->echo, &w->at);
    while (w->at < w->choice->echo) {
        char  *text;
        size_t len;
        if (td_decode_some(g->all->tokenizer, p->ids, p->n_ids, g->req.shown.skips_special_tokens, &w->at, &text, &len) !=
            TD_OK) {
            b->failed = true;
            return true;
        }
        td_jw_chars(b, text, len);
        free(text);
        if (b->len >= w->full) return false;
    }
    return true;
}

bool td_write_completion_text(td_jbuf *b, td_writing *w) {
    enum { BEGIN, ECHO, GENERATED };
    if (w->list == BEGIN) {
        begin_echo(w->choice, b);
        td_jw_key(b, "text");
        td_jw_open(b, '"');
        w->list = ECHO;
    }
    if (w->list == ECHO) {
        if (!write_echo(b, w)) return false;
        w->list = GENERATED;
        w->at = 0;
    }
    if (!td_write_slices(b, w, w->news->text.data, w->news->text.len, &w->at)) return false;
    td_jw_close(b, '"');
    return true;
}
