/*
 * The bridge with the real device and the real experts. What arrives where is compared with a plain double-precision model
 * of the definition. The bits are the same inline and async, with copies between two memories, in one piece and in two
 * halves, and under random delays (the test runs again with TD_CHAOS_SEED).
 */
#include <math.h>

#include "bridge/bridge.h"
#include "core/math/rng.h"
#include "core/threads/chaos.h"
#include "npu/host/host_npu.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/npu/unified_step.h"
#include "tests/td_test.h"

#define SEED 20261121u
#define LAYERS 5
#define EXPERTS 6
#define TOP_K 3
#define HIDDEN 24
#define INTER 16
#define TOKENS 7

static struct {
    float gate[LAYERS][EXPERTS][INTER * HIDDEN], up[LAYERS][EXPERTS][INTER * HIDDEN], down[LAYERS][EXPERTS][HIDDEN * INTER];
    float x[LAYERS][TOKENS * HIDDEN];
    uint16_t ids[LAYERS][TOKENS * TOP_K];
    float    w[LAYERS][TOKENS * TOP_K];
} data;

typedef struct {
    float now[LAYERS][TOKENS * HIDDEN], later[LAYERS][TOKENS * HIDDEN]; /* later: what the layer deferred */
} sums;

static uint64_t g_draws;
static double   draw(void) {
      return td_rng_uniform(SEED, 0, g_draws++);
}

static void fill(float *v, size_t n, double scale) {
    for (size_t i = 0; i < n; i++) { /* values that bf16 holds exactly, as the store keeps them */
        v[i] = td_bf16_to_f32(td_f32_to_bf16((float)((draw() - 0.5) * scale)));
    }
}

BEFORE_ALL {
    print_message("seed %u\n", SEED);
    for (int l = 0; l < LAYERS; l++) {
        for (int e = 0; e < EXPERTS; e++) {
            fill(data.gate[l][e], INTER * HIDDEN, 1);
            fill(data.up[l][e], INTER * HIDDEN, 1);
            fill(data.down[l][e], HIDDEN * INTER, 1);
        }
        fill(data.x[l], TOKENS * HIDDEN, 4);
        for (int t = 0; t < TOKENS; t++) { /* distinct experts, falling weights */
            uint16_t perm[EXPERTS];
            for (uint16_t i = 0; i < EXPERTS; i++) {
                uint16_t j = (uint16_t)(draw() * (i + 1));
                perm[i] = perm[j];
                perm[j] = i;
            }
            for (int j = 0; j < TOP_K; j++) {
                data.ids[l][t * TOP_K + j] = perm[j];
                data.w[l][t * TOP_K + j] = (float)(TOP_K - j) / 4;
            }
        }
    }
}

static void plain_expert(int l, int e, const float *x, double *y) {
    double h[INTER];
    for (int i = 0; i < INTER; i++) {
        double g = 0, u = 0;
        for (int k = 0; k < HIDDEN; k++) {
            g += (double)data.gate[l][e][i * HIDDEN + k] * x[k];
            u += (double)data.up[l][e][i * HIDDEN + k] * x[k];
        }
        h[i] = g / (1 + exp(-g)) * u;
    }
    for (int n = 0; n < HIDDEN; n++) {
        y[n] = 0;
        for (int i = 0; i < INTER; i++) y[n] += data.down[l][e][n * INTER + i] * h[i];
    }
}

static void plain_sums(uint32_t deferred, double now[TOKENS * HIDDEN], double later[TOKENS * HIDDEN], int l) {
    memset(now, 0, TOKENS * HIDDEN * sizeof *now);
    memset(later, 0, TOKENS * HIDDEN * sizeof *later);
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < TOP_K; j++) {
            double y[HIDDEN], *to = (uint32_t)j < TOP_K - (l == LAYERS - 1 ? 0 : deferred) ? now : later;
            plain_expert(l, data.ids[l][t * TOP_K + j], data.x[l] + t * HIDDEN, y);
            for (int n = 0; n < HIDDEN; n++) to[t * HIDDEN + n] += data.w[l][t * TOP_K + j] * y[n];
        }
}

