/*
 * A stand-in for the libraries of CANN: it computes in plain C what the documents say, and refuses what they forbid.
 *
 * DESIGN. Five libraries with the vendor's file names and symbols, made of these files:
 *   libascendcl.so   standin_runtime.c  the runtime's functions: checks, then the parts below
 *                    standin_stream.c   streams, each a thread with a queue, delayed at random; events; callbacks
 *                    standin_graph.c    captures, task groups and their updates
 *                    ../parts/          memory that the host cannot reach; which operations are ordered
 *   libnnopbase.so   standin_meta.c     tensors and executors
 *   libopapi.so      standin_op_*.c     the operations
 *   libhccl.so       standin_hccl.c     sums over the cards of this process
 *   libdcmi.so       standin_dcmi.c     the driver's: temperatures
 * Every rule names its document (the repositories that npu/ascend/acl_types.h names). Whoever breaks one ends the process by
 * SIGABRT with one sentence on stderr. It is stricter than the vendor's libraries, which leave most of this undefined; where
 * a document leaves room, the narrower reading is taken. What the vendor reports at run time for reasons that are not the
 * caller's fault (no memory) is a status here, too. It was written from the documents before the backend that it judges. No
 * Ascend hardware was at hand: it shows that the rules as written are kept, not that a card agrees.
 *
 * One lock guards all bookkeeping; kernels run without it.
 *
 * Environment, with defaults:
 *   TD_STANDIN_SEED=1           seed of random delays
 *   TD_STANDIN_DEVICES=2        cards
 *   TD_STANDIN_MEMORY           bytes of a card; 2 GiB
 *   TD_STANDIN_OTHERS=0         bytes of it that other processes use
 *   TD_STANDIN_SOC=Ascend910B4  the cards' generation
 *   TD_STANDIN_CANN=9.1.0       version of CANN
 *   TD_STANDIN_POLL_MS=5000     how long a callback may lie unfetched
 *   TD_STANDIN_CONNECT_MS=2000  how far apart the cards of a communicator may come to a call that needs all of them
 *   TD_STANDIN_DELAY_US=100     the longest delay; 0: none
 *   TD_STANDIN_FAIL=n           the n-th call that can fail for no fault of the caller fails; 0: aclFinalize
 *                               prints their number
 *   TD_STANDIN_FAIL_OP=n        the n-th kernel or copy that begins on a stream fails
 *   TD_STANDIN_STATUS           the status of these failures
 *   TD_STANDIN_LOST=PATH        while the file exists, the cards are lost, and every call that can fail does
 *   TD_STANDIN_LOG=PATH         the names of each capture's operations are appended to this file, a line a capture
 *   TD_STANDIN_CALLS=PATH       each call with other types, shapes or values than before is appended to this file
 *   TD_STANDIN_LACKS=OP:TYPE    GetWorkspaceSize of this operation fails where an argument is of this type
 *   TD_STANDIN_DRY=1            calls are checked, and kernels compute nothing
 *   TD_STANDIN_CLOCK=PATH       what a card that had nothing to do waited for updates is appended to this file, a line a
 *                               replay, on a clock on which an update takes the host TD_STANDIN_UPDATE_US=60, a copy to the card
 *                               that it waits for TD_STANDIN_COPY_US=20, and a kernel
 *                               takes the card TD_STANDIN_KERNEL_US=13, and nothing else takes time
 */
#ifndef TD_TESTS_ASCEND_STANDIN_H
#define TD_TESTS_ASCEND_STANDIN_H

#include <pthread.h>
#include <stdatomic.h>

#include "npu/ascend/acl_api.h"
#include "npu/ascend/aclnn_api.h"
#include "tests/standins/parts/standin_parts.h"

