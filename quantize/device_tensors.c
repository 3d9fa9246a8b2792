/* Writes every tensor but the routed experts': a shard per layer, and one for the tensors of the whole model. Linears are
 * rounded to int8 if wanted. */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/files/json_text.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "model/checkpoint/stored_weight.h"
#include "quant/weight_quant.h"
#include "quantize/quantizer.h"

#define BLOCK_BYTES ((size_t)64 << 20) /* of input, quantised before its codes are written */
#define SLICE_BYTES ((size_t)1 << 20)  /* input per item of the pool */

/* One tensor of the checkpoint on its way to a shard. */
typedef struct {
    /* Of dummy weights, codes and rotated weights: without data, which is made when the tensor is written. */
    td_safetensors_entry in;
    td_role              role;
    uint32_t             layer;
    bool                 int8;
    size_t               item;       /* in items */
    size_t               scale_item; /* int8 only */
} job;

struct td_device_tensors {
    job                 *jobs; /* shard by shard */
    td_safetensors_item *items;
    size_t               n_jobs, n_items;
    uint32_t             n_shards;
    size_t              *first_job, *first_item; /* [n_shards + 1] */
    int8_t              *codes;                  /* of a block */
    float               *scales;
    char                *fetched; /* a block of input that is not in memory, or not aligned */
};

/* ---- the tensors ----------------------------------------------------------------------------- */

/* A tensor that is made when it is written. */
static td_safetensors_entry made_entry(const td_tensor_spec *spec, td_dtype dtype) {
    td_safetensors_entry e = {.name = spec->name, .dtype = dtype, .rank = spec->rank};
    memcpy(e.shape, spec->shape, sizeof spec->shape);
    e.bytes = spec->shape[0] * (spec->rank > 1 ? spec->shape[1] : 1) * td_dtype_bytes(dtype);
    return e;
}

/* The tensor of a role at a layer; *has is false where there is none of its own. out->name lives as long as spec or the
 * source. */
static td_status tensor_of(td_quantizer *q, td_role role, uint32_t layer, td_tensor_spec *spec, td_safetensors_entry *out,
                           bool *has) {
    const td_safetensors_entry *stored = NULL;
    bool                        tied = role == TD_ROLE_LM_HEAD && q->config.tie_embeddings;
    *has = false;
    if (td_role_is_expert(&q->config, role) || (tied && !q->rotated)) return TD_OK;
    if (!td_tensor_spec_get(&q->config, role, layer, 0, spec)) return TD_OK;
    if (tied)
        snprintf(spec->name, sizeof spec->name, "lm_head.weight"); /* rotated, it is another matrix than the embedding */
    bool dummy = td_checkpoint_is_dummy(q->source), rotated = q->rotated && spec->rotation.kind != TD_ROTATION_NONE,
         shared = spec->fallback != TD_ROLE_COUNT;
    if (spec->place == TD_PLACE_SHARED_UNLESS_ROTATED) shared = shared && !rotated; /* rotated, it is one of its own */
    if (dummy && (spec->place == TD_PLACE_SHARED || spec->place == TD_PLACE_SHARED_UNLESS_ROTATED))
        return TD_OK; /* a copy of random values would be another matrix than the model's */
    if (shared && !dummy && !td_stored_exists(td_checkpoint_get_files(q->source), spec)) return TD_OK;
    if (!dummy && !rotated) {
        TD_TRY(td_checkpoint_get_stored(q->source, &q->config, spec, &stored, q->err));
    }
    *has = true;
    *out = stored    ? *stored
           : rotated ? made_entry(spec, spec->format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16) /* as the device keeps it */
                     : made_entry(spec, dummy && spec->rank > 1 ? TD_DT_BF16 : TD_DT_F32);
    return TD_OK;
}

static void add_item(td_device_tensors *t, const char *name, td_dtype dtype, uint32_t rank, const size_t *shape) {
    td_safetensors_item *i = &t->items[t->n_items++];
    *i = (td_safetensors_item){.dtype = dtype, .rank = rank};
    snprintf(i->name, sizeof i->name, "%s", name);
    memcpy(i->shape, shape, rank * sizeof *shape);
}

