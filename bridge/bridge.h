/*
 * The bridge: carries a layer's tokens from the device stream to the expert pool and the sums back.
 *
 * DESIGN. Both directions are operations on the device stream, so every hand-over is a happens-before edge there, and a
 * capture of the stream replays them:
 *   enqueue_submit   carries x, ids and weights to the host (where memory is not shared) and says that the slot is filled; the
 *                    stream goes on at once, so the shared experts overlap the routed ones;
 *   enqueue_collect  waits until the ticket's immediate sum and the previous layer's deferred one are there, then carries both to the device.
 * In a capture, sums of many rows come ahead (ahead_bytes): a branch of the capture, one for each half, forks behind the
 * submit. It waits for the sums and carries them, while the stream has other work; the collect joins it.
 * "Says" and "waits" have two forms (td_handover), chosen when the bridge is opened:
 *   host call  a function of ours, called in stream order: submit_call counts the ticket, collect_call waits for the expert thread's count;
 *              rows go by copies, submit_call behind them and collect_call before;
 *   doorbell   two bells of the port in pinned memory: the device rings `filled`, which the expert thread polls; the expert thread rings
 *              `summed`, which the device waits for. No host thread stands between the two tiers. Rows are of the bells'
 *              operations, so a device may make one kernel of each.
 * What a pass will hand over, and in which order, is told before it begins (td_bridge_begin_pass): ticket n of a pass is
 * port order[n]. Tickets run in that order: on one expert thread (async), or inside collect on the stream's own thread when
 * the device and the experts share the pool (inline; host calls only). A pass takes its rows as one, or as two halves whose
 * layers alternate on the stream, so that the device has one half's attention to do while the CPU works on the other's
 * experts:
 *   one:  submit 0, collect 0, submit 1, collect 1, ...         two:  submit A0, submit B0, collect A0, submit A1, collect B0, ...
 * Tickets are collected in the order of their submits, and at most TD_BRIDGE_OPEN_MAX are open. A slot is (parity of the MoE
 * layer in its pass, half): the halves share a parity's buffers, each at its step's first_row. A slot's buffers are free
 * again when the *next* layer of the same half has been collected, because that is when its deferred sum is taken. The last
 * ticket of a half is waited for to its end. What the two sides count in a pass, from 0 at its begin:
 *   n_filled   tickets whose slot is filled (host calls)      raised by the stream, awaited by the expert thread
 *   progress   2n + 1: ticket n has its immediate sum; 2n + 2: it is done      raised by the expert thread, awaited by the stream
 * td_bridge_end_pass, after the stream was synchronised, closes the pass: a ticket that was not filled by then never will
 * be. So a pass may end between two hand-overs, and the next one go on with the rest of its order, over the same slots.
 * A pass with until_ns may even end within a ticket: the experts compute as many of its rows at a time as end by then. What
 * they have not done when the pass is closed is handed over again in the next pass, which is told what they have.
 * ticket_protocol.pml is the same as a model whose every interleaving CTest visits (test_ticket_protocol): its inlines
 * and processes carry the names of the functions here and in core/threads/signal_word.c. Who changes the order of two
 * statements in submit_call, collect_call, run_ticket, expert_main, td_bridge_begin_pass, td_bridge_end_pass or
 * td_bridge_close changes it there first.
 */
#ifndef TD_BRIDGE_BRIDGE_H
#define TD_BRIDGE_BRIDGE_H

#include "cpu_experts/cpu_experts.h"
#include "npu/npu.h"

#define TD_BRIDGE_PARITIES 2
#define TD_BRIDGE_OPEN_MAX 2 /* tickets submitted and not collected */

#define TD_HALVES 2

/** td_bridge_config.ahead_bytes of who serves: fewer take less time over a link than a branch of a capture costs. */
#define TD_SUMS_AHEAD_BYTES ((size_t)1 << 20)

typedef struct td_bridge      td_bridge;
typedef struct td_bridge_port td_bridge_port;

typedef struct {
    td_npu                  *npu;
    const td_experts_config *spec;      /* sizes, deferral and activations of the experts; max_deferred is less than top_k */
    td_experts              *experts;   /* NULL for measurements: tokens are handed over, and all sums are zero */
    td_pool                 *pool;      /* the experts' pool; with async the expert thread becomes its worker 0 */
    bool                     async;     /* the experts have threads of their own */
    uint32_t                 max_ports; /* how many ports td_bridge_port_create may make */
    td_handover              handover;  /* host calls are used without async, whatever this says */
    bool                     x_int8;    /* the device gives the experts' input as int8 codes and scales */
    bool                     in_parts;  /* the device has some of the experts: sums are given as td_ffn_args.in_parts */
    /** In a capture, sums of so many bytes and more come ahead: to the device as soon as they are there. That takes doorbells,
     * and a device of two memories whose captures have branches. */
    size_t ahead_bytes;
    /** Told what the routers chose, ids [n_tok, top_k] of rows first_row on, before a ticket runs; on the thread that runs
     * it. NULL: nobody wants to know. */
    void (*chosen)(void *user, uint32_t layer, uint32_t first_row, uint32_t n_tok, const uint16_t *ids);
    void *user; /* of chosen */
} td_bridge_config;

/** @param c copied; what it points to is borrowed until close, the spec too. */
TD_NODISCARD td_status td_bridge_open(const td_bridge_config *c, td_bridge **out, td_error *err);
void                   td_bridge_close(td_bridge *b); /* ports too; nothing may be under way */

