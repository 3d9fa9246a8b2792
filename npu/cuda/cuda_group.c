/*
 * DESIGN. A group has for each card an exchange: words by which the cards meet, and two places for the card's part of a sum
 * (cards.cu). It lies in the card's memory where all cards can reach each other's (peer access), else in pinned memory of
 * the host, which every card reaches; the kernels are the same. What is larger than a place goes through in pieces.
 *
 * A sum that waits for a card which will not come polls a word in pinned memory, too: an abort sets it. The kernel then says
 * so in another one, and everything behind it on the stream still runs, on numbers that are nobody's, but that it leaves the
 * places of parts alone: the stream's next synchronisation returns the failure.
 */
#include "npu/cuda/cuda_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"

#define SIGNALS_BYTES 256             /* in front of the places */
#define PLACE_BYTES ((size_t)2 << 20) /* a card's part of a sum, or of a piece of it */
#define PLACE_VALUES (PLACE_BYTES / sizeof(td_bf16))
#define PLACE_GROUPS (PLACE_VALUES / TD_CUDA_SUM_VALUES)
#define EXCHANGE_BYTES (SIGNALS_BYTES + 2 * PLACE_BYTES)
#define TWO_SHOT_BYTES ((size_t)256 << 10) /* of the rows of a bucket, from three cards on */
#define STATE_WORDS 3
#define LINE 64

typedef struct {
    td_cuda_npu *d;
    void        *exchange;                   /* device memory, or pinned */
    void        *state;                      /* device memory: meetings, sums, gave up */
    void        *stop, *gave_up;             /* as the card sees them */
    char        *exchange_of[TD_CUDA_CARDS]; /* of each card, as this one sees it */
    uint32_t     opened;                     /* a bit for each card whose memory it was given access to */
} member;

struct td_npu_group {
    uint32_t n;
    bool     is_direct; /* by peer access */
    char    *words;     /* pinned, on lines of their own: stop; of each card whether it gave up */
    member   members[TD_CUDA_CARDS];
};

static _Atomic uint32_t *word_at(const td_npu_group *g, uint32_t line) {
    return (_Atomic uint32_t *)(void *)(g->words + (size_t)line * LINE);
}
static member *member_of(td_npu_group *g, const td_cuda_npu *d) {
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
            if (!(g->members[i].opened >> k & 1) || td_cuda_enter(d) != TD_OK) continue;
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
        TD_TRY(td_cuda_enter(d));
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
static td_status zero_words(const td_npu_group *g, member *m, td_error *err) {
    td_status st = zero(m->d, m->state, STATE_WORDS * sizeof(uint32_t), err);
    if (!g->is_direct) memset(m->exchange, 0, SIGNALS_BYTES);
    if (g->is_direct && st == TD_OK) st = zero(m->d, m->exchange, SIGNALS_BYTES, err);
    td_status ended =
        td_cuda_done(m->d, "cuStreamSynchronize", m->d->cu->cuStreamSynchronize(m->d->setup), st == TD_OK ? err : NULL);
    return st != TD_OK ? st : ended;
}

/* Nobody has met or summed yet. */
static td_status begin(td_npu_group *g, td_error *err) {
    for (uint32_t i = 0; i < g->n; i++) {
        member *m = &g->members[i];
        TD_TRY(td_cuda_enter(m->d));
        TD_TRY(zero_words(g, m, err));
        atomic_store(word_at(g, 1 + i), 0);
    }
    atomic_store(word_at(g, 0), 0);
    return TD_OK;
}

static td_status take_exchange(td_npu_group *g, member *m, td_error *err) {
    TD_TRY(td_cuda_enter(m->d));
    TD_TRY(td_cuda_take(m->d, STATE_WORDS * sizeof(uint32_t), &m->state, err));
    return g->is_direct ? td_cuda_take(m->d, EXCHANGE_BYTES, &m->exchange, err)
                        : pinned(m->d, EXCHANGE_BYTES, &m->exchange, err);
}

/* What a card sees of the others' exchanges, and of the words. */
static td_status look(td_npu_group *g, uint32_t self, td_error *err) {
    member *m = &g->members[self];
    TD_TRY(td_cuda_enter(m->d));
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
    TD_TRY(td_cuda_enter(first));
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
    if (n < 2 || n > TD_CUDA_CARDS)
        return td_fail(err, TD_EINVAL, "a group has 2 to %d CUDA cards, not %u", TD_CUDA_CARDS, n);
    td_npu_group *g = calloc(1, sizeof *g);
    if (!g) return td_fail(err, TD_ENOMEM, "out of memory for a group of cards");
    g->n = n;
    for (uint32_t i = 0; i < n; i++) {
        td_cuda_npu *d = (td_cuda_npu *)cards[i];
        bool         twice = member_of(g, d) != NULL || d->group;
        for (uint32_t k = 0; k < i; k++) twice |= g->members[k].d->config.card == d->config.card;
        g->members[i].d = d;
        if (!twice) continue;
        free(g);
        return td_fail(err, TD_EINVAL, "CUDA card %u is in a group twice", d->config.card);
    }
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
        member *m = &g->members[i];
        m->d->group = NULL;
        if (td_cuda_enter(m->d) != TD_OK) continue;
        td_cuda_give(m->d, m->state);
        if (g->is_direct)
            td_cuda_give(m->d, m->exchange);
        else
            give_pinned(m->d, m->exchange);
    }
    close_peers(g);
    if (td_cuda_enter(g->members[0].d) == TD_OK) give_pinned(g->members[0].d, g->words);
    free(g);
}

