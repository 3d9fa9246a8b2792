#include "server/answer/answer_parts.h"

#define SLICE_BYTES ((size_t)8 << 10)

enum { BEGIN, CHOICES, END }; /* stages of an answer, each with a list of parts */

static void begin_choice(td_writing *w, td_choice *c) {
    w->choice = c;
    w->state = td_choice_get_state(c);
    w->news = &c->news;
}

/* A list of parts is written: go on with the next choice, or the next list. */
static void next_list(td_generation *g, td_writing *w) {
    bool is_last = w->stage != CHOICES || w->choice->index + 1 == g->n_choices;
    begin_choice(w, is_last ? &g->choices[0] : w->choice + 1);
    w->part = 0;
    w->stage += is_last;
}

bool td_write_parts(td_generation *g, const td_answer_parts *of, td_jbuf *b) {
    const td_part_fn *const stages[] = {[BEGIN] = of->begin, [CHOICES] = of->choice, [END] = of->end};
    td_writing             *w = &g->writing;
    if (!w->choice) begin_choice(w, &g->choices[0]);
    w->full = TD_ANSWER_PIECE;
    for (; w->stage <= END; next_list(g, w)) {
        for (; stages[w->stage][w->part]; w->part++, w->list = w->at = 0)
            if (b->len >= w->full || !stages[w->stage][w->part](b, w)) return false;
    }
    return true;
}

void td_write_part(td_jbuf *b, td_part_fn part, td_choice *c, const td_choice_state *st, const td_news *news) {
    td_writing w = {.choice = c, .state = *st, .news = news, .full = SIZE_MAX};
    part(b, &w);
}

bool td_write_list(td_jbuf *b, td_writing *w, const char *key, size_t n,
                   void (*entry)(td_jbuf *b, const td_writing *w, size_t i)) {
    if (w->at == 0) {
        td_jw_key(b, key);
        td_jw_open(b, '[');
    }
    while (w->at < n) {
        entry(b, w, w->at++);
        if (b->len >= w->full && w->at < n) return false;
    }
    td_jw_close(b, ']');
    w->at = 0;
    return true;
}

size_t td_slice_end(const char *text, size_t len, size_t at) {
    if (len - at <= SLICE_BYTES) return len;
    size_t end = at + SLICE_BYTES;
    for (size_t i = 0; i < 3 && end < len && ((unsigned char)text[end] & 0xc0) == 0x80; i++) end++;
    return end;
}

bool td_write_slices(td_jbuf *b, const td_writing *w, const char *text, size_t len, size_t *at) {
    while (*at < len) {
        size_t end = td_slice_end(text, len, *at);
        td_jw_chars(b, text + *at, end - *at);
        *at = end;
        if (b->len >= w->full) return false;
    }
    return true;
}
