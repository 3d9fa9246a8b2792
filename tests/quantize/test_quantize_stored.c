/*
 * td_quantize of checkpoints that are quantised already (tests/data/quantised): the packed experts beside the checkpoint
 * give the same logits, bit for bit, as the checkpoint loaded directly. The experts are in the format that carries them
 * exactly, or in the one that is asked for. The folder that td_quantize wrote gives the same logits by itself, where its
 * linears are those that loading makes of the checkpoint's.
 */

#include "tandem_tools.h"
#include "tests/model/folder_files.h"
#include "tests/model/model_run.h"
#include "tests/td_test.h"

#define N_TOK 20

static char OUT[] = "/tmp/td_requantized_XXXXXX";

static const struct {
    const char *name, *experts; /* what auto chooses */
    bool        linears_alike;  /* no linear of the device is stored in groups of 4 bits, which the folder has in int8 */
} CASES[] = {
    {"fp8_block", "int4", true},
    {"fp8_channel", "int4", true},
    {"w8a8_compressed", "int8", true},
    {"w8a8_modelslim", "int8", true},
    {"gptq_int4", "int4-g64 (f16 scales, zeros)", false},
    {"gptq_int4_sym", "int4-g128 (f16 scales)", true},
    {"gptq_int4_row", "int4", false},
    {"gptq_act_order", "int4", true},
    {"gptq_int8", "int8", true},
    {"awq", "int4-g32 (f16 scales, zeros)", false},
    {"packed_int4", "int4-g32", true},
    {"packed_int4_zeros", "int4-g32 (f16 scales, zeros)", false},
    {"packed_int8_row", "int8", true},
    {"mxfp4", "mxfp4", false},
    {"nvfp4", "nvfp4", false},
};

/* @param experts NULL: auto. */
static float *logits_of(const char *path, const char *packed, const char *experts, const char *expect, size_t *bytes) {
    const td_expert_numbers          *n = td_expert_numbers_find(experts ? experts : "int4");
    AT_END(model_run_close) model_run r;
    uint32_t                          ids[N_TOK];
    model_run_open(&r, &WITH(model_run_options, .path = path, .cpu_weight_path = packed, .w8a8 = true, .experts = n->format,
                             .groups = n->groups, .experts_as_stored = !experts, .n_seq = 1, .max_len = 128));
    assert_string_equal(td_model_expert_quantization(r.model), expect);
    uint32_t vocab = td_model_get_config(r.model)->vocab;
    *bytes = (size_t)N_TOK * vocab * sizeof(float);
    float *logits = malloc(*bytes);
    assert_non_null(logits);
    for (uint32_t i = 0; i < N_TOK; i++) ids[i] = 2 + i * 151 % (vocab - 2);
    model_run_forward(&r, &(model_piece){.n = N_TOK, .ids = ids}, 1);
    model_run_logits(&r, N_TOK, logits);
    return logits;
}

/* @param experts NULL: auto. @return the logits. */
static float *check(const char *name, const char *experts, const char *expect, bool linears_alike, size_t *bytes) {
    char     in[256], model[256];
    td_error err = {0};
    snprintf(in, sizeof in, "tests/data/quantised/%s", name);
    snprintf(model, sizeof model, "%s", repo_path(in));
    td_quantize_options o = WITH(td_quantize_options, .model_path = model, .output_path = OUT, .quantization = "w8a8_int8",
                                 .expert_quantization = experts ? experts : "auto", .threads = 2, .subpool_count = 1);
    empty_folder(OUT);
    if (td_quantize(&o, &err) != TD_OK) fail_msg("%s: %s", name, err.text);
    float *want = logits_of(in, NULL, experts, expect, bytes), *have = logits_of(in, OUT, experts, expect, bytes);
    if (memcmp(have, want, *bytes)) fail_msg("%s: the packed experts' logits differ", name);
    free(have);
    have = logits_of(OUT, NULL, NULL, expect, bytes); /* the folder says what its experts are */
    if (linears_alike && memcmp(have, want, *bytes)) fail_msg("%s: the folder's logits differ", name);
    free(have);
    return want;
}

TEST(folders_of_quantised_checkpoints_give_the_same_logits) {
    size_t bytes;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        free(check(CASES[i].name, NULL, CASES[i].experts, CASES[i].linears_alike, &bytes));
}

TEST(experts_are_rounded_again_on_request) {
    size_t bytes, same_bytes;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i += 3) {
        FREED float *int4 = check(CASES[i].name, "int4-channel", "int4", CASES[i].linears_alike, &bytes);
        FREED float *fp4 = check(CASES[i].name, "nvfp4", "nvfp4", CASES[i].linears_alike, &same_bytes);
        assert_true(memcmp(int4, fp4, bytes) != 0); /* other numbers, and these were chosen */
    }
}

TEST(own_output_is_refused) {
    char     again[64];
    td_error err = {0};
    size_t   bytes;
    free(check("packed_int4", NULL, "int4-g32", true, &bytes));
    snprintf(again, sizeof again, "%s/again", OUT);
    td_quantize_options o = WITH(td_quantize_options, .model_path = OUT, .output_path = again, .quantization = "w8a8_int8",
                                 .expert_quantization = "auto", .threads = 1, .subpool_count = 1);
    assert_int_equal(td_quantize(&o, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "is quantised already, and has its experts in packed files"));
}

IN_FOLDER(OUT)
