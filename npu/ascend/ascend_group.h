/*
 * Several cards as one: HCCL's communicators, and its collectives.
 *
 * DESIGN. One process has all cards, a communicator each, joined by HcclGetRootInfo and HcclCommInitRootInfo on a thread for
 * each card (HcclCommInitAll is not for every 910B server, hcomm comm_mgr_c). HCCL sets up the links of a kind of collective
 * when it is first called, and that call waits for the other cards. Captures are made card by card, so group_create runs one
 * collective on every card first, which also shows that the cards reach each other.
 *
 * The order of sums. Two cards use HcclAllReduce: a sum of two is the same either way. More cards gather all parts
 * (HcclAllGather) and add them in the order of the cards: HCCL promises no order on 910B (hccl_env/HCCL_DETERMINISTIC).
 *
 * The first card's words. Routed experts that lie on the cards have to be the same on all of them, and no document promises
 * that their routers give the same bits. HcclBroadcast sends ids and weights of the first card to the others.
 *
 * Giving up. A sum that one card does not come to ends by HCCL's own timeout, half an hour (HCCL_EXEC_TIMEOUT). So an abort
 * stops the cards' streams (aclrtStreamAbort, runtime 06). What a communicator is worth after that, no document says: the
 * reset makes new ones. Graphs hold the communicator that they were made with, so they have to be made anew, too; the
 * model does so after every pass that fails on several cards.
 */
#ifndef TD_NPU_ASCEND_ASCEND_GROUP_H
#define TD_NPU_ASCEND_ASCEND_GROUP_H

#include "npu/ascend/ascend_device.h"

#define TD_ASCEND_GROUP_ADVICE \
    "are all cards of one server and free of other processes, and does HCCL find a network interface (HCCL_IF_IP)?"

/* The table's functions, as in td_npu_ops. A card's stream with sums on it lives as long as the group is used. */
TD_NODISCARD td_status td_ascend_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err);
void                   td_ascend_group_destroy(td_npu_group *g);
void                   td_ascend_group_abort(td_npu_group *g);
void                   td_ascend_group_reset(td_npu_group *g);

/**
 * Before a collective, or a graph that holds some, is given to a card's stream: until the leave, an abort waits.
 * Afterwards it finds the stream and stops it.
 * @param stream NULL: it is captured, so nothing runs on it that would have to be stopped.
 * @return TD_EDEVICE: the group is aborted, and there is nothing to leave.
 */
TD_NODISCARD td_status td_ascend_group_enter(td_npu_group *g, const td_ascend_npu *d, td_acl_stream stream);
void                   td_ascend_group_leave(td_npu_group *g, const td_ascend_npu *d);

/** All that the card's stream was given has run: an abort leaves it alone. */
void td_ascend_group_idle(td_npu_group *g, const td_ascend_npu *d);

/** How many cards it has; 0: g is NULL. */
uint32_t td_ascend_group_cards(const td_npu_group *g);
bool     td_ascend_group_has(td_npu_group *g, const td_ascend_npu *d);
/** Whether a sum is a collective that gathers the parts of all cards, to be added by the caller. */
bool td_ascend_group_gathers(const td_npu_group *g);

/* Collectives, between enter and leave. TD_EDEVICE: HCCL has refused, which is in the log. */

/** The sum of n bf16 of all cards; where the group gathers, [cards, n] parts instead. */
TD_NODISCARD td_status td_ascend_group_sum(td_npu_group *g, const td_ascend_npu *d, td_acl_stream stream, const void *send,
                                           void *receive, size_t n);
/** n words of device memory become those of the group's first card. */
TD_NODISCARD td_status td_ascend_group_broadcast(td_npu_group *g, const td_ascend_npu *d, td_acl_stream stream, void *at,
                                                 size_t n);

#endif
