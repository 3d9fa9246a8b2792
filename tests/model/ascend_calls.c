/*
 * Every call that the Ascend backend makes for a model, checked by the stand-in argument by argument, with nothing computed
 * (TD_STANDIN_DRY): the golden models whole, and the sizes of DeepSeek-R1 as a card has them. Each pass runs in every bucket
 * of a step, with generated tokens and with a prompt, fused and not. Weights are zeros.
 *
 * TD_STANDIN_CALLS=PATH has the stand-in list the calls; scripts/ascend_calls.py makes the report of them.
 */
#include <sys/mman.h>

#include "model/arch/config_file.h"
#include "model/layer_caches.h"
#include "model/program.h"
#include "model/weights.h"
#include "npu/raw_choice.h"
#include "quant/coded_matrix.h"
#include "tests/model/model_run.h"
#include "tests/td_test.h"

#define SEQUENCES 16    /* of a step of generated tokens, at most */
#define POSITIONS 65536 /* of a sequence */
#define ROWS_MOST 8192
#define SHORT_TABLE 1024
#define SCALES_MOST ((size_t)1 << 20)

/* What a card computes of a model. */
typedef struct {
    const char *path, *override_json;
    uint32_t    cards, max_tok;
    bool        experts;     /* routed experts are on the card */
    uint32_t    group;       /* linears and experts are 4-bit codes in such groups; 0: int8 */
    bool        short_table; /* of the embedding, which takes long to make, some rows stand for all */
} card_part;

/* ---- weights of zeros ------------------------------------------------------------------------------ */

static const void *zeros(void) {
    static void *all;
    size_t       bytes = (size_t)4 << 30;
    if (!all) all = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(all != MAP_FAILED);
    return all;
}

/* Scales of one: f32 for rows of int8, bf16 for groups. */
static const float *ones(void) {
    static float *all;
    if (!all) {
        all = malloc(SCALES_MOST * sizeof *all);
        assert_non_null(all);
        for (size_t i = 0; i < SCALES_MOST; i++) all[i] = 1;
    }
    return all;
}

static td_npu_weight *coded(td_npu *d, size_t n, size_t k, size_t group) {
    td_coded_matrix m = WITH(td_coded_matrix, .codes = TD_CODES_ROW_WORDS, .bits = 4, .n = n, .k = k, .stored_n = n,
                             .stored_k = k, .data = zeros(), .scale_dtype = TD_DT_F32, .scale = ones(), .scale_rows = 1,
                             .scale_group_step = 1, .group = group, .symmetric = true, .factor = 1);
    td_tensor_view  v = WITH(td_tensor_view, .rank = 2, .shape = {n, k}, .coded = &m);
    td_npu_weight  *w;
    td_error        err = {0};
    if (d->ops->weight_create(d, TD_WEIGHT_INT4G, &v, &w, &err) != TD_OK) fail_msg("%s", err.text);
    return w;
}

static td_npu_weight *plain(td_npu *d, td_weight_format format, uint32_t rank, size_t n, size_t k) {
    td_tensor_view v = WITH(td_tensor_view, .rank = rank, .shape = {rank == 1 ? k : n, k}, .data = zeros());
    td_npu_weight *w;
    td_error       err = {0};
    v.dtype = format == TD_WEIGHT_W8A8 ? TD_DT_I8 : format == TD_WEIGHT_BF16 ? TD_DT_BF16 : TD_DT_F32;
    if (format == TD_WEIGHT_W8A8) v.scale = ones();
    if (d->ops->weight_create(d, format, &v, &w, &err) != TD_OK) fail_msg("%s", err.text);
    return w;
}

static td_npu_weight *weight_of(td_npu *d, const td_model_config *c, const card_part *p, td_role role, uint32_t layer) {
    td_tensor_spec spec;
    td_shard_part  held;
    if (!td_tensor_spec_get(c, role, layer, 0, &spec) || spec.place == TD_PLACE_SHARED ||
        spec.place == TD_PLACE_SHARED_UNLESS_ROTATED || !td_shard_part_of(&spec, (td_shard){0, p->cards}, &held))
        return NULL;
    td_weight_format format = td_model_weight_format(c, &spec, true);
    size_t           n = spec.rank == 1 ? 1 : held.shape[0], k = held.shape[spec.rank - 1];
    if (role == TD_ROLE_EMBED && p->short_table && n > SHORT_TABLE) n = SHORT_TABLE;
    bool in_groups = format == TD_WEIGHT_W8A8 && p->group && role != TD_ROLE_LM_HEAD && k % p->group == 0;
    return in_groups ? coded(d, n, k, p->group) : plain(d, format, spec.rank, n, k);
}

