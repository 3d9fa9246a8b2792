/*
 * A model from the inside: what its files share.
 *
 *   model        spec, checkpoint, experts, bridge; a pass over all cards
 *   card_model   a card's share: weights, KV, activations, programs, captured passes
 *   image_rows   features of images on their way into a step
 *   watch        what tests and offline tools see of a pass: routing, layers
 */
#ifndef TD_MODEL_MODEL_STATE_H
#define TD_MODEL_MODEL_STATE_H

#include <pthread.h>

#include "core/threads/pool.h"
#include "core/threads/signal_word.h"
#include "model/device_file.h"
#include "model/memory_plan.h"
#include "model/model_probe.h"
#include "model/model_spec.h"
#include "model/piece_pace.h"
#include "model/program.h"
#include "model/shard.h"
#include "model/step_buf.h"
#include "model/vision.h"
#include "model/weights.h"

/* The pass under way; the same for all cards. */
typedef struct {
    td_pass_kind    kind;
    uint32_t        share; /* experts of a layer that are streamed; 0: it is no streamed pass */
    const uint32_t *token; /* tokens in place of the rows' own, or NULL */
    td_out_rows     out;
} td_pass;

/* The newest pass in pieces (pass_pieces.c). */
typedef struct {
    const td_step_rows   *rows;
    const td_step_bucket *bucket;
    td_program_cursor     cursor;
    bool                  uploaded; /* its step arrays and features of images are on the device */
    uint64_t              begin_ns; /* of the piece under way */
    double                block_s;  /* the parts of a block so far */
} td_pass_pieces;

/* A page on its way between the cards' caches and the host. */
typedef struct {
    uint32_t page;
    char    *host; /* [td_model_page_bytes] the cards' parts one after the other */
    bool     to_device;
} td_page_copy;

/* What one card has of the model: its share of the weights and the caches, its programs, and the graphs of its passes. */
typedef struct {
    td_model        *model;
    td_npu          *npu;
    td_shard         shard;
    td_program_bytes block_bytes;        /* without pages of KV */
    size_t           page_scratch_bytes; /* for each page on top */
    td_npu_stream   *stream;
    td_model_weights weights;
    td_device_file  *device_file;  /* the file that some of the weights lie in, or NULL */
    bool             all_kept;     /* all of them lie there */
    td_layer_kv     *kv;           /* [n_layers + n_mtp_layers] */
    uint32_t         kv_pages;     /* of each cache, without the spare ones */
    uint32_t         window_pages; /* of those with a window */
    td_activations   act;
    td_program       program[TD_PASSES];
    td_step_buf      step;
    td_step_buf      aside; /* of steps in pieces, whose rows lie behind the others'; nothing with spec.aside_tok 0 */
    /* [TD_PASSES + 1, TD_STEP_KINDS, step.n] each NULL until it is needed; the last ones are streamed passes */
    td_npu_graph **graphs;
    float         *logits; /* [max_out, vocab of the shard] on the host; act.logits with unified memory */
    td_logit      *top;    /* [max_out, top_k] on the host; NULL with unified memory */
    td_log_sum    *sums;   /* [max_out] on the host; NULL with unified memory, and where the device gives none */
    void          *images; /* as act.images, on the host; act.images with unified memory */
    void *x; /* [max_tok, streams * hidden] on the host, with a layer_tap or spec.layers; act.x with unified memory */
    const td_step_bucket *bucket;    /* of the pass under way */
    td_npu_graph         *graph;     /* of the pass under way; NULL: it is enqueued as it is */
    void                 *page_copy; /* pinned, for a page on its way; NULL with unified memory, and until it is needed */
    td_status             status;    /* of the card's job */
    td_error              error;     /* why the job failed; no text if the device gave no sentence */
    pthread_t             thread;    /* of every card but the first */
    bool                  has_thread;
} td_card_model;

typedef struct kept_routing kept_routing;
typedef struct tapped_layer tapped_layer;