void td_cuda_group_abort(td_npu_group *g) {
    atomic_store(word_at(g, 0), 1);
}

static bool is_aborted(const td_npu_group *g) {
    return atomic_load(word_at(g, 0)) != 0;
}

void td_cuda_group_reset(td_npu_group *g) {
    td_error err = {0};
    if (is_aborted(g) && begin(g, &err) != TD_OK) td_err("%s", err.text); /* sums fail until another reset can */
}

bool td_cuda_group_gave_up(const td_cuda_npu *d) {
    const td_npu_group *g = d->group;
    for (uint32_t i = 0; g && i < g->n; i++)
        if (g->members[i].d == d) return atomic_load(word_at(g, 1 + i)) != 0;
    return false;
}

/* ---- the sum ------------------------------------------------------------------------------------- */

static size_t plan_sum(const td_block_desc *desc, td_cuda_places *at) {
    (void)desc;
    *at = (td_cuda_places){0};
    return 0;
}

static td_status check_sum(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_all_reduce_desc *a = &desc->all_reduce;
    if (!a->width || a->width % TD_CUDA_SUM_VALUES || a->width > PLACE_VALUES)
        return td_fail(err, TD_ENOTSUP, "cards sum rows of %d to %zu values in steps of %d, not of %u", TD_CUDA_SUM_VALUES,
                       PLACE_VALUES, TD_CUDA_SUM_VALUES, a->width);
    if (!a->out || !member_of(a->group, d))
        return td_fail(err, TD_EINVAL, "the device is not in the group that it is to sum with, or the sum has no place");
    return TD_OK;
}

/* A piece of a sum: rows of the step, from `first` on. */
typedef struct {
    td_npu_group             *g;
    const td_all_reduce_desc *a;
    member                   *m;
    uint32_t                  self;
    size_t                    first, rows, blocks;
} piece;

