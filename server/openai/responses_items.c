/*
 * The items of an answer grow as its pieces come; only the last one may be open. Each step appends the events that a stream
 * has of it, in OpenAI's order. A whole answer takes the same steps without a stream.
 *
 * A call that is cut off or malformed
 * is no call, and the parser gives its text as content. Whole answers leave its item out. A stream has sent the item's
 * beginning, and ends the item as incomplete.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"

#define ENDING_MAX 64 /* at most so many tokens without a text may end an answer */

static const struct {
    const char *type, *id_prefix;
    const char *part; /* type of the item's one part of text; NULL: it has none */
    const char *delta, *done;
    const char *text; /* the member that has the text, in its part or in the item */
} KINDS[] = {
    [TD_ITEM_REASONING] = {"reasoning", "rs_", "reasoning_text", "response.reasoning_text.delta",
                           "response.reasoning_text.done", "text"},
    [TD_ITEM_MESSAGE] = {"message", "msg_", "output_text", "response.output_text.delta", "response.output_text.done",
                         "text"},
    [TD_ITEM_CALL] = {"function_call", "fc_", NULL, "response.function_call_arguments.delta",
                      "response.function_call_arguments.done", "arguments"},
    [TD_ITEM_CUSTOM_CALL] = {"custom_tool_call", "ctc_", NULL, "response.custom_tool_call_input.delta",
                             "response.custom_tool_call_input.done", "input"},
};

static bool is_call(const td_response_item *item) {
    return item->kind == TD_ITEM_CALL || item->kind == TD_ITEM_CUSTOM_CALL;
}

/* ---- items as JSON ---- */

static void write_id(td_jbuf *b, const char *key, const td_generation *g, size_t index) {
    const td_response *own = g->req.own;
    char               number[24], id[TD_RESPONSE_ID_MAX];
    snprintf(number, sizeof number, "_%zu", index);
    td_response_item_id(g->id, KINDS[own->items[index].kind].id_prefix, number, id, sizeof id);
    td_jw_member_str(b, key, id);
}

static void write_text(td_jbuf *b, const char *key, const td_jbuf *text) {
    td_jw_key(b, key);
    td_jw_text(b, text->data, text->len);
}

static void write_logprobs(td_jbuf *b, const td_jbuf *entries) {
    td_jw_key(b, "logprobs");
    td_jw_open(b, '[');
    td_jbuf_put(b, entries->data, entries->len);
    td_jw_close(b, ']');
}

/* Write an item's part; empty: as it was when it was added. */
static void write_part(td_jbuf *b, const td_response_item *item, bool empty) {
    static const td_jbuf nothing;
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", KINDS[item->kind].part);
    write_text(b, "text", empty ? &nothing : &item->text);
    if (item->kind == TD_ITEM_MESSAGE) {
        td_jw_key(b, "annotations");
        td_jw_open(b, '[');
        td_jw_close(b, ']');
        write_logprobs(b, empty ? &nothing : &item->logprobs);
    }
    td_jw_close(b, '}');
}

/* Write an item; empty: as it was when it was added. */
static void write_item(td_jbuf *b, const td_generation *g, size_t index, bool empty) {
    static const td_jbuf    nothing;
    const td_response      *own = g->req.own;
    const td_response_item *item = &own->items[index];
    td_jw_open(b, '{');
    write_id(b, "id", g, index);
    td_jw_member_str(b, "type", KINDS[item->kind].type);
    td_jw_member_str(b, "status", empty ? "in_progress" : item->status);
    if (is_call(item)) {
        write_text(b, "call_id", &item->call_id);
        write_text(b, "name", &item->name);
        write_text(b, KINDS[item->kind].text, empty ? &nothing : &item->text);
    } else {
        if (item->kind == TD_ITEM_MESSAGE) {
            td_jw_member_str(b, "role", "assistant");
        } else {
            td_jw_key(b, "summary");
            td_jw_open(b, '[');
            td_jw_close(b, ']');
        }
        td_jw_key(b, "content");
        td_jw_open(b, '[');
        if (!empty) write_part(b, item, false);
        td_jw_close(b, ']');
    }
    td_jw_close(b, '}');
}

void td_response_write_items(const td_generation *g, td_jbuf *b) {
    const td_response *own = g->req.own;
    td_jw_open(b, '[');
    for (size_t i = 0; i < own->n_items; i++) write_item(b, g, i, false);
    td_jw_close(b, ']');
    b->failed = b->failed || own->failed;
}

/* ---- events ---- */

void td_response_begin_event(td_response *own, const char *type, td_jbuf *b) {
    td_jbuf_printf(b, "event: %s\ndata: ", type);
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", type);
    td_jw_member_int(b, "sequence_number", (int64_t)own->sequence++);
}

