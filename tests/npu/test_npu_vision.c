/* What vision encoders are made of, against plain models: layer norms, activations of linears, attention to all
 * rows, rows of images. */
#include "npu_test_util.h"
#include "tests/td_test.h"

/* Outputs in bf16 are rounded once (2^-9). */
static double tolerance(td_dtype act) {
    return act == TD_DT_BF16 ? 5e-3 : 1e-5;
}

static float *bf16_array(rnd *r, size_t n, float scale) {
    float *f = rnd_array(r, n, scale);
    for (size_t i = 0; i < n; i++) f[i] = td_bf16_to_f32(td_f32_to_bf16(f[i]));
    return f;
}

static void check(const char *what, td_dtype act, const void *got, const double *want, size_t n, double limit) {
    double error = error_of(act, got, want, n);
    if (!(error < limit)) fail_msg("%s: relative error %g, limit %g", what, error, limit);
}

/* n 0: whole */
static void run_parts(rig *g, td_npu_block *b, const td_step *step, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        OK(g->npu->ops->enqueue_part(g->npu, g->stream, b, step, &(td_block_part){.i = i, .n = n}));
    if (n)
        OK(g->npu->ops->stream_sync(g->npu, g->stream));
    else
        run_block(g, b, step);
}

TEST(layer_norms) {
    rnd r = rnd_open("layer norm");
    for (int round = 0; round < 20; round++) {
        td_dtype     of_device = round & 1 ? TD_DT_BF16 : TD_DT_F32, act = round & 4 ? TD_DT_F32 : of_device; /* of rows */
        size_t       n = rnd_range(&r, 16, 300), m = rnd_range(&r, 1, 300);
        bool         with_add = round & 2;
        FREED float *x = bf16_array(&r, m * n, 1), *add = bf16_array(&r, m * n, 1), *gamma = rnd_array(&r, n, 1),
                    *beta = rnd_array(&r, n, 1);
        FREED double *want = malloc(m * n * sizeof *want);
        for (size_t i = 0; i < m * n; i++) x[i] += 3; /* a mean to take away */
        AT_END(rig_close) rig g = rig_open(2, of_device, false);
        FREED void   *xa = act_array(act, x, m * n), *adda = act_array(act, add, m * n), *out = act_array(act, NULL, m * n);
        td_block_desc desc =
            BLOCK_OF(TD_BLOCK_NORM, (uint32_t)m, norm, .hidden = (uint32_t)n, .eps = 1e-6f,
                     .gamma = make_weight(&g, TD_WEIGHT_F32, gamma, 0, n),
                     .beta = make_weight(&g, TD_WEIGHT_F32, beta, 0, n), .x = xa, .add = with_add ? adda : NULL, .out = out);
        desc.rows_f32 = act != of_device;
        td_npu_block *b = make_block(&g, &desc);
        run_rows(&g, b, m);
        for (size_t i = 0; i < m; i++) {
            double mean = 0, squares = 0, *row = want + i * n;
            for (size_t k = 0; k < n; k++)
                row[k] = act == TD_DT_BF16 ? (double)td_bf16_to_f32(((td_bf16 *)xa)[i * n + k])
                                           : (double)((float *)xa)[i * n + k]; /* with what was added */
            for (size_t k = 0; k < n; k++) mean += row[k] / (double)n;
            for (size_t k = 0; k < n; k++) squares += (row[k] - mean) * (row[k] - mean) / (double)n;
            for (size_t k = 0; k < n; k++)
                row[k] = (row[k] - mean) / sqrt(squares + 1e-6) * (double)gamma[k] + (double)beta[k];
        }
        check("layer norm", act, out, want, m * n, tolerance(act));
    }
}

static double gelu(td_activation a, double x) {
    if (a == TD_ACTIVATE_GELU_ERF) return x * (1 + erf(x / sqrt(2))) / 2;
    return x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
}

