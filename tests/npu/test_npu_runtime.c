/* Streams, events, copies, host calls and graphs, with and without threads of their own. The CTest entry with TD_CHAOS_SEED
 * delays ops at random. */
#include "npu_test_util.h"
#include "tests/td_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

TEST(names) {
    td_npu       *npu;
    td_error      err = {0};
    td_npu_config c = {.act_dtype = TD_DT_BF16, .host = &(td_host_npu_config){0}};
    setenv("ASCEND_HOME_PATH", "/nonexistent",
           1); /* a machine without CANN or NVIDIA's driver, or with: nothing is opened without a pool or card */
    static const char *const CARDS[] = {"ascend", "npu", "cuda"};
    for (int i = 0; i < 3; i++) {
        c.card = UINT32_MAX;
        assert_int_not_equal(td_npu_open(CARDS[i], &c, &npu, &err), TD_OK);
        assert_true(err.text[0]);
        assert_null(npu);
    }
    unsetenv("ASCEND_HOME_PATH");
    assert_int_equal(td_npu_open("abacus", &c, &npu, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "host"));                        /* names what is there */
    assert_int_equal(td_npu_open("host", &c, &npu, &err), TD_EINVAL); /* no pool */
}

TEST(memory_is_zeroed_and_aligned) {
    AT_END(rig_close) rig g = rig_open(1, TD_DT_BF16, false);
    for (size_t bytes = 1; bytes < 10000000; bytes = bytes * 7 + 3) {
        char    *p, *h;
        td_error err = {0};
        OK(g.npu->ops->alloc(g.npu, bytes, (void **)&p, &err));
        OK(g.npu->ops->host_alloc(g.npu, bytes, (void **)&h, &err));
        assert_int_equal((uintptr_t)p % 64 + (uintptr_t)h % 64, 0);
        for (size_t i = 0; i < bytes; i += 997) assert_int_equal(p[i] | h[i], 0);
        memset(p, 1, bytes);
        g.npu->ops->free(g.npu, p, bytes);
        g.npu->ops->host_free(g.npu, h, bytes);
    }
    td_npu_caps caps;
    g.npu->ops->caps(g.npu, &caps);
    assert_true(caps.unified_memory && caps.memory_total > 0 && strstr(caps.text, "host"));
}

/* ---- order --------------------------------------------------------------------------------------- */

typedef struct {
    int            *log;
    _Atomic size_t *n;
    int             id;
    useconds_t      nap;
} note;

static void take_note(void *arg) {
    note *e = arg;
    usleep(e->nap);
    e->log[atomic_fetch_add(e->n, 1)] = e->id;
}

#define MANY 3000 /* more than a stream's ring holds */

TEST(a_stream_runs_in_order) {
    for (int own = 0; own < 2; own++) {
        AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, own);
        static int            log[MANY];
        static note           notes[MANY];
        _Atomic size_t        n = 0;
        for (int i = 0; i < MANY; i++) {
            notes[i] = (note){log, &n, i, i == 0 ? 2000 : 0};
            OK(g.npu->ops->host_call(g.npu, g.stream, take_note, &notes[i]));
        }
        OK(g.npu->ops->stream_sync(g.npu, g.stream));
        assert_int_equal(n, MANY);
        for (int i = 0; i < MANY; i++) assert_int_equal(log[i], i);
    }
}

static void add_one(void *arg) {
    ++*(int *)arg;
}

/* Two streams hand a value to and fro by bells, each hop rings the other's. */
TEST(bells_order_streams) {
    AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, true);
    const td_npu_ops     *o = g.npu->ops;
    td_npu_stream        *s[2] = {g.stream};
    static td_bell        bell[2];
    td_error              err = {0};
    int                   value[2] = {0};
    OK(o->stream_create(g.npu, &s[1], &err));
    for (int hop = 0; hop < 500; hop++) {
        int me = hop & 1;
        if (hop) OK(o->bell_wait(g.npu, s[me], &bell[!me], NULL));
        OK(o->copy(g.npu, s[me], &value[me], &value[!me], sizeof(int), TD_COPY_H2D));
        OK(o->host_call(g.npu, s[me], add_one, &value[me]));
        OK(o->bell_ring(g.npu, s[me], &bell[me], NULL));
    }
    for (int i = 0; i < 2; i++) OK(o->stream_sync(g.npu, s[i]));
    assert_int_equal(value[1], 500); /* hop 499 ran on stream 1 */
    assert_int_equal(atomic_load(&bell[0]), 0);
    assert_int_equal(atomic_load(&bell[1]), 1); /* nobody waited for the last */
    atomic_store(&bell[1], 0);
    o->stream_destroy(g.npu, s[1]);
}

/* A host call may wait for the outside; the other stream's blocks go on meanwhile. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            open;
} gate;

static void wait_for_gate(void *arg) {
    gate *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* ---- blocks on streams, graphs --------------------------------------------------------------------- */

#define H 70
#define N 90
#define M 9

typedef struct {
    td_npu_weight *w[3];
    td_npu_block  *b;
    td_bf16        in[M * H], out[M * H];
} mlp;

