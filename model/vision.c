#include "model/vision.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/math/rng.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "model/arch/arch.h"
#include "model/arch/vision_encoder.h"
#include "model/step_buf.h"

#define SQUARE (TD_VISION_MERGE * TD_VISION_MERGE) /* patches of a token */
#define BUFFERS (TD_VISION_FEATURES + 1 + TD_VISION_TAPS_MAX)
#define NORM_EPS 1e-6f
#define THETA 10000.0
#define UNKNOWN_PER_S 1e10 /* operations a second, of what has not run: little, so that it goes in small parts */
#define PACES 16           /* kinds of blocks by their sizes */
#define PARTS_MAX 256      /* of a block */
#define INPUT_ROWS 512     /* patches whose inputs are made at a time */
#define SEED 1             /* of random weights */

/* A block, and whether its rows are tokens. */
typedef struct {
    td_npu_block  *block;
    td_block_desc  desc;
    td_vision_rows rows;
    double        *per_s; /* what it computes a second, of work_of; the same for blocks that are alike */
} operation;

/* A picture that is being encoded: its inputs, the operations, its features. */
typedef struct {
    const float          *pixels; /* NULL: there is none */
    float                *features;
    uint32_t              rows, columns;
    const td_step_bucket *steps[2];    /* of the patches, and of the tokens; NULL until they are filled */
    uint32_t              n_in;        /* patches whose inputs are on the device */
    uint32_t              n_run;       /* operations that are done */
    uint32_t              n_out;       /* features that are the caller's */
    td_block_part         part;        /* of the operation that comes next; n at most 1: it goes whole */
    double                operation_s; /* its parts so far */
} picture;

struct td_vision {
    td_npu                *npu;
    td_npu_stream         *stream;
    td_dtype               act; /* what a checkpoint's weights in f32 and the attention's keys follow; rows are f32 */
    const td_model_config *c;
    uint32_t               max_patches;
    float                 *buffer[BUFFERS]; /* on the device; some have the memory of others */
    void                  *keys, *values;   /* pages of one layer's attention, on the device */
    float                 *pinned;          /* what goes to the device and comes from it */
    size_t                 pinned_bytes;
    float                 *table; /* [side * side, hidden] of positions */
    td_step_buf            patches, tokens;
    td_step_rows           rows;
    td_npu_weight         *rope, **weights; /* [n_weights] */
    operation             *operations;      /* [n_operations] */
    double                 per_s[PACES];    /* as last measured */
    picture                picture;
    uint32_t               n_weights, n_operations;
};

/* What an encoder is described for. */
typedef enum {
    MEASURE, /* memory; nothing is made */
    CHECK,   /* the same, and that its weights are there */
    MAKE,
} purpose;

struct td_vision_pass {
    td_vision                 *v;
    purpose                    purpose;
    const td_checkpoint_files *files; /* NULL: weights are random */
    uint64_t                   n_random;
    td_error                  *err;
    td_status                  status; /* the first failure stays, and nothing is made behind it */
    uint64_t                   weight_bytes;
    size_t                     scratch_bytes; /* of the block that wants most */
};

/* ---- sizes ------------------------------------------------------------------------------------- */

/* Rows and columns that a picture may have. */
static uint32_t longest_side(uint32_t max_patches) {
    return max_patches / TD_VISION_MERGE + 1;
}

static uint32_t head_dim(const td_model_config *c) {
    return c->vision.hidden / c->vision.heads;
}

static uint32_t key_pages(uint32_t max_patches) {
    return max_patches / TD_KV_PAGE + 1;
}

static size_t keys_bytes(td_npu *npu, const td_model_config *c, uint32_t max_patches) {
    return (size_t)key_pages(max_patches) * c->vision.heads * npu->ops->kv_page_bytes(npu, TD_KV_HEAD, head_dim(c));
}

/* Values of a row of a buffer; 0: the encoder has none such. */
static size_t row_values(const td_model_config *c, uint32_t buffer) {
    const td_vision_config *v = &c->vision;
    const size_t            pixels = td_vision_patch_values(v);
    switch (buffer) {
        case TD_VISION_NONE: return 0;
        case TD_VISION_PIXELS: return pixels;
        case TD_VISION_U: return v->inter > pixels ? v->inter : pixels > v->hidden ? pixels : v->hidden;
        default: return buffer < TD_VISION_FEATURES ? v->hidden : buffer <= TD_VISION_FEATURES + v->n_taps ? c->hidden : 0;
    }
}