void td_response_end_event(td_jbuf *b) {
    td_jw_close(b, '}');
    td_jbuf_puts(b, "\n\n");
}

static void item_event(td_generation *g, const char *type, bool empty, td_jbuf *b) {
    td_response *own = g->req.own;
    size_t       index = own->n_items - 1;
    if (!b) return;
    td_response_begin_event(own, type, b);
    td_jw_member_int(b, "output_index", (int64_t)index);
    td_jw_key(b, "item");
    write_item(b, g, index, empty);
    td_response_end_event(b);
}

/* Begin an event about the open item's content, with the members that all such events have. */
static void begin_content_event(td_generation *g, const char *type, td_jbuf *b) {
    td_response *own = g->req.own;
    size_t       index = own->n_items - 1;
    td_response_begin_event(own, type, b);
    write_id(b, "item_id", g, index);
    td_jw_member_int(b, "output_index", (int64_t)index);
    if (KINDS[own->items[index].kind].part) td_jw_member_int(b, "content_index", 0);
}

static void part_event(td_generation *g, const char *type, bool empty, td_jbuf *b) {
    const td_response      *own = g->req.own;
    const td_response_item *item = &own->items[own->n_items - 1];
    if (!b || !KINDS[item->kind].part) return;
    begin_content_event(g, type, b);
    td_jw_key(b, "part");
    write_part(b, item, empty);
    td_response_end_event(b);
}

static void delta_event(td_generation *g, const char *text, size_t len, const td_jbuf *logprobs, td_jbuf *b) {
    const td_response      *own = g->req.own;
    const td_response_item *item = &own->items[own->n_items - 1];
    if (!b) return;
    begin_content_event(g, KINDS[item->kind].delta, b);
    td_jw_key(b, "delta");
    td_jw_text(b, text, len);
    if (item->kind == TD_ITEM_MESSAGE) write_logprobs(b, logprobs);
    td_response_end_event(b);
}

static void done_event(td_generation *g, td_jbuf *b) {
    const td_response      *own = g->req.own;
    const td_response_item *item = &own->items[own->n_items - 1];
    if (!b) return;
    begin_content_event(g, KINDS[item->kind].done, b);
    if (item->kind == TD_ITEM_CALL) write_text(b, "name", &item->name);
    write_text(b, KINDS[item->kind].text, &item->text);
    if (item->kind == TD_ITEM_MESSAGE) write_logprobs(b, &item->logprobs);
    td_response_end_event(b);
}

/* ---- steps ---- */

static td_response_item *last_item(const td_response *own) {
    return own->n_items ? &own->items[own->n_items - 1] : NULL;
}

/* The item that is open; NULL: none. */
static td_response_item *open_item(const td_response *own) {
    td_response_item *last = last_item(own);
    return last && !strcmp(last->status, "in_progress") ? last : NULL;
}

static void close_item(td_generation *g, const char *status, td_jbuf *b) {
    td_response_item *item = open_item(g->req.own);
    if (!item) return;
    item->status = status;
    done_event(g, b);
    part_event(g, "response.content_part.done", false, b);
    item_event(g, "response.output_item.done", false, b);
}

static td_response_item *add_item(td_response *own, td_item_kind kind) {
    if (own->n_items == own->items_room) {
        size_t            room = own->items_room ? 2 * own->items_room : 4;
        td_response_item *items = realloc(own->items, room * sizeof *items);
        if (!items) {
            own->failed = true;
            return NULL;
        }
        own->items = items;
        own->items_room = room;
    }
    td_response_item *item = &own->items[own->n_items++];
    *item = (td_response_item){.kind = kind, .status = "in_progress"};
    return item;
}

/* The open item of this kind, opened if need be; NULL: memory is short. */
static td_response_item *item_for_text(td_generation *g, td_item_kind kind, td_jbuf *b) {
    td_response      *own = g->req.own;
    td_response_item *item = open_item(own), *last = last_item(own);
    if (item && item->kind == kind) return item;
    close_item(g, "completed", b);
    if (!b && last && last->kind == kind) { /* a call between two texts of this kind was left out: they are one item */
        last->status = "in_progress";
        return last;
    }
    item = add_item(own, kind);
    if (!item) return NULL;
    item_event(g, "response.output_item.added", true, b);
    part_event(g, "response.content_part.added", true, b);
    return item;
}

/* Keep log-probabilities until the text of their tokens comes. Text that the parser holds back comes later; text that it
 * takes for a marker never comes. */
