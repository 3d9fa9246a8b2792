#include "eval/tensor_errors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "model/weights.h"
#include "quant/weight_quant.h"

#define BLOCK_VALUES ((size_t)1 << 16) /* read at a time, or one row */

enum { OWN, REFERENCE, SIDES };

typedef struct {
    const td_model_config *config;
    td_experts            *experts;
    td_checkpoint         *checkpoint;
    bool                   w8a8;
} side;

typedef struct {
    td_role        role;
    uint32_t       layer, expert, moe_layer;
    td_tensor_spec spec;
} matrix;

/* Of squares. */
typedef struct {
    double signal, noise;
} sums;

typedef struct {
    side                  sides[SIDES];
    matrix               *matrices;
    size_t                n;
    const td_linear_rows *rows;
    sums                 *weights, *outputs; /* [n] */
    td_error             *errors;            /* [n] status TD_OK: it went well */
} comparison;

/* ---- which matrices there are ------------------------------------------------------------------ */

/* The MTP layer uses the model's own embedding and head. */
static bool is_shared(const td_tensor_spec *s) {
    return s->place == TD_PLACE_SHARED || s->place == TD_PLACE_SHARED_UNLESS_ROTATED;
}

static bool matrix_of(const td_model_config *c, td_role role, uint32_t layer, uint32_t expert, matrix *m) {
    *m = (matrix){.role = role, .layer = layer, .expert = expert};
    if (!td_tensor_spec_get(c, role, layer, expert, &m->spec) || is_shared(&m->spec) || m->spec.rank != 2) return false;
    m->moe_layer = td_moe_layers_in(c, (td_layer_range){0, layer});
    return true;
}

/* @param out NULL: only count. */
static size_t list_matrices(const comparison *c, matrix *out) {
    const td_model_config *a = c->sides[OWN].config, *b = c->sides[REFERENCE].config;
    size_t                 n = 0;
    matrix                 m, other;
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        uint32_t layers, experts;
        td_role_extent(a, role, &layers, &experts);
        for (uint32_t layer = 0; layer < layers; layer++)
            for (uint32_t e = 0; e < experts; e++) {
                if (!matrix_of(a, role, layer, e, &m) || layer >= b->n_layers + b->n_mtp_layers ||
                    !matrix_of(b, role, layer, e, &other))
                    continue;
                if (memcmp(m.spec.shape, other.spec.shape, sizeof m.spec.shape)) continue;
                if (out) out[n] = m;
                n++;
            }
    }
    return n;
}

/* ---- their values ------------------------------------------------------------------------------ */

/* Rows of a device weight as the tier keeps them. @param codes [n * k] scratch. @return false: an infinity or a NaN. */
static bool device_rows(td_weight_format format, const td_tensor_view *v, size_t row, size_t n, float *out, int8_t *codes) {
    size_t      k = v->shape[1];
    const void *in = (const char *)v->data + row * k * td_dtype_bytes(v->dtype);
    bool        finite = true;
    if (v->dtype == TD_DT_I8) {
        for (size_t i = 0; i < n * k; i++) out[i] = (float)((const int8_t *)in)[i] * v->scale[row + i / k];
    } else if (format == TD_WEIGHT_W8A8) {
        for (size_t r = 0; r < n; r++) {
            float scale;
            finite &=
                td_quantize_weight_i8(v->dtype, (const char *)in + r * k * td_dtype_bytes(v->dtype), 1, k, codes, k, &scale);
            for (size_t i = 0; i < k; i++) out[r * k + i] = (float)codes[i] * scale;
        }
    } else {
        td_to_f32(v->dtype, in, n * k, out);
        for (size_t i = 0; format == TD_WEIGHT_BF16 && v->dtype != TD_DT_BF16 && i < n * k; i++)
            out[i] = td_bf16_to_f32(td_f32_to_bf16(out[i]));
    }
    return finite;
}

/* A matrix of one side, to be read in blocks of rows. */
typedef struct {
    const side      *side;
    const matrix    *matrix;
    td_scratch       scratch;
    td_weight_format format; /* of a device weight */
    td_tensor_view   view;
} reader;

static td_status open_reader(reader *r, td_error *err) {
    const matrix *m = r->matrix;
    const side   *s = r->side;
    if (m->spec.place == TD_PLACE_EXPERTS) return TD_OK;
    r->format = td_model_weight_format(s->config, &m->spec, s->w8a8);
    TD_TRY(td_model_find_groups(s->checkpoint, s->config, m->role, m->layer, m->expert, &r->scratch, &r->view, &r->format,
                                err));
    if (r->format == TD_WEIGHT_INT4G || r->format == TD_WEIGHT_FP4G) r->format = TD_WEIGHT_F32; /* held exactly */
    return td_checkpoint_get(s->checkpoint, s->config, m->role, m->layer, 0,
                             r->format == TD_WEIGHT_W8A8 ? TD_FORM_FLOAT_OR_INT8 : TD_FORM_FLOAT, &r->scratch, &r->view,
                             err);
}

static td_status read_rows(const reader *r, size_t row, size_t n, float *out, int8_t *codes, td_error *err) {
    const matrix *m = r->matrix;
    if (m->spec.place == TD_PLACE_EXPERTS)
        return td_experts_get_values(r->side->experts, m->moe_layer, m->expert,
                                     (td_expert_matrix)(m->role - TD_ROLE_EXPERT_GATE), row, n, out, err);
    if (device_rows(r->format, &r->view, row, n, out, codes)) return TD_OK;
    return td_fail(err, TD_EFORMAT, "%s holds an infinity or a NaN", m->spec.name);
}

static void add(sums *s, double own, double reference) {
    s->signal += reference * reference;
    s->noise += (own - reference) * (own - reference);
}

