/*
 * An Ascend card as the contract of npu/npu.h has it, as far as it is there: memory, streams, copies, hand-over, captures.
 * Weights, blocks and groups are not, so no name in npu_open.c opens it; tests do.
 *
 * DESIGN. A card has a context of its own, which every function makes the calling thread's first: threads come and go, and
 * AscendCL knows the card by its thread's context (runtime 05). A stream has a host thread that fetches its callbacks
 * (runtime 12): a host call may block, so no two streams share one. The libraries and aclInit are the process's.
 *
 * Hand-over. A host call is a blocking callback, in captures too. A ring is a copy of a word to pinned memory, in stream
 * order. No documented operation of a 910B lets a stream wait for a word of pinned memory (aclrtValueWait takes device
 * memory, runtime 11-09), so a wait for a bell is a host call that polls it: the form that suits the card is host calls.
 */
#ifndef TD_NPU_ASCEND_ASCEND_DEVICE_H
#define TD_NPU_ASCEND_ASCEND_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "npu/ascend/ascend_loader.h"
#include "npu/npu.h"

typedef struct {
    td_npu                     base; /* first */
    const td_ascend_libraries *l;
    const td_acl              *acl;
    td_npu_config              config;
    int32_t                    card;
    td_acl_context             context;
    td_acl_stream              setup;                /* zeroes memory */
    uint32_t                  *one;                  /* device memory: the word that a ring copies, 1 */
    _Atomic uint64_t           down_bytes, up_bytes; /* over the link, of what was enqueued */
} td_ascend_npu;

/**
 * Open a card.
 * @param config act_dtype must be TD_DT_BF16.
 * @param card [0, number of cards).
 * @return TD_OK; what td_ascend_load returns; TD_EINVAL for a card that there is not; TD_EDEVICE when it cannot be opened;
 * each with a sentence.
 */
TD_NODISCARD td_status td_ascend_npu_open(const td_npu_config *config, int32_t card, td_npu **out, td_error *err);

/** Make the card the calling thread's. */
TD_NODISCARD td_status td_ascend_enter(td_ascend_npu *d);
/** A call of the runtime has failed: status, code and the runtime's words as a sentence, in err where there is one, else in
 * the log. */
td_status td_ascend_failed(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err);

/* The table's functions of ascend_stream.c: as in td_npu_ops. */
TD_NODISCARD td_status td_ascend_stream_create(td_npu *d, td_npu_stream **out, td_error *err);
void                   td_ascend_stream_destroy(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_ascend_stream_sync(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_ascend_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes,
                                      td_copy_kind kind);
TD_NODISCARD td_status td_ascend_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
TD_NODISCARD td_status td_ascend_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell);
TD_NODISCARD td_status td_ascend_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell);
TD_NODISCARD td_status td_ascend_graph_begin(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_ascend_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
TD_NODISCARD td_status td_ascend_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g);
void                   td_ascend_graph_destroy(td_npu *d, td_npu_graph *g);

#endif
