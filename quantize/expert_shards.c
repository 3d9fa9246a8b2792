/*
 * The routed experts for other engines: a safetensors shard per MoE layer with compressed-tensors' tensors, made from the
 * layer's packed file, which then goes. Codes and scales are those of the packed file.
 *
 *   int4, int4-gN   X.weight_packed I32 [n, ceil(k / 8)], code + 8 of column 8 j + i in bits 4 i .. 4 i + 3 of word j, 0 beyond k;
 *                   X.weight_scale [n, 1] F32, or [n, k / N] BF16; X.weight_shape I64 {n, k}
 *                   (a group whose weights are all 0 has the scale 1)
 *   int8            X.weight I8 [n, k], X.weight_scale F32 [n, 1]
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "quantize/quantizer.h"

#define MATRICES 3
#define TENSORS_MAX 3 /* of a matrix */

/* What one matrix of an expert becomes: the same for all experts. */
typedef struct {
    size_t   n, k, groups;            /* groups: scales of a row */
    size_t   data_bytes, scale_bytes; /* in the shard */
    td_dtype scale_dtype;
    bool     packed;
} matrix_form;

typedef struct {
    td_quantizer        *q;
    uint32_t             layer, index;
    matrix_form          form[MATRICES];
    size_t               expert_bytes, widest, most_scales; /* widest: elements of the largest matrix */
    td_safetensors_item *items;                             /* [n_experts, MATRICES, tensors] */
    uint32_t             tensors;                           /* of a matrix */
} shard;

static const char *const SUFFIXES[2][TENSORS_MAX] = {{"", "_scale", NULL}, {"_packed", "_scale", "_shape"}};

static td_safetensors_item *items_of(const shard *s, uint32_t expert, int m) {
    return &s->items[((size_t)expert * MATRICES + (size_t)m) * s->tensors];
}

/* ---- layout ------------------------------------------------------------------------------------ */

static void set_form(shard *s, int m, const td_tensor_spec *spec) {
    const td_expert_numbers *numbers = s->q->experts;
    matrix_form             *f = &s->form[m];
    *f = (matrix_form){.n = spec->shape[0],
                       .k = spec->shape[1],
                       .groups = 1,
                       .scale_dtype = TD_DT_F32,
                       .packed = numbers->format != TD_EXPERT_INT8C};
    if (numbers->format == TD_EXPERT_INT4G) {
        f->groups = f->k / numbers->groups.size;
        f->scale_dtype = numbers->groups.scale_dtype;
    }
    f->data_bytes = f->n * (f->packed ? (f->k + 7) / 8 * sizeof(uint32_t) : f->k);
    f->scale_bytes = f->n * f->groups * td_dtype_bytes(f->scale_dtype);
    s->expert_bytes += f->data_bytes + f->scale_bytes;
    if (f->n * f->k > s->widest) s->widest = f->n * f->k;
    if (f->n * f->groups > s->most_scales) s->most_scales = f->n * f->groups;
}

static td_status open_shard(td_quantizer *q, uint32_t layer, shard *s) {
    const td_model_config *c = &q->config;
    td_tensor_spec         spec;
    *s = (shard){.q = q,
                 .layer = layer,
                 .index = td_moe_layers_in(c, (td_layer_range){0, layer}),
                 .tensors = q->experts->format == TD_EXPERT_INT8C ? 2 : 3};
    s->items = calloc((size_t)c->n_experts * MATRICES * s->tensors, sizeof *s->items);
    if (!s->items) return td_fail(q->err, TD_ENOMEM, "out of memory");
    for (uint32_t e = 0; e < c->n_experts; e++)
        for (int m = 0; m < MATRICES; m++) {
            if (!td_tensor_spec_get(c, (td_role)(TD_ROLE_EXPERT_GATE + m), layer, e, &spec)) continue;
            if (e == 0) set_form(s, m, &spec);
            const matrix_form  *f = &s->form[m];
            td_safetensors_item made[TENSORS_MAX] = {
                {.dtype = f->packed ? TD_DT_I32 : TD_DT_I8, .rank = 2, .shape = {f->n, f->packed ? (f->k + 7) / 8 : f->k}},
                {.dtype = f->scale_dtype, .rank = 2, .shape = {f->n, f->groups}},
                {.dtype = TD_DT_I64, .rank = 1, .shape = {2}},
            };
            for (uint32_t t = 0; t < s->tensors; t++) {
                snprintf(made[t].name, sizeof made[t].name, "%s%s", spec.name, SUFFIXES[f->packed][t]);
                items_of(s, e, m)[t] = made[t];
            }
        }
    return TD_OK;
}