/* Pixels and positions are read before anything lies in an MLP or comes from a sublayer: they have their memory. */
static uint32_t memory_of(uint32_t buffer) {
    return buffer == TD_VISION_PIXELS ? TD_VISION_U : buffer == TD_VISION_POSITIONS ? TD_VISION_A : buffer;
}

/* Of a buffer's own memory, for the largest picture. */
static size_t buffer_bytes(const td_model_config *c, uint32_t max_patches, uint32_t buffer) {
    const size_t rows = buffer < TD_VISION_FEATURES ? max_patches : max_patches / SQUARE;
    return memory_of(buffer) == buffer ? rows * row_values(c, buffer) * sizeof(float) : 0;
}

/* Inputs of some patches, or one table of features. */
static size_t pinned_bytes(const td_model_config *c, uint32_t max_patches) {
    const size_t n_in = max_patches < INPUT_ROWS ? max_patches : INPUT_ROWS, pixels = row_values(c, TD_VISION_PIXELS),
                 hidden = c->vision.hidden, in = n_in * (pixels > hidden ? pixels : hidden),
                 out = max_patches / SQUARE * (size_t)c->hidden;
    return (in > out ? in : out) * sizeof(float);
}

static td_step_shape shape_of(uint32_t max_rows) {
    return (td_step_shape){.max_tok = max_rows, .max_seq = 1, .max_out = 1, .max_seq_tokens = max_rows, .rope_axes = true};
}

/* ---- weights ----------------------------------------------------------------------------------- */

static td_status keep_weight(td_vision_pass *p, td_weight_format format, const td_tensor_view *view, td_npu_weight **out) {
    td_vision      *v = p->v;
    td_npu_weight **list = realloc(v->weights, (v->n_weights + 1) * sizeof *list);
    if (!list) return td_fail(p->err, TD_ENOMEM, "out of memory for the encoder's weights");
    v->weights = list;
    TD_TRY(v->npu->ops->weight_create(v->npu, format, view, out, p->err));
    v->weights[v->n_weights++] = *out;
    return TD_OK;
}

/* A tensor of rows * columns values, of which columns 0 says that it is a vector. */
static td_status find_tensor(const td_vision_pass *p, const char *name, size_t rows, size_t columns,
                             const td_safetensors_entry **out) {
    const char                 *dir = td_checkpoint_files_dir(p->files);
    const td_safetensors_entry *e = *out = td_checkpoint_files_find(p->files, name);
    size_t                      values = 1;
    if (!e) return td_fail(p->err, TD_ENOTFOUND, "%s: tensor %s of the vision encoder is missing", dir, name);
    if (e->dtype != TD_DT_BF16 && e->dtype != TD_DT_F16 && e->dtype != TD_DT_F32)
        return td_fail(p->err, TD_ENOTSUP, "%s: tensor %s is %s, and a vision encoder's are BF16, F16 or F32", dir, name,
                       e->dtype_name);
    for (uint32_t i = 1; i < e->rank; i++) values *= e->shape[i];
    if (e->rank < 1 || e->shape[0] != rows || values != (columns ? columns : 1))
        return td_fail(p->err, TD_EFORMAT, "%s: tensor %s has another shape than %zu x %zu", dir, name, rows,
                       columns ? columns : 1);
    return td_safetensors_check_size(td_checkpoint_files_with(p->files, name), p->err);
}

/* A copy where the file has the values at an odd address. */
static td_status aligned(const td_vision_pass *p, const td_safetensors_entry *e, size_t first, size_t values, void **copy,
                         const void **out) {
    const size_t width = td_dtype_bytes(e->dtype);
    *out = (const char *)e->data + first * width;
    if ((uintptr_t)*out % width == 0) return TD_OK;
    *copy = malloc(values * width);
    if (!*copy) return td_fail(p->err, TD_ENOMEM, "out of memory for a tensor of the vision encoder");
    memcpy(*copy, *out, values * width);
    *out = *copy;
    return TD_OK;
}

/* n random values, of norms' gains 1 and more or less. @param copy memory of malloc */
static td_status draw(td_vision_pass *p, size_t n, float middle, float width, void **copy) {
    float *f = *copy = malloc(n * sizeof *f);
    if (!f) return td_fail(p->err, TD_ENOMEM, "out of memory for a random weight of the vision encoder");
    for (size_t i = 0; i < n; i++) f[i] = middle + width * (float)(2 * td_rng_uniform(SEED, 0, p->n_random++) - 1);
    return TD_OK;
}

