/*
 * Weights in groups of 4-bit codes on an Ascend card. Linears and routed experts keep their codes: these are compared one by
 * one with the checkpoint's values, as this test computes them in doubles. No operation takes codes with int8 rows: linears
 * of such rows are rounded to int8, a scale for each row; the weights on the card, in NZ, are compared for every kind of group.
 *
 * Bounds. The scale is the row's largest value / 127, to two roundings of f32. A code is the nearest one: off by half a
 * scale, 1/254 of the row's largest value; the weight and the quotient are rounded to f32 before, 2^-22 of 127 scales.
 */
#include "coded_matrices.h"

#include "npu/ascend/ascend_stack.h"
#include "npu/ascend/ascend_weight.h"
#include "tests/td_test.h"

#define SCALE_SLACK ldexp(1, -22)
#define CODE_SLACK (127 * ldexp(1, -22)) /* in scales */

/* The rows that lie on the card. */
typedef struct {
    int8_t *codes; /* [n, k] */
    float  *scale; /* [n] */
} rounded;

/* Tiles of 16 inputs x 32 outputs: [ceil(n / 32)][ceil(k / 16)][16][32] (docs/zh/context/data_format.md of CANN's ops). */
static rounded read_back(td_ascend_npu *d, const td_ascend_matrix *m, size_t n, size_t k) {
    size_t        k_tiles = (k + 15) / 16, n_tiles = (n + 31) / 32;
    rounded       r = {.codes = malloc(n * k), .scale = malloc(n_tiles * 32 * sizeof(float))};
    FREED int8_t *nz = malloc(n_tiles * k_tiles * 512);
    td_error      err = {0};
    OK(td_ascend_download(d, nz, m->data, n_tiles * k_tiles * 512, &err));
    OK(td_ascend_download(d, r.scale, m->scale, n_tiles * 32 * sizeof(float), &err));
    for (size_t o = 0; o < n_tiles * 32; o++)
        for (size_t i = 0; i < k_tiles * 16; i++) {
            int8_t code = nz[((o / 32 * k_tiles + i / 16) * 16 + i % 16) * 32 + o % 32];
            if (o < n && i < k)
                r.codes[o * k + i] = code;
            else
                assert_int_equal(code, 0); /* what is filled up */
        }
    return r;
}

/* @return the largest error, in the row's largest value */
static double check_row(const coded *c, const rounded *r, size_t row) {
    size_t k = c->m.k;
    double most = 0, worst = 0, scale = r->scale[row];
    for (size_t i = 0; i < k; i++) {
        double w = 0.5 * twice(c, row, i) * (double)c->scales[row * c->groups + i / c->m.group] * (double)c->m.factor;
        most = fmax(most, fabs(w));
    }
    if (most == 0) {
        for (size_t i = 0; i < k; i++) assert_int_equal(r->codes[row * k + i], 0);
        return 0;
    }
    assert_true(fabs(scale - most / 127) <= SCALE_SLACK * scale);
    for (size_t i = 0; i < k; i++) {
        double w = 0.5 * twice(c, row, i) * (double)c->scales[row * c->groups + i / c->m.group] * (double)c->m.factor;
        double off = fabs(r->codes[row * k + i] * scale - w);
        if (off > scale * (0.5 + CODE_SLACK))
            fail_msg("row %zu, column %zu: %g is %d x %g", row, i, w, r->codes[row * k + i], scale);
        worst = fmax(worst, off / most);
    }
    return worst;
}

static double check_matrix(td_ascend_npu *d, const coded *c) {
    const td_npu_ops       *ops = d->base.npu.ops;
    td_tensor_view          v = view_of(c);
    td_npu_weight          *w;
    const td_ascend_matrix *m;
    td_error                err = {0};
    double                  worst = 0;
    if (ops->weight_create(&d->base.npu, c->format, &v, &w, &err) != TD_OK) fail_msg("%s", err.text);
    td_ascend_part part = {.what = "groups", .w = w, .n = c->m.n, .k = c->m.k, .int8 = true};
    if (td_ascend_matrix_of(d, &part, 1, c->m.k, &m, &err) != TD_OK) fail_msg("%s", err.text);
    assert_int_equal(m->format, TD_WEIGHT_W8A8);
    assert_true(m->n >= c->m.n && m->n % 32 == 0);
    rounded r = read_back(d, m, c->m.n, c->m.k);
    for (size_t row = 0; row < c->m.n; row++) worst = fmax(worst, check_row(c, &r, row));
    free(r.codes);
    free(r.scale);
    ops->weight_destroy(&d->base.npu, w);
    return worst;
}