/* The vendor's symbols, as we declare them: a definition that differs does not compile. */
#define STANDIN_DECLARE(symbol, without, since, document, result, parameters) STANDIN_EXPORT result symbol parameters;
TD_ACL_RUNTIME(STANDIN_DECLARE)
TD_ACL_META(STANDIN_DECLARE)
TD_ACL_HCCL(STANDIN_DECLARE)
#undef STANDIN_DECLARE
#define STANDIN_DECLARE(op, ladder, document, ...)                                                          \
    STANDIN_EXPORT td_aclnn_status op##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspace_bytes,             \
                                                        td_acl_executor **executor);                        \
    STANDIN_EXPORT td_aclnn_status op(void *workspace, uint64_t workspace_bytes, td_acl_executor *executor, \
                                      td_acl_stream stream);
TD_ACLNN_OPS(STANDIN_DECLARE)
#undef STANDIN_DECLARE

/* ---- refusing ---------------------------------------------------------------------------------- */

/** A failure that is nobody's fault, for aclGetRecentErrMsg of this thread. @return status */
STANDIN_EXPORT td_acl_status standin_fail(td_acl_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** The caller asks before it does anything: whether TD_STANDIN_FAIL wants this call to fail. Sets the words for
 * aclGetRecentErrMsg. */
STANDIN_EXPORT bool standin_fails(const char *call);
/** The same for an operation that comes up on a stream, and TD_STANDIN_FAIL_OP. */
bool standin_op_fails(void);
/** The status of what fails like this; `usual` where nothing asks for another. */
td_acl_status standin_failure(td_acl_status usual);

/* ---- contexts, streams, operations --------------------------------------------------------------- */

typedef struct standin_context standin_context;
typedef struct standin_stream  standin_stream;
typedef struct standin_event   standin_event;
typedef struct standin_graph   standin_graph;
typedef struct standin_op      standin_op;

struct standin_context {
    int32_t  device;
    bool     alive, is_default;
    uint32_t n_streams;
    uint64_t host_us; /* of the clock: that the host's thread has come to */
    uint32_t copies;  /* to the card that it has waited for since a capture was run */
};

typedef enum {
    STANDIN_OP_KERNEL,
    STANDIN_OP_COPY,
    STANDIN_OP_SIGNAL,
    STANDIN_OP_CALLBACK,
    STANDIN_OP_GRAPH,
    STANDIN_OP_COLLECTIVE,
    STANDIN_OP_GATE /* waits for an external event, or resets it */
} standin_op_kind;

#define STANDIN_USES_MAX 40
struct standin_op {
    const char     *name;
    standin_op_kind kind;
    void (*run)(standin_op *op, standin_stream *s); /* on the stream's thread, without the lock, any number of times */
    void (*drop)(standin_op *op);                   /* frees payload; may be NULL */
    void (*discard)(standin_op *op);                /* its stream was aborted before it ran, without the lock; may be NULL */
    void          *payload;
    uint32_t       refs;
    size_t         n_uses;
    standin_use    uses[STANDIN_USES_MAX];
    standin_event *records, *waits; /* the event that it records or waits for, while it is enqueued */
    bool           has_workspace;   /* then the last use */
    standin_event *gate, *reset;    /* the external event that it waits for, or resets */
};

typedef struct standin_entry {
    struct standin_entry *next;
    standin_op           *op;
    uint32_t              number; /* of the stream's operations, from 1 */
} standin_entry;

struct standin_stream {
    standin_context       *context;
    pthread_t              thread;
    pthread_cond_t         more;
    standin_entry         *first, *last;
    uint32_t               enqueued, done;
    _Atomic uint32_t       current, aborted; /* the operation that runs; up to which they are aborted */
    td_acl_status          failure;          /* of an operation since the last synchronisation */
    bool                   closing, alive;
    uint32_t               line;
    standin_clock          clock;
    uint64_t               random;
    bool                   is_subscribed;
    uint64_t               subscriber;
    uint32_t               callbacks; /* given to it and not finished */
    standin_graph         *capture;   /* that it is captured into */
    bool                   in_update;
    struct standin_update *update;
    uint64_t               device_us; /* of the clock: when what it has run was done */
};

struct standin_event {
    bool            alive;
    uint32_t        flags;
    standin_stream *stream; /* of the last record outside captures */
    uint32_t        number;
    standin_clock   clock;
    standin_graph  *capture; /* that the last record was captured into */
    size_t          node;
    /* of an external one, a flag of the card: */
    bool            is_external, is_set;
    bool            is_recorded; /* by what is enqueued: a record that no run of a capture has been given */
    bool            is_stale;    /* a run that was stopped may have left it set */
    uint32_t        in_graphs;
    standin_stream *awaited; /* a run of a capture on this stream waits for a record that is not enqueued yet */
    uint64_t        set_us;  /* of the clock */
};

bool standin_capture_open(const standin_graph *g);

/** What a call is, for the rules of contexts, callbacks and captures. */
typedef enum {
    STANDIN_ANYWHERE = 0,
    STANDIN_NEEDS_CONTEXT = 1,
    STANDIN_NOT_IN_CALLBACK = 2, /* allocates, frees, synchronises or launches */
    STANDIN_SYNCHRONISES = 4,
    STANDIN_UNSAFE = 8, /* in captures, as their mode has it */
} standin_call_kind;
#define STANDIN_LAUNCHES (STANDIN_NEEDS_CONTEXT | STANDIN_NOT_IN_CALLBACK)

/** The first line of every function. @return the thread's context, or NULL where the kind needs none and there is none. */
STANDIN_EXPORT standin_context *standin_enter(const char *call, int kind);
/** A live stream of the thread's context. */
STANDIN_EXPORT standin_stream *standin_stream_of(td_acl_stream stream, const char *call);

STANDIN_EXPORT standin_op *standin_op_new(const char *name, standin_op_kind kind,
                                          void (*run)(standin_op *, standin_stream *));
/** For what waits on a stream's thread: the operation that runs is aborted. Without the lock. */
STANDIN_EXPORT bool standin_is_aborted(const standin_stream *s);
STANDIN_EXPORT void standin_op_use(standin_op *op, const void *at, size_t bytes, bool write, bool indexed);
/** Enqueue, or record into the stream's capture or update. Takes the reference. */
STANDIN_EXPORT void standin_submit(standin_stream *s, standin_op *op);
void                standin_op_unref(standin_op *op); /* under the lock */

/* standin_stream.c, for standin_runtime.c and standin_graph.c; all take the lock unless it says otherwise */
standin_stream *standin_stream_new(standin_context *c);
void            standin_stream_delete(standin_stream *s);
td_acl_status   standin_stream_wait(standin_stream *s);
void            standin_enqueue(standin_stream *s, standin_op *op); /* under the lock */
td_acl_status   standin_subscribe(uint64_t thread, standin_stream *s);
td_acl_status   standin_unsubscribe(uint64_t thread, standin_stream *s);
td_acl_status   standin_process_report(int32_t timeout_ms);
standin_op     *standin_callback_op(standin_stream *s, td_acl_callback fn, void *arg, td_acl_blocking blocking);
bool            standin_in_callback(void);
standin_op     *standin_record_op(standin_event *e);
standin_op     *standin_wait_op(standin_event *e);
bool            standin_event_done(const standin_event *e);        /* under the lock */
void            standin_run_op(standin_op *op, standin_stream *s); /* with a delay before */
void            standin_stream_abort(standin_stream *s);
standin_op     *standin_gate_op(standin_event *e);
standin_op     *standin_reset_op(standin_event *e);

/* standin_graph.c; under the lock */
void standin_capture_add(standin_stream *s, standin_op *op);
/** An external event is recorded on s by what is enqueued there. */
void standin_gate_recorded(standin_event *e, standin_stream *s);
/** Refuses to wait for a stream on which a run waits for an event that nobody has recorded. */
void standin_gates_check(const standin_stream *s, const char *call);
/** The stream was aborted: nothing on it waits for events now. */
void standin_gates_aborted(const standin_stream *s);
void standin_update_add(standin_stream *s, standin_op *op);
/** Refuses a call that captures forbid now. */
void     standin_capture_check(const char *call, int kind, const standin_context *c);
void     standin_check_event(const standin_event *e, const char *call);
uint32_t standin_graphs_alive(void);

#endif
