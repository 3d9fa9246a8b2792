/*
 * Sums over the cards of one process. A collective ends when every rank of its communicator has come to it, in the same
 * order on each. Source: hccl comm_op_interface/HcclAllReduce, HcclAllGather, HcclBroadcast, user_guide/constraints,
 * hccl_env/HCCL_CONNECT_TIMEOUT; comm_mgr_c and aclgraph/aclgraph_introduction of hicann/hcomm. What is stricter here:
 *   - the first collective of a kind sets up its links, so the call itself waits up to TD_STANDIN_CONNECT_MS for all ranks;
 *   - a captured collective meets those of the same capture of the other ranks only: the n-th one of each that has any;
 *   - a captured collective is of no more bytes than one of its kind that came before it, outside of captures: what a way
 *     of summing needs is built when it is used first, and the ways are chosen by size;
 *   - captures that hold a collective are destroyed before its communicator;
 *   - a communicator of which a collective was aborted may only be destroyed. The other ranks' collectives wait for it,
 *     until they are aborted too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/dtype.h"
#include "standin.h"

#define RANKS_MAX 16

typedef enum { REDUCES, GATHERS, BROADCASTS, KINDS } kind;

typedef struct {
    uint32_t        n, joined, left;
    int32_t         devices[RANKS_MAX];
    bool            present[RANKS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t  moved;
    uint64_t        round;
    uint32_t        here;
    uint32_t        linked[KINDS]; /* ranks whose first collective of a kind has come */
    uint32_t        root;          /* of the broadcast that is met for */
    bool            broken;        /* a rank's collective was aborted: no other ends */
    uint64_t        session;       /* the capture that is met for; 0: none */
    const char     *name;          /* of the collective that is met for */
    uint64_t        bytes;
    const char     *send[RANKS_MAX];
    char           *receive[RANKS_MAX];
} world;

typedef struct {
    bool             alive;
    world           *world;
    uint32_t         rank;
    bool             broken;      /* one of its collectives was aborted; under the world's lock */
    _Atomic uint32_t held;        /* operations that are enqueued or captured */
    standin_graph   *capture;     /* the last one that a collective was captured into */
    uint64_t         sessions;    /* captures with collectives so far */
    size_t           most[KINDS]; /* bytes of the largest one outside of captures */
} comm;

static pthread_mutex_t worlds_lock = PTHREAD_MUTEX_INITIALIZER;
static world          *worlds[64];
static uint32_t        n_worlds;

/** Wait until all ranks have counted themselves. Under w->lock. @return false: not in time. */
static bool await_ranks(world *w, const uint32_t *count, uint32_t n) {
    struct timespec until;
    uint64_t        ms = standin_setting("TD_STANDIN_CONNECT_MS", 2000);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_broadcast(&w->moved);
    while (*count < n)
        if (pthread_cond_timedwait(&w->moved, &w->lock, &until) == ETIMEDOUT && *count < n) return false;
    return true;
}

td_hccl_status HcclGetRootInfo(td_hccl_root *root) {
    standin_enter("HcclGetRootInfo", STANDIN_NEEDS_CONTEXT);
    if (standin_fails("HcclGetRootInfo")) return TD_HCCL_E_INTERNAL;
    world *w = calloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->moved, NULL);
    memset(root, 0, sizeof *root);
    pthread_mutex_lock(&worlds_lock);
    if (n_worlds == sizeof worlds / sizeof *worlds) standin_refuse("stand-in", "too many communicators");
    worlds[n_worlds++] = w;
    snprintf(root->bytes, sizeof root->bytes, "standin %u", n_worlds);
    pthread_mutex_unlock(&worlds_lock);
    return TD_HCCL_SUCCESS;
}