static void wait_for_text(td_generation *g, const td_news *with) {
    td_response *own = g->req.own;
    size_t       stride = 1 + g->req.shown.top_logprobs, n = with ? with->n_lp : 0;
    if (own->n_pending + n > own->pending_room) {
        size_t            room = 2 * (own->n_pending + n);
        td_token_logprob *pending = realloc(own->pending, room * stride * sizeof *pending);
        if (!pending) {
            own->failed = true;
            return;
        }
        own->pending = pending;
        own->pending_room = room;
    }
    if (n) memcpy(own->pending + own->n_pending * stride, with->lp, n * stride * sizeof *own->pending);
    own->n_pending += n;
}

/* The bytes of the pending tokens, one behind the other, and where each ends. @return false: memory is short. */
static bool pending_bytes(const td_generation *g, td_jbuf *bytes, size_t *ends) {
    const td_response *own = g->req.own;
    size_t             stride = 1 + g->req.shown.top_logprobs;
    for (size_t i = 0; i < own->n_pending; i++) {
        size_t      len;
        bool        special;
        const char *token = td_token_bytes(g, own->pending[i * stride].id, &len, &special);
        td_jbuf_put(bytes, token, len);
        ends[i] = bytes->len;
    }
    return !bytes->failed;
}

typedef struct {
    size_t begin, end; /* of the pending tokens */
} token_range;

/* Which of the pending tokens make a text. A marker that the parser took may lie before them. Behind them may lie what ends
 * the answer and has no text: an end token, or a stop string's tokens. */
static token_range tokens_of_text(const td_generation *g, const char *text, size_t n) {
    const td_response *own = g->req.own;
    token_range        range = {0, own->n_pending};
    td_jbuf            bytes = {0};
    size_t            *ends = g->choices[0].parser && range.end ? malloc(range.end * sizeof *ends) : NULL;
    if (ends && pending_bytes(g, &bytes, ends)) {
        size_t tried = 0, j = range.end;
        while (tried < ENDING_MAX && j > 0 && !(ends[j - 1] >= n && !memcmp(bytes.data + ends[j - 1] - n, text, n)))
            j--, tried++;
        if (j > 0 && tried < ENDING_MAX) range.end = j;
        for (range.begin = range.end - 1; range.begin > 0 && ends[range.end - 1] - ends[range.begin - 1] < n;) range.begin--;
    }
    free(ends);
    td_jbuf_free(&bytes);
    return range;
}

/* Give pending tokens to an item, and forget those before them. @param entries receives their list entries. */
static void add_logprobs(td_generation *g, td_response_item *item, token_range tokens, td_jbuf *entries) {
    td_response *own = g->req.own;
    size_t       stride = 1 + g->req.shown.top_logprobs;
    td_write_token_logprobs(entries, g, own->pending + tokens.begin * stride, tokens.end - tokens.begin);
    own->n_pending -= tokens.end;
    memmove(own->pending, own->pending + tokens.end * stride, own->n_pending * stride * sizeof *own->pending);
    if (item->logprobs.len && entries->len) td_jbuf_puts(&item->logprobs, ",");
    td_jbuf_put(&item->logprobs, entries->data, entries->len);
    own->failed = own->failed || entries->failed || item->logprobs.failed;
}

static void add_text(td_generation *g, td_item_kind kind, const td_piece *p, td_jbuf *b) {
    td_response *own = g->req.own;
    wait_for_text(g, p->with);
    if (p->len == 0) return;
    td_response_item *item = item_for_text(g, kind, b);
    td_jbuf           logprobs = {0};
    if (!item) return;
    td_jbuf_put(&item->text, p->text, p->len);
    own->failed = own->failed || item->text.failed;
    if (kind == TD_ITEM_MESSAGE && own->n_pending)
        add_logprobs(g, item, tokens_of_text(g, p->text, p->len), &logprobs);
    else
        own->n_pending = 0;
    delta_event(g, p->text, p->len, &logprobs, b);
    td_jbuf_free(&logprobs);
}

/* Add the log-probabilities of the tokens that end a message, which have no text. */
static void add_last_logprobs(td_generation *g, td_jbuf *b) {
    td_response      *own = g->req.own;
    td_response_item *item = open_item(own);
    td_jbuf           logprobs = {0};
    if (item && item->kind == TD_ITEM_MESSAGE && own->n_pending) {
        add_logprobs(g, item, (token_range){0, own->n_pending}, &logprobs);
        delta_event(g, "", 0, &logprobs, b);
    }
    own->n_pending = 0;
    td_jbuf_free(&logprobs);
}

