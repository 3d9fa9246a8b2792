#include "npu/ascend/ascend_group.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log.h"
#include "core/thread.h"
#include "npu/ascend/ascend_op.h"
#include "npu/ascend/ascend_stream.h"

#define WARM_VALUES 16 /* bf16 of the first collective: a multiple of 32 bytes */
#define CHUNK_ROWS 512 /* that are gathered from more than two cards at a time */
#define GATHER_CARDS 3 /* from so many on sums have an order, which HCCL does not keep */
#define CARDS_MAX 64
#define ADVICE \
    "are all cards of one server and free of other processes, and does HCCL find a network interface (HCCL_IF_IP)?"

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
    td_card_count(&d->given.failures);
    if (err)
        return td_fail(err, TD_EDEVICE, "%s failed on card %d with %u (%s)", call, d->card, code,
                       word ? word : "HcclResult");
    td_err("%s failed on card %d with %u (%s)", call, d->card, code, word ? word : "HcclResult");
    return TD_EDEVICE;
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

static td_hccl_status collective(td_npu_group *g, member *m, void *send, void *receive, size_t n, td_acl_stream stream) {
    if (g->n < GATHER_CARDS)
        return m->d->acl->HcclAllReduce(send, receive, n, TD_HCCL_DATA_TYPE_BFP16, TD_HCCL_REDUCE_SUM, m->comm, stream);
    return m->d->acl->HcclAllGather(send, receive, n, TD_HCCL_DATA_TYPE_BFP16, m->comm, stream);
}

static const char *collective_name(const td_npu_group *g) {
    return g->n < GATHER_CARDS ? "HcclAllReduce" : "HcclAllGather";
}

static td_status first_collective(joiner *j, member *m, void *send, void *receive, td_acl_stream stream) {
    td_hccl_status code = collective(j->group, m, send, receive, WARM_VALUES, stream);
    j->timed_out = code == TD_HCCL_E_TIMEOUT;
    if (code != TD_HCCL_SUCCESS) return failed(m->d, collective_name(j->group), code, &j->err);
    td_acl_status synced = m->d->acl->aclrtSynchronizeStream(stream);
    return synced == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(m->d, "aclrtSynchronizeStream", synced, &j->err);
}

static td_status warm_up(joiner *j, member *m) {
    td_ascend_npu *d = m->d;
    td_acl_stream  stream;
    void          *send = NULL, *receive = NULL;
    td_acl_status  code = d->acl->aclrtCreateStreamWithConfig(&stream, 0, TD_ACL_STREAM_FAST_LAUNCH);
    if (code != TD_ACL_SUCCESS) return td_ascend_failed(d, "aclrtCreateStreamWithConfig", code, &j->err);
    td_status st = td_ascend_take(d, WARM_VALUES * sizeof(td_bf16), &send, &j->err);
    if (st == TD_OK) st = td_ascend_take(d, j->group->n * WARM_VALUES * sizeof(td_bf16), &receive, &j->err);
    if (st == TD_OK) st = first_collective(j, m, send, receive, stream);
    (void)d->acl->aclrtSynchronizeStream(stream);
    td_ascend_give(d, send);
    td_ascend_give(d, receive);
    (void)d->acl->aclrtDestroyStream(stream);
    return st;
}

static void *join_main(void *arg) {
    joiner *j = arg;
    member *m = &j->group->members[j->rank];
    j->st = td_ascend_enter(m->d);
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
    return td_fail(err, worst->st, "the %u cards cannot be joined: %.280s; " ADVICE, n, worst->err.text);
}