td_hccl_status HcclCommInitRootInfo(uint32_t n_ranks, const td_hccl_root *root, uint32_t rank, td_hccl_comm *out) {
    const char      *document = "hcomm comm_mgr_c HcclCommInitRootInfo";
    standin_context *c = standin_enter("HcclCommInitRootInfo", STANDIN_LAUNCHES);
    unsigned         which = 0;
    if (sscanf(root->bytes, "standin %u", &which) != 1 || which == 0 || which > n_worlds)
        standin_refuse(document, "the root information is not what HcclGetRootInfo gave");
    if (n_ranks == 0 || n_ranks > RANKS_MAX || rank >= n_ranks) standin_refuse(document, "rank %u of %u", rank, n_ranks);
    world *w = worlds[which - 1];
    if (standin_fails("HcclCommInitRootInfo")) return TD_HCCL_E_INTERNAL;
    pthread_mutex_lock(&w->lock);
    if (w->n && w->n != n_ranks)
        standin_refuse(document, "ranks of one communicator say that they are %u and %u", w->n, n_ranks);
    if (w->present[rank]) standin_refuse(document, "rank %u joins twice", rank);
    for (uint32_t i = 0; i < n_ranks; i++)
        if (w->present[i] && w->devices[i] == c->device)
            standin_refuse(document, "ranks %u and %u are on one device, %d", i, rank, c->device);
    w->n = n_ranks;
    w->present[rank] = true;
    w->devices[rank] = c->device;
    w->joined++;
    bool came = await_ranks(w, &w->joined, n_ranks); /* every rank has to call it, each on a thread of its own */
    pthread_mutex_unlock(&w->lock);
    if (!came) return TD_HCCL_E_TIMEOUT;
    comm *m = calloc(1, sizeof *m);
    *m = (comm){.alive = true, .world = w, .rank = rank};
    STANDIN_LOCKED;
    standin_keep(m);
    *out = m;
    return TD_HCCL_SUCCESS;
}

static comm *live(td_hccl_comm handle, const char *call) {
    comm *m = handle;
    if (!m || !m->alive)
        standin_refuse("hcomm comm_mgr_c HcclCommDestroy", "%s of a communicator that is none, or is destroyed", call);
    return m;
}

td_hccl_status HcclCommDestroy(td_hccl_comm handle) {
    standin_enter("HcclCommDestroy", STANDIN_LAUNCHES);
    comm *m = live(handle, "HcclCommDestroy");
    if (atomic_load(&m->held))
        standin_refuse("hcomm aclgraph_introduction 2.4",
                       "a communicator is destroyed that %u enqueued or captured collectives hold: captures go first",
                       atomic_load(&m->held));
    m->alive = false;
    return TD_HCCL_SUCCESS;
}

const char *HcclGetErrorString(td_hccl_status code) {
    return code == TD_HCCL_SUCCESS ? "no error" : "error of the stand-in";
}

/* ---- collectives ------------------------------------------------------------------------------- */

typedef struct {
    comm         *comm;
    world        *world;
    uint32_t      rank;
    uint64_t      session; /* of the capture that holds it; 0: none */
    const void   *send;
    void         *receive;
    uint64_t      n;
    td_hccl_dtype dtype;
    kind          kind;
    uint32_t      root; /* of a broadcast */
} collective;

static size_t element(td_hccl_dtype t) {
    switch (t) {
        case TD_HCCL_DATA_TYPE_INT8: return 1;
        case TD_HCCL_DATA_TYPE_BFP16: return 2;
        case TD_HCCL_DATA_TYPE_FP32:
        case TD_HCCL_DATA_TYPE_INT32: return 4;
        default:
            standin_refuse("hccl comm_op_interface/data_type_def", "a collective of data type %u, which is not here", t);
    }
}

