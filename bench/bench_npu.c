/*
 * The host device against the machine's bounds, measured in the same rounds with the same threads: reading memory, int8 and f32
 * multiply-adds from registers.
 *
 *   bench_npu [threads] [filter]     rows whose name contains the filter
 *
 * A row is the median of five rounds of time / bound; each round measures its own bounds, since a shared machine drifts.
 * Weights of a linear are rotated over copies that exceed the last cache level, as the layers of a model do.
 *   linear: bound = max(weight bytes / bandwidth, operations / int8 peak)
 *   attention: max(cache bytes / bandwidth, operations of scores and values (and of expanding) / f32 peak). For decode the time is that
 *   of the block less that of the same block with one key, which takes projections and norms out; for prefill the whole block's time
 *   is compared, with the projections' operations / int8 peak added to the bound.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_time.h"
#include "core/cpu.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/roofline.h"
#include "npu/npu.h"

#define ROUNDS       5
#define BUFFER_BYTES ((size_t)640 << 20) /* beyond any L3 that this is run on */
#define COPIES_MAX   160

static td_pool       *pool;
static td_npu        *npu;
static td_npu_stream *stream;
static td_roofline   *roofline;
static const char    *filter = "";

static void must(td_status status, const td_error *err) {
    if (status == TD_OK) return;
    fprintf(stderr, "%s\n", err && err->text[0] ? err->text : td_status_text(status));
    exit(1);
}

static void *act_alloc(size_t n) {
    void    *p;
    td_error err = {0};
    must(npu->ops->alloc(npu, n * sizeof(td_bf16), &p, &err), &err);
    for (size_t i = 0; i < n; i++) ((td_bf16 *)p)[i] = td_f32_to_bf16((float)(i * 2654435761u % 2001) / 1000 - 1);
    return p;
}

static void act_free(void *p, size_t n) { npu->ops->free(npu, p, n * sizeof(td_bf16)); }

static td_npu_weight *random_weight(td_weight_format format, size_t n, size_t k, uint32_t rank) {
    static td_bf16 *values;
    static size_t   capacity;
    td_error        err = {0};
    td_npu_weight  *w;
    size_t          count = (rank == 1 ? 1 : n) * k;
    if (count > capacity) {
        free(values);
        values = malloc((capacity = count) * sizeof *values);
        if (!values) must(TD_ENOMEM, NULL);
        for (size_t i = 0; i < count; i++) values[i] = td_f32_to_bf16(((float)(td_rng_u64(1, 2, i / 8) >> i % 8 * 8 & 255) / 128 - 1) * 0.05f);
    }
    td_tensor_view v = {.dtype = TD_DT_BF16, .rank = rank, .shape = {rank == 1 ? k : n, k}, .data = values};
    must(npu->ops->weight_create(npu, format, &v, &w, &err), &err);
    return w;
}

static double run_block(td_npu_block *b, const td_step *step) {
    double t0 = td_roofline_now_s(pool);
    must(npu->ops->enqueue(npu, stream, b, step), NULL);
    must(npu->ops->stream_sync(npu, stream), NULL);
    return td_roofline_now_s(pool) - t0;
}

/* ---- linear ------------------------------------------------------------------------------------ */

static void bench_linear(size_t n, size_t k, bool head) {
    static const uint32_t M[] = {1, 4, 16, 64, 256, 1024};
    char                  name[64];
    snprintf(name, sizeof name, "%s %zux%zu", head ? "head" : "w8a8", n, k);
    if (!strstr(name, filter)) return;
    size_t         copies = BUFFER_BYTES / (n * k) + 1;
    td_npu_weight *w[COPIES_MAX];
    td_npu_block  *b[COPIES_MAX];
    uint32_t       out_row[1024];
    td_error       err = {0};
    if (copies > COPIES_MAX) copies = COPIES_MAX;
    size_t out_bytes = 1024 * n * (head ? 4 : 2);
    void  *in = act_alloc(1024 * k), *out;
    must(npu->ops->alloc(npu, out_bytes, &out, &err), &err);
    for (uint32_t i = 0; i < 1024; i++) out_row[i] = i;
    for (size_t i = 0; i < copies; i++) {
        w[i] = random_weight(TD_WEIGHT_W8A8, n, k, 2);
        td_block_desc desc = {.kind = TD_BLOCK_LINEAR, .max_tok = 1024, .linear = {.w = w[i], .in = in, .out = out}};
        if (head)
            desc = (td_block_desc){.kind = TD_BLOCK_HEAD, .max_tok = 1024,
                                   .head = {.hidden = (uint32_t)k, .vocab = (uint32_t)n, .max_out = 1024, .w = w[i], .x = in, .logits = out}};
        must(npu->ops->block_create(npu, &desc, &b[i], &err), &err);
    }
    for (size_t m = 0; m < sizeof M / sizeof M[0]; m++) {
        td_step step = {.n_tok = M[m], .n_out = M[m], .host = {.out_row = out_row}};
        size_t  runs = M[m] <= 16 ? copies : M[m] <= 64 ? 8 : 2;
        double  fraction[ROUNDS], time[ROUNDS];
        if (runs > copies) runs = copies;
        run_block(b[0], &step);
        for (int round = 0; round < ROUNDS; round++) {
            double by_memory = (double)(n * k) / td_roofline_read(roofline);
            double by_int8 = 2.0 * (double)(n * k) * M[m] / td_roofline_int8(roofline), sum = 0;
            for (size_t i = 0; i < runs; i++) sum += run_block(b[i], &step);
            time[round] = sum / (double)runs;
            fraction[round] = (by_memory > by_int8 ? by_memory : by_int8) / time[round];
        }
        double t = bench_median(time, ROUNDS);
        printf("%-18s M %4u  %10.1f us  %7.2f GB/s  %8.1f Gop/s  fraction of bound %.2f\n", name, M[m], t * 1e6, (double)(n * k) / t * 1e-9,
               2e-9 * (double)(n * k) * M[m] / t, bench_median(fraction, ROUNDS));
        fflush(stdout);
    }
    for (size_t i = 0; i < copies; i++) {
        npu->ops->block_destroy(npu, b[i]);
        npu->ops->weight_destroy(npu, w[i]);
    }
    act_free(in, 1024 * k);
    npu->ops->free(npu, out, out_bytes);
}

