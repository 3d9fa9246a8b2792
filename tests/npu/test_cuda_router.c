/* The CUDA kernels of the router's choice, of sums, and of the best logits, compared with the host's blocks. */
#include "cuda_rig.h"
#include "tests/npu/unified_step.h"
#include "tests/td_test.h"

CUDA_KERNEL(td_route);
CUDA_KERNEL(td_combine);
CUDA_KERNEL(td_gate_rows);
CUDA_KERNEL(td_top);
CUDA_KERNEL(td_top_parts);

/* Both get the same logits: the host's router multiplies them with an identity. With sigmoid every operation is elementwise
 * or in the same order, so all is the same bits. Softmax's sum has an order of its own; logits of distinct values, far
 * apart, keep the choice. */
TEST(routers) {
    rnd r = rnd_open("cuda router");
    for (int round = 0; round < 60; round++) {
        td_router_desc d =
            WITH(td_router_desc, .n_group = (uint32_t)rnd_range(&r, 1, 8), .group = (td_router_group)rnd_range(&r, 0, 2),
                 .score = (td_router_score)rnd_range(&r, 0, CARD_SCORES - 1), .normalise = rnd_u64(&r) & 1,
                 .scale = rnd_real(&r) + 2);
        uint32_t rows = (uint32_t)rnd_range(&r, 1, 5), size = (uint32_t)rnd_range(&r, 1,
                                                                                  round < 4    ? 200
                                                                                  : round < 12 ? 48
                                                                                               : 12);
        d.n_experts = d.hidden = d.n_group * size;
        d.topk_group = (uint32_t)rnd_range(&r, 1, d.n_group);
        size_t allowed = d.group ? size * d.topk_group : d.n_experts;
        d.top_k = (uint32_t)rnd_range(&r, 1, allowed < TD_TOP_K_MAX ? allowed : TD_TOP_K_MAX);
        bool with_bias = rnd_u64(&r) & 1, with_logit_bias = rnd_u64(&r) & 1,
             coarse = d.score == TD_SCORE_SIGMOID && (round & 1); /* coarse: many ties */
        size_t n = (size_t)rows * d.n_experts;
        float *logits = rnd_array(&r, n, 4), *bias = rnd_array(&r, d.n_experts, 0.5f),
              *logit_bias = rnd_array(&r, d.n_experts, 1), *identity = cuda_identity(d.n_experts);
        for (size_t i = 0; i < n; i++) logits[i] = coarse ? roundf(logits[i]) : td_bf16_to_f32(td_f32_to_bf16(logits[i]));
        for (size_t i = 0; i < d.n_experts; i++) bias[i] = coarse ? roundf(bias[i] * 2) / 2 : bias[i];
        AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, false);
        uint16_t             *ids = calloc((size_t)rows * d.top_k, sizeof *ids);
        float                *weights = calloc((size_t)rows * d.top_k, sizeof *weights);
        td_npu_weight        *w = make_weight(&g, TD_WEIGHT_F32, identity, d.n_experts, d.n_experts),
                      *wb = make_weight(&g, TD_WEIGHT_F32, bias, 0, d.n_experts),
                      *wl = make_weight(&g, TD_WEIGHT_F32, logit_bias, 0, d.n_experts);
        d.w = w, d.bias = with_bias ? wb : NULL, d.logit_bias = with_logit_bias ? wl : NULL, d.in = logits, d.ids = ids,
        d.weights = weights;
        uint16_t *slot_of = malloc(d.n_experts * sizeof *slot_of); /* every other expert has one, in half of the rounds */
        for (uint32_t e = 0; e < d.n_experts; e++) slot_of[e] = e % 2 ? TD_NO_SLOT : (uint16_t)(e / 2);
        if (round % 2) d.slot_of = slot_of;
        td_npu_block *b = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_ROUTER, .max_tok = rows, .router = d});
        run_rows(&g, b, rows);
        cuda_buf nb = cuda_word(rows), lb = cuda_copy(logits, n * sizeof(float)),
                 bb = cuda_copy(bias, d.n_experts * sizeof(float)), jb = cuda_copy(logit_bias, d.n_experts * sizeof(float)),
                 slots = cuda_copy(slot_of, d.n_experts * sizeof *slot_of),
                 got_ids = cuda_alloc((size_t)rows * d.top_k * sizeof(uint16_t)),
                 got = cuda_alloc((size_t)rows * d.top_k * sizeof(float));
        uint32_t kind = (uint32_t)d.score, group = (uint32_t)d.group, normalise = d.normalise;
        cuda_run(&td_cuda_kernel_td_route,
                 cuda_grid(rows + 1, 1, 1, TD_CUDA_ROUTE_THREADS, TD_CUDA_ROUTE_SHARED(d.n_experts)), CUDA_OUT(got_ids, got),
                 CUDA_ARGS(&nb.p, &lb.p, with_logit_bias ? &jb.p : CUDA_NULL, with_bias ? &bb.p : CUDA_NULL, &d.n_experts,
                           &d.top_k, &kind, &group, &d.n_group, &d.topk_group, &normalise, &d.scale,
                           d.slot_of ? &slots.p : CUDA_NULL, &got_ids.p, &got.p));
        assert_same_bits("experts", got_ids.p, ids, (size_t)rows * d.top_k * sizeof(uint16_t), sizeof(uint16_t));
        if (d.score == TD_SCORE_SIGMOID)
            assert_same_bits("weights", got.p, weights, (size_t)rows * d.top_k * sizeof(float), sizeof(float));
        else
            assert_close("weights", got.p, weights, (size_t)rows * d.top_k, 1e-6);
        CUDA_FREE(nb, lb, bb, jb, slots, got_ids, got);
        free(logits), free(bias), free(logit_bias), free(identity), free(ids), free(weights), free(slot_of);
    }
}

