/* The router: f32 logits, then the choice of each row. */
#include <math.h>

#include "core/error.h"
#include "npu/host/host_device.h"

#define CHUNK_ROWS 1024

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    const td_host_step *step;
    size_t              row0;
} router_job;

/* A NaN counts as less than everything else. */
static bool is_larger(float a, float b) {
    return a > b || (isnan(b) && !isnan(a));
}

/* The n largest of value[0 .. count), where allowed, in descending order; ties to the lower index. At least n must be
 * allowed. */
static void pick_largest(const float *value, const bool *allowed, size_t count, size_t n, uint16_t *picked) {
    size_t found = 0;
    for (size_t e = 0; e < count; e++) {
        if ((allowed && !allowed[e]) || (found == n && !is_larger(value[e], value[picked[n - 1]]))) continue;
        size_t at = found < n ? found++ : n - 1;
        for (; at > 0 && is_larger(value[e], value[picked[at - 1]]); at--) picked[at] = picked[at - 1];
        picked[at] = (uint16_t)e;
    }
}

static void limit_to_groups(const td_router_desc *r, const float *choice, bool *allowed) {
    float    score[TD_EXPERTS_MAX];
    uint16_t groups[TD_EXPERTS_MAX];
    size_t   size = r->n_experts / r->n_group;
    for (size_t g = 0; g < r->n_group; g++) {
        uint16_t     two[2];
        const float *c = choice + g * size;
        pick_largest(c, NULL, size, size < 2 ? 1 : 2, two);
        score[g] = c[two[0]];
        if (r->group == TD_GROUP_TOP2_SUM && size > 1) score[g] += c[two[1]];
    }
    pick_largest(score, NULL, r->n_group, r->topk_group, groups);
    memset(allowed, 0, r->n_experts * sizeof *allowed);
    for (size_t i = 0; i < r->topk_group; i++) memset(allowed + groups[i] * size, 1, size * sizeof *allowed);
}

/* The logits of the chosen become their softmax. */
static void softmax_chosen(const td_float_math *m, float *s, const uint16_t *ids, size_t n) {
    float chosen[TD_TOP_K_MAX], max = -INFINITY;
    for (size_t k = 0; k < n; k++) {
        chosen[k] = s[ids[k]];
        max = chosen[k] > max ? chosen[k] : max;
    }
    float sum = m->exp_sum(chosen, max, n);
    for (size_t k = 0; k < n; k++) s[ids[k]] = chosen[k] / sum;
}

static void sqrt_softplus(float *s, size_t n) {
    for (size_t e = 0; e < n; e++) s[e] = sqrtf(s[e] > 20 ? s[e] : log1pf(expf(s[e])));
}

/* The experts that the table has for the row's token. */
static void look_up(const td_router_desc *r, uint32_t token, uint16_t *ids) {
    float row[TD_TOP_K_MAX];
    td_host_weight_row(r->by_token, token, row);
    for (size_t k = 0; k < r->top_k; k++) ids[k] = (uint16_t)row[k];
}

