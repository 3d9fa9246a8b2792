/* The response object, whole or as the events of a stream; and the API's value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/files/json_text.h"
#include "core/log/log.h"
#include "server/openai/responses.h"

#define ECHO_SLICE ((size_t)8 << 10)

/* ---- the object ---- */

static void write_usage(td_jbuf *b, td_usage u) {
    td_jw_open(b, '{');
    td_jw_member_int(b, "input_tokens", (int64_t)u.prompt);
    td_jw_key(b, "input_tokens_details");
    td_jw_open(b, '{');
    td_jw_member_int(b, "cached_tokens", (int64_t)u.cached);
    td_jw_member_int(b, "cache_write_tokens", 0);
    td_jw_close(b, '}');
    td_jw_member_int(b, "output_tokens", (int64_t)u.completion);
    td_jw_key(b, "output_tokens_details");
    td_jw_open(b, '{');
    td_jw_member_int(b, "reasoning_tokens", (int64_t)u.reasoning);
    td_jw_close(b, '}');
    td_jw_member_int(b, "total_tokens", (int64_t)(u.prompt + u.completion));
    td_jw_close(b, '}');
}

static const td_response_stage QUEUED = {.status = "queued"}, IN_PROGRESS = {.status = "in_progress"};

static td_response_stage failed_by(const td_api_error *err) {
    return (td_response_stage){.status = "failed", .error = err};
}

/* The stage that an answer ended in. A client that ended it early (/abort_request) has cancelled it. */
static td_response_stage stage_of(td_finish finish) {
    if (finish == TD_FINISH_LENGTH)
        return (td_response_stage){.status = "incomplete", .incomplete = "max_output_tokens", .ended = true};
    if (finish == TD_FINISH_ABORT) return (td_response_stage){.status = "cancelled", .ended = true};
    return (td_response_stage){.status = "completed", .ended = true, .completed_s = time(NULL)};
}

/* The parts of the object: what stands before the items, the last of it repeated from the request; the items; what stands
 * behind them. */

static bool write_head(td_jbuf *b, td_writing *w) {
    const td_generation     *g = w->choice->generation;
    const td_response       *own = g->req.own;
    const td_api_request    *r = &g->req;
    const td_response_stage *at = &own->stage;
    td_jw_open(b, '{');
    td_jw_member_str(b, "id", g->id);
    td_jw_member_str(b, "object", "response");
    td_jw_member_int(b, "created_at", g->created_s);
    td_jw_member_str(b, "status", at->status);
    td_jw_key(b, "completed_at");
    if (at->completed_s)
        td_jw_int(b, at->completed_s);
    else
        td_jw_null(b);
    td_jw_key(b, "error");
    if (at->error) {
        td_jw_open(b, '{');
        td_jw_member_str(b, "code", "server_error");
        td_jw_member_str(b, "message", at->error->message);
        td_jw_close(b, '}');
    } else {
        td_jw_null(b);
    }
    td_jw_key(b, "incomplete_details");
    if (at->incomplete) {
        td_jw_open(b, '{');
        td_jw_member_str(b, "reason", at->incomplete);
        td_jw_close(b, '}');
    } else {
        td_jw_null(b);
    }
    td_jw_member_str(b, "model", r->model ? r->model : g->all->model_name);
    td_jbuf_puts(b, ",");
    return true;
}

static bool write_echo(td_jbuf *b, td_writing *w) {
    const td_response *own = w->choice->generation->req.own;
    while (w->at < own->echo_len) {
        size_t left = own->echo_len - w->at, n = left < ECHO_SLICE ? left : ECHO_SLICE;
        if (b->len >= w->full) return false;
        td_jbuf_put(b, own->echo + w->at, n);
        w->at += n;
    }
    td_jw_key(b, "output");
    td_jw_open(b, '[');
    return true;
}

static bool write_tail(td_jbuf *b, td_writing *w) {
    const td_generation *g = w->choice->generation;
    const td_response   *own = g->req.own;
    td_jw_key(b, "usage");
    if (own->stage.ended)
        write_usage(b, td_generation_usage(g));
    else
        td_jw_null(b);
    td_api_write_warnings(b, &g->req);
    td_jw_close(b, '}');
    return true;
}

