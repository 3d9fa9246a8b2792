/* The message of a chat's answer: content, reasoning and tool calls, whole or in deltas. */
#include "server/openai/completions.h"

static const char *text_at(const td_news *news, const td_delta *d) {
    return news->text.data + d->from;
}

/* All text of one kind as one string; null if there is none and may_be_null. */
static void write_text(td_jbuf *b, const td_news *news, td_answer_event_kind kind, bool may_be_null) {
    td_jbuf text = {0};
    for (size_t i = 0; i < news->n_deltas; i++)
        if (news->deltas[i].kind == kind) td_jbuf_put(&text, text_at(news, &news->deltas[i]), news->deltas[i].len);
    if (text.len == 0 && may_be_null)
        td_jw_null(b);
    else
        td_jw_text(b, text.data, text.len);
    b->failed = b->failed || text.failed;
    td_jbuf_free(&text);
}

/* Where the call that begins here ends; 0: it was dropped. */
static size_t end_of_call(const td_news *news, size_t begin) {
    for (size_t i = begin + 1; i < news->n_deltas; i++) {
        if (news->deltas[i].kind == TD_ANSWER_CALL_END) return i;
        if (news->deltas[i].kind == TD_ANSWER_CALL_DROPPED) return 0;
    }
    return 0;
}

static void write_call_head(td_jbuf *b, const char *name, size_t len, const char *id, size_t id_len) {
    td_jw_key(b, "id");
    td_jw_text(b, id, id_len);
    td_jw_member_str(b, "type", "function");
    td_jw_key(b, "function");
    td_jw_open(b, '{');
    td_jw_key(b, "name");
    td_jw_text(b, name, len);
    td_jw_key(b, "arguments");
}

static void write_calls(td_jbuf *b, const td_news *news) {
    td_jw_open(b, '[');
    for (size_t i = 0; i < news->n_deltas; i++) {
        size_t end = news->deltas[i].kind == TD_ANSWER_CALL_BEGIN ? end_of_call(news, i) : 0;
        if (end == 0) continue;
        td_jw_open(b, '{');
        const td_delta *d = &news->deltas[i];
        write_call_head(b, text_at(news, d), d->len, text_at(news, d) + d->len, d->id_len);
        td_jw_text(b, text_at(news, &news->deltas[i + 1]), news->deltas[i + 1].len);
        td_jw_close(b, '}');
        td_jw_close(b, '}');
    }
    td_jw_close(b, ']');
}

static bool has(const td_news *news, td_answer_event_kind kind) {
    for (size_t i = 0; i < news->n_deltas; i++)
        if (news->deltas[i].kind == kind) return true;
    return false;
}

void td_write_message(td_jbuf *b, const td_choice *c, const td_news *news) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "role", "assistant");
    td_jw_key(b, "content");
    if (c->parser)
        write_text(b, news, TD_ANSWER_CONTENT, c->n_calls > 0);
    else
        td_jw_text(b, news->text.data, news->text.len);
    if (has(news, TD_ANSWER_REASONING)) {
        td_jw_key(b, "reasoning_content");
        write_text(b, news, TD_ANSWER_REASONING, false);
    }
    if (c->n_calls) {
        td_jw_key(b, "tool_calls");
        write_calls(b, news);
    }
    td_jw_close(b, '}');
}

void td_write_delta(td_jbuf *b, const td_piece *p) {
    if (p->kind == TD_ANSWER_CONTENT || p->kind == TD_ANSWER_REASONING) {
        td_jw_key(b, p->kind == TD_ANSWER_CONTENT ? "content" : "reasoning_content");
        td_jw_text(b, p->text, p->len);
        return;
    }
    td_jw_key(b, "tool_calls");
    td_jw_open(b, '[');
    td_jw_open(b, '{');
    td_jw_member_int(b, "index", p->call);
    if (p->kind == TD_ANSWER_CALL_BEGIN) {
        write_call_head(b, p->text, p->len, p->id, p->id_len);
        td_jw_str(b, "");
    } else {
        td_jw_key(b, "function");
        td_jw_open(b, '{');
        td_jw_key(b, "arguments");
        td_jw_text(b, p->text, p->len);
    }
    td_jw_close(b, '}');
    td_jw_close(b, '}');
    td_jw_close(b, ']');
}