static size_t n_items(const shard *s) {
    return (size_t)s->q->config.n_experts * MATRICES * s->tensors;
}

static void shard_name(const td_quantizer *q, uint32_t index, char *name, size_t size) {
    snprintf(name, size, "model-experts-%05u-of-%05u.safetensors", index + 1, td_model_config_moe_layers(&q->config));
}

static td_status create_writer(const shard *s, td_safetensors_writer **w) {
    char name[64], path[PATH_MAX];
    shard_name(s->q, s->index, name, sizeof name);
    TD_TRY(td_output_path(s->q, path, name));
    return td_safetensors_writer_create(path, s->items, n_items(s), TD_SOURCE_HASH_KEY, s->q->hash_text, w, s->q->err);
}

/* ---- content ----------------------------------------------------------------------------------- */

/* Some experts on their way: each is encoded into memory by a worker, then all are written. */
typedef struct {
    const shard      *s;
    const td_experts *store;
    uint32_t          first, n;
    char             *out;    /* [n, expert_bytes]: of every matrix data, then scales */
    int8_t           *codes;  /* [workers, widest] */
    float            *scales; /* [workers, most_scales] */
    td_error         *errors; /* [n] status TD_OK: it went well */
} batch;

static void pack_words(const int8_t *codes, size_t n, size_t k, uint32_t *out) {
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < k; c += 8) {
            uint32_t word = 0;
            for (size_t i = 0; i < 8 && c + i < k; i++) word |= (uint32_t)(codes[r * k + c + i] + 8) << 4 * i;
            *out++ = word;
        }
}

static void encode_expert(void *ctx, uint32_t item, const td_worker *w) {
    const batch *b = ctx;
    const shard *s = b->s;
    char        *out = b->out + item * s->expert_bytes;
    int8_t      *codes = b->codes + w->index * s->widest;
    float       *scales = b->scales + w->index * s->most_scales;
    for (int m = 0; m < MATRICES; m++) {
        const matrix_form *f = &s->form[m];
        if (td_experts_get_codes(b->store, 0, b->first + item, (td_expert_matrix)m, 0, f->n, codes, scales,
                                 &b->errors[item]) != TD_OK)
            return;
        if (f->packed)
            pack_words(codes, f->n, f->k, (uint32_t *)out);
        else
            memcpy(out, codes, f->data_bytes);
        out += f->data_bytes;
        for (size_t i = 0; i < f->n * f->groups; i++) /* a group of zeros: any scale will do, and readers refuse 0 */
            if (scales[i] == 0) scales[i] = 1;
        td_from_f32(f->scale_dtype, scales, f->n * f->groups, out);
        out += f->scale_bytes;
    }
}

static td_status write_expert(const batch *b, uint32_t i, td_safetensors_writer *w) {
    const shard *s = b->s;
    const char  *at = b->out + i * s->expert_bytes;
    td_error    *err = s->q->err;
    for (int m = 0; m < MATRICES; m++) {
        const matrix_form         *f = &s->form[m];
        const td_safetensors_item *items = items_of(s, b->first + i, m);
        const int64_t              sides[2] = {(int64_t)f->n, (int64_t)f->k};
        TD_TRY(td_safetensors_writer_write(w, &items[0], 0, at, f->data_bytes, err));
        TD_TRY(td_safetensors_writer_write(w, &items[1], 0, at + f->data_bytes, f->scale_bytes, err));
        if (f->packed) TD_TRY(td_safetensors_writer_write(w, &items[2], 0, sides, sizeof sides, err));
        at += f->data_bytes + f->scale_bytes;
    }
    return TD_OK;
}

static td_status write_experts(const shard *s, const td_experts *store, td_safetensors_writer *w) {
    td_quantizer *q = s->q;
    uint32_t      workers = td_pool_workers(q->pool);
    batch         b = {.s = s, .store = store};
    b.out = malloc(workers * s->expert_bytes);
    b.codes = malloc(workers * s->widest);
    b.scales = malloc(workers * s->most_scales * sizeof *b.scales);
    b.errors = calloc(workers, sizeof *b.errors);
    td_status st = b.out && b.codes && b.scales && b.errors ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (st == TD_OK) st = td_safetensors_writer_begin(w, q->err);
    for (; st == TD_OK && b.first < q->config.n_experts; b.first += b.n) {
        b.n = q->config.n_experts - b.first < workers ? q->config.n_experts - b.first : workers;
        td_pool_run(q->pool, encode_expert, &b, b.n);
        for (uint32_t i = 0; st == TD_OK && i < b.n; i++)
            st = b.errors[i].status != TD_OK ? td_fail(q->err, b.errors[i].status, "%s", b.errors[i].text)
                                             : write_expert(&b, i, w);
    }
    if (st == TD_OK) st = td_safetensors_writer_commit(w, q->err);
    free(b.out);
    free(b.codes);
    free(b.scales);
    free(b.errors);
    return st;
}