TEST(activations) {
    rnd r = rnd_open("activations");
    for (int round = 0; round < 16; round++) {
        td_dtype of_device = round & 1 ? TD_DT_BF16 : TD_DT_F32, act = round & 8 ? TD_DT_F32 : of_device; /* of rows */
        td_weight_format format = round & 2 ? TD_WEIGHT_BF16 : TD_WEIGHT_F32;
        td_activation    a = round & 4 ? TD_ACTIVATE_GELU_ERF : TD_ACTIVATE_GELU_TANH;
        size_t           n = rnd_range(&r, 1, 150), k = rnd_range(&r, 1, 200), m = rnd_range(&r, 1, round < 2 ? 1100 : 70);
        FREED float     *w = bf16_array(&r, n * k, 0.3f), *bias = rnd_array(&r, n, 1), *x = bf16_array(&r, m * k, 1);
        FREED double    *want = malloc(m * n * sizeof *want), *row = malloc(k * sizeof *row);
        AT_END(rig_close) rig g = rig_open(2, of_device, false);
        FREED void           *in = act_array(act, x, m * k), *out = act_array(act, NULL, m * n);
        td_block_desc         desc = BLOCK_OF(TD_BLOCK_LINEAR, (uint32_t)m, linear, .n = (uint32_t)n, .k = (uint32_t)k,
                                              .activation = a, .w = make_weight(&g, format, w, n, k),
                                              .bias = make_weight(&g, TD_WEIGHT_F32, bias, 0, n), .in = in, .out = out);
        desc.rows_f32 = act != of_device;
        td_npu_block *b = make_block(&g, &desc);
        run_rows(&g, b, m);
        for (size_t i = 0; i < m; i++) {
            for (size_t l = 0; l < k; l++) row[l] = (double)x[i * k + l];
            ref_linear(w, bias, row, n, k, want + i * n);
            for (size_t l = 0; l < n; l++) want[i * n + l] = gelu(a, want[i * n + l]);
        }
        check("activation", act, out, want, m * n, tolerance(act));
        FREED void    *again = act_array(act, NULL, m * n);
        td_step_counts counts = {.n_tok = (uint32_t)m};
        const td_step  step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
        memcpy(again, out, m * n * td_dtype_bytes(act));
        for (uint32_t parts = 1; parts <= 20; parts += 3 * parts) {
            memset(out, 0x5a, m * n * td_dtype_bytes(act));
            run_parts(&g, b, &step, parts);
            assert_memory_equal(out, again, m * n * td_dtype_bytes(act));
        }
    }
}

/* ---- attention to all rows ------------------------------------------------------------------- */

#define SEQS 3
#define SIDE 40 /* rows and columns of the largest picture */

/* Pictures of which each row meets all of its own. */
typedef struct {
    uint32_t hidden, heads, dim, n[SEQS], rows[SEQS], columns[SEQS];
    float   *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *table, *x[SEQS];
} pictures;

static pictures make_pictures(rnd *r, uint32_t dim) {
    pictures p = {.hidden = (uint32_t)rnd_range(r, 17, 70), .heads = (uint32_t)rnd_range(r, 1, 4), .dim = dim};
    size_t   width = (size_t)p.heads * dim;
    float    scale = 1.7f / sqrtf((float)p.hidden);
    p.q = bf16_array(r, width * p.hidden, scale), p.k = bf16_array(r, width * p.hidden, scale);
    p.v = bf16_array(r, width * p.hidden, scale), p.o = bf16_array(r, p.hidden * width, 1.7f / sqrtf((float)width));
    p.q_bias = rnd_array(r, width, 0.5f), p.k_bias = rnd_array(r, width, 0.5f);
    p.v_bias = rnd_array(r, width, 0.5f), p.o_bias = rnd_array(r, p.hidden, 0.5f);
    p.table = rnd_array(r, (size_t)SIDE * dim, 1);
    for (size_t at = 0; at < SIDE; at++)
        for (size_t i = 0; i < dim / 2; i++) {
            double angle = (double)at * pow(10000, -2.0 * (double)(i % (dim / 4)) / (double)(dim / 2));
            p.table[at * dim + i] = (float)cos(angle);
            p.table[at * dim + dim / 2 + i] = (float)sin(angle);
        }
    for (int s = 0; s < SEQS; s++) {
        p.rows[s] = s ? (uint32_t)rnd_range(r, 1, 9) : SIDE; /* several spans of keys, and some rows */
        p.columns[s] = s ? (uint32_t)rnd_range(r, 1, 5) : 15;
        p.n[s] = p.rows[s] * p.columns[s];
        p.x[s] = bf16_array(r, (size_t)p.n[s] * p.hidden, 1);
    }
    return p;
}

