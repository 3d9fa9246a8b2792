/* What checks make on a device: memory, weights, blocks and steps. The first failure is kept until the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/math/rng.h"
#include "doctor/check.h"

void td_rig_fail(td_rig *r, td_status st, const char *what) {
    if (r->st == TD_OK) r->st = td_fail(r->err, st, "%s", what);
}

/* Keeps the status of a call that has written its sentence to err itself. */
static void took(td_rig *r, td_status st) {
    if (r->st == TD_OK) r->st = st;
}

static void keep(td_rig *r, td_piece_kind kind, void *p, size_t bytes) {
    if (r->n_pieces == TD_RIG_PIECES_MAX) abort(); /* a mistake in a check: it makes too much */
    r->pieces[r->n_pieces].kind = kind;
    r->pieces[r->n_pieces].bytes = bytes;
    r->pieces[r->n_pieces++].p = p;
}

void td_rig_open(td_rig *r, td_npu *npu, bool is_reference, td_error *err) {
    td_npu_caps caps;
    npu->ops->caps(npu, &caps);
    *r = (td_rig){.npu = npu,
                  .ops = npu->ops,
                  .act = is_reference ? TD_DT_F32 : TD_DT_BF16,
                  .unified = caps.unified_memory,
                  .is_reference = is_reference,
                  .err = err};
    took(r, npu->ops->stream_create(npu, &r->stream, err));
}

td_status td_rig_close(td_rig *r) {
    if (r->stream) {
        td_status st = r->ops->stream_sync(r->npu, r->stream);
        if (st != TD_OK) td_rig_fail(r, st, "work on the device's stream failed");
    }
    while (r->n_pieces) {
        void  *p = r->pieces[--r->n_pieces].p;
        size_t bytes = r->pieces[r->n_pieces].bytes;
        switch (r->pieces[r->n_pieces].kind) {
            case TD_PIECE_DEVICE: r->ops->free(r->npu, p, bytes); break;
            case TD_PIECE_PINNED: r->ops->host_free(r->npu, p, bytes); break;
            case TD_PIECE_HOST: free(p); break;
            case TD_PIECE_WEIGHT: r->ops->weight_destroy(r->npu, p); break;
            case TD_PIECE_BLOCK: r->ops->block_destroy(r->npu, p); break;
            case TD_PIECE_GRAPH: r->ops->graph_destroy(r->npu, p); break;
        }
    }
    if (r->stream) r->ops->stream_destroy(r->npu, r->stream);
    return r->st;
}

/* ---- memory ------------------------------------------------------------------------------------ */

void *td_rig_host(td_rig *r, size_t bytes) {
    void *p = r->st == TD_OK ? calloc(1, bytes) : NULL;
    if (p)
        keep(r, TD_PIECE_HOST, p, bytes);
    else
        td_rig_fail(r, TD_ENOMEM, "out of memory for a check");
    return p;
}

void *td_rig_pinned(td_rig *r, size_t bytes) {
    void *p = NULL;
    if (r->st == TD_OK) took(r, r->ops->host_alloc(r->npu, bytes, &p, r->err));
    if (p) keep(r, TD_PIECE_PINNED, p, bytes);
    return p;
}

void *td_rig_alloc(td_rig *r, size_t bytes) {
    void *p = NULL;
    if (r->st == TD_OK) took(r, r->ops->alloc(r->npu, bytes, &p, r->err));
    if (p) keep(r, TD_PIECE_DEVICE, p, bytes);
    return p;
}

void td_rig_sync(td_rig *r) {
    if (r->st != TD_OK) return;
    td_status st = r->ops->stream_sync(r->npu, r->stream);
    if (st != TD_OK) td_rig_fail(r, st, "an operation failed on the device");
}

/* Copies through pinned memory, which is freed after the copy. */
static void copy_through(td_rig *r, void *device, void *host, size_t bytes, td_copy_kind kind) {
    void *pinned = NULL;
    if (r->st == TD_OK) took(r, r->ops->host_alloc(r->npu, bytes, &pinned, r->err));
    if (!pinned) return;
    if (kind == TD_COPY_H2D) memcpy(pinned, host, bytes);
    td_status st = kind == TD_COPY_H2D ? r->ops->copy(r->npu, r->stream, device, pinned, bytes, kind)
                                       : r->ops->copy(r->npu, r->stream, pinned, device, bytes, kind);
    if (st != TD_OK) td_rig_fail(r, st, "a copy over the link cannot be enqueued");
    td_rig_sync(r);
    if (kind == TD_COPY_D2H) memcpy(host, pinned, bytes);
    r->ops->host_free(r->npu, pinned, bytes);
}

