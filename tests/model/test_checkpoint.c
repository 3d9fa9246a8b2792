/* Good folders (the golden models), folders that are broken in every way we know, weights by role, and dummy weights.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder_files.h"
#include "model/arch/arch.h"
#include "model/arch/config_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/stored_weight.h"
#include "tests/td_test.h"

AT_END_OF(end_checkpoint, td_checkpoint, td_checkpoint_close)

static char TMP[] = "/tmp/td_checkpoint_XXXXXX";

static const char *in_tmp(const char *name) {
    static char path[4][512];
    static int  next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", TMP, name);
    return path[next];
}

static void copy_golden(const char *model) {
    char from[600];
    empty_folder(TMP);
    snprintf(from, sizeof from, TD_SOURCE_DIR "/tests/data/golden/%s", model);
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, "model") && !strstr(e->d_name, "config")) continue;
        snprintf(from, sizeof from, TD_SOURCE_DIR "/tests/data/golden/%s/%.200s", model, e->d_name);
        size_t      size;
        FREED char *p = read_file(from, &size);
        write_file(in_tmp(e->d_name), p, size);
    }
    closedir(d);
}

static td_status open_and_check(const char *dir, const char *override_json, td_error *err) {
    td_model_config                       config;
    AT_END(end_checkpoint) td_checkpoint *c = NULL;
    td_status                             s = td_model_config_read(dir, override_json, &config, err);
    if (s == TD_OK) s = td_checkpoint_open(dir, &c, err);
    if (s != TD_OK) return s;
    return td_checkpoint_check_all(c, &config, true, err);
}

/* Replace the first occurrence of a text in a file by another of any length that fits the header's padding: same length
 * here. */
static void patch(const char *path, const char *from, const char *to) {
    assert_int_equal(strlen(from), strlen(to));
    size_t size;
    char  *p = read_file(path, &size), *at = memmem(p, size, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    write_file(path, p, size);
    free(p);
}

static const char *const GOLDEN[] = {
    "deepseek_v2_lite", "deepseek_v2_group", "deepseek_v3_yarn", "deepseek_v3_noqlora", "qwen3_moe",    "qwen3_moe_tied",
    "qwen2_moe",        "glm4_moe",          "glm4_moe_yarn",    "glm4_moe_lite",       "minimax_m2",   "kimi_k25",
    "gpt_oss",          "qwen3_next",        "qwen3_5_moe",      "deepseek_v4",         "deepseek_v32", "glm_moe_dsa",
    "kimi_linear",      "glm5_next",         "qwen3_vl_moe"};

TEST(golden_models_are_complete) {
    td_error err = {0};
    for (size_t i = 0; i < sizeof GOLDEN / sizeof *GOLDEN; i++) {
        char dir[512];
        snprintf(dir, sizeof dir, TD_SOURCE_DIR "/tests/data/golden/%s", GOLDEN[i]);
        if (open_and_check(dir, NULL, &err) != TD_OK) fail_msg("%s", err.text);
    }
    if (open_and_check(TD_SOURCE_DIR "/models/tale-v3-14m", NULL, &err) != TD_OK) fail_msg("%s", err.text);
}

/* Not a vision encoder's, for instance. */
static bool is_of_language_model(const td_arch *a, const char *name) {
    if (a->prefix) return !strncmp(name, a->prefix, strlen(a->prefix));
    return !a->body || strncmp(name, "model.", 6) || !strncmp(name, a->body, strlen(a->body));
}

/* Every tensor that a checkpoint has is asked for by some role: a rule that is left out would show here. */
TEST(no_tensor_is_left_over) {
    for (size_t i = 0; i <= sizeof GOLDEN / sizeof *GOLDEN; i++) {
        char                                  dir[512];
        td_model_config                       config;
        AT_END(end_checkpoint) td_checkpoint *c;
        size_t                                n_stored = 0, n_asked = 0;
        if (i < sizeof GOLDEN / sizeof *GOLDEN)
            snprintf(dir, sizeof dir, TD_SOURCE_DIR "/tests/data/golden/%s", GOLDEN[i]);
        else
            snprintf(dir, sizeof dir, TD_SOURCE_DIR "/models/tale-v3-14m");
        OK(td_model_config_read(dir, NULL, &config, NULL));
        OK(td_checkpoint_open(dir, &c, NULL));
        for (size_t f = 0; f < td_checkpoint_files_count(td_checkpoint_get_files(c)); f++) {
            const td_safetensors *file = td_checkpoint_files_at(td_checkpoint_get_files(c), f);
            for (size_t t = 0; t < td_safetensors_count(file); t++)
                n_stored += is_of_language_model(config.arch, td_safetensors_at(file, t)->name);
        }
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            uint32_t n_layers, n_experts;
            td_role_extent(&config, role, &n_layers, &n_experts);
            if (role == TD_ROLE_LM_HEAD && config.tie_embeddings) continue;
            for (uint32_t l = 0; l < n_layers; l++)
                for (uint32_t e = 0; e < n_experts; e++) {
                    td_tensor_spec spec;
                    if (!td_tensor_spec_get(&config, role, l, e, &spec)) continue;
                    if (spec.fallback != TD_ROLE_COUNT && !td_stored_exists(td_checkpoint_get_files(c), &spec)) continue;
                    n_asked += !spec.stack.n_experts || (spec.stack.expert == 0 && spec.stack.first == 0);
                }
        }
        if (n_stored != n_asked) fail_msg("%s stores %zu tensors, the roles ask for %zu", dir, n_stored, n_asked);
    }
}

