/*
 * `tandem bench`: what parts of the engine reach of what the machine can do. A suite is a function that times cases and
 * hands each over as a row; the machine's bounds are measured around every round of every case, with the same threads, since
 * a shared machine drifts.
 *
 * bound = max(bytes / read bandwidth, operations / int8 peak): every weight and KV byte that the case must read once, and
 * two operations per multiply-add, of linears and attention together. fraction = bound / time. Beside it stands what the
 * case reaches of the int8 peak, whatever binds it: of AMX that is the tiles' peak.
 *
 * Of blocks and steps on a device that can measure itself (td_npu_ops.bound), the bounds are the device's: its memory's read
 * bandwidth, and the peaks of int8 and of bf16 products, which attention's are. A step whose experts are on the CPU also
 * stands against the machine's bounds, with the experts' work; of both, the bound that takes longer counts.
 */
#ifndef TD_BENCH_BENCH_H
#define TD_BENCH_BENCH_H

#include <stdio.h>

#include "cpu_experts/cpu_experts.h"
#include "kernels/machine/roofline.h"
#include "model/model_probe.h"
#include "npu/npu.h"

#define TD_BENCH_ROUNDS_MAX 99
#define TD_BENCH_BUFFER_BYTES ((size_t)1 << 30) /* of the read bandwidth: beyond any L3 */

typedef struct {
    const char              *model_path; /* decode and prefill: config.json or folder; load: a folder of tandem quantize */
    const char              *override_json;  /* merged over it, or NULL */
    const char              *trace_path;     /* or NULL */
    const char              *routing_path;   /* of residency: a routing trace; NULL: generated ones */
    const td_expert_numbers *experts;        /* of experts, decode and prefill */
    const char              *device;         /* NULL: host */
    uint32_t                 first_card;     /* of that device */
    const char              *filter;         /* only rows whose shape contains it; NULL: all */
    uint32_t                 threads;        /* 0: every core */
    uint32_t                 subpool_count;  /* 0: one per NUMA node */
    uint32_t                 rounds;         /* a row is their median; at most TD_BENCH_ROUNDS_MAX */
    uint32_t                 divide;         /* of kernels and attention: sizes are divided by it */
    td_experts_left          experts_left;   /* of decode and prefill: what of the routed experts' work is left out */
    bool                     moves;          /* of both: device_experts was given, and tokens recur as texts' do */
    uint32_t                 device_experts; /* of both: as td_engine_options.num_gpu_experts */
    bool                     stream_experts; /* of prefill: as td_engine_options.stream_experts */
    bool                     json;           /* JSON lines instead of a table */
} td_bench_options;

typedef struct {
    const td_bench_options *o;
    td_machine              machine;
    uint64_t                available_bytes; /* of memory, beside what measures the bounds */
    td_pool                *pool;            /* of both tiers; the caller is worker 0 */
    td_roofline            *roofline;        /* NULL until a row stands against it */
    const char             *device;          /* what rows stand against: NULL this machine, else the device of that name */
    bool                    by_clock;        /* times are the clock's: a device works beside this thread */
    td_npu                 *card;            /* the device, which measures itself; NULL: rows on it have no fraction */
    char                    card_text[128];  /* of the card's caps */
    const char             *bench;           /* the suite's name */
    uint32_t                n_rows;          /* printed so far */
} td_bench;

#define TD_BENCH_SHAPE_BYTES 64

/** One kind of work, done `calls` times a round. */
typedef struct {
    char        shape[TD_BENCH_SHAPE_BYTES];
    uint32_t    m; /* rows or tokens */
    const char *kernel;
    uint32_t    calls;
    td_status (*run)(void *ctx, td_error *err); /* one call */
    td_tier_work (*work)(void *ctx);            /* done since the beginning; or NULL, and then */
    double   bytes, int8_ops, float_ops;        /* of one time */
    uint32_t times;                             /* that a call does it; 0: once */
    td_tier_work (*experts_work)(void *ctx);    /* of the machine's own beside a device's, or NULL; since the beginning */
    void *ctx;
} td_bench_case;

extern const char td_bench_commit[]; /* of the tree that was built; its source is made by the build */

/** From now on rows stand against the device: its own bounds, or those of this machine, whose cores it computes on. Only a
 * device that is neither has rows without a fraction. */
void td_bench_stand(td_bench *b, const char *name, td_npu *device);

/** Whether the filter lets a shape through. */
bool td_bench_wanted(const td_bench *b, const char *shape);

/** Whether so much memory is there for a case. @return TD_ENOMEM. */
TD_NODISCARD td_status td_bench_check_memory(const td_bench *b, const char *what, uint64_t bytes, td_error *err);

/** Time a case and print its row. */
TD_NODISCARD td_status td_bench_time(td_bench *b, const td_bench_case *c, td_error *err);

/** Print a figure that is a bound itself: `gbps` or `gops`, the other 0. */
void td_bench_print_bound(td_bench *b, const char *shape, uint32_t threads, const char *kernel, double gbps, double gops);

/** Print a time beside the bound that it cannot go below. @param bound its name. */
void td_bench_print_time(td_bench *b, const char *shape, uint32_t threads, const char *kernel, double time_s,
                         const char *bound, double bound_s);

/** Print a row of m rows that does `ops` float operations, two per multiply-add. @param peak_per_s of them. @param bound its
 * name. */
void td_bench_print_floats(td_bench *b, const char *shape, uint32_t m, const char *bound, double time_s, double ops,
                           double peak_per_s);

/** Print a row whose bound is the disk. */
void td_bench_print_disk(td_bench *b, const char *shape, const char *kernel, double time_s, double gbps, double fraction);

/** Print a time over what lies between a device and the host. @param gbps of a copy; 0: none. */
void td_bench_print_link(td_bench *b, const char *shape, const char *kernel, double time_s, double gbps);

/** Print what a step copies between host and device, down to the device and up from it, and the calls that gave the cards
 * their work. */
void td_bench_print_cards(td_bench *b, const char *shape, uint64_t down_bytes, uint64_t up_bytes, uint64_t launches,
                          uint64_t replays);

/** Print where a row's pairs of a token and an expert were computed, of experts that move, and how many were copied.
 * @param of the row's steps. @param top_k experts that a token chooses of a layer. */
void td_bench_print_moved(td_bench *b, const char *shape, const td_residency_counts *of, uint32_t top_k);

/* The suites. */
TD_NODISCARD td_status td_bench_roofline(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_pool(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_kernels(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_expert_kernels(td_bench *b, td_error *err); /* the second part of kernels */
TD_NODISCARD td_status td_bench_attention(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_experts(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_decode(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_prefill(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_vision(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_link(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_load(td_bench *b, td_error *err);
TD_NODISCARD td_status td_bench_residency(td_bench *b, td_error *err);

#endif
