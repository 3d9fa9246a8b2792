/*
 * Sums over the cards of one process. A collective ends when every rank of its communicator has come to it, in the same
 * order on each. Source: hccl comm_op_interface/HcclAllReduce, HcclAllGather; comm_mgr_c of hicann/hcomm.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "standin.h"

#define RANKS_MAX 16

typedef struct {
    uint32_t        n, joined, left;
    int32_t         devices[RANKS_MAX];
    bool            present[RANKS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t  moved;
    uint64_t        round;
    uint32_t        here;
    const char     *name; /* of the collective that is met for */
    uint64_t        bytes;
    const char     *send[RANKS_MAX];
    char           *receive[RANKS_MAX];
} world;

typedef struct {
    bool     alive;
    world   *world;
    uint32_t rank;
} comm;

static pthread_mutex_t worlds_lock = PTHREAD_MUTEX_INITIALIZER;
static world          *worlds[64];
static uint32_t        n_worlds;

td_hccl_status HcclGetRootInfo(td_hccl_root *root) {
    standin_enter("HcclGetRootInfo", STANDIN_NEEDS_CONTEXT);
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
    pthread_cond_broadcast(&w->moved);
    while (w->joined < n_ranks)
        pthread_cond_wait(&w->moved, &w->lock); /* every rank has to call it, each on a thread of its own */
    pthread_mutex_unlock(&w->lock);
    comm *m = calloc(1, sizeof *m);
    *m = (comm){true, w, rank};
    standin_lock();
    standin_keep(m);
    standin_unlock();
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
    live(handle, "HcclCommDestroy")->alive = false;
    return TD_HCCL_SUCCESS;
}

const char *HcclGetErrorString(td_hccl_status code) {
    return code == TD_HCCL_SUCCESS ? "no error" : "error of the stand-in";
}

/* ---- collectives ------------------------------------------------------------------------------- */

typedef struct {
    world        *world;
    uint32_t      rank;
    const void   *send;
    void         *receive;
    uint64_t      n;
    td_hccl_dtype dtype;
    bool          gathers;
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

static void run_collective(standin_op *op, standin_stream *s) {
    const collective *a = op->payload;
    world            *w = a->world;
    size_t            bytes = a->n * element(a->dtype);
    const char       *send = standin_real(a->send, bytes, op->name);
    char             *receive = standin_real(a->receive, bytes * (a->gathers ? w->n : 1), op->name);
    (void)s;
    pthread_mutex_lock(&w->lock);
    while (w->left) pthread_cond_wait(&w->moved, &w->lock); /* of the meeting before */
    if (w->here && (strcmp(w->name, op->name) || w->bytes != bytes))
        standin_refuse("hccl comm_op_interface", "ranks of one communicator meet with %s of %llu bytes and %s of %llu",
                       w->name, (unsigned long long)w->bytes, op->name, (unsigned long long)bytes);
    w->name = op->name;
    w->bytes = bytes;
    w->send[a->rank] = send;
    w->receive[a->rank] = receive;
    uint64_t round = w->round;
    if (++w->here == w->n) {
        if (a->gathers) {
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
    while (w->round == round) pthread_cond_wait(&w->moved, &w->lock);
    if (--w->left == 0) pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
}

static void drop(standin_op *op) {
    free(op->payload);
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
    collective *a = malloc(sizeof *a);
    *a = args;
    a->world = m->world;
    a->rank = m->rank;
    standin_op *op = standin_op_new(call, STANDIN_OP_COLLECTIVE, run_collective);
    op->payload = a;
    op->drop = drop;
    standin_op_use(op, args.send, bytes, false, false);
    standin_op_use(op, args.receive, bytes * (args.gathers ? m->world->n : 1), true, false);
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
                  (collective){.send = send, .receive = receive, .n = n_send, .dtype = dtype, .gathers = true}, handle,
                  stream);
}