static void expect_(int line, td_status want, const char *says) {
    td_error  err = {0};
    td_status s = open_and_check(TMP, NULL, &err);
    if (s != want || !strstr(err.text, says)) fail_msg("line %d: %d '%s'", line, s, err.text);
}

TEST(broken_folders_are_refused) {
    td_error err;
#define EXPECT(want, says) expect_(__LINE__, want, says)
    empty_folder(TMP);
    EXPECT(TD_ENOTFOUND, "config.json");
    copy_golden("deepseek_v3_yarn");
    EXPECT(TD_OK, "");
    unlink(in_tmp("model-00002-of-00003.safetensors"));
    EXPECT(TD_ENOTFOUND, "model-00002-of-00003.safetensors is not in the folder");

    copy_golden("deepseek_v3_yarn");
    struct stat st;
    assert_int_equal(stat(in_tmp("model-00003-of-00003.safetensors"), &st), 0);
    assert_int_equal(truncate(in_tmp("model-00003-of-00003.safetensors"), st.st_size - 1), 0);
    EXPECT(TD_EFORMAT, "model-00003-of-00003.safetensors: tensor");
    assert_int_equal(truncate(in_tmp("model-00003-of-00003.safetensors"), 20), 0);
    EXPECT(TD_EFORMAT, "truncated");

    copy_golden("deepseek_v3_yarn"); /* the index names a tensor that its shard lacks */
    size_t size;
    char  *index = read_file(in_tmp("model.safetensors.index.json"), &size), more[200];
    char  *at = strstr(index, "\"weight_map\"");
    at = strchr(at, '{') + 1;
    FILE *f = fopen(in_tmp("model.safetensors.index.json"), "wb");
    fwrite(index, 1, (size_t)(at - index), f);
    snprintf(more, sizeof more, "\"model.extra.weight\": \"model-00001-of-00003.safetensors\",");
    fputs(more, f);
    fwrite(at, 1, size - (size_t)(at - index), f);
    fclose(f);
    free(index);
    EXPECT(TD_EFORMAT, "model.extra.weight");

    static const char *const BAD_NAMES[] = {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".hidden", ""};
    for (size_t i = 0; i < sizeof BAD_NAMES / sizeof *BAD_NAMES; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", BAD_NAMES[i]);
        write_file(in_tmp("model.safetensors.index.json"), text, strlen(text));
        EXPECT(TD_EFORMAT, "weight_map");
    }
    write_file(in_tmp("model.safetensors.index.json"), "{\"weight_map\": [1]}", 19);
    EXPECT(TD_EFORMAT, "weight_map");
    write_file(in_tmp("model.safetensors.index.json"), "{\"weight_map\": ", 15);
    EXPECT(TD_EFORMAT, "not valid JSON");

    copy_golden("qwen3_moe");
    unlink(in_tmp("model.safetensors"));
    EXPECT(TD_ENOTFOUND, "neither model.safetensors nor");

    copy_golden("qwen3_moe"); /* a tensor by another name; a type that is not read; a shape that is another's */
    patch(in_tmp("model.safetensors"), "layers.0.self_attn.k_norm", "layers.0.self_attn.K_norm");
    EXPECT(TD_ENOTFOUND, "model.layers.0.self_attn.k_norm.weight of shape [32] is missing");
    copy_golden("qwen3_moe");
    patch(in_tmp("model.safetensors"), "BF16", "I16\"");
    EXPECT(TD_EFORMAT, "not valid JSON");
    copy_golden("qwen3_moe");
    err = (td_error){0};
    assert_int_equal(open_and_check(TMP, "{\"head_dim\": 16}", &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "has the shape"));
    assert_int_equal(open_and_check(TMP, "{\"num_hidden_layers\": 200}", &err), TD_ENOTFOUND);
    assert_int_equal(open_and_check(TMP, "{\"quantization_config\": {\"quant_method\": \"fp8\"}}", &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "FP8"));

    copy_golden("deepseek_v3_yarn"); /* the same tensor in two shards */
    size_t      n;
    FREED char *shard = read_file(in_tmp("model-00001-of-00003.safetensors"), &n);
    write_file(in_tmp("model-00002-of-00003.safetensors"), shard, n);
    EXPECT(TD_EFORMAT, "and in");
}

