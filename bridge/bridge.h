/*
 * The bridge: carries a layer's tokens from the device stream to the expert pool and the sums back.
 *
 * DESIGN. Both directions are operations on the device stream, so every hand-over is a happens-before edge there:
 *   enqueue_submit   copies x, ids and weights to the host (where memory is not shared), then a host call queues a ticket; the
 *                    stream goes on at once, so the shared experts overlap the routed ones;
 *   enqueue_collect  a host call that waits for the ticket's immediate sum and for the previous layer's deferred one, then copies
 *                    both to the device.
 * Tickets run in order: on one expert thread (async), or inside collect on the stream's own thread when the device and the experts
 * share the pool (inline). A pass takes its rows as one, or as two halves whose layers alternate on the stream, so that the device
 * has one half's attention to do while the CPU works on the other's experts:
 *   one:  submit 0, collect 0, submit 1, collect 1, ...         two:  submit A0, submit B0, collect A0, submit A1, collect B0, ...
 * Tickets are collected in the order of their submits, and at most TD_BRIDGE_OPEN_MAX are open. A slot is (parity of the MoE layer
 * in its pass, half): the halves share a parity's buffers, half 1 from row td_first_half(max_tok) on. A slot's buffers are free again when
 * the *next* layer of the same half has been collected, because that is when its deferred sum is taken. The protocol's words:
 *   submitted  +1 for every queued ticket          raised by the stream, awaited by the expert thread
 *   progress   2n + 1: ticket n has its immediate sum; 2n + 2: it is done         raised by the expert thread, awaited by the stream
 * ticket_protocol.pml is the same as a model whose every interleaving CTest visits (test_ticket_protocol): its inlines and processes carry
 * the names of the functions here and in core/signal_word.c. Who changes the order of two statements in submit_call, collect_call,
 * run_ticket, expert_main, td_bridge_end_pass or td_bridge_close changes it there first.
 */
#ifndef TD_BRIDGE_BRIDGE_H
#define TD_BRIDGE_BRIDGE_H

#include "cpu_experts/cpu_experts.h"
#include "npu/npu.h"

#define TD_BRIDGE_PARITIES 2
#define TD_BRIDGE_OPEN_MAX 2 /* tickets submitted and not collected */

/** How n rows are halved: half 0 has the first td_first_half(n). In buffers of max_tok rows half 1 starts at td_first_half(max_tok). */
#define TD_HALVES 2
static inline uint32_t td_first_half(uint32_t n) { return n - n / 2; }

typedef struct td_bridge      td_bridge;
typedef struct td_bridge_port td_bridge_port;

typedef struct {
    td_npu     *npu;
    td_experts *experts;
    td_pool    *pool;    /* the experts' pool; async: the expert thread becomes its worker 0 */
    bool        async;   /* the experts have threads of their own */
    uint32_t    hidden, n_experts, top_k, max_tok;
    uint32_t    max_deferred; /* D, less than top_k; 0: no deferral */
    td_dtype    act_dtype;
} td_bridge_config;

/** @param c copied; what it points to is borrowed until close. */
TD_NODISCARD td_status td_bridge_open(const td_bridge_config *c, td_bridge **out, td_error *err);
void                   td_bridge_close(td_bridge *b); /* ports too; nothing may be under way */

/** Host and device memory that td_bridge_open takes. */
uint64_t td_bridge_bytes(const td_bridge_config *c, bool unified_memory);

/**
 * The buffers of a slot on the device; the bridge's. The router and the norm before it write the first three, combine reads the others. Half 0
 * of a pass of one has max_tok rows.
 */
typedef struct {
    void     *x;          /* [max_tok, hidden] act_dtype: the normed input of the experts */
    uint16_t *ids;        /* [max_tok, top_k], descending weight */
    float    *weights;    /* [max_tok, top_k] */
    void     *y;          /* [max_tok, hidden] act_dtype: sum of the immediate experts, after collect */
    void     *y_deferred; /* [max_tok, hidden] act_dtype: sum of the deferred experts, after the *next* layer's collect */
} td_bridge_buffers;

void td_bridge_get_buffers(const td_bridge *b, uint32_t parity, uint32_t half, td_bridge_buffers *out);

/** Where one half of one MoE layer is handed over. */
typedef struct {
    uint32_t layer;       /* index in the expert store */
    uint32_t model_layer; /* the same layer's index in the model; only traces show it */
    uint32_t parity;      /* of TD_BRIDGE_PARITIES: successive MoE layers of a pass use them in turn */
    uint32_t half;        /* of TD_HALVES; 0 for a pass of one */
    bool     last;        /* last MoE layer of the pass: it defers nothing */
} td_bridge_port_desc;

TD_NODISCARD td_status td_bridge_port_create(td_bridge *b, const td_bridge_port_desc *desc, td_bridge_port **out, td_error *err);

/**
 * Per token, the top_k - D experts of highest weight are added in their own layer; the others' sum arrives with the collect of the same
 * half's next MoE layer; the last MoE layer defers nothing. (Expert deferral as published for KTransformers, but per token, so that a
 * token's result does not depend on the batch.) Every submit is collected once, in order.
 * @param step the half's; it must stay as it is until the stream has been synchronised. @return TD_EDEVICE when the stream failed.
 */
TD_NODISCARD td_status td_bridge_enqueue_submit(td_bridge_port *port, td_npu_stream *s, const td_step *step);
TD_NODISCARD td_status td_bridge_enqueue_collect(td_bridge_port *port, td_npu_stream *s, const td_step *step);

/**
 * End a pass; call after the stream was synchronised. Tickets that a failed pass left uncollected are waited for and dropped.
 * @return the first error that a ticket met in the pass.
 */
td_status td_bridge_end_pass(td_bridge *b);

/** (token, expert) pairs deferred since opening. Thread-safe. */
uint64_t td_bridge_deferred(const td_bridge *b);

#endif