static void free_pictures(pictures *p) {
    float *all[] = {p->q, p->k, p->v, p->o, p->q_bias, p->k_bias, p->v_bias, p->o_bias, p->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (int s = 0; s < SEQS; s++) free(p->x[s]);
}

/* Each head's first half of pairs turns by the row, the second by the column. */
static void ref_turn(const pictures *p, int s, size_t i, double *x) {
    const size_t half = p->dim / 2, y = i / p->columns[s], column = i % p->columns[s];
    for (size_t h = 0; h < p->heads; h++, x += p->dim)
        for (size_t k = 0; k < half; k++) {
            const float *t = p->table + (k < half / 2 ? y : column) * p->dim;
            const double a = x[k], b = x[k + half];
            x[k] = a * (double)t[k] - b * (double)t[k + half];
            x[k + half] = b * (double)t[k] + a * (double)t[k + half];
        }
}

static void ref_picture(const pictures *p, int s, double *out) {
    const size_t  n = p->n[s], width = (size_t)p->heads * p->dim;
    FREED double *q = malloc(n * width * sizeof *q), *k = malloc(n * width * sizeof *k), *v = malloc(n * width * sizeof *v),
                 *row = malloc(p->hidden * sizeof *row), *w = malloc(n * sizeof *w), *sum = malloc(width * sizeof *sum);
    for (size_t i = 0; i < n; i++) {
        for (size_t l = 0; l < p->hidden; l++) row[l] = (double)p->x[s][i * p->hidden + l];
        ref_linear(p->q, p->q_bias, row, width, p->hidden, q + i * width);
        ref_linear(p->k, p->k_bias, row, width, p->hidden, k + i * width);
        ref_linear(p->v, p->v_bias, row, width, p->hidden, v + i * width);
        ref_turn(p, s, i, q + i * width);
        ref_turn(p, s, i, k + i * width);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t h = 0; h < p->heads; h++) {
            for (size_t j = 0; j < n; j++) {
                w[j] = 0;
                for (size_t l = 0; l < p->dim; l++) w[j] += q[i * width + h * p->dim + l] * k[j * width + h * p->dim + l];
                w[j] /= sqrt((double)p->dim);
            }
            ref_softmax(w, n);
            for (size_t l = 0; l < p->dim; l++) {
                sum[h * p->dim + l] = 0;
                for (size_t j = 0; j < n; j++) sum[h * p->dim + l] += w[j] * v[j * width + h * p->dim + l];
            }
        }
        ref_linear(p->o, p->o_bias, sum, p->hidden, width, out + i * p->hidden);
    }
}

