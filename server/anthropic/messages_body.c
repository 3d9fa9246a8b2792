/*
 * /v1/messages: the JSON of whole answers, of the events of a stream, and of errors.
 *
 * An answer is a list of content blocks: thinking, text, and a tool_use for each complete call. The pieces of an answer
 * become blocks in the same way whether they are written whole or as events. A stream sends a call only when it is
 * complete, because Anthropic's clients act on half of an input, too, and what begins as a call may turn out to be none.
 * Until then pings tell that the answer goes on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/anthropic/messages.h"
#include "server/request/api_read.h"

/* Clients drop thinking that has no signature, so each gets one. This server does not check signatures. */
#define SIGNATURE "unsigned"

/* input_tokens were computed, cache_read_input_tokens came from the prefix cache: together they are the prompt. What is
 * written to the cache is not counted. */
static void write_usage(td_jbuf *b, td_usage u) {
    td_jw_key(b, "usage");
    td_jw_open(b, '{');
    td_jw_member_int(b, "input_tokens", (int64_t)(u.prompt - u.cached));
    td_jw_member_int(b, "cache_creation_input_tokens", 0);
    td_jw_member_int(b, "cache_read_input_tokens", (int64_t)u.cached);
    td_jw_member_int(b, "output_tokens", (int64_t)u.completion);
    if (u.reasons) {
        td_jw_key(b, "output_tokens_details");
        td_jw_open(b, '{');
        td_jw_member_int(b, "thinking_tokens", (int64_t)u.reasoning);
        td_jw_close(b, '}');
    }
    td_jw_close(b, '}');
}

/* st NULL: the answer is not finished. */
static void write_stop(td_jbuf *b, const td_generation *g, const td_choice_state *st) {
    const char *reason = NULL, *sequence = st && st->finish == TD_FINISH_STOP ? st->stop_reason : NULL;
    if (st && st->finish == TD_FINISH_ABORT)
        reason = "abort"; /* Anthropic has no word for it: that of the other APIs */
    else if (st && st->finish == TD_FINISH_LENGTH)
        reason = g->req.length.context_ends ? "model_context_window_exceeded" : "max_tokens";
    else if (st)
        reason = st->n_calls ? "tool_use" : sequence ? "stop_sequence" : "end_turn";
    td_jw_member_str(b, "stop_reason", reason);
    td_jw_member_str(b, "stop_sequence", sequence);
}

static void write_head(td_jbuf *b, const td_generation *g) {
    td_jw_member_str(b, "id", g->id);
    td_jw_member_str(b, "type", "message");
    td_jw_member_str(b, "role", "assistant");
    td_jw_member_str(b, "model", g->req.model);
    td_api_write_warnings(b, &g->req);
}

/* ---- errors ---- */

static const char *error_type(int http) {
    switch (http) {
        case 401: return "authentication_error";
        case 404: return "not_found_error";
        case 413: return "request_too_large";
        case 429: return "rate_limit_error";
        case 503: return "overloaded_error";
        default: return http >= 500 ? "api_error" : "invalid_request_error";
    }
}

/* Write an error. @param request_id NULL: the request has none yet. */
static void write_error_of(td_jbuf *b, const td_api_error *err, const char *request_id) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", "error");
    td_jw_key(b, "error");
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", error_type(err->http));
    td_jw_member_str(b, "message", err->message);
    if (err->code) {
        td_jw_key(b, "details");
        td_jw_open(b, '{');
        td_jw_member_str(b, "error_code", err->code);
        td_jw_close(b, '}');
    }
    td_jw_close(b, '}');
    td_jw_member_str(b, "request_id", request_id);
    td_jw_close(b, '}');
}

static void write_error(td_jbuf *b, const td_api_error *err) {
    write_error_of(b, err, NULL);
}

/* ---- streams ---- */

static void begin_event(td_jbuf *b, const char *name) {
    td_jbuf_printf(b, "event: %s\ndata: ", name);
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", name);
}

static void end_event(td_jbuf *b) {
    td_jw_close(b, '}');
    td_jbuf_puts(b, "\n\n");
}

static void write_ping(td_jbuf *b) {
    begin_event(b, "ping");
    end_event(b);
}

static void open_stream(td_choice *c, const td_choice_state *st, const td_news *n, td_jbuf *b) {
    const td_generation *g = c->generation;
    td_usage             used = st->used;
    (void)n;
    used.completion = used.reasoning = 0; /* not known yet */
    begin_event(b, "message_start");
    td_jw_key(b, "message");
    td_jw_open(b, '{');
    write_head(b, g);
    td_jw_key(b, "content");
    td_jw_open(b, '[');
    td_jw_close(b, ']');
    write_stop(b, g, NULL);
    write_usage(b, used);
    td_jw_close(b, '}');
    end_event(b);
    write_ping(b);
}

