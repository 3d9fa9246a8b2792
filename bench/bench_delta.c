/*
 * Gated DeltaNet of Qwen3.5-35B's sizes on one thread, in CPU seconds: a prompt by blocks of TD_STATE_BLOCK tokens beside
 * the plain recurrence, and what generated tokens reach of the rate at which memory is read.
 *
 * usage: bench_delta [ROUNDS]
 *
 * The rivals get q, k, v, decays and betas as they need them:
 *   plain  S = g S; S = S + k (beta (v - S^T k))^T; o = S^T q        each a pass over S
 *   fused  S^T k and S^T q in one pass, decay and update in another
 * What a layer does besides stands apart, so that the block without it can be compared with them: projections, here with few
 * inputs, the convolution, gates and norms. Of a prompt's times the least of all rounds counts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench_time.h"
#include "core/math/rng.h"
#include "core/threads/pool.h"
#include "kernels/kernels.h"
#include "npu/block_work.h"
#include "npu/host/host_npu.h"

enum { HIDDEN = 16, KEY_HEADS = 16, VALUE_HEADS = 32, DIM = 128, WIDTH = 4, TOKENS = 2048, SEQS = 16, ROUNDS_MAX = 99 };

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "bench_delta: %s\n", what);
    exit(1);
}

static void *memory(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes)) die("out of memory");
    memset(p, 0, bytes);
    return p;
}

static float *made_up(size_t n, float scale) {
    float *x = memory(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = ((float)td_rng_uniform(1, 2, i) * 2 - 1) * scale;
    return x;
}

/* ---- the block ------------------------------------------------------------------------------- */

typedef struct {
    td_pool       *pool;
    td_npu        *npu;
    td_npu_stream *stream;
    td_npu_block  *block;
    td_block_desc  desc;
} layer;

static td_npu_weight *weight(layer *l, size_t n, size_t k, float scale) {
    float         *values = made_up((n ? n : 1) * k, scale);
    td_tensor_view v = {.dtype = TD_DT_F32, .rank = n ? 2 : 1, .shape = {n ? n : k, k}, .data = values};
    td_npu_weight *w;
    if (l->npu->ops->weight_create(l->npu, TD_WEIGHT_F32, &v, &w, NULL) != TD_OK) die("a weight cannot be made");
    free(values);
    return w;
}

static void open_layer(layer *l) {
    const td_worker_place place = {.cpu = TD_CPU_ANY};
    *l = (layer){.desc = {.kind = TD_BLOCK_DELTA, .layer = TD_NO_LAYER, .max_tok = TOKENS}};
    if (td_pool_create(&place, 1, &l->pool, NULL) != TD_OK) die("no pool");
    td_npu_config c = {.act_dtype = TD_DT_F32, .host = &(td_host_npu_config){.pool = l->pool}};
    if (td_npu_open("host", &c, &l->npu, NULL) != TD_OK || l->npu->ops->stream_create(l->npu, &l->stream, NULL) != TD_OK)
        die("no device");
    td_delta_desc *d = &l->desc.delta;
    *d = (td_delta_desc){.hidden = HIDDEN,
                         .key_heads = KEY_HEADS,
                         .value_heads = VALUE_HEADS,
                         .key_dim = DIM,
                         .value_dim = DIM,
                         .conv_width = WIDTH,
                         .eps = 1e-6f,
                         .state_slots = SEQS,
                         .open_slots = SEQS,
                         .in = made_up(TOKENS * HIDDEN, 1),
                         .out = memory(TOKENS * HIDDEN * sizeof(float))};
    const size_t conv = KEY_HEADS * td_delta_conv_rows(d);
    d->qkv = weight(l, conv, HIDDEN, 0.5f);
    d->z = weight(l, VALUE_HEADS * DIM, HIDDEN, 0.5f);
    d->b = weight(l, VALUE_HEADS, HIDDEN, 0.5f);
    d->a = weight(l, VALUE_HEADS, HIDDEN, 0.5f);
    d->conv = weight(l, conv, WIDTH, 0.5f);
    d->a_log = d->dt_bias = weight(l, 0, VALUE_HEADS, 1);
    d->norm = weight(l, 0, DIM, 1);
    d->o = weight(l, HIDDEN, VALUE_HEADS * DIM, 0.05f);
    d->state = memory(SEQS * KEY_HEADS * td_delta_state_values(d) * sizeof(float));
    d->open = memory(SEQS * KEY_HEADS * td_delta_open_values(d) * sizeof(float));
    if (l->npu->ops->block_create(l->npu, &l->desc, &l->block, NULL) != TD_OK) die("no block");
}