/* The pictures first .. end - 1 in one step, each in pages of its own; out [rows of these, hidden]. @param parts 0: whole */
static void run_pictures(const pictures *p, uint32_t threads, td_dtype act, bool rows_f32, int first, int end,
                         uint32_t parts, void *out) {
    AT_END(rig_close) rig g = rig_open(threads, act, false);
    td_step_counts        counts = {.n_seq = (uint32_t)(end - first)};
    uint32_t              start[SEQS + 1] = {0}, pages = 0, stride = SIDE * SIDE / TD_KV_PAGE + 1;
    for (int s = first; s < end; s++) counts.n_tok += p->n[s];
    if (rows_f32) act = TD_DT_F32;
    const size_t    n = counts.n_tok, width = (size_t)p->heads * p->dim;
    FREED uint32_t *pos = malloc(n * sizeof *pos), *slot = malloc(n * sizeof *slot), *axes = malloc(3 * n * sizeof *axes),
                   *table = calloc((size_t)SEQS * stride, sizeof *table);
    FREED char *in = malloc(n * p->hidden * td_dtype_bytes(act));
    uint32_t    kv_len[SEQS], at = 0;
    uint8_t     absorbed[SEQS] = {0};
    for (int s = first; s < end; s++) {
        FREED void *x = act_array(act, p->x[s], (size_t)p->n[s] * p->hidden);
        memcpy(in + at * p->hidden * td_dtype_bytes(act), x, p->n[s] * p->hidden * td_dtype_bytes(act));
        for (uint32_t page = 0; page <= p->n[s] / TD_KV_PAGE; page++)
            table[(uint32_t)(s - first) * stride + page] = pages + page;
        for (uint32_t i = 0; i < p->n[s]; i++, at++) {
            pos[at] = i;
            slot[at] = pages * TD_KV_PAGE + i;
            axes[3 * at] = 0;
            axes[3 * at + 1] = i / p->columns[s];
            axes[3 * at + 2] = i % p->columns[s];
        }
        pages += p->n[s] / TD_KV_PAGE + 1;
        kv_len[s - first] = p->n[s];
        start[s - first + 1] = at;
    }
    const size_t  bytes = (size_t)pages * p->heads * g.npu->ops->kv_page_bytes(g.npu, TD_KV_HEAD, p->dim);
    FREED void   *k = calloc(1, bytes), *v = calloc(1, bytes);
    td_npu_block *b = make_block(
        &g, &WITH(td_block_desc, .kind = TD_BLOCK_GQA, .max_tok = counts.n_tok, .max_kv = SIDE * SIDE, .rows_f32 = rows_f32,
                  .gqa = WITH(td_gqa_desc, .hidden = p->hidden, .heads = p->heads, .kv_heads = p->heads, .head_dim = p->dim,
                              .full = true, .axes = {.rows = p->dim / 4, .columns = p->dim / 4, .contiguous = true},
                              .softmax_scale = 1 / sqrtf((float)p->dim),
                              .rope = make_weight(&g, TD_WEIGHT_F32, p->table, SIDE, p->dim),
                              .q = make_weight(&g, TD_WEIGHT_BF16, p->q, width, p->hidden),
                              .k = make_weight(&g, TD_WEIGHT_BF16, p->k, width, p->hidden),
                              .v = make_weight(&g, TD_WEIGHT_BF16, p->v, width, p->hidden),
                              .o = make_weight(&g, TD_WEIGHT_BF16, p->o, p->hidden, width),
                              .q_bias = make_weight(&g, TD_WEIGHT_F32, p->q_bias, 0, width),
                              .k_bias = make_weight(&g, TD_WEIGHT_F32, p->k_bias, 0, width),
                              .v_bias = make_weight(&g, TD_WEIGHT_F32, p->v_bias, 0, width),
                              .o_bias = make_weight(&g, TD_WEIGHT_F32, p->o_bias, 0, p->hidden), .kv_k = k, .kv_v = v,
                              .kv_pages = pages, .in = in, .out = out)));
    td_step step = td_step_unified(&WITH(td_step_arrays, .counts = &counts, .pos = pos, .slot = slot, .seq_start = start,
                                         .kv_len = kv_len, .absorbed = absorbed, .block_table = table, .rope_pos = axes),
                                   stride);
    run_parts(&g, b, &step, parts);
    /* a sequence that is not whole, positions beyond the table, and none are refused */
    kv_len[0]++;
    assert_int_not_equal(g.npu->ops->enqueue(g.npu, g.stream, b, &step), TD_OK);
    kv_len[0]--;
    axes[1] += SIDE;
    assert_int_not_equal(g.npu->ops->enqueue(g.npu, g.stream, b, &step), TD_OK);
    td_step without = td_step_unified(&WITH(td_step_arrays, .counts = &counts, .pos = pos, .slot = slot, .seq_start = start,
                                            .kv_len = kv_len, .absorbed = absorbed, .block_table = table),
                                      stride);
    assert_int_not_equal(g.npu->ops->enqueue(g.npu, g.stream, b, &without), TD_OK);
}

