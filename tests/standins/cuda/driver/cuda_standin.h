/*
 * A stand-in for the CUDA driver: it does on the CPU what the manual says, and refuses what it forbids.
 *
 * DESIGN. One library with the vendor's file name and symbols, libcuda.so.1, made of these files:
 *   cuda_standin_driver.c  start, cards, contexts, memory, copies
 *   cuda_standin_stream.c  streams, each a thread with a queue, delayed at random; events; host functions
 *   cuda_standin_value.c   words that streams write and wait for
 *   cuda_standin_graph.c   captures, graphs and executable graphs
 *   cuda_standin_module.c  modules and launches: kernels that run on the CPU (cuda_launch.h)
 *   cuda_standin_peer.c    access between cards; the order of their kernels
 *   cuda_standin_list.c    captured graphs, written to a file
 * and libcublasLt.so.12 beside it, in ../cublaslt, which does its work by what is exported here.
 *   ../parts/              memory that the host cannot reach; which operations are ordered
 * Every rule names its function in the "CUDA Driver API" reference manual, or its section of the "CUDA C++ Programming
 * Guide". Whoever breaks one ends the process by SIGABRT with one sentence on stderr. It is stricter than the driver, which
 * waits or returns a status in many of these cases. Where the manual leaves room, the narrower reading is taken, and what a
 * program never has a reason to do is refused. What the driver reports for reasons that are not the caller's fault (no
 * memory, an image of another card, a kernel that failed) is a status here, too. It was written from the manual before the
 * backend that it judges, without a card: it shows that the rules as written are kept, not that a card agrees.
 *
 * What a kernel may write is what its parameters do not say const to. What it does not see: two kernels on two streams that
 * both write into the same memory without an event between them, because a launch does not say where. All others are seen.
 *
 * What cuModuleLoadData takes is in cuda_standin_image.h.
 *
 * One lock guards all bookkeeping; operations run without it.
 *
 * Environment, with defaults:
 *   TD_STANDIN_SEED=1            seed of random delays
 *   TD_STANDIN_DEVICES=2         cards
 *   TD_STANDIN_MEMORY            bytes of a card; 2 GiB
 *   TD_STANDIN_OTHERS=0          bytes of it that other processes use
 *   TD_STANDIN_ARCH=90           the compute capability
 *   TD_STANDIN_CUDA=12080        the driver's version
 *   TD_STANDIN_DELAY_US=100      the longest delay; 0: none
 *   TD_STANDIN_INIT=0            the status of cuInit
 *   TD_STANDIN_FAIL=n            the n-th call that can fail for no fault of the caller fails; 0: the last context's release
 *                                prints their number
 *   TD_STANDIN_FAIL_CALLS=PATH   a file whose lines number the calls that fail, as TD_STANDIN_FAIL does
 *   TD_STANDIN_FAIL_OP=n         the n-th kernel or copy that begins on a stream fails, and with it its context
 *   TD_STANDIN_LOST=PATH         while the file exists, every kernel and copy fails like that
 *   TD_STANDIN_STATUS            the status of these failures; 999 for calls, 719 for operations
 *   TD_STANDIN_REFUSE_CONTEXT=0  1: no context is given, with TD_STANDIN_STATUS, 46
 *   TD_STANDIN_64_BIT=1          whether 64-bit words can be waited for
 *   TD_STANDIN_REGISTER=1        whether memory of the process can be pinned
 *   TD_STANDIN_KERNEL_LIMIT=0    whether the driver says that it ends kernels that run long; none is ended here
 *   TD_STANDIN_WAIT_MS=60000     the longest that a stream waits for a word
 *   TD_STANDIN_PEERS=8           cards to whose memory a card can be given access
 *   TD_STANDIN_MULTIPROCESSORS=4 of a card
 *   TD_STANDIN_GRAPHS=PATH       a file to which the nodes of every capture that ends are added (cuda_standin_list.c)
 *   TD_STANDIN_DRY=0             1: kernels are launched and checked, but none runs that exchanges nothing with others. For
 *                                lists of graphs of large models: what is computed means nothing
 */