/* n new tokens of each of so many sequences. @return CPU seconds */
static double run_sequences(const layer *l, uint32_t first, uint32_t n_seq, uint32_t pos, uint32_t n) {
    static uint32_t positions[TOKENS], start[SEQS + 1], in[SEQS], slots[SEQS], kv_len[SEQS];
    static uint8_t  absorbed[SEQS];
    for (uint32_t q = 0; q < n_seq; q++) {
        start[q + 1] = start[q] + n;
        slots[q] = first + q;
        in[q] = pos ? first + q : TD_STATE_NONE;
        kv_len[q] = pos + n;
        for (uint32_t i = 0; i < n; i++) positions[start[q] + i] = pos + i;
    }
    td_step_counts counts = {.n_tok = n_seq * n, .n_seq = n_seq};
    td_step_arrays a = {.counts = &counts,
                        .pos = positions,
                        .seq_start = start,
                        .kv_len = kv_len,
                        .absorbed = absorbed,
                        .state_in = in,
                        .state_out = slots,
                        .state_open = slots};
    td_step        step = {.max_tok = counts.n_tok, .max_seq = n_seq, .host = a, .dev = a};
    const double   from = cpu_s();
    if (l->npu->ops->enqueue(l->npu, l->stream, l->block, &step) != TD_OK) die("the block failed");
    return cpu_s() - from;
}

/* ---- what is the same with any recurrence ------------------------------------------------------ */

enum { CONV = KEY_HEADS * 2 * DIM + VALUE_HEADS * DIM, LINEARS = 5 };

typedef struct {
    const layer  *l;
    td_npu_block *linear[LINEARS];
    float        *qkv, *z, *b, *a, *out, *taps, *row, *ones; /* qkv has WIDTH - 1 rows of zeros before its first */
} rest;

static void open_rest(rest *r, const layer *l) {
    const td_delta_desc *d = &l->desc.delta;
    *r = (rest){.l = l,
                .qkv = (float *)memory((TOKENS + WIDTH - 1) * CONV * sizeof(float)) + (WIDTH - 1) * CONV,
                .z = memory(TOKENS * VALUE_HEADS * DIM * sizeof(float)),
                .b = memory(TOKENS * VALUE_HEADS * sizeof(float)),
                .a = memory(TOKENS * VALUE_HEADS * sizeof(float)),
                .out = made_up((size_t)TOKENS * VALUE_HEADS * DIM, 1),
                .taps = made_up((size_t)CONV * WIDTH, 0.5f),
                .row = memory(CONV * sizeof(float)),
                .ones = made_up(DIM, 1)};
    const td_linear_desc list[LINEARS] = {{.n = CONV, .k = HIDDEN, .w = d->qkv, .in = d->in, .out = r->qkv},
                                          {.n = VALUE_HEADS * DIM, .k = HIDDEN, .w = d->z, .in = d->in, .out = r->z},
                                          {.n = VALUE_HEADS, .k = HIDDEN, .w = d->b, .in = d->in, .out = r->b},
                                          {.n = VALUE_HEADS, .k = HIDDEN, .w = d->a, .in = d->in, .out = r->a},
                                          {.n = HIDDEN, .k = VALUE_HEADS * DIM, .w = d->o, .in = r->out, .out = d->out}};
    for (int i = 0; i < LINEARS; i++) {
        const td_block_desc desc = {.kind = TD_BLOCK_LINEAR, .layer = TD_NO_LAYER, .max_tok = TOKENS, .linear = list[i]};
        if (l->npu->ops->block_create(l->npu, &desc, &r->linear[i], NULL) != TD_OK) die("no linear");
    }
}