/* With the bits of a picture alone in any company, on any threads, in any parts. */
TEST(attention_to_all_rows) {
    rnd r = rnd_open("attention to all rows");
    for (int round = 0; round < 6; round++) {
        AT_END(free_pictures) pictures p = make_pictures(&r, round < 2 ? 72 : 4 * (uint32_t)rnd_range(&r, 2, 20));
        td_dtype                       act = round & 1 ? TD_DT_BF16 : TD_DT_F32, of_rows = round > 3 ? TD_DT_F32 : act;
        const bool                     rows_f32 = round > 3;
        size_t                         n = (size_t)p.n[0] + p.n[1] + p.n[2], bytes = td_dtype_bytes(of_rows), at = 0;
        FREED char                    *together = malloc(n * p.hidden * bytes), *alone = malloc(n * p.hidden * bytes);
        print_message("  hidden %u heads %u dim %u\n", p.hidden, p.heads, p.dim);
        run_pictures(&p, 2, act, rows_f32, 0, SEQS, 0, together);
        for (int s = 0; s < SEQS; s++) {
            const size_t  values = (size_t)p.n[s] * p.hidden;
            FREED double *want = malloc(values * sizeof *want);
            ref_picture(&p, s, want);
            check("picture", of_rows, together + at * bytes, want, values,
                  of_rows == TD_DT_BF16 ? 2e-2
                  : act == TD_DT_BF16   ? 5e-4
                                        : 2e-5);
            run_pictures(&p, 1, act, rows_f32, s, s + 1, 0, alone);
            assert_memory_equal(alone, together + at * bytes, values * bytes);
            for (uint32_t parts = 1; parts <= 40; parts += 3 * parts) { /* more than there are runs of rows, too */
                memset(alone, 0x5a, values * bytes);
                run_pictures(&p, 2, act, rows_f32, s, s + 1, parts, alone);
                assert_memory_equal(alone, together + at * bytes, values * bytes);
            }
            at += values;
        }
    }
}

/* ---- rows of images -------------------------------------------------------------------------- */

/* Tokens of images have rows of their own in the place of the table's, and add others; text is as it is without. Rows that
 * are not there are refused. */
TEST(rows_of_images) {
    enum { M = 23, ROOM = 40, VOCAB = 30 };
    rnd r = rnd_open("rows of images");
    for (int round = 0; round < 8; round++) {
        const td_dtype        act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        const size_t          h = rnd_range(&r, 1, 90);
        AT_END(rig_close) rig g = rig_open(2, act, false);
        FREED float          *table = bf16_array(&r, VOCAB * h, 1), *image = bf16_array(&r, ROOM * h, 1),
                    *more = bf16_array(&r, ROOM * h, 1), *add = bf16_array(&r, M * h, 1);
        FREED void *images = act_array(act, image, ROOM * h), *mores = act_array(act, more, ROOM * h),
                   *adds = act_array(act, add, M * h), *x = act_array(act, NULL, ROOM * h);
        FREED double *want = malloc(M * h * sizeof *want);
        td_npu_block *embed = make_block(&g, &BLOCK_OF(TD_BLOCK_EMBED, ROOM, embed, .hidden = (uint32_t)h, .images = images,
                                                       .table = make_weight(&g, TD_WEIGHT_BF16, table, VOCAB, h), .out = x)),
                     *combine = make_block(&g, &BLOCK_OF(TD_BLOCK_COMBINE, ROOM, combine, .hidden = (uint32_t)h, .x = x,
                                                         .add = {round & 2 ? adds : NULL}, .images = mores));
        td_step_counts counts = {.n_tok = M};
        uint32_t       token[M], row[M];
        for (uint32_t i = 0; i < M; i++) {
            token[i] = (uint32_t)rnd_range(&r, 0, VOCAB - 1);
            row[i] = rnd_range(&r, 0, 1) ? (uint32_t)rnd_range(&r, 0, ROOM - 1) : TD_NO_IMAGE;
            for (size_t k = 0; k < h; k++)
                want[i * h + k] = (double)(row[i] == TD_NO_IMAGE ? table[token[i] * h + k] : image[row[i] * h + k]);
        }
        td_step step = td_step_unified(
            &WITH(td_step_arrays, .counts = &counts, .token = token, .image_row = round & 4 ? NULL : row), 0);
        if (round & 4)
            for (uint32_t i = 0; i < M; i++)
                for (size_t k = 0; k < h; k++) want[i * h + k] = (double)table[token[i] * h + k];
        run_block(&g, embed, &step);
        check("embedding", act, x, want, M * h, 1e-12);
        for (uint32_t i = 0; i < M; i++)
            for (size_t k = 0; k < h; k++)
                want[i * h + k] += (round & 2 ? (double)add[i * h + k] : 0) +
                                   (round & 4 || row[i] == TD_NO_IMAGE ? 0 : (double)more[row[i] * h + k]);
        run_block(&g, combine, &step);
        check("sum", act, x, want, M * h, tolerance(act));
        row[M - 1] = ROOM;
        const bool reads = !(round & 4);
        assert_int_equal(g.npu->ops->enqueue(g.npu, g.stream, embed, &step) != TD_OK, reads);
        assert_int_equal(g.npu->ops->enqueue(g.npu, g.stream, combine, &step) != TD_OK, reads);
    }
}