struct td_model {
    td_model_spec   spec;            /* settled once the model is open */
    td_model_probe  probe;           /* all 0 while serving */
    char           *cpu_weight_path; /* folder of packed experts: spec.cpu_weight_path, or the model's own; NULL: none */
    td_model_config config;
    td_model_part   part;                /* which part of the model is loaded */
    const td_checkpoint *checkpoint;     /* until the weights are loaded */
    td_checkpoint       *own_checkpoint; /* the same; NULL if it is the caller's */
    td_pool             *expert_pool;
    uint64_t             expert_weight_bytes, expert_scratch_bytes;
    bool                 unified;        /* device and host have one memory */
    uint32_t             kv_spare_pages; /* of each cache, behind the pages of sequences; 0: the device wants none */
    bool                 async_experts;  /* the experts have threads of their own */
    td_handover          handover;
    bool                 log_sums;         /* the device gives log-sums of rows of logits */
    bool                 step_kinds;       /* the device tells kinds of steps apart */
    size_t               id_bytes;         /* of an expert's id as the device's routers give it */
    bool                 norm_f32;         /* norms give their rows in f32, too, for routers */
    bool                 groups_in_floats; /* the device multiplies 4-bit groups with rows of bf16 */
    bool                 int8_rows;        /* norms give their rows in int8, too, for linears with int8 weights */
    bool                 int8_experts;     /* the routed experts take these rows */

    td_card_model       *cards; /* [n_cards]; the first talks to the experts */
    uint32_t             n_cards;
    td_npu_group        *group;    /* the cards' group; NULL with one card */
    td_experts          *experts;  /* NULL: no MoE layer */
    td_packed_expert     packed;   /* of experts that may be resident */
    td_resident_experts *resident; /* NULL: all experts are on one tier */
    td_streamed_experts *streamed; /* NULL: none are */
    td_bridge           *bridge;
    td_vision           *vision; /* on the first card; NULL: the model takes no images */
    float               *logits; /* [max_out, vocab]; with one card the card's own */

    td_page_copy        copy;       /* the copy under way */
    const td_step_rows *rows;       /* of the last forward; passes of the heads use them */
    bool                rows_aside; /* it went in pieces */
    td_pass             pass;
    td_pass_pieces      pieces;
    td_piece_pace       pace[TD_PACES];
    td_signal           go, done; /* go: jobs given to the cards' threads; done: cards that have done theirs */
    td_status (*job)(td_card_model *c);
    bool stop; /* written before go's last rise */

    kept_routing *kept; /* [experts.n_layers, TD_HALVES] with keep_routing */
    void        **kept_args;
    tapped_layer *tapped; /* [n_layers] with layer_tap */
    void        **tapped_args;
    uint16_t     *tapped_ids; /* [max_tok, top_k] each: the choice that it is shown */
    float        *tapped_weights;
};

/** What the resident experts are opened with; experts are NULL until they are loaded. */
td_resident_spec td_model_resident_spec(const td_model *m);

static inline uint32_t td_model_all_layers(const td_model *m) {
    return m->config.n_layers + m->config.n_mtp_layers;
}

/* ---- card_model.c ---------------------------------------------------------------------------------- */

/** The memory that the card takes: the device's, and on the host what its mirrors and downloads take. */
void                   td_card_model_memory(const td_card_model *c, td_model_memory *memory);
TD_NODISCARD td_status td_card_model_outline(const td_card_model *c, uint32_t n_halves, td_outline *out, td_error *err);
/** Whether a step of n rows goes in halves; m is a td_model. */
bool                   td_card_model_splits(const void *model, uint32_t n);
TD_NODISCARD td_status td_card_model_measure_blocks(td_card_model *c, td_error *err); /* once config and part are known */
TD_NODISCARD td_status td_card_model_load(td_card_model *c, td_error *err);           /* stream, activations, weights */
/** KV, step buffers, programs; passes without prompts are captured. The model's bridge is open. */
TD_NODISCARD td_status td_card_model_build(td_card_model *c, uint32_t n_pages, td_error *err);
void                   td_card_model_keep_weights(const td_card_model *c); /* in a file, for the next start */
void                   td_card_model_close(td_card_model *c);
/** Forget the captured graphs: they are made anew when they are needed. Call while no work is under way. */
void td_card_model_forget_captures(td_card_model *c);