static td_npu_weight **list_of(td_npu *d, const td_model_config *c, const card_part *p, td_role role, uint32_t layer) {
    td_npu_weight **list = calloc(c->n_experts, sizeof *list);
    assert_non_null(list);
    for (uint32_t e = 0; e < c->n_experts; e++) list[e] = weight_of(d, c, p, role, layer);
    return list;
}

static td_model_weights weights_of(td_npu *d, const td_model_config *c, const card_part *p) {
    uint32_t         n = c->n_layers + c->n_mtp_layers;
    td_model_weights w = {.layers = calloc(n, sizeof *w.layers), .experts = calloc(n, sizeof *w.experts)};
    assert_true(w.layers && w.experts);
    w.rope = plain(d, TD_WEIGHT_F32, 2, POSITIONS, c->rope.dim);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++)
        for (uint32_t i = 0; i < n; i++)
            if (td_role_is_of_model(c, role))
                w.model.role[role] = i ? w.model.role[role] : weight_of(d, c, p, role, 0);
            else if (!td_role_is_expert(c, role))
                w.layers[i].role[role] = weight_of(d, c, p, role, i);
    if (!w.model.role[TD_ROLE_LM_HEAD]) w.model.role[TD_ROLE_LM_HEAD] = w.model.role[TD_ROLE_EMBED];
    for (uint32_t i = 0; i < n && p->experts; i++) {
        if (!c->is_moe[i]) continue;
        w.experts[i] = (td_layer_experts){list_of(d, c, p, TD_ROLE_EXPERT_GATE, i), list_of(d, c, p, TD_ROLE_EXPERT_UP, i),
                                          list_of(d, c, p, TD_ROLE_EXPERT_DOWN, i)};
    }
    return w;
}

/* ---- a card with its part of a model --------------------------------------------------------------- */

typedef struct {
    td_npu          *d;
    td_npu_stream   *stream;
    td_model_config  config;
    td_model_spec    model;
    td_model_weights weights;
    td_layer_kv     *kv;
    td_program_spec  spec;
    td_step_buf      steps;
    td_step_rows     rows;
    uint32_t        *pages; /* of every sequence: they share them, nothing is computed */
    uint32_t         n_pages;
} card;

static void *memory(card *c, size_t bytes) {
    void    *p;
    td_error err = {0};
    if (c->d->ops->alloc(c->d, bytes, &p, &err) != TD_OK) fail_msg("%s", err.text);
    return p;
}

/* Buffers of the blocks, as model/card_model.c gives them to a card whose norms give int8 and f32, too. */
static td_activations buffers(card *c, const card_part *p) {
    const td_model_config *m = &c->config;
    size_t                 rows = c->model.max_tok, all = rows * m->hidden * sizeof(td_bf16), k = m->top_k ? m->top_k : 1;
    uint32_t               vocab = td_shard_sizes_of(m, c->spec.shard).vocab;
    td_npu_caps            caps;
    td_activations         a = {.x = memory(c, all),
                                .h = memory(c, all),
                                .attn = memory(c, all),
                                .mlp = memory(c, all),
                                .routed = memory(c, all),
                                .mtp_x = memory(c, all),
                                .mtp_in = memory(c, 2 * all)};
    c->d->ops->caps(c->d, &caps);
    if (!p->group) a.h_i8 = (td_rows_i8){memory(c, rows * m->hidden), memory(c, rows * sizeof(float))};
    if (caps.norm_f32) a.h_f32 = memory(c, rows * m->hidden * sizeof(float));
    a.ids = memory(c, rows * k * td_npu_id_bytes(&caps));
    a.weights = memory(c, rows * k * sizeof *a.weights);
    a.logits = memory(c, (size_t)c->model.max_out * vocab * sizeof(float));
    a.top = memory(c, (size_t)c->model.max_out * c->spec.top_k * sizeof *a.top);
    return a;
}

