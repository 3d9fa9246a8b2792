/*
 * A model's life on an NVIDIA card with one failure in it. Each call of the driver that can fail, and each kernel or copy on
 * a stream, fails in turn (a sample of them; all with TD_TEST_FULL=1). A call that fails at the start ends it with a
 * sentence. After a call that fails in a pass, the pass is run again and gives the numbers of a life without a failure. An
 * operation that fails on the card ends the card's context: that pass and all later ones report it. Nothing hangs, and
 * everything that was taken is given back, which the stand-in checks when the card is closed. Each life is a process.
 */

#include "core/math/rng.h"
#include "fault_life.h"
#include "tests/standins/cuda/use_cuda_standin.h"

#define SAMPLE 8 /* lives of each kind and model */

static const life_case CASES[] = {{.device = "cuda", .folder = "deepseek_v3_yarn", .n_cards = 1},
                                  {.device = "cuda", .folder = "qwen2_moe", .n_cards = 1, .sums_ahead = true},
                                  {.device = "cuda", .folder = "qwen2_moe", .n_cards = 2, .device_experts = 8}};

/* A failed life has a sentence, and is of the card or of its memory. */
static void told_in_words(const life *l, const char *variable, int n) {
    if (l->opened == TD_OK) return;
    if (l->opened != TD_EDEVICE && l->opened != TD_ENOMEM)
        fail_msg("%s=%d: the start ends with %d: %s", variable, n, l->opened, l->said);
    if (!l->said[0]) fail_msg("%s=%d: the start ends without a sentence", variable, n);
}

static void try_calls(const life_case *c, int n, const life *want) {
    const char *variable = "TD_STANDIN_FAIL";
    int         told = 0, lives = 0, step = getenv("TD_TEST_FULL") || n <= SAMPLE ? 1 : n / SAMPLE;
    for (int i = 1 + (step > 1 ? (int)(td_rng_u64(20261123, 1, (uint64_t)n) % (uint64_t)step) : 0); i <= n;
         i += step, lives++) {
        life l = live_with(c, variable, i, NULL);
        told_in_words(&l, variable, i);
        if (l.opened == TD_OK && l.passes < 2) fail_msg("%s=%d: a pass that is run again fails again", variable, i);
        if (l.opened == TD_OK) assert_memory_equal(l.logits, want->logits, sizeof l.logits);
        if (l.lost) fail_msg("%s=%d: a call that fails once is taken for a lost card", variable, i);
        told += l.opened != TD_OK || l.ran != TD_OK;
    }
    print_message("    %s on %u cards, %s: %d lives of %d, %d of them told of a failure\n", c->folder, c->n_cards, variable,
                  lives, n, told);
    assert_true(told * 2 >= lives); /* what goes wrong at the end, or while hand-overs are measured, is told to nobody */
}

TEST(every_call_fails_once) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int  n = 0;
        life want = live_with(&CASES[i], "TD_STANDIN_FAIL", 0, &n);
        OK(want.opened);
        assert_int_equal(want.passes, 2);
        assert_true(n > 50);
        try_calls(&CASES[i], n, &want);
    }
}

/* Experts move in every pass: an upload that fails leaves its expert on the CPU, which only the log tells. */
TEST(every_call_fails_once_while_experts_move) {
    const life_case c = {.device = "cuda", .folder = "qwen2_moe", .n_cards = 1, .device_experts = 4, .sums_ahead = true};
    setenv("TD_CHAOS_RESIDENCY", "1", 1);
    int  n = 0;
    life want = live_with(&c, "TD_STANDIN_FAIL", 0, &n);
    OK(want.opened);
    assert_true(n > 50);
    for (int lives = getenv("TD_TEST_FULL") ? n : 2 * SAMPLE, k = 0; k < lives; k++) {
        const int i = 1 + n * k / lives;
        life      l = live_with(&c, "TD_STANDIN_FAIL", i, NULL);
        told_in_words(&l, "TD_STANDIN_FAIL", i);
        if (l.opened == TD_OK) assert_memory_equal(l.logits, want.logits, sizeof l.logits);
        if (l.lost) fail_msg("TD_STANDIN_FAIL=%d: a call that fails once is taken for a lost card", i);
    }
    unsetenv("TD_CHAOS_RESIDENCY");
}

