/*
 * What a step costs on a machine: the operations of a forward pass, each with the work that npu/block_work.h and
 * cpu_experts/cpu_experts.h count, divided by the machine's rates, laid out in time as the device's stream and the expert
 * threads would run them. docs/plan.md has the formulas. Pure arithmetic.
 */
#ifndef TD_PLAN_PLAN_COST_H
#define TD_PLAN_PLAN_COST_H

#include "cpu_experts/cpu_experts.h"
#include "model/program.h"
#include "plan/plan_machine.h"

/** The model, as far as its costs go. */
typedef struct {
    td_outline               whole, halves; /* of a step that goes through whole, in halves; halves.n 0: none does */
    td_weight_format         linear, latent, table;
    size_t                   act_bytes;
    const td_experts_config *experts;            /* of the CPU; n_layers 0: it has none */
    double                   experts_in_use;     /* of a layer's: tokens choose among these, all equally likely */
    uint64_t                 layer_bytes;        /* of the experts of a layer */
    size_t                   to_host, to_device; /* bytes of a row that a hand-over copies each way */
    uint32_t                 n_cards;
} td_plan_model;

/** What the parts of a step are called in reports. */
typedef enum {
    TD_PLAN_ATTENTION, /* its products */
    TD_PLAN_KEYS,      /* scores and sums of values over the KV cache */
    TD_PLAN_ROUTER,
    TD_PLAN_SHARED,
    TD_PLAN_DENSE,
    TD_PLAN_EXPERTS,
    TD_PLAN_HANDOVER,
    TD_PLAN_SUMS, /* over cards */
    TD_PLAN_HEAD,
    TD_PLAN_EMBED,
    TD_PLAN_ROWS, /* norms, residual sums: their bytes are the activations', which work leaves out */
    TD_PLAN_PARTS
} td_plan_part_kind;

const char *td_plan_part_name(td_plan_part_kind p);

/** One part, of all layers together. */
typedef struct {
    uint32_t n;                          /* operations */
    double   bytes, int8_ops, float_ops; /* work; of the hand-over and the sums: bytes that are copied */
    double   read_s, int8_s, float_s;    /* the least time that the rates leave for each of them */
    double   fixed_s;                    /* beside the work */
    double   time_s;                     /* of its operations, whatever runs beside them */
} td_plan_part;

/** "read", "int8", "float" or "latency": what takes most of a part's time; "" of a part without any. */
const char *td_plan_part_bound(const td_plan_part *p);

/** Rows of a step: n_seq sequences of `context` keys that are there, and n_new rows each. */
typedef struct {
    uint32_t n_seq, n_new, context;
    uint32_t n_out; /* rows whose logits are wanted */
    uint32_t n_halves;
} td_plan_rows;

typedef struct {
    td_plan_part part[TD_PLAN_PARTS];
    double       step_s;   /* from the first operation to the last */
    double       waited_s; /* of it, the device for the experts */
} td_plan_step;

/** The expected number of distinct experts that n_tok tokens choose, top_k each, all experts being equally likely. */
double td_plan_active_experts(double n_experts, double top_k, double n_tok);

/** Time of work that reads and computes: each is hidden behind the other where it is much shorter; where they are equal,
 * neither is wholly: (read^1.5 + compute^1.5)^(1/1.5), 1.59 for 1 and 1. */
double td_plan_work_s(double read_s, double compute_s);

void td_plan_step_cost(const td_plan_machine *machine, const td_plan_model *model, const td_plan_rows *rows,
                       td_plan_step *out);

#endif