/** Rank 0 first, in f32, rounded once; the vendor's order is its own unless HCCL_DETERMINISTIC is set. */
static void sum_all(const world *w, td_hccl_dtype t, uint64_t n) {
    char *out = malloc(n * element(t));
    for (uint64_t i = 0; i < n; i++) {
        float   f = 0;
        int32_t whole = 0;
        for (uint32_t r = 0; r < w->n; r++) {
            const char *at = w->send[r] + i * element(t);
            if (t == TD_HCCL_DATA_TYPE_FP32) f += *(const float *)at;
            if (t == TD_HCCL_DATA_TYPE_BFP16) f += td_bf16_to_f32(*(const td_bf16 *)at);
            if (t == TD_HCCL_DATA_TYPE_INT32) whole += *(const int32_t *)at;
            if (t == TD_HCCL_DATA_TYPE_INT8) whole += *(const int8_t *)at;
        }
        if (t == TD_HCCL_DATA_TYPE_FP32) ((float *)out)[i] = f;
        if (t == TD_HCCL_DATA_TYPE_BFP16) ((td_bf16 *)out)[i] = td_f32_to_bf16(f);
        if (t == TD_HCCL_DATA_TYPE_INT32) ((int32_t *)out)[i] = whole;
        if (t == TD_HCCL_DATA_TYPE_INT8) ((int8_t *)out)[i] = (int8_t)whole;
    }
    for (uint32_t r = 0; r < w->n; r++) memcpy(w->receive[r], out, n * element(t));
    free(out);
}

/* An abort does not signal: look for it now and then. */
static void nap(world *w) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 2000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&w->moved, &w->lock, &until);
}

/* A rank's collective is aborted. Under the world's lock. */
static void break_down(comm *c) {
    c->broken = c->world->broken = true;
}

static void run_collective(standin_op *op, standin_stream *s) {
    const collective *a = op->payload;
    world            *w = a->world;
    size_t            bytes = a->n * element(a->dtype);
    const char       *send = standin_real(a->send, bytes, op->name);
    char             *receive = standin_real(a->receive, bytes * (a->kind == GATHERS ? w->n : 1), op->name);
    pthread_mutex_lock(&w->lock);
    if (a->comm->broken)
        standin_refuse("runtime 06 aclrtStreamAbort", "%s on a communicator of which a collective was aborted", op->name);
    while (w->left) pthread_cond_wait(&w->moved, &w->lock); /* of the meeting before */
    if (w->broken) {
        while (!standin_is_aborted(s)) nap(w);
        break_down(a->comm);
        pthread_mutex_unlock(&w->lock);
        return;
    }
    if (w->here && w->session != a->session)
        standin_refuse("hccl user_guide/constraints",
                       "ranks of one communicator meet with %s of capture %llu and of capture %llu (0: of none)", op->name,
                       (unsigned long long)w->session, (unsigned long long)a->session);
    w->session = a->session;
    if (w->here && (strcmp(w->name, op->name) || w->bytes != bytes))
        standin_refuse("hccl comm_op_interface", "ranks of one communicator meet with %s of %llu bytes and %s of %llu",
                       w->name, (unsigned long long)w->bytes, op->name, (unsigned long long)bytes);
    if (w->here && w->root != a->root)
        standin_refuse("hccl comm_op_interface/HcclBroadcast", "ranks of one communicator broadcast from roots %u and %u",
                       w->root, a->root);
    w->root = a->root;
    w->name = op->name;
    w->bytes = bytes;
    w->send[a->rank] = send;
    w->receive[a->rank] = receive;
    uint64_t round = w->round;
    if (++w->here == w->n) {
        if (a->kind == BROADCASTS) {
            for (uint32_t to = 0; to < w->n; to++) memmove(w->receive[to], w->send[a->root], bytes);
        } else if (a->kind == GATHERS) {
            for (uint32_t to = 0; to < w->n; to++)
                for (uint32_t from = 0; from < w->n; from++) memmove(w->receive[to] + from * bytes, w->send[from], bytes);
        } else {
            sum_all(w, a->dtype, a->n);
        }
        w->here = 0;
        w->left = w->n;
        w->round++;
        pthread_cond_broadcast(&w->moved);
    }
    while (w->round == round && !standin_is_aborted(s)) nap(w);
    if (w->round == round) { /* the others will not come any more */
        break_down(a->comm);
        pthread_mutex_unlock(&w->lock);
        return;
    }
    if (--w->left == 0) pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
}

static void drop(standin_op *op) {
    const collective *a = op->payload;
    atomic_fetch_sub(&a->comm->held, 1);
    free(op->payload);
}