/* Where a role occurs for the last time. @return false: the model has no such weight. */
static bool last_of_role(const td_model_config *c, td_role role, td_tensor_spec *spec) {
    uint32_t n_layers, n_experts;
    td_role_extent(c, role, &n_layers, &n_experts);
    for (uint32_t l = n_layers; l-- > 0;)
        if (td_tensor_spec_get(c, role, l, n_experts - 1, spec)) return true;
    return false;
}

/* In every file of TMP that names the tensor, its shard and the index, another name of that length. */
static void rename_tensor(const char *from, const char *to) {
    static const char *const FILES[] = {"model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    char                     quoted_from[200], quoted_to[200];
    snprintf(quoted_from, sizeof quoted_from, "\"%s\"", from);
    snprintf(quoted_to, sizeof quoted_to, "\"%s\"", to);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        size_t size;
        if (access(in_tmp(FILES[i]), F_OK) != 0) continue;
        FREED char *p = read_file(in_tmp(FILES[i]), &size);
        bool        named = memmem(p, size, quoted_from, strlen(quoted_from));
        if (named) patch(in_tmp(FILES[i]), quoted_from, quoted_to);
    }
}

/* Of every family, and of every weight that it has, the last one is missing: of one kind of layer, of one expert. */
TEST(every_missing_weight_is_named) {
    for (size_t i = 0; i < sizeof GOLDEN / sizeof *GOLDEN; i++) {
        td_model_config config;
        size_t          n = 0;
        copy_golden(GOLDEN[i]);
        OK(td_model_config_read(TMP, NULL, &config, NULL));
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            td_tensor_spec spec;
            td_error       err = {0};
            char           other[sizeof spec.name];
            if (!last_of_role(&config, role, &spec) || spec.fallback != TD_ROLE_COUNT) continue;
            const char *stored = spec.within[0] ? spec.within : spec.name;
            snprintf(other, sizeof other, "_%s", stored + 1);
            rename_tensor(stored, other);
            td_status s = open_and_check(TMP, NULL, &err);
            if (s != TD_ENOTFOUND || !strstr(err.text, stored) || !strstr(err.text, "is missing"))
                fail_msg("%s without %s: %d '%s'", GOLDEN[i], stored, s, err.text);
            rename_tensor(other, stored);
            n++;
        }
        EXPECT(TD_OK, "");
        print_message("    %s: %zu weights\n", GOLDEN[i], n);
        assert_true(n > 12);
    }
}

