/*
 * What the stand-in computes: operations against plain loops in double, captures, callbacks, values, two cards. The loops
 * are written from the formulas of the documents, apart from the stand-in's; tolerances are the rounding of bf16 (2^-9 of
 * the value) and of f32 sums.
 */
#include <math.h>

#include "tests/standins/ascend/ascend_rig.h"
#include "tests/td_test.h"

#define BF16_EPS (1.0 / 256) /* a rounding, and the one of an input that was made by another */

static ascend_rig rig;
static uint64_t   seed = 5;

static float random_value(void) { /* -1..1 */
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (float)(int64_t)(seed >> 40) / (1 << 23) - 1;
}

static float f32(td_bf16 x) {
    return td_bf16_to_f32(x);
}

static void fill(void *array, size_t bytes) {
    td_bf16 *x = array;
    for (size_t i = 0; i < bytes / sizeof *x; i++) x[i] = td_f32_to_bf16(random_value());
}
#define FILL(array) fill(array, sizeof(array))

static void assert_near(double got, double want, double scale, const char *what, size_t i) {
    if (!(fabs(got - want) <= BF16_EPS * fabs(want) + 1e-5 * scale))
        fail_msg("%s[%zu]: %g, and %g is right", what, i, got, want);
}

BEFORE_ALL {
    rig_open(&rig);
}

AFTER_ALL {
    rig_close(&rig);
}

/* Device memory of a case: it is given back behind it. */
static struct {
    void  *device, *array; /* what an operation leaves at device comes to the array; NULL: to none */
    size_t bytes;
} given[64];
static size_t n_given;

static void *give(void *array, size_t bytes) {
    assert_true(n_given < sizeof given / sizeof *given);
    given[n_given].array = array;
    given[n_given].bytes = bytes;
    return given[n_given++].device = rig_alloc(&rig, bytes);
}

static void *upload(const void *from, void *to, size_t bytes) {
    void *at = give(to, bytes);
    TRY(rig.acl->aclrtMemcpy(at, bytes, from, bytes, TD_ACL_MEMCPY_HOST_TO_DEVICE));
    return at;
}

static void *upload_random(void *array, size_t bytes) {
    fill(array, bytes);
    return upload(array, NULL, bytes);
}

static void bring_back(void) {
    for (size_t i = 0; i < n_given; i++)
        if (given[i].array) rig_download(&rig, given[i].array, given[i].device, given[i].bytes);
}

/* Where an array is on the device: one that operations read, one of random bf16, one that they write, one that they change. Or
 * room for what nobody reads here. */
#define ROOM(bytes) give(NULL, bytes)
#define IN(array) upload(array, NULL, sizeof(array))
#define IN_RANDOM(array) upload_random(array, sizeof(array))
#define OUT(array) give(array, sizeof(array))
#define IN_OUT(array) upload(array, array, sizeof(array))
#define OP(...)                 \
    do {                        \
        RUN(&rig, __VA_ARGS__); \
        bring_back();           \
    } while (0)

static int give_back(void **state) {
    (void)state;
    while (n_given) TRY(rig.acl->aclrtFree(given[--n_given].device));
    return 0;
}
#undef TEST
#define TEST(name) TEST_WITH(name, NULL, give_back)

/* ---- products ---------------------------------------------------------------------------------- */

TEST(quantised_products) {
    enum { M = 3, ROWS = 48, K = 100 };
    static int8_t x[M][K], w[ROWS][K], turned[K][ROWS], nz[4 * 3 * 16 * 32], nz_turned[2 * 7 * 16 * 32];
    static float  xs[M], ws[ROWS];
    td_bf16       got[M][ROWS];
    for (int m = 0; m < M; m++) xs[m] = fabsf(random_value()) + 0.1f;
    for (int n = 0; n < ROWS; n++) ws[n] = fabsf(random_value()) * 0.1f;
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) x[m][k] = (int8_t)(random_value() * 127);
    for (int n = 0; n < ROWS; n++)
        for (int k = 0; k < K; k++) {
            w[n][k] = turned[k][n] = (int8_t)(random_value() * 127);
            nz[((k / 32 * 3 + n / 16) * 16 + n % 16) * 32 + k % 32] = w[n][k];        /* of [n, k]: [k1, n1, n0, k0] */
            nz_turned[((n / 32 * 7 + k / 16) * 16 + k % 16) * 32 + n % 32] = w[n][k]; /* of [k, n]: [n1, k1, k0, n0] */
        }
    void *dx = IN(x), *dw = IN(w), *dt = IN(turned), *dnz = IN(nz), *dnt = IN(nz_turned), *dxs = IN(xs), *dws = IN(ws),
         *out = OUT(got);
    td_acl_tensor *tx = T2(&rig, dx, TD_ACL_INT8, M, K), *txs = T1(&rig, dxs, TD_ACL_FLOAT, M),
                  *tws = T1(&rig, dws, TD_ACL_FLOAT, ROWS), *to = T2(&rig, out, TD_ACL_BF16, M, ROWS);
    td_acl_tensor *nd = T2(&rig, dw, TD_ACL_INT8, ROWS, K), *nd_turned = T2(&rig, dt, TD_ACL_INT8, K, ROWS);
    const int64_t  view[] = {ROWS, K}, view_turned[] = {K, ROWS}, storage[] = {4, 3, 16, 32},
                  storage_turned[] = {2, 7, 16, 32};
    td_acl_tensor *tiles =
        rig.acl->aclCreateTensor(view, 2, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage, 4, dnz);
    td_acl_tensor *tiles_turned =
        rig.acl->aclCreateTensor(view_turned, 2, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage_turned, 4, dnt);
    for (int way = 0; way < 6; way++) {
        switch (way) {
            case 0: OP(aclnnQuantMatmulV4, tx, nd, tws, NULL, txs, NULL, false, true, to); break;
            case 1: OP(aclnnQuantMatmulV4, tx, nd_turned, tws, NULL, txs, NULL, false, false, to); break;
            case 2: OP(aclnnQuantMatmulV5, tx, nd, txs, tws, NULL, NULL, NULL, NULL, NULL, false, true, 0, to); break;
            case 3: OP(aclnnQuantMatmulV5, tx, tiles, txs, tws, NULL, NULL, NULL, NULL, NULL, false, true, 0, to); break;
            case 4:
                OP(aclnnQuantMatmulWeightNz, tx, tiles, txs, tws, NULL, NULL, NULL, NULL, NULL, false, true, 0, to);
                break;
            default:
                OP(aclnnQuantMatmulWeightNz, tx, tiles_turned, txs, tws, NULL, NULL, NULL, NULL, NULL, false, false, 0, to);
                break;
        }
        for (int m = 0; m < M; m++)
            for (int n = 0; n < ROWS; n++) {
                int32_t sum = 0;
                for (int k = 0; k < K; k++) sum += x[m][k] * w[n][k];
                assert_int_equal(got[m][n], td_f32_to_bf16((float)sum * ws[n] * xs[m]));
            }
    }
}

TEST(float_products) {
    enum { B = 3, M = 2, K = 20, COLUMNS = 8 };
    td_bf16           x[M][B][K], w[B][K][COLUMNS], got[M][B][COLUMNS], again[B][M][COLUMNS];
    void             *dx = IN_RANDOM(x), *dw = IN_RANDOM(w), *out = OUT(got), *out_again = OUT(again);
    const int64_t     inside[] = {1, 0, 2}, plain[] = {0, 1, 2};
    td_acl_int_array *p1 = rig.acl->aclCreateIntArray(inside, 3), *p2 = rig.acl->aclCreateIntArray(plain, 3);
    const int64_t     x_view[] = {B, M, K}, x_strides[] = {K, B * K, 1}, x_storage[] = {M, B, K}, o_view[] = {B, M, COLUMNS};
    /* Heads inside, once by the operation that transposes and once by a view. */
    OP(aclnnTransposeBatchMatMul, T3(&rig, dx, TD_ACL_BF16, M, B, K), T3(&rig, dw, TD_ACL_BF16, B, K, COLUMNS), NULL, NULL,
       p1, p2, p1, 0, 1, T3(&rig, out, TD_ACL_BF16, M, B, COLUMNS));
    td_acl_tensor *turned =
        rig.acl->aclCreateTensor(x_view, 3, TD_ACL_BF16, x_strides, 0, TD_ACL_FORMAT_ND, x_storage, 3, dx);
    OP(aclnnBatchMatMul, turned, T3(&rig, dw, TD_ACL_BF16, B, K, COLUMNS),
       rig_tensor(&rig, out_again, TD_ACL_BF16, 3, o_view), 0);
    for (int m = 0; m < M; m++)
        for (int b = 0; b < B; b++)
            for (int n = 0; n < COLUMNS; n++) {
                double sum = 0;
                for (int k = 0; k < K; k++) sum += (double)f32(x[m][b][k]) * f32(w[b][k][n]);
                assert_near(f32(got[m][b][n]), sum, 4, "product", (size_t)n);
                assert_int_equal(got[m][b][n], again[b][m][n]);
            }
}

/* ---- rows -------------------------------------------------------------------------------------- */

