/*
 * A model from the inside: what its files share.
 *
 *   model        spec, checkpoint, experts, bridge; a pass over all cards
 *   card_model   a card's share: weights, KV, activations, programs, captured passes
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
#include "model/program.h"
#include "model/shard.h"
#include "model/step_buf.h"
#include "model/weights.h"

/* The pass under way; the same for all cards. */
typedef struct {
    td_pass_kind    kind;
    const uint32_t *token; /* in the place of the rows' own, or NULL */
    td_out_rows     out;
} td_pass;

/* A page on its way between the cards' caches and the host. */
typedef struct {
    uint32_t page;
    char    *host; /* [td_model_page_bytes] the cards' parts one after the other */
    bool     to_device;
} td_page_copy;

/* What one card has of the model: its share of the weights and the caches, its programs, and the graphs of its passes. */
typedef struct {
    td_model             *model;
    td_npu               *npu;
    td_shard              shard;
    size_t                block_scratch_bytes, page_scratch_bytes; /* of the blocks; and more for each page of KV */
    td_npu_stream        *stream;
    td_model_weights      weights;
    td_device_file       *device_file; /* what some of them lie in, or NULL */
    bool                  all_kept;    /* all of them do */
    td_layer_kv          *kv;          /* [n_layers + n_mtp_layers] */
    uint32_t              kv_pages;    /* of each cache, without the spare ones */
    td_activations        act;
    td_program            program[TD_PASSES];
    td_step_buf           step;
    td_npu_graph        **graphs; /* [TD_PASSES, step.n]; NULL until it is needed */
    float                *logits; /* [max_out, vocab of the shard] on the host; act.logits with unified memory */
    td_logit             *top;    /* [max_out, top_k] on the host; NULL with unified memory */
    td_log_sum           *sums;   /* [max_out] on the host; NULL with unified memory, and where the device gives none */
    void                 *x; /* [max_tok, hidden] on the host, with a layer_tap or spec.layers; act.x with unified memory */
    const td_step_bucket *bucket;    /* of the pass under way */
    td_npu_graph         *graph;     /* of it */
    void                 *page_copy; /* pinned, for a page on its way; NULL with unified memory, and until it is needed */
    td_status             status;    /* of the card's job */
    td_error              error;     /* why the job failed; no text if the device gave no sentence */
    pthread_t             thread;    /* of cards behind the first */
    bool                  has_thread;
} td_card_model;

typedef struct kept_routing kept_routing;
typedef struct tapped_layer tapped_layer;

struct td_model {
    td_model_spec        spec;            /* settled once the model is open */
    td_model_probe       probe;           /* all 0 while serving */
    char                *cpu_weight_path; /* of spec.cpu_weight_path, or of packed experts in the model's folder; NULL */
    td_model_config      config;
    td_model_part        part;           /* what of the model there is */
    const td_checkpoint *checkpoint;     /* until the weights are loaded */
    td_checkpoint       *own_checkpoint; /* the same, or NULL where it is the caller's */
    td_pool             *expert_pool;
    uint64_t             expert_weight_bytes, expert_scratch_bytes;
    bool                 unified;        /* device and host have one memory */
    uint32_t             kv_spare_pages; /* of each cache, behind those of sequences; 0: the device wants none */
    bool                 async_experts;  /* the experts have threads of their own */
    td_handover          handover;
    bool                 log_sums;     /* it gives what log-softmax needs of a row */
    bool                 norm_f32;     /* norms give their rows in f32, too, for routers */
    bool                 int8_rows;    /* norms quantise for who multiplies with int8 weights */
    bool                 int8_experts; /* among them the experts */

    td_card_model *cards; /* [n_cards]; the first talks to the experts */
    uint32_t       n_cards;
    td_npu_group  *group;   /* of them; NULL with one */
    td_experts    *experts; /* NULL: no MoE layer */
    td_bridge     *bridge;
    float         *logits; /* [max_out, vocab]; the card's own with one */

    td_page_copy        copy; /* under way */
    const td_step_rows *rows; /* of the last forward: what the heads read their rows from */
    td_pass             pass;
    td_signal           go, done; /* jobs given to the cards' threads; cards that have done theirs */
    td_status (*job)(td_card_model *c);
    bool stop; /* written before go's last rise */

