/*
 * Several cards of one backend, for tests of the sum over them: the cards, what each adds, a sum that is eager or captured
 * with a thread for each card, and the right result. The including file defines CLUSTER_DEVICE, WIDTH and ROWS.
 */
#ifndef TD_TESTS_CARD_CLUSTER_H
#define TD_TESTS_CARD_CLUSTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/math/rng.h"
#include "npu/npu.h"
#include "tests/td_test.h"

#define CARDS_MAX 4
#define N ((size_t)ROWS * WIDTH)

typedef struct {
    uint32_t          index;
    td_npu           *npu;
    const td_npu_ops *ops;
    td_npu_stream    *stream;
    td_npu_block     *block;
    td_npu_graph     *graph;
    td_step_counts   *counts, *dev_counts; /* pinned, device */
    td_bf16          *add[3], *out;        /* device */
    td_bf16          *parts[3], *got;      /* pinned, [N] */
    bool              captured;
    bool              exact; /* parts are words of exact sums, as many as their bytes have */
    td_status         st;
    pthread_t         thread;
} card;

typedef struct {
    uint32_t      n;
    card          cards[CARDS_MAX];
    td_npu_group *group;
} cluster;

static inline td_step step_of(const card *c) {
    return (td_step){.max_tok = ROWS, .host = {.counts = c->counts}, .dev = {.counts = c->dev_counts}};
}

/* @return the first failure, with its sentence. */
static inline td_status open_cards(cluster *x, uint32_t n, td_error *err) {
    td_npu *npus[CARDS_MAX];
    *x = (cluster){0};
    for (; x->n < n; x->n++) {
        card *c = &x->cards[x->n];
        *c = (card){.index = x->n};
        td_status st = td_npu_open(CLUSTER_DEVICE, &(td_npu_config){.act_dtype = TD_DT_BF16, .card = x->n}, &c->npu, err);
        if (st != TD_OK) return st;
        npus[x->n] = c->npu;
        c->ops = c->npu->ops;
    }
    return x->cards[0].ops->group_create(npus, n, &x->group, err);
}

static inline void close_cards(cluster *x) {
    if (x->group) x->cards[0].ops->group_destroy(x->group);
    while (x->n) {
        card *c = &x->cards[--x->n];
        c->ops->close(c->npu);
    }
}

/* What card c adds: n_adds arrays, of which one may be the output itself. */
static inline td_status prepare(card *c, td_npu_group *g, uint32_t n_adds, bool in_place, td_error *err) {
    td_block_desc desc = {.kind = TD_BLOCK_ALL_REDUCE, .layer = TD_NO_LAYER, .max_tok = ROWS};
    desc.all_reduce = (td_all_reduce_desc){.width = c->exact ? WIDTH / 2 : WIDTH, .exact = c->exact, .group = g};
    td_status st = c->ops->stream_create(c->npu, &c->stream, err);
    if (st == TD_OK) st = c->ops->host_alloc(c->npu, sizeof *c->counts, (void **)&c->counts, err);
    if (st == TD_OK) st = c->ops->alloc(c->npu, sizeof *c->counts, (void **)&c->dev_counts, err);
    if (st == TD_OK) st = c->ops->alloc(c->npu, N * 2, (void **)&c->out, err);
    if (st == TD_OK) st = c->ops->host_alloc(c->npu, N * 2, (void **)&c->got, err);
    for (uint32_t k = 0; st == TD_OK && k < n_adds; k++) {
        bool own = !(in_place && k == n_adds - 1);
        if (own) st = c->ops->alloc(c->npu, N * 2, (void **)&c->add[k], err);
        if (st == TD_OK) st = c->ops->host_alloc(c->npu, N * 2, (void **)&c->parts[k], err);
        if (st != TD_OK) return st;
        for (size_t i = 0; i < N; i++)
            c->parts[k][i] = td_f32_to_bf16((float)(td_rng_uniform(3, c->index * 3 + k, i) - 0.5) * (1 << (c->index * 3)));
        desc.all_reduce.add[k] = own ? c->add[k] : c->out;
        st = c->ops->copy(c->npu, c->stream, (void *)desc.all_reduce.add[k], c->parts[k], N * 2, TD_COPY_H2D);
    }
    desc.all_reduce.out = c->out;
    if (st == TD_OK) st = c->ops->block_create(c->npu, &desc, &c->block, err);
    if (st != TD_OK) return st;
    *c->counts = (td_step_counts){.n_tok = ROWS};
    st = c->ops->copy(c->npu, c->stream, c->dev_counts, c->counts, sizeof *c->counts, TD_COPY_H2D);
    if (st == TD_OK) st = c->ops->stream_sync(c->npu, c->stream);
    return st;
}

