/*
 * What a step costs on a machine. npu/block_work.h and cpu_experts/cpu_experts.h count the work of each operation of a
 * forward pass. That work is divided by the machine's rates. The operations are then laid out in time, as the device's
 * stream, the expert threads and the link would run them. docs/plan.md has the formulas. Pure arithmetic.
 */
#ifndef TD_PLAN_PLAN_COST_H
#define TD_PLAN_PLAN_COST_H

#include "cpu_experts/cpu_experts.h"
#include "model/program.h"
#include "plan/plan_machine.h"
#include "residency/stream_plan.h"

/** What the costs need to know of a model. */
typedef struct {
    td_outline       whole, halves; /* operations of a step taken whole, and in two halves; halves.n 0: no step is halved */
    td_weight_format linear, latent, table;
    size_t           act_bytes;
    const td_experts_config *experts;            /* experts on the CPU; n_layers 0: there are none */
    double                   resident;           /* of a layer's experts so many are on the card; 0: none */
    double                   hits;               /* with them: share of decoded tokens' choices that find theirs there */
    double                   experts_in_use;     /* how many experts of a layer tokens choose from, all equally likely */
    uint64_t                 layer_bytes;        /* bytes of all experts of a layer */
    size_t                   to_host, to_device; /* bytes that a hand-over copies each way for a row */
    uint32_t                 expert_group;       /* of 4-bit experts that are all on the cards; 0: those there are W8A8 */
    uint32_t                 n_cards;
    uint32_t                 stream_slots; /* of experts that are streamed, on all cards together; 0: none are */
    uint32_t                 max_tok;      /* rows of a step at most */
} td_plan_model;

/** The parts of a step, as reports list them. */
typedef enum {
    TD_PLAN_ATTENTION, /* products of attention */
    TD_PLAN_KEYS,      /* scores and sums of values over the KV cache */
    TD_PLAN_ROUTER,
    TD_PLAN_SHARED,
    TD_PLAN_DENSE,
    TD_PLAN_EXPERTS,
    TD_PLAN_RESIDENT, /* experts that are on the card, streamed ones too */
    TD_PLAN_UPLOADS,  /* of streamed experts */
    TD_PLAN_HANDOVER,
    TD_PLAN_SUMS, /* sums over cards */
    TD_PLAN_HEAD,
    TD_PLAN_EMBED,
    TD_PLAN_ROWS, /* norms and residual sums: bytes of activations, which td_tier_work does not count */
    TD_PLAN_PARTS
} td_plan_part_kind;

const char *td_plan_part_name(td_plan_part_kind p);

/** One part of a step, summed over all layers. */
typedef struct {
    uint32_t n;                          /* number of operations */
    double   bytes, int8_ops, float_ops; /* work; for hand-overs and sums over cards, bytes that are copied */
    double   read_s, int8_s, float_s;    /* the least time of each at the machine's rates */
    double   fixed_s;                    /* fixed times of operations, beside their work */
    double   time_s;                     /* sum over its operations, although some run beside each other */
} td_plan_part;

/** What takes most of a part's time: "read", "int8", "float" or "latency"; "" if the part takes none. */
const char *td_plan_part_bound(const td_plan_part *p);

/** Rows of a step: n_seq sequences, each with `context` keys in the cache and n_new new rows. */
typedef struct {
    uint32_t n_seq, n_new, context;
    uint32_t n_out; /* rows whose logits are wanted */
    uint32_t n_halves;
} td_plan_rows;

typedef struct {
    td_plan_part part[TD_PLAN_PARTS];
    uint32_t     streamed; /* experts of a layer that are streamed; of several steps, the most */
    double       step_s;   /* from the first operation to the last */
    double       waited_s; /* the part of step_s in which the device waits for the experts, uploads included */
} td_plan_step;

/** The expected number of distinct experts that n_tok tokens choose, top_k each, all experts being equally likely. */
double td_plan_active_experts(double n_experts, double top_k, double n_tok);

/** Time of work that reads and computes at once: (read^1.5 + compute^1.5)^(1/1.5). A much shorter part is hidden behind the
 * longer one; two equal parts of 1 take 1.59. */
double td_plan_work_s(double read_s, double compute_s);

/**
 * What residency/stream_plan.h needs to say how many experts a step streams: the shape of the model, and the speeds that a
 * server would measure at its start. @param m with cards, and a model with stream_slots.
 */
td_stream_shape  td_plan_stream_shape(const td_plan_model *model);
td_stream_speeds td_plan_stream_speeds(const td_plan_machine *m, const td_plan_model *model);

void td_plan_step_cost(const td_plan_machine *machine, const td_plan_model *model, const td_plan_rows *rows,
                       td_plan_step *out);

#endif
