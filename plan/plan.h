/*
 * What a model would do on a machine: whether it fits, what goes where, and how long tokens take. Memory is planned by the
 * code that plans a server's (engine/engine_placement.h, model/memory_plan.h); time by plan/plan_cost.h. No weight is read.
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
    td_engine_options engine;         /* as launch_server would have them; model_path is a config.json or a folder */
    uint32_t          experts_in_use; /* of a layer's, all equally likely; 0: all of them */
    bool              cards_given;    /* engine.tensor_parallel_size counts; else as many as the machine has */
    td_plan_list      streams;        /* running at a time; 0: max_running_requests */
    td_plan_list      contexts;       /* tokens that each of them has so far */
    td_plan_list      prompts;        /* lengths, for the time to the first token */
} td_plan_request;

/** What lies in a memory, in bytes. */
typedef struct {
    char   name[24]; /* "node 0", "card 1" */
    double capacity, usable;
    double experts, weights, working, kv; /* routed experts; the device tier's weights; working memory */
    double lacks;                         /* 0: it fits */
} td_plan_memory;

#define TD_PLAN_MEMORIES_MAX (2 * TD_POOL_SUBPOOLS_MAX)

typedef struct {
    uint32_t     streams, context;
    bool         has_kv; /* the KV cache has room for them */
    double       tpot_s; /* of each: a step and what is between two */
    td_plan_step step;
} td_plan_decode;

typedef struct {
    uint32_t     prompt, chunks;
    bool         has_kv;
    double       ttft_s; /* of an idle server: all chunks */
    td_plan_step step;   /* all chunks together */
} td_plan_prefill;

/** The figures that a change of the machine moves: of the first and the last of the decodes, the middle one of the prompts.
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
    uint32_t         n_experts, experts_in_use; /* of a layer; 0: it has none */
    uint32_t         n_layers, n_moe_layers, n_cards, context_length;
    const char      *expert_quantization; /* static */
    td_engine_config engine;              /* the request's options, resolved: its prefill chunk is the one that fits */
    bool             fits;
    td_error         lack;           /* why not, as the server would say it */
    uint64_t         kv_tokens;      /* that a server would have room for, with these options */
    uint64_t         kv_tokens_most; /* that would fit */
    uint64_t         longest;        /* sequence: the model's, or what fits */
    struct {
        uint32_t tokens; /* of a context or prompt that was asked for */
        uint64_t streams;
    } room[2 * TD_PLAN_LIST_MAX]; /* [n_rooms] how many such sequences the cache has room for, of kv_tokens_most */
    uint32_t        n_rooms;
    double          kv_token_bytes;   /* on a card */
    double          kv_sliding_bytes; /* of these, of layers that read the last `kv_window` tokens alone: they keep all */
    uint32_t        kv_window;        /* the longest of such layers; 0: there are none */
    td_plan_memory  memory[TD_PLAN_MEMORIES_MAX];
    uint32_t        n_memories;
    td_plan_decode  decode[TD_PLAN_LIST_MAX * TD_PLAN_LIST_MAX]; /* by contexts, of these by streams */
    uint32_t        n_decodes;
    td_plan_prefill prefill[TD_PLAN_LIST_MAX];
    uint32_t        n_prefills;
    uint32_t        n_left_out; /* rows that are longer than the longest sequence, or of more streams than max_running */
    td_plan_change  change[TD_PLAN_CHANGES_MAX];
    uint32_t        n_changes;
} td_plan;

/**
 * Plan. Where memory is short, the times are those of a machine that has enough.
 * @param err TD_EINVAL, TD_EFORMAT, TD_ENOTSUP, TD_ENOTFOUND: what launch_server would refuse, and more cards than the
 * machine has; TD_ENOMEM: no memory to plan with.
 */
TD_NODISCARD td_status td_plan_make(const td_plan_request *r, const td_plan_machine *m, td_plan *out, td_error *err);

/** For people, and for programs (one JSON object, a line). @param f borrowed. */
void td_plan_print(const td_plan *p, const td_plan_machine *m, FILE *f);
void td_plan_print_json(const td_plan *p, const td_plan_machine *m, FILE *f);

#endif
