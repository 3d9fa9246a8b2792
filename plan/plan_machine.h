/*
 * The machine that a plan is for: its memories, the rates of its parts, and the share of these rates that Tandem's code
 * reaches. It is either this machine, measured, or one that a file describes (docs/plan.md, configs/machines).
 */
#ifndef TD_PLAN_PLAN_MACHINE_H
#define TD_PLAN_PLAN_MACHINE_H

#include <stdio.h>

#include "core/threads/pool.h"

/** A spread above this says that other programs ran while the machine was measured. */
#define TD_PLAN_BUSY_SPREAD 0.25

/** Shares of the machine's rates that the code reaches: 1 is the whole rate. */
typedef struct {
    double linear_read;     /* of the read bandwidth, when products of the device tier read weights */
    double linear_int8;     /* of the int8 rate, in the same products */
    double float_ops;       /* of the float rate, in products of floats, above all the router's */
    double attention_read;  /* of the read bandwidth, when attention reads the KV cache */
    double attention_float; /* of the float rate, in scores and sums of values; up to 2, as 16-bit integers may be faster */
    double attention_row;   /* cost of a prompt's row beside its keys, in keys, 0 or more: softmax, rounding, tiles */
    double expert_read;     /* of the read bandwidth, when routed experts read weights; CPUs only */
    double expert_int8;     /* of the int8 rate, in routed experts; CPUs only */
    double expert_row;      /* cost of an expert beside its rows, in rows, 0 or more: its codes are unpacked once */
} td_plan_efficiency;

/** Default shares for the CPU kernels of an instruction set. */
typedef struct {
    const char        *name;   /* as td_cpu_tier_name gives it */
    const char        *source; /* where the shares were measured, or from which tier they are taken */
    td_plan_efficiency shares;
} td_plan_kernels;

/** @return the kernels at index i, or NULL behind the last. */
const td_plan_kernels *td_plan_kernels_at(size_t i);
const td_plan_kernels *td_plan_kernels_find(const char *name); /* NULL: no kernels have that name */

/** Assumed shares for a card. None was measured. */
extern const td_plan_efficiency td_plan_card_efficiency;

typedef struct {
    double cores; /* a whole number, > 0 */
    double memory_bytes;
    double read_bytes_per_s; /* the node's cores reading the node's memory */
    double int8_ops_per_s;   /* two operations a multiply-add, as all rates here */
    double float_ops_per_s;  /* f32 */
    double channels;         /* memory channels; 0: not known */
} td_plan_node;

typedef struct {
    double count;        /* a whole number; 0: there are no cards, the CPU does all work with the same threads */
    double memory_bytes; /* of each card, as are all figures below */
    double read_bytes_per_s, int8_ops_per_s, float_ops_per_s;
    double block_s;                  /* least time of a block, which its launches take */
    double sum_bytes_per_s, sum_s;   /* a sum over the cards: bandwidth between cards, least time */
    double link_bytes_per_s, link_s; /* between host and card: bandwidth each way, least time of a copy */
    double handover_s; /* from the moment that one side has filled or summed a slot until the other side sees it */
} td_plan_cards;

#define TD_PLAN_NAME_BYTES 96

typedef struct {
    char                   name[TD_PLAN_NAME_BYTES];
    const td_plan_kernels *kernels;
    uint32_t               n_nodes;
    td_plan_node           node[TD_POOL_SUBPOOLS_MAX]; /* [n_nodes] */
    td_plan_cards          cards;
    double                 block_s; /* time of a block on the CPU beside its work: beginning and ending loops */
    double                 spread;  /* of measured bandwidth: (largest - least) / median of the rounds; 0: not measured */
    double                 step_s;  /* between two steps: sampling, delivering, scheduling */
    td_plan_efficiency     cpu, card;
    bool                   measured;
} td_plan_machine;

/** Set the defaults of all figures that a file may leave out. */
void td_plan_machine_init(td_plan_machine *m);

/**
 * Measure this machine with all cores, which takes about a second: one node for each subpool of threads that the engine
 * would make. Its memory is what is free now. @return TD_ENOMEM, TD_EIO.
 */
TD_NODISCARD td_status td_plan_machine_measure(td_plan_machine *out, td_error *err);

/**
 * Read a machine from YAML: one flat mapping of the keys that docs/plan.md lists.
 * @return as td_yaml_pairs_read; TD_EINVAL with a sentence that names the key and its range if a number is missing,
 * malformed or out of range.
 */
TD_NODISCARD td_status td_plan_machine_read(const char *path, td_plan_machine *out, td_error *err);
/** Read a machine from a text. @param path the name that errors give it. */
TD_NODISCARD td_status td_plan_machine_parse(const char *path, const char *text, size_t len, td_plan_machine *out,
                                             td_error *err);

/** Print the keys as a table in Markdown, for docs/plan.md. */
void td_plan_machine_print_keys(FILE *f);

#endif
