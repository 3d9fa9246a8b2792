/*
 * Layers that run by themselves on hidden states give the bits that the whole model gives, one by one and several together,
 * with either number format of the device tier. So does the MTP layer, as the checkpoint has it and rotated. The tap shows
 * the rows that linears read: every row once for every linear, the layer's normed input among them.
 */
#include <math.h>

#include "core/math/rng.h"
#include "kernels/rows/convert.h"
#include "model/arch/config_file.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261122u
#define N_SEQ 2
#define LEN 60 /* tokens of a sequence */
#define N_TOK (N_SEQ * LEN)
#define LAYERS_MAX 8

/* What the taps saw of a run. */
typedef struct {
    td_model *model;
    size_t    row_bytes, pairs; /* of a hidden state; routed ones of a step */
    char     *x[LAYERS_MAX];    /* [N_TOK, hidden] after the layer */
    uint16_t *ids[LAYERS_MAX];  /* [pairs] or NULL */
    float    *weights[LAYERS_MAX];
    size_t    rows[LAYERS_MAX][TD_ROLE_COUNT]; /* shown for a linear */
    size_t    width[LAYERS_MAX][TD_ROLE_COUNT];
    float    *attention_in; /* [N_TOK, hidden] of the layer that is run by itself, or NULL */
} seen;

static void *copy_of(const void *p, size_t bytes) {
    void *c = malloc(bytes);
    assert_non_null(c);
    return memcpy(c, p, bytes);
}

static void see_layer(void *user, const td_layer_output *o) {
    seen *s = user;
    assert_true(o->layer < LAYERS_MAX && o->n_tok == N_TOK);
    s->x[o->layer] = copy_of(o->x, N_TOK * s->row_bytes);
    if (!o->expert_ids) return;
    s->ids[o->layer] = copy_of(o->expert_ids, s->pairs * sizeof(uint16_t));
    s->weights[o->layer] = copy_of(o->expert_weights, s->pairs * sizeof(float));
}

static void see_rows(void *user, const td_npu_weight *const *weights, size_t n, td_dtype dtype, const void *x, size_t m,
                     size_t k) {
    seen *s = user;
    for (size_t i = 0; i < n; i++) {
        uint32_t layer;
        td_role  role;
        assert_true(td_model_find_weight(s->model, weights[i], &layer, &role));
        assert_true(layer < LAYERS_MAX && (s->width[layer][role] == 0 || s->width[layer][role] == k));
        bool attention = role == TD_ROLE_Q || role == TD_ROLE_KV_A || role == TD_ROLE_DELTA_QKV; /* read the normed input */
        if (attention && s->attention_in) td_to_f32(dtype, x, m * k, s->attention_in + s->rows[layer][role] * k);
        s->rows[layer][role] += m;
        s->width[layer][role] = k;
    }
}

static void forget(seen *s) {
    for (int i = 0; i < LAYERS_MAX; i++) {
        free(s->x[i]);
        free(s->ids[i]);
        free(s->weights[i]);
    }
    free(s->attention_in);
    *s = (seen){0};
}

static model_run_options options_for(const char *folder, bool w8a8, seen *s, td_layer_range layers) {
    return WITH(model_run_options, .path = folder, .w8a8 = w8a8, .experts = w8a8 ? TD_EXPERT_INT4C : TD_EXPERT_BF16,
                .layers = layers, .layer_tap = see_layer, .rows_tap = see_rows, .tap_user = s, .max_tok = N_TOK,
                .n_seq = N_SEQ, .max_len = LEN);
}

static void make_pieces(model_piece pieces[N_SEQ], uint32_t ids[N_SEQ][LEN], uint32_t vocab) {
    for (uint32_t q = 0; q < N_SEQ; q++) {
        for (uint32_t i = 0; i < LEN; i++) ids[q][i] = (uint32_t)(td_rng_u64(SEED, q, i) % vocab);
        pieces[q] = (model_piece){.seq = q, .n = LEN, .ids = ids[q]};
    }
}

static void open_run(model_run *r, seen *s, const model_run_options *o) {
    model_run_open(r, o);
    const td_model_config *c = td_model_get_config(r->model);
    s->model = r->model;
    s->row_bytes = c->hidden * (o->w8a8 ? sizeof(td_bf16) : sizeof(float));
    s->pairs = (size_t)N_TOK * c->top_k;
}