/* ---- one machine ------------------------------------------------------------------------------ */

/* Device, threads and form of hand-over. */
typedef struct {
    const char *device;
    bool        async;
    td_handover handover;
    bool        raw; /* its routers give ids as int32, those of a row turned round */
} kind;

static const kind KINDS[] = {
    {"host", false, TD_HANDOVER_HOST_CALL, false}, {"host", true, TD_HANDOVER_HOST_CALL, false},
    {"host", true, TD_HANDOVER_DOORBELL, false},   {"apart", true, TD_HANDOVER_HOST_CALL, false},
    {"apart", true, TD_HANDOVER_DOORBELL, false},  {"host", false, TD_HANDOVER_HOST_CALL, true},
    {"apart", true, TD_HANDOVER_HOST_CALL, true},
};
#define N_KINDS (sizeof KINDS / sizeof *KINDS)

/* What goes to the device and comes from it, in memory that it can copy. */
typedef struct {
    float   x[LAYERS][TOKENS * HIDDEN], w[LAYERS][TOKENS * TOP_K];
    int32_t ids[LAYERS][TOKENS * TOP_K]; /* as the device's routers give them */
    sums    out;
} staging;

typedef struct {
    td_pool          *experts_pool, *npu_pool;
    td_npu           *npu;
    td_experts       *experts;
    td_bridge        *bridge;
    td_npu_stream    *stream;
    staging          *staging;
    td_experts_config spec;
    const td_npu_ops *plain; /* the device's own, */
    td_npu_ops        ops;   /* with other caps */
    bool              raw;
    bool              captured; /* what is enqueued is, and its sums come ahead where they can */
} machine;

static machine *raw_machine; /* the last one whose caps are other ones */

static td_pool *open_pool(uint32_t n) {
    td_worker_place places[4];
    td_pool        *p;
    for (uint32_t i = 0; i < n; i++) places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .node = UINT32_MAX};
    OK(td_pool_create(places, n, &p, NULL));
    return p;
}

static void raw_caps(td_npu *d, td_npu_caps *out) {
    raw_machine->plain->caps(d, out);
    out->raw_choice = true;
}

static void give_raw_choices(machine *m) {
    raw_machine = m;
    m->plain = m->npu->ops;
    m->ops = *m->plain;
    m->ops.caps = raw_caps;
    m->npu->ops = &m->ops;
}

/* The id at `at` of all layers' choices. */
static void put_id(machine *m, size_t at, uint16_t id) {
    const size_t all = TOKENS * TOP_K;
    int32_t     *ids = m->staging->ids[at / all];
    if (m->raw)
        ids[at % all] = id;
    else
        ((uint16_t *)ids)[at % all] = id;
}

