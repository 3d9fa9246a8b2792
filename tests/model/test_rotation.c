/*
 * A model with its residual stream rotated computes the same function. The logits of every architecture and those of the MTP
 * layer differ only by the rounding of the rotated weights to bf16. Models that cannot be rotated are refused.
 */
#include <math.h>
#include <sys/stat.h>

#include "core/math/rng.h"
#include "folder_files.h"
#include "model/arch/config_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/rotation.h"
#include "model_run.h"
#include "tandem_tools.h"
#include "tests/td_test.h"

#define SEED 20261122u
#define LEN 48
#define DEMO "models/tale-v3-14m" /* with an MTP layer */
/* A bf16 weight is off by 2^-9 of itself at most; that of some twenty matrices adds up. A wrong sign or gain gives 1. The
   median over tokens, because where the router's scores are nearly equal another expert may be chosen. */
#define MEDIAN_ERROR 0.03
/* Log decays are sums times up to e^3 there: with f_a and f_b alone off by 2^-9, reference_numpy.py has 0.07. */
#define DECAYS_ERROR 0.1
#define DEMO_ERROR \
    0.004 /* of a trained model, where more agrees; what norm_h divides by, say, varies by 6 % over the tokens */
#define WRITTEN_ERROR 0.1 /* as much again from int8 codes of random weights */

/* @param ck of the folder, rotated, in floats; NULL: the folder as it is, in `experts`.
   @param logits [rows_of(c), vocab]: the main model's, then the MTP layer's, which is fed the next token, behind the last
   one the first. */
static void logits_of(const char *folder, const td_checkpoint *ck, td_expert_format experts, const uint32_t *ids,
                      float *logits) {
    AT_END(model_run_close) model_run r;
    model_run_options o = WITH(model_run_options, .path = folder, .checkpoint = ck, .w8a8 = experts != TD_EXPERT_BF16,
                               .experts = experts, .max_tok = LEN, .n_seq = 1, .max_len = LEN);
    model_run_open(&r, &o);
    model_run_forward(&r, &(model_piece){.n = LEN, .ids = ids}, 1);
    const td_model_config *c = td_model_get_config(r.model);
    model_run_logits(&r, LEN, logits);
    if (c->n_mtp_layers) {
        const float *mtp;
        uint32_t     next[LEN], rows[LEN];
        for (uint32_t i = 0; i < LEN; i++) rows[i] = i, next[i] = ids[(i + 1) % LEN];
        OK(td_model_mtp(r.model, next));
        OK(td_model_mtp_head(r.model, (td_out_rows){.row = rows, .n = LEN}, &mtp));
        memcpy(logits + (size_t)LEN * c->vocab, mtp, (size_t)LEN * c->vocab * sizeof *mtp);
    }
}

static size_t rows_of(const td_model_config *c) {
    return c->n_mtp_layers ? 2 * LEN : LEN;
}

static td_model_config config_of(const char *folder) {
    td_model_config c;
    td_error        err = {0};
    if (td_model_config_read(repo_path(folder), NULL, &c, &err) != TD_OK) fail_msg("%s", err.text);
    return c;
}

/* Of the main model, and of the MTP layer. */
static void check_error(const float *got, const float *want, const td_model_config *c, const char *what, double most) {
    for (size_t at = 0; at < rows_of(c) * c->vocab; at += (size_t)LEN * c->vocab) {
        double error = median_distance(got + at, want + at, LEN, c->vocab);
        print_message("    %s%s: %.1e\n", what, at ? ", MTP layer" : "", error);
        assert_true(error > 0 && error < most);
    }
}

static void check(const char *folder, double most) {
    td_error        err = {0};
    td_checkpoint  *ck;
    td_model_config c = config_of(folder);
    uint32_t        ids[LEN];
    size_t          n = rows_of(&c) * c.vocab;
    FREED float    *plain = malloc(n * sizeof *plain), *rotated = malloc(n * sizeof *rotated);
    assert_true(plain && rotated);
    for (uint32_t i = 0; i < LEN; i++) ids[i] = (uint32_t)(td_rng_u64(SEED, 0, i) % c.vocab);
    logits_of(folder, NULL, TD_EXPERT_BF16, ids, plain);
    if (td_checkpoint_open(repo_path(folder), &ck, &err) != TD_OK) fail_msg("%s", err.text);
    uint64_t hash = td_checkpoint_source_hash(ck);
    if (td_checkpoint_rotate(ck, &c, &err) != TD_OK) fail_msg("%s", err.text);
    assert_true(td_checkpoint_source_hash(ck) != hash);
    logits_of(folder, ck, TD_EXPERT_BF16, ids, rotated);
    td_checkpoint_close(ck);
    check_error(rotated, plain, &c, folder, most);
}

static void refuse_experts_alone(const char *folder, const char *experts) {
    td_error           err = {0};
    td_pool           *pool;
    td_npu            *npu;
    td_model          *m;
    td_host_npu_config hc = {0};
    td_npu_config      nc = {.act_dtype = TD_DT_BF16, .host = &hc};
    OK(td_pool_create(&(td_worker_place){.cpu = TD_CPU_ANY, .node = UINT32_MAX}, 1, &pool, &err));
    hc.pool = pool;
    OK(td_npu_open("host", &nc, &npu, &err));
    td_model_spec spec = td_model_spec_of(repo_path(folder), 1);
    spec.cpu_weight_path = experts;
    spec.w8a8 = true;
    spec.experts.format = TD_EXPERT_INT8C;
    td_status s = td_model_open(&spec, NULL, &npu, pool, &m, &err);
    if (s == TD_OK) {
        s = td_model_load(m, 1, &err);
        td_model_close(m);
    }
    assert_int_equal(s, TD_EFORMAT);
    print_message("    %s\n", err.text);
    npu->ops->close(npu);
    td_pool_destroy(pool);
}

