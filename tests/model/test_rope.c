/*
 * Frequencies against numbers computed by the formulas of tests/data/golden/README.md in Python (double), and whole tables,
 * far beyond the training length, against transformers' rotary embeddings (scripts/golden/make_rope.py).
 */
#include <math.h>

#include <jansson.h>

#include "model/arch/config_file.h"
#include "tests/td_test.h"

typedef struct {
    const char    *what;
    td_rope_config c;
    struct {
        uint32_t i;
        double   want;
    } at[6];
    double scale;
} rope_case;

#define YARN(...) \
    { .kind = TD_ROPE_YARN, .beta_slow = 1, .truncate = true, __VA_ARGS__ }

static const rope_case CASES[] = {
    {"plain, Qwen3",
     {.kind = TD_ROPE_PLAIN, .theta = 1e6, .dim = 128, .factor = 1},
     {{0, 1}, {1, 0.8058421877614819}, {32, 0.001}, {63, 1.2409377607517196e-06}},
     1},
    {"linear, factor 2", {.kind = TD_ROPE_PLAIN, .theta = 1e4, .dim = 64, .factor = 2}, {{0, 0.5}, {16, 0.005}}, 1},
    {"DeepSeek-V3",
     YARN(.theta = 1e4, .dim = 64, .factor = 40, .beta_fast = 32, .mscale = 1, .mscale_all_dim = 1,
          .original_max_position = 4096),
     {{0, 1},
      {10, 0.05623413251903491},
      {11, 0.03900692656714386},
      {19, 0.0013705136361428923},
      {23, 3.33380358040831e-05},
      {31, 3.3338035804083097e-06}},
     1},
    {"Kimi-K2: a step between two pairs",
     YARN(.theta = 5e4, .dim = 64, .factor = 32, .beta_fast = 1, .mscale = 1, .mscale_all_dim = 1,
          .original_max_position = 4096),
     {{0, 1},
      {15, 0.00627130337702138},
      {19, 0.0016217599081159522},
      {20, 3.6140467735726306e-05},
      {31, 8.764412911589874e-07}},
     1},
    {"Qwen3 with YaRN 4",
     YARN(.theta = 1e6, .dim = 128, .factor = 4, .beta_fast = 32, .original_max_position = 32768),
     {{0, 1}, {23, 0.006978305848598663}, {31, 0.0008029597275452302}, {63, 3.102344401879299e-07}},
     1.138629436111989},
    {"an attention factor that is given",
     YARN(.theta = 1e6, .dim = 128, .factor = 4, .beta_fast = 32, .attention_factor = 1.25, .original_max_position = 32768),
     {{0, 1}, {63, 3.102344401879299e-07}},
     1.25},
};

TEST(frequencies_are_those_of_the_formulas) {
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        double f[TD_ROPE_DIM_MAX / 2], scale;
        td_rope_frequencies(&CASES[k].c, 4096, f, &scale);
        if (fabs(scale - CASES[k].scale) > 1e-12) fail_msg("%s: scale %.17g", CASES[k].what, scale);
        for (size_t j = 0; j < 6 && CASES[k].at[j].want > 0; j++) {
            double want = CASES[k].at[j].want, got = f[CASES[k].at[j].i];
            if (fabs(got - want) > 1e-12 * want)
                fail_msg("%s: frequency %u is %.17g, not %.17g", CASES[k].what, CASES[k].at[j].i, got, want);
        }
    }
}

TEST(softmax_factor_is_the_square_of_mscale) {
    td_rope_config c = CASES[2].c;
    assert_true(fabs(td_rope_softmax_factor(&c) / sqrt(192) - 0.1352337788608801) < 1e-15);
    c.mscale_all_dim = 0.707;
    assert_true(fabs(td_rope_softmax_factor(&c) / sqrt(192) - 0.11472138679292612) < 1e-15);
    c.mscale_all_dim = 0;
    assert_true(td_rope_softmax_factor(&c) == 1);
    assert_true(td_rope_softmax_factor(&CASES[0].c) == 1);
}

TEST(table_is_cos_then_sin) {
    enum { N = 50 };
    const td_rope_config *c = &CASES[4].c;
    FREED float          *t = malloc(sizeof(float) * N * c->dim);
    double                f[64], scale;
    assert_non_null(t);
    td_rope_table(c, 4096, N, t);
    td_rope_frequencies(c, 4096, f, &scale);
    for (uint32_t p = 0; p < N; p++)
        for (uint32_t i = 0; i < 64; i++) {
            float a = t[p * 128 + i], b = t[p * 128 + 64 + i];
            assert_true(fabs((double)a * a + (double)b * b - scale * scale) < 1e-6);
            assert_true(fabs(a - cos(p * f[i]) * scale) < 1e-7 && fabs(b - sin(p * f[i]) * scale) < 1e-7);
        }
}

#define TABLES TD_SOURCE_DIR "/tests/data/rope/"

/* Both sides computed in double and rounded to float32 once: half an ulp each of a value up to the scale on cosines and
 * sines (< 2). */
#define TABLE_TOLERANCE (2 * 0x1p-24)

static void check_table(const json_t *want) {
    const char     *name = json_string_value(json_object_get(want, "name"));
    const json_t   *rows = json_object_get(want, "positions");
    size_t          n = json_array_size(rows), last = (size_t)json_integer_value(json_array_get(rows, n - 1));
    char            path[512];
    td_model_config c;
    td_error        err = {0};
    snprintf(path, sizeof path, TD_SOURCE_DIR "/%s", json_string_value(json_object_get(want, "config")));
    if (td_model_config_read(path, json_string_value(json_object_get(want, "override")), &c, &err) != TD_OK)
        fail_msg("%s: %s", name, err.text);
    assert_true(last < c.max_position);

    FREED float *row = malloc(c.rope.dim * sizeof *row), *table = malloc((last + 1) * c.rope.dim * sizeof *table);
    double       worst = 0;
    snprintf(path, sizeof path, TABLES "%s", json_string_value(json_object_get(want, "file")));
    FILE *f = fopen(path, "rb");
    assert_true(f && row && table);
    td_rope_table(&c.rope, c.max_position, (uint32_t)last + 1, table);
    for (size_t i = 0; i < n; i++) {
        size_t p = (size_t)json_integer_value(json_array_get(rows, i));
        assert_int_equal(fread(row, sizeof *row, c.rope.dim, f), c.rope.dim);
        for (uint32_t k = 0; k < c.rope.dim; k++) worst = fmax(worst, fabs((double)row[k] - table[p * c.rope.dim + k]));
    }
    print_message("%s: up to position %zu, largest difference %.1e\n", name, last, worst);
    assert_true(worst <= TABLE_TOLERANCE);
    fclose(f);
}

TEST(tables_beyond_the_training_length) {
    json_t *manifest = json_load_file(TABLES "manifest.json", 0, NULL), *want;
    size_t  i;
    assert_non_null(manifest);
    assert_true(json_array_size(json_object_get(manifest, "cases")) > 0);
    json_array_foreach(json_object_get(manifest, "cases"), i, want) check_table(want);
    json_decref(manifest);
}
