/* Streams of an Ascend card, what is enqueued on them, captures. */
#ifndef TD_NPU_ASCEND_ASCEND_STREAM_H
#define TD_NPU_ASCEND_ASCEND_STREAM_H

#include <pthread.h>

#include "npu/ascend/ascend_step.h"
#include "npu/card/card_stream.h"

#define TD_ASCEND_STEPS_MAX 8 /* that are kept beside each other */

/** The steps that a graph, or a stream outside of captures, has been given. */
typedef struct {
    td_ascend_step *at[TD_ASCEND_STEPS_MAX];
    size_t          n;
} td_ascend_steps;

/** An attention of a graph: a task group of one operation, prepared anew when lengths have changed. In a capture with events
 * it waits for `ready` and resets it. */
typedef struct {
    const td_npu_block *block;
    td_ascend_step     *step;
    td_acl_task_group   group;
    td_acl_event        ready; /* recorded when it has its lengths, each time the graph runs; NULL: it has them before */
    char               *workspace_at; /* that it was captured with, and its bytes: an update can have no other */
    size_t              workspace_bytes;
} td_ascend_attention;

struct td_npu_graph {
    td_card_graph        base; /* first */
    td_acl_graph         graph;
    td_ascend_steps      steps;
    td_ascend_attention *attentions; /* [n_attentions] */
    size_t               n_attentions, attentions_room;
    td_npu_group        *group;    /* of the sums over cards that it holds; NULL: none */
    bool                 applied;  /* the lengths of its steps, by updates that have not failed */
    uint32_t             failures; /* of the stream when they were applied, and the attentions' events reset */
};

struct td_npu_stream {
    td_card_stream   base; /* first */
    td_acl_stream    stream;
    td_npu_group    *group; /* of sums that may be under way on it; NULL: none */
    td_ascend_steps  steps; /* of what is enqueued outside of captures */
    uint32_t         failures;
    td_acl_stream    updates; /* brings graphs their lengths while they run on the other; NULL: that one does, before */
    bool             updated; /* there is something on it */
    pthread_t        reporter;
    _Atomic bool     stop;
    _Atomic uint32_t polls; /* of the reporter, that have ended */
};

static inline td_ascend_npu *td_ascend_of(const td_npu_stream *s) {
    return (td_ascend_npu *)s->base.card;
}

void td_ascend_steps_close(td_ascend_npu *d, td_ascend_steps *l);

/**
 * Before something with sums is given to the stream: an abort either stops it or comes before it. td_ascend_group_leave ends
 * it. A stream that is captured runs nothing, and may not be stopped (runtime 06): there its sums are only refused from the
 * abort on.
 * @return TD_EDEVICE: the group is aborted, and there is nothing to leave.
 */
TD_NODISCARD td_status td_ascend_stream_enter(td_npu_stream *s, td_npu_group *g);

/* Entries of td_card_driver; launches of graphs are in ascend_block.h. */
TD_NODISCARD td_status td_ascend_stream_open(td_npu_stream *s, td_error *err);
void                   td_ascend_stream_close(td_npu_stream *s);
TD_NODISCARD td_status td_ascend_stream_wait(td_npu_stream *s);
TD_NODISCARD td_status td_ascend_copy(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind);
TD_NODISCARD td_status td_ascend_host_call(td_npu_stream *s, td_host_fn fn, void *arg);
TD_NODISCARD td_status td_ascend_capture_begin(td_npu_stream *s);
TD_NODISCARD td_status td_ascend_capture_end(td_npu_stream *s, td_npu_graph *g, bool keep, td_error *err);
void                   td_ascend_graph_close(td_card *c, td_npu_graph *g);

#endif
