/*
 * Several Ascend cards as one, on the stand-in. Sums are in the order of the cards on two and four of them, whatever each
 * adds, eager and captured, and with more rows than are gathered at once. A card may not come to a sum; some cards cannot
 * form a group; every call of a group's life fails once. Routed experts are right although each card's router has chosen
 * others.
 */
#define CLUSTER_DEVICE "npu"
#define WIDTH 40
#define ROWS 1100 /* more than two chunks of a gathered sum */
#include "card_cluster.h"
#include "tests/npu/unified_step.h"
#include "tests/td_test.h"

typedef struct {
    _Atomic bool begun, ended;
} slow_call;

static void be_slow(void *arg) {
    slow_call *call = arg;
    atomic_store(&call->begun, true);
    usleep(300000); /* the abort comes meanwhile */
    atomic_store(&call->ended, true);
}

/* Whoever has synchronised a stream that was aborted finds no host call of it running. */
TEST(host_calls_end_before_the_stream_does) {
    AT_END(close_cards) cluster x;
    td_error                    err = {0};
    slow_call                   call = {0};
    if (open_cards(&x, 2, &err) != TD_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < 2; i++)
        if (prepare(&x.cards[i], x.group, 1, false, &err) != TD_OK) fail_msg("%s", err.text);
    card   *c = &x.cards[0];
    td_step step = step_of(c);
    OK(c->ops->host_call(c->npu, c->stream, be_slow, &call));
    OK(c->ops->enqueue(c->npu, c->stream, c->block, &step));
    while (!atomic_load(&call.begun)) usleep(100);
    c->ops->group_abort(x.group);
    assert_int_equal(c->ops->stream_sync(c->npu, c->stream), TD_EDEVICE);
    assert_true(atomic_load(&call.ended));
    c->ops->group_reset(x.group);
    OK(sum_all(&x));
    for (uint32_t i = 0; i < 2; i++) give_back(&x.cards[i]);
}

/* Mutexes that the program has, counted: linked with --wrap=pthread_mutex_init,--wrap=pthread_mutex_destroy. */
static _Atomic int mutexes;

int __real_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a);
int __real_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);

int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a) {
    mutexes++;
    return __real_pthread_mutex_init(m, a);
}
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m) {
    mutexes--;
    return __real_pthread_mutex_destroy(m);
}

/* Nothing of it is left behind. */
TEST(what_is_no_group) {
    cluster  x;
    td_error err = {0};
    OK(open_cards(&x, 2, &err));
    int           before = mutexes;
    td_npu       *twice[] = {x.cards[1].npu, x.cards[1].npu};
    td_npu_group *g;
    assert_int_equal(x.cards[0].ops->group_create(twice, 2, &g, &err), TD_EINVAL);
    assert_string_equal(err.text, "card 1 is in the group twice");
    assert_int_equal(x.cards[0].ops->group_create(twice, 1, &g, &err), TD_EINVAL);
    assert_true(before > 0); /* those of the group that there is */
    assert_int_equal(mutexes, before);
    close_cards(&x);
    assert_int_equal(mutexes, before - 2);
}

/* ---- routed experts: no two cards' routers need agree ---------------------------------------------- */

enum { HIDDEN = 32, INTER = 32, EXPERTS = 6, CHOSEN = 2, TOKENS = 5, PAIRS = TOKENS * CHOSEN };

/** What a card has of the experts, and what its router said. */
typedef struct {
    td_npu_weight       *of[3][EXPERTS];
    const td_npu_weight *list[3][EXPERTS];
    int32_t             *ids; /* device, as the others */
    float               *weights;
    td_bf16             *x, *out;
    td_bf16             *got; /* pinned */
} share;

