/* What tests of blocks on the backend for NVIDIA cards share: the host's device and a card of the stand-in side by side,
 * with the same buffers, weights and steps. */
#ifndef TD_TESTS_CUDA_PAIR_H
#define TD_TESTS_CUDA_PAIR_H

#include "npu_test_util.h"

enum { HOST, CARD, PAIR_MOST = 256 };

/** A buffer on both. */
typedef struct {
    void  *at[2];
    size_t bytes;
} both;

/** What is put on both goes when the pair is closed. */
typedef struct {
    uint32_t       first, rows, bucket; /* of the step; first: its first row in the buffers */
    rig            host;
    td_npu        *card;
    td_npu_stream *stream;
    td_step_counts counts;
    void          *dev_counts;
    td_step_arrays arrays[2]; /* of attention: all but the counts */
    uint32_t       block_stride;
    td_step        step[2]; /* of the host, and of the card */
    both           buffers[PAIR_MOST];
    td_npu_weight *weights[PAIR_MOST][2];
    size_t         n_buffers, n_weights;
} pair;

static inline uint32_t all_rows(const pair *p) {
    return p->first + p->bucket;
}

static inline void copy(pair *p, void *host, void *dev, size_t bytes, td_copy_kind kind) {
    const td_npu_ops *o = p->card->ops;
    void             *pinned;
    td_error          err = {0};
    OK(o->host_alloc(p->card, bytes, &pinned, &err));
    if (kind == TD_COPY_H2D) memcpy(pinned, host, bytes);
    OK(o->copy(p->card, p->stream, kind == TD_COPY_H2D ? dev : pinned, kind == TD_COPY_H2D ? pinned : dev, bytes, kind));
    OK(o->stream_sync(p->card, p->stream));
    if (kind == TD_COPY_D2H) memcpy(host, pinned, bytes);
    o->host_free(p->card, pinned, bytes);
}

static inline both put(pair *p, const void *from, size_t bytes) { /* from NULL: zeros */
    both     b = {.bytes = bytes, .at = {calloc(1, bytes)}};
    td_error err = {0};
    OK(p->card->ops->alloc(p->card, bytes, &b.at[CARD], &err));
    if (from) {
        memcpy(b.at[HOST], from, bytes);
        copy(p, b.at[HOST], b.at[CARD], bytes, TD_COPY_H2D);
    }
    assert_true(p->n_buffers < PAIR_MOST);
    return p->buffers[p->n_buffers++] = b;
}

static inline both put_rows(pair *p, rnd *r, size_t width) {
    FREED float *f = rnd_array(r, all_rows(p) * width, 1);
    FREED void  *x = act_array(TD_DT_BF16, f, all_rows(p) * width);
    return put(p, x, all_rows(p) * width * sizeof(td_bf16));
}

static inline pair open_pair(uint32_t rows, uint32_t bucket) {
    pair p = {.first = 3, .rows = rows, .bucket = bucket, .host = rig_open(1, TD_DT_BF16, false), .counts = {.n_tok = rows}};
    td_error      err = {0};
    td_npu_config c = {.act_dtype = TD_DT_BF16};
    if (td_npu_open("cuda", &c, &p.card, &err) != TD_OK) fail_msg("%s", err.text);
    OK(p.card->ops->stream_create(p.card, &p.stream, &err));
    OK(p.card->ops->alloc(p.card, sizeof p.counts, &p.dev_counts, &err));
    copy(&p, &p.counts, p.dev_counts, sizeof p.counts, TD_COPY_H2D);
    return p;
}

static inline void set_step(pair *p) {
    p->arrays[HOST].counts = &p->counts;
    p->arrays[CARD].counts = p->dev_counts;
    p->step[HOST] = td_step_unified(&p->arrays[HOST], p->block_stride);
    p->step[HOST].first_row = p->first;
    p->step[CARD] = p->step[HOST];
    p->step[CARD].max_tok = p->bucket;
    p->step[CARD].max_out = p->counts.n_out ? p->counts.n_out + 1 : 0;
    p->step[CARD].dev = p->arrays[CARD];
}