void td_rig_put(td_rig *r, void *device, const void *from, size_t bytes) {
    if (r->st != TD_OK) return;
    if (r->unified)
        memcpy(device, from, bytes);
    else
        copy_through(r, device, (void *)from, bytes, TD_COPY_H2D);
}

void td_rig_get(td_rig *r, const void *device, void *to, size_t bytes) {
    if (r->st != TD_OK) return;
    if (r->unified)
        memcpy(to, device, bytes);
    else
        copy_through(r, (void *)device, to, bytes, TD_COPY_D2H);
}

/* ---- numbers ----------------------------------------------------------------------------------- */

size_t td_rig_act_bytes(const td_rig *r, size_t n) {
    return n * td_dtype_bytes(r->act);
}

static float to_bf16(float f) {
    return td_bf16_to_f32(td_f32_to_bf16(f));
}

float *td_rig_noise(td_rig *r, uint64_t seed, size_t n, float scale) {
    float *f = td_rig_host(r, n * sizeof *f);
    for (size_t i = 0; f && i < n; i++) f[i] = to_bf16(scale * (float)(2 * td_rng_uniform(seed, 1, i) - 1));
    return f;
}

float *td_rig_codes(td_rig *r, uint64_t seed, size_t rows, size_t k, int exponent) {
    const size_t n = rows * k;
    const float  unit = ldexpf(1, exponent);
    float       *f = td_rig_host(r, n * sizeof *f);
    for (size_t i = 0; f && i < n;
         i += 8) { /* 8 numbers from each draw, 16 bits each, because an examination needs many weights */
        uint32_t draw[4];
        td_philox(seed, 2, i / 8, draw);
        for (size_t j = 0; j < 8 && i + j < n; j++) {
            uint32_t bits = draw[j / 2] >> 16 * (j % 2) & 0xffff;
            f[i + j] = unit * ((float)(bits * 255 >> 16) - 127);
        }
    }
    for (size_t row = 0; f && row < rows; row++) f[row * k + row % k] = 127 * unit;
    return f;
}

int td_rig_exponent(size_t k) {
    return -(int)lround(log2(73.6 * sqrt((double)k))); /* 73.6: the rms of whole numbers from -127 to 127 */
}

void *td_rig_activations(td_rig *r, const float *x, size_t n) {
    void    *device = td_rig_alloc(r, td_rig_act_bytes(r, n));
    td_bf16 *rounded = r->act == TD_DT_BF16 ? td_rig_host(r, n * sizeof *rounded) : NULL;
    for (size_t i = 0; rounded && i < n; i++) rounded[i] = td_f32_to_bf16(x[i]);
    td_rig_put(r, device, rounded ? (const void *)rounded : x, td_rig_act_bytes(r, n));
    return device;
}

float *td_rig_floats(td_rig *r, const void *device, size_t n) {
    float   *f = td_rig_host(r, n * sizeof *f);
    td_bf16 *rounded = r->act == TD_DT_BF16 ? td_rig_host(r, n * sizeof *rounded) : NULL;
    td_rig_get(r, device, rounded ? (void *)rounded : f, td_rig_act_bytes(r, n));
    for (size_t i = 0; f && rounded && i < n; i++) f[i] = td_bf16_to_f32(rounded[i]);
    return f;
}

td_npu_weight *td_rig_weight(td_rig *r, td_weight_format format, const float *w, size_t n, size_t k) {
    td_tensor_view v = {.dtype = TD_DT_F32, .rank = n ? 2 : 1, .shape = {n ? n : k, k}, .data = w};
    td_npu_weight *out = NULL;
    if (r->st == TD_OK) took(r, r->ops->weight_create(r->npu, format, &v, &out, r->err));
    if (out) keep(r, TD_PIECE_WEIGHT, out, 0);
    return out;
}

td_npu_weight *td_rig_linear(td_rig *r, td_weight_format format, uint64_t seed, size_t n, size_t k) {
    float *w = td_rig_codes(r, seed, n, k, td_rig_exponent(k));
    return td_rig_weight(r, r->is_reference ? TD_WEIGHT_BF16 : format, w, n, k);
}

/* ---- blocks and steps -------------------------------------------------------------------------- */