/* Values of a tensor as a view of it has them. @param copy memory of malloc, or NULL */
static td_status values_of(td_vision_pass *p, const td_safetensors_entry *e, size_t first, size_t values, void **copy,
                           td_tensor_view *view) {
    view->dtype = e ? e->dtype : TD_DT_F32;
    if (e) return aligned(p, e, first, values, copy, &view->data);
    TD_TRY(draw(p, values, view->rank == 1, 0.03f, copy));
    view->data = *copy;
    return TD_OK;
}

/* Rows first .. first + n - 1 of a tensor of `all` rows of k values; k 0: of a vector. */
static const td_npu_weight *weight(td_vision_pass *p, const char *name, uint32_t number, const char *suffix, size_t all,
                                   size_t first, size_t n, size_t k) {
    const td_vision            *v = p->v;
    const td_safetensors_entry *e = NULL;
    td_npu_weight              *w = NULL;
    void                       *copy = NULL;
    char                        full[160];
    size_t                      at = (size_t)snprintf(full, sizeof full, "%s", v->c->arch->encoder_prefix);
    if (p->status != TD_OK) return NULL;
    for (; *name && at + 12 < sizeof full; name++)
        if (*name == '#')
            at += (size_t)snprintf(full + at, sizeof full - at, "%u", number);
        else
            full[at++] = *name;
    snprintf(full + at, sizeof full - at, "%s", suffix);
    td_weight_format format = k ? TD_WEIGHT_BF16 : TD_WEIGHT_F32;
    if (p->files && p->purpose != MEASURE) p->status = find_tensor(p, full, all, k, &e);
    if (p->status == TD_OK && p->purpose == MAKE) {
        td_tensor_view view = {.rank = k ? 2 : 1, .shape = {n, k}};
        p->status = values_of(p, e, first * (k ? k : 1), n * (k ? k : 1), &copy, &view);
        if (e && view.dtype == TD_DT_F32 && v->act == TD_DT_F32) format = TD_WEIGHT_F32;
        if (p->status == TD_OK) p->status = keep_weight(p, format, &view, &w);
        if (p->status != TD_OK) td_fail_within(p->err, "%s", full);
        free(copy);
    }
    /* planned as f32 where a checkpoint might have it so */
    if (v->act == TD_DT_F32) format = TD_WEIGHT_F32;
    p->weight_bytes += v->npu->ops->weight_bytes(v->npu, format, 0, k ? n : 1, k ? k : n);
    return w;
}

/* Cosines and sines of all rows and columns: the pairs of a head's first half turn by the row, as fast as those of the
 * second half by the column. */
static td_status make_rope(td_vision_pass *p) {
    const td_vision *v = p->v;
    const size_t     dim = head_dim(v->c), half = dim / 2, n = longest_side(v->max_patches);
    float           *table = malloc(n * dim * sizeof *table);
    if (!table) return td_fail(p->err, TD_ENOMEM, "out of memory for the encoder's rope table");
    for (size_t at = 0; at < n; at++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)at * pow(THETA, -2.0 * (double)(i % (half / 2)) / (double)half);
            table[at * dim + i] = (float)cos(angle);
            table[at * dim + half + i] = (float)sin(angle);
        }
    td_tensor_view view = {.dtype = TD_DT_F32, .rank = 2, .shape = {n, dim}, .data = table};
    td_status      st = keep_weight(p, TD_WEIGHT_F32, &view, &p->v->rope);
    free(table);
    return st;
}

static size_t positions(const td_vision_config *c) {
    return (size_t)c->side * c->side;
}

/* The table of positions stays on the host. */
static td_status take_positions(td_vision_pass *p) {
    const td_vision_config     *c = &p->v->c->vision;
    const size_t                values = positions(c) * c->hidden;
    const td_safetensors_entry *e;
    char                        name[96];
    void                       *copy = NULL;
    const void                 *stored;
    if (!p->files) return draw(p, values, 0, 0.03f, (void **)&p->v->table);
    snprintf(name, sizeof name, "%spos_embed.weight", p->v->c->arch->encoder_prefix);
    TD_TRY(find_tensor(p, name, positions(c), c->hidden, &e));
    if (p->purpose == CHECK) return TD_OK;
    p->v->table = malloc(values * sizeof *p->v->table);
    if (!p->v->table) return td_fail(p->err, TD_ENOMEM, "out of memory for the encoder's table of positions");
    TD_TRY(aligned(p, e, 0, values, &copy, &stored));
    td_to_f32(e->dtype, stored, values, p->v->table);
    free(copy);
    return TD_OK;
}

