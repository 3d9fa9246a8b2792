/*
 * What cards behind a vendor's runtime have in common, written once over a small table of the runtime's calls
 * (td_card_driver).
 *
 * DESIGN. A backend's device, stream and graph begin with a td_card, a td_card_stream and a td_card_graph. The functions
 * here and in card_stream.h fill most of the backend's table td_npu_ops (TD_CARD_OPS names them), and call the runtime by
 * way of td_card_driver. A backend keeps what its vendor alone has: finding and opening the libraries, which statuses mean
 * what and what to advise, operations and kernels, layouts of weights, blocks, and the sum over several cards. Sums have no
 * common half: one vendor's library makes them, and stopping one needs the stream; the other vendor's are kernels of our
 * own, which look at a word.
 *
 * Rules
 *   Context   Functions of td_npu_ops are called by one thread at a time, not always the same (`report`, `stats` and `lost`:
 *             by any at any time), and a runtime knows the card by a context of the calling thread.
 *             So each of these functions calls td_card_enter first, and the driver's entries find the context in place.
 *             Exceptions are `memory`, which the metrics ask and which must tell nobody of a failure, and `graph_close`: both
 *             bind the context themselves. Functions of ours that run on a host thread within a stream (host calls) may not
 *             call the card at all.
 *   Failure   An entry that fails makes the sentence itself, in its vendor's words: in err where it has one, else in the log.
 *             It counts the failure (td_card.given). Entries that give a stream work return TD_EDEVICE whatever the runtime
 *             says, because nothing was enqueued and the pass is over. TD_ENOMEM comes from taking memory only.
 *   Loss      Some failures are for good: the process has lost the card. The place that makes the sentence knows the status,
 *             so it also tells the loss (td_card_loss_tell); so does `memory`. The first sentence is kept. After it, a
 *             failure that goes to the log is not written there again.
 *   Captures  Between begin and end the stream runs nothing; what is enqueued is recorded. The capturing thread may
 *             synchronise no stream and make no copy that waits, so `zero` and `upload` are not called. Whether memory may be
 *             taken depends on the runtime; where it may not, capture_begin makes the scratch large enough first.
 *             A capture is of its thread only: other cards go on. What is recorded counts neither as work given to the card
 *             nor as bytes over the link; each launch of the graph does.
 *   Arenas    A graph holds addresses. So an arena that grows keeps its former memory until the card is closed.
 */
#ifndef TD_NPU_CARD_CARD_H
#define TD_NPU_CARD_CARD_H

#include "npu/card/card_loss.h"
#include "npu/card_meter.h"
#include "npu/npu.h"

typedef struct td_card td_card;

/** What a vendor's runtime does. "The context is bound" below means: to the calling thread, by `enter`. */
typedef struct {
    size_t stream_bytes, graph_bytes; /* of the backend's td_npu_stream and td_npu_graph */

    /* the card */
    /** Bind the card's context to the calling thread. */
    td_status (*enter)(td_card *c);
    /** How much device memory is free and how much there is; both 0 where the runtime does not say. Any thread. */
    void (*memory)(td_card *c, uint64_t *free_bytes, uint64_t *total_bytes);
    /** In degrees Celsius; NAN: nothing tells. Any thread. */
    double (*temperature)(td_card *c);

    /* memory; the context is bound */
    /** Device memory that is not zeroed. @param out NULL on failure. */
    td_status (*take)(td_card *c, size_t bytes, void **out, td_error *err);
    void (*give)(td_card *c, void *p); /* never NULL */
    /** Zero device memory; done when it returns. */
    td_status (*zero)(td_card *c, void *p, size_t bytes, td_error *err);
    /** Copy host memory of any kind to device memory; done when it returns. */
    td_status (*upload)(td_card *c, void *dev, const void *host, size_t bytes, td_error *err);
    /** Host memory that the card copies from and to at full speed, zeroed. @param out NULL on failure. */
    td_status (*pin)(td_card *c, size_t bytes, void **out, td_error *err);
    void (*unpin)(td_card *c, void *p, size_t bytes);
    /** Memory of the caller's becomes such memory, and is the caller's alone again. NULL: the runtime cannot. */
    td_status (*register_host)(td_card *c, void *p, size_t bytes, td_error *err);
    void (*unregister_host)(td_card *c, void *p, size_t bytes);

    /* streams; the context is bound, the stream's td_card_stream is set */
    td_status (*stream_open)(td_npu_stream *s, td_error *err);
    /** Wait for what is on it, and close it. What fails is in the log. */
    void (*stream_close)(td_npu_stream *s);
    /** Wait. @return the first failure of what ran since the last wait. */
    td_status (*stream_wait)(td_npu_stream *s);
    td_status (*copy)(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind);
    /** Call fn(arg) on a host thread when the stream comes there; the stream goes on when fn returns. */
    td_status (*host_call)(td_npu_stream *s, td_host_fn fn, void *arg);

    /* captures; the context is bound */
    td_status (*capture_begin)(td_npu_stream *s);
    /** @param keep false: what was recorded is thrown away; g is closed next, also after a failure. */
    td_status (*capture_end)(td_npu_stream *s, td_npu_graph *g, bool keep, td_error *err);
    /** What follows on s runs behind what is on `other` now. Only in captures of one of the two. NULL: there are no branches. */
    td_status (*follow)(td_npu_stream *s, td_npu_stream *other);
    /** Run what was recorded, in stream order. */
    td_status (*launch)(td_npu_stream *s, td_npu_graph *g);
    /** Give back what the backend has in g besides its td_card_graph. Binds the context itself, if it needs to. */
    void (*graph_close)(td_card *c, td_npu_graph *g);
} td_card_driver;

