/*
 * Weights in groups on the device, made of a checkpoint's codes. Results are exact if inputs quantise exactly, and the same
 * whatever rows are beside them. Also blocks with several kinds of weights, an export, and rows in another order. The right
 * values are computed here from the codes before they are packed.
 */
#include "coded_matrices.h"
#include "tests/td_test.h"

static td_npu_weight *coded_weight(rig *g, const coded *c) {
    td_tensor_view v = view_of(c);
    td_npu_weight *w = weight_of(g, c->format, &v);
    td_npu_packed  p;
    g->npu->ops->weight_export(g->npu, w, &p);
    assert_true(p.bytes <= g->npu->ops->weight_bytes(g->npu, c->format, 0, c->m.n, c->m.k));
    return w;
}

/* Row x of int8 codes whose scale is 1: integers within a group (128 k at most), one fma for each. */
static float expected(const coded *c, size_t row, const float *x) {
    size_t size =
        c->format == TD_WEIGHT_INT4G && c->m.group >= c->m.k ? 128 : c->m.group; /* a scale of a row is that of 128s */
    float acc = 0;
    for (size_t at = 0; at < c->m.k; at += size) {
        int64_t sum = 0;
        for (size_t i = at; i < at + size && i < c->m.k; i++) sum += twice(c, row, i) * (int64_t)x[i];
        float scale = c->scales[row * c->groups + at / c->m.group];
        acc = c->format == TD_WEIGHT_FP4G ? fmaf((float)sum, scale, acc) : fmaf((float)(sum / 2), scale, acc);
    }
    return c->format == TD_WEIGHT_FP4G ? acc * (c->m.factor / 2) : acc;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void run_linear(rig *g, const td_npu_weight *w, const td_npu_weight *bias, const void *in, void *out, size_t m,
                       size_t n, size_t k) {
    td_npu_block *b = make_block(
        g, &(td_block_desc){.kind = TD_BLOCK_LINEAR,
                            .max_tok = (uint32_t)m,
                            .linear = {.n = (uint32_t)n, .k = (uint32_t)k, .w = w, .bias = bias, .in = in, .out = out}});
    run_rows(g, b, m);
}

TEST(linears_are_exact) {
    rnd r = rnd_open("linears in groups");
    for (int round = 0; round < 36; round++) {
        td_dtype act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        size_t   n = rnd_range(&r, 1, 100), k = rnd_range(&r, 9, 300) * 2,
               m = round % 5 ? rnd_range(&r, 1, 40) : rnd_range(&r, 100, 400);
        AT_END(free_coded) coded c = make_coded(&r, (size_t)round / 2 % N_KINDS, n, k);
        AT_END(rig_close) rig    g = rig_open(2, act, false);
        FREED float             *x = malloc(m * k * sizeof *x), *bias = rnd_array(&r, n, 1);
        for (size_t i = 0; i < m * k; i++)
            x[i] = i % k == 5 ? 127 : (float)rnd_range(&r, 0, 254) - 127; /* the row's scale is 1; exact in bf16 */
        FREED void    *in = act_array(act, x, m * k), *out = act_array(act, NULL, m * n), *alone = act_array(act, NULL, n);
        td_npu_weight *w = coded_weight(&g, &c), *b = make_weight(&g, TD_WEIGHT_F32, bias, 0, n);
        bool           has_bias = round & 4;
        size_t         element = td_dtype_bytes(act);
        run_linear(&g, w, has_bias ? b : NULL, in, out, m, n, k);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                float want = expected(&c, j, x + i * k) + (has_bias ? bias[j] : 0);
                if (act == TD_DT_BF16) want = td_bf16_to_f32(td_f32_to_bf16(want));
                assert_true(act_get(act, out, i * n + j) == (double)want);
            }
        for (size_t i = 0; i < m; i += 1 + m / 3) {
            run_linear(&g, w, has_bias ? b : NULL, (char *)in + i * k * element, alone, 1, n, k);
            assert_memory_equal(alone, (char *)out + i * n * element, n * element);
        }
    }
}

/* gate, up and down of different kinds and groups, with one of the three in another format: products that share their rows.
 */