/* From an operation that fails on, the card is gone: the start has a sentence, or a pass and the one after it fail. */
TEST(every_operation_fails_once) {
    const char *variable = "TD_STANDIN_FAIL_OP";
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int n = 1;
        for (int most = 4096; most; most /= 2) { /* the last one that is told */
            life l = live_with(&CASES[i], variable, n + most, NULL);
            if (l.opened != TD_OK || l.ran != TD_OK) n += most;
        }
        assert_true(n > 50);
        int told = 0, lives = 0, step = getenv("TD_TEST_FULL") ? 1 : n / SAMPLE;
        for (int k = 1; k <= n; k += step, lives++) {
            life l = live_with(&CASES[i], variable, k, NULL);
            told_in_words(&l, variable, k);
            if (l.opened == TD_OK && l.ran != TD_OK && l.ran != TD_EDEVICE)
                fail_msg("%s=%d: a pass ends with %d", variable, k, l.ran);
            if (l.opened == TD_OK && (l.passes == 2) != (l.ran == TD_OK))
                fail_msg("%s=%d: %d passes gave numbers, and the first failure was %d", variable, k, l.passes, l.ran);
            if (l.opened == TD_OK && l.lost != (l.ran != TD_OK))
                fail_msg("%s=%d: the card is %slost", variable, k, l.lost ? "" : "not ");
            told += l.opened != TD_OK || l.ran != TD_OK;
        }
        print_message("    %s, %s: %d lives of %d, %d of them told of a failure\n", CASES[i].folder, variable, lives, n,
                      told);
        assert_true(told * 2 >= lives); /* hand-overs are measured by time: there are a few more or less */
    }
}

/* ---- a card that cannot be opened ---------------------------------------------------------------- */

static void refused(uint32_t card, td_dtype act, td_status status, const char *words) {
    td_npu  *npu;
    td_error err = {0};
    assert_int_equal(td_npu_open("cuda", &(td_npu_config){.act_dtype = act, .card = card}, &npu, &err), status);
    if (!strstr(err.text, words)) fail_msg("\"%s\" has no \"%s\"", err.text, words);
}

static void automatic(const char *device, const char *words) {
    char why[TD_ERROR_TEXT_MAX];
    assert_string_equal(td_npu_auto(why, sizeof why), device);
    if (!strstr(why, words)) fail_msg("\"%s\" has no \"%s\"", why, words);
}

TEST(which_device) {
    automatic("cuda", "2 NVIDIA cards, 2 of compute capability 8.0 or later");
    setenv("TD_STANDIN_ARCH", "75", 1);
    automatic("host", "2 NVIDIA cards, 0 of");
    unsetenv("TD_STANDIN_ARCH");
    setenv("TD_STANDIN_DEVICES", "0", 1);
    automatic("host", "finds no card");
    unsetenv("TD_STANDIN_DEVICES");
}

/* TD_CUDA_KERNELS names a file with this in it. */
static void with_kernels(const char *path, const char *image) {
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(image, file) >= 0 && fclose(file) == 0);
    setenv("TD_CUDA_KERNELS", path, 1);
}

TEST(refusals) {
    char        path[] = "/tmp/td_cuda_kernels_XXXXXX";
    FREED char *kept = strdup(getenv("TD_CUDA_KERNELS"));
    int         file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    refused(2, TD_DT_BF16, TD_EINVAL, "there is no CUDA card 2: this process sees 2");
    refused(0, TD_DT_F32, TD_ENOTSUP, "bf16 activations only");
    setenv("TD_STANDIN_ARCH", "75", 1);
    refused(0, TD_DT_BF16, TD_ENOTSUP, "compute capability 7.5; the kernels need 8.0");
    unsetenv("TD_STANDIN_ARCH");
    setenv("TD_STANDIN_MEMORY", "3", 1);
    refused(0, TD_DT_BF16, TD_ENOMEM, "out of memory");
    unsetenv("TD_STANDIN_MEMORY");
    with_kernels(path, "tandem cuda stand-in image\nsm_89 12080\nof another card\n");
    refused(0, TD_DT_BF16, TD_EDEVICE, "no kernel image is available");
    with_kernels(path, "no image");
    refused(0, TD_DT_BF16, TD_EDEVICE, "does not take the kernels of");
    setenv("TD_CUDA_KERNELS", "/nowhere/kernels", 1);
    refused(0, TD_DT_BF16, TD_ENOTFOUND, "/nowhere/kernels");
    setenv("TD_CUDA_KERNELS", kept, 1);
    unlink(path);
}

int main(void) {
    use_cuda_standin("5", "words"); /* what fails while ways are compared is told to nobody (test_cuda_runtime) */
    return tests_run();
}
