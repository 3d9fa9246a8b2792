/* The parts of a step's sequences that a recurrent layer computes together, and where their states lie. */
#include "npu/host/host_device.h"

#define BLOCK ((uint32_t)TD_STATE_BLOCK)

td_status td_host_check_states(const td_host_step *s, uint32_t state_slots, uint32_t open_slots) {
    const td_step_arrays *a = &s->a;
    if (s->n_tok == 0) return TD_OK;
    if (!a->state_in || !a->state_out || !a->state_open) return TD_EINVAL;
    if (a->seq_start[0] != 0 || a->seq_start[s->n_seq] != s->n_tok) return TD_EINVAL;
    for (uint32_t q = 0; q < s->n_seq; q++) {
        const uint32_t first = a->seq_start[q], end = a->seq_start[q + 1], in = a->state_in[q];
        if (end < first || end > s->n_tok) return TD_EINVAL;
        if (first == end) continue;
        const uint32_t pos = a->pos[first], n = end - first;
        if (n > UINT32_MAX - pos || a->state_open[q] >= open_slots) return TD_EINVAL;
        if (in == TD_STATE_NONE ? pos >= BLOCK : in >= state_slots) return TD_EINVAL;
        if (pos % BLOCK + n >= BLOCK && a->state_out[q] >= state_slots) return TD_EINVAL;
        for (uint32_t i = 1; i < n; i++)
            if (a->pos[first + i] != pos + i) return TD_EINVAL;
    }
    return TD_OK;
}

td_status td_host_check_open(const td_host_step *s, uint32_t open_slots) {
    const td_step_arrays *a = &s->a;
    if (s->n_tok == 0) return TD_OK;
    if (!a->state_open) return TD_EINVAL;
    for (uint32_t q = 0; q < s->n_seq; q++)
        if (a->seq_start[q + 1] > a->seq_start[q] && a->state_open[q] >= open_slots) return TD_EINVAL;
    return TD_OK;
}

td_host_part td_host_part_of(const td_step_arrays *a, uint32_t q, size_t row0, size_t rows) {
    const size_t first = a->seq_start[q] > row0 ? a->seq_start[q] : row0,
                 end = a->seq_start[q + 1] < row0 + rows ? a->seq_start[q + 1] : row0 + rows;
    if (first >= end) return (td_host_part){0};
    const uint32_t pos = a->pos[first];
    const bool     ended = pos / BLOCK > a->pos[a->seq_start[q]] / BLOCK;
    return (td_host_part){.row = (uint32_t)(first - row0),
                          .n = (uint32_t)(end - first),
                          .pos = pos,
                          .from = pos < BLOCK ? TD_STATE_NONE
                                  : ended     ? a->state_out[q]
                                              : a->state_in[q],
                          .to = a->state_out[q],
                          .open = a->state_open[q],
                          .is_last = end == a->seq_start[q + 1]};
}