static td_status add_job(td_quantizer *q, td_role role, uint32_t layer) {
    td_device_tensors   *t = q->tensors;
    td_tensor_spec       spec;
    td_safetensors_entry entry;
    bool                 has;
    TD_TRY(tensor_of(q, role, layer, &spec, &entry, &has));
    if (!has) return TD_OK;
    job *j = &t->jobs[t->n_jobs++];
    *j = (job){
        .in = entry, .role = role, .layer = layer, .int8 = td_quantizer_makes_int8(q, role, &spec), .item = t->n_items};
    td_safetensors_entry *in = &j->in;
    add_item(t, in->name, j->int8 ? TD_DT_I8 : in->dtype, in->rank, in->shape);
    in->name = t->items[j->item].name;
    if (j->int8) {
        char name[sizeof spec.name + 8];
        snprintf(name, sizeof name, "%s_scale", spec.name);
        j->scale_item = t->n_items;
        add_item(t, name, TD_DT_F32, 2, (const size_t[]){in->shape[0], 1});
    }
    q->meter->total_bytes += in->bytes;
    return TD_OK;
}

/* Buffers for a block, which is BLOCK_BYTES of input, or one row where that is more. */
static td_status take_buffers(td_quantizer *q) {
    td_device_tensors *t = q->tensors;
    size_t             widest = 1;
    for (size_t i = 0; i < t->n_jobs; i++)
        if (t->jobs[i].int8 && t->jobs[i].in.shape[1] > widest) widest = t->jobs[i].in.shape[1];
    size_t bytes = BLOCK_BYTES > widest * sizeof(float) ? BLOCK_BYTES : widest * sizeof(float);
    t->codes = malloc(bytes);
    t->scales = malloc(BLOCK_BYTES * sizeof *t->scales / 2); /* rows of one 2-byte value at the least */
    t->fetched = aligned_alloc(TD_FILE_BLOCK, td_round_up(bytes, TD_FILE_BLOCK) + TD_FETCH_SLACK);
    return t->codes && t->scales && t->fetched ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
}

td_status td_device_tensors_choose(td_quantizer *q) {
    uint32_t           n_shards = td_quantizer_layers(q) + 1;
    size_t             most = (size_t)TD_ROLE_COUNT * n_shards;
    td_device_tensors *t = q->tensors = calloc(1, sizeof *t);
    if (!t) return td_fail(q->err, TD_ENOMEM, "out of memory");
    t->n_shards = n_shards;
    t->jobs = calloc(most, sizeof *t->jobs);
    t->items = calloc(2 * most, sizeof *t->items);
    t->first_job = calloc(n_shards + 1, sizeof *t->first_job);
    t->first_item = calloc(n_shards + 1, sizeof *t->first_item);
    if (!t->jobs || !t->items || !t->first_job || !t->first_item) return td_fail(q->err, TD_ENOMEM, "out of memory");
    for (uint32_t shard = 0; shard < n_shards; shard++) {
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            if (td_role_is_of_model(&q->config, role) == (shard == 0)) TD_TRY(add_job(q, role, shard ? shard - 1 : 0));
        }
        t->first_job[shard + 1] = t->n_jobs;
        t->first_item[shard + 1] = t->n_items;
    }
    return take_buffers(q);
}

void td_device_tensors_free(td_device_tensors *t) {
    if (!t) return;
    free(t->jobs);
    free(t->items);
    free(t->first_job);
    free(t->first_item);
    free(t->codes);
    free(t->scales);
    free(t->fetched);
    free(t);
}