static td_status join_all(td_npu_group *g, joiner *list, td_error *err) {
    static td_hccl_root root; /* 4 kB; groups are made one at a time */
    td_ascend_npu      *first = g->members[0].d;
    TD_TRY(td_ascend_enter(first));
    td_hccl_status code = first->acl->HcclGetRootInfo(&root);
    if (code != TD_HCCL_SUCCESS) {
        td_error why = {0};
        return td_fail(err, failed(first, "HcclGetRootInfo", code, &why), "the cards cannot be joined: %.280s; " ADVICE,
                       why.text);
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
        if (!m->comm || td_ascend_enter(m->d) != TD_OK) continue;
        td_hccl_status code = m->d->acl->HcclCommDestroy(m->comm);
        if (code != TD_HCCL_SUCCESS) (void)failed(m->d, "HcclCommDestroy", code, NULL);
        m->comm = NULL;
    }
}

static td_status join(td_npu_group *g, td_error *err) {
    joiner *list = calloc(g->n, sizeof *list);
    if (!list) return td_fail(err, TD_ENOMEM, "out of memory for a group of cards");
    td_status st = join_all(g, list, err);
    free(list);
    if (st != TD_OK) leave_all(g);
    return st;
}

td_status td_ascend_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err) {
    const td_ascend_npu *first = (const td_ascend_npu *)cards[0];
    *out = NULL;
    if (n < 2 || n > CARDS_MAX) return td_fail(err, TD_EINVAL, "a group has 2 to %d cards, not %u", CARDS_MAX, n);
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
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (g->members[i].d->card == g->members[k].d->card) {
                free(g);
                return td_fail(err, TD_EINVAL, "card %d is in the group twice", ((td_ascend_npu *)cards[i])->card);
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
        else if (m->stream && td_ascend_enter(m->d) == TD_OK) {
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
    if (join(g, &err) != TD_OK)
        td_err("%s", err.text); /* sums fail until another reset can */
    else
        atomic_store(&g->aborted, false);
}

td_status td_ascend_group_enter(td_npu_group *g, const td_ascend_npu *d, td_npu_stream *s) {
    member *m = member_of(g, d);
    if (!m) return TD_EINVAL;
    pthread_mutex_lock(&m->lock);
    if (atomic_load(&g->aborted)) {
        pthread_mutex_unlock(&m->lock);
        return TD_EDEVICE;
    }
    if (!s->capture) {
        m->stream = s->stream;
        s->group = g;
    }
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

/* ---- the sum ----------------------------------------------------------------------------------- */

static void sum_over_cards(td_ascend_run *r, td_npu_group *g, const void *send, void *receive, size_t n) {
    if (r->status != TD_OK) return;
    r->status = td_ascend_group_enter(g, r->d, r->s);
    if (r->status != TD_OK) return;
    td_hccl_status code = collective(g, member_of(g, r->d), (void *)send, receive, n, r->stream);
    td_ascend_group_leave(g, r->d);
    if (code != TD_HCCL_SUCCESS)
        r->status = failed(r->d, collective_name(g), code, NULL);
    else
        td_ascend_launched(r->s);
}

/* What a block works on: rows of the step's bucket, from its first. */
typedef struct {
    const td_all_reduce_desc *a;
    size_t                    first, rows;
} part;

static td_ascend_view rows_of(const part *p, const void *at) {
    return td_ascend_rows_of(at, TD_ACL_BF16, p->first, p->rows, p->a->width);
}

static char *bytes_of(const part *p, const void *at) {
    return (char *)at + p->first * p->a->width * sizeof(td_bf16);
}

static void zero(td_ascend_run *r, void *at, size_t bytes) {
    if (r->status != TD_OK) return;
    td_acl_status code = r->d->acl->aclrtMemsetAsync(at, bytes, 0, bytes, r->stream);
    if (code != TD_ACL_SUCCESS)
        r->status = td_ascend_failed(r->d, "aclrtMemsetAsync", code, NULL);
    else
        td_ascend_launched(r->s);
}

/* x = f32 sums of what lies in n places, in their order; y is scratch of the same size. */
static void sum_in_order(td_ascend_run *r, const td_ascend_view *from, size_t n, td_ascend_view x, td_ascend_view y) {
    td_ascend_op_cast(r, from[0], x);
    for (size_t i = 1; i < n; i++) {
        td_ascend_op_cast(r, from[i], y);
        td_ascend_op_add_to(r, x, y);
    }
}

/* The card's own part as bf16, in `out`, or where it lies already. Two bf16 are added and rounded once in either type. */
static const void *own_part(td_ascend_run *r, const part *p, td_ascend_view x, td_ascend_view y) {
    const td_all_reduce_desc *a = p->a;
    const void               *add[3];
    td_ascend_view            from[3];
    size_t                    n = 0;
    for (size_t i = 0; i < 3; i++)
        if (a->add[i]) {
            from[n] = rows_of(p, a->add[i]);
            add[n++] = a->add[i];
        }
    if (n == 1) return add[0];
    if (n == 0)
        zero(r, bytes_of(p, a->out), p->rows * a->width * sizeof(td_bf16));
    else if (n == 2 && (add[0] == a->out || add[1] == a->out))
        td_ascend_op_add_to(r, rows_of(p, a->out), from[add[0] == a->out]);
    else if (n == 2)
        td_ascend_op_add(r, from[0], from[1], rows_of(p, a->out));
    else {
        sum_in_order(r, from, n, x, y);
        td_ascend_op_cast(r, x, rows_of(p, a->out));
    }
    return a->out;
}

static void launch(td_ascend_run *r, const td_npu_block *b) {
    const td_all_reduce_desc *a = &b->desc.all_reduce;
    td_npu_group             *g = a->group;
    size_t                    chunk = b->desc.max_tok < CHUNK_ROWS ? b->desc.max_tok : CHUNK_ROWS;
    if (r->s->capture) r->s->capture->group = g;
    for (size_t row = 0; row < r->step->max_tok; row += chunk) {
        size_t         rows = r->step->max_tok - row < chunk ? r->step->max_tok - row : chunk, n = rows * a->width;
        part           p = {a, r->step->first_row + row, rows};
        td_ascend_view x = td_ascend_rows_of(r->scratch + b->at.f32, TD_ACL_FLOAT, 0, rows, a->width),
                       y = td_ascend_rows_of(r->scratch + b->at.values, TD_ACL_FLOAT, 0, rows, a->width);
        const void *own = own_part(r, &p, x, y);
        if (g->n < GATHER_CARDS) {
            sum_over_cards(r, g, bytes_of(&p, own), bytes_of(&p, a->out), n);
            continue;
        }
        td_ascend_view parts[CARDS_MAX];
        for (size_t i = 0; i < g->n; i++)
            parts[i] = td_ascend_rows_of(r->scratch + b->at.wide, TD_ACL_BF16, i * rows, rows, a->width);
        sum_over_cards(r, g, bytes_of(&p, own), r->scratch + b->at.wide, n);
        sum_in_order(r, parts, g->n, x, y);
        td_ascend_op_cast(r, x, rows_of(&p, a->out));
    }
}

static size_t plan(const td_block_desc *desc, td_ascend_places *at) {
    const td_npu_group *g = desc->all_reduce.group;
    size_t              rows = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS, n = rows * desc->all_reduce.width;
    size_t              used = 0;
    at->f32 = td_ascend_place(&used, n * sizeof(float));
    at->values = td_ascend_place(&used, n * sizeof(float));
    at->wide = td_ascend_place(&used, g && g->n >= GATHER_CARDS ? g->n * n * sizeof(td_bf16) : 0);
    return used;
}

static td_status prepare(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_all_reduce_desc *a = &b->desc.all_reduce;
    if (!a->width) return td_fail(err, TD_EINVAL, "a sum over cards needs a width");
    return member_of(a->group, d) ? TD_OK : td_fail(err, TD_EINVAL, "the device is not in the group that it is to sum with");
}

const td_ascend_block_kind td_ascend_all_reduce = {.plan = plan, .prepare = prepare, .launch = launch};