/* ---- blocks, whole or as events ---- */

static void begin_delta(td_jbuf *b, int64_t index, const char *type) {
    begin_event(b, "content_block_delta");
    td_jw_member_int(b, "index", index);
    td_jw_key(b, "delta");
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", type);
}

static void end_delta(td_jbuf *b) {
    td_jw_close(b, '}');
    end_event(b);
}

/* Begin a block. In a stream this is an event that shows the block empty. */
static void begin_block(td_messages_state *own, const char *type, td_jbuf *b) {
    if (!own->whole) {
        begin_event(b, "content_block_start");
        td_jw_member_int(b, "index", own->n_blocks++);
        td_jw_key(b, "content_block");
    }
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", type);
}

static void end_block(const td_messages_state *own, td_jbuf *b) {
    begin_event(b, "content_block_stop");
    td_jw_member_int(b, "index", own->n_blocks - 1);
    end_event(b);
}

static void write_text(td_jbuf *b, const char *key, const td_jbuf *text) {
    td_jw_key(b, key);
    td_jw_text(b, text->data, text->len);
    b->failed = b->failed || text->failed;
}

static void forget(td_jbuf *b) {
    td_jbuf_free(b);
    *b = (td_jbuf){0};
}

/* The type of a block of text, which is also the name of the text in it. */
static const char *type_of(td_answer_event_kind kind) {
    return kind == TD_ANSWER_REASONING ? "thinking" : "text";
}

/* Close the block of text or thinking, if one is open. */
static void close_text(td_messages_state *own, td_jbuf *b) {
    if (!own->is_open) return;
    own->is_open = false;
    if (own->whole) {
        td_jw_close(b, '"');
        if (own->open == TD_ANSWER_REASONING) td_jw_member_str(b, "signature", SIGNATURE);
        td_jw_close(b, '}');
        return;
    }
    if (own->open == TD_ANSWER_REASONING) {
        begin_delta(b, own->n_blocks - 1, "signature_delta");
        td_jw_member_str(b, "signature", SIGNATURE);
        end_delta(b);
    }
    end_block(own, b);
}

static void open_text(td_messages_state *own, td_answer_event_kind kind, td_jbuf *b) {
    if (own->is_open && own->open == kind) return;
    close_text(own, b);
    own->is_open = true;
    own->open = kind;
    begin_block(own, type_of(kind), b);
    if (own->whole) { /* the string is closed with the block */
        td_jw_key(b, type_of(kind));
        td_jw_open(b, '"');
        return;
    }
    td_jw_member_str(b, type_of(kind), "");
    if (kind == TD_ANSWER_REASONING) td_jw_member_str(b, "signature", "");
    td_jw_close(b, '}');
    end_event(b);
}

static void write_text_piece(td_messages_state *own, const td_piece *p, td_jbuf *b) {
    bool thinking = p->kind == TD_ANSWER_REASONING, omit = thinking && own->omits_thinking;
    if (p->len == 0) return;
    open_text(own, p->kind, b);
    if (own->whole) {
        td_jw_chars(b, p->text, omit ? 0 : p->len);
    } else if (omit) {
        write_ping(b);
    } else {
        begin_delta(b, own->n_blocks - 1, thinking ? "thinking_delta" : "text_delta");
        td_jw_key(b, type_of(p->kind));
        td_jw_text(b, p->text, p->len);
        end_delta(b);
    }
}

static void forget_call(td_messages_state *own) {
    forget(&own->id);
    forget(&own->name);
    forget(&own->input);
}

/* Write the call that was held back: it is complete. */
static void write_call(td_messages_state *own, td_jbuf *b) {
    close_text(own, b);
    begin_block(own, "tool_use", b);
    write_text(b, "id", &own->id);
    write_text(b, "name", &own->name);
    td_jw_key(b, "input");
    if (own->whole)
        td_jw_raw(b, own->input.data, own->input.len);
    else
        td_jw_raw(b, "{}", 2);
    td_jw_close(b, '}');
    if (!own->whole) {
        end_event(b);
        begin_delta(b, own->n_blocks - 1, "input_json_delta");
        write_text(b, "partial_json", &own->input);
        end_delta(b);
        end_block(own, b);
    }
    b->failed = b->failed || own->input.failed;
    forget_call(own);
}

static void write_piece(td_choice *c, const td_choice_state *st, const td_piece *p, td_jbuf *b) {
    td_messages_state *own = c->generation->req.own;
    (void)st;
    switch (p->kind) {
        case TD_ANSWER_CONTENT:
        case TD_ANSWER_REASONING: write_text_piece(own, p, b); return;
        case TD_ANSWER_CALL_BEGIN:
            td_jbuf_put(&own->name, p->text, p->len);
            td_jbuf_put(&own->id, p->id, p->id_len);
            break;
        case TD_ANSWER_CALL_ARGUMENTS: td_jbuf_put(&own->input, p->text, p->len); break;
        case TD_ANSWER_CALL_END: write_call(own, b); return;
        case TD_ANSWER_CALL_DROPPED: forget_call(own); return;
    }
    if (!own->whole) write_ping(b);
}

