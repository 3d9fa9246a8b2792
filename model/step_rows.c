#include "model/step_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"

td_status td_step_rows_open(td_step_rows *r, uint32_t max_tok, uint32_t max_seq, uint32_t max_seq_tokens, td_error *err) {
    size_t stride = (size_t)max_seq_tokens / TD_KV_PAGE + 1, table, seq = max_seq;
    *r = (td_step_rows){.max_tok = max_tok, .max_seq = max_seq, .block_stride = (uint32_t)stride};
    if (td_mul_size(seq, stride, &table) && table < SIZE_MAX / 16 - 12 * (size_t)max_tok - 6 * seq)
        r->memory = calloc(
            max_tok * sizeof *r->images + (8 * (size_t)max_tok + 5 * seq + 1 + 2 * table) * sizeof(uint32_t) + seq, 1);
    if (!r->memory) return td_fail(err, TD_ENOMEM, "out of memory for the rows of a step");
    r->images = r->memory;
    r->token = (uint32_t *)(r->images + max_tok);
    r->pos = r->token + max_tok;
    r->slot = r->pos + max_tok;
    r->window_slot = r->slot + max_tok;
    r->rope_pos = r->window_slot + max_tok;
    r->image_row = r->rope_pos + 3 * (size_t)max_tok;
    r->kv_len = r->image_row + max_tok;
    r->seq_start = r->kv_len + seq;
    r->state_in = r->seq_start + seq + 1;
    r->state_out = r->state_in + seq;
    r->state_open = r->state_out + seq;
    r->block_table = r->state_open + seq;
    r->window_table = r->block_table + table;
    r->absorbed = (uint8_t *)(r->window_table + table);
    return TD_OK;
}

void td_step_rows_close(td_step_rows *r) {
    free(r->memory);
    *r = (td_step_rows){0};
}

static uint32_t add_image_row(td_step_rows *r, const td_sequence_image *m, uint32_t at) {
    r->images[r->n_images] = (td_image_row){.features = m->features, .at = at, .of = m->rows * m->columns};
    return r->n_images++;
}

/* Rope positions and images of rows `row` and on. */
static void fill_places(td_step_rows *r, const td_step_sequence *seq, uint32_t first, uint32_t n, uint32_t row) {
    uint32_t k = 0, behind = 0; /* the image that is next, or that the row is in; tokens before it, less their positions */
    for (uint32_t pos = first; pos < first + n; pos++, row++) {
        uint32_t                *out = r->rope_pos + 3 * (size_t)row;
        const td_sequence_image *m = seq->images + k;
        for (; k < seq->n_images && pos - m->first >= m->rows * m->columns && pos >= m->first; m = seq->images + ++k)
            behind += m->rows * m->columns - (m->rows > m->columns ? m->rows : m->columns);
        const bool     in_image = k < seq->n_images && pos >= m->first;
        const uint32_t at = in_image ? pos - m->first : 0, p = pos - at - behind;
        out[0] = p;
        out[1] = in_image ? p + at / m->columns : p;
        out[2] = in_image ? p + at % m->columns : p;
        r->image_row[row] = in_image && m->features ? add_image_row(r, m, at) : TD_NO_IMAGE;
    }
}

void td_step_rows_add(td_step_rows *r, const uint32_t *tokens, uint32_t first, uint32_t n, const td_step_sequence *seq) {
    const uint32_t *windows = seq->windows ? seq->windows : seq->pages;
    uint32_t        at = r->n_seq++, row = r->n_tok;
    assert(n >= 1 && at < r->max_seq && n <= r->max_tok - row && seq->n_pages <= r->block_stride &&
           (first + n - 1) / TD_KV_PAGE < seq->n_pages);
    fill_places(r, seq, first, n, row);
    for (uint32_t i = 0; i < n; i++, row++) {
        uint32_t pos = first + i;
        r->token[row] = tokens[i];
        r->pos[row] = pos;
        r->slot[row] = seq->pages[pos / TD_KV_PAGE] * TD_KV_PAGE + pos % TD_KV_PAGE;
        r->window_slot[row] = windows[pos / TD_KV_PAGE] * TD_KV_PAGE + pos % TD_KV_PAGE;
    }
    r->seq_start[at] = r->n_tok;
    r->seq_start[at + 1] = r->n_tok = row;
    r->kv_len[at] = first + n;
    r->absorbed[at] = seq->absorbed;
    r->state_in[at] = seq->state.in;
    r->state_out[at] = seq->state.out;
    r->state_open[at] = seq->state.open;
    memcpy(r->block_table + (size_t)at * r->block_stride, seq->pages, seq->n_pages * sizeof *seq->pages);
    memcpy(r->window_table + (size_t)at * r->block_stride, windows, seq->n_pages * sizeof *windows);
}

/* A half may have some rows of a sequence that is not short. */
td_step_kind td_step_rows_kind(const td_step_rows *r) {
    bool     all_generated = true;
    uint32_t few = 0;
    for (uint32_t q = 0; q < r->n_seq; q++) {
        uint32_t rows = r->seq_start[q + 1] - r->seq_start[q];
        bool     is_short = rows < TD_SHORT_ROWS;
        all_generated = all_generated && is_short && r->absorbed[q];
        if (is_short || r->absorbed[q]) few += rows;
    }
    if (all_generated) return TD_STEP_GENERATED;
    return few == 0 ? TD_STEP_PROMPTS : few + TD_SHORT_ROWS <= TD_MIXED_ROWS ? TD_STEP_MIXED : TD_STEP_ANY;
}
