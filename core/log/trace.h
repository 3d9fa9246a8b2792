/*
 * A timeline of what the threads do, as a JSON file that ui.perfetto.dev and chrome://tracing read. It is the JSON array
 * form of the "Trace Event Format", which may lack its end: a killed process leaves a file that loads. docs/tracing.md says
 * what is in it.
 *
 * DESIGN. Every thread writes its events as text into a buffer of its own, made when it first traces; a full buffer goes to
 * the file under one lock. So a thread waits for another at most for the write of one buffer. A buffer has a lock too,
 * which only td_trace_stop and the thread's end ever share with its owner. Threads are called what the system calls them
 * (pthread_setname_np). While nothing is traced, an event costs one branch on a relaxed load.
 */
#ifndef TD_CORE_LOG_TRACE_H
#define TD_CORE_LOG_TRACE_H

#include <stdatomic.h>

#include "tandem.h"

#define TD_TRACE_BYTES_MAX ((uint64_t)1 << 30)

typedef enum { TD_TRACE_DEVICE, TD_TRACE_CPU, TD_TRACE_BRIDGE, TD_TRACE_ENGINE, TD_TRACE_HTTP } td_trace_tier;

/** What an event says. Text is ASCII; it is read during the call. */
typedef struct {
    td_trace_tier tier;
    const char   *name;
    const char   *key[2]; /* what the numbers are; NULL: left out */
    uint64_t      value[2];
} td_trace_label;

/* Stored by start and stop (release): a thread that sees it set (acquire) sees the session. The relaxed loads below only
 * decide whether to look. */
extern atomic_bool td_trace_enabled;

static inline bool td_trace_on(void) {
    return atomic_load_explicit(&td_trace_enabled, memory_order_relaxed);
}

/**
 * Trace into a file, which is made anew. One thread starts traces; any may stop them.
 * @param max_bytes when the file would get longer, tracing ends with a warning; so it does when a write fails.
 * @return TD_EIO with a sentence when the file cannot be written; TD_EINVAL when a trace is under way.
 */
TD_NODISCARD td_status td_trace_start(const char *path, uint64_t max_bytes, td_error *err);
/** Write out what every thread has, and close the file. Nothing when no trace was started. */
void td_trace_stop(void);

uint64_t td_trace_now(void); /* ns of the monotonic clock, never 0 */

/* Called by the inline functions below while a trace is on. */
void td_trace_write_span(uint64_t begin, uint64_t end, const td_trace_label *l);
void td_trace_write_instant(const td_trace_label *l);
void td_trace_write_async(bool begins, uint64_t id, const td_trace_label *l);

/** When a span begins; 0 while nothing is traced. */
static inline uint64_t td_trace_begin(void) {
    return __builtin_expect(td_trace_on(), 0) ? td_trace_now() : 0;
}

/** A span of this thread from begin to end, or to now. Spans of a thread lie apart or one within the other. */
static inline void td_trace_span(uint64_t begin, uint64_t end, const td_trace_label *l) {
    if (__builtin_expect(begin != 0, 0)) td_trace_write_span(begin, end, l);
}

static inline void td_trace_end(uint64_t begin, const td_trace_label *l) {
    if (__builtin_expect(begin != 0, 0)) td_trace_write_span(begin, td_trace_now(), l);
}

/** A moment of this thread. */
static inline void td_trace_instant(const td_trace_label *l) {
    if (__builtin_expect(td_trace_on(), 0)) td_trace_write_instant(l);
}

/** A span that is no thread's: its two ends share tier, name and id, and may come from different threads. */
static inline void td_trace_async_begin(uint64_t id, const td_trace_label *l) {
    if (__builtin_expect(td_trace_on(), 0)) td_trace_write_async(true, id, l);
}

static inline void td_trace_async_end(uint64_t id, const td_trace_label *l) {
    if (__builtin_expect(td_trace_on(), 0)) td_trace_write_async(false, id, l);
}

#endif