static td_ascend_npu *open_card(void) {
    td_npu       *npu;
    td_npu_config config = {.act_dtype = TD_DT_BF16};
    td_error      err = {0};
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    if (td_npu_open("npu", &config, &npu, &err) != TD_OK) fail_msg("%s", err.text);
    return (td_ascend_npu *)npu;
}

/* Outputs and inputs that fill no tile, last groups that are short, and one row. */
TEST(rounded_to_int8) {
    static const size_t SIZES[][2] = {{64, 256}, {33, 160}, {7, 96}, {1, 64}, {96, 416}};
    td_ascend_npu      *d = open_card();
    rnd                 r = rnd_open("groups to int8");
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        double worst = 0;
        for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
            AT_END(free_coded) coded c = make_coded(&r, kind, SIZES[i][0], SIZES[i][1]);
            worst = fmax(worst, check_matrix(d, &c));
        }
        print_message("    kind %zu: the largest error is %.5f of a row's largest value; half a step is %.5f\n", kind, worst,
                      1.0 / 254);
        assert_true(worst > 0);
    }
    d->base.npu.ops->close(&d->base.npu);
}

/* ---- linears that keep their codes --------------------------------------------------------------- */

/* Weight (n, k) of a matrix [k, columns] of codes, in groups, with what the operation makes of them. */
static float weight_at(const uint8_t *data, const td_bf16 *scale, const td_bf16 *offset, size_t columns, size_t group,
                       size_t n, size_t k) {
    size_t at = k * columns + n, of = k / group * columns + n;
    int    code = (int8_t)((data[at / 2] >> (at % 2 ? 4 : 0) & 15) << 4) >> 4;
    return ((float)code + td_bf16_to_f32(offset[of])) * td_bf16_to_f32(scale[of]);
}

static double value_at(const coded *c, size_t n, size_t k) {
    return 0.5 * twice(c, n, k) * (double)c->scales[n * c->groups + k / c->m.group];
}

/* Two weights in one matrix, each from a whole tile on; columns between are of zeros. */
static void check_kept(td_ascend_npu *d, const td_ascend_matrix *m, const coded c[2]) {
    const size_t   bytes = m->k * m->n / 2, halves = m->k / m->group * m->n;
    FREED uint8_t *data = malloc(bytes);
    FREED td_bf16 *scale = malloc(halves * sizeof *scale), *offset = malloc(halves * sizeof *offset);
    td_error       err = {0};
    OK(td_ascend_download(d, data, m->data, bytes, &err));
    OK(td_ascend_download(d, scale, m->scale16, halves * sizeof *scale, &err));
    OK(td_ascend_download(d, offset, m->offset16, halves * sizeof *offset, &err));
    for (size_t n = 0; n < m->n; n++)
        for (size_t k = 0; k < m->k; k++) {
            size_t part = n >= m->first[1], row = n - m->first[part];
            double want = row < c[part].m.n ? value_at(&c[part], row, k) : 0;
            float  w = weight_at(data, scale, offset, m->n, m->group, n, k);
            if (fabs((double)w - want) > 0) fail_msg("output %zu, input %zu: %g, not %g", n, k, w, want);
        }
}