/* ---- operations -------------------------------------------------------------------------------- */

/* Whether what one operation took tells what the other will take for as much work. */
static bool are_alike(const operation *o, const td_block_desc *desc, td_vision_rows rows) {
    if (o->desc.kind != desc->kind || o->rows != rows) return false;
    return desc->kind != TD_BLOCK_LINEAR ||
           (size_t)o->desc.linear.n * o->desc.linear.k == (size_t)desc->linear.n * desc->linear.k;
}

static double *speed_of(td_vision *v, const td_block_desc *desc, td_vision_rows rows) {
    double *next = v->per_s;
    for (uint32_t i = 0; i < v->n_operations; i++) {
        if (are_alike(&v->operations[i], desc, rows)) return v->operations[i].per_s;
        if (v->operations[i].per_s >= next) next = v->operations[i].per_s + 1;
    }
    if (next == v->per_s + PACES) return next - 1; /* more than that are alike */
    *next = UNKNOWN_PER_S;
    return next;
}

static void add_block(td_vision_pass *p, td_vision_rows rows, td_block_desc desc) {
    td_vision *v = p->v;
    if (p->status != TD_OK) return;
    desc.layer = TD_NO_LAYER;
    desc.rows_f32 = true;
    desc.max_tok = rows == TD_VISION_TOKENS ? v->max_patches / SQUARE : v->max_patches;
    const size_t scratch = v->npu->ops->block_scratch_bytes(v->npu, &desc);
    if (scratch > p->scratch_bytes) p->scratch_bytes = scratch;
    if (p->purpose != MAKE) return;
    operation *list = realloc(v->operations, (v->n_operations + 1) * sizeof *list);
    if (list) v->operations = list;
    p->status = list ? TD_OK : td_fail(p->err, TD_ENOMEM, "out of memory for the encoder's operations");
    if (p->status != TD_OK) return;
    operation *o = &list[v->n_operations];
    *o = (operation){.desc = desc, .rows = rows, .per_s = speed_of(v, &desc, rows)};
    p->status = v->npu->ops->block_create(v->npu, &desc, &o->block, p->err);
    v->n_operations += p->status == TD_OK;
}

void td_vision_linear(td_vision_pass *p, td_vision_rows rows, const char *name, uint32_t number, td_vision_buffer in,
                      td_vision_buffer out, uint32_t n, uint32_t k, td_activation activation) {
    const td_linear_desc d = {.n = n,
                              .k = k,
                              .activation = activation,
                              .w = weight(p, name, number, ".weight", n, 0, n, k),
                              .bias = weight(p, name, number, ".bias", n, 0, n, 0),
                              .in = p->v->buffer[in],
                              .out = p->v->buffer[out]};
    add_block(p, rows, (td_block_desc){.kind = TD_BLOCK_LINEAR, .linear = d});
}

void td_vision_norm(td_vision_pass *p, td_vision_rows rows, const char *name, uint32_t number, td_vision_buffer add,
                    uint32_t width) {
    const td_norm_desc d = {.hidden = width,
                            .eps = NORM_EPS,
                            .gamma = weight(p, name, number, ".weight", width, 0, width, 0),
                            .beta = weight(p, name, number, ".bias", width, 0, width, 0),
                            .x = p->v->buffer[TD_VISION_X],
                            .add = p->v->buffer[add],
                            .out = p->v->buffer[TD_VISION_H]};
    add_block(p, rows, (td_block_desc){.kind = TD_BLOCK_NORM, .norm = d});
}