TEST(blocks_mix_kinds) {
    rnd r = rnd_open("mlp in groups");
    for (size_t round = 0; round < 2 * N_KINDS; round++) {
        size_t hidden = 2 * rnd_range(&r, 20, 90), inter = 2 * rnd_range(&r, 20, 90), m = rnd_range(&r, 1, 150);
        AT_END(free_coded)
        coded gate = make_coded(&r, round % N_KINDS, inter, hidden),
              up = make_coded(&r, (round + 1 + round / N_KINDS) % N_KINDS, inter, hidden),
              down = make_coded(&r, (round + 2) % N_KINDS, hidden, inter);
        AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, false);
        FREED float          *x = rnd_array(&r, m * hidden, 0.02f), *wg = values_of(&gate), *wu = values_of(&up),
                    *wd = values_of(&down), *out = calloc(m * hidden, sizeof *out);
        td_npu_weight *ws[3] = {coded_weight(&g, &gate),
                                round % 3 ? coded_weight(&g, &up)
                                          : make_weight(&g, round % 2 ? TD_WEIGHT_W8A8 : TD_WEIGHT_BF16, wu, inter, hidden),
                                coded_weight(&g, &down)};
        td_npu_block  *b =
            make_block(&g, &BLOCK_OF(TD_BLOCK_MLP, (uint32_t)m, mlp, .hidden = (uint32_t)hidden, .inter = (uint32_t)inter,
                                     .gate = ws[0], .up = ws[1], .down = ws[2], .in = x, .out = out));
        run_rows(&g, b, m);
        FREED double *row = malloc(hidden * sizeof *row), *hg = malloc(inter * sizeof *hg), *hu = malloc(inter * sizeof *hu),
                     *want = malloc(m * hidden * sizeof *want);
        for (size_t t = 0; t < m; t++) {
            for (size_t i = 0; i < hidden; i++) row[i] = (double)x[t * hidden + i];
            ref_linear(wg, NULL, row, inter, hidden, hg);
            ref_linear(wu, NULL, row, inter, hidden, hu);
            for (size_t i = 0; i < inter; i++) hg[i] = hg[i] / (1 + exp(-hg[i])) * hu[i];
            ref_linear(wd, NULL, hg, hidden, inter, want + t * hidden);
        }
        double error = error_of(TD_DT_F32, out, want, m * hidden);
        if (!(error < 3e-2))
            fail_msg("mlp %zu: relative error %g", round, error); /* steps of 1/127 of a row's maximum, twice */
    }
}

TEST(rows_in_another_order_and_bytes_from_a_file) {
    enum { N = 50, K = 96, M = 3 };
    rnd                   r = rnd_open("rows and exports");
    uint32_t              reversed[N];
    float                 x[M * K], out[2][M * N];
    AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, false);
    td_error              err = {0};
    for (uint32_t i = 0; i < N; i++) reversed[i] = N - 1 - i;
    for (size_t i = 0; i < M * K; i++) x[i] = rnd_real(&r);
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        AT_END(free_coded) coded c = make_coded(&r, kind, N, K);
        td_npu_weight           *w = coded_weight(&g, &c), *again;
        c.m.row_of = reversed;
        td_npu_weight *turned = coded_weight(&g, &c);
        run_linear(&g, w, NULL, x, out[0], M, c.m.n, c.m.k);
        run_linear(&g, turned, NULL, x, out[1], M, c.m.n, c.m.k);
        for (size_t i = 0; i < M * N; i++) assert_true(out[0][i] == out[1][i / N * N + reversed[i % N]]);
        td_npu_packed p;
        g.npu->ops->weight_export(g.npu, w, &p);
        OK(g.npu->ops->weight_adopt(g.npu, &p, &again, &err));
        memset(out[1], 0, sizeof out[1]);
        run_linear(&g, again, NULL, x, out[1], M, c.m.n, c.m.k);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        g.npu->ops->weight_destroy(g.npu, again);
        td_npu_packed bad[] = {p, p, p};
        bad[0].layout[3] ^= 0x08; /* another size of groups */
        bad[1].format = kind < 4 ? TD_WEIGHT_FP4G : TD_WEIGHT_INT4G;
        bad[2].bytes -= 4096;
        for (size_t i = 0; i < 3; i++) assert_int_equal(g.npu->ops->weight_adopt(g.npu, &bad[i], &again, &err), TD_EINVAL);
    }
}

TEST(what_is_not_in_groups_is_refused) {
    enum { N = 40, K = 64 };
    rnd                      r = rnd_open("refusals");
    AT_END(rig_close) rig    g = rig_open(1, TD_DT_BF16, false);
    AT_END(free_coded) coded c = make_coded(&r, 0, N, K), fp4 = make_coded(&r, 5, N, K);
    uint32_t                 group_of[K] = {0};
    float                    plain[N * K] = {0};
    td_npu_weight           *w;
    td_error                 err = {0};
    td_tensor_view           v = view_of(&c), other = view_of(&fp4),
                   floats = {.dtype = TD_DT_F32, .rank = 2, .shape = {N, K}, .data = plain};
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_INT4G, &other, &w, &err), TD_ENOTSUP);
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_FP4G, &v, &w, &err), TD_ENOTSUP);
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_INT4G, &floats, &w, &err), TD_ENOTSUP);
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_W8A8, &v, &w, &err), TD_ENOTSUP);
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_BF16, &v, &w, &err), TD_ENOTSUP);
    memset(c.memory[1], 0, 2); /* the first scale */
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_INT4G, &v, &w, &err), TD_EFORMAT);
    assert_null(w);
    c.m.group_of = group_of;
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_INT4G, &v, &w, &err), TD_ENOTSUP);
    c.m.group_of = NULL, c.m.bits = 8;
    assert_int_equal(g.npu->ops->weight_create(g.npu, TD_WEIGHT_INT4G, &v, &w, &err), TD_ENOTSUP);
}
