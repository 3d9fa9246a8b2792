/* /generate: the JSON of answers and of a stream's events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "server/sglang/generate.h"

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- one choice ---- */

/* Why the choice ended; null while it runs. */
static void write_finish(td_jbuf *b, const td_choice *c, const td_choice_state *st) {
    static const char *const type[] = {
        [TD_FINISH_STOP] = "stop", [TD_FINISH_LENGTH] = "length", [TD_FINISH_ABORT] = "abort"};
    td_jw_key(b, "finish_reason");
    if (st->finish == TD_FINISH_NONE || st->finish == TD_FINISH_ERROR) {
        td_jw_null(b);
        return;
    }
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", type[st->finish]);
    if (st->finish == TD_FINISH_STOP && st->stop_reason)
        td_jw_member_str(b, "matched", st->stop_reason);
    else if (st->finish == TD_FINISH_STOP && st->stop_token != UINT32_MAX)
        td_jw_member_int(b, "matched", st->stop_token);
    else if (st->finish == TD_FINISH_LENGTH)
        td_jw_member_int(b, "length", td_api_of_prompt(&c->generation->req, c->index / c->generation->req.n)->length.max);
    else if (st->finish == TD_FINISH_ABORT)
        td_jw_member_str(b, "message", "Ended early, as /abort_request asked for.");
    td_jw_close(b, '}');
}

/* [log-probability, id, text or null] */
static void write_token(td_jbuf *b, const td_generation *g, const td_token_logprob *t) {
    const td_generate_state *own = g->req.own;
    size_t                   len;
    bool                     special;
    const char              *bytes = td_token_bytes(g, t->id, &len, &special);
    td_jw_open(b, '[');
    td_write_logprob(b, t->logprob);
    td_jw_int(b, t->id);
    if (own->logprob_texts)
        td_jw_text(b, bytes, len);
    else
        td_jw_null(b);
    td_jw_close(b, ']');
}

static const td_token_logprob *position_at(const td_writing *w, const td_token_logprob *lp, size_t i) {
    return lp + i * (1 + w->choice->generation->req.shown.top_logprobs);
}

static void write_top(td_jbuf *b, const td_writing *w, const td_token_logprob *at) {
    const td_generation *g = w->choice->generation;
    if (at[1].id == TD_LP_NONE) { /* the first of the prompt: nothing predicts it */
        td_jw_null(b);
        return;
    }
    td_jw_open(b, '[');
    for (size_t k = 1; k <= g->req.shown.top_logprobs && at[k].id != TD_LP_NONE; k++) write_token(b, g, &at[k]);
    td_jw_close(b, ']');
}

/* The prompt's position that the i-th entry of its lists is of. */
static const td_token_logprob *input_at(const td_writing *w, size_t i) {
    const td_generate_state *own = w->choice->generation->req.own;
    return position_at(w, w->news->prompt_lp, own->logprob_start + i);
}

static void write_input_token(td_jbuf *b, const td_writing *w, size_t i) {
    write_token(b, w->choice->generation, input_at(w, i));
}

static void write_input_top(td_jbuf *b, const td_writing *w, size_t i) {
    write_top(b, w, input_at(w, i));
}

static void write_output_token(td_jbuf *b, const td_writing *w, size_t i) {
    write_token(b, w->choice->generation, position_at(w, w->news->lp, i));
}

static void write_output_top(td_jbuf *b, const td_writing *w, size_t i) {
    write_top(b, w, position_at(w, w->news->lp, i));
}

/* Lists of the tokens themselves, and, if asked for, of the top ones; first over the prompt, then over the answer. */
static bool write_positions(td_jbuf *b, td_writing *w) {
    static const struct {
        const char *key;
        bool        of_prompt, of_top;
        void (*entry)(td_jbuf *b, const td_writing *w, size_t i);
    } LISTS[] = {{"input_token_logprobs", true, false, write_input_token},
                 {"input_top_logprobs", true, true, write_input_top},
                 {"output_token_logprobs", false, false, write_output_token},
                 {"output_top_logprobs", false, true, write_output_top}};
    const td_api_request    *r = &w->choice->generation->req;
    const td_generate_state *own = r->own;
    size_t n_input = w->news->n_prompt_lp > own->logprob_start ? w->news->n_prompt_lp - own->logprob_start : 0;
    for (; r->shown.logprobs && w->list < sizeof LISTS / sizeof *LISTS; w->list++) {
        if (LISTS[w->list].of_top && r->shown.top_logprobs == 0) continue;
        size_t n = LISTS[w->list].of_prompt ? n_input : w->news->n_lp;
        if (!td_write_list(b, w, LISTS[w->list].key, n, LISTS[w->list].entry)) return false;
    }
    return true;
}