void td_vision_attend(td_vision_pass *p, const char *name, uint32_t number) {
    const td_vision *v = p->v;
    const uint32_t   width = v->c->vision.hidden, heads = v->c->vision.heads, dim = head_dim(v->c);
    char             qkv[64], proj[64];
    snprintf(qkv, sizeof qkv, "%s.qkv", name);
    snprintf(proj, sizeof proj, "%s.proj", name);
#define PART(i) weight(p, qkv, number, ".weight", 3 * (size_t)width, (i) * (size_t)width, width, width)
#define BIAS(i) weight(p, qkv, number, ".bias", 3 * (size_t)width, (i) * (size_t)width, width, 0)
    const td_gqa_desc d = {.hidden = width,
                           .heads = heads,
                           .kv_heads = heads,
                           .head_dim = dim,
                           .full = true,
                           .axes = {.rows = dim / 4, .columns = dim / 4, .contiguous = true},
                           .softmax_scale = 1 / sqrtf((float)dim),
                           .q = PART(0),
                           .k = PART(1),
                           .v = PART(2),
                           .o = weight(p, proj, number, ".weight", width, 0, width, width),
                           .q_bias = BIAS(0),
                           .k_bias = BIAS(1),
                           .v_bias = BIAS(2),
                           .o_bias = weight(p, proj, number, ".bias", width, 0, width, 0),
                           .rope = v->rope,
                           .kv_k = v->keys,
                           .kv_v = v->values,
                           .kv_pages = key_pages(v->max_patches),
                           .in = v->buffer[TD_VISION_H],
                           .out = v->buffer[TD_VISION_A]};
    add_block(p, TD_VISION_PATCHES, (td_block_desc){.kind = TD_BLOCK_GQA, .max_kv = v->max_patches, .gqa = d});
#undef PART
#undef BIAS
}

void td_vision_add(td_vision_pass *p, td_vision_buffer add) {
    const td_combine_desc d = {.hidden = p->v->c->vision.hidden, .x = p->v->buffer[TD_VISION_X], .add = {p->v->buffer[add]}};
    add_block(p, TD_VISION_PATCHES, (td_block_desc){.kind = TD_BLOCK_COMBINE, .combine = d});
}

/* ---- life -------------------------------------------------------------------------------------- */

void td_vision_measure(td_npu *npu, td_dtype act, const td_model_config *c, uint32_t max_patches, td_vision_memory *out) {
    td_vision      v = {.npu = npu, .act = act, .c = c, .max_patches = max_patches};
    td_vision_pass p = {.v = &v, .purpose = MEASURE};
    td_step_shape  patches = shape_of(max_patches), tokens = shape_of(max_patches / SQUARE);
    const uint64_t steps = td_step_buf_bytes(&patches) + td_step_buf_bytes(&tokens);
    c->arch->encoder(&p, &c->vision, c->hidden);
    p.weight_bytes += npu->ops->weight_bytes(npu, TD_WEIGHT_F32, 0, longest_side(max_patches), head_dim(c));
    *out = (td_vision_memory){
        .weight_bytes = p.weight_bytes,
        .device_bytes = steps + 2 * keys_bytes(npu, c, max_patches),
        .scratch_bytes = p.scratch_bytes,
        .host_bytes = steps + pinned_bytes(c, max_patches) + positions(&c->vision) * c->vision.hidden * sizeof *v.table};
    for (uint32_t i = 0; i < BUFFERS; i++) out->device_bytes += buffer_bytes(c, max_patches, i);
}

td_status td_vision_check(td_npu *npu, td_dtype act, const td_model_config *c, const td_checkpoint_files *files,
                          td_error *err) {
    td_vision      v = {.npu = npu, .act = act, .c = c, .max_patches = SQUARE};
    td_vision_pass p = {.v = &v, .purpose = CHECK, .files = files, .err = err};
    TD_TRY(take_positions(&p));
    c->arch->encoder(&p, &c->vision, c->hidden);
    return p.status;
}

static td_status take_memory(td_vision *v, td_error *err) {
    const td_npu_ops *ops = v->npu->ops;
    const size_t      keys = keys_bytes(v->npu, v->c, v->max_patches);
    td_step_shape     patches = shape_of(v->max_patches), tokens = shape_of(v->max_patches / SQUARE);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        const size_t bytes = buffer_bytes(v->c, v->max_patches, i);
        if (bytes) TD_TRY(ops->alloc(v->npu, bytes, (void **)&v->buffer[i], err));
    }
    for (uint32_t i = 0; i < BUFFERS; i++) v->buffer[i] = v->buffer[memory_of(i)];
    v->pinned_bytes = pinned_bytes(v->c, v->max_patches);
    TD_TRY(ops->alloc(v->npu, keys, &v->keys, err));
    TD_TRY(ops->alloc(v->npu, keys, &v->values, err));
    TD_TRY(ops->host_alloc(v->npu, v->pinned_bytes, (void **)&v->pinned, err));
    TD_TRY(td_step_rows_open(&v->rows, v->max_patches, 1, v->max_patches, err));
    TD_TRY(td_step_buf_open(&v->patches, &patches, v->npu, err));
    return td_step_buf_open(&v->tokens, &tokens, v->npu, err);
}

