/* /v1/chat/completions and /v1/completions: the JSON of whole answers, and of the chunks of a stream. */
#include <string.h>

#include "server/openai/completions.h"
#include "server/request/api_read.h"

static void write_usage(td_jbuf *b, td_usage u) {
    td_jw_key(b, "usage");
    td_jw_open(b, '{');
    td_jw_member_int(b, "prompt_tokens", (int64_t)u.prompt);
    td_jw_member_int(b, "completion_tokens", (int64_t)u.completion);
    td_jw_member_int(b, "total_tokens", (int64_t)(u.prompt + u.completion));
    td_jw_key(b, "prompt_tokens_details");
    td_jw_open(b, '{');
    td_jw_member_int(b, "cached_tokens", (int64_t)u.cached);
    td_jw_close(b, '}');
    if (u.reasons) {
        td_jw_key(b, "completion_tokens_details");
        td_jw_open(b, '{');
        td_jw_member_int(b, "reasoning_tokens", (int64_t)u.reasoning);
        td_jw_close(b, '}');
    }
    td_jw_close(b, '}');
}

static void write_head(td_jbuf *b, const td_generation *g, const char *object) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "id", g->id);
    td_jw_member_str(b, "object", object);
    td_jw_member_int(b, "created", g->created_s);
    td_jw_member_str(b, "model", g->req.model ? g->req.model : g->all->model_name);
}

static void write_finish(td_jbuf *b, const td_choice_state *st) {
    /* An error is no finish reason: it is the answer, or an event of its own. "abort" as SGLang says it. */
    static const char *const reason[] = {
        [TD_FINISH_STOP] = "stop", [TD_FINISH_LENGTH] = "length", [TD_FINISH_ABORT] = "abort", [TD_FINISH_ERROR] = NULL};
    td_jw_member_str(b, "finish_reason", st->finish == TD_FINISH_STOP && st->n_calls ? "tool_calls" : reason[st->finish]);
    td_jw_key(b, "matched_stop");
    if (st->finish == TD_FINISH_STOP && st->stop_reason)
        td_jw_str(b, st->stop_reason);
    else if (st->finish == TD_FINISH_STOP && st->stop_token != UINT32_MAX)
        td_jw_int(b, st->stop_token);
    else
        td_jw_null(b);
}

/* With usage in every chunk, a chunk without a token of its own would count the same as the one before it. So the finish is
 * written with the last piece, unless a token without a text, as an end of sequence, comes behind that. */
static void write_piece_finish(td_jbuf *b, td_choice *c, const td_choice_state *st, const td_piece *p) {
    c->finish_written = p->ends && c->generation->req.stream.continuous_usage;
    if (c->finish_written)
        write_finish(b, st);
    else
        td_jw_member_null(b, "finish_reason");
}

static void write_token_id(td_jbuf *b, const td_writing *w, size_t i) {
    td_jw_int(b, w->news->tokens[i]);
}

static bool write_token_ids(td_jbuf *b, td_writing *w) {
    if (!w->choice->generation->req.shown.token_ids) return true;
    return td_write_list(b, w, "token_ids", w->news->n_tokens, write_token_id);
}

static void write_prompt_id(td_jbuf *b, const td_writing *w, size_t i) {
    td_jw_int(b, td_choice_prompt(w->choice)->ids[i]);
}

/* The ids of a choice's prompt, where ids are shown. */
static bool write_prompt_ids(td_jbuf *b, td_writing *w) {
    td_choice *c = w->choice;
    if (!c->generation->req.shown.token_ids || (w->at == 0 && c->prompt_written)) return true;
    c->prompt_written = true;
    return td_write_list(b, w, "prompt_token_ids", td_choice_prompt(c)->n_ids, write_prompt_id);
}

/* ---- whole answers ---- */

static bool begin_answer(td_jbuf *b, td_writing *w) {
    const td_generation *g = w->choice->generation;
    write_head(b, g, g->req.form == TD_READ_CHAT ? "chat.completion" : "text_completion");
    td_jw_key(b, "choices");
    td_jw_open(b, '[');
    return true;
}

static bool begin_choice(td_jbuf *b, td_writing *w) {
    td_jw_open(b, '{');
    td_jw_member_int(b, "index", w->choice->index);
    return true;
}

