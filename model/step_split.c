#include "model/step_split.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

td_status td_step_split_open(td_step_split *s, uint32_t max_tok, td_error *err) {
    size_t words = (size_t)max_tok + 1;
    *s = (td_step_split){0};
    s->seq_start[0] = calloc(3 * words, sizeof(uint32_t));
    if (!s->seq_start[0]) return td_fail(err, TD_ENOMEM, "out of memory for the halves of a step");
    s->seq_start[1] = s->seq_start[0] + words;
    s->kv_len = s->seq_start[1] + words;
    return TD_OK;
}

void td_step_split_close(td_step_split *s) {
    free(s->seq_start[0]);
    *s = (td_step_split){0};
}

void td_step_split_make(td_step_split *s, const td_step *step) {
    const td_step_arrays *from = &step->host;
    uint32_t              cut = td_first_half(step->n_tok), seq = 0;
    assert(step->n_tok >= TD_HALVES && step->n_seq <= step->n_tok);
    while (from->seq_start[seq + 1] <= cut) seq++; /* the sequence of row `cut`, the second half's first */
    bool across = from->seq_start[seq] < cut;

    td_step *a = &s->half[0], *b = &s->half[1];
    *a = (td_step){.n_tok = cut, .n_seq = seq + across, .block_stride = step->block_stride, .host = *from};
    memcpy(s->seq_start[0], from->seq_start, a->n_seq * sizeof *from->seq_start);
    memcpy(s->kv_len, from->kv_len, a->n_seq * sizeof *from->kv_len);
    s->seq_start[0][a->n_seq] = cut;
    if (across) s->kv_len[seq] -= from->seq_start[seq + 1] - cut;
    a->host.seq_start = s->seq_start[0];
    a->host.kv_len = s->kv_len;

    *b = (td_step){.n_tok = step->n_tok - cut, .n_seq = step->n_seq - seq, .block_stride = step->block_stride};
    for (uint32_t i = 1; i <= b->n_seq; i++) s->seq_start[1][i] = from->seq_start[seq + i] - cut;
    s->seq_start[1][0] = 0;
    b->host = (td_step_arrays){.token = from->token + cut, .pos = from->pos + cut, .slot = from->slot + cut, .seq_start = s->seq_start[1],
                               .kv_len = from->kv_len + seq, .absorbed = from->absorbed + seq,
                               .block_table = from->block_table + (size_t)seq * step->block_stride};
    a->host.out_row = NULL;
    a->dev = a->host; /* unified memory; a device with memory of its own mirrors the arrays here */
    b->dev = b->host;
}