/* @return CPU seconds */
static double run_rest(const rest *r) {
    const td_delta_math *math = td_kernels_here()->delta;
    td_step_counts       counts = {.n_tok = TOKENS};
    td_step              step = {.max_tok = TOKENS, .host = {.counts = &counts}, .dev = {.counts = &counts}};
    const double         from = cpu_s();
    for (int i = 0; i < LINEARS; i++)
        if (r->l->npu->ops->enqueue(r->l->npu, r->l->stream, r->linear[i], &step) != TD_OK) die("a linear failed");
    for (size_t t = 0; t < TOKENS; t++) {
        const float *x[WIDTH];
        for (size_t i = 0; i < WIDTH; i++) x[i] = r->qkv + t * CONV - (WIDTH - 1 - i) * CONV;
        math->conv(x, r->taps, CONV, WIDTH, CONV, r->row);
        for (size_t h = 0; h < 2 * KEY_HEADS; h++) math->unit(r->row + h * DIM, 1e-6f, 1, DIM);
        math->gates(r->a + t * VALUE_HEADS, r->b + t * VALUE_HEADS, r->ones, r->ones, VALUE_HEADS, r->row,
                    r->row + VALUE_HEADS);
        for (size_t h = 0; h < VALUE_HEADS; h++)
            math->gated_norm(r->out + (t * VALUE_HEADS + h) * DIM, r->ones, r->z + (t * VALUE_HEADS + h) * DIM, 1e-6f, DIM);
    }
    return cpu_s() - from;
}

/* ---- the rivals ------------------------------------------------------------------------------ */

typedef struct {
    const float *q, *k, *v; /* [tokens, DIM] */
    float       *s, *o;     /* [DIM, DIM], [DIM] */
} head;

/* out [m, DIM] = x [m, DIM] S */
static void times_state(const head *h, const float *x, size_t m, float *out) {
    td_kernels_here()->math->gemm(&(td_fgemm_args){
        .m = m, .n = DIM, .k = DIM, .a = x, .lda = DIM, .b = h->s, .ldb = DIM, .b_dtype = TD_DT_F32, .c = out, .ldc = DIM});
}

static void plain_token(const head *h, size_t t, float decay, float beta) {
    const td_float_math *math = td_kernels_here()->math;
    float                d[DIM];
    math->scale_add(h->s, decay, NULL, 0, (size_t)DIM * DIM);
    times_state(h, h->k + t * DIM, 1, d);
    math->scale_add(d, -beta, h->v + t * DIM, beta, DIM);
    for (size_t i = 0; i < DIM; i++) math->scale_add(h->s + i * DIM, 1, d, h->k[t * DIM + i], DIM);
    times_state(h, h->q + t * DIM, 1, h->o);
}

static void fused_token(const head *h, size_t t, float decay, float beta) {
    const td_float_math *math = td_kernels_here()->math;
    float                x[2][DIM], d[2][DIM];
    memcpy(x[0], h->k + t * DIM, sizeof x[0]);
    memcpy(x[1], h->q + t * DIM, sizeof x[1]);
    times_state(h, x[0], 2, d[0]);
    math->scale_add(d[0], -beta * decay, h->v + t * DIM, beta, DIM);
    memcpy(h->o, d[1], sizeof d[1]);
    math->scale_add(h->o, decay, d[0], math->dot(x[0], x[1], DIM), DIM);
    for (size_t i = 0; i < DIM; i++) math->scale_add(h->s + i * DIM, decay, d[0], x[0][i], DIM);
}

/* All heads, one after the other: S stays in the L2. @return CPU seconds */
static double run_rival(void (*token)(const head *, size_t, float, float), const head *h) {
    const double from = cpu_s();
    for (int i = 0; i < VALUE_HEADS; i++)
        for (size_t t = 0; t < TOKENS; t++) token(h, t, 0.9f, 0.5f);
    return cpu_s() - from;
}

/* ---- figures --------------------------------------------------------------------------------- */

static double read_rate(void) {
    enum { BYTES = 256 << 20 };
    static char *p;
    if (!p) p = memory(BYTES);
    const double from = cpu_s();
    td_kernels_here()->read(p, BYTES);
    return BYTES / (cpu_s() - from);
}

