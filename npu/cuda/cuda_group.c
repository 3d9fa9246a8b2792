#include "npu/cuda/cuda_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"

#define EXCHANGE_BYTES (TD_CUDA_SIGNALS_BYTES + 2 * TD_CUDA_PLACE_BYTES)
#define STATE_WORDS 3
#define LINE 64

static _Atomic uint32_t *word_at(const td_npu_group *g, uint32_t line) {
    return (_Atomic uint32_t *)(void *)(g->words + (size_t)line * LINE);
}
td_cuda_member *td_cuda_group_member(td_npu_group *g, const td_cuda_npu *d) {
    for (uint32_t i = 0; g && i < g->n; i++)
        if (g->members[i].d == d) return &g->members[i];
    return NULL;
}

/* ---- memory that all reach ----------------------------------------------------------------------- */

/* Give up the access of all cards; what fails is in the log. */
static void close_peers(td_npu_group *g) {
    for (uint32_t i = 0; i < g->n; i++)
        for (uint32_t k = 0; k < g->n; k++) {
            td_cuda_npu *d = g->members[i].d;
            if (!(g->members[i].opened >> k & 1) || td_card_enter(&d->base) != TD_OK) continue;
            td_cu_status said = d->cu->cuCtxDisablePeerAccess(g->members[k].d->context);
            if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuCtxDisablePeerAccess", said, NULL);
            g->members[i].opened &= ~(1u << k);
        }
}

static td_status can_reach(td_npu_group *g, bool *out, td_error *err) {
    *out = true;
    for (uint32_t i = 0; i < g->n && *out; i++)
        for (uint32_t k = 0; k < g->n && *out; k++) {
            td_cuda_npu *d = g->members[i].d;
            int          can = 0;
            if (i == k) continue;
            TD_TRY(td_cuda_done(d, "cuDeviceCanAccessPeer",
                                d->cu->cuDeviceCanAccessPeer(&can, d->device, g->members[k].d->device), err));
            *out = can != 0;
        }
    return TD_OK;
}