static bool begin_message(td_jbuf *b, td_writing *w) {
    (void)w;
    td_jw_key(b, "message");
    td_jw_open(b, '{');
    td_jw_member_str(b, "role", "assistant");
    return true;
}

static bool end_message(td_jbuf *b, td_writing *w) {
    (void)w;
    td_jw_close(b, '}');
    return true;
}

static bool end_choice(td_jbuf *b, td_writing *w) {
    write_finish(b, &w->state);
    td_jw_close(b, '}');
    return true;
}

static bool end_choices(td_jbuf *b, td_writing *w) {
    td_jw_close(b, ']');
    write_usage(b, td_generation_usage(w->choice->generation));
    return true;
}

static bool end_answer(td_jbuf *b, td_writing *w) {
    td_api_write_warnings(b, &w->choice->generation->req);
    td_jw_close(b, '}');
    return true;
}

/* What a chat shows of its one prompt is beside the choices, as vLLM has it. */
static bool write_chat_answer(td_generation *g, td_jbuf *b) {
    static const td_answer_parts PARTS = {
        .begin = {begin_answer},
        .choice = {begin_choice, begin_message, td_write_content, td_write_reasoning, td_write_calls, end_message,
                   td_write_chat_logprobs, write_token_ids, end_choice},
        .end = {end_choices, td_write_prompt_logprobs, write_prompt_ids, end_answer}};
    return td_write_parts(g, &PARTS, b);
}

static bool write_text_answer(td_generation *g, td_jbuf *b) {
    static const td_answer_parts PARTS = {
        .begin = {begin_answer},
        .choice = {begin_choice, td_write_completion_text, td_write_completion_logprobs, td_write_prompt_logprobs,
                   write_prompt_ids, write_token_ids, end_choice},
        .end = {end_choices, end_answer}};
    return td_write_parts(g, &PARTS, b);
}

/* ---- chunks ---- */

#define CHAT_CHUNK "chat.completion.chunk"
#define TEXT_CHUNK "text_completion"

static void begin_chunk(td_jbuf *b, const td_choice *c, const char *object) {
    td_jbuf_puts(b, "data: ");
    write_head(b, c->generation, object);
    td_jw_key(b, "choices");
    td_jw_open(b, '[');
    td_jw_open(b, '{');
    td_jw_member_int(b, "index", c->index);
}

static void end_chunk(td_jbuf *b, td_choice *c, const td_choice_state *st, bool with_warnings) {
    const td_api_request *r = &c->generation->req;
    if (r->form == TD_READ_COMPLETION) td_write_part(b, write_prompt_ids, c, st, NULL);
    td_jw_close(b, '}');
    td_jw_close(b, ']');
    if (r->form == TD_READ_CHAT && c->index == 0) td_write_part(b, write_prompt_ids, c, st, NULL);
    if (r->stream.continuous_usage)
        write_usage(b, st->used);
    else if (r->stream.usage)
        td_jw_member_null(b, "usage");
    if (with_warnings) td_api_write_warnings(b, r);
    td_jw_close(b, '}');
    td_jbuf_puts(b, "\n\n");
}

static void begin_delta(td_jbuf *b, const td_choice *c) {
    begin_chunk(b, c, CHAT_CHUNK);
    td_jw_key(b, "delta");
    td_jw_open(b, '{');
}

static void open_chat(td_choice *c, const td_choice_state *st, const td_news *news, td_jbuf *b) {
    (void)news;
    begin_delta(b, c);
    td_jw_member_str(b, "role", "assistant");
    td_jw_member_str(b, "content", "");
    td_jw_close(b, '}');
    td_jw_member_null(b, "logprobs");
    td_jw_member_null(b, "finish_reason");
    td_choice_state before_tokens = *st;
    before_tokens.used.completion = before_tokens.used.reasoning = 0;
    end_chunk(b, c, &before_tokens, c->index == 0);
}

static void write_chat_piece(td_choice *c, const td_choice_state *st, const td_piece *p, td_jbuf *b) {
    if (!p->text && !p->with) return; /* the end of a call */
    begin_delta(b, c);
    if (p->text) td_write_delta(b, p);
    td_jw_close(b, '}');
    if (p->with) {
        td_write_part(b, td_write_chat_logprobs, c, st, p->with);
        td_write_part(b, write_token_ids, c, st, p->with);
    } else {
        td_jw_member_null(b, "logprobs");
    }
    write_piece_finish(b, c, st, p);
    end_chunk(b, c, st, false);
}