TEST(norms_and_codes) {
    enum { ROWS = 4, H = 96 };
    td_bf16 x[ROWS][H], add[ROWS][H], gamma[H], out[ROWS][H], sum[ROWS][H];
    float   rstd[ROWS], scale[ROWS];
    int8_t  codes[ROWS][H];
    FILL(x);
    FILL(add);
    memset(add[3], 0, sizeof add[3]);
    memset(x[3], 0, sizeof x[3]); /* a row of zeros */
    void *dx = IN(x), *da = IN(add), *dg = IN_RANDOM(gamma), *dout = OUT(out), *dsum = OUT(sum), *drstd = OUT(rstd),
         *dcodes = OUT(codes), *dscale = OUT(scale);
    td_acl_tensor *to = T2(&rig, dout, TD_ACL_BF16, ROWS, H);
    OP(aclnnAddRmsNorm, T2(&rig, dx, TD_ACL_BF16, ROWS, H), T2(&rig, da, TD_ACL_BF16, ROWS, H), T1(&rig, dg, TD_ACL_BF16, H),
       1e-6, to, T2(&rig, drstd, TD_ACL_FLOAT, ROWS, 1), T2(&rig, dsum, TD_ACL_BF16, ROWS, H));
    OP(aclnnDynamicQuant, to, NULL, T2(&rig, dcodes, TD_ACL_INT8, ROWS, H), T1(&rig, dscale, TD_ACL_FLOAT, ROWS));
    for (int r = 0; r < ROWS; r++) {
        double squares = 0, most = 0;
        for (int i = 0; i < H; i++) squares += pow((double)f32(x[r][i]) + f32(add[r][i]), 2);
        for (int i = 0; i < H; i++) {
            double s = (double)f32(x[r][i]) + f32(add[r][i]);
            assert_near(f32(sum[r][i]), s, 1, "sum", (size_t)i);
            assert_near(f32(out[r][i]), s / sqrt(squares / H + 1e-6) * f32(gamma[i]), 1, "norm", (size_t)i);
            most = fmax(most, fabsf(f32(out[r][i])));
        }
        assert_true(fabs(scale[r] - most / 127) <= 1e-7 * most);
        for (int i = 0; i < H; i++) assert_true(fabs(codes[r][i] * (double)scale[r] - f32(out[r][i])) <= 0.5001 * scale[r]);
    }

    float floats[ROWS][H];
    void *dfloats = OUT(floats);
    OP(aclnnAddRmsNormCast, T2(&rig, dx, TD_ACL_BF16, ROWS, H), T2(&rig, da, TD_ACL_BF16, ROWS, H),
       T1(&rig, dg, TD_ACL_BF16, H), 1e-6, T2(&rig, dfloats, TD_ACL_FLOAT, ROWS, H), to,
       T2(&rig, drstd, TD_ACL_FLOAT, ROWS, 1), T2(&rig, dsum, TD_ACL_BF16, ROWS, H));
    for (int r = 0; r < ROWS; r++) {
        double squares = 0;
        for (int i = 0; i < H; i++) squares += pow((double)f32(x[r][i]) + f32(add[r][i]), 2);
        assert_true(fabs(rstd[r] * sqrt(squares / H + 1e-6) - 1) < 1e-5);
        for (int i = 0; i < H; i++) {
            double s = (double)f32(x[r][i]) + f32(add[r][i]);
            assert_near(f32(sum[r][i]), s, 1, "sum", (size_t)i);
            assert_true(fabs(floats[r][i] - s / sqrt(squares / H + 1e-6) * f32(gamma[i])) <= 1e-5);
            assert_int_equal(out[r][i], td_f32_to_bf16(floats[r][i]));
        }
    }
}

/* Norm and codes in one, SwiGLU and codes in one: nothing is rounded but codes, to the nearest. */
TEST(codes_of_floats) {
    enum { ROWS = 4, H = 96 };
    td_bf16 x[ROWS][H], add[ROWS][H], gamma[H], sum[ROWS][H];
    float   scale[ROWS], gate_scale[ROWS];
    int8_t  codes[ROWS][H], gate_codes[ROWS][H / 2];
    char    dynamic[] = "dynamic";
    FILL(x);
    FILL(add);
    memset(add[3], 0, sizeof add[3]);
    memset(x[3], 0, sizeof x[3]);
    void *dx = IN(x), *da = IN(add), *dg = IN_RANDOM(gamma), *dsum = OUT(sum), *dcodes = OUT(codes), *dscale = OUT(scale),
         *dgate_codes = OUT(gate_codes), *dgate_scale = OUT(gate_scale), *dnone = ROOM(512);
    OP(aclnnAddRmsNormDynamicQuant, T2(&rig, dx, TD_ACL_BF16, ROWS, H), T2(&rig, da, TD_ACL_BF16, ROWS, H),
       T1(&rig, dg, TD_ACL_BF16, H), NULL, NULL, 1e-3, T2(&rig, dcodes, TD_ACL_INT8, ROWS, H),
       T1(&rig, dnone, TD_ACL_INT8, 1), T2(&rig, dsum, TD_ACL_BF16, ROWS, H), T1(&rig, dscale, TD_ACL_FLOAT, ROWS),
       T1(&rig, dnone, TD_ACL_FLOAT, 1));
    OP(aclnnDequantSwigluQuant, T2(&rig, dx, TD_ACL_BF16, ROWS, H), NULL, NULL, NULL, NULL, NULL, NULL, true, dynamic,
       T2(&rig, dgate_codes, TD_ACL_INT8, ROWS, H / 2), T1(&rig, dgate_scale, TD_ACL_FLOAT, ROWS));
    /* The newer form, whose rows are one group: the same of rows of 64. */
    enum { WIDE = 64 };
    int8_t        grouped_codes[ROWS * H / WIDE][WIDE / 2];
    float         grouped_scale[ROWS * H / WIDE];
    const int64_t rows_of_64[] = {ROWS * H / WIDE};
    void         *dall = IN(rows_of_64), *dgrouped = OUT(grouped_codes), *dgrouped_scale = OUT(grouped_scale);
    OP(aclnnDequantSwigluQuantV2, T2(&rig, dx, TD_ACL_BF16, ROWS * H / WIDE, WIDE), NULL, NULL, NULL, NULL, NULL,
       T1(&rig, dall, TD_ACL_INT64, 1), true, dynamic, TD_ACL_INT8, NULL, -1, 0, 7, 1.702, 1,
       T2(&rig, dgrouped, TD_ACL_INT8, ROWS * H / WIDE, WIDE / 2), T1(&rig, dgrouped_scale, TD_ACL_FLOAT, ROWS * H / WIDE));
    for (int r = 0; r < ROWS * H / WIDE; r++)
        for (int i = 0; i < WIDE / 2; i++) {
            double a = f32((&x[0][0])[r * WIDE + i]);
            double want = a / (1 + exp(-a)) * f32((&x[0][0])[r * WIDE + WIDE / 2 + i]);
            assert_true(fabs(grouped_codes[r][i] * (double)grouped_scale[r] - want) <= 0.501 * grouped_scale[r]);
        }
    for (int r = 0; r < ROWS; r++) {
        double squares = 0, most = 0, gate_most = 0, y[H], gate[H / 2];
        for (int i = 0; i < H; i++) squares += pow(y[i] = (double)f32(x[r][i]) + f32(add[r][i]), 2);
        for (int i = 0; i < H; i++) {
            assert_near(f32(sum[r][i]), y[i], 1, "sum", (size_t)i);
            y[i] = y[i] / sqrt(squares / H + 1e-3) * f32(gamma[i]);
            most = fmax(most, fabs(y[i]));
        }
        for (int i = 0; i < H / 2; i++) {
            double a = f32(x[r][i]);
            gate[i] = a / (1 + exp(-a)) * f32(x[r][H / 2 + i]);
            gate_most = fmax(gate_most, fabs(gate[i]));
        }
        assert_true(fabs(scale[r] - most / 127) <= 1e-5 * most && fabs(gate_scale[r] - gate_most / 127) <= 1e-5 * gate_most);
        for (int i = 0; i < H; i++) assert_true(fabs(codes[r][i] * (double)scale[r] - y[i]) <= 0.501 * scale[r]);
        for (int i = 0; i < H / 2; i++)
            assert_true(fabs(gate_codes[r][i] * (double)gate_scale[r] - gate[i]) <= 0.501 * gate_scale[r]);
    }
}