/** Measure how fast the card is with streamed experts, once for a model that has some: td_streamed_set_speeds. */
TD_NODISCARD td_status td_card_model_measure_streamed(td_card_model *c);

/** Fill the bucket of the model's pass and have its graph. Nothing runs yet. */
TD_NODISCARD td_status td_card_model_prepare(td_card_model *c);
/** Run it: when it returns, nothing runs on and the logits are on the host. */
TD_NODISCARD td_status td_card_model_run(td_card_model *c);
/** The program of a kind of pass that hands tokens over, or NULL. */
const td_program *td_card_model_program(const td_card_model *c, td_pass_kind kind);
/** Copy bytes of a device's buffer to the host, behind what is enqueued. */
TD_NODISCARD td_status td_card_model_download(td_card_model *c, void *host, const void *dev, size_t bytes);

/** How many of a row's best logits the card gives; 0: it gives whole rows, since they need not be copied. */
uint32_t td_card_model_top_k(const td_card_model *c);

/** Whether the card gives only the best logits of a row of the pass. */
static inline bool td_card_model_gives_best(const td_card_model *c, uint32_t row) {
    const td_out_rows *out = &c->model->pass.out;
    bool               wants_sum = out->logprobs && out->logprobs[row].wanted;
    return c->top && out->best && out->best[row] && (c->sums || !wants_sum);
}

/** Whether a row's log-probabilities use the card's sums. They do if the card gives sums, even if it gives the whole row,
 * so that how a row comes does not change them. */
static inline bool td_card_model_gives_sum(const td_card_model *c, uint32_t row) {
    const td_out_rows *out = &c->model->pass.out;
    return c->sums && out->best && out->logprobs && out->logprobs[row].wanted;
}

/** Where among the card's logits the one is that is wanted beside a row's best; SIZE_MAX: this card does not have it. */
size_t td_card_model_asked(const td_card_model *c, uint32_t row);

static inline size_t td_card_model_x_bytes(const td_model *m) {
    return m->spec.max_tok * td_model_width(&m->config) * td_dtype_bytes(td_model_act_dtype(&m->spec));
}

/* ---- image_rows.c ---------------------------------------------------------------------------- */

/** Of td_activations.images; 0: the model takes no images. */
size_t td_card_model_images_bytes(const td_model *m);
/** Put the rows' features where the step's rows from first_row on have theirs, on the host. Nothing is under way that reads
 * them. */
void td_card_model_fill_images(td_card_model *c, const td_step_rows *rows, uint32_t first_row);
/** Their copies to the device, of the rows' number; nothing with unified memory. */
TD_NODISCARD td_status td_card_model_enqueue_images(td_card_model *c, const td_step_rows *rows, uint32_t first_row);

/* ---- page_copy.c ----------------------------------------------------------------------------- */

size_t                 td_card_model_page_bytes(const td_card_model *c); /* the card's part of a page */
TD_NODISCARD td_status td_card_model_prepare_page_copies(td_card_model *c, td_error *err);
void                   td_card_model_close_page_copies(td_card_model *c);
TD_NODISCARD td_status td_card_model_copy_page(td_card_model *c); /* the model's copy, the card's part */

/* ---- watch.c --------------------------------------------------------------------------------- */

/** Put the probe's callbacks into the spec of the first card's programs. */
TD_NODISCARD td_status td_watch_open(td_model *m, td_program_spec *spec, td_error *err);
void                   td_watch_close(td_model *m);

#endif
