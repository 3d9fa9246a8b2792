/*
 * The items of an answer grow as its pieces come; only the last one may be open. Each step appends the events that a stream
 * has of it, in OpenAI's order. A whole answer takes the same steps without a stream, and is written when it has ended.
 *
 * A call that is cut off or malformed is no call, and the parser gives its text as content. Whole answers leave its item
 * out. A stream has sent the item's beginning, and ends the item as incomplete.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"

#define ENDING_MAX 64 /* at most so many tokens without a text may end an answer */
#define N_STEPS 4     /* that write an item */

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

static const td_response_item *item_at(const td_generation *g, size_t index) {
    const td_response *own = g->req.own;
    return &own->items[index];
}

/* The item that is written: w->list counts the steps of all items. */
static const td_response_item *item_of(const td_writing *w) {
    return item_at(w->choice->generation, w->list / N_STEPS);
}

static size_t stride_of(const td_generation *g) {
    return 1 + g->req.shown.top_logprobs;
}

static void write_text(td_jbuf *b, const char *key, const td_jbuf *text) {
    td_jw_key(b, key);
    td_jw_text(b, text->data, text->len);
}

static void write_annotations(td_jbuf *b) {
    td_jw_key(b, "annotations");
    td_jw_open(b, '[');
    td_jw_close(b, ']');
}

/* Log-probabilities from the one of number `from` on. */
static void write_logprobs(td_jbuf *b, const td_generation *g, const td_positions *p, size_t from) {
    td_jw_key(b, "logprobs");
    td_jw_open(b, '[');
    if (p->n > from) td_write_token_logprobs(b, g, p->at + from * stride_of(g), p->n - from);
    td_jw_close(b, ']');
}

/* Begin an item, up to what grows. */
static void begin_item(td_jbuf *b, const td_generation *g, size_t index, const char *status) {
    const td_response_item *item = item_at(g, index);
    td_jw_open(b, '{');
    write_id(b, "id", g, index);
    td_jw_member_str(b, "type", KINDS[item->kind].type);
    td_jw_member_str(b, "status", status);
    if (is_call(item)) {
        write_text(b, "call_id", &item->call_id);
        write_text(b, "name", &item->name);
        return;
    }
    if (item->kind == TD_ITEM_MESSAGE) {
        td_jw_member_str(b, "role", "assistant");
    } else {
        td_jw_key(b, "summary");
        td_jw_open(b, '[');
        td_jw_close(b, ']');
    }
    td_jw_key(b, "content");
    td_jw_open(b, '[');
}

static void end_item(td_jbuf *b, const td_response_item *item) {
    if (!is_call(item)) td_jw_close(b, ']');
    td_jw_close(b, '}');
}

static void begin_part(td_jbuf *b, const td_response_item *item) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "type", KINDS[item->kind].part);
}

/* The steps that write an item; each is a part of any size (answer_parts.h). */

static bool write_head(td_jbuf *b, td_writing *w) {
    const td_response_item *item = item_of(w);
    begin_item(b, w->choice->generation, w->list / N_STEPS, item->status);
    if (!is_call(item)) begin_part(b, item);
    return true;
}

static bool write_growing_text(td_jbuf *b, td_writing *w) {
    const td_response_item *item = item_of(w);
    if (w->at == 0) {
        td_jw_key(b, KINDS[item->kind].text);
        td_jw_open(b, '"');
    }
    if (!td_write_slices(b, w, item->text.data, item->text.len, &w->at)) return false;
    td_jw_close(b, '"');
    return true;
}

static void write_position(td_jbuf *b, const td_writing *w, size_t i) {
    const td_generation *g = w->choice->generation;
    td_write_token_logprobs(b, g, item_of(w)->logprobs.at + i * stride_of(g), 1);
}

static bool write_message_end(td_jbuf *b, td_writing *w) {
    const td_response_item *item = item_of(w);
    if (item->kind != TD_ITEM_MESSAGE) return true;
    if (w->at == 0) write_annotations(b);
    return td_write_list(b, w, "logprobs", item->logprobs.n, write_position);
}

static bool write_tail(td_jbuf *b, td_writing *w) {
    const td_response_item *item = item_of(w);
    if (!is_call(item)) td_jw_close(b, '}');
    end_item(b, item);
    return true;
}

static const td_part_fn STEPS[N_STEPS] = {write_head, write_growing_text, write_message_end, write_tail};

/* Write an item at once, from a step to another. */
static void write_steps(td_jbuf *b, const td_generation *g, size_t index, size_t from, size_t to) {
    td_writing w = {.choice = &g->choices[0], .full = SIZE_MAX};
    for (size_t i = from; i <= to; i++) {
        w.list = index * N_STEPS + i;
        w.at = 0;
        STEPS[i](b, &w);
    }
}

/* Write an item; empty: as it was when it was added. */
static void write_item(td_jbuf *b, const td_generation *g, size_t index, bool empty) {
    const td_response_item *item = item_at(g, index);
    if (!empty) {
        write_steps(b, g, index, 0, N_STEPS - 1);
        return;
    }
    begin_item(b, g, index, "in_progress");
    if (is_call(item)) td_jw_member_str(b, KINDS[item->kind].text, "");
    end_item(b, item);
}

/* Write an item's part; empty: as it was when it was added. */
static void write_part(td_jbuf *b, const td_generation *g, size_t index, bool empty) {
    const td_response_item *item = item_at(g, index);
    begin_part(b, item);
    if (!empty) {
        write_steps(b, g, index, 1, 2);
    } else {
        td_jw_member_str(b, "text", "");
        if (item->kind == TD_ITEM_MESSAGE) {
            write_annotations(b);
            write_logprobs(b, g, &(td_positions){0}, 0);
        }
    }
    td_jw_close(b, '}');
}