/* An MLA's front from its formulas: products of codes, norm, codes, product, W_UK, pairs turned into halves, slots. */
TEST(latent_front) {
    enum { ROWS = 2, HEADS = 2, HIDDEN = 1024, HCQ = 1536, HCKV = 512, D = 128, DR = 64, Q = HEADS * (D + DR), BLOCKS = 2 };
    static int8_t  x[ROWS][HIDDEN], wdq[HIDDEN][HCQ], wkv[HIDDEN][HCKV + DR], wuq[HCQ][Q], nz[HIDDEN * HCQ];
    static td_bf16 wuk[HEADS][D][HCKV], gq[HCQ], gkv[HCKV], cs[ROWS][DR], sn[ROWS][DR], query[ROWS][HEADS][HCKV],
        turned[ROWS][HEADS][DR], latent[BLOCKS * 128][HCKV], rope[BLOCKS * 128][DR];
    static float  sx[ROWS] = {0.01f, 0.03f}, sdq[HCQ], suq[Q], skv[HCKV + DR], smooth[HCQ];
    static double cq[HCQ], kv[HCKV + DR], q[Q];
    int64_t       slots[ROWS] = {131, 7};
    char          mode[] = "PA_BSND";
#define CODES(w, rows, columns)      \
    for (int i = 0; i < (rows); i++) \
        for (int j = 0; j < (columns); j++) (w)[i][j] = (int8_t)(random_value() * 127)
#define TILES(w, rows, columns)      \
    for (int i = 0; i < (rows); i++) \
        for (int j = 0; j < (columns); j++) nz[((j / 32 * ((rows) / 16) + i / 16) * 16 + i % 16) * 32 + j % 32] = (w)[i][j]
#define WEIGHT(w, rows, columns)                                                                                  \
    rig.acl->aclCreateTensor((const int64_t[]){rows, columns}, 2, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, \
                             (const int64_t[]){(columns) / 32, (rows) / 16, 16, 32}, 4, w)
    CODES(x, ROWS, HIDDEN);
    CODES(wdq, HIDDEN, HCQ);
    CODES(wkv, HIDDEN, HCKV + DR);
    CODES(wuq, HCQ, Q);
    for (int i = 0; i < HCQ; i++) sdq[i] = 0.01f + 0.01f * (float)(i % 3), smooth[i] = i % 2 ? 1 : 0.5f;
    for (int i = 0; i < Q; i++) suq[i] = 0.001f * (float)(1 + i % 5);
    for (int i = 0; i < HCKV + DR; i++) skv[i] = 0.01f + 0.01f * (float)(i % 2);
    void *dx = IN(x), *dsx = IN(sx), *dsdq = IN(sdq), *dsuq = IN(suq), *dskv = IN(skv), *dsmooth = IN(smooth),
         *dwuk = IN_RANDOM(wuk), *dgq = IN_RANDOM(gq), *dgkv = IN_RANDOM(gkv), *dcs = IN_RANDOM(cs), *dsn = IN_RANDOM(sn),
         *dslots = IN(slots), *dlatent = IN_OUT(latent), *drope = IN_OUT(rope), *dquery = IN_OUT(query),
         *dturned = IN_OUT(turned);
    TILES(wdq, HIDDEN, HCQ);
    void *dwdq = IN(nz);
    TILES(wkv, HIDDEN, HCKV + DR);
    void *dwkv = IN(nz);
    TILES(wuq, HCQ, Q);
    void *dwuq = IN(nz);
    OP(aclnnMlaPrologV2WeightNz, T2(&rig, dx, TD_ACL_INT8, ROWS, HIDDEN), WEIGHT(dwdq, HIDDEN, HCQ), WEIGHT(dwuq, HCQ, Q),
       T3(&rig, dwuk, TD_ACL_BF16, HEADS, D, HCKV), WEIGHT(dwkv, HIDDEN, HCKV + DR), T1(&rig, dgq, TD_ACL_BF16, HCQ),
       T1(&rig, dgkv, TD_ACL_BF16, HCKV), T2(&rig, dsn, TD_ACL_BF16, ROWS, DR), T2(&rig, dcs, TD_ACL_BF16, ROWS, DR),
       T1(&rig, dslots, TD_ACL_INT64, ROWS), T4(&rig, dlatent, TD_ACL_BF16, BLOCKS, 128, 1, HCKV),
       T4(&rig, drope, TD_ACL_BF16, BLOCKS, 128, 1, DR), T2(&rig, dsx, TD_ACL_FLOAT, ROWS, 1),
       T2(&rig, dsdq, TD_ACL_FLOAT, 1, HCQ), T2(&rig, dsuq, TD_ACL_FLOAT, 1, Q), T2(&rig, dskv, TD_ACL_FLOAT, 1, HCKV + DR),
       NULL, NULL, T2(&rig, dsmooth, TD_ACL_FLOAT, 1, HCQ), 1e-5, 1e-6, mode,
       T3(&rig, dquery, TD_ACL_BF16, ROWS, HEADS, HCKV), T3(&rig, dturned, TD_ACL_BF16, ROWS, HEADS, DR), NULL);
    for (int r = 0; r < ROWS; r++) {
        double squares = 0, most = 0;
        for (int j = 0; j < HCQ; j++) {
            long sum = 0;
            for (int i = 0; i < HIDDEN; i++) sum += x[r][i] * wdq[i][j];
            squares += pow(cq[j] = (double)sum * sx[r] * sdq[j], 2);
        }
        for (int j = 0; j < HCQ; j++) {
            cq[j] = cq[j] / sqrt(squares / HCQ + 1e-5) * f32(gq[j]) * smooth[j];
            most = fmax(most, fabs(cq[j]));
        }
        for (int j = 0; j < Q; j++) {
            q[j] = 0;
            for (int i = 0; i < HCQ; i++) q[j] += rint(cq[i] / (most / 127)) * wuq[i][j] * (most / 127) * suq[j];
        }
        squares = 0;
        for (int j = 0; j < HCKV + DR; j++) {
            long sum = 0;
            for (int i = 0; i < HIDDEN; i++) sum += x[r][i] * wkv[i][j];
            kv[j] = (double)sum * sx[r] * skv[j];
            if (j < HCKV) squares += kv[j] * kv[j];
        }
        for (int j = 0; j < HCKV; j++)
            assert_near(f32(latent[slots[r]][j]), kv[j] / sqrt(squares / HCKV + 1e-6) * f32(gkv[j]), 1, "latent", (size_t)j);
        for (int h = 0; h <= HEADS; h++) { /* the last one is the key's */
            const double  *from = h < HEADS ? q + h * (D + DR) + D : kv + HCKV;
            const td_bf16 *to = h < HEADS ? turned[r][h] : rope[slots[r]];
            for (int j = 0; j < DR; j++) {
                int    pair = j % (DR / 2);
                double a = from[2 * pair], b = from[2 * pair + 1], c = f32(cs[r][j]), s = f32(sn[r][j]);
                /* a code that is rounded the other way moves a query's value a little */
                assert_near(f32(to[j]), j < DR / 2 ? a * c - b * s : b * c + a * s, h < HEADS ? 1000 : 10, "rope",
                            (size_t)j);
            }
        }
        for (int h = 0; h < HEADS; h++)
            for (int j = 0; j < HCKV; j++) {
                double sum = 0, size = 0;
                for (int i = 0; i < D; i++) {
                    double term = q[h * (D + DR) + i] * f32(wuk[h][i][j]);
                    sum += term;
                    size += term * term;
                }
                /* each term is rounded by 2^-9 / sqrt(3) of itself, 0.3 BF16_EPS, of a thousand sums one is 4 times as far
                 */
                assert_true(fabs(f32(query[r][h][j]) - sum) <= BF16_EPS * (fabs(sum) + 2 * sqrt(size)));
            }
    }
}

/* Rows [latent, rope part] out of wider ones, normed, turned from pairs to halves, into their slots. */
TEST(latent_write) {
    enum { ROWS = 3, WIDE = 640, L = 512, R = 64 };
    static td_bf16 kv[ROWS][WIDE], gamma[L], cs[ROWS][R], sn[ROWS][R], latent[128][L], rope[128][R], unread[ROWS][L + R];
    int64_t        slots[ROWS] = {100, 0, 127};
    char           mode[] = "PA_BNSD";
    const int64_t  view[] = {ROWS, 1, 1, L + R}, strides[] = {WIDE, L + R, L + R, 1}, storage[] = {ROWS, WIDE};
    void          *dkv = IN_RANDOM(kv), *dg = IN_RANDOM(gamma), *dcs = IN_RANDOM(cs), *dsn = IN_RANDOM(sn), *ds = IN(slots),
         *dl = IN_OUT(latent), *dr = IN_OUT(rope), *du = OUT(unread);
    OP(aclnnKvRmsNormRopeCache,
       rig.acl->aclCreateTensor(view, 4, TD_ACL_BF16, strides, 0, TD_ACL_FORMAT_ND, storage, 2, dkv),
       T1(&rig, dg, TD_ACL_BF16, L), T4(&rig, dcs, TD_ACL_BF16, ROWS, 1, 1, R), T4(&rig, dsn, TD_ACL_BF16, ROWS, 1, 1, R),
       T1(&rig, ds, TD_ACL_INT64, ROWS), T4(&rig, dr, TD_ACL_BF16, 1, 128, 1, R), T4(&rig, dl, TD_ACL_BF16, 1, 128, 1, L),
       NULL, NULL, NULL, NULL, 1e-5, mode, false, T4(&rig, du, TD_ACL_BF16, ROWS, 1, 1, R),
       T4(&rig, du, TD_ACL_BF16, ROWS, 1, 1, L));
    for (int r = 0; r < ROWS; r++) {
        double squares = 0;
        for (int i = 0; i < L; i++) squares += pow(f32(kv[r][i]), 2);
        for (int i = 0; i < L; i++)
            assert_near(f32(latent[slots[r]][i]), f32(kv[r][i]) / sqrt(squares / L + 1e-5) * f32(gamma[i]), 1, "latent",
                        (size_t)i);
        for (int i = 0; i < R; i++) {
            double a = f32(kv[r][L + i % (R / 2) * 2]), b = f32(kv[r][L + i % (R / 2) * 2 + 1]);
            double turned = i < R / 2 ? -b : a;
            assert_near(f32(rope[slots[r]][i]), (i < R / 2 ? a : b) * f32(cs[r][i]) + turned * f32(sn[r][i]), 1, "rope",
                        (size_t)i);
        }
    }
}

TEST(gates_and_rope) {
    enum { ROWS = 3, HEADS = 2, D = 16 };
    td_bf16 x[ROWS][2 * D], g[ROWS][D], q[ROWS][HEADS][D], turned[ROWS][HEADS][D], cs[ROWS][D], sn[ROWS][D];
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < D; i++)
            cs[r][i] = td_f32_to_bf16(cosf((float)(r * (i % (D / 2) + 1)))),
            sn[r][i] = td_f32_to_bf16(sinf((float)(r * (i % (D / 2) + 1))));
    void *dx = IN_RANDOM(x), *dg = OUT(g), *dq = IN_RANDOM(q), *dc = IN(cs), *ds = IN(sn), *dt = OUT(turned);
    OP(aclnnSwiGlu, T2(&rig, dx, TD_ACL_BF16, ROWS, 2 * D), -1, T2(&rig, dg, TD_ACL_BF16, ROWS, D));
    OP(aclnnRotaryPositionEmbedding, T3(&rig, dq, TD_ACL_BF16, ROWS, HEADS, D), T3(&rig, dc, TD_ACL_BF16, ROWS, 1, D),
       T3(&rig, ds, TD_ACL_BF16, ROWS, 1, D), 0, T3(&rig, dt, TD_ACL_BF16, ROWS, HEADS, D));
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < D; i++) {
            double a = f32(x[r][i]), b = f32(x[r][D + i]);
            assert_near(f32(g[r][i]), a / (1 + exp(-a)) * b, 1, "swiglu", (size_t)i);
            for (int h = 0; h < HEADS; h++) {
                double other = i < D / 2 ? -f32(q[r][h][i + D / 2]) : f32(q[r][h][i - D / 2]);
                assert_near(f32(turned[r][h][i]), f32(q[r][h][i]) * (double)f32(cs[r][i]) + other * f32(sn[r][i]), 1, "rope",
                            (size_t)i);
            }
        }
}