/* Write the object at once. @param output receives where in it the list of items begins. @param len bytes of that list. */
static void write_response(td_generation *g, td_jbuf *b, size_t *output, size_t *len) {
    td_choice            *c = &g->choices[0];
    const td_choice_state st = {0};
    td_write_part(b, write_head, c, &st, NULL);
    td_write_part(b, write_echo, c, &st, NULL);
    *output = b->len - 1;
    td_write_part(b, td_response_write_items, c, &st, NULL);
    *len = b->len - *output;
    td_write_part(b, write_tail, c, &st, NULL);
}

/* ---- keeping it ---- */

/* The request's items, with ids for those that have none, as JSON; NULL: memory is short. */
static char *dump_input(const td_generation *g) {
    const td_response *own = g->req.own;
    json_t            *item;
    size_t             i;
    int                bad = 0;
    json_array_foreach(own->input, i, item) {
        char number[24], id[TD_RESPONSE_ID_MAX];
        if (json_object_get(item, "id")) continue;
        snprintf(number, sizeof number, "_i%zu", i);
        td_response_item_id(g->id, td_response_item_prefix(json_string_value(json_object_get(item, "type"))), number, id,
                            sizeof id);
        bad |= json_object_set_new(item, "id", json_string(id));
    }
    return bad ? NULL : td_json_dump(own->input, JSON_COMPACT | JSON_REAL_PRECISION(17));
}

/* Keep the response; takes its text. */
static void keep_text(td_generation *g, td_jbuf *text, size_t output, size_t output_len) {
    td_response *own = g->req.own;
    char        *input = text->failed ? NULL : dump_input(g);
    if (!input) {
        td_jbuf_free(text);
        td_warn("request %s: there is no memory to keep the response", g->id);
        return;
    }
    char              *fitted = realloc(text->data, text->len);
    td_stored_response r = {.previous = own->previous,
                            .input = input,
                            .input_len = strlen(input),
                            .text = fitted ? fitted : text->data,
                            .text_len = text->len,
                            .output = output,
                            .output_len = output_len,
                            .background = own->background};
    snprintf(r.id, sizeof r.id, "%.*s", TD_RESPONSE_ID_MAX - 1, g->id);
    own->previous = NULL; /* the store's now */
    if (td_response_store_put(own->store, &r) != TD_OK)
        td_warn("request %s: there is no memory to keep the response", g->id);
}

/* Keep the response in its stage, if it is to be kept. */
static void keep(td_generation *g) {
    const td_response *own = g->req.own;
    td_jbuf            text = {0};
    size_t             output, len;
    if (!own->stores) return;
    write_response(g, &text, &output, &len);
    keep_text(g, &text, output, len);
}

/* ---- whole answers ---- */

void td_response_end(td_generation *g) {
    td_response    *own = g->req.own;
    td_choice      *c = &g->choices[0];
    td_choice_state st = td_choice_get_state(c);
    td_write_pieces(c, &st, &c->news, SIZE_MAX, NULL);
    td_news_free(&c->news); /* the items have it all */
    td_response_close_items(g, st.finish != TD_FINISH_STOP, NULL);
    own->stage = stage_of(st.finish);
    keep(g);
}

static bool write_answer(td_generation *g, td_jbuf *b) {
    static const td_answer_parts PARTS = {.begin = {write_head, write_echo, td_response_write_items}, .end = {write_tail}};
    const td_response           *own = g->req.own;
    if (!own->stage.ended) td_response_end(g);
    return td_write_parts(g, &PARTS, b);
}

void td_response_write_now(td_generation *g, td_jbuf *b) {
    td_response *own = g->req.own;
    size_t       output, len;
    pthread_mutex_lock(&g->lock);
    own->stage = g->choices[0].started ? IN_PROGRESS : QUEUED;
    pthread_mutex_unlock(&g->lock);
    write_response(g, b, &output, &len);
}

