#include "quantize/linear_rounding.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "quant/hessian.h"

#define SUM_ROWS 512 /* of a Hessian, per item of the pool */

/* A linear being rounded: item i of the pool does rows i * TD_ROUND_ROWS and following. */
typedef struct {
    td_rounding     rounding;
    float          *w; /* [n, k] */
    size_t          n, k;
    int8_t         *codes;
    float          *scales;
    uint32_t        failed; /* the lowest part that did, or UINT32_MAX */
    td_status       status; /* of that part */
    td_error        err;
    pthread_mutex_t lock; /* of the three */
} linear;

/* Rows that are added to a Hessian: item i does its rows i * SUM_ROWS and following. */
typedef struct {
    const td_blas *blas;
    const float   *x;
    size_t         m, k;
    float         *h;
} sum_job;

/* Whether a role's linear becomes int8 by what it reads. The MTP layer's head is not run here, and U is held exactly as it
 * is. */
static bool is_rounded(const td_quantizer *q, td_role role, uint32_t layer, td_tensor_spec *spec) {
    return td_tensor_spec_get(&q->config, role, layer, 0, spec) && spec->place == TD_PLACE_LAYER &&
           spec->rotation.kind != TD_ROTATION_UNDOES && td_quantizer_makes_int8(q, role, spec);
}

void td_linear_rounding_open(td_linear_rounding *r, td_quantizer *q, uint32_t layer) {
    *r = (td_linear_rounding){.q = q, .layer = layer, .status = TD_OK};
}

static void free_sums(td_linear_rounding *r) {
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        free(r->inputs[i].h);
        r->inputs[i].h = NULL;
    }
}

void td_linear_rounding_close(td_linear_rounding *r) {
    free_sums(r);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        free(r->codes[role]);
        free(r->scales[role]);
    }
    *r = (td_linear_rounding){0};
}

static void sum_rows(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    sum_job *j = ctx;
    size_t   i0 = (size_t)item * SUM_ROWS, i1 = i0 + SUM_ROWS < j->k ? i0 + SUM_ROWS : j->k;
    td_hessian_add_rows(j->blas, j->x, j->m, j->k, j->k, i0, i1, j->h);
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
    sum_job  j = {&r->q->blas, x, m, k, r->inputs[input].h};
    td_pool_run(r->q->pool, sum_rows, &j, (uint32_t)((k + SUM_ROWS - 1) / SUM_ROWS));
    r->inputs[input].n_rows += m;
}

static void round_part(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    linear   *l = ctx;
    size_t    first = (size_t)item * TD_ROUND_ROWS, n = l->n - first < TD_ROUND_ROWS ? l->n - first : TD_ROUND_ROWS;
    td_error  err = {0};
    td_status s = td_round_rows(&l->rounding, l->w + first * l->k, n, l->codes + first * l->k, l->scales + first, &err);
    if (s == TD_OK) return;
    pthread_mutex_lock(&l->lock);
    if (item < l->failed) {
        l->failed = item;
        l->status = s;
        l->err = err;
    }
    pthread_mutex_unlock(&l->lock);
}

/* All rows of l->w, on the pool; and how well that went. */
static td_status round_parts(const td_linear_rounding *r, linear *l, const float *h, const td_round_options *o,
                             double *relative, td_error *err) {
    const td_blas *b = &r->q->blas;
    TD_TRY(td_rounding_open(b, l->k, h, o, &l->rounding, err));
    l->failed = UINT32_MAX;
    td_pool_run(r->q->pool, round_part, l, (uint32_t)((l->n + TD_ROUND_ROWS - 1) / TD_ROUND_ROWS));
    td_rounding_close(&l->rounding);
    if (l->failed != UINT32_MAX) return td_fail(err, l->status, "%s", l->err.text);
    return td_round_error(b, l->w, l->n, l->k, h, o, l->codes, l->scales, relative, err);
}

static td_status round_with(const td_linear_rounding *r, linear *l, uint32_t input, double *nearest, double *error,
                            td_error *err) {
    const float     *h = r->inputs[input].h;
    td_round_options options = td_round_options_of(r->q->method, 8, 0),
                     to_nearest = td_round_options_of(TD_ROUND_NEAREST, 8, 0);
    options.damping = td_round_damping(r->inputs[input].k, r->inputs[input].n_rows);
    pthread_mutex_init(&l->lock, NULL);
    td_status s = round_parts(r, l, h, &to_nearest, nearest, err);
    if (s == TD_OK) s = round_parts(r, l, h, &options, error, err);
    pthread_mutex_destroy(&l->lock);
    return s;
}

