#include "server/token_answer.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/answer/answer.h"
#include "server/answer/token_texts.h"
#include "server/server_state.h"

#define PIECE_IDS 4096 /* ids of a piece, about */

td_token_answer *td_token_answer_new(td_call *c) {
    c->tokens = calloc(1, sizeof *c->tokens);
    if (c->tokens) c->tokens->hold.budget = c->answers;
    return c->tokens;
}

void td_token_answer_free(td_token_answer *a) {
    if (!a) return;
    free(a->ids);
    free(a->ends);
    td_answer_hold_set(&a->hold, 0);
    td_jbuf_free(&a->piece);
    free(a);
}

static bool append(td_token_answer *a, const uint32_t *ids, size_t n) {
    uint32_t *all = realloc(a->ids, (a->n_ids + n + 1) * sizeof *all);
    if (!all) return false;
    a->ids = all;
    if (n) memcpy(all + a->n_ids, ids, n * sizeof *all);
    size_t *ends = realloc(a->ends, (a->n_lists + 1) * sizeof *ends);
    if (!ends) return false;
    a->ends = ends;
    a->n_ids += n;
    ends[a->n_lists++] = a->n_ids;
    return true;
}

td_status td_token_answer_add(td_token_answer *a, uint32_t *ids, size_t n, td_api_error *err) {
    size_t bytes = (a->n_ids + n) * sizeof *ids + (a->n_lists + 1) * sizeof *a->ends;
    bool   has_room = td_answer_hold_set(&a->hold, bytes), added = has_room && append(a, ids, n);
    free(ids);
    if (added) return TD_OK;
    return has_room ? td_api_no_memory(err) : td_answer_no_room(err, &a->hold, bytes);
}

static void write_text(td_token_answer *a, const td_tokenizer *tok, size_t end) {
    char  *text;
    size_t len;
    if (td_decode_some(tok, a->ids, end, a->skips_special, &a->at, &text, &len) != TD_OK) {
        a->piece.failed = true;
        return;
    }
    td_jw_chars(&a->piece, text, len);
    free(text);
}

static void write_ids(td_token_answer *a, size_t begin, size_t end) {
    for (size_t n = 0; n < PIECE_IDS && a->at < end; n++, a->at++)
        td_jbuf_printf(&a->piece, "%s%u", a->at > begin ? "," : "", a->ids[a->at]);
}

static void write_end(td_token_answer *a, uint32_t model_len) {
    td_jbuf *b = &a->piece;
    if (a->in_lists) td_jbuf_put(b, "]", 1);
    if (!a->decodes) {
        td_jbuf_puts(b, ",\"count\":");
        if (a->in_lists) td_jw_open(b, '[');
        for (size_t i = 0; i < a->n_lists; i++) td_jw_int(b, (int64_t)(a->ends[i] - (i ? a->ends[i - 1] : 0)));
        if (a->in_lists) td_jw_close(b, ']');
        td_jw_member_int(b, "max_model_len", model_len);
    }
    td_jbuf_put(b, "}", 1);
    a->ended = true;
}

/* Make the next piece. */
static void write_piece(td_call *c) {
    td_token_answer       *a = c->tokens;
    const td_served_model *m = &c->server->model;
    td_jbuf               *b = &a->piece;
    b->len = a->sent = 0;
    if (!a->begun) td_jbuf_printf(b, "{\"%s\":%s", a->decodes ? "text" : "tokens", a->in_lists ? "[" : "");
    a->begun = true;
    if (a->list == a->n_lists) {
        write_end(a, m->info.context_length);
        return;
    }
    size_t begin = a->list ? a->ends[a->list - 1] : 0, end = a->ends[a->list];
    if (a->at == begin) td_jbuf_printf(b, "%s%s", a->list ? "," : "", a->decodes ? "\"" : "[");
    if (a->decodes)
        write_text(a, m->tokenizer, end);
    else
        write_ids(a, begin, end);
    if (a->at < end) return;
    td_jbuf_puts(b, a->decodes ? "\"" : "]");
    a->list++;
}

ssize_t td_token_answer_read(td_call *c, char *to, size_t max) {
    td_token_answer *a = c->tokens;
    while (a->sent == a->piece.len && !a->ended) write_piece(c);
    if (a->piece.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = td_jbuf_take(&a->piece, &a->sent, to, max);
    return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

enum MHD_Result td_route_tokens(td_call *c) {
    if (c->failed) return td_answer_error(c, &c->err);
    return td_answer_pieces(c, 200, "application/json", MHD_SIZE_UNKNOWN, td_token_answer_read);
}