/* Rows by index, written by index, cast, added, and the largest of them. */
TEST(small_operations) {
    enum { TABLE = 9, N = 3, H = 32, K = 5 };
    td_bf16       table[TABLE][H], rows[N][H], again[N][H], half[N][H], after[TABLE][H];
    float         wide[N][H], twice_wide[N][H], best[N][K];
    int64_t       at[N][K];
    const int32_t ids[N] = {7, 0, 7}, to[N] = {4, 8, 1};
    float         two = 2;
    FILL(table);
    memcpy(after, table, sizeof after);
    void *dt = IN_OUT(after), *di = IN(ids), *dto = IN(to), *dr = OUT(rows), *dg = OUT(again), *dw = OUT(wide),
         *ds = OUT(twice_wide), *dh = OUT(half), *db = OUT(best), *da = OUT(at);
    td_acl_tensor *tt = T2(&rig, dt, TD_ACL_BF16, TABLE, H), *tr = T2(&rig, dr, TD_ACL_BF16, N, H),
                  *tw = T2(&rig, dw, TD_ACL_FLOAT, N, H), *ts = T2(&rig, ds, TD_ACL_FLOAT, N, H);
    td_acl_scalar *alpha = rig.acl->aclCreateScalar(&two, TD_ACL_FLOAT);
    OP(aclnnEmbedding, tt, T1(&rig, di, TD_ACL_INT32, N), tr);
    OP(aclnnGatherV2, tt, 0, T1(&rig, di, TD_ACL_INT32, N), T2(&rig, dg, TD_ACL_BF16, N, H));
    OP(aclnnCast, tr, TD_ACL_FLOAT, tw);
    OP(aclnnAdd, tw, tr, alpha, ts);
    OP(aclnnCast, ts, TD_ACL_BF16, T2(&rig, dh, TD_ACL_BF16, N, H));
    OP(aclnnTopk, ts, K, -1, true, true, T2(&rig, db, TD_ACL_FLOAT, N, K), T2(&rig, da, TD_ACL_INT64, N, K));
    OP(aclnnScatterNdUpdate, tt, T2(&rig, dto, TD_ACL_INT32, N, 1), T2(&rig, dh, TD_ACL_BF16, N, H));
    for (int r = 0; r < N; r++) {
        assert_memory_equal(rows[r], table[ids[r]], sizeof rows[r]);
        assert_memory_equal(again[r], table[ids[r]], sizeof rows[r]);
        assert_memory_equal(after[to[r]], half[r], sizeof half[r]);
        for (int i = 0; i < H; i++) {
            assert_true(wide[r][i] == f32(rows[r][i]) && twice_wide[r][i] == 3 * wide[r][i]);
            assert_int_equal(half[r][i], td_f32_to_bf16(twice_wide[r][i]));
        }
        for (int j = 0; j < K; j++) {
            int above = 0;
            for (int i = 0; i < H; i++)
                above += twice_wide[r][i] > best[r][j] || (twice_wide[r][i] == best[r][j] && i < at[r][j]);
            assert_int_equal(above, j);
            assert_true(twice_wide[r][at[r][j]] == best[r][j]);
        }
    }
    assert_memory_equal(after[0], table[0], sizeof after[0]);
    TRY(rig.acl->aclDestroyScalar(alpha));
}

/* ---- routers ----------------------------------------------------------------------------------- */

TEST(routers) {
    enum { ROWS = 5, E = 32, K = 4, GROUPS = 4, KEEP = 2 };
    float   x[ROWS][E], bias[E], w[ROWS][K];
    int32_t ids[ROWS][K];
    for (int i = 0; i < ROWS * E; i++) x[i / E][i % E] = 3 * random_value();
    for (int i = 0; i < E; i++) bias[i] = 0.1f * random_value();
    void *dx = IN(x), *db = IN(bias), *dw = OUT(w), *di = OUT(ids), *unread = ROOM(sizeof x);
    OP(aclnnMoeGatingTopK, T2(&rig, dx, TD_ACL_FLOAT, ROWS, E), T1(&rig, db, TD_ACL_FLOAT, E), K, KEEP, GROUPS, 1, 0, 1,
       false, 2.5, 1e-20, T2(&rig, dw, TD_ACL_FLOAT, ROWS, K), T2(&rig, di, TD_ACL_INT32, ROWS, K),
       T2(&rig, unread, TD_ACL_FLOAT, ROWS, E));
    for (int r = 0; r < ROWS; r++) {
        double score[E], group[GROUPS], total = 0;
        for (int i = 0; i < E; i++) score[i] = 1 / (1 + exp(-x[r][i]));
        for (int g = 0; g < GROUPS; g++) {
            double best = -9, second = -9;
            for (int i = g * E / GROUPS; i < (g + 1) * E / GROUPS; i++) {
                double c = score[i] + bias[i];
                if (c > best)
                    second = best, best = c;
                else if (c > second)
                    second = c;
            }
            group[g] = best + second;
        }
        for (int j = 0; j < K; j++) {
            int better = 0, better_groups = 0, mine = ids[r][j] / (E / GROUPS);
            for (int g = 0; g < GROUPS; g++) better_groups += group[g] > group[mine];
            assert_true(better_groups < KEEP);
            for (int i = 0; i < E; i++) {
                int above = 0;
                for (int g = 0; g < GROUPS; g++) above += group[g] > group[i / (E / GROUPS)];
                better += above < KEEP && score[i] + bias[i] > score[ids[r][j]] + bias[ids[r][j]];
            }
            assert_int_equal(better, j);
            total += score[ids[r][j]];
        }
        for (int j = 0; j < K; j++) assert_true(fabs(w[r][j] - 2.5 * score[ids[r][j]] / total) < 1e-5);
    }
    OP(aclnnMoeGatingTopKSoftmaxV2, T2(&rig, dx, TD_ACL_FLOAT, ROWS, E), NULL, K, 0, false,
       T2(&rig, dw, TD_ACL_FLOAT, ROWS, K), T2(&rig, di, TD_ACL_INT32, ROWS, K), NULL);
    for (int r = 0; r < ROWS; r++) {
        double all = 0;
        for (int i = 0; i < E; i++) all += exp(x[r][i]);
        for (int j = 0; j < K; j++) {
            int better = 0;
            for (int i = 0; i < E; i++) better += x[r][i] > x[r][ids[r][j]];
            assert_int_equal(better, j);
            assert_true(fabs(w[r][j] - exp(x[r][ids[r][j]]) / all) < 1e-5);
        }
    }
}

/* ---- attention --------------------------------------------------------------------------------- */

/* Grouped heads in TND: one sequence that generates, one prompt of three rows, pages in disorder, written by
 * ScatterPaKvCache. */
TEST(grouped_attention) {
    enum { HEADS = 4, KV = 2, D = 128, BLOCK = 128, PAGES = 6, ROWS = 4, SEQ = 2, TABLE = 2, KEYS0 = 150, KEYS1 = 40 };
    static td_bf16 key[KEYS0 + KEYS1][KV][D], value[KEYS0 + KEYS1][KV][D], q[ROWS][HEADS][D], out[ROWS][HEADS][D];
    static uint8_t mask[2048][2048];
    const int32_t  table[SEQ][TABLE] = {{4, 1}, {3, 0}};
    const int64_t  queries[] = {1, 4}, keys[] = {KEYS0, KEYS1};
    int32_t        slots[KEYS0 + KEYS1];
    for (int i = 0; i < 2048; i++) memset(mask[i] + i + 1, 1, (size_t)(2047 - i));
    for (int j = 0; j < KEYS0 + KEYS1; j++)
        slots[j] = j < KEYS0 ? table[0][j / BLOCK] * BLOCK + j % BLOCK : table[1][0] * BLOCK + j - KEYS0;
    size_t cache_bytes = (size_t)PAGES * KV * BLOCK * D * 2;
    void  *dk = IN_RANDOM(key), *dv = IN_RANDOM(value), *dq = IN_RANDOM(q), *dm = IN(mask), *ds = IN(slots), *dt = IN(table),
         *kc = ROOM(cache_bytes), *vc = ROOM(cache_bytes), *o = OUT(out);
    td_acl_tensor *tk = T4(&rig, kc, TD_ACL_BF16, PAGES, KV, BLOCK, D), *tv = T4(&rig, vc, TD_ACL_BF16, PAGES, KV, BLOCK, D);
    char           mode[] = "NHSD", layout[] = "TND";
    td_acl_int_array *strides = rig.acl->aclCreateIntArray((const int64_t[]){1, 1}, 2),
                     *offsets = rig.acl->aclCreateIntArray((const int64_t[]){0, 0}, 2);
    OP(aclnnScatterPaKvCache, T3(&rig, dk, TD_ACL_BF16, KEYS0 + KEYS1, KV, D), tk, T1(&rig, ds, TD_ACL_INT32, KEYS0 + KEYS1),
       T3(&rig, dv, TD_ACL_BF16, KEYS0 + KEYS1, KV, D), tv, NULL, NULL, NULL, NULL, mode, strides, offsets);
    TRY(rig.acl->aclDestroyIntArray(strides));
    TRY(rig.acl->aclDestroyIntArray(offsets));
    td_acl_tensor_list *lk = rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){tk}, 1),
                       *lv = rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){tv}, 1);
    td_acl_int_array *aq = rig.acl->aclCreateIntArray(queries, SEQ), *ak = rig.acl->aclCreateIntArray(keys, SEQ);
    OP(aclnnFusedInferAttentionScoreV4, T3(&rig, dq, TD_ACL_BF16, ROWS, HEADS, D), lk, lv, NULL,
       T2(&rig, dm, TD_ACL_INT8, 2048, 2048), aq, ak, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       T2(&rig, dt, TD_ACL_INT32, SEQ, TABLE), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, HEADS, 0.088, 0, 0, layout, KV, 3, 0, BLOCK, 0, false, 0, 0, 0, T3(&rig, o, TD_ACL_BF16, ROWS, HEADS, D), NULL);
    for (int t = 0; t < ROWS; t++)
        for (int h = 0; h < HEADS; h++) {
            int first = t ? KEYS0 : 0,
                n = t ? KEYS1 - 3 + t : KEYS0; /* row t of the prompt, 1..3, sees all but the later ones' keys */
            double p[KEYS0], total = 0, want[D] = {0};
            for (int j = 0; j < n; j++) {
                double dot = 0;
                for (int i = 0; i < D; i++) dot += (double)f32(q[t][h][i]) * f32(key[first + j][h / 2][i]);
                total += p[j] = exp(dot * 0.088);
            }
            for (int j = 0; j < n; j++)
                for (int i = 0; i < D; i++) want[i] += p[j] / total * f32(value[first + j][h / 2][i]);
            for (int i = 0; i < D; i++) assert_near(f32(out[t][h][i]), want[i], 4, "attention", (size_t)i);
        }
    TRY(rig.acl->aclDestroyTensorList(lk));
}