static void route_row(void *ctx, uint32_t i, const td_worker *worker) {
    const router_job     *j = ctx;
    const td_router_desc *r = &j->b->desc.router;
    const td_float_math  *m = j->d->kernels->math;
    float                *s = (float *)(j->d->scratch + j->b->at.f32) + (size_t)i * r->n_experts; /* logits, then scores */
    float                 choice[TD_EXPERTS_MAX], w[TD_TOP_K_MAX];
    bool                  allowed[TD_EXPERTS_MAX];
    uint16_t              ids[TD_TOP_K_MAX];
    (void)worker;
    if (r->score == TD_SCORE_SIGMOID) {
        m->sigmoid(s, r->n_experts);
    } else if (r->score == TD_SCORE_SQRT_SOFTPLUS) {
        sqrt_softplus(s, r->n_experts);
    } else if (r->score == TD_SCORE_SOFTMAX) {
        float max = -INFINITY;
        for (size_t e = 0; e < r->n_experts; e++) max = s[e] > max ? s[e] : max;
        float sum = m->exp_sum(s, max, r->n_experts);
        for (size_t e = 0; e < r->n_experts; e++) s[e] /= sum;
    }
    memcpy(choice, s, r->n_experts * sizeof *s);
    if (r->bias) m->add(choice, td_host_vector(r->bias), r->n_experts);
    if (r->group != TD_GROUP_NONE) limit_to_groups(r, choice, allowed);
    if (r->by_token)
        look_up(r, j->step->a.token[j->row0 + i], ids);
    else
        pick_largest(choice, r->group != TD_GROUP_NONE ? allowed : NULL, r->n_experts, r->top_k, ids);

    if (r->score == TD_SCORE_SOFTMAX_CHOSEN) softmax_chosen(m, s, ids, r->top_k);

    float sum = 0;
    for (size_t k = 0; k < r->top_k; k++) sum += s[ids[k]];
    for (size_t k = 0; k < r->top_k; k++) w[k] = (r->normalise ? s[ids[k]] / (sum + 1e-20f) : s[ids[k]]) * r->scale;
    uint16_t *ids_out = (uint16_t *)r->ids + (j->row0 + i) * r->top_k;
    float    *w_out = r->weights + (j->row0 + i) * r->top_k;
    for (size_t k = 0; k < r->top_k; k++) { /* insertion by descending weight, ties to the lower id */
        size_t at = k;
        while (at > 0 && (w[k] > w_out[at - 1] || (w[k] == w_out[at - 1] && ids[k] < ids_out[at - 1]))) {
            w_out[at] = w_out[at - 1];
            ids_out[at] = ids_out[at - 1];
            at--;
        }
        w_out[at] = w[k];
        ids_out[at] = ids[k];
    }
    for (size_t k = 0; r->slot_of && k < r->top_k; k++)
        if (r->slot_of[ids_out[k]] != TD_NO_SLOT) ids_out[k] |= TD_ID_RESIDENT;
}

static td_status run_router(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_router_desc *r = &b->desc.router;
    for (uint32_t i = 0; r->by_token && i < s->n_tok; i++)
        if (s->a.token[i] >= r->by_token->shape.n) return TD_EINVAL;
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        size_t       rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        float       *logits = (float *)(d->scratch + b->at.f32);
        router_job   j = {.d = d, .b = b, .step = s, .row0 = row};
        td_host_rows x;
        td_host_rows_init(&x, d->scratch + b->at.rows, (const char *)r->in + td_host_act_bytes(d, row * r->hidden), d->act,
                          rows, r->hidden);
        td_host_products(
            d, &x,
            &(td_host_product){.w = r->w, .bias = r->logit_bias, .out = logits, .ldo = r->n_experts, .out_dtype = TD_DT_F32},
            1);
        td_host_for(d, route_row, &j, rows, rows * r->n_experts * r->top_k);
    }
    return TD_OK;
}

static void place_router(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    size_t used = 0;
    b->run = run_router;
    b->at.chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    b->at.rows = td_host_place(&used, td_host_rows_bytes(b->at.chunk, desc->router.hidden, d->act));
    b->at.f32 = td_host_place(&used, b->at.chunk * desc->router.n_experts * sizeof(float));
    b->scratch_bytes = used;
}

/* The table of tokens has distinct experts that there are. */
static td_status check_router(td_host_npu *d, const td_block_desc *desc, td_error *err) {
    const td_router_desc *r = &desc->router;
    (void)d;
    for (uint32_t token = 0; r->by_token && token < r->by_token->shape.n; token++) {
        float row[TD_TOP_K_MAX];
        td_host_weight_row(r->by_token, token, row);
        for (size_t k = 0; k < r->top_k; k++) {
            bool is_new = row[k] >= 0 && row[k] < (float)r->n_experts;
            for (size_t before = 0; before < k; before++) is_new &= (uint16_t)row[before] != (uint16_t)row[k];
            if (!is_new)
                return td_fail(err, TD_EFORMAT, "token %u has expert %g, which there is not, or twice", token,
                               (double)row[k]);
        }
    }
    return TD_OK;
}

const td_host_block_kind td_host_router = {.place = place_router, .check = check_router};
