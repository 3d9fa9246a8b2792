/* Streams and captures from the inside: what launching blocks has to know of them. */
#ifndef TD_NPU_ASCEND_ASCEND_STREAM_H
#define TD_NPU_ASCEND_ASCEND_STREAM_H

#include "npu/ascend/ascend_step.h"

#define TD_ASCEND_STEPS_MAX 8 /* that are kept beside each other */

/** The steps that a capture, or a stream outside of captures, has been given. */
typedef struct {
    td_ascend_step *at[TD_ASCEND_STEPS_MAX];
    size_t          n;
} td_ascend_steps;

/** An attention in a capture: a task group of one operation, prepared anew when lengths have changed. */
typedef struct {
    const td_npu_block *block;
    td_ascend_step     *step;
    td_acl_task_group   group;
    char               *workspace_at; /* that it was captured with, and its bytes: an update can have no other */
    size_t              workspace_bytes;
} td_ascend_attention;

struct td_npu_graph {
    td_acl_graph         graph;
    uint64_t             down_bytes, up_bytes; /* that one launch copies */
    td_ascend_steps      steps;
    td_ascend_attention *attentions; /* [n_attentions] */
    size_t               n_attentions, attentions_room;
    td_npu_group        *group;    /* of the sums over cards that it holds; NULL: none */
    bool                 applied;  /* the lengths of its steps, by updates that have not failed */
    uint32_t             failures; /* of the stream when they were applied */
};

struct td_npu_stream {
    td_ascend_npu   *device;
    td_acl_stream    stream;
    td_npu_graph    *capture; /* or NULL */
    td_npu_group    *group;   /* of sums that may be under way on it; NULL: none */
    td_ascend_steps  steps;   /* of what is enqueued outside of captures */
    uint32_t         failures;
    pthread_t        reporter;
    _Atomic bool     stop;
    _Atomic uint32_t polls; /* of the reporter, that have ended */
};

/** A call has given the card work on this stream; what is recorded only is none. */
static inline void td_ascend_launched(td_npu_stream *s) {
    if (!s->capture) td_card_count(&s->device->given.launches);
}

void td_ascend_steps_close(td_ascend_npu *d, td_ascend_steps *l);

/** The lengths of a graph's steps as they are now, in stream order before its next launch (ascend_block.c). */
TD_NODISCARD td_status td_ascend_graph_apply(td_npu_stream *s, td_npu_graph *g);

#endif