static void open_machine(machine *m, const kind *k, uint32_t deferred) {
    td_error err = {0};
    *m = (machine){.experts_pool = open_pool(2), .npu_pool = k->async ? open_pool(1) : NULL, .raw = k->raw};
    td_host_npu_config hc = {.pool = k->async ? m->npu_pool : m->experts_pool, .own_threads = k->async};
    OK(td_npu_open(k->device, &(td_npu_config){.act_dtype = TD_DT_F32, .host = &hc}, &m->npu, &err));
    if (k->raw) give_raw_choices(m);
    m->spec =
        WITH(td_experts_config, .n_layers = LAYERS, .n_experts = EXPERTS, .hidden = HIDDEN, .inter = INTER, .top_k = TOP_K,
             .format = TD_EXPERT_BF16, .act_dtype = TD_DT_F32, .max_tok = TOKENS, .max_deferred = deferred);
    OK(td_experts_create(&m->spec, m->experts_pool, &m->experts, &err));
    for (uint32_t l = 0; l < LAYERS; l++) {
        td_expert_weights w[EXPERTS];
        for (int e = 0; e < EXPERTS; e++)
            w[e] = (td_expert_weights){
                .gate = {.dtype = TD_DT_F32, .rank = 2, .shape = {INTER, HIDDEN}, .data = data.gate[l][e]},
                .up = {.dtype = TD_DT_F32, .rank = 2, .shape = {INTER, HIDDEN}, .data = data.up[l][e]},
                .down = {.dtype = TD_DT_F32, .rank = 2, .shape = {HIDDEN, INTER}, .data = data.down[l][e]}};
        OK(load_views(m->experts, l, w, &err));
    }
    td_bridge_config bc = WITH(td_bridge_config, .npu = m->npu, .spec = &m->spec, .experts = m->experts,
                               .pool = m->experts_pool, .async = k->async, .max_ports = 3 * LAYERS, .handover = k->handover);
    OK(td_bridge_open(&bc, &m->bridge, &err));
    OK(m->npu->ops->stream_create(m->npu, &m->stream, &err));
    OK(m->npu->ops->host_alloc(m->npu, sizeof *m->staging, (void **)&m->staging, &err));
    memcpy(m->staging->x, data.x, sizeof data.x);
    for (size_t i = 0; i < LAYERS * TOKENS * TOP_K; i++) {
        const size_t to = m->raw ? i / TOP_K * TOP_K + TOP_K - 1 - i % TOP_K : i;
        put_id(m, to, ((const uint16_t *)data.ids)[i]);
        ((float *)m->staging->w)[to] = ((const float *)data.w)[i];
    }
}

static void close_machine(machine *m) {
    m->npu->ops->stream_destroy(m->npu, m->stream);
    m->npu->ops->host_free(m->npu, m->staging, sizeof *m->staging);
    td_bridge_close(m->bridge);
    td_experts_destroy(m->experts);
    if (m->raw) m->npu->ops = m->plain;
    m->npu->ops->close(m->npu);
    td_pool_destroy(m->npu_pool);
    td_pool_destroy(m->experts_pool);
}

typedef struct {
    td_bridge_port *port[TD_HALVES][LAYERS], *order[TD_HALVES * LAYERS];
    td_step_counts  counts[TD_HALVES];
    td_step         step[TD_HALVES];
    uint32_t        n_halves;
} pass;

static void make_pass(machine *m, pass *p, uint32_t n_halves) {
    uint32_t first = TOKENS - TOKENS / n_halves;
    *p = (pass){.n_halves = n_halves};
    for (uint32_t h = 0; h < n_halves; h++) {
        uint32_t n_tok = n_halves == 1 ? TOKENS : h ? TOKENS - first : first;
        p->counts[h] = (td_step_counts){.n_tok = n_tok, .n_seq = 1};
        p->step[h] = td_step_unified(&(td_step_arrays){.counts = &p->counts[h]}, 0);
        p->step[h].first_row = h * first;
        for (uint32_t l = 0; l < LAYERS; l++) {
            td_bridge_port_desc desc =
                WITH(td_bridge_port_desc, .layer = l, .model_layer = l, .parity = l % TD_BRIDGE_PARITIES, .half = h,
                     .first = l == 0, .last = l == LAYERS - 1);
            OK(td_bridge_port_create(m->bridge, &desc, &p->port[h][l], NULL));
            p->order[l * n_halves + h] = p->port[h][l];
        }
    }
}

/* How far a pass in pieces has come. */
typedef struct {
    uint32_t n_submitted, n_collected, done[TD_BRIDGE_OPEN_MAX];
} progress;

static td_bridge_pass pass_from(const pass *p, uint32_t ticket) {
    return (td_bridge_pass){
        .order = p->order + ticket, .n_tickets = p->n_halves * LAYERS - ticket, .steps = {&p->step[0], &p->step[1]}};
}