td_status td_vision_open(td_npu *npu, td_dtype act, const td_model_config *c, const td_checkpoint_files *files,
                         uint32_t max_patches, td_vision **out, td_error *err) {
    td_npu_caps caps;
    npu->ops->caps(npu, &caps);
    *out = NULL;
    if (!caps.vision)
        return td_fail(err, TD_ENOTSUP, "%s has no vision encoder, and pictures are not served there", caps.text);
    td_vision *v = calloc(1, sizeof *v);
    if (!v) return td_fail(err, TD_ENOMEM, "out of memory for a vision encoder");
    *v = (td_vision){.npu = npu, .act = act, .c = c, .max_patches = max_patches / SQUARE * SQUARE};
    td_vision_pass p = {.v = v, .purpose = MAKE, .files = files, .err = err};
    p.status = npu->ops->stream_create(npu, &v->stream, err);
    if (p.status == TD_OK) p.status = take_memory(v, err);
    if (p.status == TD_OK) p.status = make_rope(&p);
    if (p.status == TD_OK) p.status = take_positions(&p);
    if (p.status == TD_OK) c->arch->encoder(&p, &c->vision, c->hidden);
    if (p.status != TD_OK) {
        td_vision_close(v);
        return p.status;
    }
    *out = v;
    return TD_OK;
}

void td_vision_close(td_vision *v) {
    if (!v) return;
    const td_npu_ops *ops = v->npu->ops;
    const size_t      keys = keys_bytes(v->npu, v->c, v->max_patches);
    for (uint32_t i = 0; i < v->n_operations; i++) ops->block_destroy(v->npu, v->operations[i].block);
    for (uint32_t i = 0; i < v->n_weights; i++) ops->weight_destroy(v->npu, v->weights[i]);
    for (uint32_t i = 0; i < BUFFERS; i++)
        if (v->buffer[i] && memory_of(i) == i) ops->free(v->npu, v->buffer[i], buffer_bytes(v->c, v->max_patches, i));
    if (v->keys) ops->free(v->npu, v->keys, keys);
    if (v->values) ops->free(v->npu, v->values, keys);
    if (v->pinned) ops->host_free(v->npu, v->pinned, v->pinned_bytes);
    td_step_buf_close(&v->patches);
    td_step_buf_close(&v->tokens);
    td_step_rows_close(&v->rows);
    if (v->stream) ops->stream_destroy(v->npu, v->stream);
    free(v->operations);
    free(v->weights);
    free(v->table);
    free(v);
}

/* ---- a picture --------------------------------------------------------------------------------- */

/* Row and column of a patch in a picture of so many columns. */
typedef struct {
    uint32_t row, column;
} place;

static place place_of(uint32_t patch, uint32_t columns) {
    const uint32_t square = patch / SQUARE, within = patch % SQUARE, across = columns / TD_VISION_MERGE;
    return (place){square / across * TD_VISION_MERGE + within / TD_VISION_MERGE,
                   square % across * TD_VISION_MERGE + within % TD_VISION_MERGE};
}

/* Where n places lie on `side` points, the first and the last on the first and the last point: the point before, and the share
 * of the one behind it. */
typedef struct {
    uint32_t point;
    float    share;
} between;

static between between_points(uint32_t i, uint32_t n, uint32_t side) {
    const float at = (float)i * ((float)(side - 1) / (float)(n > 1 ? n - 1 : 1));
    uint32_t    point = (uint32_t)at;
    if (point >= side) point = side - 1;
    return (between){point, at - (float)point};
}

/* What the table has for n patches from `first` on, bilinear: [n, hidden] in pinned memory. */
static void interpolate(const td_vision *v, uint32_t first, uint32_t n) {
    const picture *now = &v->picture;
    const uint32_t side = v->c->vision.side, width = v->c->vision.hidden;
    float         *row = v->pinned;
    for (uint32_t i = 0; i < n; i++, row += width) {
        const place   p = place_of(first + i, now->columns);
        const between y = between_points(p.row, now->rows, side), x = between_points(p.column, now->columns, side);
        const size_t  below = y.point + 1 < side ? y.point + 1 : y.point, right = x.point + 1 < side ? x.point + 1 : x.point;
        const float  *corner[4] = {v->table + ((size_t)y.point * side + x.point) * width,
                                   v->table + ((size_t)y.point * side + right) * width,
                                   v->table + (below * side + x.point) * width, v->table + (below * side + right) * width};
        const float   share[4] = {(1 - y.share) * (1 - x.share), (1 - y.share) * x.share, y.share * (1 - x.share),
                                  y.share * x.share};
        for (uint32_t k = 0; k < width; k++)
            row[k] = share[0] * corner[0][k] + share[1] * corner[1][k] + share[2] * corner[2][k] + share[3] * corner[3][k];
    }
}