TEST(sums) {
    rnd r = rnd_open("cuda combine");
    for (int which = 0; which < 8; which++) {
        uint32_t              rows = 3, hidden = (uint32_t)rnd_range(&r, 1, 600);
        size_t                n = (size_t)rows * hidden;
        AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, false);
        float                *v[4];
        cuda_buf              c[4], nb = cuda_word(rows);
        void                 *h[4];
        for (int i = 0; i < 4; i++) v[i] = rnd_array(&r, n, 5), c[i] = cuda_bf16(v[i], n), h[i] = act_array(g.act, v[i], n);
        td_npu_block *b =
            make_block(&g, &BLOCK_OF(TD_BLOCK_COMBINE, rows, combine, .hidden = hidden, .x = h[3],
                                     .add = {which & 1 ? h[0] : NULL, which & 2 ? h[1] : NULL, which & 4 ? h[2] : NULL}));
        run_rows(&g, b, rows);
        cuda_run(&td_cuda_kernel_td_combine, cuda_grid(cuda_up(hidden, 256), rows + 1, 1, 256, 0), CUDA_OUT(c[3]),
                 CUDA_ARGS(&nb.p, &c[3].p, which & 1 ? &c[0].p : CUDA_NULL, which & 2 ? &c[1].p : CUDA_NULL,
                           which & 4 ? &c[2].p : CUDA_NULL, &hidden));
        assert_same_bits("combine", c[3].p, h[3], n * 2, 2);
        for (int i = 0; i < 4; i++) free(v[i]), free(h[i]);
        CUDA_FREE(nb, c[0], c[1], c[2], c[3]);
    }
    uint32_t rows = 4, hidden = 300;
    float   *x = rnd_array(&r, 1200, 3), gate[4] = {-3, 0, 2.5f, 90};
    cuda_buf nb = cuda_word(rows), xb = cuda_copy(x, 4800), gb = cuda_copy(gate, sizeof gate), out = cuda_alloc(2400);
    cuda_run(&td_cuda_kernel_td_gate_rows, cuda_grid(2, 5, 1, 256, 0), CUDA_OUT(out),
             CUDA_ARGS(&nb.p, &xb.p, &gb.p, &hidden, &out.p));
    for (size_t i = 0; i < 1200; i++) {
        double want = (double)x[i] / (1 + exp(-(double)gate[i / 300]));
        assert_true(fabs((double)td_bf16_to_f32(((td_bf16 *)out.p)[i]) - want) <= fabs(want) / 255);
    }
    CUDA_FREE(nb, xb, gb, out);
    free(x);
}

