/*
 * Checkpoints in every quantised format (tests/data/quantised, made and decoded by scripts/golden/make_quantised.py). Every
 * weight is right bit for bit, also after it went through the expert store in the format that carries it. Logits are
 * compared with numpy on the decoded weights. Broken folders are refused.
 */
#include <malloc.h>
#include <math.h>
#include <pthread.h>

#include "core/math/rng.h"
#include "folder_files.h"
#include "golden_files.h"
#include "model/arch/config_file.h"
#include "model/experts_load.h"
#include "quant/coded_matrix.h"
#include "tests/cpu_experts/load_views.h"

AT_END_OF(end_checkpoint, td_checkpoint, td_checkpoint_close)
AT_END_OF(end_pool, td_pool, td_pool_destroy)

#define DATA "tests/data/quantised/"
/* As test_golden's, where weights and arithmetic are f32 (experts: weights in bf16). */
#define LOGIT_TOLERANCE 5e-5
/* Activations of the experts in int8: one that falls to the other side of a half is 1/127 of the largest. */
#define INT8_TOLERANCE 4e-3
/* Activations of every linear in int8, between blocks in bf16. */
#define W8A8_TOLERANCE 5e-2

static const char *const CASES[] = {"fp8_block",         "fp8_block_minimax", "fp8_channel",   "w8a8_compressed",
                                    "w8a8_modelslim",    "gptq_int4",         "gptq_int4_sym", "gptq_int4_row",
                                    "gptq_act_order",    "gptq_int8",         "awq",           "packed_int4",
                                    "packed_int4_zeros", "packed_int8_row",   "mxfp4",         "nvfp4"};
#define N_CASES (sizeof CASES / sizeof *CASES)

static json_t *manifest_of(const char *name) {
    char path[128];
    snprintf(path, sizeof path, DATA "%s/manifest.json", name);
    return read_json(path);
}

/* make_quantised.py's fingerprint. */
static uint64_t fingerprint(const float *v, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        float    f = v[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        sum += ((uint64_t)bits + 1) * ((i + 1) * UINT64_C(0x9E3779B97F4A7C15));
    }
    return sum;
}

static uint64_t expected(const json_t *manifest, const char *name) {
    const char *text = json_string_value(json_object_get(json_object_get(manifest, "fingerprints"), name));
    if (!text) fail_msg("no fingerprint of %s", name);
    return strtoull(text, NULL, 16);
}