    kept_routing *kept; /* [experts.n_layers, TD_HALVES] with keep_routing */
    void        **kept_args;
    tapped_layer *tapped; /* [n_layers] with layer_tap */
    void        **tapped_args;
};

static inline uint32_t td_model_all_layers(const td_model *m) {
    return m->config.n_layers + m->config.n_mtp_layers;
}

/* ---- card_model.c ---------------------------------------------------------------------------------- */

/** What the card takes: the device's members, and of the host's what its mirrors and downloads take. */
void                   td_card_model_memory(const td_card_model *c, td_model_memory *memory);
TD_NODISCARD td_status td_card_model_outline(const td_card_model *c, uint32_t n_halves, td_outline *out, td_error *err);
/** Whether a step of n rows goes in halves; m is a td_model. */
bool                   td_card_model_splits(const void *model, uint32_t n);
TD_NODISCARD td_status td_card_model_measure_scratch(td_card_model *c, td_error *err); /* once config and part are known */
TD_NODISCARD td_status td_card_model_load(td_card_model *c, td_error *err);            /* stream, activations, weights */
/** KV, step buffers, programs; passes without prompts are captured. The model's bridge is open. */
TD_NODISCARD td_status td_card_model_build(td_card_model *c, uint32_t n_pages, td_error *err);
void                   td_card_model_keep_weights(const td_card_model *c); /* in a file, for the next start */
void                   td_card_model_close(td_card_model *c);
/** They are made anew when they are needed. No work is under way. */
void td_card_model_forget_captures(td_card_model *c);

/** Fill the bucket of the model's pass and have its graph. Nothing runs yet. */
TD_NODISCARD td_status td_card_model_prepare(td_card_model *c);
/** Run it: when it returns, nothing runs on and the logits are on the host. */
TD_NODISCARD td_status td_card_model_run(td_card_model *c);
/** Of a pass that hands tokens over, or NULL. */
const td_program *td_card_model_program(const td_card_model *c, td_pass_kind kind);
/** Rows of a buffer to the host, behind what is enqueued. */
TD_NODISCARD td_status td_card_model_download(td_card_model *c, void *host, const void *dev, size_t bytes);

/** How many of a row's best logits the card gives; 0: its logits need not be carried. */
uint32_t td_card_model_top_k(const td_card_model *c);

/** Whether of a row of the pass the card's best logits come alone. */
static inline bool td_card_model_gives_best(const td_card_model *c, uint32_t row) {
    const td_out_rows *out = &c->model->pass.out;
    bool               wants_sum = out->logprobs && out->logprobs[row].wanted;
    return c->top && out->best && out->best[row] && (c->sums || !wants_sum);
}

/** Whether a row's log-probabilities stand on the card's sums: wherever they are wanted and it has them, also where all of
 * the row comes, so that how a row comes changes none. */
static inline bool td_card_model_gives_sum(const td_card_model *c, uint32_t row) {
    const td_out_rows *out = &c->model->pass.out;
    return c->sums && out->best && out->logprobs && out->logprobs[row].wanted;
}

/** Where the logit is, among the card's, that is wanted beside a row's best; SIZE_MAX: it is not there. */
size_t td_card_model_asked(const td_card_model *c, uint32_t row);

static inline size_t td_card_model_x_bytes(const td_model *m) {
    return (size_t)m->spec.max_tok * m->config.hidden * td_dtype_bytes(td_model_act_dtype(&m->spec));
}

/* ---- page_copy.c ----------------------------------------------------------------------------- */

size_t                 td_card_model_page_bytes(const td_card_model *c); /* the card's part of a page */
TD_NODISCARD td_status td_card_model_prepare_page_copies(td_card_model *c, td_error *err);
void                   td_card_model_close_page_copies(td_card_model *c);
TD_NODISCARD td_status td_card_model_copy_page(td_card_model *c); /* the model's copy, the card's part */

/* ---- watch.c --------------------------------------------------------------------------------- */

/** What of the spec says who watches; for the first card. */
TD_NODISCARD td_status td_watch_open(td_model *m, td_program_spec *spec, td_error *err);
void                   td_watch_close(td_model *m);

#endif