/* ---- answers ---- */

static bool begin_answer(td_jbuf *b, td_writing *w) {
    const td_generation *g = w->choice->generation;
    td_messages_state   *own = g->req.own;
    own->whole = true;
    td_jw_open(b, '{');
    write_head(b, g);
    td_jw_key(b, "content");
    td_jw_open(b, '[');
    return true;
}

/* Write on the blocks, long texts slice by slice. w->list counts deltas, w->at bytes of one. */
static bool write_content(td_jbuf *b, td_writing *w) {
    const td_news  *news = w->news;
    const td_delta  all = {.kind = TD_ANSWER_CONTENT, .len = news->text.len};
    const td_delta *deltas = w->choice->parser ? news->deltas : &all;
    size_t          n = w->choice->parser ? news->n_deltas : 1;
    while (w->list < n) {
        const td_delta *d = &deltas[w->list];
        const char     *text = news->text.data ? news->text.data + d->from : "";
        bool            is_text = d->kind == TD_ANSWER_CONTENT || d->kind == TD_ANSWER_REASONING;
        size_t          from = w->at, end = is_text ? td_slice_end(text, d->len, from) : d->len;
        td_piece        piece = {.kind = d->kind,
                                 .call = d->call,
                                 .text = text + from,
                                 .len = end - from,
                                 .id = text + d->len,
                                 .id_len = d->id_len};
        write_piece(w->choice, &w->state, &piece, b);
        w->at = end == d->len ? 0 : end;
        w->list += end == d->len;
        if (b->len >= w->full && w->list < n) return false;
    }
    return true;
}

static bool end_answer(td_jbuf *b, td_writing *w) {
    const td_generation *g = w->choice->generation;
    close_text(g->req.own, b);
    td_jw_close(b, ']');
    write_stop(b, g, &w->state);
    write_usage(b, w->state.used);
    td_jw_close(b, '}');
    return true;
}

static bool write_answer(td_generation *g, td_jbuf *b) {
    static const td_answer_parts PARTS = {.begin = {begin_answer}, .choice = {write_content}, .end = {end_answer}};
    return td_write_parts(g, &PARTS, b);
}

static void finish_stream(td_choice *c, const td_choice_state *st, td_jbuf *b) {
    close_text(c->generation->req.own, b);
    begin_event(b, "message_delta");
    td_jw_key(b, "delta");
    td_jw_open(b, '{');
    write_stop(b, c->generation, st);
    td_jw_close(b, '}');
    write_usage(b, st->used);
    end_event(b);
}

static void end_stream(td_generation *g, td_jbuf *b) {
    (void)g;
    begin_event(b, "message_stop");
    end_event(b);
}

static void fail_stream(td_generation *g, td_jbuf *b) {
    td_jbuf_puts(b, "event: error\ndata: ");
    write_error_of(b, &g->error, g->id);
    td_jbuf_puts(b, "\n\n");
}

/* ---- the request ---- */

static td_status read_messages(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err) {
    json_t            *chat = NULL;
    td_messages_state *own = r->own = calloc(1, sizeof *own);
    td_status          st = own ? td_messages_to_chat(body, TD_MESSAGES_ANSWER, own, &chat, r, err) : td_api_no_memory(err);
    json_decref(body);
    if (st != TD_OK) {
        json_decref(chat);
        return st;
    }
    r->length.fits_max = true;
    st = td_api_read_form(TD_READ_CHAT, chat, with, r, err);
    if (st != TD_OK) td_api_rename_error(td_api_messages.names, err);
    return st;
}

/* Anthropic's sentence, which coding agents look for to compact a conversation. max_tokens that do not fit are cut. */
static void say_too_long(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err) {
    (void)r;
    strcpy(err->param, "messages");
    snprintf(err->message, sizeof err->message, "prompt is too long: %zu tokens > %u maximum", prompt_tokens,
             prompt_tokens > context ? context : context - 1);
}

static void free_own(void *own) {
    forget_call(own);
    free(own);
}

static const td_api_name NAMES[] = {{"stop", "stop_sequences"}, {"json_schema", "output_config.format"}, {0}};

const td_api td_api_messages = {.id_prefix = "msg_",
                                .names = NAMES,
                                .read = read_messages,
                                .say_too_long = say_too_long,
                                .free_own = free_own,
                                .write_error = write_error,
                                .write_answer = write_answer,
                                .open = open_stream,
                                .piece = write_piece,
                                .finish = finish_stream,
                                .end = end_stream,
                                .fail = fail_stream};
