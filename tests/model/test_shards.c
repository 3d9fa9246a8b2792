/*
 * The weights that each of several cards loads (model/shard.h), put together, are those that one card loads, code by code
 * and scale by scale. This holds for every architecture, every way in which checkpoints store matrices, and dummy and
 * rotated models. Each weight is recorded as it is handed to the device, which is the host device with one function
 * replaced.
 */
#include <math.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "kernels/rows/convert.h"
#include "model/arch/config_file.h"
#include "model/weights.h"
#include "model_run.h"
#include "npu/host/host_npu.h"
#include "quant/coded_matrix.h"
#include "quant/weight_quant.h"
#include "tests/td_test.h"

#define GOLDEN "tests/data/golden/"
#define STORED "tests/data/quantised/"
#define TALE "models/tale-v3-14m"
#define MAX_POS 128

/* ---- the device ------------------------------------------------------------------------------- */

/* A weight that was handed over, opened: weight[r, c] = (code - zero) * scale. */
typedef struct {
    td_npu_weight   *on_host;
    td_weight_format format;
    size_t           n, k;
    float           *code, *zero, *scale; /* [n, k] */
} heard;

typedef struct {
    td_npu   npu;
    td_npu  *host;
    uint64_t taken; /* bytes of the weights that were made */
} listener;

static void hear_row(heard *h, const td_tensor_view *v, size_t r) {
    size_t k = h->k;
    float *code = h->code + r * k, *zero = h->zero + r * k, *scale = h->scale + r * k;
    for (size_t c = 0; c < k; c++) zero[c] = 0, scale[c] = 1;
    if (v->coded) {
        td_gemm_groups groups;
        FREED uint8_t *codes = calloc(2, k);
        FREED float   *scales = calloc(k, sizeof *scales);
        assert_true(codes && scales && td_coded_exact_tiles(v->coded, &groups) != TD_CODED_ROUNDED &&
                    td_coded_scales(v->coded, r, scales));
        td_coded_codes(v->coded, r, 0, k, codes);
        if (td_coded_is_unsigned(v->coded)) assert_true(td_coded_zeros(v->coded, r, codes + k));
        for (size_t c = 0; c < k; c++) {
            size_t g = c / v->coded->group;
            code[c] = codes[c], zero[c] = codes[k + g], scale[c] = scales[g] * v->coded->factor;
        }
        return;
    }
    const char *row = (const char *)v->data + r * k * td_dtype_bytes(v->dtype);
    if (h->format != TD_WEIGHT_W8A8) {
        td_to_f32(v->dtype, row, k, code);
        return;
    }
    FREED int8_t *codes = malloc(k);
    float         of_row = v->scale ? v->scale[r] : 0;
    assert_non_null(codes);
    if (v->dtype == TD_DT_I8)
        memcpy(codes, row, k);
    else
        assert_true(td_quantize_weight_i8(v->dtype, row, 1, k, codes, k, &of_row));
    for (size_t c = 0; c < k; c++) code[c] = codes[c], scale[c] = of_row;
}

static td_status listen_create(td_npu *npu, td_weight_format format, const td_tensor_view *v, td_npu_weight **out,
                               td_error *err) {
    listener      *l = (listener *)npu;
    td_npu_weight *w;
    td_npu_packed  packed;
    TD_TRY(l->host->ops->weight_create(l->host, format, v, &w, err));
    l->host->ops->weight_export(l->host, w, &packed);
    l->taken += packed.bytes;
    heard *h = calloc(1, sizeof *h);
    assert_non_null(h);
    *h = (heard){.on_host = w, .format = format, .n = v->rank == 1 ? 1 : v->shape[0], .k = v->shape[v->rank - 1]};
    h->code = calloc(3 * h->n * h->k, sizeof *h->code);
    assert_non_null(h->code);
    h->zero = h->code + h->n * h->k;
    h->scale = h->zero + h->n * h->k;
    for (size_t r = 0; r < h->n; r++) hear_row(h, v, r);
    *out = (td_npu_weight *)h;
    return TD_OK;
}

static void listen_destroy(td_npu *npu, td_npu_weight *w) {
    listener    *l = (listener *)npu;
    FREED heard *h = (heard *)w;
    l->host->ops->weight_destroy(l->host, h->on_host);
    free(h->code);
}