/* x [n] turned by halves at a position whose table row has cos, then sin. */
static void turn_in_double(double *x, int n, const td_bf16 *row) {
    for (int i = 0; i < n / 2; i++) {
        double a = x[i], b = x[n / 2 + i], c = f32(row[i]), s = f32(row[n / 2 + i]);
        x[i] = a * c - b * s;
        x[n / 2 + i] = b * c + a * s;
    }
}

/* Rope of query and keys in one, out of rows that are parts of wider ones, on a part of each head. */
TEST(rope_of_both) {
    enum { ROWS = 3, HEADS = 3, KV = 1, D = 64, R = 32, WIDE = 320, POSITIONS = 7, AT = 64 };
    static td_bf16 wide[ROWS][WIDE], table[POSITIONS][R], out_q[ROWS][HEADS][D], out_k[ROWS][KV][D];
    const int64_t  positions[ROWS] = {6, 0, 3}, view[2][2] = {{ROWS, HEADS * D}, {ROWS, KV * D}}, strides[] = {WIDE, 1},
                  storage[] = {ROWS, WIDE};
    void          *dw = IN_RANDOM(wide), *dt = IN_RANDOM(table), *dp = IN(positions), *dq = OUT(out_q), *dk = OUT(out_k);
    td_acl_tensor *part[2];
    for (int i = 0; i < 2; i++)
        part[i] = rig.acl->aclCreateTensor(view[i], 2, TD_ACL_BF16, strides, i ? AT + HEADS * D : AT, TD_ACL_FORMAT_ND,
                                           storage, 2, dw);
    OP(aclnnRopeWithSinCosCache, T1(&rig, dp, TD_ACL_INT64, ROWS), part[0], part[1], T2(&rig, dt, TD_ACL_BF16, POSITIONS, R),
       NULL, D, true, T2(&rig, dq, TD_ACL_BF16, ROWS, HEADS * D), T2(&rig, dk, TD_ACL_BF16, ROWS, KV * D));
    for (int t = 0; t < ROWS; t++)
        for (int h = 0; h < HEADS + KV; h++) {
            double x[D];
            for (int i = 0; i < D; i++) x[i] = f32(wide[t][AT + h * D + i]);
            turn_in_double(x, R, table[positions[t]]);
            const td_bf16 *got = h < HEADS ? out_q[t][h] : out_k[t][h - HEADS];
            for (int i = 0; i < D; i++) assert_near(f32(got[i]), x[i], 2, "rope", (size_t)i);
        }
}

/* Norm, rope and write of q, k and v in one, into NZ pages; and attention over those, of one query. */
TEST(heads_front) {
    enum { ROWS = 3, HEADS = 4, KV = 2, D = 128, BLOCK = 128, PAGES = 3, N = HEADS + 2 * KV, TILES = KV * D / 16 };
    static td_bf16 qkv[ROWS][N][D], gamma[2][D], table[ROWS][D], cos[ROWS][D], sin[ROWS][D], q[ROWS][HEADS][D],
        cache[2][PAGES][TILES][BLOCK][16], out[HEADS][D];
    static double want[ROWS][N][D];
    const int64_t slots[ROWS] = {2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK + 2}, size[] = {1, ROWS, N, D},
                  heads[] = {HEADS, KV, KV}, keys[] = {ROWS};
    const int32_t pages[] = {2};
    char          mode[] = "PA_NZ", layout[] = "BSND";
    FILL(table);
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < D; i++) {
            cos[t][i] = table[t][i % (D / 2)];
            sin[t][i] = table[t][D / 2 + i % (D / 2)];
        }
    void *dx = IN_RANDOM(qkv), *dqg = IN_RANDOM(gamma[0]), *dkg = IN_RANDOM(gamma[1]), *dc = IN(cos), *dsin = IN(sin),
         *ds = IN(slots), *dq = OUT(q), *kc = OUT(cache[0]), *vc = OUT(cache[1]), *dt = IN(pages), *o = OUT(out);
    td_acl_int_array *asize = rig.acl->aclCreateIntArray(size, 4), *aheads = rig.acl->aclCreateIntArray(heads, 3),
                     *akeys = rig.acl->aclCreateIntArray(keys, 1);
    OP(aclnnQkvRmsNormRopeCache, T2(&rig, dx, TD_ACL_BF16, ROWS, N * D), T1(&rig, dqg, TD_ACL_BF16, D),
       T1(&rig, dkg, TD_ACL_BF16, D), T2(&rig, dc, TD_ACL_BF16, ROWS, D), T2(&rig, dsin, TD_ACL_BF16, ROWS, D),
       T1(&rig, ds, TD_ACL_INT64, ROWS), T2(&rig, dq, TD_ACL_BF16, ROWS, HEADS * D),
       T4(&rig, kc, TD_ACL_BF16, PAGES, TILES, BLOCK, 16), T4(&rig, vc, TD_ACL_BF16, PAGES, TILES, BLOCK, 16), NULL, NULL,
       NULL, NULL, asize, aheads, 1e-5, mode, NULL, NULL, NULL);
    for (int t = 0; t < ROWS; t++)
        for (int h = 0; h < N; h++) {
            double squares = 0, *x = want[t][h];
            for (int i = 0; i < D; i++) squares += pow(x[i] = f32(qkv[t][h][i]), 2);
            for (int i = 0; i < D && h < HEADS + KV; i++) x[i] *= f32(gamma[h >= HEADS][i]) / sqrt(squares / D + 1e-5);
            if (h < HEADS + KV) turn_in_double(x, D, table[t]);
            int head = (h - HEADS) % KV;
            for (int i = 0; i < D; i++)
                assert_near(f32(h < HEADS ? q[t][h][i] : cache[h >= HEADS + KV][2][(head * D + i) / 16][t][i % 16]), x[i], 4,
                            "front", (size_t)i);
        }
    const int64_t       nz[] = {PAGES, KV, D / 16, BLOCK, 16};
    td_acl_tensor      *tk = rig_tensor(&rig, kc, TD_ACL_BF16, 5, nz), *tv = rig_tensor(&rig, vc, TD_ACL_BF16, 5, nz);
    td_acl_tensor_list *lk = rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){tk}, 1),
                       *lv = rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){tv}, 1);
    OP(aclnnFusedInferAttentionScoreV4, T4(&rig, dq, TD_ACL_BF16, 1, 1, HEADS, D), lk, lv, NULL, NULL, NULL, akeys, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, T2(&rig, dt, TD_ACL_INT32, 1, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, HEADS, 0.088, 0, 0, layout, KV, 0, 0, BLOCK, 0, false, 0, 0, 0,
       T4(&rig, o, TD_ACL_BF16, 1, 1, HEADS, D), NULL);
    for (int h = 0; h < HEADS; h++) {
        double p[ROWS], total = 0;
        for (int j = 0; j < ROWS; j++) {
            double dot = 0;
            for (int i = 0; i < D; i++) dot += f32(q[0][h][i]) * (double)f32(cache[0][2][(h / 2 * D + i) / 16][j][i % 16]);
            total += p[j] = exp(dot * 0.088);
        }
        for (int i = 0; i < D; i++) {
            double sum = 0;
            for (int j = 0; j < ROWS; j++) sum += p[j] / total * want[j][HEADS + KV + h / 2][i];
            assert_near(f32(out[h][i]), sum, 4, "attention over NZ", (size_t)i);
        }
    }
    TRY(rig.acl->aclDestroyTensorList(lk));
    TRY(rig.acl->aclDestroyTensorList(lv));
    TRY(rig.acl->aclDestroyIntArray(asize));
    TRY(rig.acl->aclDestroyIntArray(aheads));
}

/* MLA: two sequences that generate, against the latent itself (BSND, pages, rope apart), and a prompt of five rows with keys
 * of its own (TND). */
