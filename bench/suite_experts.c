/* The expert FFN of one layer: gate, up, silu, quantise, down, weighted sum, over weights much larger than the caches. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "core/error.h"
#include "core/math/rng.h"

#define TOKENS_MAX 2048
#define WEIGHT_BYTES ((uint64_t)1 << 30) /* at least, over the layers */

typedef struct {
    const char *name;
    uint32_t    hidden, inter, n_experts, top_k; /* n_experts: as many of the model's as memory should hold */
} shape;

static const shape SHAPES[] = {
    {"deepseek-v3 7168x2048 top 8 of 48", 7168, 2048, 48, 8}, {"deepseek-v2-lite 2048x1408 top 6", 2048, 1408, 64, 6},
    {"qwen3-30b 2048x768 top 8", 2048, 768, 128, 8},          {"glm-4.7-flash 2048x1536 top 4", 2048, 1536, 64, 4},
    {"minimax-m2 3072x1536 top 8 of 64", 3072, 1536, 64, 8},  {"glm-4.5-air 4096x1408 top 8 of 64", 4096, 1408, 64, 8},
    {"gpt-oss 2880x2880 top 4 of 32", 2880, 2880, 32, 4},
};

static const uint32_t TOKENS[] = {1, 4, 16, 64, 512, TOKENS_MAX};

typedef struct {
    td_experts *x;
    uint32_t    n_layers, n_experts, top_k, n_tok, layer, round;
    uint16_t   *ids;      /* [TOKENS_MAX, top_k] */
    float      *weights;  /* [TOKENS_MAX, top_k] */
    td_bf16    *in, *out; /* [TOKENS_MAX, hidden] */
} ffn;

/* Each token takes top_k distinct experts: runs of consecutive ones, so that single tokens walk through all and find none in
 * a cache. */
static void route(ffn *f) {
    f->layer = (f->layer + 1) % f->n_layers;
    for (uint32_t t = 0; t < f->n_tok; t++) {
        uint32_t first = f->n_tok == 1 ? f->round * f->top_k : (uint32_t)td_rng_u64(1, f->round, t);
        for (uint32_t j = 0; j < f->top_k; j++)
            f->ids[t * f->top_k + j] = (uint16_t)((first % f->n_experts + j) % f->n_experts);
    }
    f->round++;
}

static td_status run(void *ctx, td_error *err) {
    (void)err;
    ffn *f = ctx;
    route(f);
    td_experts_ffn(f->x, f->layer,
                   &(td_ffn_args){.n_tok = f->n_tok,
                                  .top_k = f->top_k,
                                  .x = f->in,
                                  .ids = f->ids,
                                  .weights = f->weights,
                                  .n_immediate = f->top_k,
                                  .y = f->out});
    return TD_OK;
}

static td_tier_work work(void *ctx) {
    uint64_t     pairs;
    td_tier_work w;
    td_experts_counters(((ffn *)ctx)->x, &pairs, &w);
    return w;
}

static td_status open_ffn(ffn *f, td_bench *b, const shape *s, td_error *err) {
    uint64_t layer_bytes = (uint64_t)3 * s->n_experts * s->hidden * s->inter / 2, weights, scratch;
    *f = (ffn){.n_layers = (uint32_t)((WEIGHT_BYTES + layer_bytes - 1) / layer_bytes),
               .n_experts = s->n_experts,
               .top_k = s->top_k};
    td_experts_config c = {.n_layers = f->n_layers,
                           .n_experts = s->n_experts,
                           .hidden = s->hidden,
                           .inter = s->inter,
                           .top_k = s->top_k,
                           .format = b->o->experts->format,
                           .groups = b->o->experts->groups,
                           .act_dtype = TD_DT_BF16,
                           .max_tok = TOKENS_MAX};
    TD_TRY(td_experts_measure(&c, td_pool_subpools(b->pool), td_pool_workers(b->pool), &weights, &scratch, err));
    TD_TRY(td_bench_check_memory(b, "the experts", weights + scratch, err));
    TD_TRY(td_experts_create(&c, b->pool, &f->x, err));
    for (uint32_t l = 0; l < f->n_layers; l++) TD_TRY(td_experts_fill_layer(f->x, l, 1, err));
    f->ids = calloc((size_t)TOKENS_MAX * s->top_k, sizeof *f->ids);
    f->weights = calloc((size_t)TOKENS_MAX * s->top_k, sizeof *f->weights);
    f->in = calloc((size_t)TOKENS_MAX * s->hidden, sizeof *f->in);
    f->out = calloc((size_t)TOKENS_MAX * s->hidden, sizeof *f->out);
    if (!f->ids || !f->weights || !f->in || !f->out) return td_fail(err, TD_ENOMEM, "out of memory for the activations");
    for (size_t i = 0; i < (size_t)TOKENS_MAX * s->hidden; i++)
        f->in[i] = td_f32_to_bf16((float)td_rng_uniform(2, 0, i) - 0.5f);
    for (size_t i = 0; i < (size_t)TOKENS_MAX * s->top_k; i++) f->weights[i] = 1.0f / (float)s->top_k;
    return TD_OK;
}

static void close_ffn(ffn *f) {
    free(f->ids);
    free(f->weights);
    free(f->in);
    free(f->out);
    td_experts_destroy(f->x);
}

td_status td_bench_experts(td_bench *b, td_error *err) {
    td_status st = TD_OK;
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES && st == TD_OK; i++) {
        ffn f;
        if (!td_bench_wanted(b, SHAPES[i].name)) continue;
        st = open_ffn(&f, b, &SHAPES[i], err);
        for (size_t k = 0; k < sizeof TOKENS / sizeof *TOKENS && st == TD_OK; k++) {
            uint32_t      calls = TOKENS[k] == 1 ? 48 : TOKENS[k] <= 16 ? 8 : 2;
            td_bench_case c = {
                .m = TOKENS[k], .kernel = td_experts_kernel_name(f.x), .calls = calls, .run = run, .work = work, .ctx = &f};
            snprintf(c.shape, sizeof c.shape, "%s", SHAPES[i].name);
            f.n_tok = TOKENS[k];
            st = td_bench_time(b, &c, err);
        }
        close_ffn(&f);
    }
    return st;
}