/* The layers of the range, from what the whole model had before them, against what it had after. */
static void compare_range(const char *folder, bool w8a8, const seen *whole, td_layer_range range) {
    model_run         r;
    seen              s = {0};
    model_piece       pieces[N_SEQ];
    uint32_t          ids[N_SEQ][LEN];
    model_run_options o = options_for(folder, w8a8, &s, range);
    open_run(&r, &s, &o);
    const td_model_config *c = td_model_get_config(r.model);
    make_pieces(pieces, ids, c->vocab);
    FREED char *out = malloc(N_TOK * s.row_bytes);
    assert_non_null(out);
    if (range.end - range.first == 1 && !w8a8) s.attention_in = malloc(N_TOK * c->hidden * sizeof(float));
    model_run_layers(&r, pieces, N_SEQ, whole->x[range.first - 1], out);
    assert_memory_equal(out, whole->x[range.end - 1], N_TOK * s.row_bytes);
    for (uint32_t layer = range.first; layer < range.end; layer++) {
        td_tensor_spec spec;
        assert_memory_equal(s.x[layer], whole->x[layer], N_TOK * s.row_bytes);
        assert_int_equal(s.ids[layer] != NULL, c->is_moe[layer]);
        if (s.ids[layer]) assert_memory_equal(s.ids[layer], whole->ids[layer], s.pairs * sizeof(uint16_t));
        if (s.ids[layer]) assert_memory_equal(s.weights[layer], whole->weights[layer], s.pairs * sizeof(float));
        for (td_role role = TD_ROLE_INPUT_NORM; role < TD_ROLE_COUNT; role++) {
            bool linear = td_tensor_spec_get(c, role, layer, 0, &spec) && spec.format == TD_WEIGHT_W8A8 &&
                          spec.place != TD_PLACE_EXPERTS;
            if (!linear) continue;
            assert_int_equal(s.rows[layer][role], N_TOK);
            assert_int_equal(s.width[layer][role], spec.shape[1]);
            assert_int_equal(whole->rows[layer][role], N_TOK);
        }
    }
    if (s.attention_in) { /* x / sqrt(mean(x^2) + eps) * gamma: with gamma unknown here, the rows' ratios */
        const float *x = (const float *)whole->x[range.first - 1];
        for (size_t t = 0; t < N_TOK; t++) {
            double squares = 0, squares0 = 0;
            for (size_t i = 0; i < c->hidden; i++)
                squares += (double)x[t * c->hidden + i] * x[t * c->hidden + i], squares0 += (double)x[i] * x[i];
            double norm = sqrt(squares / c->hidden + c->eps), norm0 = sqrt(squares0 / c->hidden + c->eps);
            for (size_t i = 0; i < c->hidden; i++) {
                double got = (double)s.attention_in[t * c->hidden + i] * norm * x[i],
                       want = (double)s.attention_in[i] * norm0 * x[t * c->hidden + i];
                assert_true(fabs(got - want) <= 1e-5 * (fabs(want) + 1e-6));
            }
        }
    }
    forget(&s);
    model_run_close(&r);
}

static void check_folder(const char *folder) {
    for (int w8a8 = 0; w8a8 < 2; w8a8++) {
        model_run         r;
        seen              whole = {0};
        model_piece       pieces[N_SEQ];
        uint32_t          ids[N_SEQ][LEN];
        model_run_options o = options_for(folder, w8a8, &whole, (td_layer_range){0, 0});
        open_run(&r, &whole, &o);
        uint32_t n_layers = td_model_get_config(r.model)->n_layers;
        make_pieces(pieces, ids, td_model_get_config(r.model)->vocab);
        model_run_forward(&r, pieces, N_SEQ);
        model_run_close(&r);
        assert_true(n_layers >= 2 && n_layers <= LAYERS_MAX);
        for (uint32_t i = 1; i < n_layers; i++) compare_range(folder, w8a8, &whole, (td_layer_range){i, i + 1});
        compare_range(folder, w8a8, &whole, (td_layer_range){1, n_layers});
        forget(&whole);
    }
}