#ifndef TD_TESTS_CUDA_STANDIN_H
#define TD_TESTS_CUDA_STANDIN_H

#include <stdatomic.h>
#include <stdio.h>

#include "npu/cuda/cuda_api.h"
#include "tests/standins/cuda/cuda_launch.h"
#include "tests/standins/cuda/driver/cuda_standin_image.h"
#include "tests/standins/parts/standin_parts.h"

/* The vendor's symbols, as we declare them: a definition that differs does not compile. */
#define STANDIN_DECLARE(function, symbol, module, parameters) STANDIN_EXPORT td_cu_status symbol parameters;
TD_CUDA_DRIVER(STANDIN_DECLARE)
#undef STANDIN_DECLARE

/* ---- things that handles point to ---------------------------------------------------------------- */

struct CUctx_st {
    int                   device;
    unsigned              retained;
    unsigned              n_things; /* streams, events, modules, graphs of it */
    uint32_t              peers;    /* a bit for each device whose memory it has access to */
    _Atomic(td_cu_status) failure;  /* of an operation: every later call returns it */
};

typedef enum {
    STANDIN_KERNEL,
    STANDIN_COPY,
    STANDIN_HOST,
    STANDIN_RECORD,
    STANDIN_WAIT,
    STANDIN_GRAPH,
    STANDIN_WRITE_VALUE,
    STANDIN_WAIT_VALUE
} standin_op_kind;

typedef struct standin_op {
    const char     *name; /* the manual's name of the call */
    standin_op_kind kind;
    void (*run)(struct standin_op *op, td_cu_stream s);   /* on the stream's thread, without the lock, any number of times */
    void (*drop)(struct standin_op *op);                  /* frees payload, under the lock; may be NULL */
    void (*write)(const struct standin_op *op, FILE *to); /* its line of a graph's list; NULL: name, and bytes of a copy */
    void        *payload;
    uint32_t     refs;
    size_t       n_uses;
    standin_use  uses[TD_CUDA_ARGS_MAX];
    td_cu_event  event;  /* that it records or waits for, while it is enqueued */
    td_cu_module module; /* of its kernel */
} standin_op;

typedef struct standin_entry {
    struct standin_entry *next;
    standin_op           *op;
    uint64_t              number; /* of the stream's operations, from 1 */
    standin_clock         host;   /* what the host had seen when it was enqueued */
} standin_entry;

struct CUstream_st {
    td_cu_context  context;
    pthread_t      thread;
    pthread_cond_t more;
    standin_entry *first, *last;
    uint64_t       enqueued, done;
    bool           alive, closing;
    uint32_t       line, run_line;
    standin_clock  clock, run_clock; /* of what is enqueued, and of what has run */
    uint64_t       random;
    td_cu_graph    capture; /* that it is captured into */
};

struct CUevent_st {
    td_cu_context context;
    bool          alive;
    td_cu_stream  stream; /* of the last record outside captures */
    uint64_t      number;
    standin_clock clock, run_clock;
    td_cu_graph   capture; /* that the last record was captured into */
    size_t        node;
};

struct CUmod_st {
    td_cu_context context;
    bool          alive;
    void         *library;
    const char *(*mistake)(void);
    uint32_t          in_use; /* launches that are enqueued or captured */
    struct CUfunc_st *kernels;
};

struct CUfunc_st {
    struct CUfunc_st     *next;
    td_cu_module          module;
    const td_cuda_kernel *record;
    unsigned              shared_max; /* dynamic shared memory of a block */
};

/* ---- cuda_standin_driver.c -------------------------------------------------------------------------- */

/** What a call is, for the rules of contexts, host functions and captures. */
typedef enum {
    STANDIN_ANYWHERE = 0,
    STANDIN_NEEDS_CONTEXT = 1,
    STANDIN_SYNCHRONISES = 2, /* waits, or looks whether something is done */
    STANDIN_UNSAFE = 4,       /* in captures, as their mode has it */
    STANDIN_RELEASES = 8,     /* does its work in a context that has failed */
} standin_call_kind;

