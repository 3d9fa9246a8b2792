/*
 * tandem_tools.h: the offline tools over a model, in a library of their own (libtandem_tools), which the server does not
 * link.
 *
 *   td_quantize      a checkpoint -> W8A8 + packed experts
 *   td_perplexity    how well a model predicts a text, and how far it is from a reference
 *   td_eval          how many questions of a task it answers right
 *   td_trace_routing which experts it chooses for the tokens of a text
 *
 * The conventions are those of tandem.h. A call takes minutes to hours, uses the whole machine and reports its progress.
 */
#ifndef TANDEM_TOOLS_H
#define TANDEM_TOOLS_H

#include "tandem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quantise -------------------------------------------------------------------------------- */

typedef struct {
    const char *model_path;
    const char *output_path;
    const char *quantization;        /* "w8a8_int8" or "none" */
    const char *output_format;       /* "tandem" (or NULL), or "compressed-tensors": safetensors that other engines read */
    const char *expert_quantization; /* "auto" (what carries a quantised checkpoint's experts exactly, else int4), "int4",
                                        "int8", "int4-g32", "int4-g64", "int4-g128", "mxfp4", "nvfp4" */
    uint32_t    threads;             /* 0: all */
    uint32_t    subpool_count;       /* shards of the packed files; 0: as on this machine */
    bool        load_dummy;          /* random weights of the shape of model_path, a folder or a config.json */
    const char *calibration_path; /* a text, or JSON lines {"text"} or {"messages"}: weights are rounded for what they see in
                                     it; NULL: none */
    const char *method;           /* of rounding: "nearest", "clip", "gptq"; NULL: nearest, or gptq with a calibration */
    const char *rotation; /* of the residual stream, folded into the weights: "none", "hadamard", "auto"; NULL: auto */
    uint64_t    calibration_tokens; /* at most; 0: 32768 */
    uint32_t    calibration_window; /* tokens that see each other; 0: 512 */
    bool        force;              /* replace the output of another model or of other options */
    /** Progress: work done so far of total, in bytes of input; what is a static or borrowed label. One call at a time, from
     * any thread. May be NULL. */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, const char *what);
    void *user;
} td_quantize_options;

/** Write a folder that td_engine_open loads without repacking. Continues an interrupted run: finished files are kept. */
TD_NODISCARD td_status td_quantize(const td_quantize_options *o, td_error *err);

/* ---- measuring ------------------------------------------------------------------------------- */

/** A mean with its standard error; error NAN: there are too few samples to tell. */
typedef struct {
    double mean, error;
} td_estimate;

/** How far one layer's output is from the reference's: 10 log10(sum ref^2 / sum (own - ref)^2), dB; INFINITY: they are
 * equal. */
typedef struct {
    double hidden_db; /* of the residual stream after the layer */
    double routed_db; /* of the routed experts' sum; NAN: the layer has none */
} td_layer_snr;

/** The same of one expert's output, both on the reference's input, at the tokens that the reference sent to it. */
typedef struct {
    uint32_t layer, expert;
    uint64_t tokens;
    double   db;
} td_expert_snr;

/** The same of one matrix's weights: sums over its elements. */
typedef struct {
    char     name[176]; /* of the tensor in the model's folder */
    uint64_t rows, columns;
    double   db;
    double output_db; /* of its products with rows that the reference's linear read, activations not rounded; NAN: no linear
                         of the device */
} td_tensor_snr;

/** Zero-initialise. The protocol is in docs/evaluation.md. */
typedef struct {
    td_engine_options        model;     /* what is about scheduling is not used */
    const char              *text_path; /* a text; or JSON lines {"text": …}, a document each, when it ends in .jsonl */
    uint32_t                 window, stride; /* tokens; 0: 512, and half the window */
    uint64_t                 limit;          /* of the text's tokens; 0: all */
    const td_engine_options *reference;      /* a model to compare with, loaded beside; or NULL */
    bool                     per_tensor;     /* with reference: compare the weights, too */
    const char              *reference_path; /* the same from a file that save_path wrote before; or NULL */
    const char              *save_path;      /* write the model's log-probabilities there; or NULL */
    bool                     drafts; /* score the multi-token-prediction layer, too; TD_EINVAL for a model that has none */
    /** Progress in tokens. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total, const char *what);
    void *user;
} td_perplexity_options;

typedef struct {
    uint32_t    window, stride, prefix; /* prefix: tokens before each window, 1 for a BOS */
    uint64_t    documents, windows, scored_tokens;
    const char *quantization, *expert_quantization; /* static */
    td_estimate nll;                                /* nats per token; perplexity is its exp */

    /* with drafts, else 0: the MTP layer's prediction of each token from one less, given the text so far */
    bool        drafted;
    td_estimate draft_nll;
    td_estimate draft_agreement; /* share of tokens where it finds the same one most likely as the model does: greedy drafts
                                    that are taken */

    /* with a reference, else 0 */
    bool        compared;
    td_estimate reference_nll,
        nll_difference;            /* difference: the model's minus the reference's; its exp is the ratio of perplexities */
    td_estimate    kl;             /* KL divergence reference || model, nats */
    double         kl_99;          /* 99 % of the tokens have less */
    td_estimate    top1_agreement; /* share of tokens */
    td_estimate    logprob_change; /* |difference of the log-probabilities of the token that came| */
    td_layer_snr  *layers;         /* [n_layers] with a reference model; else NULL */
    uint32_t       n_layers;
    td_expert_snr *experts; /* [n_experts] all that had tokens, worst first; NULL without layers or experts */
    size_t         n_experts;
    td_tensor_snr *tensors; /* [n_tensors] every matrix, worst first, with per_tensor; else NULL */
    size_t         n_tensors;
} td_perplexity_result;