static void discard(standin_op *op) {
    const collective *a = op->payload;
    pthread_mutex_lock(&a->world->lock);
    break_down(a->comm);
    pthread_mutex_unlock(&a->world->lock);
}

/** The links of the first collective of a kind. @return false: the other ranks did not come in time. */
static bool link_up(world *w, kind k) {
    pthread_mutex_lock(&w->lock);
    uint32_t *count = &w->linked[k];
    bool      up = *count >= w->n;
    if (!up) {
        ++*count;
        up = await_ranks(w, count, w->n);
    }
    pthread_mutex_unlock(&w->lock);
    return up;
}

static td_hccl_status submit(const char *call, collective args, td_hccl_comm handle, td_acl_stream stream) {
    standin_context *c = standin_enter(call, STANDIN_LAUNCHES);
    standin_stream  *s = standin_stream_of(stream, call);
    comm            *m = live(handle, call);
    size_t           bytes = args.n * element(args.dtype);
    if (m->world->devices[m->rank] != c->device)
        standin_refuse("hccl comm_op_interface", "%s on device %d, and the rank is on device %d", call, c->device,
                       m->world->devices[m->rank]);
    if (!args.n) standin_refuse("hccl comm_op_interface", "%s of nothing", call);
    if (standin_fails(call)) return TD_HCCL_E_INTERNAL;
    if (args.kind == BROADCASTS && args.root >= m->world->n)
        standin_refuse("hccl comm_op_interface/HcclBroadcast", "root %u of %u ranks", args.root, m->world->n);
    if (!link_up(m->world, args.kind)) return TD_HCCL_E_TIMEOUT;
    if (s->capture && bytes > m->most[args.kind])
        standin_refuse("hcomm aclgraph_introduction", "%s of %zu bytes is captured, and the largest before it had %zu", call,
                       bytes, m->most[args.kind]);
    if (!s->capture && bytes > m->most[args.kind]) m->most[args.kind] = bytes;
    if (s->capture && s->capture != m->capture) m->sessions++;
    m->capture = s->capture;
    collective *a = malloc(sizeof *a);
    *a = args;
    a->comm = m;
    a->world = m->world;
    a->rank = m->rank;
    a->session = s->capture ? m->sessions : 0;
    atomic_fetch_add(&m->held, 1);
    standin_op *op = standin_op_new(call, STANDIN_OP_COLLECTIVE, run_collective);
    op->payload = a;
    op->drop = drop;
    op->discard = discard;
    if (args.kind != BROADCASTS || m->rank == args.root) standin_op_use(op, args.send, bytes, false, false);
    if (args.kind != BROADCASTS || m->rank != args.root)
        standin_op_use(op, args.receive, bytes * (args.kind == GATHERS ? m->world->n : 1), true, false);
    standin_submit(s, op);
    return TD_HCCL_SUCCESS;
}

td_hccl_status HcclAllReduce(void *send, void *receive, uint64_t n, td_hccl_dtype dtype, td_hccl_reduce op,
                             td_hccl_comm handle, td_acl_stream stream) {
    if (op != TD_HCCL_REDUCE_SUM) standin_refuse("stand-in", "HcclAllReduce with operation %u: only sums are here", op);
    return submit("HcclAllReduce", (collective){.send = send, .receive = receive, .n = n, .dtype = dtype}, handle, stream);
}

td_hccl_status HcclAllGather(void *send, void *receive, uint64_t n_send, td_hccl_dtype dtype, td_hccl_comm handle,
                             td_acl_stream stream) {
    return submit("HcclAllGather",
                  (collective){.send = send, .receive = receive, .n = n_send, .dtype = dtype, .kind = GATHERS}, handle,
                  stream);
}

td_hccl_status HcclBroadcast(void *at, uint64_t n, td_hccl_dtype dtype, uint32_t root, td_hccl_comm handle,
                             td_acl_stream stream) {
    return submit("HcclBroadcast",
                  (collective){.send = at, .receive = at, .n = n, .dtype = dtype, .kind = BROADCASTS, .root = root}, handle,
                  stream);
}