/** The first line of every function. @return what it has to return at once, or TD_CUDA_SUCCESS */
STANDIN_EXPORT td_cu_status standin_enter(const char *call, int kind);
/** What a call that has done its work returns: the failure of the thread's context, if it has one. */
STANDIN_EXPORT td_cu_status  standin_left(void);
STANDIN_EXPORT td_cu_context standin_current(void);
/** What cuDeviceGetAttribute tells of any card. */
int standin_card_fact(td_cu_device_fact fact);
/** Refuses a device that cuDeviceGet has not given. */
void standin_check_device(td_cu_device device, const char *call);
/** The caller asks before it does anything: what TD_STANDIN_FAIL and TD_STANDIN_FAIL_CALLS want this call to return. */
STANDIN_EXPORT td_cu_status standin_fails(const char *call);
bool                        standin_op_fails(td_cu_context c);

#define STANDIN_ENTER(kind)                                  \
    do {                                                     \
        td_cu_status enter_ = standin_enter(__func__, kind); \
        if (enter_ != TD_CUDA_SUCCESS) return enter_;        \
    } while (0)
#define STANDIN_CAN_FAIL STANDIN_CAN_FAIL_OF(__func__)
#define STANDIN_CAN_FAIL_OF(call)                     \
    do {                                              \
        td_cu_status fails_ = standin_fails(call);    \
        if (fails_ != TD_CUDA_SUCCESS) return fails_; \
    } while (0)

/* ---- cuda_standin_stream.c ---------------------------------------------------------------------------- */

/** A live stream of the thread's context. */
STANDIN_EXPORT td_cu_stream standin_stream_of(td_cu_stream s, const char *call);
STANDIN_EXPORT standin_op  *standin_op_new(const char *name, standin_op_kind kind, void (*run)(standin_op *, td_cu_stream));
STANDIN_EXPORT void         standin_op_use(standin_op *op, const void *at, size_t bytes, bool write, bool indexed);
/** Enqueue, or record into the stream's capture. Takes the reference. */
STANDIN_EXPORT void standin_submit(td_cu_stream s, standin_op *op);
void                standin_run_op(standin_op *op, td_cu_stream s); /* with a delay before */
bool                standin_in_host_function(void);
/** All under the lock. */
void standin_enqueue(td_cu_stream s, standin_op *op);
void standin_op_unref(standin_op *op);
void standin_wait_progress(void);

/* ---- cuda_standin_value.c --------------------------------------------------------------------------------- */

/** Whether 64-bit words can be written and waited for. */
bool standin_can_64_bit(void);
/** Whether the word has come that an operation (STANDIN_WAIT_VALUE) waits for. */
bool standin_value_came(const standin_op *op);

/* ---- cuda_standin_peer.c -------------------------------------------------------------------------------- */

/** Whether kernels of a context may use a device's memory. Under the lock. */
bool standin_reaches(const struct CUctx_st *c, int device);
/** An operation comes up: its uses of memory that several cards reach are held against those that have run. */
void standin_ran(const standin_op *op, td_cu_stream s);
/** What the kernel that runs on s does to memory that other cards' kernels use, too. */
void standin_exchanged(td_cu_stream s, const void *at, size_t bytes, td_cuda_exchange what);
/** Memory is freed: words in it are no more. Under the lock. */
void standin_signals_forget(const void *at, size_t bytes);

/* ---- cuda_standin_list.c -------------------------------------------------------------------------------- */

/** Add a graph's nodes to the file that TD_STANDIN_GRAPHS names. Under the lock. */
void standin_graph_write(const standin_node *nodes, size_t n);

/* ---- cuda_standin_graph.c; under the lock --------------------------------------------------------------- */

bool standin_capture_open(const struct CUgraph_st *g);
void standin_capture_add(td_cu_stream s, standin_op *op);
/** Refuses a call that captures forbid now. */
void standin_capture_check(const char *call, int kind, const struct CUctx_st *c);

#endif
