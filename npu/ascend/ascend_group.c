#include "npu/ascend/ascend_group.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/threads/thread.h"

/* bf16 of the first collectives: from 32 bytes to what 512 rows of 8192 columns have (ascend_sum.c). HCCL chooses how to sum
 * by the size, and what it builds for a way must not be built first inside a capture. */
static const size_t WARM_VALUES[] = {16, 1 << 12, 1 << 16, 1 << 19, 1 << 22};
#define N_WARM (sizeof WARM_VALUES / sizeof *WARM_VALUES)
#define WARM_MOST ((size_t)1 << 22)
#define GATHER_CARDS 3 /* from so many on sums have an order, which HCCL does not keep */

typedef struct {
    td_ascend_npu  *d;
    td_hccl_comm    comm;   /* NULL: none */
    pthread_mutex_t lock;   /* between giving a sum to the stream and stopping it */
    td_acl_stream   stream; /* on which one may be under way; NULL: none */
} member;

struct td_npu_group {
    uint32_t     n;
    _Atomic bool aborted; /* set before the locks are taken, read under one's own */
    member       members[];
};

static member *member_of(td_npu_group *g, const td_ascend_npu *d) {
    for (uint32_t i = 0; g && i < g->n; i++)
        if (g->members[i].d == d) return &g->members[i];
    return NULL;
}

static td_status failed(td_ascend_npu *d, const char *call, td_hccl_status code, td_error *err) {
    const char *word = d->acl->HcclGetErrorString ? d->acl->HcclGetErrorString(code) : NULL;
    return td_card_failed(&d->base, TD_EDEVICE, err, "%s failed on card %d with %u (%s)", call, d->card, code,
                          word ? word : "HcclResult");
}

/* ---- joining ----------------------------------------------------------------------------------- */

typedef struct {
    td_npu_group       *group;
    const td_hccl_root *root;
    uint32_t            rank;
    pthread_t           thread;
    td_status           st;
    bool                timed_out; /* another card's failure is the reason */
    td_error            err;
} joiner;

static td_hccl_status collective(const td_npu_group *g, const member *m, void *send, void *receive, size_t n,
                                 td_acl_stream stream) {
    if (!td_ascend_group_gathers(g))
        return m->d->acl->HcclAllReduce(send, receive, n, TD_HCCL_DATA_TYPE_BFP16, TD_HCCL_REDUCE_SUM, m->comm, stream);
    return m->d->acl->HcclAllGather(send, receive, n, TD_HCCL_DATA_TYPE_BFP16, m->comm, stream);
}

static const char *collective_name(const td_npu_group *g) {
    return td_ascend_group_gathers(g) ? "HcclAllGather" : "HcclAllReduce";
}

static td_hccl_status broadcast(const member *m, void *at, size_t n, td_acl_stream stream) {
    return m->d->acl->HcclBroadcast(at, n, TD_HCCL_DATA_TYPE_INT32, 0, m->comm, stream);
}

/* @param n bf16 values. @return what the collective's call has; HCCL_E_TIMEOUT where another card's failure has ended it. */
static td_hccl_status warm(joiner *j, member *m, bool broadcasts, void *send, void *receive, size_t n,
                           td_acl_stream stream) {
    if (td_ascend_group_enter(j->group, m->d, stream) != TD_OK) return TD_HCCL_E_TIMEOUT;
    td_hccl_status code =
        broadcasts ? broadcast(m, receive, n / 2, stream) : collective(j->group, m, send, receive, n, stream);
    td_ascend_group_leave(j->group, m->d);
    return code;
}

/* The first ones, of both kinds and of all sizes. Once cards are linked, one that fails leaves the others waiting. */
static td_status first_collectives(joiner *j, member *m, void *send, void *receive, td_acl_stream stream) {
    td_hccl_status code = TD_HCCL_SUCCESS;
    size_t         i = 0;
    for (; i < 2 * N_WARM && code == TD_HCCL_SUCCESS; i++)
        code = warm(j, m, i % 2, send, receive, WARM_VALUES[i / 2], stream);
    j->timed_out = code == TD_HCCL_E_TIMEOUT;
    if (code != TD_HCCL_SUCCESS) return failed(m->d, i % 2 ? collective_name(j->group) : "HcclBroadcast", code, &j->err);
    td_acl_status synced = m->d->acl->aclrtSynchronizeStream(stream);
    j->timed_out = synced == TD_ACL_ERROR_RT_STREAM_ABORT;
    return td_ascend_done(m->d, "aclrtSynchronizeStream", synced, &j->err);
}