/* Write the text so far. w->news has all of it, from its beginning; an event of several choices says which one it is of. */
static bool begin_choice(td_jbuf *b, td_writing *w) {
    const td_generation     *g = w->choice->generation;
    const td_generate_state *own = g->req.own;
    if (w->at == 0) {
        td_jw_open(b, '{');
        if (g->req.stream.on && own->is_list) td_jw_member_int(b, "index", w->choice->index);
        td_jw_key(b, "text");
        td_jw_open(b, '"');
    }
    if (!td_write_slices(b, w, w->news->text.data, w->news->text.len, &w->at)) return false;
    td_jw_close(b, '"');
    return true;
}

static void write_id(td_jbuf *b, const td_writing *w, size_t i) {
    td_jw_int(b, w->news->tokens[i]);
}

static bool write_ids(td_jbuf *b, td_writing *w) {
    return td_write_list(b, w, "output_ids", w->news->n_tokens, write_id);
}

static bool begin_meta(td_jbuf *b, td_writing *w) {
    const td_choice_state *st = &w->state;
    td_jw_key(b, "meta_info");
    td_jw_open(b, '{');
    td_jw_member_str(b, "id", w->choice->generation->id);
    write_finish(b, w->choice, st);
    td_jw_member_int(b, "prompt_tokens", (int64_t)st->used.prompt);
    td_jw_member_int(b, "completion_tokens", (int64_t)st->used.completion);
    td_jw_member_int(b, "cached_tokens", (int64_t)st->used.cached);
    return true;
}

static bool end_choice(td_jbuf *b, td_writing *w) {
    const td_generate_state *own = w->choice->generation->req.own;
    if (w->state.finish != TD_FINISH_NONE) {
        td_jw_key(b, "e2e_latency");
        td_jw_real(b, (double)(now_ns() - own->begun_ns) / 1e9, 6);
    }
    td_jw_close(b, '}');
    td_jw_close(b, '}');
    return true;
}

static bool begin_answer(td_jbuf *b, td_writing *w) {
    const td_generate_state *own = w->choice->generation->req.own;
    if (own->is_list) td_jw_open(b, '[');
    return true;
}

static bool end_answer(td_jbuf *b, td_writing *w) {
    const td_generate_state *own = w->choice->generation->req.own;
    if (own->is_list) td_jw_close(b, ']');
    return true;
}

static const td_answer_parts PARTS = {.begin = {begin_answer},
                                      .choice = {begin_choice, write_ids, begin_meta, write_positions, end_choice},
                                      .end = {end_answer}};

static bool write_answer(td_generation *g, td_jbuf *b) {
    return td_write_parts(g, &PARTS, b);
}

/* ---- streams ---- */

static void begin_stream(td_generation *g, td_jbuf *b) {
    td_generate_state *own = g->req.own;
    own->told = calloc(g->n_choices, sizeof *own->told);
    own->n_told = own->told ? g->n_choices : 0;
    b->failed = b->failed || !own->told;
}

/* What the choice has said so far, as if it had come at once. */
static td_news all_told(const td_generation *g, td_generate_told *t) {
    size_t position_bytes = (1 + g->req.shown.top_logprobs) * sizeof(td_token_logprob);
    return (td_news){.text = t->text,
                     .tokens = (uint32_t *)(void *)t->tokens.data,
                     .n_tokens = t->tokens.len / sizeof(uint32_t),
                     .lp = (td_token_logprob *)(void *)t->lp.data,
                     .n_lp = t->lp.len / position_bytes,
                     .prompt_lp = (td_token_logprob *)(void *)t->prompt_lp.data,
                     .n_prompt_lp = t->prompt_lp.len / position_bytes};
}

static td_generate_told *told_of(td_choice *c) {
    td_generate_state *own = c->generation->req.own;
    return own->told ? &own->told[c->index] : NULL;
}