TEST(latent_attention) {
    enum { HEADS = 4, D = 512, R = 64, BLOCK = 128, PAGES = 4, SEQ = 2, TABLE = 2, ROWS = 5, H2 = 2, D2 = 128 };
    static td_bf16 latent[PAGES][BLOCK][D], rope[PAGES][BLOCK][R], q[SEQ][HEADS][D], qr[SEQ][HEADS][R], out[SEQ][HEADS][D];
    static td_bf16 k2[ROWS][H2][D2], v2[ROWS][H2][D2], kr2[ROWS][H2][R], q2[ROWS][H2][D2], qr2[ROWS][H2][R],
        out2[ROWS][H2][D2];
    static uint8_t mask[2048][2048];
    const int32_t  table[SEQ][TABLE] = {{2, 0}, {3, 1}};
    const int64_t  keys[SEQ] = {130, 7}, rows[] = {ROWS};
    char           bsnd[] = "BSND", tnd[] = "TND";
    void          *dl = IN_RANDOM(latent), *dr = IN_RANDOM(rope), *dq = IN_RANDOM(q), *dqr = IN_RANDOM(qr), *dt = IN(table),
         *o = OUT(out);
    td_acl_tensor      *cache = T3(&rig, dl, TD_ACL_BF16, PAGES, BLOCK, D);
    td_acl_tensor_list *lk = rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){cache}, 1);
    td_acl_int_array   *ak = rig.acl->aclCreateIntArray(keys, SEQ), *ar = rig.acl->aclCreateIntArray(rows, 1);
    OP(aclnnFusedInferAttentionScoreV3, T4(&rig, dq, TD_ACL_BF16, SEQ, 1, HEADS, D), lk, lk, NULL, NULL, NULL, ak, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, T2(&rig, dt, TD_ACL_INT32, SEQ, TABLE), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, T4(&rig, dqr, TD_ACL_BF16, SEQ, 1, HEADS, R), T3(&rig, dr, TD_ACL_BF16, PAGES, BLOCK, R), NULL, HEADS,
       0.06, 0, 0, bsnd, 1, 0, 0, BLOCK, 0, false, 0, 0, T4(&rig, o, TD_ACL_BF16, SEQ, 1, HEADS, D), NULL);
    for (int b = 0; b < SEQ; b++)
        for (int h = 0; h < HEADS; h++) {
            double p[130], total = 0, want[D] = {0};
            for (int j = 0; j < keys[b]; j++) {
                const td_bf16 *c = latent[table[b][j / BLOCK]][j % BLOCK], *r = rope[table[b][j / BLOCK]][j % BLOCK];
                double         dot = 0;
                for (int i = 0; i < D; i++) dot += (double)f32(q[b][h][i]) * f32(c[i]);
                for (int i = 0; i < R; i++) dot += (double)f32(qr[b][h][i]) * f32(r[i]);
                total += p[j] = exp(dot * 0.06);
            }
            for (int j = 0; j < keys[b]; j++)
                for (int i = 0; i < D; i++) want[i] += p[j] / total * f32(latent[table[b][j / BLOCK]][j % BLOCK][i]);
            for (int i = 0; i < D; i++) assert_near(f32(out[b][h][i]), want[i], 4, "absorbed", (size_t)i);
        }
    TRY(rig.acl->aclDestroyTensorList(lk));

    for (int i = 0; i < 2048; i++) memset(mask[i] + i + 1, 1, (size_t)(2047 - i));
    void *dk2 = IN_RANDOM(k2), *dv2 = IN_RANDOM(v2), *dkr2 = IN_RANDOM(kr2), *dq2 = IN_RANDOM(q2), *dqr2 = IN_RANDOM(qr2),
         *dm = IN(mask), *o2 = OUT(out2);
    td_acl_tensor_list *l2 =
        rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){T3(&rig, dk2, TD_ACL_BF16, ROWS, H2, D2)}, 1);
    td_acl_tensor_list *m2 =
        rig.acl->aclCreateTensorList((const td_acl_tensor *const[]){T3(&rig, dv2, TD_ACL_BF16, ROWS, H2, D2)}, 1);
    OP(aclnnFusedInferAttentionScoreV3, T3(&rig, dq2, TD_ACL_BF16, ROWS, H2, D2), l2, m2, NULL,
       T2(&rig, dm, TD_ACL_BOOL, 2048, 2048), ar, ar, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, T3(&rig, dqr2, TD_ACL_BF16, ROWS, H2, R), T3(&rig, dkr2, TD_ACL_BF16, ROWS, H2, R),
       NULL, H2, 0.07, 0, 0, tnd, H2, 3, 0, 0, 0, false, 0, 0, T3(&rig, o2, TD_ACL_BF16, ROWS, H2, D2), NULL);
    for (int t = 0; t < ROWS; t++)
        for (int h = 0; h < H2; h++) {
            double p[ROWS], total = 0, want[D2] = {0};
            for (int j = 0; j <= t; j++) {
                double dot = 0;
                for (int i = 0; i < D2; i++) dot += (double)f32(q2[t][h][i]) * f32(k2[j][h][i]);
                for (int i = 0; i < R; i++) dot += (double)f32(qr2[t][h][i]) * f32(kr2[j][h][i]);
                total += p[j] = exp(dot * 0.07);
            }
            for (int j = 0; j <= t; j++)
                for (int i = 0; i < D2; i++) want[i] += p[j] / total * f32(v2[j][h][i]);
            for (int i = 0; i < D2; i++) assert_near(f32(out2[t][h][i]), want[i], 4, "expanded", (size_t)i);
        }
    TRY(rig.acl->aclDestroyTensorList(l2));
    TRY(rig.acl->aclDestroyTensorList(m2));
}

/* ---- the runtime ------------------------------------------------------------------------------- */