static void *put_bytes(card *c, const void *from, size_t bytes) {
    void    *dev, *pinned;
    td_error err = {0};
    OK(c->ops->alloc(c->npu, bytes, &dev, &err));
    OK(c->ops->host_alloc(c->npu, bytes, &pinned, &err));
    memcpy(pinned, from, bytes);
    OK(c->ops->copy(c->npu, c->stream, dev, pinned, bytes, TD_COPY_H2D));
    OK(c->ops->stream_sync(c->npu, c->stream));
    c->ops->host_free(c->npu, pinned, bytes);
    return dev;
}

static void open_share(card *c, share *s, uint32_t chosen_by) {
    td_error err = {0};
    int32_t  ids[PAIRS];
    float    weights[PAIRS], values[INTER * HIDDEN];
    td_bf16  x[TOKENS * HIDDEN];
    *s = (share){0};
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) x[i] = td_f32_to_bf16((float)td_rng_uniform(5, 0, i) - 0.5f);
    for (uint32_t i = 0; i < PAIRS; i++) {
        ids[i] = (int32_t)((i + chosen_by) % EXPERTS);
        weights[i] = 1 + (float)td_rng_uniform(5, 1 + chosen_by, i);
    }
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            td_tensor_view v = {.dtype = TD_DT_F32, .rank = 2, .shape = {INTER, HIDDEN}, .data = values};
            for (uint32_t i = 0; i < INTER * HIDDEN; i++)
                values[i] = (float)td_rng_uniform(6 + c->index, m * EXPERTS + e, i) - 0.5f;
            if (c->ops->weight_create(c->npu, TD_WEIGHT_W8A8, &v, &s->of[m][e], &err) != TD_OK) fail_msg("%s", err.text);
            s->list[m][e] = s->of[m][e];
        }
    s->x = put_bytes(c, x, sizeof x);
    s->ids = put_bytes(c, ids, sizeof ids);
    s->weights = put_bytes(c, weights, sizeof weights);
    s->out = put_bytes(c, x, sizeof x);
    OK(c->ops->host_alloc(c->npu, sizeof x, (void **)&s->got, &err));
}

static void close_share(card *c, share *s) {
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t e = 0; e < EXPERTS; e++) c->ops->weight_destroy(c->npu, s->of[m][e]);
    c->ops->free(c->npu, s->x, TOKENS * HIDDEN * sizeof *s->x);
    c->ops->free(c->npu, s->ids, PAIRS * sizeof *s->ids);
    c->ops->free(c->npu, s->weights, PAIRS * sizeof *s->weights);
    c->ops->free(c->npu, s->out, TOKENS * HIDDEN * sizeof *s->out);
    c->ops->host_free(c->npu, s->got, TOKENS * HIDDEN * sizeof *s->got);
}

static td_block_desc experts_of(const share *s, td_npu_group *group) {
    return (td_block_desc){.kind = TD_BLOCK_EXPERTS,
                           .layer = TD_NO_LAYER,
                           .max_tok = TOKENS,
                           .experts = {.hidden = HIDDEN,
                                       .inter = INTER,
                                       .n_experts = EXPERTS,
                                       .top_k = CHOSEN,
                                       .gate = s->list[0],
                                       .up = s->list[1],
                                       .down = s->list[2],
                                       .in = s->x,
                                       .ids = s->ids,
                                       .weights = s->weights,
                                       .out = s->out,
                                       .group = group}};
}