/* Gains that are stored less one, rows of a DeltaNet that move, and experts in one tensor or each in its own. */
TEST(weights_of_qwen3_5) {
    static const char GOLDEN_DIR[] = TD_SOURCE_DIR "/tests/data/golden/qwen3_5_moe";
    td_model_config   c;
    td_checkpoint    *ck;
    td_scratch        scratch = {0};
    td_tensor_view    v, stored;
    OK(td_model_config_read(GOLDEN_DIR, NULL, &c, NULL));
    OK(td_checkpoint_open(GOLDEN_DIR, &ck, NULL));
#define GET(role, expert) OK(td_checkpoint_get(ck, &c, role, 0, expert, TD_FORM_FLOAT, &scratch, &v, NULL))
#define STORED(role) OK(td_checkpoint_get_as_stored(ck, &c, role, 0, TD_FORM_FLOAT, &scratch, &stored, NULL))
    GET(TD_ROLE_INPUT_NORM, 0);
    STORED(TD_ROLE_INPUT_NORM);
    assert_true(v.dtype == TD_DT_F32 && stored.dtype == TD_DT_BF16);
    for (size_t i = 0; i < c.hidden; i++)
        assert_true(((const float *)v.data)[i] == 1 + td_bf16_to_f32(((const td_bf16 *)stored.data)[i]));
    GET(TD_ROLE_DELTA_NORM, 0);
    assert_int_equal(v.dtype, TD_DT_BF16); /* this one is stored as it is */

    GET(TD_ROLE_DELTA_CONV, 0);
    STORED(TD_ROLE_DELTA_CONV);
    size_t first_k = c.delta.k_dim, all_q = (size_t)c.delta.k_heads * c.delta.k_dim, row = c.delta.conv * sizeof(td_bf16);
    assert_true(v.rank == 2 && v.shape[1] == c.delta.conv);
    assert_memory_equal((const char *)v.data + first_k * row, (const char *)stored.data + all_q * row, first_k * row);

    const td_safetensors_entry *e =
        td_checkpoint_files_find(td_checkpoint_get_files(ck), "model.language_model.layers.0.mlp.experts.gate_up_proj");
    GET(TD_ROLE_EXPERT_UP, 3);
    assert_memory_equal(v.data, (const td_bf16 *)e->data + (size_t)(3 * 2 + 1) * c.moe_inter * c.hidden,
                        sizeof(td_bf16) * c.moe_inter * c.hidden);
    td_checkpoint_close(ck);

    /* A rotated model's gain is one, and so zero where it is stored less one. */
    OK(td_checkpoint_open(GOLDEN_DIR, &ck, NULL));
    OK(td_checkpoint_rotate(ck, &c, NULL));
    GET(TD_ROLE_POST_NORM, 0);
    STORED(TD_ROLE_POST_NORM);
    for (size_t i = 0; i < c.hidden; i++)
        assert_true(((const float *)v.data)[i] == 1 && ((const float *)stored.data)[i] == 0);
    td_checkpoint_close(ck);
    td_scratch_reset(&scratch);
#undef GET
#undef STORED
}