static inline void give_back(card *c) {
    if (c->stream) c->ops->stream_destroy(c->npu, c->stream);
    if (c->graph) c->ops->graph_destroy(c->npu, c->graph);
    if (c->block) c->ops->block_destroy(c->npu, c->block);
    if (c->out) c->ops->free(c->npu, c->out, N * 2);
    if (c->got) c->ops->host_free(c->npu, c->got, N * 2);
    if (c->counts) c->ops->host_free(c->npu, c->counts, sizeof *c->counts);
    if (c->dev_counts) c->ops->free(c->npu, c->dev_counts, sizeof *c->counts);
    for (size_t k = 0; k < 3; k++) {
        if (c->add[k]) c->ops->free(c->npu, c->add[k], N * 2);
        if (c->parts[k]) c->ops->host_free(c->npu, c->parts[k], N * 2);
    }
}

static inline td_status sum(card *c) {
    td_step   step = step_of(c);
    td_status st = TD_OK;
    if (!c->captured) {
        st = c->ops->enqueue(c->npu, c->stream, c->block, &step);
    } else {
        st = c->ops->graph_begin(c->npu, c->stream);
        if (st != TD_OK) return st;
        st = c->ops->enqueue(c->npu, c->stream, c->block, &step);
        td_status ended = c->ops->graph_end(c->npu, c->stream, &c->graph, NULL);
        if (st == TD_OK) st = ended;
        if (st == TD_OK) st = c->ops->graph_launch(c->npu, c->stream, c->graph);
    }
    if (st == TD_OK) st = c->ops->copy(c->npu, c->stream, c->got, c->out, N * 2, TD_COPY_D2H);
    return st;
}

typedef struct {
    card         *c;
    td_npu_group *group;
} turn;

/* As the model does it: who fails aborts the group. */
static inline void *take_turn(void *arg) {
    turn *t = arg;
    card *c = t->c;
    c->st = sum(c);
    if (c->st != TD_OK) c->ops->group_abort(t->group);
    td_status synced = c->ops->stream_sync(c->npu, c->stream);
    if (c->st == TD_OK) c->st = synced;
    if (synced != TD_OK) c->ops->group_abort(t->group);
    return NULL;
}

static inline td_status sum_all(cluster *x) {
    turn      turns[CARDS_MAX];
    td_status st = TD_OK;
    for (uint32_t i = 0; i < x->n; i++) {
        turns[i] = (turn){&x->cards[i], x->group};
        pthread_create(&x->cards[i].thread, NULL, take_turn, &turns[i]);
    }
    for (uint32_t i = 0; i < x->n; i++) {
        pthread_join(x->cards[i].thread, NULL);
        if (st == TD_OK) st = x->cards[i].st;
    }
    return st;
}

static inline void expect_sums(const cluster *x, uint32_t n_adds) {
    for (size_t at = 0; at < N; at++) {
        float total = 0;
        for (uint32_t i = 0; i < x->n; i++) {
            float part = 0;
            for (uint32_t k = 0; k < n_adds; k++) part += td_bf16_to_f32(x->cards[i].parts[k][at]);
            part = td_bf16_to_f32(td_f32_to_bf16(part));
            total = i ? total + part : part;
        }
        for (uint32_t i = 0; i < x->n; i++)
            if (x->cards[i].got[at] != td_f32_to_bf16(total))
                fail_msg("%u cards, %u adds, value %zu of card %u: %g, not %g", x->n, n_adds, at, i,
                         (double)td_bf16_to_f32(x->cards[i].got[at]), (double)total);
    }
}