/* Scales of these matrices are numbers of bf16, so every weight is there to the last bit. */
TEST(linears_keep_their_codes) {
    static const struct {
        size_t kind, n, k, k_to;
        bool   int8, kept;
    } CASES[] = {{0, 33, 64, 64, false, true},    {1, 48, 128, 128, false, true}, {2, 2, 256, 256, false, true},
                 {3, 8, 96, 96, false, true},     {0, 32, 64, 64, true, false},   {2, 32, 160, 160, false, false},
                 {1, 32, 64, 96, false, false},   {4, 32, 64, 64, false, false},  {0, 7, 65536, 65536, false, false},
                 {0, 40000, 32, 32, false, false}};
    td_ascend_npu *d = open_card();
    rnd            r = rnd_open("linears keep their codes");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        coded                   c[2];
        td_npu_weight          *w[2];
        td_ascend_part          part[2];
        const td_ascend_matrix *m;
        td_error                err = {0};
        for (size_t p = 0; p < 2; p++) {
            c[p] = make_coded(&r, CASES[i].kind, CASES[i].n + p, CASES[i].k);
            td_tensor_view v = view_of(&c[p]);
            OK(d->base.npu.ops->weight_create(&d->base.npu, c[p].format, &v, &w[p], &err));
            part[p] = (td_ascend_part){.what = "w", .w = w[p], .n = c[p].m.n, .k = c[p].m.k, .int8 = CASES[i].int8};
        }
        if (td_ascend_matrix_of(d, part, 2, CASES[i].k_to, &m, &err) != TD_OK) fail_msg("%s", err.text);
        assert_int_equal(m->format, CASES[i].kept ? TD_WEIGHT_INT4G : TD_WEIGHT_W8A8);
        if (CASES[i].kept) check_kept(d, m, c);
        for (size_t p = 0; p < 2; p++) {
            d->base.npu.ops->weight_destroy(&d->base.npu, w[p]);
            free_coded(&c[p]);
        }
    }
    d->base.npu.ops->close(&d->base.npu);
}

/* ---- stacks of experts that keep their codes ----------------------------------------------------- */

enum { STACKED = 3 };

/* Outputs `first` on of the stack are those of the parts c[], an expert each. */
static void check_stack(td_ascend_npu *d, const td_ascend_stack *s, const coded c[STACKED], size_t first) {
    const size_t   groups = s->k / s->group, halves = STACKED * groups * s->n;
    FREED uint8_t *data = malloc(STACKED * s->k * s->n / 2);
    FREED td_bf16 *scale = malloc(halves * sizeof *scale), *offset = malloc(halves * sizeof *offset);
    td_error       err = {0};
    OK(td_ascend_download(d, data, s->data, STACKED * s->k * s->n / 2, &err));
    OK(td_ascend_download(d, scale, s->scale16, halves * sizeof *scale, &err));
    OK(td_ascend_download(d, offset, s->offset16, halves * sizeof *offset, &err));
    for (size_t e = 0; e < STACKED; e++)
        for (size_t n = 0; n < c[e].m.n; n++)
            for (size_t k = 0; k < s->k; k++) {
                float  w = weight_at(data + e * s->k * s->n / 2, scale + e * groups * s->n, offset + e * groups * s->n, s->n,
                                     s->group, first + n, k);
                double want = value_at(&c[e], n, k);
                if (fabs((double)w - want) > 0) fail_msg("expert %zu, output %zu, input %zu: %g, not %g", e, n, k, w, want);
            }
}

static void make_experts(td_ascend_npu *d, rnd *r, size_t kind, size_t n, size_t k, coded c[STACKED],
                         const td_npu_weight *w[STACKED]) {
    td_error err = {0};
    for (size_t e = 0; e < STACKED; e++) {
        c[e] = make_coded(r, kind, n, k);
        td_tensor_view v = view_of(&c[e]);
        if (d->base.npu.ops->weight_create(&d->base.npu, c[e].format, &v, (td_npu_weight **)&w[e], &err) != TD_OK)
            fail_msg("%s", err.text);
    }
}

static void forget_experts(td_ascend_npu *d, coded c[STACKED], const td_npu_weight *w[STACKED]) {
    for (size_t e = 0; e < STACKED; e++) {
        d->base.npu.ops->weight_destroy(&d->base.npu, (td_npu_weight *)w[e]);
        free_coded(&c[e]);
    }
}

/* Scales of these matrices are numbers of bf16, so every weight is there to the last bit. */
TEST(experts_keep_their_codes) {
    static const struct {
        size_t kind, gate, up, k;
        bool   kept;
    } CASES[] = {{0, 32, 32, 64, true},   {1, 48, 16, 128, true}, {2, 2, 2, 256, true},   {3, 8, 8, 128, true},
                 {2, 32, 32, 160, false}, {1, 33, 31, 64, false}, {4, 32, 32, 64, false}, {3, 8, 8, 96, true}};
    td_ascend_npu *d = open_card();
    rnd            r = rnd_open("experts keep their codes");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        coded                  c[2][STACKED];
        const td_npu_weight   *w[2][STACKED];
        const td_ascend_stack *s;
        td_error               err = {0};
        make_experts(d, &r, CASES[i].kind, CASES[i].gate, CASES[i].k, c[0], w[0]);
        make_experts(d, &r, CASES[i].kind, CASES[i].up, CASES[i].k, c[1], w[1]);
        const td_ascend_stack_part parts[2] = {{"gate", w[0], CASES[i].gate, CASES[i].k},
                                               {"up", w[1], CASES[i].up, CASES[i].k}};
        assert_int_equal(td_ascend_stack_takes_int4(parts, 2, STACKED, CASES[i].k), CASES[i].kept);
        if (td_ascend_stack_of(d, parts, 2, STACKED, CASES[i].k, CASES[i].kept, &s, &err) != TD_OK) fail_msg("%s", err.text);
        assert_int_equal(s->group > 0, CASES[i].kept);
        for (size_t p = 0; p < 2 && CASES[i].kept; p++) check_stack(d, s, c[p], p ? CASES[i].gate : 0);
        for (size_t p = 0; p < 2; p++) forget_experts(d, c[p], w[p]);
    }
    d->base.npu.ops->close(&d->base.npu);
}