static void shard_name(const td_device_tensors *t, uint32_t shard, char *name, size_t size) {
    snprintf(name, size, "model-%05u-of-%05u.safetensors", shard + 1, t->n_shards);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A block of rows being quantised: item i of the pool does rows i * rows_per_item and following. */
typedef struct {
    td_dtype               dtype;
    const char            *in;
    const td_coded_matrix *coded; /* instead of in: rows from first_row on, which an item decodes one by one */
    size_t                 first_row;
    float                 *decoded; /* [workers, k] */
    size_t                 n, k, rows_per_item;
    int8_t                *codes;
    float                 *scales;
    atomic_bool            not_finite; /* relaxed: read after the run */
} block;

static void quantize_rows(void *ctx, uint32_t item, const td_worker *w) {
    block *b = ctx;
    size_t first = item * b->rows_per_item, n = b->n - first < b->rows_per_item ? b->n - first : b->rows_per_item;
    bool   ok = true;
    if (b->coded) {
        float *row = b->decoded + w->index * b->k;
        for (size_t r = first; ok && r < first + n; r++)
            ok = td_coded_row(b->coded, b->first_row + r, row) &&
                 td_quantize_weight_i8(TD_DT_F32, row, 1, b->k, b->codes + r * b->k, b->k, b->scales + r);
    } else {
        ok = td_quantize_weight_i8(b->dtype, b->in + first * b->k * td_dtype_bytes(b->dtype), n, b->k,
                                   b->codes + first * b->k, b->k, b->scales + first);
    }
    if (!ok) atomic_store_explicit(&b->not_finite, true, memory_order_relaxed);
}

static td_status not_finite(const td_quantizer *q, const job *j) {
    return td_fail(q->err, TD_EFORMAT, "%s: tensor %s holds an infinity or a NaN", q->o->model_path, j->in.name);
}

/* Round a block on the pool and write it as rows `row` and following. */
static td_status write_block(td_quantizer *q, td_safetensors_writer *w, const job *j, block *b, size_t row) {
    td_device_tensors *t = q->tensors;
    size_t             row_bytes = b->k * td_dtype_bytes(b->dtype);
    b->rows_per_item = SLICE_BYTES / row_bytes ? SLICE_BYTES / row_bytes : 1;
    td_pool_run(q->pool, quantize_rows, b, (uint32_t)((b->n + b->rows_per_item - 1) / b->rows_per_item));
    if (atomic_load_explicit(&b->not_finite, memory_order_relaxed)) return not_finite(q, j);
    TD_TRY(td_safetensors_writer_write(w, &t->items[j->item], row * b->k, t->codes, b->n * b->k, q->err));
    TD_TRY(td_safetensors_writer_write(w, &t->items[j->scale_item], row * sizeof *t->scales, t->scales,
                                       b->n * sizeof *t->scales, q->err));
    td_quantizer_progress(q, j->in.bytes / j->in.shape[0] * b->n, j->in.name);
    return TD_OK;
}

/* A piece of a tensor as it is stored, where it can be read element by element. */
static const void *fetch_piece(td_quantizer *q, const void *from, size_t bytes, td_dtype dtype) {
    void       *buffer = q->tensors->fetched;
    const void *in = td_checkpoint_files_fetch(td_checkpoint_get_files(q->source), from, bytes, buffer);
    return (uintptr_t)in % td_dtype_bytes(dtype) ? memmove(buffer, in, bytes) : in;
}

static td_status write_int8(td_quantizer *q, td_safetensors_writer *w, const job *j) {
    td_device_tensors *t = q->tensors;
    size_t             n = j->in.shape[0], k = j->in.shape[1], row_bytes = k * td_dtype_bytes(j->in.dtype),
           step = BLOCK_BYTES / row_bytes;
    if (step == 0) step = 1;
    for (size_t row = 0; row < n; row += step) {
        size_t      rows = n - row < step ? n - row : step;
        const void *in = fetch_piece(q, (const char *)j->in.data + row * row_bytes, rows * row_bytes, j->in.dtype);
        block       b = {.dtype = j->in.dtype, .in = in, .n = rows, .k = k, .codes = t->codes, .scales = t->scales};
        TD_TRY(write_block(q, w, j, &b, row));
        td_checkpoint_files_release(td_checkpoint_get_files(q->source), (const char *)j->in.data + row * row_bytes,
                                    rows * row_bytes);
    }
    return TD_OK;
}

/* From codes that int8 rows are not: decoded by all threads. */
static td_status write_decoded(td_quantizer *q, td_safetensors_writer *w, const job *j, const td_coded_matrix *m) {
    td_device_tensors *t = q->tensors;
    size_t             step = BLOCK_BYTES / (m->k * sizeof(float));
    float             *decoded = malloc(td_pool_workers(q->pool) * m->k * sizeof *decoded);
    td_status          s = decoded ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory for %s", j->in.name);
    if (step == 0) step = 1;
    for (size_t row = 0; s == TD_OK && row < m->n; row += step) {
        block b = {.dtype = TD_DT_F32,
                   .coded = m,
                   .first_row = row,
                   .decoded = decoded,
                   .n = m->n - row < step ? m->n - row : step,
                   .k = m->k,
                   .codes = t->codes,
                   .scales = t->scales};
        s = write_block(q, w, j, &b, row);
    }
    free(decoded);
    return s;
}

/* int8 with a scale per row is written as it is. */
static td_status write_codes(td_quantizer *q, td_safetensors_writer *w, const job *j, const td_tensor_view *v) {
    const td_safetensors_item *items = q->tensors->items;
    TD_TRY(td_safetensors_writer_write(w, &items[j->item], 0, v->data, v->shape[0] * v->shape[1], q->err));
    TD_TRY(td_safetensors_writer_write(w, &items[j->scale_item], 0, v->scale, v->shape[0] * sizeof *v->scale, q->err));
    td_quantizer_progress(q, j->in.bytes, j->in.name);
    return TD_OK;
}

static td_status write_tensor(td_quantizer *q, td_safetensors_writer *w, const job *j) {
    if (j->int8) return write_int8(q, w, j);
    td_device_tensors *t = q->tensors;
    const bool         whole = j->in.dtype == TD_DT_I64 || j->in.dtype == TD_DT_I32; /* numbers of experts */
    for (size_t at = 0, n; at < j->in.bytes; at += n) {
        n = j->in.bytes - at < BLOCK_BYTES ? j->in.bytes - at : BLOCK_BYTES;
        const char *from = (const char *)j->in.data + at;
        const void *in = fetch_piece(q, from, n, j->in.dtype);
        if (!whole && !isfinite(td_amax(j->in.dtype, in, n / td_dtype_bytes(j->in.dtype)))) return not_finite(q, j);
        TD_TRY(td_safetensors_writer_write(w, &t->items[j->item], at, in, n, q->err));
        td_checkpoint_files_release(td_checkpoint_get_files(q->source), from, n);
        td_quantizer_progress(q, n, j->in.name);
    }
    return TD_OK;
}

/* Write a tensor that no file has as it is wanted: a random, decoded or rotated one. It is rounded, or written in the job's
 * type. */
static td_status write_made_tensor(td_quantizer *q, td_safetensors_writer *w, job j) {
    td_scratch     scratch = {0};
    td_tensor_view made;
    size_t         row, group; /* of a scale that is none, which decoding below reports */
    td_bf16       *narrow = NULL;
    td_status      s =
        td_checkpoint_get_as_stored(q->source, &q->config, j.role, j.layer, TD_FORM_CODES, &scratch, &made, q->err);
    bool by_rows = s == TD_OK && j.int8 && made.coded && made.coded->codes != TD_CODES_INT8 &&
                   td_coded_check(made.coded, &row, &group) == TD_CODED_OK;
    if (by_rows) s = write_decoded(q, w, &j, made.coded);
    td_scratch_reset(&scratch);
    if (s != TD_OK || by_rows) return s;
    s = td_checkpoint_get_as_stored(q->source, &q->config, j.role, j.layer, j.int8 ? TD_FORM_FLOAT_OR_INT8 : TD_FORM_FLOAT,
                                    &scratch, &made, q->err);
    if (s == TD_OK && made.dtype == TD_DT_F32 && j.in.dtype == TD_DT_BF16 && !j.int8) {
        size_t n = j.in.bytes / sizeof *narrow;
        narrow = malloc(n * sizeof *narrow);
        if (narrow) td_f32_to_bf16_n(made.data, n, narrow);
        if (!narrow) s = td_fail(q->err, TD_ENOMEM, "out of memory for %s", j.in.name);
    }
    if (s == TD_OK && made.dtype == TD_DT_I8) {
        s = write_codes(q, w, &j, &made);
    } else if (s == TD_OK) {
        if (!narrow) j.in.dtype = made.dtype;
        j.in.data = narrow ? (const void *)narrow : made.data;
        s = write_tensor(q, w, &j);
    }
    free(narrow);
    td_scratch_reset(&scratch);
    return s;
}

static td_status write_shard(td_quantizer *q, td_safetensors_writer *w, const job *jobs, size_t n_jobs,
                             const td_tensor_view *rounded) {
    TD_TRY(td_safetensors_writer_begin(w, q->err));
    for (size_t i = 0; i < n_jobs; i++) {
        const job *j = &jobs[i];
        if (rounded && rounded[j->role].data)
            TD_TRY(write_codes(q, w, j, &rounded[j->role]));
        else
            TD_TRY(j->in.data ? write_tensor(q, w, j) : write_made_tensor(q, w, *j));
    }
    return td_safetensors_writer_commit(w, q->err);
}

static td_status open_writer(td_quantizer *q, uint32_t shard, td_safetensors_writer **out) {
    td_device_tensors *t = q->tensors;
    size_t             item = t->first_item[shard];
    char               name[64], path[PATH_MAX];
    shard_name(t, shard, name, sizeof name);
    TD_TRY(td_output_path(q, path, name));
    return td_safetensors_writer_create(path, t->items + item, t->first_item[shard + 1] - item, TD_SOURCE_HASH_KEY,
                                        q->hash_text, out, q->err);
}

td_status td_device_tensors_is_done(td_quantizer *q, uint32_t shard, bool *done) {
    td_safetensors_writer *w = NULL;
    TD_TRY(open_writer(q, shard, &w));
    *done = td_safetensors_writer_is_done(w);
    td_safetensors_writer_destroy(w);
    return TD_OK;
}

uint64_t td_device_tensors_bytes(const td_quantizer *q, uint32_t shard) {
    const td_device_tensors *t = q->tensors;
    uint64_t                 bytes = 0;
    for (size_t i = t->first_job[shard]; i < t->first_job[shard + 1]; i++) bytes += t->jobs[i].in.bytes;
    return bytes;
}

td_status td_device_tensors_write(td_quantizer *q, uint32_t shard, const td_tensor_view *rounded) {
    td_device_tensors     *t = q->tensors;
    size_t                 first = t->first_job[shard], n = t->first_job[shard + 1] - first;
    td_safetensors_writer *w = NULL;
    TD_TRY(open_writer(q, shard, &w));
    td_status s = TD_OK;
    if (td_safetensors_writer_is_done(w))
        td_quantizer_progress(q, td_device_tensors_bytes(q, shard), t->items[t->first_item[shard]].name);
    else
        s = write_shard(q, w, t->jobs + first, n, rounded);
    td_safetensors_writer_destroy(w);
    return s;
}

/* Adds a shard's items to the index's map. */
static int add_to_map(json_t *map, const td_device_tensors *t, uint32_t shard) {
    char name[64];
    int  failed = 0;
    shard_name(t, shard, name, sizeof name);
    for (size_t i = t->first_item[shard]; i < t->first_item[shard + 1]; i++)
        failed |= json_object_set_new(map, t->items[i].name, json_string(name));
    return failed;
}

/* The checksum of every file that the map names. @param sums receives them by name. */
static td_status add_checksums(td_quantizer *q, const json_t *map, json_t *sums) {
    const char *tensor;
    json_t     *name;
    json_object_foreach((json_t *)map, tensor, name) {
        char            path[PATH_MAX], sum[17];
        uint64_t        hash;
        td_safetensors *file;
        if (json_object_get(sums, json_string_value(name))) continue;
        TD_TRY(td_output_path(q, path, json_string_value(name)));
        TD_TRY(td_safetensors_open(path, &file, q->err));
        td_status s = td_safetensors_checksum(file, q->pool, &hash, q->err);
        td_safetensors_close(file);
        if (s != TD_OK) return s;
        snprintf(sum, sizeof sum, "%016" PRIx64, hash);
        if (json_object_set_new(sums, json_string_value(name), json_string(sum)))
            return td_fail(q->err, TD_ENOMEM, "out of memory");
    }
    return TD_OK;
}

td_status td_device_tensors_index(td_quantizer *q) {
    const td_device_tensors *t = q->tensors;
    char                     path[PATH_MAX];
    json_t                  *map = json_object(), *sums = json_object();
    int                      failed = !map || !sums;
    uint64_t                 total = 0;
    for (uint32_t shard = 0; shard < t->n_shards && !failed; shard++) failed = add_to_map(map, t, shard);
    for (size_t i = 0; i < t->n_items; i++) total += t->items[i].bytes;
    td_status s = failed ? td_fail(q->err, TD_ENOMEM, "out of memory") : td_expert_shards_list(q, map, &total);
    if (s == TD_OK) s = add_checksums(q, map, sums);
    json_t *index = s != TD_OK ? NULL
                               : json_pack("{s:{s:I,s:O},s:O}", "metadata", "total_size", (json_int_t)total,
                                           TD_CHECKSUMS_KEY, sums, "weight_map", map);
    char   *text = index ? td_json_dump(index, JSON_INDENT(1)) : NULL;
    if (s == TD_OK)
        s = text ? td_output_path(q, path, "model.safetensors.index.json") : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK) s = td_file_write(path, text, strlen(text), q->err);
    free(text);
    json_decref(index);
    json_decref(map);
    json_decref(sums);
    return s;
}