static void begin(machine *m, const pass *p) {
    const td_bridge_pass whole = pass_from(p, 0);
    td_bridge_begin_pass(m->bridge, &whole);
}

/* Copies between a layer's data and the slot's buffers, as stream operations: they stand in for the router's and combine's.
 */
static void put(machine *m, const pass *p, uint32_t h, uint32_t l) {
    td_npu           *d = m->npu;
    const staging    *s = m->staging;
    td_bridge_buffers io;
    size_t            n = p->counts[h].n_tok, row = p->step[h].first_row;
    td_bridge_get_buffers(m->bridge, l % TD_BRIDGE_PARITIES, &io);
    OK(d->ops->copy(d, m->stream, (float *)io.x + row * HIDDEN, s->x[l] + row * HIDDEN, n * HIDDEN * sizeof(float),
                    TD_COPY_H2D));
    const size_t id_bytes = m->raw ? sizeof(int32_t) : sizeof(uint16_t), at = row * TOP_K * id_bytes;
    OK(d->ops->copy(d, m->stream, (char *)io.ids + at, (const char *)s->ids[l] + at, n * TOP_K * id_bytes, TD_COPY_H2D));
    OK(d->ops->copy(d, m->stream, io.weights + row * TOP_K, s->w[l] + row * TOP_K, n * TOP_K * sizeof(float), TD_COPY_H2D));
    OK(td_bridge_enqueue_submit(p->port[h][l], m->stream, &p->step[h], m->captured));
}

static void take(machine *m, const pass *p, uint32_t h, uint32_t l, uint32_t deferred) {
    td_npu           *d = m->npu;
    sums             *out = &m->staging->out;
    td_bridge_buffers io, before;
    size_t            bytes = p->counts[h].n_tok * HIDDEN * sizeof(float), at = p->step[h].first_row * HIDDEN;
    td_bridge_get_buffers(m->bridge, l % TD_BRIDGE_PARITIES, &io);
    td_bridge_get_buffers(m->bridge, (l + 1) % TD_BRIDGE_PARITIES, &before);
    OK(td_bridge_enqueue_collect(p->port[h][l], m->stream, &p->step[h], m->captured));
    OK(d->ops->copy(d, m->stream, out->now[l] + at, (float *)io.y + at, bytes, TD_COPY_D2H));
    if (l && deferred)
        OK(d->ops->copy(d, m->stream, out->later[l - 1] + at, (float *)before.y_deferred + at, bytes, TD_COPY_D2H));
}

static void enqueue_pass(machine *m, const pass *p, uint32_t deferred) {
    for (uint32_t l = 0; l <= LAYERS; l++)
        for (uint32_t h = 0; h < p->n_halves; h++) {
            if (l > 0) take(m, p, h, l - 1, deferred);
            if (l < LAYERS) put(m, p, h, l);
        }
}

static void end(machine *m, sums *out) {
    OK(m->npu->ops->stream_sync(m->npu, m->stream));
    OK(td_bridge_end_pass(m->bridge));
    *out = m->staging->out;
}

static void run_pass(machine *m, const pass *p, uint32_t deferred, sums *out) {
    memset(&m->staging->out, 0, sizeof m->staging->out);
    begin(m, p);
    enqueue_pass(m, p, deferred);
    end(m, out);
}

static void run_machine(const kind *k, uint32_t deferred, sums *out) {
    AT_END(close_machine) machine m;
    pass                          whole, halves;
    sums                          again;
    open_machine(&m, k, deferred);
    make_pass(&m, &whole, 1);
    make_pass(&m, &halves, 2);
    run_pass(&m, &whole, deferred, out);
    assert_int_equal(td_bridge_deferred(m.bridge), (uint64_t)TOKENS * deferred * (LAYERS - 1));
    for (int repeat = 0; repeat < 20; repeat++) { /* slots are used again and again, by passes of either kind */
        run_pass(&m, repeat % 3 ? &halves : &whole, deferred, &again);
        assert_memory_equal(&again, out, sizeof again);
    }
}

