#include "npu/host/host_chosen.h"

#include <string.h>

static uint16_t expert_of(const td_host_choice *c, uint16_t id) {
    return c->slot_of ? td_id_number(id) : id;
}

/* Of ids that are no expert's, too. */
static bool counts(const td_host_choice *c, size_t choice) {
    const uint16_t id = c->ids[choice], e = expert_of(c, id);
    if (choice % c->top_k < c->first_choice || choice % c->top_k >= c->end_choice) return false;
    return !c->slot_of || (td_id_is_resident(id) && (e >= c->n_experts || c->slot_of[e] != TD_SLOT_ELSEWHERE));
}

td_status td_host_choice_list(const td_host_choice *c) {
    memset(c->first, 0, (c->n_experts + 1) * sizeof *c->first);
    for (size_t i = 0; i < c->rows * c->top_k; i++) {
        if (!counts(c, i)) continue;
        const uint16_t e = expert_of(c, c->ids[i]);
        if (e >= c->n_experts) return TD_EINVAL;
        if (++c->first[e + 1] > c->rows) return TD_EINVAL; /* a row has it twice */
    }
    for (size_t e = 0; e < c->n_experts; e++) c->first[e + 1] += c->first[e];
    for (size_t row = 0; row < c->rows; row++) {
        uint32_t terms = 0;
        for (size_t i = row * c->top_k; i < (row + 1) * c->top_k; i++) {
            if (!counts(c, i)) continue;
            c->list[c->first[expert_of(c, c->ids[i])]++] = (td_host_chosen){(uint32_t)row, c->weights[i]};
            terms++;
        }
        td_exact_begin(c->sums + row * td_exact_words(c->hidden), c->hidden, terms);
    }
    memmove(c->first + 1, c->first, c->n_experts * sizeof *c->first); /* each has become the next one's */
    c->first[0] = 0;
    return TD_OK;
}

typedef struct {
    td_host_npu          *d;
    const td_host_choice *c;
    const td_host_chosen *list; /* the expert's */
    const float          *outputs;
} add_job;

static void add_row(void *ctx, uint32_t i, const td_worker *w) {
    const add_job *j = ctx;
    const size_t   hidden = j->c->hidden;
    (void)w;
    j->d->kernels->rows->exact_add(j->list[i].weight, j->outputs + i * hidden, hidden,
                                   j->c->sums + j->list[i].row * td_exact_words(hidden));
}

void td_host_choice_add(td_host_npu *d, const td_host_choice *c, size_t expert, const float *outputs) {
    const size_t n = c->first[expert + 1] - c->first[expert];
    td_host_for(d, add_row, &(add_job){d, c, c->list + c->first[expert], outputs}, n, n * c->hidden);
}