static td_status warm_up(joiner *j, member *m) {
    td_ascend_npu *d = m->d;
    td_acl_stream  stream;
    void          *send = NULL, *receive = NULL;
    td_acl_status  code = d->acl->aclrtCreateStreamWithConfig(&stream, 0, TD_ACL_STREAM_FAST_LAUNCH);
    if (code != TD_ACL_SUCCESS) return td_ascend_failed(d, "aclrtCreateStreamWithConfig", code, &j->err);
    td_status st = td_card_take(&d->base, WARM_MOST * sizeof(td_bf16), &send, &j->err);
    if (st == TD_OK) st = td_card_take(&d->base, j->group->n * WARM_MOST * sizeof(td_bf16), &receive, &j->err);
    if (st == TD_OK) st = first_collectives(j, m, send, receive, stream);
    if (st != TD_OK) {
        td_ascend_group_abort(j->group);
        td_status entered = td_card_enter(&d->base); /* the abort has entered the others */
        if (entered != TD_OK) return st;             /* then nothing can be given back either */
    }
    (void)d->acl->aclrtSynchronizeStream(stream);
    td_card_give(&d->base, send);
    td_card_give(&d->base, receive);
    td_ascend_group_idle(j->group, d);
    (void)d->acl->aclrtDestroyStream(stream);
    return st;
}

static void *join_main(void *arg) {
    joiner *j = arg;
    member *m = &j->group->members[j->rank];
    j->st = td_card_enter(&m->d->base);
    if (j->st != TD_OK) {
        j->st = td_fail(&j->err, j->st, "card %d cannot be used by another thread", m->d->card);
        return NULL;
    }
    td_hccl_status code = m->d->acl->HcclCommInitRootInfo(j->group->n, j->root, j->rank, &m->comm);
    j->timed_out = code == TD_HCCL_E_TIMEOUT;
    if (code != TD_HCCL_SUCCESS) {
        m->comm = NULL;
        j->st = failed(m->d, "HcclCommInitRootInfo", code, &j->err);
    }
    if (j->st == TD_OK) j->st = warm_up(j, m);
    return NULL;
}

/* The card that has a reason of its own, if there is one. */
static td_status result_of(const joiner *list, uint32_t n, td_error *err) {
    const joiner *worst = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].st != TD_OK && (!worst || (worst->timed_out && !list[i].timed_out))) worst = &list[i];
    if (!worst) return TD_OK;
    return td_fail(err, worst->st, "the %u cards cannot be joined: %.280s; " TD_ASCEND_GROUP_ADVICE, n, worst->err.text);
}

static td_status join_all(td_npu_group *g, joiner *list, td_error *err) {
    static td_hccl_root root; /* 4 kB; groups are made one at a time */
    td_ascend_npu      *first = g->members[0].d;
    TD_TRY(td_card_enter(&first->base));
    td_hccl_status code = first->acl->HcclGetRootInfo(&root);
    if (code != TD_HCCL_SUCCESS) {
        td_error why = {0};
        return td_fail(err, failed(first, "HcclGetRootInfo", code, &why),
                       "the cards cannot be joined: %.280s; " TD_ASCEND_GROUP_ADVICE, why.text);
    }
    uint32_t  started = 0;
    td_status st = TD_OK;
    for (; started < g->n; started++) {
        list[started] = (joiner){.group = g, .root = &root, .rank = started};
        st = td_thread_start(&list[started].thread, "ascend joins", join_main, &list[started], err);
        if (st != TD_OK) break; /* the others give up by themselves: they wait for it */
    }
    for (uint32_t i = 0; i < started; i++) pthread_join(list[i].thread, NULL);
    return st != TD_OK ? st : result_of(list, g->n, err);
}

static void leave_all(td_npu_group *g) {
    for (uint32_t i = 0; i < g->n; i++) {
        member *m = &g->members[i];
        if (!m->comm || td_card_enter(&m->d->base) != TD_OK) continue;
        td_hccl_status code = m->d->acl->HcclCommDestroy(m->comm);
        if (code != TD_HCCL_SUCCESS) (void)failed(m->d, "HcclCommDestroy", code, NULL);
        m->comm = NULL;
    }
}

static td_status join(td_npu_group *g, td_error *err) {
    joiner *list = calloc(g->n, sizeof *list);
    if (!list) return td_fail(err, TD_ENOMEM, "out of memory for a group of cards");
    atomic_store(&g->aborted, false);
    td_status st = join_all(g, list, err);
    free(list);
    if (st == TD_OK) return TD_OK;
    atomic_store(&g->aborted, true);
    leave_all(g);
    return st;
}

