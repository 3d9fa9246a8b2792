/*
 * The stream of a generation: news are taken from the choices as they come, divided into pieces of --stream-interval tokens,
 * and handed to the writers of the API.
 */
#include "server/answer/answer_stream.h"

#include <math.h>

#define LOGPROB_FLOOR (-9999.0) /* stands for minus infinity, which JSON does not have; as in other servers */
#define OUT_MAX \
    ((size_t)128 << 10) /* bytes to send at once, about: one choice after another is written until so many wait */

const char *td_token_bytes(const td_generation *g, uint32_t id, size_t *len, bool *special) {
    *len = 0;
    *special = false;
    const char *bytes = g->all->tokenizer ? td_tokenizer_token(g->all->tokenizer, id, len, special) : NULL;
    return bytes ? bytes : "";
}

void td_write_logprob(td_jbuf *b, float logprob) {
    if (isnan(logprob))
        td_jw_null(b);
    else
        td_jw_real(b, logprob < LOGPROB_FLOOR ? LOGPROB_FLOOR : (double)logprob, 9);
}

/* The news of n tokens from `from` on, with all of the text. */
static td_news part_of(const td_generation *g, const td_news *all, size_t from, size_t n) {
    td_news part = *all;
    size_t  stride = 1 + g->req.shown.top_logprobs;
    part.tokens = all->tokens + from;
    part.n_tokens = n;
    part.lp = all->n_lp ? all->lp + from * stride : NULL;
    part.n_lp = all->n_lp ? n : 0;
    part.n_prompt_lp = 0; /* the prompt's went with the opening */
    return part;
}

/* Whether the client sees these tokens even without a text. */
static bool shows_tokens(const td_generation *g, const td_news *part) {
    return part->n_lp || (part->n_tokens && g->req.shown.token_ids);
}

/* Write news that no parser divides. last: there are no more. */
static void write_plain(td_choice *c, const td_choice_state *st, const td_news *part, size_t from, size_t end, bool last,
                        td_jbuf *b) {
    const td_generation *g = c->generation;
    if (end == from && !shows_tokens(g, part)) return;
    g->req.api->piece(c, st,
                      &(td_piece){.kind = TD_ANSWER_CONTENT,
                                  .text = part->text.data ? part->text.data + from : "",
                                  .len = end - from,
                                  .with = part,
                                  .ends = st->finish != TD_FINISH_NONE && last},
                      b);
}

/* Write the deltas from `from` to `end`, each as a piece, and with them the tokens from `token` to `token_end`. */
static void write_deltas(td_choice *c, const td_choice_state *st, const td_news *all, size_t from, size_t end, size_t token,
                         size_t token_end, td_jbuf *b) {
    const td_generation *g = c->generation;
    for (size_t i = from; i < end; i++) {
        const td_delta *d = &all->deltas[i];
        const char     *text = all->text.data + d->from;
        bool            mark = d->kind == TD_ANSWER_CALL_END || d->kind == TD_ANSWER_CALL_DROPPED;
        size_t          until = d->token_end < token_end ? d->token_end : token_end;
        if (until < token) until = token; /* the token of several deltas went with the first */
        td_news part = part_of(g, all, token, until - token);
        g->req.api->piece(c, st,
                          &(td_piece){.kind = d->kind,
                                      .call = d->call,
                                      .text = mark ? NULL : text,
                                      .len = d->len,
                                      .id = d->id_len ? text + d->len : NULL,
                                      .id_len = d->id_len,
                                      .with = shows_tokens(g, &part) ? &part : NULL,
                                      .ends = st->finish != TD_FINISH_NONE && i + 1 == all->n_deltas &&
                                              token_end == all->n_tokens && until == token_end},
                          b);
        token = until;
    }
    td_news rest = part_of(g, all, token, token_end - token);
    if (shows_tokens(g, &rest)) g->req.api->piece(c, st, &(td_piece){.kind = TD_ANSWER_CONTENT, .with = &rest}, b);
}

void td_write_pieces(td_choice *c, const td_choice_state *at, const td_news *all, size_t step, td_jbuf *b) {
    const td_generation *g = c->generation;
    size_t               token = 0, text = 0, delta = 0;
    while (token < all->n_tokens || delta < all->n_deltas || (!c->parser && text < all->text.len)) {
        size_t          n = all->n_tokens - token < step ? all->n_tokens - token : step;
        bool            last = token + n == all->n_tokens;
        td_choice_state st = *at;
        st.used.completion -= all->n_tokens - token - n;
        if (c->parser) {
            size_t end = delta;
            while (end < all->n_deltas && (last || all->deltas[end].token < token + n)) end++;
            write_deltas(c, &st, all, delta, end, token, token + n, b);
            delta = end;
        } else {
            size_t  end = last ? all->text.len : all->text_end[token + n - 1];
            td_news part = part_of(g, all, token, n);
            write_plain(c, &st, &part, text, end, last, b);
            text = end;
        }
        token += n;
    }
}

static void write_choice(td_choice *c, const td_choice_state *st, const td_news *news, td_jbuf *b) {
    const td_api *api = c->generation->req.api;
    if (!c->opened && api->open) api->open(c, st, news, b);
    c->opened = true;
    /* News that gathered while this thread was busy or the client slow are divided as when they are sent at once. */
    td_write_pieces(c, st, news, api->gathers ? SIZE_MAX : c->generation->all->stream_interval, b);
    if (st->finish == TD_FINISH_NONE) return;
    if (api->finish && !c->finish_written) api->finish(c, st, b);
    c->closed = true;
}

/* Write the news of a choice, if it has any. */
static void take_and_write(td_choice *c, td_jbuf *b) {
    pthread_mutex_t *lock = &c->generation->lock;
    td_news          news;
    if (c->closed) return;
    pthread_mutex_lock(lock);
    td_choice_take(c, &news);
    td_choice_state st = td_choice_get_state(c);
    bool            started = c->started;
    pthread_mutex_unlock(lock);
    if (st.finish == TD_FINISH_ERROR) st.finish = TD_FINISH_NONE; /* the error follows */
    if (started) write_choice(c, &st, &news, b);
    td_news_free(&news);
}

/* Write choice after choice until OUT_MAX bytes wait; the others come first next time. @return whether all were written. */
static bool write_choices(td_generation *g) {
    for (size_t i = 0; i < g->n_choices; i++) {
        if (g->out.len > OUT_MAX) return false;
        take_and_write(&g->choices[g->out_next], &g->out);
        g->out_next = (g->out_next + 1) % g->n_choices;
    }
    return true;
}

void td_write_stream(td_generation *g) {
    const td_api *api = g->req.api;
    pthread_mutex_lock(&g->lock);
    g->ready = g->has_error || g->aborted;
    g->unsent = 0;
    td_answer_hold_set(&g->unsent_hold, 0);
    pthread_mutex_unlock(&g->lock);

    bool all = write_choices(g);
    td_answer_hold_force(&g->out_hold, g->out.room);
    size_t n_closed = 0;
    for (size_t i = 0; i < g->n_choices; i++) n_closed += g->choices[i].closed;

    pthread_mutex_lock(&g->lock);
    bool has_error = g->has_error;
    g->ready = g->ready || !all;
    pthread_mutex_unlock(&g->lock);
    if (n_closed == g->n_choices)
        api->end(g, &g->out);
    else if (has_error && all)
        api->fail(g, &g->out);
    else
        return;
    g->out_ended = true;
}