/* n rows of `width` values in pinned memory become a buffer's from row `first` on. */
static td_status upload(td_vision *v, td_vision_buffer buffer, uint32_t first, uint32_t n, size_t width) {
    TD_TRY(v->npu->ops->copy(v->npu, v->stream, v->buffer[buffer] + first * width, v->pinned, n * width * sizeof(float),
                             TD_COPY_H2D));
    return v->npu->ops->stream_sync(v->npu, v->stream);
}

/* Pixels and positions of the next patches. */
static td_status take_inputs(td_vision *v) {
    picture       *now = &v->picture;
    const size_t   width = v->c->vision.hidden, of_patch = td_vision_patch_values(&v->c->vision);
    const uint32_t first = now->n_in, left = now->rows * now->columns - first, n = left < INPUT_ROWS ? left : INPUT_ROWS;
    memcpy(v->pinned, now->pixels + first * of_patch, n * of_patch * sizeof *v->pinned);
    TD_TRY(upload(v, TD_VISION_PIXELS, first, n, of_patch));
    interpolate(v, first, n);
    TD_TRY(upload(v, TD_VISION_POSITIONS, first, n, width));
    now->n_in += n;
    return TD_OK;
}

/* The step of the patches, and that of the tokens. */
static td_status fill_steps(td_vision *v, uint32_t rows, uint32_t columns, const td_step_bucket *out[2]) {
    const uint32_t n = rows * columns;
    uint32_t      *pages = malloc(key_pages(n) * sizeof *pages), *ids = calloc(n, sizeof *ids);
    td_step_buf   *bufs[2] = {&v->patches, &v->tokens};
    td_status      st = pages && ids ? TD_OK : TD_ENOMEM;
    for (uint32_t i = 0; st == TD_OK && i < key_pages(n); i++) pages[i] = i;
    for (int k = 0; st == TD_OK && k < 2; k++) {
        const uint32_t count = k ? n / SQUARE : n;
        td_step_rows_clear(&v->rows);
        td_step_rows_add(&v->rows, ids, 0, count, &(td_step_sequence){.pages = pages, .n_pages = key_pages(count)});
        for (uint32_t i = 0; k == 0 && i < n; i++) {
            const place p = place_of(i, columns);
            memcpy(v->rows.rope_pos + 3 * (size_t)i, (uint32_t[]){0, p.row, p.column}, 3 * sizeof *v->rows.rope_pos);
        }
        out[k] = td_step_buf_fill(bufs[k], &v->rows, NULL, NULL, 0);
        st = td_step_buf_enqueue_upload(bufs[k], out[k], v->stream);
    }
    free(pages);
    free(ids);
    return st;
}

static uint32_t rows_of(const td_vision *v, const operation *o) {
    return v->picture.steps[o->rows == TD_VISION_TOKENS]->whole.host.counts->n_tok;
}

/* Operations of an operation, about: products, of a full block scores and sums of values too; for others some of each value. */
static double work_of(const td_vision *v, const operation *o) {
    const double n = rows_of(v, o), width = v->c->vision.hidden;
    if (o->desc.kind == TD_BLOCK_LINEAR) return n * 2 * o->desc.linear.n * o->desc.linear.k;
    if (o->desc.kind == TD_BLOCK_GQA) return n * (8 * width * width + 4 * n * width);
    return n * 8 * width;
}

/* What the next operation, or its next part, is foreseen to take. */
static double foreseen_s(const td_vision *v) {
    const operation *o = &v->operations[v->picture.n_run];
    return work_of(v, o) / *o->per_s / (v->picture.part.n ? v->picture.part.n : 1);
}