td_status td_ascend_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err) {
    const td_ascend_npu *first = (const td_ascend_npu *)cards[0];
    *out = NULL;
    TD_TRY(td_card_check_group(cards, n, TD_CARDS_MAX, err));
    if (!first->l->has_hccl)
        return td_fail(err, TD_ENOTSUP,
                       "%s has no libhccl.so with all that several cards need: install the whole toolkit, or use one card",
                       *first->l->folder ? first->l->folder : "LD_LIBRARY_PATH");
    td_npu_group *g = calloc(1, sizeof *g + n * sizeof *g->members);
    if (!g) return td_fail(err, TD_ENOMEM, "out of memory for a group of cards");
    g->n = n;
    for (uint32_t i = 0; i < n; i++) {
        g->members[i].d = (td_ascend_npu *)cards[i];
        pthread_mutex_init(&g->members[i].lock, NULL);
    }
    td_status st = join(g, err);
    if (st != TD_OK) {
        td_ascend_group_destroy(g);
        return st;
    }
    *out = g;
    return TD_OK;
}

void td_ascend_group_destroy(td_npu_group *g) {
    if (!g) return;
    leave_all(g);
    for (uint32_t i = 0; i < g->n; i++) pthread_mutex_destroy(&g->members[i].lock);
    free(g);
}

/* ---- giving up --------------------------------------------------------------------------------- */

void td_ascend_group_abort(td_npu_group *g) {
    if (atomic_exchange(&g->aborted, true)) return;
    for (uint32_t i = 0; i < g->n; i++) {
        member       *m = &g->members[i];
        const td_acl *acl = m->d->acl;
        pthread_mutex_lock(&m->lock);
        if (m->stream && !acl->aclrtStreamAbort)
            td_warn("card %d may wait for the others for HCCL_EXEC_TIMEOUT: this CANN has no aclrtStreamAbort", m->d->card);
        else if (m->stream && td_card_enter(&m->d->base) == TD_OK) {
            td_acl_status code = acl->aclrtStreamAbort(m->stream);
            if (code != TD_ACL_SUCCESS) (void)td_ascend_failed(m->d, "aclrtStreamAbort", code, NULL);
        }
        pthread_mutex_unlock(&m->lock);
    }
}

void td_ascend_group_reset(td_npu_group *g) {
    td_error err = {0};
    if (!atomic_load(&g->aborted)) return;
    leave_all(g);
    if (join(g, &err) != TD_OK) td_err("%s", err.text); /* sums fail until another reset can */
}

td_status td_ascend_group_enter(td_npu_group *g, const td_ascend_npu *d, td_acl_stream stream) {
    member *m = member_of(g, d);
    if (!m) return TD_EINVAL;
    pthread_mutex_lock(&m->lock);
    if (atomic_load(&g->aborted)) {
        pthread_mutex_unlock(&m->lock);
        return TD_EDEVICE;
    }
    if (stream) m->stream = stream;
    return TD_OK;
}

void td_ascend_group_leave(td_npu_group *g, const td_ascend_npu *d) {
    pthread_mutex_unlock(&member_of(g, d)->lock);
}

void td_ascend_group_idle(td_npu_group *g, const td_ascend_npu *d) {
    member *m = member_of(g, d);
    pthread_mutex_lock(&m->lock);
    m->stream = NULL;
    pthread_mutex_unlock(&m->lock);
}

/* ---- collectives -------------------------------------------------------------------------------- */

uint32_t td_ascend_group_cards(const td_npu_group *g) {
    return g ? g->n : 0;
}

bool td_ascend_group_gathers(const td_npu_group *g) {
    return g && g->n >= GATHER_CARDS;
}

bool td_ascend_group_has(td_npu_group *g, const td_ascend_npu *d) {
    return member_of(g, d) != NULL;
}

td_status td_ascend_group_sum(td_npu_group *g, const td_ascend_npu *d, td_acl_stream stream, const void *send, void *receive,
                              size_t n) {
    member        *m = member_of(g, d);
    td_hccl_status code = collective(g, m, (void *)send, receive, n, stream);
    return code == TD_HCCL_SUCCESS ? TD_OK : failed(m->d, collective_name(g), code, NULL);
}

td_status td_ascend_group_broadcast(td_npu_group *g, const td_ascend_npu *d, td_acl_stream stream, void *at, size_t n) {
    member        *m = member_of(g, d);
    td_hccl_status code = broadcast(m, at, n, stream);
    return code == TD_HCCL_SUCCESS ? TD_OK : failed(m->d, "HcclBroadcast", code, NULL);
}