static size_t listen_bytes(td_npu *npu, td_weight_format format, uint32_t group, size_t n, size_t k) {
    listener *l = (listener *)npu;
    return l->host->ops->weight_bytes(l->host, format, group, n, k);
}

static const td_npu_ops LISTENER = {
    .name = "listener", .weight_bytes = listen_bytes, .weight_create = listen_create, .weight_destroy = listen_destroy};

static td_pool *pool;
static td_npu  *host;

BEFORE_ALL {
    td_worker_place    places[2] = {{.cpu = TD_CPU_ANY, .node = UINT32_MAX}, {.cpu = TD_CPU_ANY, .node = UINT32_MAX}};
    td_host_npu_config threads = {0};
    td_npu_config      config = {.act_dtype = TD_DT_BF16, .host = &threads};
    td_log_set_level(TD_LOG_WARNING); /* it loads hundreds of cards */
    OK(td_pool_create(places, 2, &pool, NULL));
    threads.pool = pool;
    OK(td_npu_open("host", &config, &host, NULL));
}

AFTER_ALL {
    host->ops->close(host);
    td_pool_destroy(pool);
}

/* ---- putting together -------------------------------------------------------------------------- */

typedef struct {
    td_model_config config;
    td_checkpoint  *ck;
    td_model_part   part;
    bool            w8a8;
} model_files;

enum { AS_IT_IS, ROTATED, DUMMY };

static model_files open_files(const char *folder, int how) {
    model_files f;
    td_error    err = {0};
    td_status   st = td_model_config_read(repo_path(folder), NULL, &f.config, &err);
    if (st == TD_OK)
        st = how == DUMMY ? td_checkpoint_open_dummy(7, &f.ck, &err) : td_checkpoint_open(repo_path(folder), &f.ck, &err);
    if (st == TD_OK && how == ROTATED) st = td_checkpoint_rotate(f.ck, &f.config, &err);
    if (st != TD_OK) fail_msg("%s: %s", folder, err.text);
    td_checkpoint_look_at_mtp(f.ck, &f.config);
    f.part = (td_model_part){.layers = td_all_layers(&f.config), .whole = true};
    f.w8a8 = true;
    return f;
}

/* One card's weights; what was taken is the plan, or within it where which matrices come in groups is known only then. */
static td_model_weights load(const model_files *f, td_shard shard) {
    listener         l = {.npu.ops = &LISTENER, .host = host};
    td_model_weights w;
    td_error         err = {0};
    bool             all_kept;
    if (td_model_weights_load(&l.npu, &f->config, &f->part, shard, f->ck, f->w8a8, MAX_POS, NULL, &w, &all_kept, &err) !=
        TD_OK)
        fail_msg("%s", err.text);
    uint64_t planned = td_model_weights_bytes(&l.npu, &f->config, &f->part, shard, f->w8a8, MAX_POS);
    assert_true(l.taken <= planned && (l.taken == planned || f->config.quant.method != TD_QUANT_NONE));
    assert_true(shard.count == 1 ||
                planned < td_model_weights_bytes(&l.npu, &f->config, &f->part, (td_shard){0, 1}, f->w8a8, MAX_POS));
    return w;
}

static void let_go(const model_files *f, td_model_weights *w) {
    listener l = {.npu.ops = &LISTENER, .host = host};
    td_model_weights_free(&l.npu, &f->config, w);
}

/* What loading says; nothing stays loaded. */
static td_status try_load(const model_files *f, td_shard shard, td_error *err) {
    listener         l = {.npu.ops = &LISTENER, .host = host};
    td_model_weights w;
    bool             all_kept;
    td_status        st =
        td_model_weights_load(&l.npu, &f->config, &f->part, shard, f->ck, f->w8a8, MAX_POS, NULL, &w, &all_kept, err);
    let_go(f, &w);
    return st;
}

static bool cut_by_rows(td_role r) {
    return r == TD_ROLE_LM_HEAD || r == TD_ROLE_MTP_HEAD || r == TD_ROLE_Q_B || r == TD_ROLE_MLA_Q || r == TD_ROLE_KV_B ||
           (r >= TD_ROLE_Q && r <= TD_ROLE_V) || (r >= TD_ROLE_Q_BIAS && r <= TD_ROLE_V_BIAS) || r == TD_ROLE_DENSE_GATE ||
           r == TD_ROLE_DENSE_UP || r == TD_ROLE_SHARED_GATE || r == TD_ROLE_SHARED_UP || r == TD_ROLE_SINKS ||
           (r >= TD_ROLE_DELTA_QKV && r <= TD_ROLE_DELTA_DT_BIAS);
}