/* ---- attention --------------------------------------------------------------------------------- */

/* n_tok 1: decode at kv keys; else a prompt of n_tok. linear_ops: int8 operations of the projections. */
static void bench_attention(const char *name, td_block_desc desc, uint32_t n_tok, uint32_t kv, double cache_bytes, double f32_ops, double linear_ops) {
    if (!strstr(name, filter)) return;
    td_error  err = {0};
    uint32_t  pages = (kv + TD_KV_PAGE - 1) / TD_KV_PAGE, start[2] = {0, n_tok}, one = 1, zero = 0;
    uint32_t *table = malloc(sizeof *table * pages), *pos = malloc(sizeof *pos * n_tok);
    uint8_t   absorbed = n_tok == 1;
    if (!table || !pos) must(TD_ENOMEM, NULL);
    for (uint32_t i = 0; i < pages; i++) table[i] = i;
    for (uint32_t i = 0; i < n_tok; i++) pos[i] = kv - n_tok + i;
    td_step step = {.n_tok = n_tok, .n_seq = 1, .block_stride = pages,
                    .host = {.pos = pos, .slot = pos, .seq_start = start, .kv_len = &kv, .absorbed = &absorbed, .block_table = table}};
    td_step base = step;
    base.host.pos = base.host.slot = &zero;
    base.host.kv_len = &one;
    td_npu_block *b;
    desc.max_tok = n_tok;
    desc.max_kv = kv;
    must(npu->ops->block_create(npu, &desc, &b, &err), &err);
    int    runs = n_tok == 1 ? 100 : 1;
    double fraction[ROUNDS], time[ROUNDS];
    run_block(b, &step);
    for (int round = 0; round < ROUNDS; round++) {
        double by_memory = cache_bytes / td_roofline_read(roofline), by_f32 = f32_ops / td_roofline_f32(roofline);
        double bound = (by_memory > by_f32 ? by_memory : by_f32) + linear_ops / td_roofline_int8(roofline);
        time[round] = 0;
        for (int i = 0; i < runs; i++) {
            time[round] += run_block(b, &step) / runs;
            if (n_tok == 1) time[round] -= run_block(b, &base) / runs;
        }
        fraction[round] = bound / time[round];
    }
    double t = bench_median(time, ROUNDS);
    printf("%-18s %10.1f us  %7.2f GB/s of cache  %7.1f Gflop/s  fraction of bound %.2f\n", name, t * 1e6, cache_bytes / t * 1e-9, f32_ops / t * 1e-9,
           bench_median(fraction, ROUNDS));
    fflush(stdout);
    npu->ops->block_destroy(npu, b);
    free(table);
    free(pos);
}

