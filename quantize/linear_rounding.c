#include "quantize/linear_rounding.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "quant/convert.h"
#include "quant/hessian.h"

/* One linear of the pool's loop. */
typedef struct {
    td_role   role;
    double    nearest, error;
    td_status status;
    td_error  err;
} linear;

typedef struct {
    td_linear_rounding *r;
    linear              linears[TD_ROLE_COUNT];
    uint32_t            n;
} round_job;

/* Whether a role's linear becomes int8 by what it reads. The MTP layer's head is not run here, and U is held exactly as it is. */
static bool is_rounded(const td_quantizer *q, td_role role, uint32_t layer, td_tensor_spec *spec) {
    if (role == TD_ROLE_MTP_HEAD || role == TD_ROLE_MTP_UNTURN) return false;
    return td_tensor_spec_get(&q->config, role, layer, 0, spec) && td_quantizer_makes_int8(q, role, spec);
}

void td_linear_rounding_open(td_linear_rounding *r, td_quantizer *q, uint32_t layer) { *r = (td_linear_rounding){.q = q, .layer = layer, .status = TD_OK}; }

void td_linear_rounding_close(td_linear_rounding *r) {
    for (uint32_t i = 0; i < r->n_inputs; i++) free(r->inputs[i].h);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        free(r->codes[role]);
        free(r->scales[role]);
    }
    *r = (td_linear_rounding){0};
}

void td_linear_rounding_add(td_linear_rounding *r, const td_role *roles, size_t n, const float *x, size_t m, size_t k) {
    td_tensor_spec spec;
    td_role        rounded = TD_ROLE_COUNT; /* one of those that become int8: they share their input */
    for (size_t i = 0; i < n; i++)
        if (is_rounded(r->q, roles[i], r->layer, &spec)) rounded = roles[i];
    if (rounded == TD_ROLE_COUNT || r->status != TD_OK) return;
    if (!r->input_of[rounded]) {
        r->inputs[r->n_inputs].k = k;
        r->inputs[r->n_inputs].h = calloc(k * k, sizeof(float));
        if (!r->inputs[r->n_inputs].h) {
            r->status = td_fail(r->q->err, TD_ENOMEM, "out of memory for the inputs of layer %u", r->layer);
            return;
        }
        r->n_inputs++;
        for (size_t i = 0; i < n; i++) r->input_of[roles[i]] = r->n_inputs;
    }
    uint32_t input = r->input_of[rounded] - 1;
    td_hessian_add(&r->q->blas, x, m, k, k, r->inputs[input].h);
    r->inputs[input].n_rows += m;
}

static td_status round_linear(td_linear_rounding *r, linear *l) {
    const td_quantizer *q = r->q;
    const td_blas      *b = &q->blas;
    td_scratch          scratch = {0};
    td_tensor_view      view;
    td_round_options    options = td_round_options_of(q->method, 8, 0), nearest = td_round_options_of(TD_ROUND_NEAREST, 8, 0);
    uint32_t            input = r->input_of[l->role] - 1;
    const float        *h = r->inputs[input].h;
    options.damping = td_round_damping(r->inputs[input].k, r->inputs[input].n_rows);
    td_status           s = td_checkpoint_get_unturned(q->source, &q->config, l->role, r->layer, true, &scratch, &view, &l->err);
    if (s != TD_OK || view.dtype == TD_DT_I8) { /* in int8 already */
        td_scratch_reset(&scratch);
        return s;
    }
    size_t    n = view.shape[0], k = view.shape[1];
    float    *w = malloc(n * k * sizeof *w);
    int8_t   *codes = r->codes[l->role] = malloc(n * k);
    float    *scales = r->scales[l->role] = malloc(n * sizeof *scales);
    if (!w || !codes || !scales) s = td_fail(&l->err, TD_ENOMEM, "out of memory to round a linear");
    if (s == TD_OK) td_to_f32(view.dtype, view.data, n * k, w);
    td_scratch_reset(&scratch);
    if (s == TD_OK) s = td_round_matrix(b, w, n, k, NULL, &nearest, codes, scales, &l->err);
    if (s == TD_OK) s = td_round_error(b, w, n, k, h, &nearest, codes, scales, &l->nearest, &l->err);
    if (s == TD_OK) s = td_round_matrix(b, w, n, k, h, &options, codes, scales, &l->err);
    if (s == TD_OK) s = td_round_error(b, w, n, k, h, &options, codes, scales, &l->error, &l->err);
    free(w);
    if (s == TD_OK) r->weights[l->role] = (td_tensor_view){.dtype = TD_DT_I8, .rank = 2, .shape = {n, k}, .data = codes, .scale = scales};
    return s;
}

static void round_item(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    round_job *j = ctx;
    j->linears[item].status = round_linear(j->r, &j->linears[item]);
}

td_status td_linears_round(td_linear_rounding *r, td_linear_fit *fit) {
    round_job      j = {.r = r};
    td_tensor_spec spec;
    *fit = (td_linear_fit){0};
    if (r->status != TD_OK || r->q->method == TD_ROUND_NEAREST) return r->status;
    for (uint32_t i = 0; i < r->n_inputs; i++)
        if (!td_hessian_mirror(r->inputs[i].h, r->inputs[i].k)) return td_fail(r->q->err, TD_EDEVICE, "layer %u: what its linears read are not numbers", r->layer);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++)
        if (r->input_of[role] && is_rounded(r->q, role, r->layer, &spec)) j.linears[j.n++].role = role;
    td_pool_run(r->q->pool, round_item, &j, j.n);
    for (uint32_t i = 0; i < j.n; i++) {
        const linear *l = &j.linears[i];
        if (l->status != TD_OK) {
            td_tensor_spec_get(&r->q->config, l->role, r->layer, 0, &spec);
            return td_fail(r->q->err, l->status, "%s: %s: %s", r->q->o->model_path, spec.name, l->err.text);
        }
        fit->nearest += l->nearest / j.n;
        fit->error += l->error / j.n;
        if (i == 0 || l->error > fit->worst) {
            fit->worst = l->error;
            fit->worst_role = l->role;
        }
    }
    fit->n = j.n;
    return TD_OK;
}

uint64_t td_linears_round_bytes(const td_quantizer *q, uint32_t layer) {
    td_round_options options = td_round_options_of(q->method, 8, 0);
    uint64_t         kept = 0, most = 0;
    td_tensor_spec   spec;
    for (td_role role = TD_ROLE_FINAL_NORM + 1; role < TD_ROLE_COUNT; role++) {
        if (q->method == TD_ROUND_NEAREST || !is_rounded(q, role, layer, &spec)) continue;
        uint64_t n = spec.shape[0], k = spec.shape[1], work = 2 * n * k * sizeof(float) + td_round_bytes(n, k, &options); /* source rows, and w */
        kept += k * k * sizeof(float) + n * k + n * sizeof(float);
        if (work > most) most = work;
    }
    return kept + td_pool_workers(q->pool) * most;
}