TEST(sums_follow_the_definition_everywhere) {
    static sums first, other;
    for (uint32_t deferred = 0; deferred < TOP_K; deferred++) {
        run_machine(&KINDS[0], deferred, &first);
        for (int l = 0; l < LAYERS; l++) {
            double now[TOKENS * HIDDEN], later[TOKENS * HIDDEN];
            plain_sums(deferred, now, later, l);
            for (int i = 0; i < TOKENS * HIDDEN;
                 i++) { /* f32 sums of 24 and 16 products of size ~1: 40 x 2^-24 relative to ~30 */
                assert_true(fabs(first.now[l][i] - now[i]) < 1e-4);
                if (deferred && l < LAYERS - 1) assert_true(fabs(first.later[l][i] - later[i]) < 1e-4);
            }
        }
        for (size_t k = 1; k < N_KINDS; k++) {
            run_machine(&KINDS[k], deferred, &other);
            assert_memory_equal(&other, &first, sizeof first);
        }
    }
}

/* Go on with a pass whose time is always over, so that the experts have one ticket a piece, or some rows of it. @param at the
 * operation that comes next: takes and puts of halves in turn. */
static void run_piece(machine *m, const pass *p, uint32_t deferred, uint32_t *at, progress *now) {
    const uint32_t first = now->n_collected;
    td_bridge_pass piece = pass_from(p, first);
    piece.until_ns = 1;
    memcpy(piece.done, now->done, sizeof piece.done);
    td_bridge_begin_pass(m->bridge, &piece);
    for (uint32_t n = first; n < now->n_submitted; n++)
        OK(td_bridge_enqueue_submit(p->order[n], m->stream, &p->step[n % p->n_halves], false));
    for (; *at < (LAYERS + 1) * p->n_halves * 2; ++*at) {
        const uint32_t l = *at / 2 / p->n_halves, h = *at / 2 % p->n_halves;
        const bool     takes = *at % 2 == 0;
        if (takes ? l == 0 : l == LAYERS) continue;
        OK(m->npu->ops->stream_sync(m->npu, m->stream));
        if (takes && !td_bridge_await_sums(m->bridge, now->n_collected - first)) break;
        if (takes) take(m, p, h, l - 1, deferred);
        if (!takes) put(m, p, h, l);
        now->n_collected += takes;
        now->n_submitted += !takes;
    }
    OK(m->npu->ops->stream_sync(m->npu, m->stream));
    OK(td_bridge_end_pass(m->bridge));
    for (uint32_t i = 0; i < TD_BRIDGE_OPEN_MAX; i++)
        now->done[i] = td_bridge_rows_done(m->bridge, now->n_collected - first + i);
}

static void check_pieces(machine *m, uint32_t n_halves) {
    static sums whole, again;
    pass        p;
    uint32_t    at = 0, pieces = 0;
    progress    now = {0};
    make_pass(m, &p, n_halves);
    run_pass(m, &p, 1, &whole);
    memset(&m->staging->out, 0, sizeof m->staging->out);
    for (; now.n_collected < n_halves * LAYERS; pieces++) run_piece(m, &p, 1, &at, &now);
    assert_memory_equal(&m->staging->out, &whole, sizeof whole);
    if (!td_chaos_seeded()) assert_true(pieces >= n_halves * LAYERS); /* none had time for two tickets */
    run_pass(m, &p, 1, &again);
    assert_memory_equal(&again, &whole, sizeof whole);
}

TEST(a_pass_in_pieces_has_the_same_sums) {
    for (size_t k = 0; k < N_KINDS; k++) {
        AT_END(close_machine) machine m;
        open_machine(&m, &KINDS[k], 1);
        for (uint32_t n_halves = 1; n_halves <= TD_HALVES; n_halves++) check_pieces(&m, n_halves);
    }
}