/* ---- all of it --------------------------------------------------------------------------------- */

td_status td_expert_shards_check(const td_quantizer *q) {
    const td_expert_numbers *x = q->experts;
    const td_model_config   *c = &q->config;
    if (!q->compressed_tensors) return TD_OK;
    if (x->format != TD_EXPERT_INT4C && x->format != TD_EXPERT_INT8C && x->format != TD_EXPERT_INT4G)
        return td_fail(
            q->err, TD_ENOTSUP,
            "experts in %s cannot be written as compressed-tensors; choose int4, int8, int4-g32, int4-g64 or int4-g128",
            x->name);
    if (x->format != TD_EXPERT_INT4G) return TD_OK;
    uint32_t narrow = c->hidden % x->groups.size ? c->hidden : c->moe_inter;
    if (narrow % x->groups.size)
        return td_fail(q->err, TD_ENOTSUP,
                       "compressed-tensors has whole groups only, and %u weights of a row are not a multiple of %u", narrow,
                       x->groups.size);
    return TD_OK;
}

bool td_expert_shard_is_done(td_quantizer *q, uint32_t layer) {
    shard                  s = {0};
    td_safetensors_writer *w = NULL;
    td_error              *err = q->err, ignored = {0};
    if (!q->compressed_tensors || !q->config.is_moe[layer]) return false;
    q->err = &ignored; /* what is in the way stops the writing, and is told then */
    bool done = open_shard(q, layer, &s) == TD_OK && create_writer(&s, &w) == TD_OK && td_safetensors_writer_is_done(w);
    q->err = err;
    td_safetensors_writer_destroy(w);
    free(s.items);
    return done;
}

static td_status write_shard(td_quantizer *q, uint32_t layer) {
    char                   path[PATH_MAX];
    td_experts_config      config = td_expert_file_shape(q, layer, path);
    shard                  s;
    td_experts            *store = NULL;
    td_safetensors_writer *w = NULL;
    td_status              st = open_shard(q, layer, &s);
    if (st == TD_OK) st = td_experts_create(&config, q->pool, &store, q->err);
    if (st == TD_OK) st = td_experts_load_file(store, 0, path, q->hash, q->err);
    if (st == TD_OK) st = create_writer(&s, &w);
    if (st == TD_OK) st = write_experts(&s, store, w);
    td_safetensors_writer_destroy(w);
    td_experts_destroy(store);
    free(s.items);
    return st;
}

td_status td_expert_shards_write(td_quantizer *q) {
    for (uint32_t layer = 0; layer < td_quantizer_layers(q); layer++) {
        char path[PATH_MAX];
        if (!q->compressed_tensors || !q->config.is_moe[layer]) continue;
        if (!td_expert_shard_is_done(q, layer)) TD_TRY(write_shard(q, layer));
        td_expert_file_shape(q, layer, path);
        if (unlink(path) != 0 && errno != ENOENT)
            return td_fail(q->err, TD_EIO, "%s: cannot remove: %s", path, strerror(errno));
        td_quantizer_progress(q, td_expert_source_bytes(q, layer), "experts for other engines");
    }
    return TD_OK;
}

td_status td_expert_shards_list(td_quantizer *q, json_t *map, uint64_t *bytes) {
    for (uint32_t layer = 0; layer < td_quantizer_layers(q); layer++) {
        if (!q->compressed_tensors || !q->config.is_moe[layer]) continue;
        shard                  s;
        td_safetensors_writer *w = NULL; /* computes the bytes */
        char                   name[64];
        int                    failed = 0;
        td_status              st = open_shard(q, layer, &s);
        shard_name(q, s.index, name, sizeof name);
        if (st == TD_OK) st = create_writer(&s, &w);
        for (size_t i = 0; st == TD_OK && i < n_items(&s); i++) {
            failed |= json_object_set_new(map, s.items[i].name, json_string(name));
            *bytes += s.items[i].bytes;
        }
        td_safetensors_writer_destroy(w);
        free(s.items);
        TD_TRY(st);
        if (failed) return td_fail(q->err, TD_ENOMEM, "out of memory");
    }
    return TD_OK;
}
