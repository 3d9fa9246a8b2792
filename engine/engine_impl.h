/* The parts of a td_engine. engine.c opens and closes it; the .c files of step/ run on its thread. */
#ifndef TD_ENGINE_ENGINE_IMPL_H
#define TD_ENGINE_ENGINE_IMPL_H

#include <pthread.h>

#include "core/threads/thread_layout.h"
#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/images/image_cache.h"
#include "engine/step/draft_gate.h"
#include "engine/step/sampler.h"
#include "engine/step/scheduler.h"
#include "model/placed_model.h"

/** A row of logits, and what it is for. */
typedef struct {
    uint32_t entry;     /* index in scheduler.entries */
    uint32_t row;       /* row of the step */
    uint32_t predicted; /* index of the request's token whose log-probability is wanted, or TD_ROW_* */
} td_row_job;

/* Values of td_row_job.predicted that are no index. */
#define TD_ROW_NEXT UINT32_MAX               /* the request's next token is sampled from the row */
#define TD_ROW_BEHIND_DRAFT (UINT32_MAX - 1) /* the row of a draft: it serves once the draft is the request's next token */
#define TD_ROW_REJECTED (UINT32_MAX - 2)     /* the row of a draft that was not the next token */

/** The token that a step sampled for a request, or why there is none. */
typedef struct {
    td_status            status;
    uint32_t             token;
    td_position_logprobs logprobs;
} td_row_result;

/** An interval of the log: where the counters stood when it began. */
typedef struct {
    double          start_s;
    uint64_t        steps; /* since then */
    td_engine_stats start;
} td_log_window;

/** The state of drafting (step/step_draft.c). */
typedef struct {
    td_draft_gate gate;
    uint32_t     *next;    /* [max_tok] for each row of the step, the token that follows the row's own */
    bool          prompts; /* the step has prompt rows, and the MTP layer's cache has every row before them */
    double        least;   /* a less probable draft is dropped; set after each step */
} td_drafts;

/** The images of requests (step/encode_images.c). */
typedef struct {
    char             why_not[256]; /* the model takes no images: why, as far as it could */
    td_image_rule    rule;         /* of the model's pictures */
    td_image_loader *loader;       /* NULL: the model takes no images, and then nothing but the cache and why_not is set */
    uint32_t         max_patches;
    float           *pixels; /* [max_patches, values of a patch] of the image that is encoded */
    td_image_cache   cache;
    td_image_counts  counts; /* encoded, tokens, ns and pieces are set */

    /* the image that is being encoded */
    td_known_image *under_way;  /* held and read; NULL: none is */
    uint32_t        rows, cols; /* of patches; the pixels are there */
    bool            begun, failed;
    bool            gave_way; /* its last piece did, to a request that came */
    bool            has_turn; /* beside a step in pieces, of which a piece runs otherwise */
} td_engine_images;

struct td_engine {
    td_engine_config config;
    td_engine_info   info;
    char            *model_path; /* owned; info.model_path points here */
    td_npu_caps      caps;
    td_pool         *expert_pool;
    td_pool *npu_pools[TD_SHARDS_MAX]; /* [n_npu_pools] one a card; n_npu_pools 0: the device shares the expert threads */
    uint32_t n_npu_pools;
    td_placed_model   placed;
    td_tokenizer     *tokenizer;
    td_chat_template *chat_template;
    td_request_limits limits;
    td_waker         *waker;
    td_inbox         *inbox;
    td_stats          stats;
    pthread_mutex_t   trie_lock;
    td_vocab_trie    *trie;    /* of the tokenizer; made for the first grammar, guarded by trie_lock */
    td_marker_tokens *markers; /* of the reasoning format used last before a grammar; guarded by trie_lock */
    td_engine_images  images;  /* cache: engine thread only */
    bool              stats_open, thread_started;
    pthread_t         thread;