/* Turn the matrices of a tensor of all experts, [n, rows, columns], and what the file says of its shape. */
static void turn_experts(const char *name, size_t n, size_t rows, size_t columns) {
    const char    *file = in_tmp("model.safetensors");
    td_checkpoint *ck;
    char           from[160], to[160];
    OK(td_checkpoint_open(TMP, &ck, NULL));
    const td_safetensors_entry *e = td_checkpoint_files_find(td_checkpoint_get_files(ck), name);
    assert_true(e && e->rank == 3 && e->shape[0] == n && e->shape[1] == rows && e->shape[2] == columns);
    td_bf16 *turned = malloc(e->bytes), *at = turned;
    assert_non_null(turned);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < columns; c++)
            for (size_t r = 0; r < rows; r++) *at++ = ((const td_bf16 *)e->data)[(i * rows + r) * columns + c];
    size_t bytes = e->bytes, size;
    char  *whole = read_file(file, &size), *data = memmem(whole, size, e->data, bytes);
    assert_non_null(data);
    memcpy(data, turned, bytes);
    td_checkpoint_close(ck);
    snprintf(from, sizeof from, "%s\":{\"dtype\":\"BF16\",\"shape\":[%zu,%zu,%zu]", name, n, rows, columns);
    snprintf(to, sizeof to, "%s\":{\"dtype\":\"BF16\",\"shape\":[%zu,%zu,%zu]", name, n, columns, rows);
    write_file(file, whole, size);
    patch(file, from, to);
    free(whole);
    free(turned);
}

/* All experts of a layer in one tensor, as published, and as transformers 5 writes it: the shape tells them apart. */
TEST(experts_of_qwen3_vl_in_either_layout) {
    static const td_role ROLES[] = {TD_ROLE_EXPERT_GATE, TD_ROLE_EXPERT_UP, TD_ROLE_EXPERT_DOWN};
    td_model_config      c;
    td_checkpoint       *ck;
    td_scratch           scratch = {0};
    td_tensor_view       v[2][3];
    td_error             err = {0};
    copy_golden("qwen3_vl_moe");
    OK(td_model_config_read(TMP, NULL, &c, NULL));
    assert_true(c.hidden != 2 * c.moe_inter && c.hidden != c.moe_inter);
    for (int turned = 0; turned < 2; turned++) {
        if (turned) {
            turn_experts("model.language_model.layers.1.mlp.experts.gate_up_proj", c.n_experts, c.hidden, 2 * c.moe_inter);
            turn_experts("model.language_model.layers.1.mlp.experts.down_proj", c.n_experts, c.moe_inter, c.hidden);
        }
        EXPECT(TD_OK, "");
        OK(td_checkpoint_open(TMP, &ck, NULL));
        for (int i = 0; i < 3; i++) {
            OK(td_checkpoint_get(ck, &c, ROLES[i], 1, 3, TD_FORM_FLOAT, &scratch, &v[turned][i], NULL));
            size_t bytes = v[turned][i].shape[0] * v[turned][i].shape[1] * sizeof(td_bf16);
            void  *copy = td_scratch_take(&scratch, bytes, NULL);
            v[turned][i].data = memcpy(copy, v[turned][i].data, bytes); /* the file's bytes go with it */
        }
        td_checkpoint_close(ck);
    }
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(v[0][i].shape, v[1][i].shape, sizeof v[0][i].shape);
        assert_memory_equal(v[0][i].data, v[1][i].data, v[0][i].shape[0] * v[0][i].shape[1] * sizeof(td_bf16));
    }
    td_scratch_reset(&scratch);
    assert_int_equal(open_and_check(TMP, "{\"text_config\": {\"moe_intermediate_size\": 32}}", &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "gate_up_proj"));
    assert_non_null(strstr(err.text, "its shape does not say which"));
    assert_int_equal(open_and_check(TMP, "{\"text_config\": {\"moe_intermediate_size\": 20}}", &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "has the shape"));
}

