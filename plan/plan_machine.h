/*
 * The machine that a plan is for: what its memories hold, what its parts can do, and how much of that Tandem's code reaches.
 * Either this machine, measured, or one that a file describes (docs/plan.md, configs/machines).
 */
#ifndef TD_PLAN_PLAN_MACHINE_H
#define TD_PLAN_PLAN_MACHINE_H

#include <stdio.h>

#include "core/threads/pool.h"

/** Shares of the machine's rates that the code reaches. */
typedef struct {
    double linear_read;     /* weights of the device tier's products: of the read bandwidth */
    double linear_int8;     /* their int8 operations: of the int8 rate */
    double float_ops;       /* products in floats, the router's above all: of the float rate */
    double attention_read;  /* the KV cache: of the read bandwidth */
    double attention_float; /* scores and sums of values: of the float rate. On a CPU these are products of 16-bit integers,
                               which may be faster than floats: up to 2 */
    double attention_row; /* what a row of a prompt costs beside its keys, in keys: softmax, rounding to integers, what of a
                             tile lies beyond the row's own key; 0 or more */
    double expert_read;   /* routed experts' weights: of the read bandwidth; CPUs only, so the next */
    double expert_int8;   /* their operations: of the int8 rate */
    double expert_row;    /* what an expert costs beside its rows, in rows: its codes are unpacked once; 0 or more */
} td_plan_efficiency;

/** Default shares for the CPU kernels of an instruction set. */
typedef struct {
    const char        *name;   /* as td_cpu_tier_name's */
    const char        *source; /* where the shares were measured, or what they are taken from */
    td_plan_efficiency shares;
} td_plan_kernels;

/** @return NULL behind the last. */
const td_plan_kernels *td_plan_kernels_at(size_t i);
const td_plan_kernels *td_plan_kernels_find(const char *name); /* NULL: there are none of that name */

/** What is assumed of a card's code; nothing was measured on one. */
extern const td_plan_efficiency td_plan_card_efficiency;

typedef struct {
    double cores; /* whole; > 0 */
    double memory_bytes;
    double read_bytes_per_s; /* its own cores read its own memory */
    double int8_ops_per_s;   /* two operations a multiply-add, as all rates here */
    double float_ops_per_s;  /* f32 */
    double channels;         /* of memory; 0: not known */
} td_plan_node;

typedef struct {
    double count;        /* whole; 0: the CPU is the device too, and its threads take turns */
    double memory_bytes; /* of each, so below */
    double read_bytes_per_s, int8_ops_per_s, float_ops_per_s;
    double block_s;                  /* least time of a block: its launches */
    double sum_bytes_per_s, sum_s;   /* a sum over the cards: bandwidth between them, least time */
    double link_bytes_per_s, link_s; /* between host and card: bandwidth each way, least time of a copy */
    double handover_s;               /* until the other side has seen that a slot is filled or summed */
} td_plan_cards;

#define TD_PLAN_NAME_BYTES 96

typedef struct {
    char                   name[TD_PLAN_NAME_BYTES];
    const td_plan_kernels *kernels;
    uint32_t               n_nodes;
    td_plan_node           node[TD_POOL_SUBPOOLS_MAX]; /* [n_nodes] */
    td_plan_cards          cards;
    double                 block_s; /* of a block on the CPU, beside its work: loops begun and ended */
    double                 step_s;  /* between two steps: sampling, delivering, scheduling */
    td_plan_efficiency     cpu, card;
    bool                   measured;
} td_plan_machine;

/** A machine without figures: defaults of what a file may leave out. */
void td_plan_machine_init(td_plan_machine *m);

/**
 * Measure this machine with every core, one node for each subpool that the engine would make; about a second. Its memory is
 * what is free now. @return TD_ENOMEM, TD_EIO.
 */
TD_NODISCARD td_status td_plan_machine_measure(td_plan_machine *out, td_error *err);

/**
 * Read a machine from YAML: one flat mapping of the keys that docs/plan.md lists.
 * @return as td_yaml_pairs_read; TD_EINVAL with a sentence that names the key and its range: missing, not a number, outside.
 */
TD_NODISCARD td_status td_plan_machine_read(const char *path, td_plan_machine *out, td_error *err);
/** The same of a text. @param path what the sentences call it. */
TD_NODISCARD td_status td_plan_machine_parse(const char *path, const char *text, size_t len, td_plan_machine *out,
                                             td_error *err);

/** The keys as a table in Markdown, for docs/plan.md. */
void td_plan_machine_print_keys(FILE *f);

#endif