static void bench_all_attention(void) {
    const uint32_t kv = 4096, pre = 2048;
    const double   pairs = (double)pre * (pre + 1) / 2;
    { /* V2-Lite */
        const size_t   hidden = 2048, heads = 16, lora = 512, nope = 128, rope = 64, v = 128;
        td_npu_weight *w[6] = {random_weight(TD_WEIGHT_W8A8, heads * (nope + rope), hidden, 2), random_weight(TD_WEIGHT_W8A8, lora + rope, hidden, 2),
                               random_weight(TD_WEIGHT_F32, 1, lora, 1), random_weight(TD_WEIGHT_BF16, heads * (nope + v), lora, 2),
                               random_weight(TD_WEIGHT_W8A8, hidden, heads * v, 2), random_weight(TD_WEIGHT_F32, kv, rope, 2)};
        void          *latent = act_alloc(kv * lora), *k_rope = act_alloc(kv * rope), *in = act_alloc(pre * hidden), *out = act_alloc(pre * hidden);
        td_block_desc  d = {.kind = TD_BLOCK_MLA, .mla = {
            .hidden = hidden, .heads = heads, .kv_lora = lora, .nope_dim = nope, .rope_dim = rope, .v_dim = v, .eps = 1e-6f, .softmax_scale = 0.1f,
            .q = w[0], .kv_a = w[1], .kv_a_norm = w[2], .kv_b = w[3], .o = w[4], .rope = w[5], .kv_latent = latent, .kv_rope = k_rope, .in = in, .out = out}};
        bench_attention("mla decode 4096", d, 1, kv, 2.0 * kv * (lora + rope), 2.0 * kv * heads * (2 * lora + rope), 0);
        bench_attention("mla prefill 2048", d, pre, pre, 2.0 * pre * (lora + rope),
                        2.0 * (pairs * heads * (nope + rope + v) + (double)pre * heads * (nope + v) * lora),
                        2.0 * pre * hidden * (heads * (nope + rope + v) + lora + rope));
        for (int i = 0; i < 6; i++) npu->ops->weight_destroy(npu, w[i]);
        act_free(latent, kv * lora), act_free(k_rope, kv * rope), act_free(in, pre * hidden), act_free(out, pre * hidden);
    }
    { /* Qwen3-30B */
        const size_t   hidden = 2048, heads = 32, kv_heads = 4, dim = 128;
        td_npu_weight *w[6] = {random_weight(TD_WEIGHT_W8A8, heads * dim, hidden, 2), random_weight(TD_WEIGHT_W8A8, kv_heads * dim, hidden, 2),
                               random_weight(TD_WEIGHT_W8A8, kv_heads * dim, hidden, 2), random_weight(TD_WEIGHT_W8A8, hidden, heads * dim, 2),
                               random_weight(TD_WEIGHT_F32, 1, dim, 1), random_weight(TD_WEIGHT_F32, kv, dim, 2)};
        void          *k = act_alloc(kv * kv_heads * dim), *v = act_alloc(kv * kv_heads * dim), *in = act_alloc(pre * hidden), *out = act_alloc(pre * hidden);
        td_block_desc  d = {.kind = TD_BLOCK_GQA, .gqa = {
            .hidden = hidden, .heads = heads, .kv_heads = kv_heads, .head_dim = dim, .eps = 1e-6f, .softmax_scale = 0.1f, .q = w[0], .k = w[1], .v = w[2],
            .o = w[3], .q_norm = w[4], .k_norm = w[4], .rope = w[5], .kv_k = k, .kv_v = v, .in = in, .out = out}};
        bench_attention("gqa decode 4096", d, 1, kv, 2.0 * 2 * kv * kv_heads * dim, 2.0 * 2 * kv * heads * dim, 0);
        bench_attention("gqa prefill 2048", d, pre, pre, 2.0 * 2 * pre * kv_heads * dim, 2.0 * 2 * pairs * heads * dim,
                        2.0 * pre * hidden * 2 * (heads + kv_heads) * dim);
        for (int i = 0; i < 6; i++) npu->ops->weight_destroy(npu, w[i]);
        act_free(k, kv * kv_heads * dim), act_free(v, kv * kv_heads * dim), act_free(in, pre * hidden), act_free(out, pre * hidden);
    }
}

int main(int argc, char **argv) {
    static td_thread_plan plan;
    td_machine            machine;
    td_error              err = {0};
    if (argc > 2) filter = argv[2];
    must(td_topology_plan(argc > 1 ? (uint32_t)atoi(argv[1]) : 0, 1, 0, &plan, &machine, &err), &err);
    must(td_pool_create(plan.experts, plan.n_experts, &pool, &err), &err);
    td_pool_pin_caller(pool);
    must(td_npu_open("host", &(td_npu_config){.act_dtype = TD_DT_BF16, .pool = pool}, &npu, &err), &err);
    must(npu->ops->stream_create(npu, &stream, &err), &err);
    must(td_roofline_open(pool, BUFFER_BYTES, &roofline, &err), &err);
    td_npu_caps caps;
    npu->ops->caps(npu, &caps);
    printf("%s; read %.1f GB/s, int8 %.0f Gop/s, f32 %.0f Gflop/s\n", caps.text, td_roofline_read(roofline) * 1e-9,
           td_roofline_int8(roofline) * 1e-9, td_roofline_f32(roofline) * 1e-9);
    bench_linear(2048, 2048, false);
    bench_linear(7168, 2048, false);
    bench_linear(24576, 1536, false);
    bench_linear(102400, 2048, true);
    bench_all_attention();
    npu->ops->stream_destroy(npu, stream);
    npu->ops->close(npu);
    td_roofline_close(roofline);
    td_pool_destroy(pool);
    return 0;
}
