/* A card's streams, what is enqueued on them, doorbells by host calls, and captures: what is the same for all runtimes. */
#ifndef TD_NPU_CARD_CARD_STREAM_H
#define TD_NPU_CARD_CARD_STREAM_H

#include "npu/card/card.h"

#define TD_CARD_BRANCHES 2 /* of a capture, at a time */

/** First member of a backend's td_npu_stream. */
typedef struct {
    td_card       *card;
    td_npu_graph  *capture;                  /* what is being recorded of this stream; or NULL */
    td_npu_stream *trunk;                    /* whose capture this one is a branch of; or NULL */
    td_npu_stream *branch[TD_CARD_BRANCHES]; /* of its capture, that are not joined; or NULL */
} td_card_stream;

/** First member of a backend's td_npu_graph. */
typedef struct {
    uint64_t down_bytes, up_bytes; /* that one launch copies */
} td_card_graph;

/** What records what is enqueued; NULL: it runs. */
static inline td_npu_graph *td_card_recorded(const td_npu_stream *s) {
    const td_card_stream *of = (const td_card_stream *)s;
    return of->trunk ? ((const td_card_stream *)of->trunk)->capture : of->capture;
}

/** Count n calls that gave the card work on this stream. Calls that are only recorded do not count. */
static inline void td_card_launched(td_npu_stream *s, uint32_t n) {
    td_card_stream *of = (td_card_stream *)s;
    if (!td_card_recorded(s)) atomic_fetch_add_explicit(&of->card->given.launches, n, memory_order_relaxed);
}

/** Count bytes that go over the link, to the device or from it. */
static inline void td_card_linked(td_npu_stream *s, td_copy_kind kind, uint64_t bytes) {
    td_card_stream *of = (td_card_stream *)s;
    td_card_graph  *g = (td_card_graph *)td_card_recorded(s);
    bool            down = kind == TD_COPY_H2D;
    if (g)
        *(down ? &g->down_bytes : &g->up_bytes) += bytes;
    else
        atomic_fetch_add_explicit(down ? &of->card->down_bytes : &of->card->up_bytes, bytes, memory_order_relaxed);
}

/* Functions of td_npu_ops. */
TD_NODISCARD td_status td_card_stream_create(td_npu *d, td_npu_stream **out, td_error *err);
void                   td_card_stream_destroy(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_card_stream_sync(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_card_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes,
                                    td_copy_kind kind);
TD_NODISCARD td_status td_card_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
/** Rows go by copies. A ring is a copy of a word to pinned memory, in stream order. */
TD_NODISCARD td_status td_card_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);
/** A wait is a host call that polls the word, which every runtime can do. A card that can wait by itself has a function of
 * its own instead. */
TD_NODISCARD td_status td_card_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);
TD_NODISCARD td_status td_card_graph_begin(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_card_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
TD_NODISCARD td_status td_card_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g);
/** TD_CARD_BRANCHES at a time. For backends whose driver has `follow`. */
TD_NODISCARD td_status td_card_graph_fork(td_npu *d, td_npu_stream *s, td_npu_stream *branch);
TD_NODISCARD td_status td_card_graph_join(td_npu *d, td_npu_stream *s, td_npu_stream *branch);
void                   td_card_graph_destroy(td_npu *d, td_npu_graph *g);

/** The functions of td_npu_ops that a backend over a td_card_driver has of here, bells and branches apart. */
#define TD_CARD_OPS                                                                                                       \
    .report = td_card_report, .stats = td_card_stats_get, .lost = td_card_lost, .alloc = td_card_alloc,                   \
    .free = td_card_free, .host_alloc = td_card_host_alloc, .host_free = td_card_host_free,                               \
    .host_register = td_card_host_register, .host_unregister = td_card_host_unregister,                                   \
    .stream_create = td_card_stream_create, .stream_destroy = td_card_stream_destroy, .stream_sync = td_card_stream_sync, \
    .copy = td_card_copy, .host_call = td_card_host_call, .graph_begin = td_card_graph_begin,                             \
    .graph_end = td_card_graph_end, .graph_launch = td_card_graph_launch, .graph_destroy = td_card_graph_destroy,         \
    .weight_tag = td_card_weight_tag

#endif