static void open_mlp(rig *g, mlp *m, uint64_t seed) {
    rnd          r = {.seed = seed};
    FREED float *w = rnd_array(&r, 3 * H * N, 1), *x = rnd_array(&r, M * H, 1);
    m->w[0] = make_weight(g, TD_WEIGHT_W8A8, w, N, H);
    m->w[1] = make_weight(g, TD_WEIGHT_W8A8, w + H * N, N, H);
    m->w[2] = make_weight(g, TD_WEIGHT_BF16, w + 2 * H * N, H, N);
    m->b = make_block(g, &BLOCK_OF(TD_BLOCK_MLP, M, mlp, .hidden = H, .inter = N, .gate = m->w[0], .up = m->w[1],
                                   .down = m->w[2], .in = m->in, .out = m->out));
    for (int i = 0; i < M * H; i++) m->in[i] = td_f32_to_bf16(x[i]);
    memset(m->out, 0, sizeof m->out);
}

/* Two streams share pool and scratch; while a host call of one stands still the other finishes. */
TEST(streams_take_turns) {
    AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, true);
    const td_npu_ops     *o = g.npu->ops;
    td_npu_stream        *other;
    td_error              err = {0};
    static mlp            m[2], alone[2];
    td_step_counts        counts = {.n_tok = M};
    td_step               step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
    gate                  door = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    OK(o->stream_create(g.npu, &other, &err));
    for (int i = 0; i < 2; i++) {
        open_mlp(&g, &m[i], 10 + (uint64_t)i);
        open_mlp(&g, &alone[i], 10 + (uint64_t)i);
        run_block(&g, alone[i].b, &step);
    }
    OK(o->host_call(g.npu, g.stream, wait_for_gate, &door));
    for (int i = 0; i < 50; i++) {
        OK(o->enqueue(g.npu, g.stream, m[0].b, &step));
        OK(o->enqueue(g.npu, other, m[1].b, &step));
    }
    OK(o->stream_sync(g.npu, other));
    assert_memory_equal(m[1].out, alone[1].out, sizeof m[1].out);
    assert_int_equal(m[0].out[0], 0); /* still behind the gate */
    pthread_mutex_lock(&door.lock);
    door.open = true;
    pthread_cond_broadcast(&door.changed);
    pthread_mutex_unlock(&door.lock);
    OK(o->stream_sync(g.npu, g.stream));
    assert_memory_equal(m[0].out, alone[0].out, sizeof m[0].out);
    o->stream_destroy(g.npu, other);
}

TEST(a_graph_replays_with_new_contents) {
    for (int own = 0; own < 2; own++) {
        AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, own);
        const td_npu_ops     *o = g.npu->ops;
        static mlp            a, b;
        td_error              err = {0};
        td_npu_graph         *graph;
        int                   calls = 0;
        td_step_counts        counts = {.n_tok = M};
        td_step               step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
        td_bf16               input[M * H], want[M * H];
        open_mlp(&g, &a, 1);
        open_mlp(&g, &b, 2);
        OK(o->graph_begin(g.npu, g.stream));
        assert_int_equal(o->graph_begin(g.npu, g.stream), TD_EINVAL);
        OK(o->copy(g.npu, g.stream, a.in, input, sizeof input, TD_COPY_H2D));
        OK(o->enqueue(g.npu, g.stream, a.b, &step));
        OK(o->copy(g.npu, g.stream, b.in, a.out, sizeof a.out, TD_COPY_D2H));
        OK(o->enqueue(g.npu, g.stream, b.b, &step));
        OK(o->host_call(g.npu, g.stream, add_one, &calls));
        OK(o->graph_end(g.npu, g.stream, &graph, &err));
        OK(o->stream_sync(g.npu, g.stream));
        assert_int_equal(calls, 0);
        assert_int_equal(a.out[0], 0); /* recorded, not run */
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < M * H; i++) input[i] = td_f32_to_bf16((float)((i * 7 + round) % 31) / 16 - 1);
            counts.n_tok = round == 1 ? 2 : M; /* a step's contents may change too */
            memset(b.out, 0, sizeof b.out);
            OK(o->graph_launch(g.npu, g.stream, graph));
            OK(o->stream_sync(g.npu, g.stream));
            assert_int_equal(calls, round + 1);
            memcpy(want, b.out, sizeof want);
            memcpy(a.in, input, sizeof input);
            run_block(&g, a.b, &step);
            memcpy(b.in, a.out, sizeof a.out);
            memset(b.out, 0, sizeof b.out);
            run_block(&g, b.b, &step);
            assert_memory_equal(b.out, want, sizeof want);
            assert_true(want[0] != 0 && (round != 1 || want[2 * H] == 0));
        }
        o->graph_destroy(g.npu, graph);
        assert_int_equal(o->graph_end(g.npu, g.stream, &graph, &err), TD_EINVAL);
        OK(o->graph_begin(g.npu, g.stream)); /* a capture that is thrown away leaves nothing */
        OK(o->host_call(g.npu, g.stream, add_one, &calls));
        OK(o->graph_end(g.npu, g.stream, NULL, &err));
        OK(o->stream_sync(g.npu, g.stream));
        assert_int_equal(calls, 3);
    }
}

/* A step that does not fit fails at once, or at the next sync of a stream with a thread; the stream goes on after it. */
TEST(a_bad_step_is_reported) {
    for (int own = 0; own < 2; own++) {
        AT_END(rig_close) rig g = rig_open(1, TD_DT_BF16, own);
        static mlp            m;
        open_mlp(&g, &m, 3);
        td_step_counts counts = {.n_tok = M + 1};
        td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
        td_status      now = g.npu->ops->enqueue(g.npu, g.stream, m.b, &step);
        assert_int_equal(now, own ? TD_OK : TD_EINVAL);
        assert_int_equal(g.npu->ops->stream_sync(g.npu, g.stream), own ? TD_EINVAL : TD_OK);
        run_rows(&g, m.b, M);
    }
}