static void open_caches(card *c) {
    uint32_t n = c->config.n_layers + c->config.n_mtp_layers;
    c->kv = calloc(n, sizeof *c->kv);
    assert_non_null(c->kv);
    for (uint32_t i = 0; i < n; i++) {
        td_layer_caches list = td_layer_caches_of(&c->config, i);
        for (uint32_t k = 0; k < list.n; k++)
            c->kv[i].cache[k] = memory(
                c, td_layer_cache_unit_bytes(&list.cache[k], &c->model, c->d) * (c->spec.kv_pages + c->spec.kv_spare_pages));
    }
}

/* c->spec points into c-> */
static void open_card(card *c, const card_part *p) {
    td_error err = {0};
    *c = (card){0};
    td_npu_config npu = {.act_dtype = TD_DT_BF16};
    OK(td_model_config_read(repo_path(p->path), p->override_json, &c->config, &err));
    if (td_npu_open("npu", &npu, &c->d, &err) != TD_OK) fail_msg("%s", err.text);
    if (c->d->ops->stream_create(c->d, &c->stream, &err) != TD_OK) fail_msg("%s", err.text);
    c->n_pages = (p->max_tok > 256 ? POSITIONS : 2048) / TD_KV_PAGE;
    c->model = td_model_spec_of(p->path, p->max_tok);
    c->model.device = "npu";
    c->model.w8a8 = true;
    c->model.max_seq = SEQUENCES;
    c->model.max_out = SEQUENCES;
    c->model.context_length = c->n_pages * TD_KV_PAGE;
    c->model.n_cards = p->cards;
    c->weights = weights_of(c->d, &c->config, p);
    c->spec = (td_program_spec){.npu = c->d,
                                .shard = {0, p->cards},
                                .device_experts = true,
                                .experts_left_out = !p->experts,
                                .model = &c->model,
                                .config = &c->config,
                                .weights = &c->weights,
                                .layers = {0, c->config.n_layers},
                                .whole = true,
                                .kv_pages = c->n_pages,
                                .window_pages = c->n_pages,
                                .kv_spare_pages = (uint32_t)td_div_up(td_step_spare_rows(p->max_tok), TD_KV_PAGE),
                                .max_halves = 1};
    uint32_t vocab = td_shard_sizes_of(&c->config, c->spec.shard).vocab;
    c->spec.top_k = vocab < TD_MODEL_TOP ? vocab : TD_MODEL_TOP;
    open_caches(c);
    c->spec.kv = c->kv;
    c->spec.act = buffers(c, p);
    td_step_shape shape = {
        .max_tok = p->max_tok, .max_seq = SEQUENCES, .max_out = SEQUENCES, .max_seq_tokens = c->model.context_length};
    OK(td_step_buf_open(&c->steps, &shape, c->d, &err));
    OK(td_step_rows_open(&c->rows, p->max_tok, SEQUENCES, c->model.context_length, &err));
    c->pages = malloc(c->n_pages * sizeof *c->pages);
    for (uint32_t i = 0; i < c->n_pages; i++) c->pages[i] = i;
}

/* ---- passes --------------------------------------------------------------------------------------- */

/* n_seq sequences of `each` rows, behind as many tokens as a prompt of them has. */
static const td_step *fill(card *c, uint32_t n_seq, uint32_t each) {
    static uint32_t  tokens[ROWS_MOST], last[SEQUENCES];
    uint32_t         before = c->model.context_length / 2 - each;
    td_step_sequence seq = WITH(td_step_sequence, .pages = c->pages, .n_pages = c->n_pages, .absorbed = true);
    td_step_rows_clear(&c->rows);
    for (uint32_t i = 0; i < n_seq; i++) {
        td_step_rows_add(&c->rows, tokens, before, each, &seq);
        last[i] = (i + 1) * each - 1;
    }
    return &td_step_buf_fill(&c->steps, &c->rows, NULL, last, n_seq)->whole;
}

/* Sums over cards are HCCL's. */
static void run(card *c, const td_outline *pass, td_npu_block *const *blocks, const td_step *step) {
    for (uint32_t i = 0; i < pass->n; i++)
        if (blocks[i]) OK(c->d->ops->enqueue(c->d, c->stream, blocks[i], step));
    OK(c->d->ops->stream_sync(c->d, c->stream));
}

