/*
 * The bridge: carries a layer's tokens from the device stream to the expert pool and the sums back.
 *
 * DESIGN. Both directions are operations on the device stream, so every hand-over is a happens-before edge there:
 *   enqueue_submit   copies x, ids and weights to a staging slot, then a host call queues a ticket; the stream goes on at once
 *                    (the shared experts overlap the routed ones);
 *   enqueue_collect  a host call that waits for the ticket's immediate part and the previous ticket's deferred part, then copies back.
 * Tickets run in order on one expert thread (async), or inside collect on the stream's own thread when the device and the
 * experts share the pool (inline). At most TD_TICKETS_MAX are open; a slot is reused only after its ticket was collected.
 */
#ifndef TD_BRIDGE_BRIDGE_H
#define TD_BRIDGE_BRIDGE_H

#include "cpu_experts/cpu_experts.h"
#include "npu/npu.h"

#define TD_TICKETS_MAX 4

typedef struct td_bridge td_bridge;

typedef struct {
    td_npu     *npu;
    td_experts *experts;
    bool        async;   /* the experts have a thread and a pool of their own */
    td_pool    *pool;    /* the experts' pool (async: the ticket thread is its worker 0) */
    uint32_t    hidden, n_experts, top_k, max_tok;
    uint32_t    max_deferred; /* D; 0: no deferral */
    td_dtype    act_dtype;
} td_bridge_config;

TD_NODISCARD td_status td_bridge_open(const td_bridge_config *c, td_bridge **out, td_error *err);
void                   td_bridge_close(td_bridge *b);

/** Where a layer's hand-over reads and writes, on the device. The struct must live as long as the bridge. */
typedef struct {
    uint32_t        layer;     /* MoE layer index in the store */
    bool            last;      /* last MoE layer of the pass: nothing is deferred */
    bool            first;     /* first MoE layer of the pass: nothing deferred arrives */
    const void     *x;         /* [n_tok, hidden] act_dtype: the normed input of the experts */
    const uint16_t *ids;       /* [n_tok, top_k] */
    const float    *weights;   /* [n_tok, top_k] */
    void           *y;         /* [n_tok, hidden] act_dtype: sum of the immediate experts */
    void           *y_deferred; /* [n_tok, hidden] act_dtype: what the previous layer deferred; zeros when first */
} td_bridge_port;

/**
 * Per token, the top_k - D experts of highest weight are added in their own layer; the others' output arrives with the next MoE layer's
 * collect; the last MoE layer defers nothing. (Expert deferral as in KTransformers, but per token, so that a token's
 * result does not depend on the batch.)
 * @return TD_EAGAIN when all tickets are open; TD_EDEVICE when the stream failed.
 */
TD_NODISCARD td_status td_bridge_enqueue_submit(td_bridge *b, td_npu_stream *s, const td_bridge_port *port, const td_step *step);
TD_NODISCARD td_status td_bridge_enqueue_collect(td_bridge *b, td_npu_stream *s, const td_bridge_port *port, const td_step *step);

/** First error that a ticket met since the last call (TD_OK: none); call after the stream was synchronised. */
td_status td_bridge_take_error(td_bridge *b);

/** (token, expert) pairs deferred since opening. */
uint64_t td_bridge_deferred(const td_bridge *b);

#endif
