/*
 * OpenAI's harmony format, which gpt-oss writes: messages in channels,
 *   <|channel|>analysis<|message|>REASONING<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
 * Source: developers.openai.com/cookbook/articles/openai-harmony.
 *
 * A recipient may also stand before <|channel|>. Commentary without a recipient is for the user. The prompt ends with
 * <|start|>assistant, so an answer begins inside a header. What is not asked for (calls, or reasoning) stays in the text
 * with its markers.
 */
#include "text/parse/answer_parser.h"

#define HEADER_BYTES_MAX 2048

enum { TEXT, HEADER, CALL };
enum { START, CHANNEL, END, RETURN, CALL_END }; /* of MARKERS */

static const char RECIPIENT_MARK[] = " to=", MESSAGE_MARK[] = "<|message|>", CHANNEL_MARK[] = "<|channel|>";

static const td_marker_set MARKERS = {{"<|start|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>"}, 5};
/* The markers at the beginning of the answer, where a recipient may come. */
static const td_marker_set FIRST_MARKERS = {
    {"<|start|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>", " to=functions."}, 6};

void td_harmony_open(td_answer_parser *p) {
    p->section = TD_SECTION_CONTENT;
    p->markers = FIRST_MARKERS;
}

static void put_raw(td_answer_parser *p) {
    for (size_t i = 0; i < p->raw.n; i++) td_section_put(p, p->raw.at[i]);
    p->raw.n = 0;
}

static void text_begins(td_answer_parser *p, bool reasoning, bool as_is) {
    p->harmony = (td_harmony_state){.phase = TEXT, .reasoning = reasoning, .as_is = as_is};
    p->section = reasoning ? TD_SECTION_REASONING : TD_SECTION_CONTENT;
    if (as_is) put_raw(p);
    p->raw.n = 0;
}

/* A word of the header: what follows the mark, up to a blank or a marker. */
static size_t word_after(const td_answer_parser *p, const char *mark, const char **word) {
    const char *at = memmem(p->raw.at, p->raw.n, mark, strlen(mark));
    size_t      n = 0;
    if (!at) return 0;
    *word = at += strlen(mark);
    while (at + n < p->raw.at + p->raw.n && !td_is_blank(at[n]) && at[n] != '<') n++;
    return n;
}

static bool is_word(const char *word, size_t n, const char *what) {
    return n == strlen(what) && !memcmp(word, what, n);
}

/* The header is complete: decide what kind of message comes. */
static void message_begins(td_answer_parser *p) {
    const char *channel = "", *recipient = "";
    size_t      n = word_after(p, CHANNEL_MARK, &channel), n_recipient = word_after(p, RECIPIENT_MARK, &recipient);
    if (n_recipient && p->tools) {
        p->harmony = (td_harmony_state){.phase = CALL};
        p->at = (td_section_state){.name_at = (size_t)(recipient - p->raw.at), .name_len = n_recipient};
        if (n_recipient > 10 && !memcmp(recipient, "functions.", 10)) p->at.name_at += 10, p->at.name_len -= 10;
        p->arguments_scan = (td_json_scan){0};
    } else if (is_word(channel, n, "analysis") && !n_recipient) {
        text_begins(p, p->reasoning, !p->reasoning);
    } else {
        text_begins(p, false, n_recipient || !(is_word(channel, n, "final") || is_word(channel, n, "commentary")));
    }
}

static void text_byte(td_answer_parser *p, char c) {
    char   released[TD_MARKER_BYTES_MAX];
    size_t n;
    int    found = td_marker_scan_byte(&p->scan, &p->markers, c, released, &n);
    for (size_t i = 0; i < n; i++) td_section_put(p, released[i]);
    if (n == 0 && found < 0) return;
    const char *marker = found < 0 ? "" : p->markers.at[found];
    p->markers = MARKERS;
    if (found < 0) return;
    bool closes = found == END || found == RETURN || found == CALL_END;
    td_bytes_put(&p->raw, marker, strlen(marker));
    if (closes && p->harmony.as_is) put_raw(p);
    p->section = TD_SECTION_CONTENT;
    p->harmony = (td_harmony_state){.phase = closes ? TEXT : HEADER};
    if (closes) p->raw.n = 0;
}

static void call_byte(td_answer_parser *p, char c) {
    td_bytes_put(&p->raw, &c, 1);
    if (p->raw.failed) return;
    td_call_verdict verdict = TD_CALL_MORE;
    if (p->raw.n > TD_CALL_BYTES_MAX)
        verdict = TD_CALL_NOT;
    else if (!p->begun && c == '{')
        td_call_begin(p, p->raw.at + p->at.name_at, p->at.name_len, NULL, 0);
    else if (!p->begun && !td_is_blank(c))
        verdict = TD_CALL_NOT;
    if (p->begun && verdict == TD_CALL_MORE) verdict = td_call_json_arguments(p, &p->arguments_scan, c);
    if (verdict == TD_CALL_MORE) return;
    if (verdict == TD_CALL_NOT) {
        td_call_give_back(p);
        text_begins(p, false, true);
        text_byte(p, c);
    } else {
        text_begins(p, false, false);
    }
}

void td_harmony_byte(td_answer_parser *p, char c) {
    if (p->harmony.phase == TEXT) {
        text_byte(p, c);
    } else if (p->harmony.phase == CALL) {
        call_byte(p, c);
    } else {
        td_bytes_put(&p->raw, &c, 1);
        if (p->raw.failed) return;
        if (c == '>' && td_bytes_end_with(&p->raw, 0, MESSAGE_MARK))
            message_begins(p);
        else if (p->raw.n > HEADER_BYTES_MAX)
            text_begins(p, false, true);
    }
}

void td_harmony_end(td_answer_parser *p) {
    if (p->harmony.phase == CALL) {
        td_bytes_put(&p->raw, "", 1); /* a byte too many, since all but the last is given back */
        td_call_give_back(p);
    } else if (p->harmony.phase == HEADER) {
        put_raw(p);
    }
}