static void run_passes(const card_part *p) {
    card       c;
    td_outline pass;
    td_error   err = {0};
    open_card(&c, p);
    OK(td_program_outline(&c.spec, 1, &pass, &err));
    td_npu_block **blocks = calloc(pass.n, sizeof *blocks);
    for (uint32_t i = 0; i < pass.n; i++)
        if (pass.ops[i].kind == TD_OP_BLOCK && pass.ops[i].block.kind != TD_BLOCK_ALL_REDUCE &&
            c.d->ops->block_create(c.d, &pass.ops[i].block, &blocks[i], &err) != TD_OK)
            fail_msg("%s: %s", p->path, err.text);
    for (uint32_t i = 0; i < c.steps.n; i++) {
        uint32_t rows = c.steps.buckets[i].max_tok;
        if (rows <= SEQUENCES) run(&c, &pass, blocks, fill(&c, rows, 1));
        if (rows > 1) run(&c, &pass, blocks, fill(&c, 1, rows));
        if (rows > SEQUENCES) run(&c, &pass, blocks, fill(&c, SEQUENCES, rows / SEQUENCES));
    }
    for (uint32_t i = 0; i < pass.n; i++)
        if (blocks[i]) c.d->ops->block_destroy(c.d, blocks[i]);
    free(blocks);
    td_outline_free(&pass);
    td_step_rows_close(&c.rows);
    td_step_buf_close(&c.steps);
    free(c.pages);
    free(c.kv);
    td_model_weights_free(c.d, &c.config, &c.weights);
    c.d->ops->stream_destroy(c.d, c.stream);
}

static void run_unfused(const card_part *p) {
    setenv("TD_ASCEND_FUSED", "0", 1);
    run_passes(p);
    unsetenv("TD_ASCEND_FUSED");
}

/* ---- models ---------------------------------------------------------------------------------------- */

TEST(golden_models) {
    static const char *const FOLDERS[] = {"deepseek_v2_lite", "deepseek_v2_group", "deepseek_v3_yarn", "deepseek_v3_noqlora",
                                          "qwen3_moe",        "qwen3_moe_tied",    "qwen2_moe",        "glm4_moe",
                                          "glm4_moe_lite",    "glm4_moe_yarn",     "minimax_m2",       "kimi_k25"};
    char                     path[128];
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        snprintf(path, sizeof path, "tests/data/golden/%s", FOLDERS[i]);
        card_part p = {.path = path, .cards = 1, .max_tok = 256, .experts = true};
        run_passes(&p);
        run_unfused(&p);
        p.group = 32;
        run_passes(&p);
    }
}

/* What 910C has in the place of an operation of 910B, and what heads of 128 have of their own. */
TEST(other_operations) {
    card_part p = {.path = "tests/data/golden/qwen2_moe", .cards = 1, .max_tok = 256, .experts = true};
    setenv("TD_STANDIN_SOC", "Ascend910_9391", 1);
    run_passes(&p);
    unsetenv("TD_STANDIN_SOC");
    p = (card_part){"configs/models/qwen3-30b-a3b.json", "{\"num_hidden_layers\": 1}", 4, 256, true, 0, true};
    run_passes(&p);
}

/* A layer without routed experts and one with them; no MTP layer, whose parts are theirs. */
#define TWO_LAYERS "{\"num_hidden_layers\": 2, \"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 0}"

TEST(deepseek_r1) {
    static const char *const R1 = "configs/models/deepseek-r1.json";
    card_part                two = {R1, TWO_LAYERS, 2, ROWS_MOST, .experts = false}, /* experts on the CPU */
        awq = {R1, TWO_LAYERS, 8, ROWS_MOST, .experts = true, .group = 128, .short_table = true},
              sixteen = {R1, TWO_LAYERS, 16, ROWS_MOST, .experts = true, .short_table = true};
    run_passes(&two);
    two.short_table = true;
    run_unfused(&two);
    run_passes(&awq);
    run_passes(&sixteen);
    run_unfused(&sixteen);
}

/* A filter of cmocka. */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    setenv("TD_STANDIN_DRY", "1", 1);
    setenv("TD_STANDIN_DELAY_US", "0", 1);
    setenv("TD_STANDIN_MEMORY", "68719476736", 1);
    return tests_run();
}