/* What planning is told covers what lies there, before and after, and is near half of int8. */
TEST(bytes_of_experts) {
    td_ascend_npu *d = open_card();
    for (size_t group = 32; group <= 128; group *= 2) {
        size_t kept = d->base.npu.ops->weight_bytes(&d->base.npu, TD_WEIGHT_INT4G, (uint32_t)group, 2048, 7168),
               laid_out = 2048 * 7168 / 2 + 2048 * 7168 / group * 2 * sizeof(td_bf16),
               int8 = d->base.npu.ops->weight_bytes(&d->base.npu, TD_WEIGHT_W8A8, 0, 2048, 7168);
        print_message("    groups of %zu: %.3f of int8's bytes\n", group, (double)kept / (double)int8);
        assert_true(kept >= laid_out && kept < int8 * 17 / 25);
    }
    d->base.npu.ops->close(&d->base.npu);
}

/* A row of zeros: codes of zero, whatever its scales are. */
TEST(row_of_zeros) {
    td_ascend_npu           *d = open_card();
    rnd                      r = rnd_open("a row of zeros");
    AT_END(free_coded) coded c = make_coded(&r, 1, 4, 128);
    for (size_t i = 0; i < 128; i++) { /* in the third row every code is its group's zero */
        uint8_t zero = c.zeros[2 * c.groups + i / c.m.group], *byte = (uint8_t *)c.memory[0] + 2 * 64 + i / 2;
        c.codes[2 * 128 + i] = zero;
        *byte = (uint8_t)((*byte & (i % 2 ? 0x0f : 0xf0)) | zero << 4 * (i % 2));
    }
    (void)check_matrix(d, &c);
    d->base.npu.ops->close(&d->base.npu);
}

TEST(scales_that_are_none) {
    td_ascend_npu           *d = open_card();
    rnd                      r = rnd_open("bad scales");
    td_npu_weight           *w;
    td_error                 err = {0};
    AT_END(free_coded) coded c = make_coded(&r, 0, 4, 64);
    td_tensor_view           v = view_of(&c);
    ((uint16_t *)c.memory[1])[3] = 0x7fc0; /* a NaN of bf16 */
    assert_int_equal(d->base.npu.ops->weight_create(&d->base.npu, c.format, &v, &w, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "a scale that is no positive number"));
    v.coded = NULL;
    assert_int_equal(d->base.npu.ops->weight_create(&d->base.npu, c.format, &v, &w, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "from a checkpoint's codes"));
    d->base.npu.ops->close(&d->base.npu);
}

TEST(codes_that_are_refused) {
    td_ascend_npu           *d = open_card();
    rnd                      r = rnd_open("refused codes");
    td_npu_weight           *w;
    td_error                 err = {0};
    AT_END(free_coded) coded c = make_coded(&r, 0, 4, 64);
    td_tensor_view           v = view_of(&c), wide = v;
    wide.shape[0] = 0;
    assert_int_equal(d->base.npu.ops->weight_create(&d->base.npu, c.format, &wide, &w, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "a weight's sides are 1 to"));
    wide.shape[0] = 5;
    assert_int_equal(d->base.npu.ops->weight_create(&d->base.npu, c.format, &wide, &w, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "from a checkpoint's codes"));
    assert_int_equal(d->base.npu.ops->weight_create(&d->base.npu, TD_WEIGHT_W8A8, &v, &w, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "codes are taken by weights in groups only"));
    d->base.npu.ops->close(&d->base.npu);
}
