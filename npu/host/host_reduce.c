/*
 * The sum over cards that are host devices of one process: in the order of the cards, the same bits whoever comes first; and
 * that of exact sums, which has no order.
 *
 * Each card puts its contribution into its own scratch, waits for the others, and sums all of them for itself. A second wait
 * keeps the scratch until everybody has read it. A card that gives up wakes those that wait for it.
 */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_device.h"

#define CHUNK_ROWS 256

typedef struct {
    const td_npu *npu;
    const char   *part; /* its contribution while it waits, [chunk, width] act_dtype */
} member;

struct td_npu_group {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    uint32_t        n, waiting;
    uint64_t        meeting; /* meetings so far */
    bool            aborted;
    member          members[];
};

td_status td_host_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err) {
    td_npu_group *g = calloc(1, sizeof *g + n * sizeof *g->members);
    *out = g;
    if (!g) return td_fail(err, TD_ENOMEM, "out of memory for a group of cards");
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->n = n;
    for (uint32_t i = 0; i < n; i++) g->members[i].npu = cards[i];
    return TD_OK;
}

void td_host_group_destroy(td_npu_group *g) {
    if (!g) return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void td_host_group_abort(td_npu_group *g) {
    pthread_mutex_lock(&g->lock);
    g->aborted = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void td_host_group_reset(td_npu_group *g) {
    pthread_mutex_lock(&g->lock);
    g->aborted = false;
    g->waiting = 0;
    pthread_mutex_unlock(&g->lock);
}

/* Until all have come. @return TD_EDEVICE: one gave up. */
static td_status meet(td_npu_group *g) {
    pthread_mutex_lock(&g->lock);
    uint64_t meeting = g->meeting;
    if (!g->aborted && ++g->waiting == g->n) {
        g->waiting = 0;
        g->meeting++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->meeting == meeting && !g->aborted) pthread_cond_wait(&g->changed, &g->lock);
    bool met = g->meeting != meeting;
    pthread_mutex_unlock(&g->lock);
    return met ? TD_OK : TD_EDEVICE; /* who gave up stays counted: nobody meets before the reset */
}

static member *find_member(td_npu_group *g, const td_npu *npu) {
    for (uint32_t i = 0; g && i < g->n; i++)
        if (g->members[i].npu == npu) return &g->members[i];
    return NULL;
}

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    size_t              row0;
} reduce_job;

/* Bytes of n values, or words. */
static size_t bytes_of(const td_host_npu *d, const td_all_reduce_desc *a, size_t n) {
    return a->exact ? n * sizeof(int32_t) : td_host_act_bytes(d, n);
}

static float *worker_rows(const reduce_job *j, const td_worker *w) {
    return (float *)(j->d->scratch + j->b->at.f32 + w->index * j->b->at.per_worker);
}

/* This card's contribution to a row. */
static void contribute_row(void *ctx, uint32_t i, const td_worker *w) {
    const reduce_job         *j = ctx;
    const td_all_reduce_desc *a = &j->b->desc.all_reduce;
    td_dtype                  act = j->d->act;
    float                    *sum = worker_rows(j, w), *f = sum + td_round_up(a->width, 16);
    size_t                    at = bytes_of(j->d, a, (j->row0 + i) * a->width);
    char                     *part = j->d->scratch + j->b->at.rows + bytes_of(j->d, a, (size_t)i * a->width);
    if (a->exact) {
        memcpy(part, (const char *)a->add[0] + at, bytes_of(j->d, a, a->width));
        return;
    }
    for (size_t k = 0; k < a->width; k++) sum[k] = 0;
    for (int k = 0; k < 3; k++) {
        if (!a->add[k]) continue;
        td_to_f32(act, (const char *)a->add[k] + at, a->width, f);
        j->d->kernels->math->add(sum, f, a->width);
    }
    td_from_f32(act, sum, a->width, part);
}

static void sum_exact_row(void *ctx, uint32_t i, const td_worker *w) {
    const reduce_job         *j = ctx;
    const td_all_reduce_desc *a = &j->b->desc.all_reduce;
    uint32_t                 *out = (uint32_t *)a->out + (j->row0 + i) * a->width;
    (void)w;
    memset(out, 0, a->width * sizeof *out);
    for (uint32_t m = 0; m < a->group->n; m++) {
        const uint32_t *part = (const uint32_t *)(const void *)a->group->members[m].part + (size_t)i * a->width;
        for (size_t k = 0; k < a->width; k++) out[k] += part[k];
    }
}

static void sum_row(void *ctx, uint32_t i, const td_worker *w) {
    const reduce_job         *j = ctx;
    const td_all_reduce_desc *a = &j->b->desc.all_reduce;
    td_dtype                  act = j->d->act;
    float                    *sum = worker_rows(j, w), *f = sum + td_round_up(a->width, 16);
    size_t                    at = td_host_act_bytes(j->d, (size_t)i * a->width);
    td_to_f32(act, a->group->members[0].part + at, a->width, sum);
    for (uint32_t m = 1; m < a->group->n; m++) {
        td_to_f32(act, a->group->members[m].part + at, a->width, f);
        j->d->kernels->math->add(sum, f, a->width);
    }
    td_from_f32(act, sum, a->width, (char *)a->out + td_host_act_bytes(j->d, (j->row0 + i) * a->width));
}

static td_status run_reduce(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_all_reduce_desc *a = &b->desc.all_reduce;
    member                   *own = find_member(a->group, &d->base);
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        size_t     rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        reduce_job j = {.d = d, .b = b, .row0 = row};
        td_host_for(d, contribute_row, &j, rows, rows * a->width);
        own->part = d->scratch + b->at.rows;
        TD_TRY(meet(a->group));
        td_host_for(d, a->exact ? sum_exact_row : sum_row, &j, rows, rows * a->width * a->group->n);
        TD_TRY(meet(a->group));
    }
    return TD_OK;
}

static td_status check_reduce(td_host_npu *d, const td_block_desc *desc, td_error *err) {
    return find_member(desc->all_reduce.group, &d->base)
               ? TD_OK
               : td_fail(err, TD_EINVAL, "the device is not in the group that it is to sum with");
}

static void place_reduce(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    size_t used = 0;
    size_t width = desc->all_reduce.width;
    b->run = run_reduce;
    b->at.chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    b->at.rows = td_host_place(&used, bytes_of(d, &desc->all_reduce, b->at.chunk * width));
    b->at.per_worker = td_round_up(2 * td_round_up(width, 16) * sizeof(float), TD_CACHE_LINE);
    b->at.f32 = td_host_place(&used, b->at.per_worker * d->n_workers);
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_all_reduce = {.place = place_reduce, .check = check_reduce};