void td_response_keep_failed(td_generation *g) {
    td_response *own = g->req.own;
    own->stage = failed_by(&g->error);
    keep(g);
}

/* ---- streams ---- */

static void response_event(td_generation *g, const char *type, td_response_stage at, td_jbuf *b) {
    td_response *own = g->req.own;
    size_t       output, len;
    own->stage = at;
    td_response_begin_event(own, type, b);
    td_jw_key(b, "response");
    write_response(g, b, &output, &len);
    td_response_end_event(b);
}

/* Where the client waits, its request counts as being in progress at once. */
static void begin_stream(td_generation *g, td_jbuf *b) {
    const td_response *own = g->req.own;
    td_response_stage  at = own->background ? QUEUED : IN_PROGRESS;
    response_event(g, "response.created", at, b);
    response_event(g, own->background ? "response.queued" : "response.in_progress", at, b);
}

static void open_stream(td_choice *c, const td_choice_state *st, const td_news *n, td_jbuf *b) {
    const td_response *own = c->generation->req.own;
    (void)st;
    (void)n;
    if (own->background) response_event(c->generation, "response.in_progress", IN_PROGRESS, b);
}

static void write_piece(td_choice *c, const td_choice_state *st, const td_piece *p, td_jbuf *b) {
    (void)st;
    td_response_add_piece(c, p, b);
}

static void finish_stream(td_choice *c, const td_choice_state *st, td_jbuf *b) {
    td_response_close_items(c->generation, st->finish != TD_FINISH_STOP, b);
}

/* The last event, with the response, which is kept if it can be. */
static void last_event(td_generation *g, const char *type, td_response_stage at, bool keeps, td_jbuf *b) {
    td_response *own = g->req.own;
    td_jbuf      text = {0};
    size_t       output, len;
    own->stage = at;
    write_response(g, &text, &output, &len);
    td_response_begin_event(own, type, b);
    td_jw_key(b, "response");
    td_jw_raw(b, text.data, text.len);
    td_response_end_event(b);
    b->failed = b->failed || text.failed;
    if (keeps && own->stores)
        keep_text(g, &text, output, len);
    else
        td_jbuf_free(&text);
}

static void end_stream(td_generation *g, td_jbuf *b) {
    td_response_stage at = stage_of(td_choice_get_state(&g->choices[0]).finish);
    last_event(g, !strcmp(at.status, "completed") ? "response.completed" : "response.incomplete", at, true, b);
}

/* One in the background is kept: its client may look for it. */
static void fail_stream(td_generation *g, td_jbuf *b) {
    const td_response *own = g->req.own;
    td_response_close_items(g, true, b);
    td_response_begin_event(g->req.own, "error", b);
    td_jw_member_str(b, "code", g->error.code);
    td_jw_member_str(b, "message", g->error.message);
    td_jw_member_str(b, "param", g->error.param[0] ? g->error.param : NULL);
    td_response_end_event(b);
    last_event(g, "response.failed", failed_by(&g->error), own->background, b);
}

/* ---- the API ---- */

/* A name that begins with another one stands before it. */
static const td_api_name NAMES[] = {{"response_format.json_schema.schema", "text.format.schema"},
                                    {"response_format", "text.format"},
                                    {"max_completion_tokens", "max_output_tokens"},
                                    {"max_tokens", "max_output_tokens"},
                                    {"reasoning_effort", "reasoning.effort"},
                                    {"verbosity", "text.verbosity"},
                                    {"messages", "input"},
                                    {"prompt", "input"},
                                    {0}};

const td_api td_api_response = {.id_prefix = TD_RESPONSE_ID_PREFIX,
                                .names = NAMES,
                                .long_texts = true,
                                .read = td_response_read,
                                .free_own = td_response_free,
                                .write_error = td_api_error_write,
                                .write_answer = write_answer,
                                .own_bytes = td_response_bytes,
                                .begin = begin_stream,
                                .open = open_stream,
                                .piece = write_piece,
                                .finish = finish_stream,
                                .end = end_stream,
                                .fail = fail_stream};