/* Tensors that hold all experts (gpt-oss). */
TEST(broken_stacks_are_refused) {
    td_error err = {0};
    copy_golden("gpt_oss");
    EXPECT(TD_OK, "");
    assert_int_equal(open_and_check(TMP, "{\"num_local_experts\": 16}", &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "has the shape"));
    patch(in_tmp("model.safetensors"), "layers.2.mlp.experts.down_proj_bias", "layers.2.mlp.experts.down_proj_Bias");
    EXPECT(TD_ENOTFOUND, "model.layers.2.mlp.experts.down_proj_bias is missing");
    copy_golden("gpt_oss");
    patch(in_tmp("model.safetensors"), "layers.1.mlp.experts.gate_up_proj\"", "layers.1.mlp.experts.gate-up_proj\"");
    EXPECT(TD_ENOTFOUND, "tensor model.layers.1.mlp.experts.gate_up_proj is missing, and so is");

    copy_golden("gpt_oss_mxfp4");
    EXPECT(TD_OK, "");
    assert_int_equal(open_and_check(TMP, "{\"quantization_config\": null}", &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "quantization_config does not describe them"));
    assert_int_equal(open_and_check(TMP, "{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}}", &err),
                     TD_EFORMAT);
    assert_int_equal(open_and_check(TMP, "{\"num_local_experts\": 4}", &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "has the shape"));
    patch(in_tmp("model.safetensors"), "layers.1.mlp.experts.down_proj_scales", "layers.1.mlp.experts.down_proj_scaleS");
    EXPECT(TD_ENOTFOUND, "down_proj_blocks is there, and model.layers.1.mlp.experts.down_proj_scales is missing");
    copy_golden("gpt_oss_mxfp4");
    patch(in_tmp("model.safetensors"), "layers.0.mlp.experts.gate_up_proj_scales\"",
          "layers.0.mlp.experts.gate_up_proj\"       ");
    EXPECT(TD_EFORMAT, "which of them is the weight is not known");
}

/* A one-tensor file whose payload begins at an odd address, and an F8 tensor. */
TEST(unaligned_and_unreadable_tensors) {
    copy_golden("qwen3_moe");
    td_model_config config;
    td_error        err = {0};
    OK(td_model_config_read(TMP, NULL, &config, &err));
    uint16_t norm[64];
    for (int i = 0; i < 64; i++) norm[i] = (uint16_t)(0x3f80 + i);
    char header[256], file[1024] = {0};
    int  n = snprintf(header, sizeof header,
                      "{\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[0,128]}}");
    if (n % 2 == 0) header[n++] = ' '; /* 8 + an odd length */
    file[0] = (char)n;
    memcpy(file + 8, header, (size_t)n);
    memcpy(file + 8 + n, norm, sizeof norm);
    write_file(in_tmp("model.safetensors"), file, 8 + (size_t)n + 128);
    td_checkpoint *c;
    td_tensor_view v;
    td_scratch     scratch = {0};
    OK(td_checkpoint_open(TMP, &c, &err));
    assert_int_equal((uintptr_t)td_checkpoint_files_find(td_checkpoint_get_files(c), "model.norm.weight")->data % 2, 1);
    OK(td_checkpoint_get(c, &config, TD_ROLE_FINAL_NORM, 0, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, &err));
    assert_int_equal((uintptr_t)v.data % 2, 0);
    assert_memory_equal(v.data, norm, sizeof norm);
    td_checkpoint_close(c);
    td_scratch_reset(&scratch);

    n = snprintf(header, sizeof header,
                 "{\"model.norm.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[64],\"data_offsets\":[0,64]}}");
    file[0] = (char)n;
    memcpy(file + 8, header, (size_t)n);
    write_file(in_tmp("model.safetensors"), file, 8 + (size_t)n + 64);
    OK(td_checkpoint_open(TMP, &c, &err));
    assert_int_equal(td_checkpoint_get(c, &config, TD_ROLE_FINAL_NORM, 0, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, &err),
                     TD_ENOTSUP);
    assert_non_null(strstr(err.text, "F8_E4M3"));
    td_checkpoint_close(c);
    td_scratch_reset(&scratch);
}

/* Two groups of 1, 2 and 3 rows, which the checkpoint has part by part. */
TEST(rows_go_from_parts_to_groups) {
    static const td_row_order ORDER = {.groups = 2, .part = {1, 2, 3}};
    static const size_t       WANT[12] = {0, 2, 3, 6, 7, 8, 1, 4, 5, 9, 10, 11};
    for (size_t r = 0; r < 12; r++) assert_int_equal(td_row_order_place(&ORDER, r), WANT[r]);
}