/* *rounded is false for one that is in int8 already. */
static td_status round_linear(td_linear_rounding *r, td_role role, bool *rounded, double *nearest, double *error,
                              td_error *err) {
    const td_quantizer *q = r->q;
    td_scratch          scratch = {0};
    td_tensor_view      view;
    td_status           s =
        td_checkpoint_get_as_stored(q->source, &q->config, role, r->layer, TD_FORM_FLOAT_OR_INT8, &scratch, &view, err);
    *rounded = s == TD_OK && view.dtype != TD_DT_I8;
    if (!*rounded) {
        td_scratch_reset(&scratch);
        return s;
    }
    linear l = {.n = view.shape[0], .k = view.shape[1]};
    l.w = malloc(l.n * l.k * sizeof *l.w);
    l.codes = r->codes[role] = malloc(l.n * l.k);
    l.scales = r->scales[role] = malloc(l.n * sizeof *l.scales);
    if (!l.w || !l.codes || !l.scales) s = td_fail(err, TD_ENOMEM, "out of memory to round a linear");
    if (s == TD_OK) td_to_f32(view.dtype, view.data, l.n * l.k, l.w);
    td_scratch_reset(&scratch);
    if (s == TD_OK) s = round_with(r, &l, r->input_of[role] - 1, nearest, error, err);
    free(l.w);
    if (s == TD_OK)
        r->weights[role] =
            (td_tensor_view){.dtype = TD_DT_I8, .rank = 2, .shape = {l.n, l.k}, .data = l.codes, .scale = l.scales};
    return s;
}

td_status td_linears_round(td_linear_rounding *r, td_linear_fit *fit) {
    td_tensor_spec spec;
    *fit = (td_linear_fit){0};
    if (r->status != TD_OK || r->q->method == TD_ROUND_NEAREST) return r->status;
    for (uint32_t i = 0; i < r->n_inputs; i++)
        if (!td_hessian_mirror(r->inputs[i].h, r->inputs[i].k))
            return td_fail(r->q->err, TD_EDEVICE, "layer %u: what its linears read are not numbers", r->layer);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        double   nearest = 0, error = 0;
        bool     rounded;
        td_error err;
        if (!r->input_of[role] || !is_rounded(r->q, role, r->layer, &spec)) continue;
        td_status s = round_linear(r, role, &rounded, &nearest, &error, &err);
        if (s != TD_OK) return td_fail(r->q->err, s, "%s: %s: %s", r->q->o->model_path, spec.name, err.text);
        if (!rounded) continue;
        fit->nearest += nearest;
        fit->error += error;
        if (fit->n++ == 0 || error > fit->worst) {
            fit->worst = error;
            fit->worst_role = role;
        }
    }
    if (fit->n) fit->nearest /= fit->n, fit->error /= fit->n;
    free_sums(r);
    return TD_OK;
}

td_linear_bytes td_linears_round_bytes(const td_quantizer *q, uint32_t layer) {
    td_round_options options = td_round_options_of(q->method, 8, 0);
    td_linear_bytes  bytes = {0};
    td_tensor_spec   spec;
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        if (q->method == TD_ROUND_NEAREST || !is_rounded(q, role, layer, &spec)) continue;
        uint64_t n = spec.shape[0], k = spec.shape[1], rows = n < TD_ROUND_ERROR_ROWS ? n : TD_ROUND_ERROR_ROWS;
        uint64_t parts = (n + TD_ROUND_ROWS - 1) / TD_ROUND_ROWS, workers = td_pool_workers(q->pool),
                 at_once = parts < workers ? parts : workers;
        uint64_t work = td_rounding_bytes(k, &options) + at_once * td_round_rows_bytes(n, k, &options),
                 loss = 2 * rows * k * sizeof(float);
        work = (work > loss ? work : loss) + 2 * n * k * sizeof(float); /* source rows, and w */
        bytes.sums += k * k * sizeof(float);
        bytes.codes += n * k + n * sizeof(float);
        if (work > bytes.work) bytes.work = work;
    }
    return bytes;
}