/* What was captured once is replayed with other rows, and with fewer of them. */
static void check_replays(machine *m, pass *p, const sums want[2]) {
    const td_npu_ops *o = m->npu->ops;
    static sums       got;
    td_npu_graph     *graph;
    OK(o->graph_begin(m->npu, m->stream));
    enqueue_pass(m, p, 1);
    OK(o->graph_end(m->npu, m->stream, &graph, NULL));
    for (int repeat = 0; repeat < 6; repeat++) {
        memcpy(m->staging->x[0], data.x[repeat % 2], sizeof data.x[0]);
        memset(&m->staging->out, 0, sizeof m->staging->out);
        p->counts[1].n_tok = repeat < 4 ? p->step[1].max_tok : 1; /* counts lie in the step, not in the capture */
        begin(m, p);
        OK(o->graph_launch(m->npu, m->stream, graph));
        end(m, &got);
        size_t rows = p->step[1].first_row + p->counts[1].n_tok;
        for (int l = 0; l < LAYERS; l++)
            assert_memory_equal(got.now[l], want[repeat % 2].now[l], rows * HIDDEN * sizeof(float));
    }
    p->counts[1].n_tok = p->step[1].max_tok;
    o->graph_destroy(m->npu, graph);
}

TEST(a_captured_pass_replays) {
    static sums want[2];
    for (size_t k = 0; k < N_KINDS; k++) {
        AT_END(close_machine) machine m;
        pass                          p;
        open_machine(&m, &KINDS[k], 1);
        make_pass(&m, &p, 2);
        for (int round = 0; round < 2; round++) {
            memcpy(m.staging->x[0], data.x[round], sizeof data.x[0]);
            run_pass(&m, &p, 1, &want[round]);
        }
        assert_memory_not_equal(&want[0], &want[1], sizeof want[0]);
        for (int ahead = 0; ahead < 2; ahead++) {
            m.captured = ahead;
            check_replays(&m, &p, want);
        }
    }
}

/* An id out of range comes from a broken device: the step fails, nothing is read from outside, and the next step is right.
 */
TEST(a_wild_expert_id_fails_the_step_only) {
    for (size_t k = 0; k < N_KINDS; k++) {
        AT_END(close_machine) machine m;
        pass                          p;
        static sums                   first, again;
        open_machine(&m, &KINDS[k], 0);
        make_pass(&m, &p, 1);
        run_pass(&m, &p, 0, &first);
        put_id(&m, 4, EXPERTS);
        begin(&m, &p);
        enqueue_pass(&m, &p, 0);
        OK(m.npu->ops->stream_sync(m.npu, m.stream));
        assert_int_equal(td_bridge_end_pass(m.bridge), TD_EDEVICE);
        put_id(&m, 4, data.ids[0][4]);
        run_pass(&m, &p, 0, &again);
        assert_memory_equal(&again, &first, sizeof first);
    }
}

/* A device that fails in the middle of a pass leaves tickets uncollected; the next pass must not take them for its own. */
TEST(a_pass_that_broke_off_leaves_nothing_behind) {
    static sums first, other;
    for (size_t k = 0; k < N_KINDS; k++) {
        AT_END(close_machine) machine m;
        pass                          halves;
        open_machine(&m, &KINDS[k], 1);
        make_pass(&m, &halves, 2);
        run_pass(&m, &halves, 1, &first);
        for (uint32_t submitted = 0; submitted <= 2; submitted++) {
            begin(&m, &halves);
            for (uint32_t h = 0; h < submitted; h++) put(&m, &halves, h, 0);
            end(&m, &other);
            run_pass(&m, &halves, 1, &other);
            assert_memory_equal(&other, &first, sizeof first);
        }
    }
}

TEST(deferring_every_expert_is_refused) {
    td_bridge *b;
    td_error   err = {0};
    assert_int_equal(
        td_bridge_open(&(td_bridge_config){.spec = &(td_experts_config){.top_k = 4, .max_deferred = 4}}, &b, &err),
        TD_EINVAL);
}