static bool cut_by_columns(td_role r) {
    return r == TD_ROLE_MLA_O || r == TD_ROLE_O || r == TD_ROLE_DELTA_O || r == TD_ROLE_DENSE_DOWN ||
           r == TD_ROLE_SHARED_DOWN;
}

/* A vector is a matrix of one row here: what is cut by rows is cut along it. */
static void compare(td_role role, const heard *whole, const heard *card, td_shard s) {
    if (!whole || ((role == TD_ROLE_MLA_O_BIAS || role == TD_ROLE_O_BIAS) && s.index)) {
        assert_null(card);
        return;
    }
    bool   along = cut_by_columns(role) || (cut_by_rows(role) && whole->n == 1);
    size_t n = whole->n / (cut_by_rows(role) && !along ? s.count : 1), k = whole->k / (along ? s.count : 1);
    assert_non_null(card);
    assert_int_equal(card->n, n);
    assert_int_equal(card->k, k);
    assert_int_equal(card->format, whole->format);
    size_t at = along ? s.index * k : cut_by_rows(role) ? s.index * n * k : 0;
    for (size_t r = 0; r < n; r++) {
        assert_memory_equal(card->code + r * k, whole->code + at + r * whole->k, k * sizeof(float));
        assert_memory_equal(card->zero + r * k, whole->zero + at + r * whole->k, k * sizeof(float));
        assert_memory_equal(card->scale + r * k, whole->scale + at + r * whole->k, k * sizeof(float));
    }
}

static size_t rows_of(const td_role_weights *w, td_role role) {
    return w->role[role] ? ((const heard *)w->role[role])->n : 0;
}

/* What the layer program will give its blocks: the sizes, and weights that have them. */
static void check_sizes(const td_model_config *c, const td_model_weights *w, td_shard s) {
    td_shard_sizes z = td_shard_sizes_of(c, s);
    assert_int_equal(rows_of(&w->model, TD_ROLE_LM_HEAD), z.vocab);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const td_role_weights *layer = &w->layers[i];
        if (c->is_delta[i]) {
            size_t of_head = 2 * c->delta.k_dim + c->delta.v_heads / c->delta.k_heads * c->delta.v_dim;
            assert_int_equal(rows_of(layer, TD_ROLE_DELTA_CONV) + rows_of(layer, TD_ROLE_DELTA_CONV_K) +
                                 rows_of(layer, TD_ROLE_DELTA_CONV_V),
                             z.delta_k_heads * of_head);
            assert_int_equal(rows_of(layer, TD_ROLE_DELTA_B), z.delta_v_heads * (layer->role[TD_ROLE_DELTA_A] ? 1 : 2));
        } else if (!c->kv_lora) {
            bool gated = c->delta.k_heads != 0; /* the same families have gates */
            assert_int_equal(rows_of(layer, TD_ROLE_Q), (size_t)z.heads * c->head_dim * (gated ? 2 : 1));
            assert_int_equal(rows_of(layer, TD_ROLE_K), (size_t)z.kv_heads * c->head_dim);
            assert_int_equal(rows_of(layer, TD_ROLE_V), (size_t)z.kv_heads * c->head_dim);
        } else {
            assert_int_equal(rows_of(layer, c->q_lora ? TD_ROLE_Q_B : TD_ROLE_MLA_Q),
                             (size_t)z.heads * (c->nope_dim + c->rope_dim));
            assert_int_equal(rows_of(layer, TD_ROLE_KV_B), (size_t)z.heads * (c->nope_dim + c->v_dim));
        }
        assert_int_equal(rows_of(layer, TD_ROLE_DENSE_UP), c->is_moe[i] ? 0 : z.inter);
        assert_int_equal(rows_of(layer, TD_ROLE_SHARED_UP), c->is_moe[i] ? z.shared_inter : 0);
    }
}