    /* engine thread only, once it runs */
    td_kv_pages        pages;
    td_prefix_cache    cache;   /* over pages */
    td_state_slots     states;  /* of recurrent layers; all zero if the model has none */
    td_window_pages    windows; /* all zero if no layer has a window, or those that do keep all tokens */
    td_page_exchange   exchange;
    td_scheduler       scheduler;
    td_scheduled_step *step;     /* the scheduler's that runs */
    td_sampler        *samplers; /* [workers of the expert pool] */
    uint32_t           n_samplers;
    td_row_job        *jobs;           /* [max_tok] */
    uint32_t          *job_rows;       /* [config.model.max_out] */
    bool              *job_best;       /* [config.model.max_out] whether only the row's best logits are needed */
    td_out_logprobs   *job_logprobs;   /* [config.model.max_out] */
    td_row_result     *results;        /* [max_running], by step entry */
    const float       *draft_logits;   /* [scheduler.n_drafts, vocab] logits of the drafts' rows; NULL: not computed yet */
    td_out_logprobs   *draft_logprobs; /* [scheduler.n_drafts] of the same rows */
    td_drafts          drafts;         /* with config.drafts */
    td_log_window      window;
};

/** Jobs with their logits, for the threads that sample. */
typedef struct {
    td_engine             *e;
    const td_row_job      *jobs;
    const float           *logits;   /* [jobs, vocab] */
    const td_out_logprobs *logprobs; /* [jobs] */
} td_row_batch;

/* sample_rows.c */
td_sample_args td_row_sample_args(const td_request *r);
bool           td_row_takes_best(const td_engine *e, const td_row_job *job); /* it needs only its row's best logits */
td_status td_row_allowed_ids(td_request *r, const uint32_t **allowed); /* by the request's form; untouched without one */
/** The first n jobs of a batch: results[], and log-probabilities in their requests. Engine thread. */
void td_rows_sample(td_engine *e, td_row_batch *batch, uint32_t n);

/* step_draft.c: the MTP layer behind a step. Engine thread. */
TD_NODISCARD td_status td_drafts_open(td_engine *e, td_error *err);
void                   td_drafts_close(td_engine *e);
/** Note which token follows each row of the step: after the step has succeeded, before its tokens are handed out. */
void td_drafts_note(td_engine *e);
/**
 * Draft the next tokens: after the step's tokens are handed out.
 * @param n_accepted how many of the step's drafts were accepted.
 * @param seconds    the step's time, that of sampling behind its drafts included.
 */
void td_drafts_run(td_engine *e, uint32_t n_accepted, double seconds);

/* encode_images.c: pictures of requests, and what the encoder makes of them. */
/** Before the model is opened: read how it wants its pictures. config.model.max_patches becomes 0 where it does not say. */
void td_images_read_rule(td_engine *e);
/** After the model is loaded. A model that cannot take images is a warning. @return TD_EINVAL, TD_ENOMEM. */
TD_NODISCARD td_status td_images_open(td_engine *e, td_error *err);
void                   td_images_close(td_engine *e);
/**
 * Encode a piece of the image under way, or of the scheduler's next, which then is under way. One that fails begins again,
 * once. Engine thread.
 * @return as td_model_run_image_piece, when it has failed twice; it stays under way until td_images_leave.
 */
TD_NODISCARD td_status td_images_run_piece(td_engine *e);
void                   td_images_leave(td_engine *e);          /* nothing is under way any more */
bool                   td_images_unwanted(const td_engine *e); /* what is under way is wanted by no request */
td_image_counts        td_images_counts(const td_engine *e);   /* engine thread */

void *td_engine_thread(void *engine);

/** engine.c: open the tokenizer and the chat template. A template that cannot be used is a warning, and so is a tokenizer
 * of tokenizer_path with ids beyond the model's vocabulary. @return TD_EFORMAT where the model's own tokenizer has such ids, or
 * the statuses of td_tokenizer_open. */
TD_NODISCARD td_status td_engine_open_text(td_engine *e, const td_engine_options *o, const td_model_config *c,
                                           td_error *err);

/* step_log.c: what the log says while steps run. Engine thread. */
void td_log_window_open(td_engine *e); /* a new interval begins: the engine was idle */
void td_log_arrival(const td_engine *e, const td_request *r);
void td_log_end(const td_engine *e, const td_request *r, td_finish finish);
void td_log_prefill(const td_engine *e, double seconds); /* progress of long prompts; seconds: the step just run */
void td_log_load(td_engine *e);                          /* after each step: writes a line every decode_log_interval steps */

#endif