#define TD_CARD_RETIRED_MAX 64

/** A piece of device memory that grows. What it was before stays until the card is closed: graphs hold its address. */
typedef struct {
    char  *at;
    size_t bytes;
    void  *retired[TD_CARD_RETIRED_MAX];
    size_t n_retired;
} td_card_arena;

/** First member of a backend's device. */
struct td_card {
    td_npu                npu; /* first */
    const td_card_driver *driver;
    td_npu_config         config;               /* its host is NULL */
    void                 *one;                  /* device memory: the word that a ring copies, 1 */
    _Atomic uint64_t      down_bytes, up_bytes; /* over the link, of what was enqueued */
    td_card_meter         given;
    td_card_loss          loss;
    td_card_arena         scratch; /* of blocks; of the thread that calls */
};

/** Bind the card's context to the calling thread. @return TD_EDEVICE: the card has refused, which is in the log. */
TD_NODISCARD static inline td_status td_card_enter(td_card *c) {
    return c->driver->enter(c);
}

/** Set what the runtime is not needed for, in a device of zeros. */
void td_card_init(td_card *c, const td_npu_ops *ops, const td_card_driver *driver, const td_npu_config *config);
/** Take what all cards need of their memory. The context is bound, and stays so. */
TD_NODISCARD td_status td_card_open_memory(td_card *c, td_error *err);
/** Give it back, and the scratch. The context is bound. */
void td_card_close_memory(td_card *c);

/** Device memory that is not zeroed. The context is bound. */
TD_NODISCARD static inline td_status td_card_take(td_card *c, size_t bytes, void **out, td_error *err) {
    return c->driver->take(c, bytes, out, err);
}
/** Give it back; NULL is fine. The context is bound. */
static inline void td_card_give(td_card *c, void *p) {
    if (p) c->driver->give(c, p);
}
/** Copy to device memory; done when it returns, not in captures. The context is bound. */
TD_NODISCARD static inline td_status td_card_upload(td_card *c, void *dev, const void *host, size_t bytes, td_error *err) {
    return c->driver->upload(c, dev, host, bytes, err);
}

/**
 * Device memory with these bytes. The context is bound.
 * @param host of malloc, freed in any case; NULL: there was no memory for it, which the sentence says.
 * @param what "a weight", for that sentence.
 * @param out  NULL on failure.
 */
TD_NODISCARD td_status td_card_send(td_card *c, void *host, size_t bytes, const char *what, void **out, td_error *err);

/**
 * A call of the runtime has failed: count it, and say so, in err where there is one, else in the log, unless the card is
 * lost and the log knows why. Any thread.
 * @return st
 */
td_status td_card_failed(td_card *c, td_status st, td_error *err, const char *format, ...) TD_PRINTF(4, 5);

/** Make an arena at least so large, its contents undefined. The context is bound. @param err NULL: the log has it. */
TD_NODISCARD td_status td_card_arena_grow(td_card *c, td_card_arena *a, size_t bytes, td_error *err);
/** Give back all memory of an arena. The context is bound. */
void td_card_arena_close(td_card *c, td_card_arena *a);

/** Check that these cards can be a group: at most `most`, and each another one. @return TD_EINVAL and a sentence. */
TD_NODISCARD td_status td_card_check_group(td_npu *const *cards, uint32_t n, uint32_t most, td_error *err);

/* Functions of td_npu_ops. */
void                   td_card_report(td_npu *d, td_npu_report *out);
void                   td_card_stats_get(td_npu *d, td_card_stats *out);
bool                   td_card_lost(td_npu *d, td_error *why);
TD_NODISCARD td_status td_card_alloc(td_npu *d, size_t bytes, void **out, td_error *err);
void                   td_card_free(td_npu *d, void *p, size_t bytes);
TD_NODISCARD td_status td_card_host_alloc(td_npu *d, size_t bytes, void **out, td_error *err);
void                   td_card_host_free(td_npu *d, void *p, size_t bytes);
TD_NODISCARD td_status td_card_host_register(td_npu *d, void *p, size_t bytes, td_error *err);
void                   td_card_host_unregister(td_npu *d, void *p, size_t bytes);
/** A card's memory cannot be taken from a file's pages: no weight is exported. */
void td_card_weight_tag(td_npu *d, char tag[TD_NPU_TAG_BYTES]);

#endif