TEST(best_logits) {
    rnd r = rnd_open("cuda top");
    for (int round = 0; round < 24; round++) {
        uint32_t rows = (uint32_t)rnd_range(&r, 1, 3), vocab = (uint32_t)rnd_range(&r, 1, round == 0 ? 20000 : 900),
                 k = (uint32_t)rnd_range(&r, 1, vocab < 40 ? vocab : 40);
        if (round == 1) k = vocab;
        if (round == 0) vocab += 20000, k = TD_CUDA_TOP_MAX; /* more words than threads keep, and a short last part */
        uint32_t     parts = (uint32_t)cuda_up(vocab, TD_CUDA_TOP_PART);
        FREED float *x = rnd_array(&r, (size_t)rows * vocab, 8);
        for (size_t i = 0; round % 3 == 1 && i < (size_t)rows * vocab; i++)
            x[i] = roundf(x[i]) * (rnd_u64(&r) & 1 ? 1.0f : -1.0f); /* ties, -0 */
        if (round % 6 == 2) x[rnd_range(&r, 0, vocab - 1)] = round % 12 == 2 ? NAN : INFINITY;
        if (round % 6 == 3) x[rnd_range(&r, 0, vocab - 1)] = -INFINITY;
        AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, false);
        FREED td_logit       *want = calloc((size_t)rows * k, sizeof *want);
        td_step_counts        counts = {.n_out = rows};
        td_step               step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
        td_npu_block         *b =
            make_block(&g, &(td_block_desc){.kind = TD_BLOCK_TOP,
                                            .max_tok = 1,
                                            .top = {.vocab = vocab, .k = k, .max_out = rows, .logits = x, .top = want}});
        run_block(&g, b, &step);
        cuda_buf nb = cuda_word(rows), xb = cuda_copy(x, (size_t)rows * vocab * 4),
                 top = cuda_alloc((size_t)rows * k * sizeof(td_logit)), sum = cuda_alloc(rows * 8),
                 words = cuda_alloc((size_t)rows * parts * k * 8), of_parts = cuda_alloc((size_t)rows * parts * 8);
        cuda_run(&td_cuda_kernel_td_top_parts, cuda_grid(parts, rows + 1, 1, TD_CUDA_TOP_THREADS, 0), CUDA_OUT(of_parts),
                 CUDA_ARGS(&nb.p, &xb.p, &vocab, &k, &words.p, &of_parts.p));
        cuda_run(&td_cuda_kernel_td_top, cuda_grid(rows + 1, 1, 1, TD_CUDA_TOP_MERGE_THREADS, 0), CUDA_OUT(top, sum),
                 CUDA_ARGS(&nb.p, &xb.p, &vocab, &k, &words.p, &of_parts.p, &parts, &top.p, &sum.p));
        for (uint32_t i = 0; i < rows; i++) {
            const td_logit *a = (td_logit *)top.p + (size_t)i * k, *e = want + (size_t)i * k;
            if (isnan(e[0].value)) {
                assert_true(isnan(a[0].value));
                continue;
            }
            assert_same_bits("top", a, e, k * sizeof *a, sizeof *a);
            double total = 0;
            for (uint32_t j = 0; j < vocab; j++) total += exp((double)x[(size_t)i * vocab + j] - (double)e[0].value);
            assert_true(((float *)sum.p)[i * 2] == e[0].value);
            assert_true(fabs((double)((float *)sum.p)[i * 2 + 1] - total) <= total * 2e-6);
        }
        CUDA_FREE(nb, xb, top, sum, words, of_parts);
    }
}