size_t td_response_bytes(const void *p) {
    const td_response *own = p;
    size_t             bytes = own->echo_len;
    for (size_t i = 0; i < own->n_items; i++) bytes += own->items[i].text.room + own->items[i].logprobs.bytes;
    return bytes;
}

bool td_response_write_items(td_jbuf *b, td_writing *w) {
    const td_response *own = w->choice->generation->req.own;
    for (; w->list < own->n_items * N_STEPS; w->list++, w->at = 0)
        if (b->len >= w->full || !STEPS[w->list % N_STEPS](b, w)) return false;
    td_jw_close(b, ']');
    b->failed = b->failed || own->failed;
    return true;
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
    const td_response *own = g->req.own;
    size_t             index = own->n_items - 1;
    if (!b || is_call(&own->items[index])) return;
    begin_content_event(g, type, b);
    td_jw_key(b, "part");
    write_part(b, g, index, empty);
    td_response_end_event(b);
}

/* A text that was added to the last item, with the log-probabilities that the item has from a number on. */
static void delta_event(td_generation *g, const char *text, size_t len, size_t from, td_jbuf *b) {
    const td_response      *own = g->req.own;
    const td_response_item *item = &own->items[own->n_items - 1];
    if (!b) return;
    begin_content_event(g, KINDS[item->kind].delta, b);
    td_jw_key(b, "delta");
    td_jw_text(b, text, len);
    if (item->kind == TD_ITEM_MESSAGE) write_logprobs(b, g, &item->logprobs, from);
    td_response_end_event(b);
}

static void done_event(td_generation *g, td_jbuf *b) {
    const td_response      *own = g->req.own;
    const td_response_item *item = &own->items[own->n_items - 1];
    if (!b) return;
    begin_content_event(g, KINDS[item->kind].done, b);
    if (item->kind == TD_ITEM_CALL) write_text(b, "name", &item->name);
    write_text(b, KINDS[item->kind].text, &item->text);
    if (item->kind == TD_ITEM_MESSAGE) write_logprobs(b, g, &item->logprobs, 0);
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

/* Append n positions. @return false: memory is short. */
static bool append(td_positions *to, const td_token_logprob *positions, size_t n, size_t stride) {
    if (n == 0) return true;
    if (to->n + n > to->room) {
        size_t            room = 2 * (to->n + n);
        td_token_logprob *at = realloc(to->at, room * stride * sizeof *at);
        if (!at) return false;
        to->at = at;
        to->room = room;
        to->bytes = room * stride * sizeof *at;
    }
    memcpy(to->at + to->n * stride, positions, n * stride * sizeof *positions);
    to->n += n;
    return true;
}

/* Keep log-probabilities until the text of their tokens comes. Text that the parser holds back comes later; text that it
 * takes for a marker never comes. */
static void wait_for_text(td_generation *g, const td_news *with) {
    td_response *own = g->req.own;
    if (with && !append(&own->pending, with->lp, with->n_lp, stride_of(g))) own->failed = true;
}

/* The bytes of the pending tokens, one behind the other, and where each ends. @return false: memory is short. */
static bool pending_bytes(const td_generation *g, td_jbuf *bytes, size_t *ends) {
    const td_response *own = g->req.own;
    for (size_t i = 0; i < own->pending.n; i++) {
        size_t      len;
        bool        special;
        const char *token = td_token_bytes(g, own->pending.at[i * stride_of(g)].id, &len, &special);
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
    token_range        range = {0, own->pending.n};
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

/* Give pending tokens to an item, and forget those before them. */
static void add_logprobs(td_generation *g, td_response_item *item, token_range tokens) {
    td_response  *own = g->req.own;
    td_positions *pending = &own->pending;
    size_t        stride = stride_of(g);
    bool          added = append(&item->logprobs, pending->at + tokens.begin * stride, tokens.end - tokens.begin, stride);
    pending->n -= tokens.end;
    memmove(pending->at, pending->at + tokens.end * stride, pending->n * stride * sizeof *pending->at);
    own->failed = own->failed || !added;
}

static void add_text(td_generation *g, td_item_kind kind, const td_piece *p, td_jbuf *b) {
    td_response *own = g->req.own;
    wait_for_text(g, p->with);
    if (p->len == 0) return;
    td_response_item *item = item_for_text(g, kind, b);
    if (!item) return;
    size_t had = item->logprobs.n;
    td_jbuf_put(&item->text, p->text, p->len);
    own->failed = own->failed || item->text.failed;
    if (kind == TD_ITEM_MESSAGE && own->pending.n)
        add_logprobs(g, item, tokens_of_text(g, p->text, p->len));
    else
        own->pending.n = 0;
    delta_event(g, p->text, p->len, had, b);
}

/* Add the log-probabilities of the tokens that end a message, which have no text. None wait afterwards. */
static void add_last_logprobs(td_generation *g, td_jbuf *b) {
    td_response      *own = g->req.own;
    td_response_item *item = open_item(own);
    if (item && item->kind == TD_ITEM_MESSAGE && own->pending.n) {
        size_t had = item->logprobs.n;
        add_logprobs(g, item, (token_range){0, own->pending.n});
        delta_event(g, "", 0, had, b);
    }
    free(own->pending.at);
    own->pending = (td_positions){0};
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
    own->pending.n = 0;
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
        delta_event(g, item->text.data ? item->text.data : "", item->text.len, 0, b);
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
    if (p->kind == TD_ANSWER_CALL_END || p->kind == TD_ANSWER_CALL_DROPPED) own->pending.n = 0;
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
