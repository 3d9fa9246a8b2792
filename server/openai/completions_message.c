/* The message of a chat's answer: content, reasoning and tool calls, whole or in deltas. */
#include "server/openai/completions.h"

static const char *text_at(const td_news *news, const td_delta *d) {
    return news->text.data + d->from;
}

/* Whether there is a delta of a kind, with so many bytes at least. */
static bool has(const td_news *news, td_answer_event_kind kind, size_t bytes) {
    for (size_t i = 0; i < news->n_deltas; i++)
        if (news->deltas[i].kind == kind && news->deltas[i].len >= bytes) return true;
    return false;
}

/* Write on all text of one kind as one string. w->list counts deltas, w->at bytes of one. */
static bool write_text(td_jbuf *b, td_writing *w, const char *key, td_answer_event_kind kind) {
    const td_news *news = w->news;
    if (w->list == 0 && w->at == 0) {
        td_jw_key(b, key);
        td_jw_open(b, '"');
    }
    for (; w->list < news->n_deltas; w->list++, w->at = 0) {
        const td_delta *d = &news->deltas[w->list];
        if (d->kind == kind && !td_write_slices(b, w, text_at(news, d), d->len, &w->at)) return false;
    }
    td_jw_close(b, '"');
    return true;
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

static void write_call(td_jbuf *b, const td_news *news, size_t begin) {
    const td_delta *d = &news->deltas[begin], *arguments = d + 1;
    td_jw_open(b, '{');
    write_call_head(b, text_at(news, d), d->len, text_at(news, d) + d->len, d->id_len);
    td_jw_text(b, text_at(news, arguments), arguments->len);
    td_jw_close(b, '}');
    td_jw_close(b, '}');
}

bool td_write_content(td_jbuf *b, td_writing *w) {
    const td_choice *c = w->choice;
    if (c->n_calls && !has(w->news, TD_ANSWER_CONTENT, 1)) {
        td_jw_member_null(b, "content");
        return true;
    }
    if (c->parser) return write_text(b, w, "content", TD_ANSWER_CONTENT);
    if (w->at == 0) {
        td_jw_key(b, "content");
        td_jw_open(b, '"');
    }
    if (!td_write_slices(b, w, w->news->text.data, w->news->text.len, &w->at)) return false;
    td_jw_close(b, '"');
    return true;
}

bool td_write_reasoning(td_jbuf *b, td_writing *w) {
    return !has(w->news, TD_ANSWER_REASONING, 0) || write_text(b, w, "reasoning_content", TD_ANSWER_REASONING);
}

/* w->list counts deltas: a call is written at once, as its arguments are when they are streamed. */
bool td_write_calls(td_jbuf *b, td_writing *w) {
    const td_news *news = w->news;
    if (w->choice->n_calls == 0) return true;
    if (w->list == 0) {
        td_jw_key(b, "tool_calls");
        td_jw_open(b, '[');
    }
    while (w->list < news->n_deltas) {
        size_t i = w->list++;
        if (news->deltas[i].kind != TD_ANSWER_CALL_BEGIN || end_of_call(news, i) == 0) continue;
        write_call(b, news, i);
        if (b->len >= w->full) return false;
    }
    td_jw_close(b, ']');
    return true;
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
