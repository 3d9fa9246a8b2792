/* The best logits of a row and what its log-softmax needs, so that a step need not carry all of them to the host. */
#include <math.h>

#include "core/math/row_math.h"
#include "npu/host/host_device.h"

/* Descending logit, then ascending id, as an unsigned number that falls. */
static uint64_t order_of(td_logit l) {
    uint32_t bits;
    float    x = l.value + 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 1u << 31;
    return (uint64_t)bits << 32 | (uint32_t)~l.id;
}

/* h [n] is a heap whose root is the last in order, but for the root, which has come new. */
static void sift_down(td_logit *h, size_t n) {
    td_logit v = h[0];
    size_t   at = 0;
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && order_of(h[child + 1]) < order_of(h[child])) child++;
        if (order_of(v) <= order_of(h[child])) break;
        h[at] = h[child];
    }
    h[at] = v;
}

static void top_row(void *ctx, uint32_t i, const td_worker *w) {
    const td_top_desc *t = ctx;
    const float       *logits = t->logits + (size_t)i * t->vocab;
    td_logit          *top = t->top + (size_t)i * t->k;
    bool               fine = true;
    (void)w;
    for (uint32_t id = 0; id < t->k; id++) top[id] = (td_logit){-INFINITY, UINT32_MAX}; /* behind every real one */
    for (uint32_t id = 0; id < t->vocab; id++) {
        td_logit l = {logits[id], id};
        fine &= l.value < INFINITY;
        if (l.value < top[0].value || order_of(l) <= order_of(top[0])) continue;
        top[0] = l;
        sift_down(top, t->k);
    }
    for (size_t end = t->k; end-- > 1;) { /* heap sort: the root is the last of those that are left */
        td_logit last = top[0];
        top[0] = top[end];
        sift_down(top, end);
        top[end] = last;
    }
    if (!fine) top[0].value = NAN;
    if (!t->sums) return;
    float max = td_row_max(logits, t->vocab);
    t->sums[i] = (td_log_sum){max, td_row_exp_sum(logits, t->vocab, max)};
}

static td_status run_top(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    if (s->n_out > b->desc.top.max_out) return TD_EINVAL;
    td_host_for(d, top_row, (void *)&b->desc.top, s->n_out, (size_t)s->n_out * b->desc.top.vocab);
    return TD_OK;
}

static void place_top(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    (void)d, (void)desc;
    b->run = run_top;
}

const td_host_block_kind td_host_top = {.place = place_top};