TEST(replays_by_address) {
    enum { BYTES = 4096 };
    uint8_t     *from = rig_pinned(&rig, BYTES), *to = rig_pinned(&rig, BYTES);
    void        *a = ROOM(BYTES), *b = ROOM(BYTES);
    td_acl_event go = rig_event(&rig), back = rig_event(&rig);
    td_acl_graph graph;
    TRY(rig.acl->aclmdlRICaptureBegin(rig.stream, TD_ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    TRY(rig.acl->aclrtMemcpyAsync(a, BYTES, from, BYTES, TD_ACL_MEMCPY_HOST_TO_DEVICE, rig.stream));
    TRY(rig.acl->aclrtRecordEvent(go, rig.stream));
    TRY(rig.acl->aclrtStreamWaitEvent(rig.other, go));
    TRY(rig.acl->aclrtMemcpyAsync(b, BYTES, a, BYTES, TD_ACL_MEMCPY_DEVICE_TO_DEVICE, rig.other));
    TRY(rig.acl->aclrtRecordEvent(back, rig.other));
    TRY(rig.acl->aclrtStreamWaitEvent(rig.stream, back));
    TRY(rig.acl->aclrtMemcpyAsync(to, BYTES, b, BYTES, TD_ACL_MEMCPY_DEVICE_TO_HOST, rig.stream));
    TRY(rig.acl->aclmdlRICaptureEnd(rig.stream, &graph));
    for (int i = 0; i < 20; i++) {
        memset(from, i, BYTES);
        TRY(rig.acl->aclmdlRIExecuteAsync(graph, rig.stream));
        TRY(rig.acl->aclrtSynchronizeStream(rig.stream));
        assert_int_equal(to[0], i);
        assert_int_equal(to[BYTES - 1], i);
    }
    TRY(rig.acl->aclmdlRIDestroy(graph));
    TRY(rig.acl->aclrtDestroyEvent(go));
    TRY(rig.acl->aclrtDestroyEvent(back));
    TRY(rig.acl->aclrtFreeHost(from));
    TRY(rig.acl->aclrtFreeHost(to));
}

typedef struct {
    const uint8_t *from;
    uint8_t       *to;
    int            calls;
} hand;

static void hand_over(void *arg) { /* between two copies: sees the first one's bytes, and the second one sees its */
    hand *h = arg;
    for (int i = 0; i < 64; i++) h->to[i] = (uint8_t)(h->from[i] + 1);
    h->calls++;
}

TEST(callbacks_in_order) {
    uint8_t     *up = rig_pinned(&rig, 64), *down = rig_pinned(&rig, 64);
    void        *device = ROOM(64);
    hand         h = {up, down, 0};
    td_acl_graph graph;
    rig_report_start(&rig, rig.stream);
    TRY(rig.acl->aclrtMemsetAsync(device, 64, 0, 64, rig.stream));
    TRY(rig.acl->aclmdlRICaptureBegin(rig.stream, TD_ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL));
    TRY(rig.acl->aclrtMemcpyAsync(up, 64, device, 64, TD_ACL_MEMCPY_DEVICE_TO_HOST, rig.stream));
    TRY(rig.acl->aclrtLaunchCallback(hand_over, &h, TD_ACL_CALLBACK_BLOCK, rig.stream));
    TRY(rig.acl->aclrtMemcpyAsync(device, 64, down, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, rig.stream));
    TRY(rig.acl->aclmdlRICaptureEnd(rig.stream, &graph));
    for (int i = 0; i < 30; i++) TRY(rig.acl->aclmdlRIExecuteAsync(graph, rig.stream));
    TRY(rig.acl->aclrtSynchronizeStream(rig.stream));
    assert_int_equal(h.calls, 30);
    assert_int_equal(down[63], 30);
    rig_report_stop(&rig, rig.stream);
    TRY(rig.acl->aclmdlRIDestroy(graph));
    TRY(rig.acl->aclrtFreeHost(up));
    TRY(rig.acl->aclrtFreeHost(down));
}

TEST(values_hold_streams) {
    const uint64_t zero = 0;
    void          *word = upload(&zero, NULL, sizeof zero);
    uint64_t      *seen = rig_pinned(&rig, 64);
    for (uint64_t i = 1; i < 10; i++) {
        TRY(rig.acl->aclrtValueWait(word, i, TD_ACL_STREAM_WAIT_VALUE_EQ, rig.stream));
        usleep(200);
        TRY(rig.acl->aclrtValueWrite(word, i, 0, rig.other));
        TRY(rig.acl->aclrtSynchronizeStream(rig.stream));
        TRY(rig.acl->aclrtSynchronizeStream(rig.other));
        TRY(rig.acl->aclrtMemcpyAsync(seen, 8, word, 8, TD_ACL_MEMCPY_DEVICE_TO_HOST, rig.stream));
        TRY(rig.acl->aclrtSynchronizeStream(rig.stream));
        assert_int_equal(*seen, i);
    }
    TRY(rig.acl->aclrtFreeHost(seen));
}

TEST(memory_runs_out) {
    size_t free_bytes, total;
    void  *big, *more;
    TRY(rig.acl->aclrtGetMemInfo(TD_ACL_HBM_MEM, &free_bytes, &total));
    assert_true(free_bytes <= total && total > 1 << 20);
    TRY(rig.acl->aclrtMalloc(&big, free_bytes, TD_ACL_MEM_MALLOC_HUGE_FIRST));
    assert_int_equal(rig.acl->aclrtMalloc(&more, 64, TD_ACL_MEM_MALLOC_HUGE_FIRST), TD_ACL_ERROR_RT_MEMORY_ALLOCATION);
    assert_non_null(strstr(rig.acl->aclGetRecentErrMsg(), "64 more do not fit"));
    assert_null(rig.acl->aclGetRecentErrMsg());
    TRY(rig.acl->aclrtFree(big));
}

/* ---- two cards --------------------------------------------------------------------------------- */

typedef struct {
    int32_t             card;
    const td_hccl_root *root;
    float               sum[8];
    td_bf16             all[8];
} member;

static void *join_in(void *arg) {
    member        *m = arg;
    td_acl_context c;
    td_acl_stream  s;
    td_hccl_comm   comm;
    float          x[8];
    td_bf16        half[4];
    void          *dx, *dout, *dhalf, *dall;
    for (int i = 0; i < 8; i++) x[i] = (float)(i + 1) * (float)(m->card + 1);
    for (int i = 0; i < 4; i++) half[i] = td_f32_to_bf16((float)(10 * m->card + i));
    TRY(rig.acl->aclrtCreateContext(&c, m->card));
    TRY(rig.acl->aclrtCreateStreamWithConfig(&s, 0, 0));
    TRY(rig.acl->HcclCommInitRootInfo(2, m->root, (uint32_t)m->card, &comm));
    dx = rig_upload(&rig, x, sizeof x);
    dout = rig_alloc(&rig, sizeof x);
    dhalf = rig_upload(&rig, half, sizeof half);
    dall = rig_alloc(&rig, 16);
    for (int i = 0; i < 5; i++)
        TRY(rig.acl->HcclAllReduce(dx, dout, 8, TD_HCCL_DATA_TYPE_FP32, TD_HCCL_REDUCE_SUM, comm, s));
    TRY(rig.acl->HcclAllGather(dhalf, dall, 4, TD_HCCL_DATA_TYPE_BFP16, comm, s));
    TRY(rig.acl->aclrtSynchronizeStream(s));
    TRY(rig.acl->aclrtMemcpy(m->sum, sizeof m->sum, dout, sizeof m->sum, TD_ACL_MEMCPY_DEVICE_TO_HOST));
    TRY(rig.acl->aclrtMemcpy(m->all, sizeof m->all, dall, sizeof m->all, TD_ACL_MEMCPY_DEVICE_TO_HOST));
    TRY(rig.acl->HcclCommDestroy(comm));
    void *const all[] = {dx, dout, dhalf, dall};
    for (int i = 0; i < 4; i++) TRY(rig.acl->aclrtFree(all[i]));
    TRY(rig.acl->aclrtDestroyStream(s));
    TRY(rig.acl->aclrtDestroyContext(c));
    return NULL;
}

TEST(two_cards) {
    static td_hccl_root root;
    member              members[2] = {{.card = 0, .root = &root}, {.card = 1, .root = &root}};
    pthread_t           threads[2];
    assert_true(rig.l.has_hccl);
    TRY(rig.acl->HcclGetRootInfo(&root));
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, join_in, &members[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 8; k++) {
            assert_true(members[i].sum[k] == 3.0f * (float)(k + 1));
            assert_true(f32(members[i].all[k]) == (float)(k < 4 ? k : 10 + k - 4));
        }
}

/* ---- routed experts ---------------------------------------------------------------------------- */

static td_acl_tensor_list *list_of(td_acl_tensor *t) {
    const td_acl_tensor *one = t;
    return rig.acl->aclCreateTensorList(&one, 1);
}

/* Codes of 4 bits with scales and offsets in groups: each output against a loop over the weights, each rounded to bf16. The
 * row that belongs to no expert stays as it was. */
TEST(experts_of_4_bits) {
    enum { ROWS = 6, N_EXPERTS = 3, H = 64, N = 10, GROUPS = 2 };
    static td_bf16 x[ROWS][H], scale[N_EXPERTS][GROUPS][N], offset[N_EXPERTS][GROUPS][N], out[ROWS][N];
    static uint8_t w[N_EXPERTS][H][N / 2];
    const int64_t  counts[N_EXPERTS] = {2, 0, 3};
    static int     code[N_EXPERTS][H][N];
    for (int e = 0; e < N_EXPERTS; e++)
        for (int n = 0; n < N; n++) {
            for (int g = 0; g < GROUPS; g++) {
                scale[e][g][n] = td_f32_to_bf16(fabsf(random_value()) * 0.1f);
                offset[e][g][n] = td_f32_to_bf16(rintf(random_value() * 8));
            }
            for (int k = 0; k < H; k++) {
                code[e][k][n] = (int)floorf(random_value() * 8);
                w[e][k][n / 2] |= (uint8_t)((code[e][k][n] & 15) << (n % 2 ? 4 : 0));
            }
        }
    memset(out, 0x11, sizeof out);
    void *dx = IN_RANDOM(x), *dw = IN(w), *ds = IN(scale), *doff = IN(offset), *dc = IN(counts), *dout = IN_OUT(out);
    OP(aclnnGroupedMatmulV5, list_of(T2(&rig, dx, TD_ACL_BF16, ROWS, H)),
       list_of(T3(&rig, dw, TD_ACL_INT4, N_EXPERTS, H, N)), NULL, NULL, NULL,
       list_of(T3(&rig, ds, TD_ACL_BF16, N_EXPERTS, GROUPS, N)), list_of(T3(&rig, doff, TD_ACL_BF16, N_EXPERTS, GROUPS, N)),
       NULL, T1(&rig, dc, TD_ACL_INT64, N_EXPERTS), NULL, NULL, NULL, 2, 0, 1, 0, NULL,
       list_of(T2(&rig, dout, TD_ACL_BF16, ROWS, N)), NULL, NULL);
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) {
            int    e = r < 2 ? 0 : 2;
            double want = 0, most = 0;
            for (int k = 0; k < H; k++) {
                float  weight = ((float)code[e][k][n] + f32(offset[e][k / 32][n])) * f32(scale[e][k / 32][n]);
                double part = (double)f32(x[r][k]) * (double)f32(td_f32_to_bf16(weight));
                want += part;
                most += fabs(part);
            }
            if (r == ROWS - 1)
                assert_int_equal(out[r][n], 0x1111);
            else
                assert_near(f32(out[r][n]), want, most, "out", (size_t)(r * N + n));
        }
}

/* The same codes in a matrix alone, in groups and with one scale for a column; with a bias. */
TEST(product_of_4_bits) {
    enum { ROWS = 5, K = 96, N = 10, GROUPS = 3 };
    static td_bf16 x[ROWS][K], scale[GROUPS][N], offset[GROUPS][N], out[ROWS][N];
    static uint8_t w[K][N / 2];
    static int     code[K][N];
    float          bias[N];
    for (int n = 0; n < N; n++) {
        bias[n] = random_value();
        for (int g = 0; g < GROUPS; g++) {
            scale[g][n] = td_f32_to_bf16(fabsf(random_value()) * 0.1f);
            offset[g][n] = td_f32_to_bf16(rintf(random_value() * 8));
        }
        for (int k = 0; k < K; k++) {
            code[k][n] = (int)floorf(random_value() * 8);
            w[k][n / 2] |= (uint8_t)((code[k][n] & 15) << (n % 2 ? 4 : 0));
        }
    }
    void *dx = IN_RANDOM(x), *dw = IN(w), *ds = IN(scale), *doff = IN(offset), *db = IN(bias), *dout = IN_OUT(out);
    for (int groups = GROUPS; groups >= 1; groups -= GROUPS - 1) {
        OP(aclnnWeightQuantBatchMatmulV2, T2(&rig, dx, TD_ACL_BF16, ROWS, K), T2(&rig, dw, TD_ACL_INT4, K, N),
           T2(&rig, ds, TD_ACL_BF16, groups, N), T2(&rig, doff, TD_ACL_BF16, groups, N), NULL, NULL,
           T1(&rig, db, TD_ACL_FLOAT, N), groups > 1 ? K / groups : 0, T2(&rig, dout, TD_ACL_BF16, ROWS, N));
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < N; n++) {
                double want = bias[n], most = fabs(want);
                for (int k = 0; k < K; k++) {
                    int    g = k * groups / K;
                    float  weight = ((float)code[k][n] + f32(offset[g][n])) * f32(scale[g][n]);
                    double part = (double)f32(x[r][k]) * (double)f32(td_f32_to_bf16(weight));
                    want += part;
                    most += fabs(part);
                }
                assert_near(f32(out[r][n]), want, most, "out", (size_t)(r * N + n));
            }
    }
}