static inline void close_pair(pair *p) {
    for (size_t i = 0; i < p->n_weights; i++) {
        p->host.npu->ops->weight_destroy(p->host.npu, p->weights[i][HOST]);
        p->card->ops->weight_destroy(p->card, p->weights[i][CARD]);
    }
    for (size_t i = 0; i < p->n_buffers; i++) {
        p->card->ops->free(p->card, p->buffers[i].at[CARD], p->buffers[i].bytes);
        free(p->buffers[i].at[HOST]);
    }
    p->card->ops->free(p->card, p->dev_counts, sizeof p->counts);
    p->card->ops->stream_destroy(p->card, p->stream);
    p->card->ops->close(p->card);
    rig_close(&p->host);
}

static inline void weights_of(pair *p, td_weight_format format, const td_tensor_view *v, td_npu_weight *w[2]) {
    td_npu  *npu[2] = {p->host.npu, p->card};
    td_error err = {0};
    for (int d = 0; d < 2; d++)
        if (npu[d]->ops->weight_create(npu[d], format, v, &w[d], &err) != TD_OK) fail_msg("%s", err.text);
    assert_true(p->n_weights < PAIR_MOST);
    memcpy(p->weights[p->n_weights++], w, 2 * sizeof *w);
}

static inline void random_weights(pair *p, rnd *r, td_weight_format format, size_t n, size_t k,
                                  td_npu_weight *w[2]) { /* n 0: a vector */
    FREED float   *f = rnd_array(r, (n ? n : 1) * k, 1);
    td_tensor_view v = {.dtype = TD_DT_F32, .rank = n ? 2 : 1, .shape = {n ? n : k, k}, .data = f};
    weights_of(p, format, &v, w);
}

/* On the host; on the card at once and twice from a graph, which gives the same bits in `out`. */
static inline void run_both(pair *p, const td_block_desc desc[2], const both *out) {
    const td_npu_ops *o = p->card->ops;
    td_npu_block     *b;
    td_npu_graph     *g;
    td_error          err = {0};
    FREED void       *at_once = malloc(out->bytes), *replayed = malloc(out->bytes);
    set_step(p);
    td_npu_block *host = make_block(&p->host, &desc[HOST]);
    run_block(&p->host, host, &p->step[HOST]);
    if (o->block_create(p->card, &desc[CARD], &b, &err) != TD_OK) fail_msg("%s", err.text);
    OK(o->enqueue(p->card, p->stream, b, &p->step[CARD]));
    OK(o->stream_sync(p->card, p->stream));
    copy(p, at_once, out->at[CARD], out->bytes, TD_COPY_D2H);
    OK(o->graph_begin(p->card, p->stream));
    OK(o->enqueue(p->card, p->stream, b, &p->step[CARD]));
    OK(o->graph_end(p->card, p->stream, &g, &err));
    for (int i = 0; i < 2; i++) {
        OK(o->graph_launch(p->card, p->stream, g));
        copy(p, replayed, out->at[CARD], out->bytes, TD_COPY_D2H);
        assert_memory_equal(replayed, at_once, out->bytes);
    }
    o->graph_destroy(p->card, g);
    o->block_destroy(p->card, b);
}

/* The step's rows are near, or the same bits with tolerance 0 (a NaN has any of its own); the card has written no others. */
static inline void check(pair *p, const both *b, size_t width, double tolerance, const char *what) {
    td_bf16      *got = malloc(b->bytes), *want = b->at[HOST];
    FREED double *w = malloc(p->rows * width * sizeof *w);
    copy(p, got, b->at[CARD], b->bytes, TD_COPY_D2H);
    for (size_t i = 0; i < all_rows(p) * width; i++)
        if ((i < p->first * width || i >= (p->first + p->rows) * width) && got[i])
            fail_msg("%s: row %zu is written", what, i / width);
    for (size_t i = 0; i < p->rows * width; i++) w[i] = act_get(TD_DT_BF16, want, p->first * width + i);
    double error = error_of(TD_DT_BF16, got + p->first * width, w, p->rows * width);
    bool   same = true;
    for (size_t i = 0; i < p->rows * width; i++) {
        size_t at = p->first * width + i;
        same &= got[at] == want[at] || (isnan(w[i]) && isnan(td_bf16_to_f32(got[at])));
    }
    if (tolerance > 0 ? !(error <= tolerance) : !same)
        fail_msg("%s: the card is %.6f off, allowed is %.6f", what, error, tolerance);
    free(got);
}

#endif