/* In how many parts the next operation goes. */
static uint32_t parts_of(const td_vision *v, const td_piece *piece) {
    const operation *o = &v->operations[v->picture.n_run];
    const double     wanted = fmin(PARTS_MAX, 1 + foreseen_s(v) / fmax(piece->part_s, 1e-6));
    if (!v->npu->ops->block_parts) return 1;
    return v->npu->ops->block_parts(v->npu, &o->desc, rows_of(v, o), (td_parts_wanted){.n = (uint32_t)wanted}, &(size_t){0});
}

/* The next operation, or its next part. */
static td_status run_operation(td_vision *v, td_piece *piece) {
    picture         *now = &v->picture;
    const operation *o = &v->operations[now->n_run];
    const td_step   *step = &now->steps[o->rows == TD_VISION_TOKENS]->whole;
    const uint64_t   begin_ns = td_trace_now();
    if (!now->part.n) now->part.n = parts_of(v, piece);
    if (now->part.n > 1)
        TD_TRY(v->npu->ops->enqueue_part(v->npu, v->stream, o->block, step, &now->part));
    else
        TD_TRY(v->npu->ops->enqueue(v->npu, v->stream, o->block, step));
    TD_TRY(v->npu->ops->stream_sync(v->npu, v->stream));
    const double took_s = td_seconds_since(begin_ns);
    if (took_s > piece->longest_s) piece->longest_s = took_s;
    now->operation_s += took_s;
    if (++now->part.i < now->part.n) return TD_OK;
    *o->per_s = work_of(v, o) / fmax(now->operation_s, 1e-9);
    now->part = (td_block_part){0};
    now->operation_s = 0;
    now->n_run++;
    return TD_OK;
}

/* The next table of features. */
static td_status give_features(td_vision *v) {
    picture     *now = &v->picture;
    const size_t values = (size_t)now->rows * now->columns / SQUARE * v->c->hidden;
    TD_TRY(v->npu->ops->copy(v->npu, v->stream, v->pinned, v->buffer[TD_VISION_FEATURES + now->n_out],
                             values * sizeof(float), TD_COPY_D2H));
    TD_TRY(v->npu->ops->stream_sync(v->npu, v->stream));
    memcpy(now->features + now->n_out * values, v->pinned, values * sizeof *v->pinned);
    now->n_out++;
    return TD_OK;
}

static bool has_ended(const td_vision *v) {
    return v->picture.n_out > v->c->vision.n_taps;
}

static td_status run_next(td_vision *v, td_piece *piece) {
    picture *now = &v->picture;
    if (now->n_in < now->rows * now->columns) return take_inputs(v);
    if (!now->steps[0]) return fill_steps(v, now->rows, now->columns, now->steps);
    return now->n_run < v->n_operations ? run_operation(v, piece) : give_features(v);
}

/* Whether the piece ends before what comes next; inputs and features take little. */
static bool piece_ends(const td_vision *v, const td_piece *piece, uint64_t begin_ns) {
    const bool runs = v->picture.steps[0] && v->picture.n_run < v->n_operations;
    return td_piece_ends(piece, begin_ns, runs ? foreseen_s(v) : 0);
}

td_status td_vision_start(td_vision *v, const float *pixels, uint32_t rows, uint32_t columns, float *features,
                          td_error *err) {
    const uint64_t n = (uint64_t)rows * columns;
    if (!n || rows % TD_VISION_MERGE || columns % TD_VISION_MERGE || n > v->max_patches)
        return td_fail(err, TD_EINVAL, "a picture of %u x %u patches is not of even sides and at most %u patches", rows,
                       columns, v->max_patches);
    v->picture = (picture){.pixels = pixels, .features = features, .rows = rows, .columns = columns};
    return TD_OK;
}

td_status td_vision_run(td_vision *v, td_piece *piece, td_error *err) {
    picture       *now = &v->picture;
    const uint64_t begin_ns = td_trace_now();
    td_status      st;
    assert(now->pixels);
    piece->longest_s = 0;
    do st = run_next(v, piece);
    while (st == TD_OK && !has_ended(v) && !piece_ends(v, piece, begin_ns));
    td_status synced = v->npu->ops->stream_sync(v->npu, v->stream); /* even after a failure, since nothing may run on */
    if (st == TD_OK) st = synced;
    piece->ended = st == TD_OK && has_ended(v);
    piece->gave_way = !piece->ended && td_piece_is_waited_for(piece);
    if (st != TD_OK)
        (void)td_fail(err, st, "the vision encoder failed on a picture of %u x %u patches", now->rows, now->columns);
    if (st != TD_OK || piece->ended) *now = (picture){0};
    return st;
}