static void write_event(td_choice *c, const td_choice_state *st, td_jbuf *b) {
    td_generate_told *t = told_of(c);
    if (!t) return;
    td_news all = all_told(c->generation, t);
    td_jbuf_puts(b, "data: ");
    for (const td_part_fn *part = PARTS.choice; *part; part++) td_write_part(b, *part, c, st, &all);
    td_jbuf_puts(b, "\n\n");
    b->failed = b->failed || t->text.failed || t->tokens.failed || t->lp.failed || t->prompt_lp.failed;
}

static void open_choice(td_choice *c, const td_choice_state *st, const td_news *n, td_jbuf *b) {
    td_generate_told *t = told_of(c);
    (void)st;
    (void)b;
    if (!t) return;
    td_jbuf_put(&t->prompt_lp, n->prompt_lp,
                n->n_prompt_lp * (1 + c->generation->req.shown.top_logprobs) * sizeof *n->prompt_lp);
}

/* Write a piece; the last one goes with what ended the choice. */
static void write_piece(td_choice *c, const td_choice_state *st, const td_piece *p, td_jbuf *b) {
    td_generate_told *t = told_of(c);
    if (!t) return;
    td_jbuf_put(&t->text, p->text, p->len);
    if (p->with) {
        td_jbuf_put(&t->tokens, p->with->tokens, p->with->n_tokens * sizeof *p->with->tokens);
        td_jbuf_put(&t->lp, p->with->lp, p->with->n_lp * (1 + c->generation->req.shown.top_logprobs) * sizeof *p->with->lp);
    }
    if (st->finish == TD_FINISH_NONE) write_event(c, st, b);
}

static void end_stream(td_generation *g, td_jbuf *b) {
    (void)g;
    td_jbuf_puts(b, "data: [DONE]\n\n");
}

static void fail_stream(td_generation *g, td_jbuf *b) {
    td_jbuf_puts(b, "data: ");
    td_api_error_write(b, &g->error);
    td_jbuf_puts(b, "\n\n");
    end_stream(g, b);
}

/* ---- the request ---- */

static td_status read_generate(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err) {
    td_generate_state *own = r->own = calloc(1, sizeof *own);
    td_status          st = TD_EINVAL;
    if (own) {
        own->begun_ns = now_ns();
        st = td_generate_read(body, with, own, r, err);
    } else {
        td_api_no_memory(err);
    }
    json_decref(body);
    if (st != TD_OK) td_api_rename_error(td_api_generate.names, err);
    return st;
}

/* SGLang's sentences; the prompt's field is the one that was sent. */
static void say_too_long(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err) {
    const char *field = r->prompts[0].text ? "text" : "input_ids";
    strcpy(err->param, field);
    if (prompt_tokens >= context)
        snprintf(err->message, sizeof err->message,
                 "The input (%zu tokens in '%s') is longer than the model's context length (%u tokens).", prompt_tokens,
                 field, context);
    else
        snprintf(err->message, sizeof err->message,
                 "Requested token count exceeds the model's maximum context length of %u tokens. You requested a total of "
                 "%llu tokens: %zu tokens from '%s' and %u tokens by 'max_new_tokens'.",
                 context, (unsigned long long)prompt_tokens + r->length.max, prompt_tokens, field, r->length.max);
}

static void free_own(void *p) {
    td_generate_state *own = p;
    for (size_t i = 0; i < own->n_told; i++) {
        td_jbuf_free(&own->told[i].text);
        td_jbuf_free(&own->told[i].tokens);
        td_jbuf_free(&own->told[i].lp);
        td_jbuf_free(&own->told[i].prompt_lp);
    }
    free(own->told);
    free(own);
}

static const td_api_name NAMES[] = {
    {"max_tokens", "max_new_tokens"}, {"min_tokens", "min_new_tokens"}, {"seed", "sampling_seed"}, {0}};

const td_api td_api_generate = {.id_prefix = "",
                                .names = NAMES,
                                .read = read_generate,
                                .say_too_long = say_too_long,
                                .free_own = free_own,
                                .write_error = td_api_error_write,
                                .write_answer = write_answer,
                                .begin = begin_stream,
                                .gathers = true,
                                .open = open_choice,
                                .piece = write_piece,
                                .finish = write_event,
                                .end = end_stream,
                                .fail = fail_stream};