td_npu_block *td_rig_block(td_rig *r, const td_block_desc *desc) {
    td_npu_block *b = NULL;
    if (r->st == TD_OK) took(r, r->ops->block_create(r->npu, desc, &b, r->err));
    if (b) keep(r, TD_PIECE_BLOCK, b, 0);
    return b;
}

/* Lays the arrays out one behind the other. Returns their size in bytes; with `at` NULL it does only that. */
static size_t lay_out(const td_step *s, char *at, td_step_arrays *a) {
    size_t used = 0;
    const struct {
        const void **array;
        size_t       bytes;
    } list[] = {
        {(const void **)&a->counts, sizeof(td_step_counts)},
        {(const void **)&a->token, 4 * (size_t)s->max_tok},
        {(const void **)&a->pos, 4 * (size_t)s->max_tok},
        {(const void **)&a->slot, 4 * (size_t)s->max_tok},
        {(const void **)&a->seq_start, 4 * ((size_t)s->max_seq + 1)},
        {(const void **)&a->kv_len, 4 * (size_t)s->max_seq},
        {(const void **)&a->absorbed, s->max_seq},
        {(const void **)&a->block_table, 4 * (size_t)s->max_seq * s->block_stride},
        {(const void **)&a->out_row, 4 * (size_t)s->max_out},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (at) *list[i].array = at + used;
        used += list[i].bytes / 64 * 64 + 64; /* at least 64 bytes each, so that no two have the same address */
    }
    return used;
}

td_rig_step td_rig_step_new(td_rig *r, uint32_t max_tok, uint32_t max_seq, uint32_t max_out, uint32_t block_stride) {
    td_rig_step    s = {.step = {.max_tok = max_tok, .max_seq = max_seq, .max_out = max_out, .block_stride = block_stride}};
    td_step_arrays none;
    s.bytes = lay_out(&s.step, NULL, &none);
    s.pinned = td_rig_pinned(r, s.bytes);
    s.device = r->unified ? s.pinned : td_rig_alloc(r, s.bytes);
    if (r->st != TD_OK) return s;
    lay_out(&s.step, s.pinned, &s.step.host);
    lay_out(&s.step, s.device, &s.step.dev);
    return s;
}

static void fill(const void *to, const void *from, size_t bytes) {
    if (from) memcpy((void *)to, from, bytes);
}

void td_rig_step_fill(td_rig *r, td_rig_step *s, const td_step_arrays *from) {
    const td_step_arrays *to = &s->step.host;
    if (r->st != TD_OK) return;
    td_step_counts n = *from->counts;
    fill(to->counts, &n, sizeof n);
    fill(to->token, from->token, 4 * (size_t)n.n_tok);
    fill(to->pos, from->pos, 4 * (size_t)n.n_tok);
    fill(to->slot, from->slot, 4 * (size_t)n.n_tok);
    fill(to->seq_start, from->seq_start, 4 * ((size_t)n.n_seq + 1));
    fill(to->kv_len, from->kv_len, 4 * (size_t)n.n_seq);
    fill(to->absorbed, from->absorbed, n.n_seq);
    fill(to->block_table, from->block_table, 4 * (size_t)n.n_seq * s->step.block_stride);
    fill(to->out_row, from->out_row, 4 * (size_t)n.n_out);
}

void td_rig_step_upload(td_rig *r, const td_rig_step *s) {
    if (r->st != TD_OK || r->unified) return;
    td_status st = r->ops->copy(r->npu, r->stream, s->device, s->pinned, s->bytes, TD_COPY_H2D);
    if (st != TD_OK) td_rig_fail(r, st, "a copy over the link cannot be enqueued");
}

void td_rig_enqueue(td_rig *r, td_npu_block *b, const td_rig_step *s) {
    if (r->st != TD_OK) return;
    td_status st = r->ops->enqueue(r->npu, r->stream, b, &s->step);
    if (st != TD_OK) td_rig_fail(r, st, "a block cannot be enqueued");
}

void td_rig_run_rows(td_rig *r, td_npu_block *b, uint32_t n) {
    td_rig_step s = td_rig_step_new(r, n, 0, 0, 0);
    td_rig_step_fill(r, &s, &(td_step_arrays){.counts = &(td_step_counts){.n_tok = n}});
    td_rig_step_upload(r, &s);
    td_rig_enqueue(r, b, &s);
    td_rig_sync(r);
}