/** What each card's part of the experts gives, one thread for all: nothing waits but on the streams. */
static void run_experts(cluster *x, share *shares, td_npu_group *group, bool captured) {
    td_step_counts counts = {.n_tok = TOKENS};
    td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
    td_npu_block  *blocks[CARDS_MAX];
    td_npu_graph  *graphs[CARDS_MAX];
    td_error       err = {0};
    for (uint32_t i = 0; i < x->n; i++) {
        card         *c = &x->cards[i];
        td_block_desc desc = experts_of(&shares[i], group);
        if (c->ops->block_create(c->npu, &desc, &blocks[i], &err) != TD_OK) fail_msg("%s", err.text);
        if (captured) OK(c->ops->graph_begin(c->npu, c->stream));
        OK(c->ops->enqueue(c->npu, c->stream, blocks[i], &step));
        if (captured) OK(c->ops->graph_end(c->npu, c->stream, &graphs[i], &err));
    }
    for (uint32_t i = 0; i < x->n; i++) {
        card *c = &x->cards[i];
        if (captured) OK(c->ops->graph_launch(c->npu, c->stream, graphs[i]));
        OK(c->ops->copy(c->npu, c->stream, shares[i].got, shares[i].out, TOKENS * HIDDEN * sizeof(td_bf16), TD_COPY_D2H));
    }
    for (uint32_t i = 0; i < x->n; i++) {
        card *c = &x->cards[i];
        OK(c->ops->stream_sync(c->npu, c->stream));
        if (captured) c->ops->graph_destroy(c->npu, graphs[i]);
        c->ops->block_destroy(c->npu, blocks[i]);
    }
}

/* Each card's router has chosen other experts with other weights. In a group all compute the first card's, to the bit. */
TEST(experts_of_the_first_card) {
    for (uint32_t n = 2; n <= CARDS_MAX; n += 2) {
        AT_END(close_cards) cluster x;
        share                       same[CARDS_MAX], others[CARDS_MAX];
        td_error                    err = {0};
        if (open_cards(&x, n, &err) != TD_OK) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < n; i++) {
            if (x.cards[i].ops->stream_create(x.cards[i].npu, &x.cards[i].stream, &err) != TD_OK) fail_msg("%s", err.text);
            open_share(&x.cards[i], &same[i], 0);
            open_share(&x.cards[i], &others[i], i);
        }
        run_experts(&x, same, NULL, false);
        run_experts(&x, others, NULL, false);
        for (uint32_t i = 1; i < n; i++)
            assert_memory_not_equal(others[i].got, same[i].got, TOKENS * HIDDEN * sizeof(td_bf16));
        for (int captured = 0; captured < 2; captured++) {
            run_experts(&x, others, x.group, captured);
            for (uint32_t i = 0; i < n; i++)
                assert_memory_equal(others[i].got, same[i].got, TOKENS * HIDDEN * sizeof(td_bf16));
        }
        for (uint32_t i = 0; i < n; i++) {
            close_share(&x.cards[i], &same[i]);
            close_share(&x.cards[i], &others[i]);
            give_back(&x.cards[i]);
        }
    }
}

/* The call of each of HCCL's functions that join the cards, found by trying: what is said tells what to do. */
FIRST_TEST(a_ring_that_does_not_form) {
    static const char *const CALLS[] = {"HcclGetRootInfo", "HcclCommInitRootInfo"};
    char                     said[8192];
    int                      call = 1;
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        do {
            assert_true(call < 60);
            (void)cluster_failure(call++, said, sizeof said);
        } while (!strstr(said, CALLS[i]));
        assert_non_null(strstr(said, "cannot be joined"));
        assert_non_null(strstr(said, "free of other processes"));
        assert_non_null(strstr(said, "HCCL_IF_IP"));
    }
}

FIRST_TEST(every_call_fails_once) {
    char said[4096];
    OK(cluster_failure(0, said, sizeof said));
    char *count = strstr(said, "stand-in: ");
    assert_non_null(count);
    int n = atoi(count + strlen("stand-in: ")), failed = 0, step = getenv("TD_TEST_FULL") ? 1 : 3;
    print_message("%d calls\n", n);
    for (int i = 1 + (n % step); i <= n; i += step) {
        td_status st = cluster_failure(i, said, sizeof said);
        if (st != TD_EDEVICE && st != TD_ENOMEM && st != TD_OK) fail_msg("call %d: %d: %s", i, (int)st, said);
        failed += st != TD_OK;
    }
    assert_true(failed > n / step / 2);
}

int main(void) {
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    setenv("TD_STANDIN_DEVICES", "4", 1);
    setenv("TD_STANDIN_DELAY_US", "30", 0);
    return tests_run();
}