/* All cards of a count against one card. @return of how many weights the cards have parts. */
static size_t compare_cards(const model_files *f, uint32_t count) {
    td_model_weights whole = load(f, (td_shard){0, 1});
    size_t           n_cut = 0;
    for (uint32_t index = 0; index < count; index++) {
        td_shard         s = {index, count};
        td_model_weights card = load(f, s);
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            compare(role, (const heard *)whole.model.role[role], (const heard *)card.model.role[role], s);
            for (uint32_t i = 0; i < f->config.n_layers + f->config.n_mtp_layers; i++) {
                const heard *w = (const heard *)whole.layers[i].role[role];
                compare(role, w, (const heard *)card.layers[i].role[role], s);
                n_cut += w && (cut_by_rows(role) || cut_by_columns(role));
            }
        }
        compare(TD_ROLE_COUNT, (const heard *)whole.rope, (const heard *)card.rope, s);
        if (f->part.whole) check_sizes(&f->config, &card, s);
        let_go(f, &card);
    }
    let_go(f, &whole);
    return n_cut;
}

TEST(cards_together_are_one_card) {
    static const struct {
        const char *folder;
        int         how;
        uint32_t    most; /* cards */
    } CASES[] = {{GOLDEN "deepseek_v2_group", AS_IT_IS, 4},
                 {GOLDEN "deepseek_v2_lite", AS_IT_IS, 4},
                 {GOLDEN "deepseek_v3_noqlora", AS_IT_IS, 4},
                 {GOLDEN "deepseek_v3_yarn", AS_IT_IS, 4},
                 {GOLDEN "qwen2_moe", AS_IT_IS, 2},
                 {GOLDEN "qwen3_moe", AS_IT_IS, 2},
                 {GOLDEN "qwen3_moe_tied", AS_IT_IS, 2},
                 {GOLDEN "glm4_moe", AS_IT_IS, 2},
                 {GOLDEN "glm4_moe_lite", AS_IT_IS, 4},
                 {GOLDEN "minimax_m2", AS_IT_IS, 1},
                 {GOLDEN "kimi_k25", AS_IT_IS, 4},
                 {GOLDEN "deepseek_v32", AS_IT_IS, 4},
                 {GOLDEN "glm_moe_dsa", AS_IT_IS, 4},
                 {GOLDEN "gpt_oss", AS_IT_IS, 2},
                 {GOLDEN "qwen3_next", AS_IT_IS, 2},
                 {GOLDEN "qwen3_5_moe", AS_IT_IS, 2},
                 {GOLDEN "qwen3_vl_moe", AS_IT_IS, 2},
                 {GOLDEN "kimi_linear", AS_IT_IS, 4},
                 {GOLDEN "glm5_next", AS_IT_IS, 4},
                 {GOLDEN "deepseek_v3_yarn", DUMMY, 4},
                 {GOLDEN "qwen2_moe", DUMMY, 2},
                 {TALE, AS_IT_IS, 4},
                 {TALE, ROTATED, 4}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int w8a8 = 0; w8a8 < 2; w8a8++) {
            model_files f = open_files(CASES[i].folder, CASES[i].how);
            f.w8a8 = w8a8;
            for (uint32_t count = 1; count <= 4; count *= 2) {
                bool fits = td_shard_check(&f.config, count, false, NULL) == TD_OK;
                assert_int_equal(fits, count <= CASES[i].most);
                if (fits) assert_true(compare_cards(&f, count) > 0);
            }
            td_checkpoint_close(f.ck);
        }
}

TEST(compressed_rows_are_on_one_card) {
    td_error    err = {0};
    model_files f = open_files(GOLDEN "deepseek_v4", AS_IT_IS);
    OK(td_shard_check(&f.config, 1, false, NULL));
    assert_int_equal(td_shard_check(&f.config, 2, false, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "attends over compressed rows, and runs on one card"));
    td_checkpoint_close(f.ck);
}

/* DeepSeek's biases, which no golden checkpoint has: made-up ones. */
TEST(a_bias_on_a_sum_is_on_one_card) {
    model_files f = open_files(GOLDEN "deepseek_v3_yarn", DUMMY);
    f.config.attn_bias = true;
    compare_cards(&f, 2);
    td_model_weights first = load(&f, (td_shard){0, 2}), second = load(&f, (td_shard){1, 2});
    assert_non_null(first.layers[0].role[TD_ROLE_MLA_O_BIAS]);
    assert_null(second.layers[0].role[TD_ROLE_MLA_O_BIAS]);
    assert_non_null(second.layers[0].role[TD_ROLE_KV_A_BIAS]);
    let_go(&f, &first);
    let_go(&f, &second);
    td_checkpoint_close(f.ck);
}

