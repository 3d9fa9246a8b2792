/*
 * The bridge: carries a layer's tokens from the device stream to the expert pool and the sums back.
 *
 * DESIGN. Both directions are operations on the device stream, so every hand-over is a happens-before edge there:
 *   enqueue_submit   copies x, ids and weights to the host (where memory is not shared), then a host call queues a ticket; the
 *                    stream goes on at once, so the shared experts overlap the routed ones;
 *   enqueue_collect  a host call that waits for the ticket's immediate sum and for the previous ticket's deferred one, then copies
 *                    both to the device.
 * Tickets run in order: on one expert thread (async), or inside collect on the stream's own thread when the device and the experts
 * share the pool (inline). Successive MoE layers use the slots in turn; a slot's buffers are free again when the *next* layer has
 * been collected, because that is when its deferred sum is taken. The protocol's words:
 *   submitted  +1 for every queued ticket          raised by the stream, awaited by the expert thread
 *   progress   2n + 1: ticket n has its immediate sum; 2n + 2: it is done         raised by the expert thread, awaited by the stream
 */
#ifndef TD_BRIDGE_BRIDGE_H
#define TD_BRIDGE_BRIDGE_H

#include "cpu_experts/cpu_experts.h"
#include "npu/npu.h"

#define TD_BRIDGE_SLOTS 2

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

/** The buffers of a slot on the device; the bridge's. The router and the norm before it write the first three, combine reads the others. */
typedef struct {
    void     *x;          /* [max_tok, hidden] act_dtype: the normed input of the experts */
    uint16_t *ids;        /* [max_tok, top_k], descending weight */
    float    *weights;    /* [max_tok, top_k] */
    void     *y;          /* [max_tok, hidden] act_dtype: sum of the immediate experts, after collect */
    void     *y_deferred; /* [max_tok, hidden] act_dtype: sum of the deferred experts, after the *next* layer's collect */
} td_bridge_buffers;

void td_bridge_get_buffers(const td_bridge *b, uint32_t slot, td_bridge_buffers *out);

/**
 * One MoE layer's hand-over, prepared once.
 * @param layer  index in the expert store.
 * @param model_layer the same layer's index in the model; only traces show it.
 * @param slot   of TD_BRIDGE_SLOTS; successive layers of a pass use different ones.
 * @param last   last MoE layer of the pass: it defers nothing.
 */
TD_NODISCARD td_status td_bridge_port_create(td_bridge *b, uint32_t layer, uint32_t model_layer, uint32_t slot, bool last,
                                             td_bridge_port **out, td_error *err);

/**
 * Per token, the top_k - D experts of highest weight are added in their own layer; the others' sum arrives with the next MoE layer's
 * collect; the last MoE layer defers nothing. (Expert deferral as published for KTransformers, but per token, so that a
 * token's result does not depend on the batch.) Every submit is collected once, in order; a step must stay as it is until the
 * stream has been synchronised. @return TD_EDEVICE when the stream failed.
 */
TD_NODISCARD td_status td_bridge_enqueue_submit(td_bridge_port *port, td_npu_stream *s, const td_step *step);
TD_NODISCARD td_status td_bridge_enqueue_collect(td_bridge_port *port, td_npu_stream *s, const td_step *step);

/** First error that a ticket met since the last call (TD_OK: none); call after the stream was synchronised. */
td_status td_bridge_take_error(td_bridge *b);

/** (token, expert) pairs deferred since opening. Thread-safe. */
uint64_t td_bridge_deferred(const td_bridge *b);

#endif