TEST(rope_rows_go_from_pairs_to_halves) {
    /* two heads of 2 + 4 rows, k = 3, row r filled with r */
    int8_t data[12][3], out[12][3];
    float  scale[12], out_scale[12];
    for (int r = 0; r < 12; r++) {
        memset(data[r], r, 3);
        scale[r] = (float)r;
    }
    static const int8_t WANT[12] = {0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11};
    td_tensor_view      v = {.dtype = TD_DT_I8, .rank = 2, .shape = {12, 3}, .data = data, .scale = scale};
    td_tensor_take_rows(&v, &(td_row_order){.block = 6, .rope = 4, .at = 2}, out, out_scale);
    for (int r = 0; r < 12; r++) {
        for (int k = 0; k < 3; k++) assert_int_equal(out[r][k], WANT[r]);
        assert_true(out_scale[r] == (float)WANT[r]);
    }
}

TEST(get_permutes_only_what_rope_turns) {
    td_model_config config;
    td_checkpoint  *c;
    td_scratch      scratch = {0};
    td_tensor_view  v;
    const char     *dir = TD_SOURCE_DIR "/tests/data/golden/deepseek_v3_yarn";
    OK(td_model_config_read(dir, NULL, &config, NULL));
    OK(td_checkpoint_open(dir, &c, NULL));
    OK(td_checkpoint_get(c, &config, TD_ROLE_KV_A, 1, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, NULL));
    const char *stored =
        td_checkpoint_files_find(td_checkpoint_get_files(c), "model.layers.1.self_attn.kv_a_proj_with_mqa.weight")->data;
    size_t row = config.hidden * 2;
    assert_memory_equal(v.data, stored, config.kv_lora * row);
    assert_memory_equal((const char *)v.data + (config.kv_lora + 1) * row, stored + (config.kv_lora + 2) * row, row);
    assert_memory_equal((const char *)v.data + (config.kv_lora + config.rope_dim / 2) * row,
                        stored + (config.kv_lora + 1) * row, row);
    /* straight from the file: no copy */
    OK(td_checkpoint_get(c, &config, TD_ROLE_MLA_O, 1, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, NULL));
    assert_ptr_equal(v.data,
                     td_checkpoint_files_find(td_checkpoint_get_files(c), "model.layers.1.self_attn.o_proj.weight")->data);
    /* nothing there: no error, no data */
    OK(td_checkpoint_get(c, &config, TD_ROLE_MLA_Q, 1, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, NULL));
    assert_null(v.data);
    OK(td_checkpoint_get(c, &config, TD_ROLE_MTP_HEAD, 1, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, NULL));
    assert_null(v.data);
    td_checkpoint_close(c);
    td_scratch_reset(&scratch);

    dir = TD_SOURCE_DIR "/tests/data/golden/qwen3_moe_tied";
    OK(td_model_config_read(dir, NULL, &config, NULL));
    OK(td_checkpoint_open(dir, &c, NULL));
    OK(td_checkpoint_get(c, &config, TD_ROLE_LM_HEAD, 0, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, NULL));
    assert_ptr_equal(v.data, td_checkpoint_files_find(td_checkpoint_get_files(c), "model.embed_tokens.weight")->data);
    td_checkpoint_close(c);
    td_scratch_reset(&scratch);
}

