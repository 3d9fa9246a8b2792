/* What a td_engine is made of; shared by engine.c (life) and step_loop.c (the engine thread). */
#ifndef TD_ENGINE_ENGINE_IMPL_H
#define TD_ENGINE_ENGINE_IMPL_H

#include <pthread.h>

#include "core/threads/thread_layout.h"
#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/step/draft_gate.h"
#include "engine/step/sampler.h"
#include "engine/step/scheduler.h"
#include "model/placed_model.h"

/** What is to be done with one row of logits. */
typedef struct {
    uint32_t entry;     /* of the step */
    uint32_t row;       /* of the step */
    uint32_t predicted; /* which of the request's tokens this row predicts, for its log-probabilities; TD_ROW_* */
} td_row_job;

/* td_row_job.predicted of a row that does not serve a known token's log-probabilities */
#define TD_ROW_NEXT UINT32_MAX               /* it gives the next token */
#define TD_ROW_BEHIND_DRAFT (UINT32_MAX - 1) /* it gives the token behind the draft, if the draft is the next token */
#define TD_ROW_REJECTED (UINT32_MAX - 2)     /* its draft was not the next token */

/** What a step found for one of its requests. */
typedef struct {
    td_status            status;
    uint32_t             token;
    td_position_logprobs logprobs;
} td_row_result;

/** An interval of the log: where the counters stood when it began. */
typedef struct {
    double          start_s;
    uint64_t        steps; /* so far */
    td_engine_stats start;
} td_log_window;

/** Drafting: step_draft.c. */
typedef struct {
    td_draft_gate gate;
    uint32_t     *next;    /* [max_tok] of each row of the step, the token behind its own */
    bool          prompts; /* the step has rows of prompts, and the layer those in front of them */
    double        least;   /* probability of a draft, of the step under way */
} td_drafts;

struct td_engine {
    td_engine_config  config;
    td_engine_info    info;
    char             *model_path; /* of info, owned */
    td_npu_caps       caps;
    td_pool          *expert_pool;
    td_pool          *npu_pools[TD_SHARDS_MAX]; /* [n_npu_pools] of the cards; none: the device shares the expert threads */
    uint32_t          n_npu_pools;
    td_placed_model   placed;
    td_tokenizer     *tokenizer;
    td_chat_template *chat_template;
    td_request_limits limits;
    td_waker         *waker;
    td_inbox         *inbox;
    td_stats          stats;
    pthread_mutex_t   trie_lock;
    td_vocab_trie    *trie;    /* for grammars, made when the first is used; guarded by trie_lock */
    td_marker_tokens *markers; /* of the reasoning that was last before a grammar; guarded by trie_lock */
    bool              stats_open, thread_started;
    pthread_t         thread;

    /* engine thread only, once it runs */
    td_kv_pages      pages;
    td_prefix_cache  cache; /* over pages */
    td_page_exchange exchange;
    td_scheduler     scheduler;
    td_sampler      *samplers; /* [workers of the expert pool] */
    uint32_t         n_samplers;
    td_row_job      *jobs;           /* [max_tok] */
    uint32_t        *job_rows;       /* [config.model.max_out] */
    bool            *job_best;       /* [config.model.max_out] the best logits of the row will do */
    td_out_logprobs *job_logprobs;   /* [config.model.max_out] */
    td_row_result   *results;        /* [max_running], by step entry */
    const float     *draft_logits;   /* [scheduler.n_drafts, vocab] of the rows of drafts; NULL: to be computed */
    td_out_logprobs *draft_logprobs; /* [scheduler.n_drafts] of the same rows */
    td_drafts        drafts;         /* with config.drafts */
    td_log_window    window;
};

/** The logits of so many jobs on their way to tokens. */
typedef struct {
    td_engine             *e;
    const td_row_job      *jobs;
    const float           *logits;   /* [jobs, vocab] */
    const td_out_logprobs *logprobs; /* [jobs] */
} td_row_batch;

/* step_loop.c: what more than one of the files below needs of it. */
td_sample_args td_row_sample_args(const td_request *r);
bool           td_row_takes_best(const td_engine *e, const td_row_job *job); /* the best logits of its row will do */
td_status      td_row_allowed_ids(td_request *r, const uint32_t **allowed);  /* next, by the request's form */

/* step_draft.c: the MTP layer behind a step. Engine thread. */
TD_NODISCARD td_status td_drafts_open(td_engine *e, td_error *err);
void                   td_drafts_close(td_engine *e);
/** The step has succeeded, and nobody has been told: what follows each of its rows. */
void td_drafts_note(td_engine *e);
/**
 * All have been told: draft what comes next.
 * @param n_accepted of the step's drafts.
 * @param seconds that the step took, and what its drafts took beyond it.
 */
void td_drafts_run(td_engine *e, uint32_t n_accepted, double seconds);

void *td_engine_thread(void *engine);

/* step_log.c: what the log says while steps run. Engine thread. */
void td_log_window_open(td_engine *e); /* a new interval begins: the engine was idle */
void td_log_arrival(const td_engine *e, const td_request *r);
void td_log_end(const td_engine *e, const td_request *r, td_finish finish);
void td_log_prefill(const td_engine *e,
                    double           seconds); /* the step just run, which took so long: progress of long prompts */
void td_log_load(td_engine *e);      /* a step has ended; every decode_log_interval of them, a line */

#endif
