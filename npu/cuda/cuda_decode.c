#include "npu/cuda/cuda_decode.h"

uint32_t td_cuda_decode_at_once(uint32_t rows, size_t row_bytes) {
    size_t most = TD_CUDA_PARTIAL_BYTES / row_bytes;
    return most < 1 ? 1 : most < rows ? (uint32_t)most : rows;
}

void td_cuda_decode_place(size_t *used, uint32_t rows, size_t row_bytes, td_cuda_places *at) {
    size_t at_once = td_cuda_decode_at_once(rows, row_bytes);
    at->count = td_cuda_place(used, td_div_up(rows, at_once) * sizeof(uint32_t));
    at->list = td_cuda_place(used, (size_t)rows * 2 * sizeof(uint32_t));
    at->partial = td_cuda_place(used, at_once * row_bytes);
}

bool td_cuda_decode_is_whole(const td_step *step, uint32_t at_once) {
    return step->kind == TD_STEP_GENERATED && step->max_tok <= at_once;
}

td_cuda_decode td_cuda_decode_rows(td_cuda_run *r, const td_npu_block *b, const void *absorbed, uint32_t at_once) {
    const td_step *s = r->step;
    td_cuda_count  all = td_cuda_n_tok(r);
    if (s->kind == TD_STEP_PROMPTS) return (td_cuda_decode){0};
    if (td_cuda_decode_is_whole(s, at_once))
        return (td_cuda_decode){.most = all.most, .at_once = all.most, .count = all.count};
    uint32_t       most = s->kind == TD_STEP_MIXED && all.most > TD_MIXED_ROWS ? TD_MIXED_ROWS : all.most;
    td_cuda_decode d = {
        .most = most, .at_once = at_once, .count = r->scratch + b->at.count, .list = r->scratch + b->at.list};
    TD_CUDA_LAUNCH(r, LIST_ROWS, TD_GRID(1, 1, 1), 0, TD_P(td_cuda_n_seq(r)), TD_P(s->dev.seq_start), TD_P(absorbed),
                   TD_U(TD_SHORT_ROWS), TD_U(at_once), TD_U(td_div_up(most, at_once)), TD_P(d.list), TD_P(d.count));
    return d;
}

bool td_cuda_decode_piece(const td_cuda_decode *d, uint32_t i, td_cuda_piece *out) {
    size_t first = (size_t)i * d->at_once;
    if (first >= d->most) return false;
    uint32_t n = d->most - first < d->at_once ? (uint32_t)(d->most - first) : d->at_once;
    *out = (td_cuda_piece){{d->count + i * sizeof(uint32_t), n}, d->list ? d->list + first * 2 * sizeof(uint32_t) : NULL};
    return true;
}