TEST(cluster_sums) {
    for (uint32_t n = 2; n <= CARDS_MAX; n += 2)
        for (uint32_t n_adds = 0; n_adds <= 3; n_adds++)
            for (int way = 0; way < 3; way++) { /* eager, in place, captured */
                AT_END(close_cards) cluster x = {0};
                td_error                    err = {0};
                if (way == 1 && !n_adds) continue;
                if (open_cards(&x, n, &err) != TD_OK) fail_msg("%s", err.text);
                for (uint32_t i = 0; i < n; i++) {
                    if (prepare(&x.cards[i], x.group, n_adds, way == 1, &err) != TD_OK) fail_msg("%s", err.text);
                    x.cards[i].captured = way == 2;
                }
                OK(sum_all(&x));
                expect_sums(&x, n_adds);
                for (uint32_t i = 0; i < n; i++) give_back(&x.cards[i]);
            }
}

/* One waits; it is freed, the group is useless until the reset, and whole after it. */
TEST(cluster_gives_up) {
    for (uint32_t n = 2; n <= CARDS_MAX; n += 2) {
        AT_END(close_cards) cluster x;
        td_error                    err = {0};
        if (open_cards(&x, n, &err) != TD_OK) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < n; i++)
            if (prepare(&x.cards[i], x.group, 1, false, &err) != TD_OK) fail_msg("%s", err.text);
        turn alone = {&x.cards[1], x.group};
        pthread_create(&x.cards[1].thread, NULL, take_turn, &alone);
        usleep(50000);
        x.cards[0].ops->group_abort(x.group);
        pthread_join(x.cards[1].thread, NULL);
        assert_int_equal(x.cards[1].st, TD_EDEVICE);
        td_step step = step_of(&x.cards[0]);
        assert_int_equal(x.cards[0].ops->enqueue(x.cards[0].npu, x.cards[0].stream, x.cards[0].block, &step), TD_EDEVICE);
        x.cards[0].ops->group_reset(x.group);
        OK(sum_all(&x));
        expect_sums(&x, 1);
        for (uint32_t i = 0; i < n; i++) give_back(&x.cards[i]);
    }
}

/* A group's life in a process of its own, in which one call fails: it is told in a sentence, nothing hangs or is left. */
static inline td_status cluster_failure(int which, char *said, size_t bytes) {
    int   ends[2], status;
    char  number[16];
    pid_t child;
    assert_int_equal(pipe(ends), 0);
    snprintf(number, sizeof number, "%d", which);
    if ((child = fork()) == 0) {
        cluster  x;
        td_error err = {0};
        dup2(ends[1], STDERR_FILENO);
        setenv("TD_STANDIN_FAIL", number, 1);
        if (which) setenv("TD_STANDIN_CONNECT_MS", "300", 1); /* where one fails, the other need not be waited for */
        alarm(300);
        td_status st = open_cards(&x, 2, &err);
        for (uint32_t i = 0; st == TD_OK && i < 2; i++) st = prepare(&x.cards[i], x.group, 2, false, &err);
        if (st == TD_OK) {
            x.cards[1].captured = x.cards[0].captured = true;
            st = sum_all(&x);
        }
        if (st != TD_OK && err.text[0]) fprintf(stderr, "%s\n", err.text);
        for (uint32_t i = 0; i < x.n; i++) give_back(&x.cards[i]);
        close_cards(&x);
        _exit(-st);
    }
    close(ends[1]);
    FILE  *f = fdopen(ends[0], "r");
    size_t n = fread(said, 1, bytes - 1, f);
    said[n] = 0;
    fclose(f);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) fail_msg("call %d: signal %d: %s", which, WTERMSIG(status), said);
    return (td_status)-WEXITSTATUS(status);
}

#endif