/* Matrices in codes: those that the device keeps in groups are windows of the codes, and a group that a cut goes through is
   refused; all others are decoded, or int8, and cut anywhere. Layer 0 is dense, and its down has 96 columns; o has 128 where
   it is in groups. */
TEST(codes_are_cut_between_groups) {
    static const struct {
        const char      *folder;
        td_weight_format o;       /* of layer 1 */
        const char      *refused; /* for two cards */
    } CASES[] = {
        {STORED "fp8_block", TD_WEIGHT_W8A8, NULL},
        {STORED "fp8_channel", TD_WEIGHT_W8A8, NULL},
        {STORED "w8a8_compressed", TD_WEIGHT_W8A8, NULL},
        {STORED "w8a8_modelslim", TD_WEIGHT_W8A8, NULL},
        {STORED "gptq_int8", TD_WEIGHT_W8A8, NULL},
        {STORED "gptq_act_order", TD_WEIGHT_W8A8, NULL},
        {STORED "packed_int8_row", TD_WEIGHT_W8A8, NULL},
        {STORED "gptq_int4_row", TD_WEIGHT_INT4G, NULL},
        {STORED "nvfp4", TD_WEIGHT_FP4G, NULL},
        {STORED "mxfp4", TD_WEIGHT_FP4G,
         "groups of 32 columns that share a scale in model.layers.0.mlp.down_proj.weight; a size that divides 3 would do"},
        {STORED "awq", TD_WEIGHT_INT4G,
         "groups of 32 columns that share a scale in model.layers.0.mlp.down_proj.weight; a size that divides 3 would do"},
        {STORED "packed_int4_zeros", TD_WEIGHT_INT4G,
         "groups of 32 columns that share a scale in model.layers.0.mlp.down_proj.weight"},
        {STORED "gptq_int4", TD_WEIGHT_INT4G,
         "groups of 64 columns that share a scale in model.layers.0.mlp.down_proj.weight; a size that divides 1 would do"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        model_files f = open_files(CASES[i].folder, AS_IT_IS);
        bool        mla = f.config.kv_lora > 0;
        if (CASES[i].refused) {
            td_error err = {0};
            if (try_load(&f, (td_shard){1, 2}, &err) != TD_ENOTSUP)
                fail_msg("%s is not refused: %s", CASES[i].folder, err.text);
            assert_non_null(strstr(err.text, "--tensor-parallel-size 2 cuts the groups"));
            if (!strstr(err.text, CASES[i].refused)) fail_msg("%s: %s", CASES[i].folder, err.text);
            f.part = (td_model_part){.layers = {1, 2}};
        }
        td_model_weights whole = load(&f, (td_shard){0, 1});
        assert_int_equal(((heard *)whole.layers[1].role[mla ? TD_ROLE_MLA_O : TD_ROLE_O])->format, CASES[i].o);
        let_go(&f, &whole);
        assert_true(compare_cards(&f, 2) > 0);
        if (mla) assert_true(compare_cards(&f, 4) > 0);
        f.w8a8 = false; /* all is decoded */
        f.part = (td_model_part){.layers = td_all_layers(&f.config), .whole = true};
        assert_true(compare_cards(&f, 2) > 0);
        td_checkpoint_close(f.ck);
    }
}

/* Every row of the window, decoded, is that stretch of the whole's row. */
static void compare_window(const td_coded_matrix *m, const float *whole, size_t row, size_t n, size_t column, size_t k) {
    td_coded_matrix w = td_coded_window(m, row, n, column, k);
    FREED float    *values = malloc(k * sizeof *values);
    assert_non_null(values);
    for (size_t r = 0; r < n; r++) {
        assert_true(td_coded_row(&w, r, values));
        assert_memory_equal(values, whole + (row + r) * m->k + column, k * sizeof *values);
    }
}

/* Both halves of the rows, all stretches of columns that cut no group, and windows of windows. */
static size_t compare_windows(const td_coded_matrix *m) {
    FREED float *whole = malloc(m->n * m->k * sizeof *whole);
    size_t       n_cuts = 0, half = m->n / 2;
    assert_non_null(whole);
    for (size_t r = 0; r < m->n; r++) assert_true(td_coded_row(m, r, whole + r * m->k));
    for (size_t cards = 1; cards <= 8; cards++) {
        size_t k = m->k / cards;
        if (m->k % cards || !td_coded_divides(m, k)) continue;
        n_cuts += cards > 1;
        for (size_t c = 0; c < cards; c++) {
            compare_window(m, whole, 0, half, c * k, k);
            compare_window(m, whole, half, m->n - half, c * k, k);
            td_coded_matrix lower = td_coded_window(m, half, m->n - half, 0, m->k);
            compare_window(&lower, whole + half * m->k, 1, 3, c * k, k);
        }
    }
    return n_cuts;
}

TEST(windows_are_stretches_of_the_whole) {
    static const struct {
        const char *folder;
        bool        columns; /* some of its matrices can be cut */
    } CASES[] = {{STORED "fp8_block", true},
                 {STORED "fp8_channel", true},
                 {STORED "w8a8_compressed", true},
                 {STORED "gptq_int4", true},
                 {STORED "gptq_int4_sym", true},
                 {STORED "gptq_int4_row", true},
                 {STORED "gptq_act_order", false},
                 {STORED "gptq_int8", true},
                 {STORED "awq", true},
                 {STORED "packed_int4", true},
                 {STORED "packed_int4_zeros", true},
                 {STORED "packed_int8_row", true},
                 {STORED "mxfp4", true},
                 {STORED "nvfp4", true}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        model_files f = open_files(CASES[i].folder, AS_IT_IS);
        size_t      n = 0, n_cuts = 0;
        for (td_role role = 0; role < TD_ROLE_COUNT; role++)
            for (uint32_t layer = 0; layer < f.config.n_layers; layer++) {
                td_scratch     scratch = {0};
                td_tensor_view v;
                OK(td_checkpoint_get(f.ck, &f.config, role, layer, 0, TD_FORM_STORED, &scratch, &v, NULL));
                if (v.coded) {
                    td_coded_matrix upside_down = *v.coded;
                    FREED uint32_t *row_of = malloc(v.coded->n * sizeof *row_of);
                    assert_non_null(row_of);
                    for (size_t r = 0; r < v.coded->n; r++) row_of[r] = (uint32_t)(v.coded->n - 1 - r);
                    upside_down.row_of = row_of;
                    n_cuts += compare_windows(v.coded) + compare_windows(&upside_down);
                    n++;
                }
                td_scratch_reset(&scratch);
            }
        print_message("      %s: %zu matrices, %zu cuts of columns\n", CASES[i].folder, n, n_cuts);
        assert_true(n > 0);
        assert_int_equal(n_cuts > 0, CASES[i].columns);
        td_checkpoint_close(f.ck);
    }
}

/* Rounded whole, a row with an infinity is refused on the cards that do not hold it too. */
TEST(an_infinity_is_refused_on_every_card) {
    model_files    f = open_files(GOLDEN "qwen3_moe", AS_IT_IS);
    size_t         n = (size_t)f.config.hidden * f.config.heads * f.config.head_dim;
    FREED float   *values = calloc(n, sizeof *values);
    td_tensor_view replaced[TD_ROLE_COUNT] = {
        [TD_ROLE_O] = {.dtype = TD_DT_F32,
                       .rank = 2,
                       .shape = {f.config.hidden, (size_t)f.config.heads * f.config.head_dim},
                       .data = values}};
    assert_non_null(values);
    values[n - 1] = INFINITY;
    td_checkpoint_replace(f.ck, 1, replaced);
    for (uint32_t index = 0; index < 2; index++) {
        td_error err = {0};
        assert_int_equal(try_load(&f, (td_shard){index, 2}, &err), TD_EFORMAT);
        assert_non_null(strstr(err.text, "model.layers.1.self_attn.o_proj.weight"));
        assert_non_null(strstr(err.text, "infinity"));
    }
    td_checkpoint_close(f.ck);
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static void expect_refusal(const td_model_config *c, uint32_t count, const char *sentence) {
    td_error err = {0};
    assert_int_equal(td_shard_check(c, count, false, &err), TD_EINVAL);
    if (strcmp(err.text, sentence)) fail_msg("\"%s\", expected \"%s\"", err.text, sentence);
}

TEST(what_does_not_divide_is_named) {
    td_model_config qwen, deepseek, c;
    OK(td_model_config_read(repo_path(GOLDEN "qwen2_moe"), NULL, &qwen, NULL));
    OK(td_model_config_read(repo_path(GOLDEN "deepseek_v3_yarn"), NULL, &deepseek, NULL));
    expect_refusal(&qwen, 4,
                   "--tensor-parallel-size 4 does not divide the model's 2 key-value heads; sizes that would do: 1, 2");
    expect_refusal(&qwen, 3,
                   "--tensor-parallel-size 3 does not divide the model's 4 attention heads; sizes that would do: 1, 2");
    expect_refusal(&qwen, 0, "--tensor-parallel-size is 1 to 64, not 0; sizes that would do: 1, 2");
    expect_refusal(&qwen, 65, "--tensor-parallel-size is 1 to 64, not 65; sizes that would do: 1, 2");
    expect_refusal(&deepseek, 8,
                   "--tensor-parallel-size 8 does not divide the model's 4 attention heads; sizes that would do: 1, 2, 4");
    c = deepseek, c.vocab = 321;
    expect_refusal(
        &c, 2, "--tensor-parallel-size 2 does not divide the model's 321 tokens of the vocabulary; sizes that would do: 1");
    c = deepseek, c.inter = 98;
    expect_refusal(&c, 4,
                   "--tensor-parallel-size 4 does not divide the model's 98 rows of the dense layers' gate "
                   "(intermediate_size); sizes that would do: 1, 2");
    c = qwen, c.shared_inter = 63;
    expect_refusal(
        &c, 2,
        "--tensor-parallel-size 2 does not divide the model's 63 rows of the shared expert's gate; sizes that would do: 1");
    c.shared_inter = 0; /* none to cut */
    OK(td_shard_check(&c, 2, false, NULL));
    memset(c.is_moe, 1, sizeof c.is_moe);
    c.inter = 97;
    OK(td_shard_check(&c, 2, false, NULL));
}

/* ---- kept weights ------------------------------------------------------------------------------ */

/* A card's file serves that card; of another's only what is on both is taken. */
TEST(a_kept_file_is_of_one_card) {
    char              path[] = "/tmp/td_shards_XXXXXX";
    model_files       f = open_files(GOLDEN "qwen3_moe", AS_IT_IS);
    td_model_weights  w;
    td_npu_packed     kept, made;
    td_device_file   *file;
    bool              all_kept;
    const td_npu_ops *ops = host->ops;
    close(mkstemp(path));
    OK(td_model_weights_load(host, &f.config, &f.part, (td_shard){1, 2}, f.ck, true, MAX_POS, NULL, &w, &all_kept, NULL));
    OK(td_model_weights_keep(host, &f.config, (td_shard){1, 2}, &w, path, "tag", 1, pool, NULL));
    td_model_weights_free(host, &f.config, &w);
    OK(td_device_file_open(path, "tag", 1, pool, &file, NULL));
    for (uint32_t index = 0; index < 2; index++) {
        td_model_weights fresh;
        bool             none_kept;
        OK(td_model_weights_load(host, &f.config, &f.part, (td_shard){index, 2}, f.ck, true, MAX_POS, file, &w, &all_kept,
                                 NULL));
        OK(td_model_weights_load(host, &f.config, &f.part, (td_shard){index, 2}, f.ck, true, MAX_POS, NULL, &fresh,
                                 &none_kept, NULL));
        assert_int_equal(all_kept, index == 1);
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            if (!fresh.layers[1].role[role]) continue;
            ops->weight_export(host, w.layers[1].role[role], &kept);
            ops->weight_export(host, fresh.layers[1].role[role], &made);
            assert_int_equal(kept.bytes, made.bytes);
            assert_memory_equal(kept.data, made.data, made.bytes);
        }
        td_model_weights_free(host, &f.config, &fresh);
        td_model_weights_free(host, &f.config, &w);
    }
    td_device_file_close(file);
    unlink(path);
    td_checkpoint_close(f.ck);
}