/* Give every card access to the others' memory. Where the machine has no room for so many, is_direct stays false. */
static td_status open_peers(td_npu_group *g, td_error *err) {
    TD_TRY(can_reach(g, &g->is_direct, err));
    for (uint32_t i = 0; i < g->n && g->is_direct; i++) {
        td_cuda_npu *d = g->members[i].d;
        TD_TRY(td_card_enter(&d->base));
        for (uint32_t k = 0; k < g->n && g->is_direct; k++) {
            if (i == k) continue;
            td_cu_status said = d->cu->cuCtxEnablePeerAccess(g->members[k].d->context, 0);
            if (said == TD_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) continue; /* whoever did so closes it */
            if (said == TD_CUDA_ERROR_TOO_MANY_PEERS || said == TD_CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
                g->is_direct = false;
            else if (said != TD_CUDA_SUCCESS)
                return td_cuda_failed(d, "access to another card's memory (cuCtxEnablePeerAccess)", said, err);
            else
                g->members[i].opened |= 1u << k;
        }
    }
    if (!g->is_direct) close_peers(g);
    return TD_OK;
}

static td_status pinned(td_cuda_npu *d, size_t bytes, void **out, td_error *err) {
    char what[96];
    snprintf(what, sizeof what, "%zu bytes of pinned memory (cuMemHostAlloc)", bytes);
    *out = NULL;
    td_cu_status said = d->cu->cuMemHostAlloc(out, bytes, TD_CU_MEMHOSTALLOC_PORTABLE | TD_CU_MEMHOSTALLOC_DEVICEMAP);
    if (said != TD_CUDA_SUCCESS) {
        *out = NULL;
        return td_cuda_failed(d, what, said, err);
    }
    memset(*out, 0, bytes);
    return TD_OK;
}

/* Pinned memory as a card sees it. */
static td_status seen_by(td_cuda_npu *d, void *at, void **out, td_error *err) {
    td_cu_address address = 0;
    TD_TRY(td_cuda_done(d, "cuMemHostGetDevicePointer", d->cu->cuMemHostGetDevicePointer(&address, at, 0), err));
    *out = (void *)(uintptr_t)address;
    return TD_OK;
}

static td_status zero(td_cuda_npu *d, void *at, size_t bytes, td_error *err) {
    return td_cuda_done(d, "cuMemsetD8Async", d->cu->cuMemsetD8Async(td_cuda_address(at), 0, bytes, d->setup), err);
}

/* Nothing is under way when it returns, whatever failed: the memory may be freed next. */
static td_status zero_words(const td_npu_group *g, td_cuda_member *m, td_error *err) {
    td_status st = zero(m->d, m->state, STATE_WORDS * sizeof(uint32_t), err);
    if (!g->is_direct) memset(m->exchange, 0, TD_CUDA_SIGNALS_BYTES);
    if (g->is_direct && st == TD_OK) st = zero(m->d, m->exchange, TD_CUDA_SIGNALS_BYTES, err);
    td_status ended =
        td_cuda_done(m->d, "cuStreamSynchronize", m->d->cu->cuStreamSynchronize(m->d->setup), st == TD_OK ? err : NULL);
    return st != TD_OK ? st : ended;
}

/* Nobody has met or summed yet. */
static td_status begin(td_npu_group *g, td_error *err) {
    for (uint32_t i = 0; i < g->n; i++) {
        td_cuda_member *m = &g->members[i];
        TD_TRY(td_card_enter(&m->d->base));
        TD_TRY(zero_words(g, m, err));
        atomic_store(word_at(g, 1 + i), 0);
    }
    atomic_store(word_at(g, 0), 0);
    return TD_OK;
}

static td_status take_exchange(td_npu_group *g, td_cuda_member *m, td_error *err) {
    TD_TRY(td_card_enter(&m->d->base));
    TD_TRY(td_card_take(&m->d->base, STATE_WORDS * sizeof(uint32_t), &m->state, err));
    return g->is_direct ? td_card_take(&m->d->base, EXCHANGE_BYTES, &m->exchange, err)
                        : pinned(m->d, EXCHANGE_BYTES, &m->exchange, err);
}

/* What a card sees of the others' exchanges, and of the words. */
static td_status look(td_npu_group *g, uint32_t self, td_error *err) {
    td_cuda_member *m = &g->members[self];
    TD_TRY(td_card_enter(&m->d->base));
    for (uint32_t i = 0; i < g->n; i++) {
        void *at = g->members[i].exchange;
        if (!g->is_direct) TD_TRY(seen_by(m->d, g->members[i].exchange, &at, err));
        m->exchange_of[i] = at;
    }
    TD_TRY(seen_by(m->d, word_at(g, 0), &m->stop, err));
    return seen_by(m->d, word_at(g, 1 + self), &m->gave_up, err);
}

/* ---- the group ----------------------------------------------------------------------------------- */

static td_status build(td_npu_group *g, td_error *err) {
    td_cuda_npu *first = g->members[0].d;
    TD_TRY(open_peers(g, err));
    TD_TRY(td_card_enter(&first->base));
    TD_TRY(pinned(first, (size_t)(1 + TD_CUDA_CARDS) * LINE, (void **)&g->words, err));
    for (uint32_t i = 0; i < g->n; i++) TD_TRY(take_exchange(g, &g->members[i], err));
    for (uint32_t i = 0; i < g->n; i++) TD_TRY(look(g, i, err));
    TD_TRY(begin(g, err));
    for (uint32_t i = 0; i < g->n; i++) g->members[i].d->group = g;
    td_info("%u cards sum %s", g->n,
            g->is_direct ? "by reading each other's memory" : "through the host's memory: they cannot reach each other's");
    return TD_OK;
}

td_status td_cuda_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err) {
    *out = NULL;
    TD_TRY(td_card_check_group(cards, n, TD_CUDA_CARDS, err));
    for (uint32_t i = 0; i < n; i++)
        if (((td_cuda_npu *)cards[i])->group)
            return td_fail(err, TD_EINVAL, "CUDA card %u is in another group", ((td_cuda_npu *)cards[i])->base.config.card);
    td_npu_group *g = calloc(1, sizeof *g);
    if (!g) return td_fail(err, TD_ENOMEM, "out of memory for a group of cards");
    g->n = n;
    for (uint32_t i = 0; i < n; i++) g->members[i].d = (td_cuda_npu *)cards[i];
    td_status st = build(g, err);
    if (st != TD_OK) {
        td_cuda_group_destroy(g);
        return st;
    }
    *out = g;
    return TD_OK;
}

static void give_pinned(td_cuda_npu *d, void *at) {
    td_cu_status said = at ? d->cu->cuMemFreeHost(at) : TD_CUDA_SUCCESS;
    if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuMemFreeHost", said, NULL);
}

void td_cuda_group_destroy(td_npu_group *g) {
    if (!g) return;
    for (uint32_t i = 0; i < g->n; i++) {
        td_cuda_member *m = &g->members[i];
        m->d->group = NULL;
        if (td_card_enter(&m->d->base) != TD_OK) continue;
        td_card_give(&m->d->base, m->state);
        if (g->is_direct)
            td_card_give(&m->d->base, m->exchange);
        else
            give_pinned(m->d, m->exchange);
    }
    close_peers(g);
    if (td_card_enter(&g->members[0].d->base) == TD_OK) give_pinned(g->members[0].d, g->words);
    free(g);
}

void td_cuda_group_abort(td_npu_group *g) {
    atomic_store(word_at(g, 0), 1);
}

bool td_cuda_group_is_aborted(const td_npu_group *g) {
    return atomic_load(word_at(g, 0)) != 0;
}

void td_cuda_group_reset(td_npu_group *g) {
    td_error err = {0};
    if (td_cuda_group_is_aborted(g) && begin(g, &err) != TD_OK)
        td_err("%s", err.text); /* sums fail until another reset can */
}

bool td_cuda_group_gave_up(const td_cuda_npu *d) {
    const td_npu_group *g = d->group;
    for (uint32_t i = 0; g && i < g->n; i++)
        if (g->members[i].d == d) return atomic_load(word_at(g, 1 + i)) != 0;
    return false;
}
