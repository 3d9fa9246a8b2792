/*
 * The expert FFN of one layer against the machine's bounds, measured in the same run with the same threads:
 * reading memory (a buffer beyond the L3, prefetched loads) and int8 multiply-adds (registers only).
 *
 *   bench_experts [threads] [shape]     shapes: v3, v2-lite, qwen3-30b; default all
 *
 * A row is the median of five rounds; each round measures its own bounds, since a shared machine drifts.
 * bound = max(weight bytes / read bandwidth, operations / int8 peak); fraction = bound / time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_time.h"
#include "core/cpu.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/rng.h"
#include "core/roofline.h"
#include "cpu_experts/cpu_experts.h"

#define ROUNDS 5
#define BUFFER_BYTES ((size_t)1 << 30)

/* ---- shapes ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint32_t    hidden, inter, n_experts, top_k, n_layers; /* layers and experts so that the weights exceed 1 GB */
} SHAPES[] = {
    {"v3", 7168, 2048, 48, 8, 1},
    {"v2-lite", 2048, 1408, 64, 6, 4},
    {"qwen3-30b", 2048, 768, 128, 8, 4},
};

static const uint32_t TOKENS[] = {1, 4, 16, 64, 512};
#define TOKENS_MAX 512

typedef struct {
    td_experts *x;
    uint16_t   *ids;
    float      *weights;
    td_bf16    *in, *out;
    uint32_t    next_expert, next_layer;
} bench_case;

/* Consecutive calls walk through all experts, so that single tokens never find weights in the cache. */
static void route(bench_case *b, uint32_t n_tok, uint32_t top_k, uint32_t n_experts, uint32_t n_layers) {
    b->next_layer = (b->next_layer + 1) % n_layers;
    for (uint32_t t = 0; t < n_tok; t++) {
        if (n_tok > 1) b->next_expert = (uint32_t)(td_rng_u64(1, b->next_layer, b->next_expert * 977u + t) % n_experts);
        for (uint32_t j = 0; j < top_k; j++) {
            b->ids[t * top_k + j] = (uint16_t)((b->next_expert + (n_tok > 1 ? j * 5 + j * j : j)) % n_experts);
            for (uint32_t k = 0; k < j; k++) /* distinct within a token */
                if (b->ids[t * top_k + k] == b->ids[t * top_k + j]) {
                    b->ids[t * top_k + j] = (uint16_t)((b->ids[t * top_k + j] + 1) % n_experts);
                    k = UINT32_MAX; /* compare anew */
                }
        }
        b->next_expert = (b->next_expert + top_k) % n_experts;
    }
}