/** What td_bridge_open takes in each of two memories; with one of both, the host's alone. */
uint64_t td_bridge_bytes(const td_bridge_config *c);

/** Bytes of a row that a submit copies to the host, and a collect to the device, where the memories are two. */
void td_bridge_row_bytes(const td_bridge_config *c, size_t *to_host, size_t *to_device);

/** The buffers of a parity, all rows; the bridge's. The router and the norm before it write the first three, combine reads
 * the others. */
typedef struct {
    void      *x;       /* [max_tok, hidden] act_dtype: the normed input of the experts; NULL with x_int8 */
    td_rows_i8 x_i8;    /* with x_int8: the same, quantised */
    void      *ids;     /* [max_tok, top_k] uint16 by descending weight; of a device with caps.raw_choice as it gives them */
    float     *weights; /* [max_tok, top_k] */
    /* [max_tok, hidden] act_dtype, or with in_parts rows of td_exact_words(hidden) words: */
    void *y;          /* sum of the immediate experts, after collect */
    void *y_deferred; /* sum of the deferred experts, after the *next* layer's collect */
} td_bridge_buffers;

void td_bridge_get_buffers(const td_bridge *b, uint32_t parity, td_bridge_buffers *out); /* on the device */
/** The same on the host: x, ids and weights are there from the port's submit on, y and y_deferred from its collect. */
void td_bridge_get_host_buffers(const td_bridge *b, uint32_t parity, td_bridge_buffers *out);

/** What the router chose for rows first_row on, as td_ffn_args has it, of the host's buffers; there from the port's submit on.
 * @param ids, weights [n_tok, top_k], written. */
void td_bridge_get_choice(const td_bridge *b, uint32_t parity, uint32_t first_row, uint32_t n_tok, uint16_t *ids,
                          float *weights);

/** Where one half of one MoE layer is handed over. */
typedef struct {
    uint32_t layer;       /* index in the expert store */
    uint32_t model_layer; /* the same layer's index in the model; only traces show it */
    uint32_t parity;      /* of TD_BRIDGE_PARITIES: successive MoE layers of a pass use them in turn */
    uint32_t half;        /* of TD_HALVES; 0 for a pass of one */
    bool     first, last; /* MoE layer of the pass: nothing was deferred before it; it defers nothing */
} td_bridge_port_desc;

TD_NODISCARD td_status td_bridge_port_create(td_bridge *b, const td_bridge_port_desc *desc, td_bridge_port **out,
                                             td_error *err);

uint32_t td_bridge_port_layer(const td_bridge_port *port); /* as in its description */

/**
 * Per token, the top_k - D experts of highest weight are added in their own layer; the others' sum arrives with the collect
 * of the same half's next MoE layer; the last MoE layer defers nothing. (Expert deferral as published for KTransformers, but
 * per token, so that a token's result does not depend on the batch.) Every submit is collected once, in order.
 * @param step the half's, of the pass that these operations will be part of.
 * @param captured whether s is being captured; the same for both. @return TD_EDEVICE when the stream failed.
 */
TD_NODISCARD td_status td_bridge_enqueue_submit(td_bridge_port *port, td_npu_stream *s, const td_step *step, bool captured);
TD_NODISCARD td_status td_bridge_enqueue_collect(td_bridge_port *port, td_npu_stream *s, const td_step *step, bool captured);

/** What runs on the stream until td_bridge_end_pass. Borrowed until then; the steps' host counts stay as they are. */
typedef struct {
    td_bridge_port *const *order; /* [n_tickets] in the order of their submits */
    uint32_t               n_tickets;
    const td_step         *steps[TD_HALVES]; /* [1] unused by a pass of one */
    /* As td_trace_now: the experts begin no rows that would end later, but for the first ones of the pass. 0: every ticket
     * that is filled runs to its end. */
    uint64_t           until_ns;
    const atomic_bool *waited_for;               /* once it is set, they begin none either. NULL: it never is */
    uint64_t           part_ns;                  /* with waited_for: rows are computed so long at a time. 0: till until_ns */
    uint32_t           done[TD_BRIDGE_OPEN_MAX]; /* rows of the first tickets whose sums are there from a pass before */
} td_bridge_pass;

/** Begin a pass; call before its operations are enqueued to run. */
void td_bridge_begin_pass(td_bridge *b, const td_bridge_pass *pass);

/**
 * Of a pass with until_ns, between its operations and before the collect of ticket n: wait for the ticket's sums. Without
 * threads of their own the experts compute them here. Call after the stream was synchronised behind the submit.
 * @return false: the time was too short for them. Then the pass can but end.
 */
bool td_bridge_await_sums(td_bridge *b, uint32_t n);

/**
 * End a pass; call after the stream was synchronised. Tickets that it left uncollected are waited for and dropped; with
 * until_ns only the rows under way are waited for.
 * @return the first error that a ticket met in the pass.
 */
td_status td_bridge_end_pass(td_bridge *b);

/** Of a pass with until_ns that has ended: how many rows of a ticket that was not collected have sums. */
uint32_t td_bridge_rows_done(const td_bridge *b, uint32_t n);

/** (token, expert) pairs deferred since opening. Thread-safe. */
uint64_t td_bridge_deferred(const td_bridge *b);

#endif