static void open_case(const char *dir, const char *override_json, td_model_config *config, td_checkpoint **c) {
    td_error err = {0};
    if (td_model_config_read(dir, override_json, config, &err) != TD_OK || td_checkpoint_open(dir, c, &err) != TD_OK ||
        td_checkpoint_check_all(*c, config, true, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static uint64_t fingerprint_of_view(const td_tensor_view *v) {
    size_t       n = v->shape[0] * v->shape[1];
    FREED float *f = malloc(n * sizeof *f);
    assert_non_null(f);
    assert_true(v->dtype == TD_DT_F32 || v->dtype == TD_DT_BF16);
    for (size_t i = 0; i < n; i++)
        f[i] = v->dtype == TD_DT_F32 ? ((const float *)v->data)[i] : td_bf16_to_f32(((const td_bf16 *)v->data)[i]);
    return fingerprint(f, n);
}

/* Codes where they lie, rows that RoPE turns named one by one. @return false: not coded. */
static bool decode_coded(const td_tensor_view *v, float *out) {
    if (!v->coded) return false;
    for (size_t r = 0; r < v->shape[0]; r++) assert_true(td_coded_row(v->coded, r, out + r * v->shape[1]));
    return true;
}

TEST(every_weight_is_what_numpy_decodes) {
    for (size_t i = 0; i < N_CASES; i++) {
        char path[128];
        snprintf(path, sizeof path, DATA "%s", CASES[i]);
        td_model_config config;
        td_checkpoint  *c;
        json_auto_t    *manifest = manifest_of(CASES[i]);
        size_t          n = 0;
        open_case(repo_path(path), NULL, &config, &c);
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            uint32_t n_layers, n_experts;
            td_role_extent(&config, role, &n_layers, &n_experts);
            for (uint32_t l = 0; l < n_layers; l++)
                for (uint32_t e = 0; e < n_experts; e++) {
                    td_tensor_spec spec;
                    td_scratch     scratch = {0};
                    td_tensor_view v, coded;
                    td_error       err = {0};
                    if (!td_tensor_spec_get(&config, role, l, e, &spec) || spec.rank != 2) continue;
                    if (td_checkpoint_get(c, &config, role, l, e, TD_FORM_FLOAT, &scratch, &v, &err) != TD_OK)
                        fail_msg("%s", err.text);
                    if (fingerprint_of_view(&v) != expected(manifest, spec.name))
                        fail_msg("%s: %s differs", CASES[i], spec.name);
                    FREED float *rows = malloc(spec.shape[0] * spec.shape[1] * sizeof *rows);
                    OK(td_checkpoint_get(c, &config, role, l, e, TD_FORM_STORED, &scratch, &coded, &err));
                    if (decode_coded(&coded, rows) &&
                        fingerprint(rows, spec.shape[0] * spec.shape[1]) != expected(manifest, spec.name))
                        fail_msg("%s: the codes of %s differ", CASES[i], spec.name);
                    td_scratch_reset(&scratch);
                    n++;
                }
        }
        assert_int_equal(n, json_object_size(json_object_get(manifest, "fingerprints")));
        td_checkpoint_close(c);
    }
}

/* "int4-g32 (f16 scales, zeros)" */
static void name_of(const td_expert_numbers *n, char text[64]) {
    static const char *const FORMATS[] = {[TD_EXPERT_INT4C] = "int4", [TD_EXPERT_INT8C] = "int8"};
    if (n->name[0] || n->format != TD_EXPERT_INT4G)
        snprintf(text, 64, "%s", n->name[0] ? n->name : FORMATS[n->format]);
    else
        snprintf(text, 64, "int4-g%u (%s scales%s)", n->groups.size,
                 n->groups.scale_dtype == TD_DT_F16   ? "f16"
                 : n->groups.scale_dtype == TD_DT_F32 ? "f32"
                                                      : "bf16",
                 n->groups.zero_points ? ", zeros" : "");
}

static td_pool *open_pool(void) {
    td_worker_place places[2] = {{.cpu = TD_CPU_ANY, .node = UINT32_MAX},
                                 {.cpu = TD_CPU_ANY, .node = UINT32_MAX, .subpool = 1}};
    td_pool        *p;
    OK(td_pool_create(places, 2, &p, NULL));
    return p;
}

static void check_store(const td_experts *x, const td_model_config *config, const json_t *manifest, uint32_t layer) {
    FREED float *values = malloc((size_t)config->hidden * config->moe_inter * sizeof *values);
    assert_non_null(values);
    for (uint32_t e = 0; e < config->n_experts; e++)
        for (td_role role = TD_ROLE_EXPERT_GATE; role <= TD_ROLE_EXPERT_DOWN; role++) {
            td_tensor_spec spec;
            assert_true(td_tensor_spec_get(config, role, layer, e, &spec));
            OK(td_experts_get_values(x, 0, e, (td_expert_matrix)(role - TD_ROLE_EXPERT_GATE), 0, spec.shape[0], values,
                                     NULL));
            if (fingerprint(values, spec.shape[0] * spec.shape[1]) != expected(manifest, spec.name))
                fail_msg("%s differs in the store", spec.name);
        }
}

/* The store gives back every weight bit for bit, in the format that td_checkpoint_expert_numbers names. */
TEST(experts_are_carried_exactly) {
    AT_END(end_pool) td_pool *pool = open_pool();
    for (size_t i = 0; i < N_CASES; i++) {
        char path[128], name[64];
        snprintf(path, sizeof path, DATA "%s", CASES[i]);
        td_model_config   config;
        td_checkpoint    *c;
        td_expert_numbers numbers;
        td_stored_experts stored;
        td_error          err = {0};
        json_auto_t      *manifest = manifest_of(CASES[i]);
        const char       *want = json_string_value(json_object_get(manifest, "experts"));
        open_case(repo_path(path), NULL, &config, &c);
        OK(td_checkpoint_expert_numbers(c, &config, &numbers, &stored, NULL));
        bool exact = stored == TD_EXPERTS_EXACT;
        if (exact) name_of(&numbers, name);
        assert_string_equal(exact ? name : "", want);
        if (exact) {
            td_experts_config ec =
                WITH(td_experts_config, .n_layers = 1, .n_experts = config.n_experts, .hidden = config.hidden,
                     .inter = config.moe_inter, .top_k = config.top_k, .format = numbers.format, .groups = numbers.groups,
                     .act_dtype = TD_DT_F32, .max_tok = 1);
            FREED td_expert_weights *e = calloc(config.n_experts, sizeof *e);
            td_scratch               scratch = {0};
            td_experts              *x;
            OK(td_experts_create(&ec, pool, &x, NULL));
            OK(td_checkpoint_get_experts(c, &config, 1, &scratch, e, NULL));
            if (load_views(x, 0, e, &err) != TD_OK) fail_msg("%s", err.text);
            check_store(x, &config, manifest, 1);
            td_experts_destroy(x);
            td_scratch_reset(&scratch);
        }
        td_checkpoint_close(c);
    }
}

/* ---- memory that loading takes ---------------------------------------------------------------- */

/* What td_scratch_take has given out and not got back. */
static pthread_mutex_t scratch_lock = PTHREAD_MUTEX_INITIALIZER;
static void           *scratch_block[4096];
static size_t          scratch_bytes, scratch_peak;

void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void  __real_free(void *p);
void  __wrap_free(void *p);

static bool change_block(const void *from, void *to) {
    for (size_t i = 0; i < sizeof scratch_block / sizeof *scratch_block; i++)
        if (scratch_block[i] == from) {
            scratch_block[i] = to;
            return true;
        }
    return false;
}

void *__wrap_aligned_alloc(size_t align, size_t bytes) {
    void *p = __real_aligned_alloc(align, bytes);
    pthread_mutex_lock(&scratch_lock);
    if (p && change_block(NULL, p)) scratch_bytes += malloc_usable_size(p);
    scratch_peak = scratch_bytes > scratch_peak ? scratch_bytes : scratch_peak;
    pthread_mutex_unlock(&scratch_lock);
    return p;
}

void __wrap_free(void *p) {
    pthread_mutex_lock(&scratch_lock);
    if (p && change_block(p, NULL)) scratch_bytes -= malloc_usable_size(p);
    pthread_mutex_unlock(&scratch_lock);
    __real_free(p);
}

/* gpt-oss in bf16 has the experts of a layer in one tensor, as columns: transposed one by one, never a layer of them. */
TEST(a_stack_is_transposed_a_matrix_at_a_time) {
    AT_END(end_pool) td_pool             *pool = open_pool();
    td_model_config                       c;
    AT_END(end_checkpoint) td_checkpoint *ck;
    td_experts                           *x;
    td_error                              err = {0};
    open_case(repo_path("tests/data/golden/gpt_oss"), NULL, &c, &ck);
    td_experts_config ec = WITH(td_experts_config, .n_layers = 1, .n_experts = c.n_experts, .hidden = c.hidden,
                                .inter = c.moe_inter, .top_k = c.top_k, .format = TD_EXPERT_BF16, .glu = c.expert_glu,
                                .bias = c.expert_bias, .act_dtype = TD_DT_F32, .max_tok = 1);
    OK(td_experts_create(&ec, pool, &x, NULL));
    size_t before = scratch_peak = scratch_bytes, matrix = (size_t)c.hidden * c.moe_inter * 2;
    if (td_checkpoint_pack_experts(ck, &c, 0, x, &ec, 0, false, &err) != TD_OK) fail_msg("%s", err.text);
    size_t taken = scratch_peak - before, layer = matrix * TD_EXPERT_MATRICES * c.n_experts;
    print_message("    %zu bytes at most, where the layer's matrices have %zu\n", taken, layer);
    assert_true(taken >= matrix && taken < layer / 2);
    td_experts_destroy(x);
}

/* Of the linears that are seen: how many the device holds in which format. */
static unsigned seen[TD_WEIGHT_FORMATS];

static void see_weights(void *user, const td_npu_weight *const *weights, size_t n, td_dtype dtype, const void *x, size_t m,
                        size_t k) {
    (void)dtype, (void)x, (void)m, (void)k;
    td_npu *npu = *(td_npu **)user;
    for (size_t i = 0; i < n; i++) {
        td_npu_packed p;
        npu->ops->weight_export(npu, weights[i], &p);
        seen[p.format]++;
    }
}

static void check_logits(const char *name, const json_t *prompt, const char *which, const td_expert_numbers *numbers,
                         bool w8a8, double tolerance) {
    char     path[160];
    uint32_t ids[64], n = read_ids(json_object_get(prompt, "ids"), ids, 64);
    snprintf(path, sizeof path, DATA "%s", name);
    AT_END(model_run_close) model_run r;
    model_run_open(
        &r, &WITH(model_run_options, .path = path, .w8a8 = w8a8, .experts = numbers->format, .groups = numbers->groups,
                  .rows_tap = see_weights, .tap_user = &r.npu, .n_seq = 1, .max_len = 128));
    memset(seen, 0, sizeof seen);
    size_t vocab = td_model_get_config(r.model)->vocab;
    snprintf(path, sizeof path, DATA "%s/p0_%s.f32", name, which);
    FREED float *want = read_array(path, n * vocab, 4), *got = malloc(n * vocab * sizeof *got);
    model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
    model_run_logits(&r, n, got);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n * vocab; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    print_message("    %s, %s: largest difference %.2e of %.2f\n", name, which, worst, largest);
    assert_true(worst <= tolerance * largest);
}

TEST(logits_are_those_of_the_decoded_weights) {
    for (size_t i = 0; i < N_CASES; i++) {
        char path[128];
        snprintf(path, sizeof path, DATA "%s", CASES[i]);
        td_model_config   config;
        td_checkpoint    *c;
        td_expert_numbers numbers;
        td_stored_experts stored;
        json_t *manifest = manifest_of(CASES[i]), *prompt = json_array_get(json_object_get(manifest, "prompts"), 0);
        open_case(repo_path(path), NULL, &config, &c);
        OK(td_checkpoint_expert_numbers(c, &config, &numbers, &stored, NULL));
        bool exact = stored == TD_EXPERTS_EXACT;
        td_checkpoint_close(c);
        check_logits(CASES[i], prompt, "logits_bf16_experts", td_expert_numbers_find("none"), false, LOGIT_TOLERANCE);
        if (exact) check_logits(CASES[i], prompt, "logits_exact_experts", &numbers, false, INT8_TOLERANCE);
        json_decref(manifest);
    }
}

/* With W8A8 the device holds linears of int4 and fp4 in groups as the checkpoint does, and others in int8. */
TEST(the_device_keeps_codes_in_groups) {
    static const struct {
        const char      *name;
        td_weight_format format;
    } WANT[] = {
        {"gptq_int4", TD_WEIGHT_INT4G},         {"gptq_int4_row", TD_WEIGHT_INT4G}, {"awq", TD_WEIGHT_INT4G},
        {"packed_int4_zeros", TD_WEIGHT_INT4G}, {"mxfp4", TD_WEIGHT_FP4G},          {"nvfp4", TD_WEIGHT_FP4G},
        {"gptq_act_order", TD_WEIGHT_W8A8},     {"gptq_int8", TD_WEIGHT_W8A8},      {"w8a8_compressed", TD_WEIGHT_W8A8}};
    for (size_t i = 0; i < sizeof WANT / sizeof *WANT; i++) {
        json_auto_t *manifest = manifest_of(WANT[i].name);
        check_logits(WANT[i].name, json_array_get(json_object_get(manifest, "prompts"), 0), "logits_bf16_experts",
                     td_expert_numbers_find("none"), true, W8A8_TOLERANCE);
        print_message("      linears: W8A8 %u, int4 in groups %u, fp4 in groups %u\n", seen[TD_WEIGHT_W8A8],
                      seen[TD_WEIGHT_INT4G], seen[TD_WEIGHT_FP4G]);
        assert_true(seen[WANT[i].format] > 0);
        assert_true(WANT[i].format != TD_WEIGHT_W8A8 || seen[TD_WEIGHT_INT4G] + seen[TD_WEIGHT_FP4G] == 0);
    }
}

/* ---- broken folders -------------------------------------------------------------------------- */

static char TMP[] = "/tmp/td_stored_XXXXXX";

static const char *in_tmp(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", TMP, name);
    return path;
}

static void copy_case(const char *name) {
    char from[160];
    snprintf(from, sizeof from, DATA "%s", name);
    empty_folder(TMP);
    copy_files(repo_path(from), TMP,
               (const char *const[]){"config.json", "model.safetensors", "quant_model_description.json"}, 3);
}

typedef struct {
    char  *data;
    size_t size, header; /* the payload begins at header */
} file;

static file read_model(void) {
    file f;
    f.data = read_file(in_tmp("model.safetensors"), &f.size);
    f.header = 8 + (size_t) * (uint64_t *)(void *)f.data;
    return f;
}

static void write_model(file f) {
    write_file(in_tmp("model.safetensors"), f.data, f.size);
    free(f.data);
}

/* Texts of one length in a file; all of them, or the first after a text. */
static void replace(const char *name, const char *after, const char *from, const char *to) {
    size_t size;
    char  *data = read_file(in_tmp(name), &size), *at = memmem(data, size, after, strlen(after));
    assert_int_equal(strlen(from), strlen(to));
    assert_non_null(at);
    at = memmem(at, size - (size_t)(at - data), from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    write_file(in_tmp(name), data, size);
    free(data);
}

static char *payload_of(file f, const char *tensor) {
    json_t *header = json_loadb(f.data + 8, f.header - 8, 0, NULL), *t = json_object_get(header, tensor);
    if (!t) fail_msg("no tensor %s", tensor);
    char *at = f.data + f.header + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
    json_decref(header);
    return at;
}

/* Bytes into the payload of a tensor. */
static void patch(const char *tensor, size_t at, const void *bytes, size_t n) {
    file f = read_model();
    memcpy(payload_of(f, tensor) + at, bytes, n);
    write_model(f);
}

static void flip_bit(const char *tensor, size_t bit) {
    file f = read_model();
    payload_of(f, tensor)[bit / 8] ^= (char)(1 << bit % 8);
    write_model(f);
}

/* Opening, checking and reading everything; the first error. */
static td_status read_everything(td_error *err) {
    td_model_config                       config;
    AT_END(end_checkpoint) td_checkpoint *c = NULL;
    td_status                             s = td_model_config_read(TMP, NULL, &config, err);
    if (s == TD_OK) s = td_checkpoint_open(TMP, &c, err);
    if (s != TD_OK) return s;
    s = td_checkpoint_check_all(c, &config, true, err);
    for (td_role role = 0; s == TD_OK && role < TD_ROLE_COUNT; role++) {
        uint32_t n_layers, n_experts;
        td_role_extent(&config, role, &n_layers, &n_experts);
        for (uint32_t l = 0; s == TD_OK && l < n_layers; l++)
            for (uint32_t e = 0; s == TD_OK && e < n_experts; e++) {
                td_scratch     scratch = {0};
                td_tensor_view v;
                s = td_checkpoint_get(c, &config, role, l, e, TD_FORM_FLOAT_OR_INT8, &scratch, &v, err);
                td_scratch_reset(&scratch);
            }
    }
    return s;
}

static void expect_(int line, td_status want, const char *says, const char *also) {
    td_error  err = {0};
    td_status s = read_everything(&err);
    if (s != want || !strstr(err.text, says) || !strstr(err.text, also)) fail_msg("line %d: %d '%s'", line, s, err.text);
}
#define EXPECT(want, says, also) expect_(__LINE__, want, says, also)

#define GATE "model.layers.1.mlp.experts.2.gate_proj"
static const float    BAD_F32[] = {0, NAN, INFINITY, -1};
static const uint16_t BAD_BF16[] = {0, 0x7fc0, 0x7f80, 0xff80, 0x7f7f},
                      BAD_F16[] = {0, 0x7e00, 0x7c00, 0xfc00}; /* of integer codes: -1 is a scale; 0x7f7f: 3.4e38 */

TEST(impossible_values_name_file_and_tensor) {
#define VALUES(a) (a), sizeof *(a), sizeof(a) / sizeof *(a)
#define NO_SCALE " has a scale that is not a positive number"
    const struct {
        const char *name, *tensor;
        size_t      at; /* of the byte where one of these is put */
        const void *values;
        size_t      bytes, n;
        td_status   status;
        const char *says, *also; /* says: after file and tensor */
    } BAD[] = {
        {"fp8_block", GATE ".weight_scale_inv", 4, VALUES(BAD_F32), TD_EFORMAT, NO_SCALE, "row 0, group 1"},
        {"w8a8_modelslim", GATE ".weight_scale", 40, VALUES(BAD_F32), TD_EFORMAT, NO_SCALE, "row 10, group 0"},
        {"gptq_int4", GATE ".scales", 2, VALUES(BAD_F16), TD_EFORMAT, NO_SCALE, "row 1, group 0"},
        {"packed_int4", GATE ".weight_scale", 2, VALUES(BAD_BF16), TD_EFORMAT, NO_SCALE, "row 0, group 1"},
        {"nvfp4", GATE ".weight_global_scale", 0, VALUES(BAD_F32), TD_EFORMAT, " is ", "no scale"},
        {"mxfp4", GATE ".weight_scale", 1, VALUES(((const uint8_t[]){255, 250})), TD_EFORMAT, NO_SCALE, "row 0, group 1"},
        {"nvfp4", GATE ".weight_scale", 1, VALUES(((const uint8_t[]){0x7f})), TD_EFORMAT, NO_SCALE, "row 0, group 1"},
        {"gptq_act_order", GATE ".g_idx", 8, VALUES(((const int32_t[]){4})), TD_EFORMAT, " puts column 2 into group 4",
         "there are 4"},
        {"gptq_act_order", GATE ".g_idx", 8, VALUES(((const int32_t[]){-1})), TD_EFORMAT, " puts column 2 into group -1",
         ""},
        {"gptq_int4_sym", GATE ".qzeros", 0, VALUES(((const uint8_t[]){0x76})), TD_EFORMAT, " has a zero that is not 8",
         "row 0, group 0"},
        {"packed_int4", GATE ".weight_shape", 0, VALUES(((const int64_t[]){95})), TD_EFORMAT, " says [95, 128]",
         "expected [96, 128]"},
        {"w8a8_modelslim", GATE ".weight_offset", 4, VALUES(((const float[]){1})), TD_ENOTSUP, " is not zero", ""},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        for (size_t v = 0; v < BAD[i].n; v++) {
            char     says[160];
            td_error err = {0};
            copy_case(BAD[i].name);
            patch(BAD[i].tensor, BAD[i].at, (const char *)BAD[i].values + v * BAD[i].bytes, BAD[i].bytes);
            snprintf(says, sizeof says, "model.safetensors: tensor %s%s", BAD[i].tensor, BAD[i].says);
            td_status s = read_everything(&err);
            if (s != BAD[i].status || !strstr(err.text, says) || !strstr(err.text, BAD[i].also))
                fail_msg("%s, value %zu: %d '%s'", BAD[i].name, v, s, err.text);
        }
    copy_case("nvfp4");
    patch(GATE ".weight_scale", 1, &(uint8_t){0}, 1); /* a group of zeros */
    EXPECT(TD_OK, "", "");
}

/* Tensors that change what a folder computes, unless they are zero. */
TEST(what_is_not_read_must_be_zero) {
    static const struct {
        const char *name, *tensor, *dtype;
        size_t      rows, columns, bytes;
        const char *says;
    } CASE[] = {
        {"w8a8_compressed", GATE ".weight_zero_point", "I8", 96, 1, 96, "is not zero: asymmetric int8 weights"},
        {"w8a8_modelslim", "model.layers.1.input_layernorm.bias", "BF16", 128, 0, 256, "is not zero: a norm's bias"},
        {"w8a8_modelslim", "model.layers.0.post_attention_layernorm.bias", "F32", 128, 0, 512, "is not zero: a norm's bias"},
        {"w8a8_modelslim", "model.norm.bias", "F16", 128, 0, 256, "is not zero: a norm's bias"},
        {"gptq_int4", GATE ".bias", "F16", 96, 0, 192, "is not zero, and the architecture has no bias there"},
        {"packed_int4", "model.layers.0.self_attn.o_proj.bias", "F32", 128, 0, 512,
         "is not zero, and the architecture has no bias there"},
    };
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        char values[512] = {0};
        for (int zero = 1; zero >= 0; zero--) {
            copy_case(CASE[i].name);
            values[3] = zero ? 0 : 1;
            add_tensor(TMP, CASE[i].tensor, CASE[i].dtype, CASE[i].rows, CASE[i].columns, values, CASE[i].bytes);
            if (zero)
                EXPECT(TD_OK, "", "");
            else
                EXPECT(TD_ENOTSUP, CASE[i].tensor, CASE[i].says);
        }
    }
}

/* Zeros that a symmetric folder has nevertheless, not packed. */
TEST(zeros_of_symmetric_words_are_zero) {
    char values[96 * 4] = {0};
    for (int zero = 1; zero >= 0; zero--) {
        copy_case("packed_int4");
        values[5] = zero ? 0 : 1;
        add_tensor(TMP, GATE ".weight_zero_point", "I8", 96, 4, values, sizeof values);
        if (zero)
            EXPECT(TD_OK, "", "");
        else
            EXPECT(TD_EFORMAT, "tensor " GATE ".weight_zero_point is I8", "expected I32");
    }
}

static td_status load(const char *override_json, td_error *err) {
    AT_END(end_pool) td_pool *pool = open_pool();
    td_npu                   *npu;
    td_model                 *m;
    td_npu_config             nc = {.act_dtype = TD_DT_F32, .host = &(td_host_npu_config){.pool = pool}};
    OK(td_npu_open("host", &nc, &npu, NULL));
    td_model_spec spec = td_model_spec_of(TMP, 1);
    spec.override_json = override_json;
    td_status s = td_model_open(&spec, NULL, &npu, pool, &m, err);
    if (s == TD_OK) {
        s = td_model_load(m, 1, err);
        td_model_close(m);
    }
    npu->ops->close(npu);
    return s;
}

TEST(a_weight_that_is_not_finite_is_named) {
    static const char *const TENSOR[] = {"model.norm.weight", "model.embed_tokens.weight", "model.layers.1.mlp.gate.weight"};
    for (size_t i = 0; i < sizeof TENSOR / sizeof *TENSOR; i++) {
        td_error err = {0};
        copy_case("gptq_int4");
        patch(TENSOR[i], 8, "\xc0\x7f\xc0\x7f", 4); /* NaN in bf16 and in f32 */
        if (load(NULL, &err) != TD_EFORMAT || !strstr(err.text, TENSOR[i]) || !strstr(err.text, "an infinity or a NaN"))
            fail_msg("%s: '%s'", TENSOR[i], err.text);
    }
}

/* The values of an expert's matrix in TMP. */
static float *read_gate(const char *override_json, size_t *n, size_t *k) {
    td_model_config                       config;
    AT_END(end_checkpoint) td_checkpoint *c;
    td_scratch                            scratch = {0};
    td_tensor_view                        v;
    td_error                              err = {0};
    open_case(TMP, override_json, &config, &c);
    if (td_checkpoint_get(c, &config, TD_ROLE_EXPERT_GATE, 1, 2, TD_FORM_FLOAT, &scratch, &v, &err) != TD_OK)
        fail_msg("%s", err.text);
    *n = v.shape[0], *k = v.shape[1];
    float *values = malloc(*n * *k * sizeof *values);
    assert_non_null(values);
    memcpy(values, v.data, *n * *k * sizeof *values);
    td_scratch_reset(&scratch);
    return values;
}

TEST(the_group_that_fits_an_fp8_scale_is_taken) {
#define BLOCKS \
    "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", \"block_structure\": [64, 64]}}"
#define CHANNELS \
    "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"channel\", \"block_structure\": null}}"
    static const char *const CONFIGS[] = {
        "{\"quantization_config\": {\"config_groups\": {\"group_0\": " BLOCKS ", \"group_1\": " CHANNELS "}}}",
        "{\"quantization_config\": {\"config_groups\": {\"group_1\": " BLOCKS "}}}"}; /* group_0 is of channels */
    size_t n, k;
    for (size_t i = 0; i < sizeof CONFIGS / sizeof *CONFIGS; i++) {
        float *values[2];
        for (int twice = 0; twice < 2; twice++) {
            const float scale[] = {1, 1, 1 + (float)twice, 1}; /* of the rows from 64 and the columns before 64 */
            copy_case("fp8_channel");
            hide_tensor(TMP, GATE ".weight_scale");
            add_tensor(TMP, GATE ".weight_scale", "F32", 2, 2, scale, sizeof scale);
            values[twice] = read_gate(CONFIGS[i], &n, &k);
        }
        for (size_t j = 0; j < n * k; j++) assert_true(values[1][j] == values[0][j] * (j / k >= 64 && j % k < 64 ? 2 : 1));
        free(values[0]);
        free(values[1]);
    }
}

#define HEAD "model.layers.1.shared_head.head"

/* The second layer as MTP layer, whose head is that of the model: both in codes, or one in floats. Another head is not taken
 * for the model's. */
TEST(an_mtp_layers_head_in_codes_is_compared) {
    enum { ROWS = 64, COLUMNS = 128, WORDS = ROWS * COLUMNS / 8, GROUPS = ROWS * COLUMNS / 32 };
    static uint16_t scale[GROUPS], eh_proj[COLUMNS * 2 * COLUMNS], as_floats[ROWS * COLUMNS];
    static uint32_t words[WORDS];
    for (size_t i = 0; i < WORDS; i++) words[i] = (uint32_t)td_rng_u64(3, 0, i);
    for (size_t i = 0; i < GROUPS; i++)
        scale[i] = (uint16_t)(0x3c00 + 16 * (i % 8)); /* of 3 bits, so that a code times it is a bf16 */
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        as_floats[i] = td_f32_to_bf16((float)((int)(words[i / 8] >> i % 8 * 4 & 15) - 8) * td_bf16_to_f32(scale[i / 32]));
    enum { BOTH_IN_CODES, MAIN_IN_FLOATS, ANOTHER_SCALE, ANOTHER_CODE, WITHOUT_SCALE, N_CASES_HERE };
    for (int i = 0; i < N_CASES_HERE; i++) {
        td_error err = {0};
        copy_case("packed_int4");
        add_tensor(TMP, "model.layers.1.enorm.weight", "BF16", COLUMNS, 0, eh_proj, COLUMNS * 2);
        add_tensor(TMP, "model.layers.1.hnorm.weight", "BF16", COLUMNS, 0, eh_proj, COLUMNS * 2);
        add_tensor(TMP, "model.layers.1.eh_proj.weight", "BF16", COLUMNS, 2 * COLUMNS, eh_proj, sizeof eh_proj);
        add_tensor(TMP, HEAD ".weight_packed", "I32", ROWS, COLUMNS / 8, words, sizeof words);
        if (i != WITHOUT_SCALE) add_tensor(TMP, HEAD ".weight_scale", "BF16", ROWS, COLUMNS / 32, scale, sizeof scale);
        hide_tensor(TMP, "lm_head.weight");
        if (i == MAIN_IN_FLOATS) {
            add_tensor(TMP, "lm_head.weight", "BF16", ROWS, COLUMNS, as_floats, sizeof as_floats);
        } else {
            add_tensor(TMP, "lm_head.weight_packed", "I32", ROWS, COLUMNS / 8, words, sizeof words);
            add_tensor(TMP, "lm_head.weight_scale", "BF16", ROWS, COLUMNS / 32, scale, sizeof scale);
        }
        if (i == ANOTHER_SCALE) patch(HEAD ".weight_scale", sizeof scale - 2, &(uint16_t){0x3c02}, 2);
        if (i == ANOTHER_CODE) flip_bit(HEAD ".weight_packed", 8 * sizeof words - 1);
        td_status s = load("{\"num_hidden_layers\": 1, \"num_nextn_predict_layers\": 1}", &err);
        if (i <= MAIN_IN_FLOATS && s != TD_OK) fail_msg("case %d: '%s'", i, err.text);
        if (i == ANOTHER_SCALE || i == ANOTHER_CODE) {
            if (s != TD_ENOTSUP || !strstr(err.text, HEAD ".weight differs from lm_head.weight"))
                fail_msg("case %d: %d '%s'", i, s, err.text);
        }
        if (i == WITHOUT_SCALE) assert_int_equal(s, TD_ENOTFOUND);
    }
}

/* Whoever rounds to 16 unsigned codes may give the 17th value to either end: a scale below zero turns its group. */
TEST(scales_of_integer_codes_have_a_sign) {
    static const struct {
        const char *name, *tensor;
    } CASE[] = {{"packed_int4", GATE ".weight_scale"}, {"gptq_int4", GATE ".scales"}, {"awq", GATE ".scales"}};
    for (size_t i = 0; i < 3; i++) {
        float *weights[2];
        size_t n = 0, turned = 0;
        copy_case(CASE[i].name);
        for (int negative = 0; negative < 2; negative++) {
            td_model_config                       config;
            AT_END(end_checkpoint) td_checkpoint *c;
            td_scratch                            scratch = {0};
            td_tensor_view                        v;
            if (negative) flip_bit(CASE[i].tensor, 15 + 2 * 8); /* the sign of the second scale */
            open_case(TMP, NULL, &config, &c);
            OK(td_checkpoint_get(c, &config, TD_ROLE_EXPERT_GATE, 1, 2, TD_FORM_FLOAT, &scratch, &v, NULL));
            assert_int_equal(v.dtype, TD_DT_F32);
            n = v.shape[0] * v.shape[1];
            weights[negative] = malloc(n * sizeof(float));
            assert_non_null(weights[negative]);
            memcpy(weights[negative], v.data, n * sizeof(float));
            td_scratch_reset(&scratch);
        }
        for (size_t j = 0; j < n; j++) {
            assert_true(fabsf(weights[0][j]) == fabsf(weights[1][j]));
            turned += weights[0][j] != weights[1][j];
        }
        assert_in_range(turned, 16, 128); /* one group, but for its zeros */
        free(weights[0]);
        free(weights[1]);
    }
}

/* Experts are read by the store, row by row, whether their codes are carried or decoded: who refuses names the tensor too.
 */
TEST(the_store_names_the_tensor_that_it_refuses) {
    static const struct {
        const char *name, *tensor, *format;
    } STORED[] = {{"packed_int4", GATE ".weight_scale", "int4-g32"},
                  {"packed_int4", GATE ".weight_scale", "int4"},
                  {"mxfp4", GATE ".weight_scale", "nvfp4"},
                  {"gptq_int8", GATE ".scales", "int8"},
                  {"awq", GATE ".scales", "none"}};
    AT_END(end_pool) td_pool *pool = open_pool();
    for (size_t i = 0; i < sizeof STORED / sizeof *STORED; i++) {
        td_model_config                       config;
        AT_END(end_checkpoint) td_checkpoint *c;
        td_experts                           *x;
        td_error                              err = {0};
        const td_expert_numbers              *n = td_expert_numbers_find(STORED[i].format);
        copy_case(STORED[i].name);
        patch(STORED[i].tensor, 6, "\xff\xff", 2); /* a NaN in every type */
        open_case(TMP, NULL, &config, &c);
        td_experts_config ec = WITH(td_experts_config, .n_layers = 1, .n_experts = config.n_experts, .hidden = config.hidden,
                                    .inter = config.moe_inter, .top_k = config.top_k, .format = n->format,
                                    .groups = n->groups, .act_dtype = TD_DT_F32, .max_tok = 1);
        OK(td_experts_create(&ec, pool, &x, NULL));
        assert_int_equal(td_checkpoint_pack_experts(c, &config, 1, x, &ec, 0, NULL, &err), TD_EFORMAT);
        if (!strstr(err.text, STORED[i].tensor) || !strstr(err.text, "not a positive number"))
            fail_msg("%s: '%s'", STORED[i].name, err.text);
        td_experts_destroy(x);
    }
}

TEST(missing_tensors_and_wrong_types_are_refused) {
    static const struct {
        const char *name, *tensor, *renamed, *says;
    } MISSING[] = {
        {"fp8_block", "2.gate_proj.weight_scale_inv", "2.gate_proj.weight_scale_xxx",
         "tensor " GATE ".weight_scale_inv is missing"},
        {"w8a8_compressed", "2.gate_proj.weight_scale", "2.gate_proj.weight_xxxxx",
         "tensor " GATE ".weight_scale is missing"},
        {"gptq_int4", "2.gate_proj.scales", "2.gate_proj.xxxxxx", "tensor " GATE ".scales is missing"},
        {"gptq_int4", "2.gate_proj.qzeros", "2.gate_proj.xxxxxx", "tensor " GATE ".qzeros is missing"},
        {"gptq_act_order", "2.gate_proj.g_idx", "2.gate_proj.x_idx", "tensor " GATE ".g_idx is missing"},
        {"awq", "2.gate_proj.qweight", "2.gate_proj.xxxxxxx", "tensor " GATE ".weight of shape [96, 128] is missing"},
        {"packed_int4_zeros", "2.gate_proj.weight_zero_point", "2.gate_proj.weight_xxxx_xxxxx",
         "tensor " GATE ".weight_zero_point is missing"},
        {"nvfp4", "2.gate_proj.weight_global_scale", "2.gate_proj.weight_xxxxxx_scale",
         "tensor " GATE ".weight_global_scale is missing"},
    };
    for (size_t i = 0; i < sizeof MISSING / sizeof *MISSING; i++) {
        copy_case(MISSING[i].name);
        replace("model.safetensors", "experts.", MISSING[i].tensor, MISSING[i].renamed);
        EXPECT(TD_ENOTFOUND, MISSING[i].says, TMP);
    }
    copy_case("gptq_int4");
    replace("model.safetensors", "\"" GATE ".scales\"", "\"F16\"", "\"I16\"");
    EXPECT(TD_EFORMAT, "tensor " GATE ".scales is I16", "a scale is F32, BF16 or F16");
    copy_case("packed_int4");
    replace("model.safetensors", "\"" GATE ".weight_packed\"", "\"I32\"", "\"F32\"");
    EXPECT(TD_EFORMAT, "tensor " GATE ".weight_packed is F32", "expected I32");
    copy_case("w8a8_compressed");
    replace("model.safetensors", "\"" GATE ".weight\"", "\"I8\"", "\"U8\"");
    EXPECT(TD_ENOTSUP, "tensor " GATE ".weight is U8", "only BF16, F16 and F32");
}

TEST(configurations_that_disagree_with_tensors_are_refused) {
    static const struct {
        const char *name, *after, *from, *to, *says;
    } CONFIGS[] = {
        {"gptq_int4", "\"quant_method\"", "\"group_size\": 64", "\"group_size\": 32", "scales has the shape [2, "},
        {"gptq_int4", "\"quant_method\"", "\"bits\": 4", "\"bits\": 8", "qweight has the shape [16, "},
        {"awq", "\"quant_method\"", "\"group_size\": 32", "\"group_size\": 64", "scales has the shape [4, "},
        {"awq", "\"quant_method\"", "\"awq\"", "\"fp8\"", "weight_block_size"},
        {"packed_int4", "\"config_groups\"", "\"group_size\": 32", "\"group_size\": 64", "weight_scale has the shape ["},
        {"packed_int4", "\"config_groups\"", "\"num_bits\": 4", "\"num_bits\": 8", "weight_packed has the shape ["},
        {"packed_int4", "\"config_groups\"", "\"strategy\": \"group\"", "\"actorder\": \"group\"",
         "weight_g_idx is missing"},
        {"packed_int4_zeros", "\"config_groups\"", "\"symmetric\": false", "\"symmetric\": true ",
         "weight_zero_point has a zero that is not 8"},
        {"fp8_block", "\"weight_block_size\"", "128", "064", "not valid JSON"},
        {"fp8_block", "\"weight_block_size\"", "128", " 64", "weight_scale_inv has the shape ["},
        {"nvfp4", "\"config_groups\"", "\"type\": \"float\"", "\"type\": \"int\"  ", "not supported"},
    };
    for (size_t i = 0; i < sizeof CONFIGS / sizeof *CONFIGS; i++) {
        copy_case(CONFIGS[i].name);
        replace("config.json", CONFIGS[i].after, CONFIGS[i].from, CONFIGS[i].to);
        td_error  err = {0};
        td_status s = read_everything(&err);
        if (s == TD_OK || !strstr(err.text, CONFIGS[i].says) || !strstr(err.text, TMP))
            fail_msg("%s: %d '%s'", CONFIGS[i].name, s, err.text);
    }
    copy_case("fp8_block"); /* nothing says what the codes are */
    replace("config.json", "{", "\"quantization_config\"", "\"quantisation_config\"");
    EXPECT(TD_EFORMAT, "is F8_E4M3, and quantization_config does not describe FP8 weights", TMP);
    static const char zeros[96 * 128 * 2];
    copy_case("gptq_int4"); /* a weight twice */
    add_tensor(TMP, GATE ".weight", "BF16", 96, 128, zeros, sizeof zeros);
    EXPECT(TD_EFORMAT, "tensor " GATE ".qweight is there, and " GATE ".weight is too", TMP);
    copy_case("w8a8_modelslim");
    replace("quant_model_description.json", GATE ".weight\"", "\"W8A8_DYNAMIC\"", "\"W4A8_DYNAMIC\"");
    EXPECT(TD_EFORMAT, "tensor " GATE ".weight is int8, and quant_model_description.json calls it 'W4A8_DYNAMIC'", TMP);
    copy_case("w8a8_modelslim");
    replace("model.safetensors", "experts.", "2.gate_proj.weight_offset\":", "2.gate_proj.deq_scale\"    :");
    EXPECT(TD_ENOTSUP, "tensor " GATE ".deq_scale belongs to static quantisation of activations", "W8A8_DYNAMIC is");
}

/* Any byte changed anywhere: an error with a sentence, or other weights; never a crash (asan looks). */
TEST(damaged_folders_are_refused_or_read) {
    const uint64_t seed = 20;
    size_t         n_refused = 0;
    print_message("    seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < N_CASES; i++)
        for (uint64_t round = 0; round < 40; round++) {
            copy_case(CASES[i]);
            file f = read_model();
            for (uint64_t k = 0; k < 4; k++) { /* half of them in the header, mostly a digit for a digit */
                uint64_t r = td_rng_u64(seed, i, round * 4 + k);
                size_t   at = k % 2 ? f.header + r % (f.size - f.header) : 8 + r % (f.header - 8);
                bool     digit = f.data[at] >= '0' && f.data[at] <= '9';
                f.data[at] = digit && k % 2 == 0 ? (char)('0' + (r >> 40) % 10) : k % 2 ? (char)(r >> 48) : f.data[at];
            }
            write_model(f);
            td_error  err = {0};
            td_status s = read_everything(&err);
            n_refused += s != TD_OK;
            assert_true(s == TD_OK || (err.text[0] && err.status == s));
        }
    assert_true(n_refused > N_CASES);
}

/* ---- Kimi-K2.5 ------------------------------------------------------------------------------- */

/* The folder in TMP with every tensor's name behind a prefix. */
static void put_behind_prefix(const char *prefix) {
    file        f = read_model();
    json_t     *header = json_loadb(f.data + 8, f.header - 8, 0, NULL), *renamed = json_object(), *t;
    const char *name;
    assert_non_null(header);
    json_object_foreach(header, name, t) {
        char text[256];
        snprintf(text, sizeof text, "%s%s", strcmp(name, "__metadata__") ? prefix : "", name);
        assert_int_equal(json_object_set(renamed, text, t), 0);
    }
    FREED char *dump = json_dumps(renamed, JSON_COMPACT);
    size_t      n = strlen(dump), padded = (n + 7) / 8 * 8;
    file        out = {.size = 8 + padded + f.size - f.header, .header = 8 + padded};
    uint64_t    length = padded;
    out.data = malloc(out.size);
    assert_non_null(out.data);
    memset(out.data, ' ', out.header);
    memcpy(out.data, &length, sizeof length);
    memcpy(out.data + 8, dump, n);
    memcpy(out.data + out.header, f.data + f.header, f.size - f.header);
    write_model(out);
    free(f.data);
    json_decref(header);
    json_decref(renamed);
}

/* config.json as the text_config of a Kimi-K2.5. */
static void wrap_config(const char *architecture) {
    json_t *text = json_load_file(in_tmp("config.json"), 0, NULL);
    assert_int_equal(json_object_set_new(text, "model_type", json_string("kimi_k2")), 0);
    json_auto_t *config =
        json_pack("{s:[s],s:s,s:o}", "architectures", architecture, "model_type", "kimi_k25", "text_config", text);
    assert_int_equal(json_dump_file(config, in_tmp("config.json"), 0), 0);
}

static float *logits_of_folder(const char *path, const td_expert_numbers *numbers, size_t *n) {
    uint32_t                          ids[32];
    AT_END(model_run_close) model_run r;
    model_run_open(&r, &WITH(model_run_options, .path = path, .w8a8 = true, .experts = numbers->format,
                             .groups = numbers->groups, .experts_as_stored = true, .n_seq = 1, .max_len = 64));
    uint32_t vocab = td_model_get_config(r.model)->vocab;
    *n = 32 * (size_t)vocab;
    float *logits = malloc(*n * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < 32; i++) ids[i] = 2 + i * 37 % (vocab - 2);
    model_run_forward(&r, &(model_piece){.n = 32, .ids = ids}, 1);
    model_run_logits(&r, 32, logits);
    return logits;
}

/* As published: INT4 in groups of 32 in the experts alone, described in text_config, and a vision encoder beside it. The
 * logits are those of the same DeepSeek-V3, bit by bit, with the codes as stored. */
TEST(kimi_k25_is_a_deepseek_v3_behind_a_prefix) {
    static const char *const NAMES[] = {"KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"};
    static const char        zeros[64];
    td_expert_numbers        numbers = *td_expert_numbers_find("int4-g32");
    size_t                   n, n_got;
    FREED float             *want = logits_of_folder("tests/data/quantised/packed_int4", &numbers, &n);
    for (size_t i = 0; i < 2; i++) {
        copy_case("packed_int4");
        put_behind_prefix("language_model.");
        wrap_config(NAMES[i]);
        add_tensor(TMP, "vision_tower.patch_embed.proj.weight", "BF16", 4, 8, zeros, sizeof zeros);
        FREED float *got = logits_of_folder(TMP, &numbers, &n_got);
        assert_int_equal(n, n_got);
        assert_memory_equal(got, want, n * sizeof *got);
    }
    hide_tensor(TMP, "language_model." GATE ".weight_scale");
    EXPECT(TD_ENOTFOUND, "language_model." GATE, TMP);
}

IN_FOLDER(TMP)