static bool is_custom(const td_response *own, const char *name, size_t len) {
    const json_t *its;
    size_t        i;
    json_array_foreach(own->custom, i, its) {
        if (json_string_length(its) == len && !memcmp(json_string_value(its), name, len)) return true;
    }
    return false;
}

static void begin_call(td_generation *g, const td_piece *p, td_jbuf *b) {
    td_response *own = g->req.own;
    close_item(g, "completed", b);
    own->n_pending = 0;
    td_response_item *item = add_item(own, is_custom(own, p->text, p->len) ? TD_ITEM_CUSTOM_CALL : TD_ITEM_CALL);
    if (!item) return;
    td_jbuf_put(&item->name, p->text, p->len);
    td_jbuf_put(&item->call_id, p->id, p->id_len);
    own->failed = own->failed || item->name.failed || item->call_id.failed;
    item_event(g, "response.output_item.added", true, b);
}

/* The open item if it is a call of a custom tool, else NULL. */
static td_response_item *open_custom_call(const td_response *own) {
    td_response_item *item = open_item(own);
    return item && item->kind == TD_ITEM_CUSTOM_CALL ? item : NULL;
}

/* The input of a custom tool's call stands in JSON, and is sent when that has come whole. */
static void add_arguments(td_generation *g, const td_piece *p, td_jbuf *b) {
    td_response      *own = g->req.own;
    td_response_item *item = open_custom_call(own);
    if (!item) {
        add_text(g, TD_ITEM_CALL, p, b);
        return;
    }
    td_jbuf_put(&item->text, p->text, p->len);
    own->failed = own->failed || item->text.failed;
}

/* Put the string that the arguments have as "input" in their place. Arguments that have none are the input themselves. */
static void unwrap_input(td_response *own, td_response_item *item) {
    json_t      *arguments = NULL;
    json_error_t why;
    td_jbuf      input = {0};
    td_status    st = td_json_load(item->text.data, item->text.len, JSON_ALLOW_NUL, &arguments, &why);
    json_t      *text = st == TD_OK ? json_object_get(arguments, "input") : NULL;
    if (json_is_string(text)) {
        td_jbuf_put(&input, json_string_value(text), json_string_length(text));
        td_jbuf_free(&item->text);
        item->text = input;
    }
    own->failed = own->failed || input.failed || st == TD_ENOMEM;
    json_decref(arguments);
}

static void end_call(td_generation *g, td_jbuf *b) {
    td_response      *own = g->req.own;
    td_response_item *item = open_custom_call(own);
    if (item) {
        unwrap_input(own, item);
        delta_event(g, item->text.data ? item->text.data : "", item->text.len, NULL, b);
    }
    close_item(g, "completed", b);
}

static void drop_call(td_generation *g, td_jbuf *b) {
    td_response      *own = g->req.own;
    td_response_item *custom = open_custom_call(own);
    if (custom) td_jbuf_free(&custom->text); /* nothing of it was sent */
    if (b) {
        close_item(g, "incomplete", b);
        return;
    }
    td_response_item *item = last_item(own);
    if (!item || !is_call(item)) return;
    td_jbuf_free(&item->text);
    td_jbuf_free(&item->name);
    td_jbuf_free(&item->call_id);
    own->n_items--;
}

void td_response_add_piece(td_choice *c, const td_piece *p, td_jbuf *b) {
    td_generation *g = c->generation;
    td_response   *own = g->req.own;
    if (own->failed) return;
    switch (p->kind) {
        case TD_ANSWER_CONTENT: add_text(g, TD_ITEM_MESSAGE, p, b); break;
        case TD_ANSWER_REASONING: add_text(g, TD_ITEM_REASONING, p, b); break;
        case TD_ANSWER_CALL_BEGIN: begin_call(g, p, b); break;
        case TD_ANSWER_CALL_ARGUMENTS: add_arguments(g, p, b); break;
        case TD_ANSWER_CALL_END: end_call(g, b); break;
        case TD_ANSWER_CALL_DROPPED: drop_call(g, b); break;
    }
    if (p->kind == TD_ANSWER_CALL_END || p->kind == TD_ANSWER_CALL_DROPPED) own->n_pending = 0;
    if (b) b->failed = b->failed || own->failed;
}

void td_response_close_items(td_generation *g, bool cut, td_jbuf *b) {
    td_response *own = g->req.own;
    bool         says_something = false;
    for (size_t i = 0; i < own->n_items; i++) says_something = says_something || own->items[i].kind != TD_ITEM_REASONING;
    /* An answer that is empty is a message without text, not no answer. */
    if (!says_something && !cut) item_for_text(g, TD_ITEM_MESSAGE, b);
    add_last_logprobs(g, b);
    close_item(g, cut ? "incomplete" : "completed", b);
}