TEST(missing_mtp_layers_are_dropped) {
    td_model_config config;
    td_checkpoint  *c;
    const char     *dir = TD_SOURCE_DIR "/tests/data/golden/deepseek_v3_yarn";
    OK(td_model_config_read(dir, "{\"num_nextn_predict_layers\": 1}", &config, NULL));
    OK(td_checkpoint_open(dir, &c, NULL));
    assert_int_equal(config.n_mtp_layers, 1);
    td_checkpoint_look_at_mtp(c, &config);
    assert_int_equal(config.n_mtp_layers, 0);
    td_checkpoint_close(c);
    static const char *const HAVE_ONE[] = {"models/tale-v3-14m", "tests/data/golden/deepseek_v4",
                                           "tests/data/golden/qwen3_next"}; /* which does not say so */
    for (size_t i = 0; i < sizeof HAVE_ONE / sizeof *HAVE_ONE; i++) {
        char has_one[512];
        snprintf(has_one, sizeof has_one, "%s/%s", TD_SOURCE_DIR, HAVE_ONE[i]);
        OK(td_model_config_read(has_one, NULL, &config, NULL));
        OK(td_checkpoint_open(has_one, &c, NULL));
        td_checkpoint_look_at_mtp(c, &config);
        assert_int_equal(config.n_mtp_layers, 1);
        td_checkpoint_close(c);
    }
}

static uint64_t hash_of_tmp(void) {
    AT_END(end_checkpoint) td_checkpoint *c;
    OK(td_checkpoint_open(TMP, &c, NULL));
    return td_checkpoint_source_hash(c);
}

TEST(source_hash_follows_the_weights) {
    copy_golden("deepseek_v3_yarn");
    uint64_t h = hash_of_tmp();
    assert_true(h != 0);
    write_file(in_tmp("config.json"), "{}", 2);
    assert_true(hash_of_tmp() == h);
    size_t      n;
    FREED char *shard = read_file(in_tmp("model-00002-of-00003.safetensors"), &n);
    shard[n - 1] ^= 1;
    write_file(in_tmp("model-00002-of-00003.safetensors"), shard, n);
    assert_true(hash_of_tmp() != h);
    shard[n - 1] ^= 1;
    write_file(in_tmp("model-00002-of-00003.safetensors"), shard, n);
    assert_true(hash_of_tmp() == h);
}

TEST(dummy_weights) {
    td_model_config                       config;
    AT_END(end_checkpoint) td_checkpoint *a, *b;
    td_scratch                            scratch = {0};
    td_tensor_view                        v, w, norm, bias;
    OK(td_model_config_read(TD_SOURCE_DIR "/configs/models/deepseek-v3.json", NULL, &config, NULL));
    OK(td_checkpoint_open_dummy(1, &a, NULL));
    OK(td_checkpoint_open_dummy(1, &b, NULL));
    OK(td_checkpoint_check_all(a, &config, true, NULL));
    OK(td_checkpoint_get(a, &config, TD_ROLE_Q_A, 5, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &v, NULL));
    OK(td_checkpoint_get(b, &config, TD_ROLE_Q_A, 5, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &w, NULL));
    assert_int_equal(v.shape[0] * 10000 + v.shape[1], 15367168);
    size_t n = v.shape[0] * v.shape[1];
    assert_memory_equal(v.data, w.data, n * 2);
    OK(td_checkpoint_get(b, &config, TD_ROLE_Q_A, 6, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &w, NULL));
    assert_true(memcmp(v.data, w.data, n * 2) != 0);
    double sum = 0, sum2 = 0;
    for (size_t i = 0; i < n; i++) {
        double x = td_bf16_to_f32(((const td_bf16 *)v.data)[i]);
        sum += x;
        sum2 += x * x;
    }
    assert_true(fabs(sum / (double)n) < 1e-4 && fabs(sqrt(sum2 / (double)n) - 0.02) < 1e-3);
    OK(td_checkpoint_get(a, &config, TD_ROLE_INPUT_NORM, 0, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &norm, NULL));
    OK(td_checkpoint_get(a, &config, TD_ROLE_ROUTER_BIAS, 4, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &bias, NULL));
    assert_true(((const float *)norm.data)[7167] == 1 && ((const float *)bias.data)[255] == 0);
    OK(td_checkpoint_get(a, &config, TD_ROLE_EXPERT_DOWN, 61, 255, TD_FORM_FLOAT_OR_INT8, &scratch, &v,
                         NULL)); /* the MTP layer's */
    assert_int_equal(v.shape[0] * 10000 + v.shape[1], 71682048);
    td_scratch_reset(&scratch);
}

IN_FOLDER(TMP)
