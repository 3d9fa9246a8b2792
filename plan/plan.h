/*
 * A plan says what a model would do on a machine: whether it fits, what lies in which memory, and how long tokens take.
 * Memory is planned by the same code as for a server (engine/engine_placement.h, model/memory_plan.h); time by
 * plan/plan_cost.h. No weights are read.
 */
#ifndef TD_PLAN_PLAN_H
#define TD_PLAN_PLAN_H

#include "engine/engine_options.h"
#include "plan/plan_cost.h"

#define TD_PLAN_LIST_MAX 8

typedef struct {
    uint32_t n, at[TD_PLAN_LIST_MAX];
} td_plan_list;

typedef struct {
    td_engine_options engine;         /* the options of launch_server; model_path is a config.json or a folder */
    uint32_t          experts_in_use; /* how many experts of a layer tokens choose from, all equally likely; 0: all */
    double            expert_hits; /* share of choices that find an expert on the card; 0: as if all were equally likely */
    bool              cards_given; /* true: use engine.tensor_parallel_size cards; false: all cards of the machine */
    td_plan_list      streams;     /* numbers of sequences that run at a time; 0: max_running_requests */
    td_plan_list      contexts;    /* numbers of tokens that each sequence has so far */
    td_plan_list      prompts;     /* lengths in tokens, for the time to the first token */
} td_plan_request;

/** One memory and what lies in it, in bytes. */
typedef struct {
    char   name[24]; /* "node 0", "card 1" */
    double capacity, usable;
    double experts, weights, working, kv; /* routed experts; all other weights; working memory; KV cache */
    double lacks;                         /* bytes missing; 0: it fits */
} td_plan_memory;

#define TD_PLAN_MEMORIES_MAX (2 * TD_POOL_SUBPOOLS_MAX)

typedef struct {
    uint32_t     streams, context;
    bool         has_kv; /* the KV cache has room for the sequences */
    double       tpot_s; /* time per output token of each stream: a step and the pause before the next */
    td_plan_step step;
} td_plan_decode;

typedef struct {
    uint32_t     prompt, chunks;
    bool         has_kv;
    double       ttft_s; /* time to the first token on an idle server: all chunks of the prompt */
    td_plan_step step;   /* the costs of all chunks together */
} td_plan_prefill;

/** Main figures after one change of the machine: tpot_s of the first and the last decode, ttft_s of the middle prompt.
 */
typedef struct {
    char     change[96];
    bool     fits;
    uint64_t kv_tokens;
    double   tpot_s[2], ttft_s;
} td_plan_change;

#define TD_PLAN_CHANGES_MAX 3

typedef struct {
    char             architecture[64];
    uint32_t         n_experts, experts_in_use; /* of a layer; 0: the model has no routed experts */
    uint32_t         resident;                  /* of these so many may be on the card */
    double           expert_hits;               /* of decoded tokens; 0 without resident */
    bool             streams;                   /* prompts have other experts pass through the card's memory */
    td_stream_speeds stream_speeds;             /* of it */
    uint32_t         stream_crossover;          /* rows of a step from which on that pays; 0: it never does */
    uint32_t         n_layers, n_moe_layers, n_cards, context_length;
    const char      *expert_quantization; /* static */
    td_engine_config engine;              /* the request's options, resolved; the prefill chunk is reduced until it fits */
    bool             fits;
    td_error         lack;           /* why it does not fit, in the server's words */
    uint64_t         kv_tokens;      /* tokens in the KV cache of a server with these options */
    uint64_t         kv_tokens_most; /* tokens that would fit into the memory that is left */
    uint64_t         longest;        /* longest sequence: the model's limit, or what fits */
    struct {
        uint32_t tokens; /* length of a context or prompt that was asked for */
        uint64_t streams;
    } room[2 * TD_PLAN_LIST_MAX]; /* [n_rooms] how many sequences of that length fit into kv_tokens_most */
    uint32_t       n_rooms;
    double         kv_token_bytes;    /* bytes of one token's KV on a card */
    double         kv_sliding_bytes;  /* the part of kv_token_bytes in layers with a sliding window */
    uint64_t       kv_sliding_tokens; /* of kv_tokens, those that these layers have room for: they give others back */
    uint32_t       kv_window;         /* the longest such window, in tokens; 0: there are none */
    td_plan_memory memory[TD_PLAN_MEMORIES_MAX];
    uint32_t       n_memories;
    /** Of `memory`, what the vision encoder takes, of a model that takes images: on the first card, or in the nodes; and host
     * memory for images themselves. All 0: the model is served for text. */
    struct {
        double   weights, working, cache;
        uint32_t max_tokens; /* of an image */
    } images;
    td_plan_decode
             decode[TD_PLAN_LIST_MAX * TD_PLAN_LIST_MAX]; /* in the order of contexts, and for each context of streams */
    uint32_t n_decodes;
    td_plan_prefill prefill[TD_PLAN_LIST_MAX];
    uint32_t        n_prefills;
    uint32_t        n_left_out; /* combinations left out: longer than `longest`, or more streams than max_running */
    td_plan_change  change[TD_PLAN_CHANGES_MAX];
    uint32_t        n_changes;
} td_plan;

/**
 * Make a plan. If memory is short, the times are those of a machine that has enough.
 * @param err TD_EINVAL, TD_EFORMAT, TD_ENOTSUP, TD_ENOTFOUND for what launch_server would refuse, and for more cards than
 * the machine has; TD_ENOMEM when the planner itself lacks memory.
 */
TD_NODISCARD td_status td_plan_make(const td_plan_request *r, const td_plan_machine *m, td_plan *out, td_error *err);

/** Print the plan as tables for people, or as one JSON object in a line. @param f borrowed. */
void td_plan_print(const td_plan *p, const td_plan_machine *m, FILE *f);
void td_plan_print_json(const td_plan *p, const td_plan_machine *m, FILE *f);

#endif