TEST(bad_blocks_are_refused) {
    AT_END(rig_close) rig g = rig_open(1, TD_DT_F32, false);
    float                 ones[64 * 64];
    for (size_t i = 0; i < 64 * 64; i++) ones[i] = 1;
    td_npu_weight      *w = make_weight(&g, TD_WEIGHT_W8A8, ones, 8, 8);
    const td_gqa_desc   gqa = {.hidden = 8, .heads = 1, .kv_heads = 1, .head_dim = 8, .full = true};
    td_gqa_desc         windowed = gqa, crowded = gqa;
    const td_block_desc BAD[] = {
        {.kind = TD_BLOCK_LINEAR, .max_tok = 1, .linear = {.n = 8, .k = 8, .w = w, .activation = TD_ACTIVATE_GELU_ERF}},
        {.kind = TD_BLOCK_LINEAR, .max_tok = 1, .linear = {.n = 8, .k = 8, .w = w, .activation = (td_activation)3}},
        {.kind = TD_BLOCK_GQA, .max_tok = 1, .max_kv = 8, .gqa = gqa},
        {.kind = TD_BLOCK_EMBED, .max_tok = 1, .embed = {.table = w, .hidden = 8, .streams = 4, .images = ones}},
        {.kind = TD_BLOCK_EMBED, .max_tok = 1, .rows_f32 = true, .embed = {.table = w, .hidden = 8}}};
    static const char *const SAYS[] = {"quantised rows has no activation", "no activation 3", "has axes and no window",
                                       "one residual stream, not 4", "cannot have rows in f32"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        td_npu_block *b;
        td_error      err = {0};
        assert_int_not_equal(g.npu->ops->block_create(g.npu, &BAD[i], &b, &err), TD_OK);
        if (!strstr(err.text, SAYS[i])) fail_msg("\"%s\" has no \"%s\"", err.text, SAYS[i]);
    }
    windowed.axes = crowded.axes = (td_rope_axes){.rows = 2, .columns = 2, .contiguous = true};
    windowed.window = 4;
    crowded.axes.rows = 3;
    for (int i = 0; i < 2; i++) {
        td_npu_block *b;
        td_error      err = {0};
        td_block_desc d = {.kind = TD_BLOCK_GQA, .max_tok = 1, .max_kv = 8, .gqa = i ? crowded : windowed};
        assert_int_equal(g.npu->ops->block_create(g.npu, &d, &b, &err), TD_EINVAL);
        assert_non_null(strstr(err.text, i ? "cannot turn 3 and 2 of a head's 4 pairs" : "a window of 4"));
    }
}