static void finish_chat(td_choice *c, const td_choice_state *st, td_jbuf *b) {
    begin_delta(b, c);
    td_jw_close(b, '}');
    td_jw_member_null(b, "logprobs");
    write_finish(b, st);
    end_chunk(b, c, st, false);
}

/* Write the prompt if it is echoed, with its log-probabilities. */
static void open_text(td_choice *c, const td_choice_state *st, const td_news *news, td_jbuf *b) {
    if (!c->generation->req.shown.echo) return;
    td_news prompt = {.prompt_lp = news->prompt_lp, .n_prompt_lp = news->n_prompt_lp};
    begin_chunk(b, c, TEXT_CHUNK);
    td_write_part(b, td_write_completion_text, c, st, &prompt);
    if (prompt.n_prompt_lp)
        td_write_part(b, td_write_completion_logprobs, c, st, &prompt);
    else
        td_jw_member_null(b, "logprobs");
    td_jw_member_null(b, "finish_reason");
    end_chunk(b, c, st, c->index == 0);
}

static void write_text_piece(td_choice *c, const td_choice_state *st, const td_piece *p, td_jbuf *b) {
    begin_chunk(b, c, TEXT_CHUNK);
    td_jw_key(b, "text");
    td_jw_text(b, p->text, p->len);
    td_write_part(b, td_write_completion_logprobs, c, st, p->with);
    td_write_part(b, write_token_ids, c, st, p->with);
    write_piece_finish(b, c, st, p);
    end_chunk(b, c, st, false);
}

static void finish_text(td_choice *c, const td_choice_state *st, td_jbuf *b) {
    begin_chunk(b, c, TEXT_CHUNK);
    td_jw_member_str(b, "text", "");
    td_jw_member_null(b, "logprobs");
    write_finish(b, st);
    end_chunk(b, c, st, false);
}

static void write_end(td_generation *g, const char *object, td_jbuf *b) {
    if (g->req.stream.usage) {
        td_jbuf_puts(b, "data: ");
        write_head(b, g, object);
        td_jw_key(b, "choices");
        td_jw_open(b, '[');
        td_jw_close(b, ']');
        write_usage(b, td_generation_usage(g));
        td_jw_close(b, '}');
        td_jbuf_puts(b, "\n\n");
    }
    td_jbuf_puts(b, "data: [DONE]\n\n");
}

static void end_chat(td_generation *g, td_jbuf *b) {
    write_end(g, CHAT_CHUNK, b);
}

static void end_text(td_generation *g, td_jbuf *b) {
    write_end(g, TEXT_CHUNK, b);
}

static void write_stream_error(td_generation *g, td_jbuf *b) {
    td_jbuf_puts(b, "data: ");
    td_api_error_write(b, &g->error);
    td_jbuf_puts(b, "\n\n");
}

/* ---- the APIs ---- */

static td_status read_chat(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err) {
    return td_api_read_form(TD_READ_CHAT, body, with, r, err);
}

static td_status read_completion(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err) {
    return td_api_read_form(TD_READ_COMPLETION, body, with, r, err);
}

/* The engine calls "prompt" what a chat calls "messages". */
static const td_api_name CHAT_NAMES[] = {{"prompt", "messages"}, {0}};

const td_api td_api_chat = {.id_prefix = "chatcmpl-",
                            .names = CHAT_NAMES,
                            .read = read_chat,
                            .write_error = td_api_error_write,
                            .write_answer = write_chat_answer,
                            .open = open_chat,
                            .piece = write_chat_piece,
                            .finish = finish_chat,
                            .end = end_chat,
                            .fail = write_stream_error};

const td_api td_api_completion = {.id_prefix = "cmpl-",
                                  .read = read_completion,
                                  .write_error = td_api_error_write,
                                  .write_answer = write_text_answer,
                                  .open = open_text,
                                  .piece = write_text_piece,
                                  .finish = finish_text,
                                  .end = end_text,
                                  .fail = write_stream_error};