static int bench_shape(td_pool *pool, td_roofline *roofline, size_t s) {
    td_experts_config c = {.n_layers = SHAPES[s].n_layers,
                           .n_experts = SHAPES[s].n_experts,
                           .hidden = SHAPES[s].hidden,
                           .inter = SHAPES[s].inter,
                           .top_k = SHAPES[s].top_k,
                           .format = TD_EXPERT_INT4C,
                           .act_dtype = TD_DT_BF16,
                           .max_tok = TOKENS_MAX};
    bench_case        b = {0};
    td_error          err = {0};
    if (td_experts_create(&c, pool, &b.x, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (uint32_t l = 0; l < c.n_layers; l++)
        if (td_experts_fill_layer(b.x, l, 1, &err) != TD_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
    b.ids = calloc((size_t)TOKENS_MAX * c.top_k, sizeof *b.ids);
    b.weights = calloc((size_t)TOKENS_MAX * c.top_k, sizeof *b.weights);
    b.in = calloc((size_t)TOKENS_MAX * c.hidden, sizeof *b.in);
    b.out = calloc((size_t)TOKENS_MAX * c.hidden, sizeof *b.out);
    if (!b.ids || !b.weights || !b.in || !b.out) return 1;
    for (size_t i = 0; i < (size_t)TOKENS_MAX * c.hidden; i++)
        b.in[i] = td_f32_to_bf16((float)td_rng_uniform(2, 0, i) - 0.5f);
    for (size_t i = 0; i < (size_t)TOKENS_MAX * c.top_k; i++) b.weights[i] = 1.0f / (float)c.top_k;

    for (size_t i = 0; i < sizeof TOKENS / sizeof TOKENS[0]; i++) {
        uint32_t m = TOKENS[i], calls = m == 1 ? 48 : m <= 16 ? 6 : 2;
        double   time[ROUNDS], gbs[ROUNDS], gops[ROUNDS], fraction[ROUNDS], bandwidth[ROUNDS], peak[ROUNDS];
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t     pairs;
            td_tier_work work0, work1;
            bandwidth[r] = td_roofline_read(roofline);
            peak[r] = td_roofline_int8(roofline);
            td_experts_counters(b.x, &pairs, &work0);
            double spent = 0;
            for (uint32_t n = 0; n < calls; n++) {
                route(&b, m, c.top_k, c.n_experts, c.n_layers);
                double t0 = td_roofline_now_s(pool);
                td_experts_ffn(b.x, b.next_layer,
                               &(td_ffn_args){.n_tok = m,
                                              .top_k = c.top_k,
                                              .x = b.in,
                                              .ids = b.ids,
                                              .weights = b.weights,
                                              .n_immediate = c.top_k,
                                              .y = b.out});
                spent += td_roofline_now_s(pool) - t0;
            }
            td_experts_counters(b.x, &pairs, &work1);
            bandwidth[r] = 0.5 * (bandwidth[r] + td_roofline_read(roofline));
            peak[r] = 0.5 * (peak[r] + td_roofline_int8(roofline));
            double bytes = (double)(work1.bytes - work0.bytes), ops = (double)(work1.int8_ops - work0.int8_ops);
            double bound = bytes / bandwidth[r];
            if (peak[r] > 0 && ops / peak[r] > bound) bound = ops / peak[r];
            time[r] = spent / calls;
            gbs[r] = bytes / spent * 1e-9;
            gops[r] = ops / spent * 1e-9;
            fraction[r] = bound / spent;
        }
        printf("%-10s %5u %10.1f %8.1f %9.1f %9.1f %10.1f %9.2f\n", SHAPES[s].name, m, 1e6 * bench_median(time, ROUNDS),
               bench_median(gbs, ROUNDS), bench_median(gops, ROUNDS), 1e-9 * bench_median(bandwidth, ROUNDS),
               1e-9 * bench_median(peak, ROUNDS), bench_median(fraction, ROUNDS));
        fflush(stdout);
    }
    free(b.ids);
    free(b.weights);
    free(b.in);
    free(b.out);
    td_experts_destroy(b.x);
    return 0;
}

int main(int argc, char **argv) {
    static td_thread_plan plan;
    td_machine            machine;
    td_pool              *pool;
    td_error              err = {0};
    td_roofline          *roofline;
    uint32_t              threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    td_status             st = td_topology_plan(threads, 0, 0, &plan, &machine, &err);
    if (st == TD_OK) st = td_pool_create(plan.experts, plan.n_experts, &pool, &err);
    if (st == TD_OK) {
        td_pool_pin_caller(pool);
        st = td_roofline_open(pool, BUFFER_BYTES, &roofline, &err);
    }
    if (st != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("tier %s, %u threads\n", td_cpu_tier_name(td_cpu_features()), td_pool_workers(pool));
    printf("%-10s %5s %10s %8s %9s %9s %10s %9s\n", "shape", "tok", "us", "GB/s", "GOP/s", "read GB/s", "peak GOP/s",
           "fraction");
    int rc = 0;
    for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0] && !rc; s++)
        if (argc < 3 || !strcmp(argv[2], SHAPES[s].name)) rc = bench_shape(pool, roofline, s);
    td_roofline_close(roofline);
    td_pool_destroy(pool);
    return rc;
}