/* Rows to their experts by both versions, both products with the middle between them, and back: each against loops. */
TEST(experts) {
    enum { ROWS = 5, K = 2, N_EXPERTS = 4, H = 48, INTER = 32, PAIRS = ROWS * K, K_TILES = H / 16 };
    static int8_t x[ROWS][H], w[N_EXPERTS][H][2 * INTER], nz[N_EXPERTS][2][K_TILES][16][32], sent[PAIRS][H], y[PAIRS][INTER];
    static int32_t sum[PAIRS][2 * INTER];
    static td_bf16 scale16[N_EXPERTS][2 * INTER], rows16[ROWS][H], sent16[PAIRS][H], wide[PAIRS][2 * INTER],
        back[ROWS][2 * INTER];
    static float  scale[N_EXPERTS][2 * INTER], token[ROWS], weights[ROWS][K], sent_token[PAIRS], y_scale[PAIRS];
    const int32_t ids[ROWS][K] = {{3, 0}, {1, 3}, {0, 3}, {3, 1}, {1, 0}}; /* expert 2 has no row */
    const int64_t range[] = {0, N_EXPERTS}, counts_want[N_EXPERTS] = {3, 3, 0, 4};
    int32_t       places[PAIRS], counts32[N_EXPERTS];
    int64_t       counts[N_EXPERTS];
    for (int r = 0; r < ROWS; r++) {
        token[r] = fabsf(random_value()) + 0.1f;
        for (int j = 0; j < K; j++) weights[r][j] = random_value();
        for (int i = 0; i < H; i++) x[r][i] = (int8_t)(random_value() * 127);
    }
    for (int e = 0; e < N_EXPERTS; e++)
        for (int n = 0; n < 2 * INTER; n++) {
            scale16[e][n] = td_f32_to_bf16(scale[e][n] = fabsf(random_value()) * 1e-3f);
            for (int k = 0; k < H; k++) w[e][k][n] = nz[e][n / 32][k / 16][k % 16][n % 32] = (int8_t)(random_value() * 127);
        }
    void *dx = IN(x), *di = IN(ids), *dt = IN(token), *d16 = IN_RANDOM(rows16), *dw = IN(w), *dnz = IN(nz), *ds = IN(scale),
         *ds16 = IN(scale16), *dweights = IN(weights), *dsent16 = OUT(sent16), *dsent = OUT(sent), *dplaces = OUT(places),
         *dcounts32 = OUT(counts32), *dcounts = OUT(counts), *dsent_token = OUT(sent_token), *dwide = OUT(wide),
         *dsum = OUT(sum), *dy = OUT(y), *dy_scale = OUT(y_scale), *dback = OUT(back);

    OP(aclnnMoeInitRoutingV2, T2(&rig, d16, TD_ACL_BF16, ROWS, H), T2(&rig, di, TD_ACL_INT32, ROWS, K), 0, 0, N_EXPERTS, 0,
       1, false, T2(&rig, dsent16, TD_ACL_BF16, PAIRS, H), T1(&rig, dplaces, TD_ACL_INT32, PAIRS),
       T1(&rig, dcounts32, TD_ACL_INT32, N_EXPERTS), NULL);
    for (int e = 0, all = 0; e < N_EXPERTS; e++) assert_int_equal(counts32[e], all += (int)counts_want[e]);
    for (int i = 0; i < PAIRS; i++) assert_memory_equal(sent16[places[i]], rows16[i / K], sizeof rows16[0]);

    td_acl_int_array *all_experts = rig.acl->aclCreateIntArray(range, 2);
    OP(aclnnMoeInitRoutingV3, T2(&rig, dx, TD_ACL_INT8, ROWS, H), T2(&rig, di, TD_ACL_INT32, ROWS, K),
       T1(&rig, dt, TD_ACL_FLOAT, ROWS), NULL, PAIRS, 0, N_EXPERTS, 0, 1, true, -1, all_experts, 0,
       T2(&rig, dsent, TD_ACL_INT8, PAIRS, H), T1(&rig, dplaces, TD_ACL_INT32, PAIRS),
       T1(&rig, dcounts, TD_ACL_INT64, N_EXPERTS), T1(&rig, dsent_token, TD_ACL_FLOAT, PAIRS));
    TRY(rig.acl->aclDestroyIntArray(all_experts));
    assert_memory_equal(counts, counts_want, sizeof counts);
    int expert_of[PAIRS] = {0};
    for (int i = 0; i < PAIRS; i++) {
        assert_memory_equal(sent[places[i]], x[i / K], sizeof x[0]);
        assert_memory_equal(&sent_token[places[i]], &token[i / K], sizeof token[0]);
        expert_of[places[i]] = ids[i / K][i % K];
    }
    for (int i = 1; i < PAIRS; i++) assert_true(expert_of[i] >= expert_of[i - 1]);

    const int64_t  view[] = {N_EXPERTS, H, 2 * INTER}, storage[] = {N_EXPERTS, 2, K_TILES, 16, 32};
    td_acl_tensor *tiles =
                      rig.acl->aclCreateTensor(view, 3, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage, 5, dnz),
                  *plain = T3(&rig, dw, TD_ACL_INT8, N_EXPERTS, H, 2 * INTER);
    OP(aclnnGroupedMatmulV5, list_of(T2(&rig, dsent, TD_ACL_INT8, PAIRS, H)), list_of(plain), NULL,
       list_of(T2(&rig, ds16, TD_ACL_BF16, N_EXPERTS, 2 * INTER)), NULL, NULL, NULL,
       list_of(T1(&rig, dsent_token, TD_ACL_FLOAT, PAIRS)), T1(&rig, dcounts, TD_ACL_INT64, N_EXPERTS), NULL, NULL, NULL, 3,
       0, 1, 0, NULL, list_of(T2(&rig, dwide, TD_ACL_BF16, PAIRS, 2 * INTER)), NULL, NULL);
    OP(aclnnMoeFinalizeRoutingV2, T2(&rig, dwide, TD_ACL_BF16, PAIRS, 2 * INTER), T1(&rig, dplaces, TD_ACL_INT32, PAIRS),
       NULL, NULL, NULL, T2(&rig, dweights, TD_ACL_FLOAT, ROWS, K), NULL, 2, T2(&rig, dback, TD_ACL_BF16, ROWS, 2 * INTER));
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < 2 * INTER; n++) {
            double want = 0, most = 0;
            for (int j = 0; j < K; j++) {
                double part = weights[r][j] * (double)f32(wide[places[r * K + j]][n]);
                want += part;
                most += fabs(part);
            }
            assert_near(f32(back[r][n]), want, most, "back", (size_t)(r * 2 * INTER + n));
        }

    OP(aclnnGroupedMatmulV5, list_of(T2(&rig, dsent, TD_ACL_INT8, PAIRS, H)), list_of(tiles), NULL, NULL, NULL, NULL, NULL,
       NULL, T1(&rig, dcounts, TD_ACL_INT64, N_EXPERTS), NULL, NULL, NULL, 2, 0, 1, 0, NULL,
       list_of(T2(&rig, dsum, TD_ACL_INT32, PAIRS, 2 * INTER)), NULL, NULL);
    char dynamic[] = "dynamic", rint_mode[] = "rint";
    OP(aclnnDequantSwigluQuantV2, T2(&rig, dsum, TD_ACL_INT32, PAIRS, 2 * INTER),
       T2(&rig, ds, TD_ACL_FLOAT, N_EXPERTS, 2 * INTER), T1(&rig, dsent_token, TD_ACL_FLOAT, PAIRS), NULL, NULL, NULL,
       T1(&rig, dcounts, TD_ACL_INT64, N_EXPERTS), true, dynamic, TD_ACL_INT8, rint_mode, -1, 0, 7, 1.702, 1,
       T2(&rig, dy, TD_ACL_INT8, PAIRS, INTER), T1(&rig, dy_scale, TD_ACL_FLOAT, PAIRS));
    for (int i = 0; i < PAIRS; i++) {
        int    e = expert_of[i];
        double gated[INTER], most = 0;
        for (int n = 0; n < 2 * INTER; n++) {
            int32_t want = 0;
            for (int k = 0; k < H; k++) want += sent[i][k] * w[e][k][n];
            assert_int_equal(sum[i][n], want);
            assert_int_equal(wide[i][n], td_f32_to_bf16((float)want * f32(scale16[e][n]) * sent_token[i]));
        }
        for (int n = 0; n < INTER; n++) {
            double gate = (double)sum[i][n] * scale[e][n] * sent_token[i],
                   up = (double)sum[i][INTER + n] * scale[e][INTER + n] * sent_token[i];
            gated[n] = gate / (1 + exp(-gate)) * up;
            most = fmax(most, fabs(gated[n]));
        }
        assert_true(fabs(y_scale[i] * 127 / most - 1) < 1e-5);
        for (int n = 0; n < INTER; n++) assert_true(fabs(y[i][n] - gated[n] / y_scale[i]) <= 0.501);
    }

    /* Products and middle in one: the same of cumulated counts. */
    static int8_t one[PAIRS][INTER];
    float         one_scale[PAIRS];
    int64_t       sums[N_EXPERTS];
    void         *dsums = OUT(sums), *done = OUT(one), *done_scale = OUT(one_scale);
    OP(aclnnCumsum, T1(&rig, dcounts, TD_ACL_INT64, N_EXPERTS), 0, TD_ACL_INT64, T1(&rig, dsums, TD_ACL_INT64, N_EXPERTS));
    for (int e = 0, all = 0; e < N_EXPERTS; e++) assert_int_equal(sums[e], all += (int)counts_want[e]);
    const int64_t tile_view[] = {N_EXPERTS, 2, K_TILES, 16, 32};
    OP(aclnnGroupedMatmulSwigluQuantWeightNZ, T2(&rig, dsent, TD_ACL_INT8, PAIRS, H),
       rig.acl->aclCreateTensor(tile_view, 5, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, tile_view, 5, dnz), NULL, NULL,
       T2(&rig, ds, TD_ACL_FLOAT, N_EXPERTS, 2 * INTER), T1(&rig, dsent_token, TD_ACL_FLOAT, PAIRS),
       T1(&rig, dsums, TD_ACL_INT64, N_EXPERTS), T2(&rig, done, TD_ACL_INT8, PAIRS, INTER),
       T1(&rig, done_scale, TD_ACL_FLOAT, PAIRS), NULL);
    for (int i = 0; i < PAIRS; i++) {
        assert_true(fabs(one_scale[i] / y_scale[i] - 1) < 1e-5);
        for (int n = 0; n < INTER; n++) assert_in_range(one[i][n] - y[i][n] + 1, 0, 2); /* f32 in another order */
    }
}