/* What a thread multiplies and adds in f32. */
static double peak_rate(void) {
    const double from = cpu_s(), ops = td_kernels_here()->f32_peak();
    return ops / (cpu_s() - from);
}

static double least(const double *x, size_t n) {
    double m = x[0];
    for (size_t i = 1; i < n; i++) m = x[i] < m ? x[i] : m;
    return m;
}

static void show_prompt(const layer *l, size_t rounds) {
    double whole[ROUNDS_MAX] = {0}, besides[ROUNDS_MAX] = {0}, plain[ROUNDS_MAX] = {0}, fused[ROUNDS_MAX] = {0}, peak = 0;
    head   h = {.q = made_up((size_t)TOKENS * DIM, 0.1f),
                .k = made_up((size_t)TOKENS * DIM, 0.1f),
                .v = made_up((size_t)TOKENS * DIM, 1),
                .s = memory(DIM * DIM * sizeof(float)),
                .o = memory(DIM * sizeof(float))};
    rest   r;
    open_rest(&r, l);
    run_sequences(l, 0, 1, 0, TOKENS); /* pages that have not been there before */
    run_rest(&r);
    for (size_t i = 0; i < rounds; i++) {
        whole[i] = run_sequences(l, 0, 1, 0, TOKENS);
        besides[i] = run_rest(&r);
        plain[i] = run_rival(plain_token, &h);
        fused[i] = run_rival(fused_token, &h);
        peak = fmax(peak, peak_rate());
    }
    const double w = 1e3 * least(whole, rounds), b = 1e3 * least(besides, rounds), p = 1e3 * least(plain, rounds),
                 f = 1e3 * least(fused, rounds);
    td_tier_work work = {0};
    td_work_add_attention(&work, &l->desc, sizeof(float), &(td_work_sequence){.rows = TOKENS, .keys = TOKENS});
    printf("prompt of %d tokens: %.1f ms, of which %.1f ms are not the recurrence\n", TOKENS, w, b);
    const double rate = 1e3 * (double)work.f32_ops / (w - b);
    printf("  by blocks  %6.1f ms  %.1f Gop/s, %.2f of what a thread multiplies in f32\n", w - b, 1e-9 * rate, rate / peak);
    printf("  plain      %6.1f ms  %.2f times as long\n", p, p / (w - b));
    printf("  fused      %6.1f ms  %.2f times as long\n", f, f / (w - b));
}

/* A token of n_seq sequences at each position of a block. With one sequence each step has another one's state, as each layer
 * has. */
static void show_tokens(const layer *l, uint32_t n_seq, size_t rounds) {
    double rate[ROUNDS_MAX], of_read[ROUNDS_MAX];
    for (size_t i = 0; i < rounds; i++) {
        double s = 0, bytes = 0, read = read_rate();
        for (uint32_t at = 0; at < TD_STATE_BLOCK; at++)
            for (uint32_t first = 0; first < SEQS; first += n_seq) {
                const uint32_t pos = TD_STATE_BLOCK * (uint32_t)(i + 1) + at;
                td_tier_work   w = {0};
                td_work_add_attention(&w, &l->desc, sizeof(float), &(td_work_sequence){.rows = 1, .keys = pos + 1});
                s += run_sequences(l, first, n_seq, pos, 1);
                bytes += n_seq * (double)w.bytes;
            }
        rate[i] = bytes / s;
        of_read[i] = rate[i] / read;
    }
    printf("a token of %u: %.1f GB/s of states and open blocks, %.2f of reading memory\n", n_seq,
           1e-9 * bench_median(rate, rounds), bench_median(of_read, rounds));
}

int main(int argc, char **argv) {
    const size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 5;
    layer        l;
    if (rounds < 1 || rounds > ROUNDS_MAX) die("1 to 99 rounds");
    open_layer(&l);
    printf("# tandem " TD_VERSION ", %s, blocks of %d tokens, 1 thread\n", td_kernels_here()->name, TD_STATE_BLOCK);
    show_prompt(&l, rounds);
    show_tokens(&l, 1, rounds);
    show_tokens(&l, SEQS, rounds);
    return 0;
}