#define FOLDER_TEST(name)                         \
    TEST(name) {                                  \
        check_folder("tests/data/golden/" #name); \
    }
FOLDER_TEST(deepseek_v2_lite)
FOLDER_TEST(deepseek_v3_yarn)
FOLDER_TEST(qwen3_moe)
FOLDER_TEST(qwen2_moe)
FOLDER_TEST(qwen3_next)
FOLDER_TEST(kimi_linear)
FOLDER_TEST(deepseek_v32)

TEST(the_demo_model) {
    check_folder("models/tale-v3-14m");
}

/* By what its router chose, the only thing that both ways show. */
static void check_mtp(bool w8a8, const td_checkpoint *ck) {
    model_run         r;
    seen              whole = {0}, s = {0};
    model_piece       pieces[N_SEQ], next_pieces[N_SEQ];
    uint32_t          ids[N_SEQ][LEN], next[N_TOK];
    const float      *weights;
    const uint16_t   *chosen;
    model_run_options o = options_for("models/tale-v3-14m", w8a8, &whole, (td_layer_range){0, 0});
    o.checkpoint = ck;
    open_run(&r, &whole, &o);
    const td_model_config *c = td_model_get_config(r.model);
    uint32_t               mtp = c->n_layers;
    assert_int_equal(c->mtp_rotated, ck != NULL);
    make_pieces(pieces, ids, c->vocab);
    for (uint32_t i = 0; i < N_TOK; i++) next[i] = (uint32_t)(td_rng_u64(SEED, 99, i) % c->vocab);
    model_run_forward(&r, pieces, N_SEQ);
    OK(td_model_mtp(r.model, next));
    td_model_get_routing(r.model, td_model_config_moe_layers(c) - 1, &chosen, &weights);
    chosen = copy_of(chosen, whole.pairs * sizeof *chosen);
    weights = copy_of(weights, whole.pairs * sizeof *weights);
    model_run_close(&r);

    o = options_for("models/tale-v3-14m", w8a8, &s, (td_layer_range){mtp, mtp + 1});
    o.checkpoint = ck;
    open_run(&r, &s, &o);
    for (uint32_t q = 0; q < N_SEQ; q++) next_pieces[q] = (model_piece){.seq = q, .n = LEN, .ids = next + (size_t)q * LEN};
    FREED char *out = malloc(N_TOK * s.row_bytes);
    assert_non_null(out);
    model_run_layers(&r, next_pieces, N_SEQ, whole.x[mtp - 1], out);
    assert_memory_equal(s.ids[mtp], chosen, s.pairs * sizeof *chosen);
    assert_memory_equal(s.weights[mtp], weights, s.pairs * sizeof *weights);
    assert_memory_equal(s.x[mtp], out, N_TOK * s.row_bytes);
    assert_int_equal(s.rows[mtp][TD_ROLE_MTP_EH_PROJ], N_TOK);
    assert_int_equal(s.width[mtp][TD_ROLE_MTP_EH_PROJ], 2 * td_model_get_config(r.model)->hidden);
    assert_int_equal(s.rows[mtp][TD_ROLE_MTP_UNROTATE], ck ? N_TOK : 0);
    free((void *)chosen);
    free((void *)weights);
    forget(&whole);
    forget(&s);
    model_run_close(&r);
}

TEST(the_mtp_layer) {
    td_checkpoint  *ck;
    td_model_config c;
    for (int w8a8 = 0; w8a8 < 2; w8a8++) check_mtp(w8a8, NULL);
    OK(td_model_config_read(repo_path("models/tale-v3-14m"), NULL, &c, NULL));
    OK(td_checkpoint_open(repo_path("models/tale-v3-14m"), &ck, NULL));
    OK(td_checkpoint_rotate(ck, &c, NULL));
    for (int w8a8 = 0; w8a8 < 2; w8a8++) check_mtp(w8a8, ck);
    td_checkpoint_close(ck);
}

/* Ranges that no program can run. */
TEST(other_ranges_are_refused) {
    static const struct {
        const char    *folder;
        td_layer_range layers;
        uint32_t       max_deferred;
        const char    *says; /* NULL: it is run */
    } CASES[] = {{"qwen3_moe", {2, 2}, 0, "cannot be run by themselves"},
                 {"qwen3_moe", {3, 2}, 0, "cannot be run by themselves"},
                 {"qwen3_moe", {0, 99}, 0, "cannot be run by themselves"},
                 {"qwen3_moe", {1, 2}, 1, "cannot be run by themselves"},
                 {"qwen3_moe", {0, 2}, 0, NULL},
                 {"glm_moe_dsa", {1, 4}, 0, NULL}, /* layers 2 and 3 have the choice of layer 1 */
                 {"glm_moe_dsa", {2, 4}, 0, "layer 2 of GlmMoeDsaForCausalLM attends to the keys that"}};
    td_worker_place place = {.cpu = TD_CPU_ANY};
    td_pool        *pool;
    td_npu         *npu;
    OK(td_pool_create(&place, 1, &pool, NULL));
    OK(td_npu_open("host", &(td_npu_config){.act_dtype = TD_DT_F32, .host = &(td_host_npu_config){.pool = pool}}, &npu,
                   NULL));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        td_model *m;
        td_error  err = {0};
        char      folder[64];
        snprintf(folder, sizeof folder, "tests/data/golden/%s", CASES[i].folder);
        td_model_spec spec = td_model_spec_of(repo_path(folder), 8);
        spec.layers = CASES[i].layers;
        spec.experts.max_deferred = CASES[i].max_deferred;
        td_status st = td_model_open(&spec, NULL, &npu, pool, &m, &err);
        if (CASES[i].says ? st != TD_EINVAL || !strstr(err.text, CASES[i].says) : st != TD_OK) fail_msg("%s", err.text);
        td_model_close(m);
    }
    npu->ops->close(npu);
    td_pool_destroy(pool);
}

int main(void) {
    print_message("seed %u\n", SEED);
    return tests_run();
}