static void *rows_of(const td_cuda_run *r, const piece *p, const void *buffer) {
    size_t row = p->a->width * sizeof(td_bf16);
    return buffer ? (char *)td_cuda_at_row(r, buffer, row) + p->first * row : NULL;
}
static const void *part_of(const piece *p, uint32_t card) {
    return card < p->g->n ? p->m->exchange_of[card] + SIGNALS_BYTES : NULL;
}
static const void *signals_of(const piece *p, uint32_t card) {
    return card < p->g->n ? p->m->exchange_of[card] : NULL;
}
#define OF_CARDS(of, p)                                                                                             \
    TD_P(of(p, 0)), TD_P(of(p, 1)), TD_P(of(p, 2)), TD_P(of(p, 3)), TD_P(of(p, 4)), TD_P(of(p, 5)), TD_P(of(p, 6)), \
        TD_P(of(p, 7))

static void meet(td_cuda_run *r, const piece *p, bool begins) {
    TD_CUDA_LAUNCH(r, CARDS_MEET, TD_GRID(1, 1, 1), 0, OF_CARDS(signals_of, p), TD_U(p->g->n), TD_U(p->self),
                   TD_P(p->m->state), TD_U(begins), TD_P(p->m->stop), TD_P(p->m->gave_up));
}

/* @param stretch the card whose stretch it is, or the number of cards: all */
static void sum_parts(td_cuda_run *r, const piece *p, uint32_t stretch, const void *out) {
    TD_CUDA_LAUNCH(r, CARDS_SUM, TD_GRID(p->blocks, 1, 1), 0, TD_P(td_cuda_n_tok(r).count), TD_U(p->first), TD_U(p->rows),
                   OF_CARDS(part_of, p), TD_U(p->g->n), TD_U(p->a->width), TD_P(p->m->state), TD_U(PLACE_GROUPS),
                   TD_U(stretch), TD_P(part_of(p, p->self)), TD_P(out));
}

static void launch_piece(td_cuda_run *r, const piece *p) {
    const td_all_reduce_desc *a = p->a;
    void                     *out = rows_of(r, p, a->out);
    TD_CUDA_LAUNCH(r, CARDS_PART, TD_GRID(p->blocks, 1, 1), 0, TD_P(td_cuda_n_tok(r).count), TD_U(p->first), TD_U(p->rows),
                   TD_P(rows_of(r, p, a->add[0])), TD_P(rows_of(r, p, a->add[1])), TD_P(rows_of(r, p, a->add[2])),
                   TD_U(a->width), TD_P(p->m->state), TD_P(part_of(p, p->self)), TD_U(PLACE_GROUPS));
    meet(r, p, true);
    if (p->g->n < 3 || p->rows * a->width * sizeof(td_bf16) < TWO_SHOT_BYTES) {
        sum_parts(r, p, p->g->n, out);
        return;
    }
    sum_parts(r, p, p->self, out);
    meet(r, p, false);
    TD_CUDA_LAUNCH(r, CARDS_GATHER, TD_GRID(p->blocks, 1, 1), 0, TD_P(td_cuda_n_tok(r).count), TD_U(p->first), TD_U(p->rows),
                   OF_CARDS(part_of, p), TD_U(p->g->n), TD_U(a->width), TD_P(p->m->state), TD_U(PLACE_GROUPS), TD_P(out));
}

static void launch_sum(td_cuda_run *r, const td_npu_block *b) {
    const td_all_reduce_desc *a = &b->desc.all_reduce;
    member                   *m = member_of(a->group, r->d);
    size_t                    most = PLACE_VALUES / a->width, left = r->step->max_tok;
    if (is_aborted(a->group)) {
        r->status = TD_EDEVICE;
        return;
    }
    for (size_t first = 0; first < r->step->max_tok; first += most, left -= most) {
        piece p = {a->group, a, m, (uint32_t)(m - a->group->members), first, left < most ? left : most, 0};
        p.blocks = td_div_up(p.rows * a->width, (size_t)TD_CUDA_SUM_THREADS * TD_CUDA_SUM_VALUES);
        launch_piece(r, &p);
        if (left <= most) break;
    }
}

const td_cuda_block_kind td_cuda_all_reduce = {.plan = plan_sum, .check = check_sum, .launch = launch_sum};
