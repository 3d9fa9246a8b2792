/* Running a model in a test without the engine: one pool, the host device or the one that TD_TEST_DEVICE names, KV pages in
 * a shuffled order. */
#ifndef TD_TESTS_MODEL_RUN_H
#define TD_TESTS_MODEL_RUN_H

#include "model/placed_model.h"

typedef struct {
    td_pool        *pool, *npu_pools[8]; /* [n_npu_pools] threads of each card's own, where they have any */
    uint32_t        n_npu_pools;
    td_placed_model placed;
    td_npu         *npu;   /* of placed */
    td_model       *model; /* of placed */
    td_step_rows    rows;
    uint32_t        n_pages, pages_per_seq;
    uint32_t       *page; /* [n_pages] a permutation */
} model_run;

typedef struct {
    const char          *path;       /* absolute, or from the repository root */
    const td_checkpoint *checkpoint; /* of path, opened by the test; NULL: opened here */
    const char          *cpu_weight_path, *override_json;
    bool                 w8a8, kv_int8;
    td_expert_format     experts;
    td_expert_groups     groups;
    bool                 experts_as_stored;
    uint32_t             max_deferred;
    uint32_t             device_experts;    /* of a layer: none, some or all */
    uint64_t             residency_seed;    /* which ones of some is drawn; 0: the policy's choice */
    bool                 stream_experts;    /* others pass through the device's memory */
    bool                 drop_experts;      /* those on the device leave host memory */
    uint32_t             threads, subpools; /* 0: 2 and 1 */
    uint32_t             npu_threads;       /* 0: TD_TEST_NPU_THREADS, or shared */
    const char          *device;            /* NULL: what TD_TEST_DEVICE says, else host */
    uint32_t             n_cards;           /* tensor parallel; 0: what TD_TEST_CARDS says, else 1 */
    bool                 other_handover;    /* not the form that suits the device; TD_TEST_OTHER_HANDOVER asks for it too */
    bool                 sums_ahead;        /* td_model_probe.sums_ahead; TD_TEST_SUMS_AHEAD asks for it too */
    uint32_t             max_tok;           /* 0: 2048 */
    uint32_t             overlap_min_tok;   /* steps of so many rows go in two halves; 0: none */
    uint32_t             max_patches;       /* of a picture; 0: no images are taken */
    bool                 in_pieces;         /* td_model_start_pieces may be used, if the model's spec says so */
    bool                 gives_windows;     /* pages of windows are fewer; the test says where they lie */
    td_layer_range       layers;            /* end 0: all */
    td_layer_tap         layer_tap;
    td_rows_tap          rows_tap;
    void                *tap_user;       /* of both */
    uint32_t             n_seq, max_len; /* sequences that have pages at the same time, tokens of each */
} model_run_options;

/** Fails the test when the model cannot be loaded. */
void model_run_open(model_run *r, const model_run_options *o);
void model_run_close(model_run *r);

/** One piece of a sequence: ids at positions first .. first + n - 1 of sequence seq. */
typedef struct {
    uint32_t                 seq, first, n;
    const uint32_t          *ids;
    bool                     absorbed;
    const td_sequence_image *images; /* [n_images] of the whole sequence */
    uint32_t                 n_images;
} model_piece;

/** Add the rows of pieces to empty ones. */
void model_run_fill(const model_run *r, const model_piece *pieces, uint32_t n_pieces, td_step_rows *rows);

/** A forward pass over pieces; its rows stay valid until the next call. */
const td_step_rows *model_run_forward(model_run *r, const model_piece *pieces, uint32_t n_pieces);

/** The same through options.layers: [n_tok, hidden] in and out, of the activations' type. */
void model_run_layers(model_run *r, const model_piece *pieces, uint32_t n_pieces, const void *in, void *out);

/** Logits of all rows of the last forward into out [n_tok, vocab]. */
void model_run_logits(model_run *r, uint32_t n_tok, float *out);

/** The MTP layer over the rows of the last forward, next[i] fed to row i: its logits into out [n_tok, vocab]. */
void model_run_mtp_logits(model_run *r, const uint32_t *next, uint32_t n_tok, float *out);

/** What td_out_rows.logprobs gave for n rows of which the best logits came, against the whole rows: both [n, vocab]. */
void check_log_sums(const float *whole, const float *got, size_t vocab, const td_out_logprobs *sums, uint32_t n);

/** log softmax(logits)[id], in double. */
double   log_prob(const float *logits, size_t vocab, uint32_t id);
uint32_t arg_max(const float *logits, size_t vocab);

/** The rms of a - b, of the rms of b; both [n]. */
double distance(const float *a, const float *b, size_t n);

/** The median of the distances of the rows, [rows, vocab]: a row whose experts are others by a near tie is far off. */
double median_distance(const float *got, const float *want, size_t rows, size_t vocab);

/** Absolute path of a file of the repository, in static storage, four at a time; a path that is absolute is that itself. */
const char *repo_path(const char *path_in_repo);

/** A whole file of f32 or i32 values: malloc'd. Fails the test when it has not n values. */
void *read_array(const char *relative, size_t n, size_t value_bytes);

#endif
