/*
 * What the stand-ins for vendors' libraries share: refusing with a sentence, failures on demand, memory that the host cannot
 * reach, which operations are ordered, and in which order a graph's nodes run.
 *
 * DESIGN. Files of this folder are compiled into each stand-in, which says by STANDIN_DOCUMENTS who it is and where the
 * rules that are checked here are written. One lock guards all bookkeeping.
 */
#ifndef TD_TESTS_STANDIN_PARTS_H
#define TD_TESTS_STANDIN_PARTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_EXPORT __attribute__((visibility("default")))

/** Whose stand-in it is, and the vendor's documents behind the rules that all stand-ins have. */
typedef struct {
    const char *name;        /* "ascend": of its sentences */
    const char *order;       /* streams are ordered by events only */
    const char *free_device; /* what is freed, and when; what was freed is not used */
    const char *free_pinned;
    const char *graph_memory; /* lives as long as the graph */
} standin_documents;
extern const standin_documents STANDIN_DOCUMENTS;

/* ---- standin_base.c: refusing, settings ----------------------------------------------------------- */

/** A rule is broken: its sentence and its document on stderr, then SIGABRT. */
STANDIN_EXPORT _Noreturn void standin_refuse(const char *document, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** A number of the environment. */
STANDIN_EXPORT uint64_t standin_setting(const char *variable, uint64_t otherwise);
/** Failures on demand: whether this is the time, counted in *asked from 1, that the variable names. */
bool                   standin_nth(const char *variable, _Atomic uint64_t *asked);
extern pthread_mutex_t standin_mutex;
STANDIN_EXPORT void    standin_lock(void);
STANDIN_EXPORT void    standin_unlock(void);
STANDIN_EXPORT bool    standin_locked(void);         /* takes the lock; true */
STANDIN_EXPORT void    standin_unlocked(bool *lock); /* gives it back */
/** The lock, up to the end of the block. */
#define STANDIN_LOCKED __attribute__((cleanup(standin_unlocked), unused)) bool locked_ = standin_locked()
/** Handles are kept when they are dead, so that one that is used afterwards is told from one that was never there. Under the
 * lock. */
STANDIN_EXPORT void standin_keep(void *thing);

/* ---- standin_order.c --------------------------------------------------------------------------- */

#define STANDIN_LINES_MAX 1024 /* streams, and streams inside captures, at a time */

/** For each line the operation up to which everything has happened before. */
typedef struct {
    uint32_t seen[STANDIN_LINES_MAX];
} standin_clock;

/** One use of memory by an operation. Two indexed uses of the same memory (slots of a cache) are taken to be of different
 * places. */
typedef struct {
    const void *at; /* device address, pinned address, or the address of a thing that is used like memory */
    size_t      bytes;
    bool        write, indexed;
    bool        is_exchange; /* a kernel says itself, while it runs, what of it is used */
    int32_t     device;      /* whose stream it is on. Two devices' uses are not compared: 0 where all are */
} standin_use;

typedef struct standin_history standin_history; /* of one piece of memory */

/* All under the lock. */
uint32_t standin_line_take(void);
void     standin_line_give(uint32_t line);
/** The next operation of a line: its number. */
uint32_t standin_line_step(uint32_t line, standin_clock *clock);
void     standin_clock_merge(standin_clock *into, const standin_clock *from);
/** The host has waited for what the clock has seen: everything that is enqueued from now on comes after it. */
void standin_host_saw(const standin_clock *clock);
void standin_host_into(standin_clock *clock);
/** Refuses when another line's use of the same bytes is not ordered before. */
void standin_used(standin_history **history, const standin_use *use, uint32_t line, uint32_t step,
                  const standin_clock *clock, const char *what);
void standin_history_free(standin_history *h);

/* ---- standin_memory.c ---------------------------------------------------------------------------- */

typedef struct {
    char            *given, *real; /* the same for pinned memory */
    size_t           bytes;
    uint64_t         id;                    /* never used twice */
    int32_t          device;                /* -1: pinned memory */
    uint32_t         in_flight;             /* operations that are enqueued and use it */
    uint32_t         in_graphs;             /* captured operations that use it */
    bool             adopted;               /* the caller's own, until it is removed */
    bool             is_told;               /* a kernel has said what it uses of it: all that runs is in run_history */
    standin_history *history, *run_history; /* of what is enqueued, and of what has run */
} standin_memory;

/** The piece that holds all of it. @return NULL: none does. Under the lock. */
STANDIN_EXPORT standin_memory *standin_memory_of(const void *at, size_t bytes);
/** The same by where it really is. */
standin_memory *standin_memory_of_real(const void *real, size_t bytes);
/** Where device or pinned memory really is; refuses what is in no live piece. Takes the lock. */
STANDIN_EXPORT void *standin_real(const void *at, size_t bytes, const char *what);
/** A piece of TD_STANDIN_MEMORY bytes of a device, -1 pinned. @return false: it does not fit, and why says so. */
bool standin_memory_add(int32_t device, size_t bytes, void **out, char why[256]);
/** Pinned memory that the caller has already. @return false: some of it is pinned. Takes the lock. */
bool   standin_memory_adopt(void *at, size_t bytes);
void   standin_memory_remove(void *at, bool pinned); /* takes the lock */
size_t standin_memory_bytes(int32_t device);         /* -1: pinned */
size_t standin_memory_room(void);                    /* of a device, for this process: what others leave */

/* ---- standin_work.c: operations on streams, nodes of graphs --------------------------------------- */

struct standin_op; /* each stand-in's own */

/** A stream's random numbers: their state, of TD_STANDIN_SEED, is another for each call. Under the lock. */
uint64_t standin_random_start(void);
uint64_t standin_random(uint64_t *state);
/** Sometimes sleep, TD_STANDIN_DELAY_US at most. */
void standin_delay(uint64_t *random);

/** The memory that an operation uses is held by it, by 1, or no longer, by -1: while it is enqueued, or captured. Under the
 * lock, like the next. */
void standin_hold(const standin_use *uses, size_t n, bool captured, int by);
/** standin_used of each that is in live memory and no exchange. @return whether all are */
bool standin_used_all(const standin_use *uses, size_t n, uint32_t line, uint32_t step, const standin_clock *clock,
                      const char *what);

#define STANDIN_BRANCHES_MAX 8 /* captured streams of one capture, the first is where it began */

typedef struct {
    struct standin_op *op;
    uint32_t           branch;
    size_t             after; /* a wait: one more than the node that records; 0: none */
} standin_node;

/** A way through n nodes that the order of branches and their waits allow, picked at random. */
typedef struct {
    const standin_node *nodes;
    size_t              n, n_branches, ran;
    size_t              next[STANDIN_BRANCHES_MAX];
    bool               *done;
    bool (*waits)(const struct standin_op *op); /* or NULL: a node that waits is taken where no other can be */
} standin_walk;

standin_walk standin_walk_begin(const standin_node *nodes, size_t n, size_t n_branches);
/** @return the next node, n behind the last: the walk is over then. */
size_t standin_walk_next(standin_walk *w, uint64_t *random);

#endif
