#include "server/api/answer_budget.h"

static size_t counted(size_t bytes) {
    return bytes > TD_ANSWER_FREE ? bytes - TD_ANSWER_FREE : 0;
}

void td_answer_hold_force(td_answer_hold *h, size_t bytes) {
    if (!h->budget) return;
    size_t to = counted(bytes);
    if (to > h->bytes)
        atomic_fetch_add_explicit(&h->budget->used, to - h->bytes, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&h->budget->used, h->bytes - to, memory_order_relaxed);
    h->bytes = to;
}

bool td_answer_hold_set(td_answer_hold *h, size_t bytes) {
    size_t from = h->bytes;
    td_answer_hold_force(h, bytes);
    if (h->bytes <= from || atomic_load_explicit(&h->budget->used, memory_order_relaxed) <= h->budget->max) return true;
    atomic_fetch_sub_explicit(&h->budget->used, h->bytes - from, memory_order_relaxed);
    h->bytes = from;
    return false;
}

bool td_answer_hold_could(const td_answer_hold *h, size_t bytes) {
    return !h->budget || counted(bytes) <= h->budget->max;
}