/**
 * Perplexity of a model over a text, and how far it is from a reference. Loads the models, uses every thread that
 * td_engine_open would.
 * @return the statuses of td_engine_open; TD_EINVAL for a text that is too short; TD_EFORMAT for a damaged reference file.
 */
TD_NODISCARD td_status td_perplexity(const td_perplexity_options *o, td_perplexity_result *out, td_error *err);
void                   td_perplexity_result_free(td_perplexity_result *r);

typedef enum { TD_EVAL_AUTO, TD_EVAL_CHOICE, TD_EVAL_MATCH, TD_EVAL_COMPLETE } td_eval_kind;

/** Zero-initialise. Tasks and their fields are in docs/evaluation.md. */
typedef struct {
    td_engine_options  model;
    const char        *task_path;  /* JSON lines, an item each */
    td_eval_kind       kind;       /* AUTO: by the first item's fields */
    const char        *prompt;     /* template with {field}s; NULL: the kind's own */
    uint32_t           shots;      /* solved items put before each */
    const char        *shots_path; /* where from; NULL: the first of the task, which are then not scored */
    bool               chat;       /* prompts are a user's message, in the model's chat template */
    const char *const *stop;       /* [n_stop] that end an answer; NULL: the kind's own */
    size_t             n_stop;
    uint32_t           max_tokens;  /* of an answer; 0: 256, COMPLETE 512 */
    const char        *extract;     /* "last-number", "whole", "regex:PATTERN": the answer in a text; NULL: last-number */
    uint64_t           limit;       /* items; 0: all */
    const char        *output_path; /* a JSON line for every item; NULL: none */
    /** Progress in items. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total, const char *what);
    void *user;
} td_eval_options;

typedef struct {
    td_eval_kind kind;
    uint64_t     items, no_answer; /* no_answer: MATCH: of those, how many texts had none */
    uint64_t     prompt_tokens, generated_tokens;
    double       seconds;                            /* without loading */
    const char  *quantization, *expert_quantization; /* static */
    /* share of right answers; of CHOICE by the sum of the choice's log-probabilities, and by that divided by its bytes;
     * COMPLETE: 0 */
    td_estimate accuracy, accuracy_normalised;
} td_eval_result;

/**
 * Let a model do a task, greedily, many items at a time; answers do not depend on that. No code of an answer is ever run.
 * @return the statuses of td_engine_open; TD_EFORMAT for a bad line, TD_EINVAL for prompts that do not fit.
 */
TD_NODISCARD td_status td_eval(const td_eval_options *o, td_eval_result *out, td_error *err);

/** Zero-initialise. */
typedef struct {
    td_engine_options model;       /* what is about scheduling is not used */
    const char       *text_path;   /* as td_perplexity_options has it */
    uint32_t          window;      /* tokens that see each other; 0: 512 */
    uint64_t          limit;       /* of the text's tokens; 0: all */
    const char       *output_path; /* the trace (docs/residency.md): ids of experts, nothing of the text */
    /** Progress in tokens. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total, const char *what);
    void *user;
} td_trace_routing_options;

typedef struct {
    uint64_t tokens; /* in the trace: each window's, after what the tokenizer puts before a text, but its last */
    uint32_t n_layers, n_experts, top_k; /* MoE layers, experts of a layer, experts that a token chooses in it */
} td_trace_routing_result;

/**
 * Let a model read a text, in windows that do not overlap, and write down what its routers choose.
 * @return the statuses of td_engine_open; TD_EINVAL for a model without routed experts and a text that is too short; TD_EIO.
 */
TD_NODISCARD td_status td_trace_routing(const td_trace_routing_options *o, td_trace_routing_result *out, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