static float dot(const float *a, const float *b, size_t n) {
    float  part[16] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++) part[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum += a[i] * b[i];
    for (size_t j = 0; j < 16; j++) sum += part[j];
    return sum;
}

static td_status compare_blocks(comparison *c, size_t index, reader *readers, float *values[SIDES], int8_t *codes,
                                size_t block, td_error *err) {
    const matrix       *m = &c->matrices[index];
    const td_kept_rows *read = td_linear_rows_of(c->rows, m->role, m->layer);
    size_t              n = m->spec.shape[0], k = m->spec.shape[1];
    for (size_t row = 0, rows; row < n; row += rows) {
        rows = n - row < block / k ? n - row : block / k;
        for (int s = 0; s < SIDES; s++) TD_TRY(read_rows(&readers[s], row, rows, values[s], codes, err));
        for (size_t i = 0; i < rows * k; i++) add(&c->weights[index], values[OWN][i], values[REFERENCE][i]);
        for (size_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < read->n; i++) {
                const float *x = read->x + i * k;
                add(&c->outputs[index], dot(values[OWN] + r * k, x, k), dot(values[REFERENCE] + r * k, x, k));
            }
    }
    return TD_OK;
}

static void compare_matrix(void *ctx, uint32_t index, const td_worker *w) {
    (void)w;
    comparison   *c = ctx;
    const matrix *m = &c->matrices[index];
    td_error     *err = &c->errors[index];
    size_t        block = m->spec.shape[1] > BLOCK_VALUES ? m->spec.shape[1] : BLOCK_VALUES;
    reader        readers[SIDES] = {{.side = &c->sides[OWN], .matrix = m}, {.side = &c->sides[REFERENCE], .matrix = m}};
    float        *values[SIDES] = {malloc(block * sizeof(float)), malloc(block * sizeof(float))};
    int8_t       *codes = malloc(block);
    td_status     st =
        values[OWN] && values[REFERENCE] && codes ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory to compare the weights");
    for (int s = 0; s < SIDES && st == TD_OK; s++) st = open_reader(&readers[s], err);
    if (st == TD_OK) st = compare_blocks(c, index, readers, values, codes, block, err);
    for (int s = 0; s < SIDES; s++) {
        td_scratch_reset(&readers[s].scratch);
        free(values[s]);
    }
    free(codes);
}

/* ---- all of it --------------------------------------------------------------------------------- */

static int worst_first(const void *a, const void *b) {
    const td_tensor_snr *x = a, *y = b;
    return x->db != y->db ? (x->db > y->db ? 1 : -1) : strcmp(x->name, y->name);
}

static double db_of(const sums *s) {
    return s->noise > 0 ? 10 * log10(s->signal / s->noise) : INFINITY;
}

static td_status open_side(side *s, const td_scored_model *m, const td_engine_options *o, td_error *err) {
    *s = (side){.config = td_model_get_config(m->model),
                .experts = td_model_get_experts(m->model),
                .w8a8 = m->act_dtype == TD_DT_BF16};
    return td_scored_checkpoint_open(o, &s->checkpoint, err);
}

static td_status compare_all(comparison *c, td_pool *pool, td_tensor_snr **out, size_t *n, td_error *err) {
    c->n = list_matrices(c, NULL);
    c->matrices = calloc(c->n, sizeof *c->matrices);
    c->weights = calloc(c->n, sizeof *c->weights);
    c->outputs = calloc(c->n, sizeof *c->outputs);
    c->errors = calloc(c->n, sizeof *c->errors);
    *out = calloc(c->n, sizeof **out);
    if (!c->matrices || !c->weights || !c->outputs || !c->errors || !*out)
        return td_fail(err, TD_ENOMEM, "out of memory to compare %zu matrices", c->n);
    *n = list_matrices(c, c->matrices);
    td_pool_run(pool, compare_matrix, c, (uint32_t)c->n);
    for (size_t i = 0; i < c->n; i++) {
        const td_tensor_spec *spec = &c->matrices[i].spec;
        td_tensor_snr        *t = &(*out)[i];
        if (c->errors[i].status != TD_OK) return td_fail(err, c->errors[i].status, "%s", c->errors[i].text);
        bool tied_head = c->matrices[i].role == TD_ROLE_LM_HEAD && c->sides[OWN].config->tie_embeddings;
        *t = (td_tensor_snr){.rows = spec->shape[0], .columns = spec->shape[1], .db = db_of(&c->weights[i])};
        t->output_db =
            td_linear_rows_of(c->rows, c->matrices[i].role, c->matrices[i].layer)->n ? db_of(&c->outputs[i]) : NAN;
        snprintf(t->name, sizeof t->name, "%s%s", spec->name, tied_head ? " as head" : "");
    }
    qsort(*out, *n, sizeof **out, worst_first);
    return TD_OK;
}

td_status td_tensor_errors(const td_scored_model *own, const td_engine_options *own_options,
                           const td_scored_model *reference, const td_engine_options *reference_options,
                           const td_linear_rows *rows, td_pool *pool, td_tensor_snr **out, size_t *n, td_error *err) {
    comparison c = {.rows = rows};
    *out = NULL;
    *n = 0;
    td_status st = open_side(&c.sides[OWN], own, own_options, err);
    if (st == TD_OK) st = open_side(&c.sides[REFERENCE], reference, reference_options, err);
    if (st == TD_OK) st = compare_all(&c, pool, out, n, err);
    for (int s = 0; s < SIDES; s++) td_checkpoint_close(c.sides[s].checkpoint);
    free(c.matrices);
    free(c.weights);
    free(c.outputs);
    free(c.errors);
    if (st == TD_OK) return TD_OK;
    free(*out);
    *out = NULL;
    *n = 0;
    return st;
}