TEST(test_same_function) {
    print_message("    seed %u\n", SEED);
    static const char *const FOLDERS[] = {"deepseek_v2_lite", "deepseek_v2_group", "deepseek_v3_yarn", "deepseek_v3_noqlora",
                                          "qwen2_moe",        "qwen3_moe",         "qwen3_moe_tied",   "glm4_moe",
                                          "glm4_moe_lite",    "minimax_m2",        "kimi_k25",         "qwen3_next",
                                          "qwen3_5_moe",      "deepseek_v32",      "glm_moe_dsa",      "qwen3_vl_moe"};
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/data/golden/%s", FOLDERS[i]);
        check(path, MEDIAN_ERROR);
    }
    check("tests/data/golden/kimi_linear", DECAYS_ERROR);
    check(DEMO, DEMO_ERROR);
}

/* `from`, rotated by td_quantize and written to `out` in int8 on both tiers, against the model in `path`. */
static void check_written(const char *from, const char *path, const char *out) {
    td_error            err = {0};
    td_quantize_options o = WITH(td_quantize_options, .model_path = from, .output_path = out, .quantization = "w8a8_int8",
                                 .expert_quantization = "int8", .rotation = "hadamard", .threads = 2, .subpool_count = 1);
    if (td_quantize(&o, &err) != TD_OK) fail_msg("%s", err.text);
    td_model_config c = config_of(path);
    uint32_t        ids[LEN];
    FREED float    *plain = malloc(rows_of(&c) * c.vocab * sizeof *plain),
                *written = malloc(rows_of(&c) * c.vocab * sizeof *written);
    assert_true(plain && written);
    for (uint32_t t = 0; t < LEN; t++) ids[t] = (uint32_t)(td_rng_u64(SEED, 0, t) % c.vocab);
    logits_of(path, NULL, TD_EXPERT_BF16, ids, plain);
    logits_of(out, NULL, TD_EXPERT_INT8C, ids, written);
    check_error(written, plain, &c, path, WRITTEN_ERROR);
}

/* The folder that td_quantize writes, in int8 on both tiers; its packed experts are not to be had without its device
 * weights. */
TEST(test_written) {
    static const char *const FOLDERS[] = {"deepseek_v2_lite", "qwen3_moe_tied"};
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        char path[128], out[] = "/tmp/td_rotated_XXXXXX";
        snprintf(path, sizeof path, "tests/data/golden/%s", FOLDERS[i]);
        assert_non_null(mkdtemp(out));
        check_written(repo_path(path), path, out);
        refuse_experts_alone(path, out);
        remove_folder(out);
    }
}

/* The head of its own that a rotated MTP layer gets comes from the checkpoint's copy, or from the model's head where there
 * is none: of the same bytes. */
TEST(test_written_mtp) {
    char out[] = "/tmp/td_rotated_XXXXXX", bare[] = "/tmp/td_bare_XXXXXX", out2[] = "/tmp/td_rotated_XXXXXX", a[512], b[512];
    assert_non_null(mkdtemp(out));
    check_written(repo_path(DEMO), DEMO, out);
    assert_non_null(mkdtemp(bare));
    assert_non_null(mkdtemp(out2));
    copy_files(repo_path(DEMO), bare, (const char *const[]){"config.json", "model.safetensors"}, 2);
    hide_tensor(bare, "model.layers.6.shared_head.head.weight");
    hide_tensor(bare, "model.layers.6.embed_tokens.weight");
    check_written(bare, DEMO, out2);
    snprintf(a, sizeof a, "%s/model-00008-of-00008.safetensors", out);
    snprintf(b, sizeof b, "%s/model-00008-of-00008.safetensors", out2);
    struct stat sa, sb;
    assert_true(stat(a, &sa) == 0 && stat(b, &sb) == 0 &&
                sb.st_size < sa.st_size - 4096 * 256); /* without a copy of the embedding */
    remove_folder(out);
    remove_folder(out2);
    remove_folder(bare);
}

TEST(test_other_engines) {
    td_error err = {0};
    char     out[] = "/tmp/td_rotated_XXXXXX";
    assert_non_null(mkdtemp(out));
    td_quantize_options o =
        WITH(td_quantize_options, .model_path = repo_path(DEMO), .output_path = out, .quantization = "w8a8_int8",
             .expert_quantization = "int4", .output_format = "compressed-tensors", .rotation = "hadamard", .threads = 2,
             .subpool_count = 1);
    assert_int_equal(td_quantize(&o, &err), TD_ENOTSUP);
    print_message("    %s\n", err.text);
    assert_non_null(strstr(err.text, "multi-token-prediction"));
    remove_folder(out);
}

TEST(test_refused) {
    td_error        err = {0};
    td_hadamard     h = {0};
    td_model_config c = config_of("tests/data/golden/qwen3_moe");
    c.n_mtp_layers = 2;
    assert_int_equal(td_rotation_open(&h, &c, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "multi-token-prediction"));
    c.n_mtp_layers = 0;
    c.hidden = 63;
    assert_int_equal(td_rotation_open(&h, &c, &err), TD_ENOTSUP);
}
