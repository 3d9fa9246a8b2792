/* An NVIDIA card's streams, captures and figures by the contract of npu.h, on the stand-in for the driver. The stand-in ends
 * a process that breaks a rule of the driver's documents or does not give everything back. */
#include <math.h>
#include <unistd.h>

#define CARD_DEVICE "cuda"
#include "npu/cuda/cuda_device.h"
#include "npu_test_util.h"
#include "one_card.h"
#include "tests/standins/cuda/use_cuda_standin.h"

/* ---- figures ----------------------------------------------------------------------------------- */

static void nothing(void *arg) {
    (void)arg;
}

TEST(counts_what_it_is_given) {
    AT_END(close_card) card c = open_card(1);
    uint32_t               *pinned = pinned_memory(&c, 64), *device = device_memory(&c, 1 << 20);
    td_npu_graph           *g;
    td_card_stats           first, captured, ran;
    td_error                err = {0};
    c.ops->stats(c.npu, &first);
    assert_int_equal(first.memory_total, (uint64_t)2 << 30);
    assert_true(first.memory_free <= first.memory_total - (1 << 20));
    assert_true(fabs(first.temperature_c - 51) < 1e-9); /* of card 1 */
    OK(c.ops->graph_begin(c.npu, c.stream));
    to_device(&c, device, pinned, 64);
    OK(c.ops->host_call(c.npu, c.stream, nothing, NULL));
    OK(c.ops->graph_end(c.npu, c.stream, &g, &err));
    c.ops->stats(c.npu, &captured);
    assert_int_equal(captured.captures - first.captures, 1);
    assert_int_equal(captured.launches, first.launches); /* recorded, not run */
    for (int i = 0; i < 5; i++) OK(c.ops->graph_launch(c.npu, c.stream, g));
    to_host(&c, pinned, device, 64);
    sync_stream(&c);
    c.ops->stats(c.npu, &ran);
    assert_int_equal(ran.launches - captured.launches, 6);
    assert_int_equal(ran.replays - captured.replays, 5);
    assert_int_equal(ran.captures, captured.captures);
    assert_int_equal(ran.failures, 0);
    c.ops->graph_destroy(c.npu, g);
    c.ops->free(c.npu, device, 1 << 20);
    c.ops->host_free(c.npu, pinned, 64);
}

TEST(counts_kernels) {
    AT_END(close_card) card c = open_card(0);
    td_step_counts         *counts = pinned_memory(&c, 64), *there = device_memory(&c, 64);
    td_bf16                *x = device_memory(&c, 128), *add = device_memory(&c, 128);
    td_block_desc           desc = {
                  .kind = TD_BLOCK_COMBINE, .layer = TD_NO_LAYER, .max_tok = 1, .combine = {.hidden = 64, .x = x, .add = {add}}};
    td_step       step = {.max_tok = 1, .max_seq = 1, .max_out = 1, .host = {.counts = counts}, .dev = {.counts = there}};
    td_npu_block *b;
    td_card_stats before, after;
    td_error      err = {0};
    *counts = (td_step_counts){1, 1, 1};
    OK(c.ops->block_create(c.npu, &desc, &b, &err));
    to_device(&c, there, counts, sizeof *counts);
    c.ops->stats(c.npu, &before);
    OK(c.ops->enqueue(c.npu, c.stream, b, &step));
    sync_stream(&c);
    c.ops->stats(c.npu, &after);
    assert_int_equal(after.launches - before.launches, 1);
    c.ops->block_destroy(c.npu, b);
    c.ops->free(c.npu, x, 128);
    c.ops->free(c.npu, add, 128);
    c.ops->free(c.npu, there, 64);
    c.ops->host_free(c.npu, counts, 64);
}

TEST(counts_failures) {
    AT_END(close_card) card c = open_card(0);
    void                   *p;
    td_card_stats           before, after;
    td_error                err = {0};
    c.ops->stats(c.npu, &before);
    assert_int_equal(c.ops->alloc(c.npu, (size_t)3 << 30, &p, &err), TD_ENOMEM);
    c.ops->stats(c.npu, &after);
    assert_int_equal(after.failures - before.failures, 1);
}

/* ---- a card that is lost -------------------------------------------------------------------------- */

/* Whatever fails on the card is for good, and there is a sentence for it. */
TEST(a_lost_card_says_what_happened) {
    static const struct {
        const char *status, *words;
    } CASES[] = {
        {"214", "CUDA card 0 is lost (CUDA_ERROR_ECC_UNCORRECTABLE, 214): its memory has an error that ECC cannot"},
        {"220", "NVLink has an error that cannot be corrected"},
        {"700", "CUDA_ERROR_ILLEGAL_ADDRESS, 700): a kernel did what it may not, or the card is broken"},
        {"714", "CUDA_ERROR_HARDWARE_STACK_ERROR"},
        {"719", "CUDA_ERROR_LAUNCH_FAILED"},
        {"226", "CUDA card 0 is lost (status 226): its work has failed"}}; /* of newer drivers, without a name here */
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        card          c = open_card(0);
        uint32_t     *pinned = pinned_memory(&c, 64), *device = device_memory(&c, 64);
        td_error      why = {0};
        td_card_stats s;
        assert_false(c.ops->lost(c.npu, &why));
        setenv("TD_STANDIN_STATUS", CASES[i].status, 1);
        setenv("TD_STANDIN_LOST", "/", 1);
        to_device(&c, device, pinned, 64);
        assert_int_equal(c.ops->stream_sync(c.npu, c.stream), TD_EDEVICE);
        unsetenv("TD_STANDIN_LOST"); /* the card is there again, and this process has nothing of it */
        assert_int_equal(c.ops->copy(c.npu, c.stream, device, pinned, 64, TD_COPY_H2D), TD_EDEVICE);
        assert_true(c.ops->lost(c.npu, &why));
        assert_int_equal(why.status, TD_ELOST);
        if (!strstr(why.text, CASES[i].words)) fail_msg("\"%s\" has no \"%s\"", why.text, CASES[i].words);
        c.ops->stats(c.npu, &s);
        assert_true(s.failures >= 2);
        assert_int_equal(s.memory_total, 0); /* it does not say */
        c.ops->free(c.npu, device, 64);
        c.ops->host_free(c.npu, pinned, 64);
        close_card(&c);
        unsetenv("TD_STANDIN_STATUS");
    }
}

/* Who reads the figures finds a loss that nobody has waited for. */
TEST(figures_find_a_loss) {
    AT_END(close_card) card c = open_card(0);
    uint32_t               *pinned = pinned_memory(&c, 64), *device = device_memory(&c, 64);
    td_error                why = {0};
    td_card_stats           s;
    setenv("TD_STANDIN_LOST", "/", 1);
    to_device(&c, device, pinned, 64);
    for (int i = 0; i < 20000 && !c.ops->lost(c.npu, &why); i++) {
        usleep(1000);
        c.ops->stats(c.npu, &s);
    }
    unsetenv("TD_STANDIN_LOST");
    assert_non_null(strstr(why.text, "CUDA_ERROR_LAUNCH_FAILED"));
    c.ops->free(c.npu, device, 64);
    c.ops->host_free(c.npu, pinned, 64);
}

/* A call that fails by itself can be made again (in a step: test_cuda_faults). */
TEST(a_call_that_fails_is_no_loss) {
    AT_END(close_card) card c = open_card(0);
    void                   *p;
    td_error                err = {0}, why = {0};
    assert_int_equal(c.ops->alloc(c.npu, (size_t)3 << 30, &p, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "3221225472 bytes of device memory, of which "));
    assert_false(c.ops->lost(c.npu, &why));
}

/* What another process has, at the start. */
TEST(a_card_that_another_process_has) {
    static const struct {
        const char *status, *words;
    } CASES[] = {{"2", "another process fills it, nvidia-smi shows which"}, {"46", "another process keeps it for itself"}};
    for (size_t i = 0; i < 2; i++) {
        td_npu  *npu;
        td_error err = {0};
        setenv("TD_STANDIN_STATUS", CASES[i].status, 1);
        setenv("TD_STANDIN_REFUSE_CONTEXT", "1", 1);
        assert_int_not_equal(td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16}, &npu, &err), TD_OK);
        unsetenv("TD_STANDIN_REFUSE_CONTEXT");
        unsetenv("TD_STANDIN_STATUS");
        if (!strstr(err.text, CASES[i].words)) fail_msg("\"%s\" has no \"%s\"", err.text, CASES[i].words);
    }
}

/* ---- doorbells -------------------------------------------------------------------------------- */

TEST(bells_in_each_way) {
    static const char *const WAYS[] = {"words", "calls", "kernels", NULL}; /* NULL: the fastest one */
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++)
        for (int registers = 0; registers < 2; registers++) {
            setenv("TD_STANDIN_REGISTER", registers ? "1" : "0", 1);
            if (WAYS[i])
                setenv("TD_CUDA_BELLS", WAYS[i], 1);
            else
                unsetenv("TD_CUDA_BELLS");
            AT_END(close_card) card c = open_card(0);
            td_npu_stream          *branch;
            hand_over(&c, NULL);
            OK(c.ops->stream_create(c.npu, &branch, NULL));
            hand_over(&c, branch);
            c.ops->stream_destroy(c.npu, branch);
        }
    unsetenv("TD_STANDIN_REGISTER");
}

/* A wait for the experts may take seconds: it is no kernel's where the driver ends those. */
TEST(a_driver_that_ends_long_kernels) {
    setenv("TD_STANDIN_KERNEL_LIMIT", "1", 1);
    AT_END(close_card) card c = open_card(0);
    assert_int_not_equal(((td_cuda_npu *)c.npu)->bells, TD_CUDA_BELLS_KERNELS);
    unsetenv("TD_STANDIN_KERNEL_LIMIT");
}

/* Where the driver does not take words, functions on the host do; and what is asked for must be one of the ways. */
TEST(a_driver_without_words) {
    static const char *const CALLS[] = {"cuStreamWaitValue32", "cuStreamWriteValue32"};
    char                     path[] = "/tmp/td_cuda_calls_XXXXXX";
    td_error                 err = {0};
    td_npu                  *npu;
    int                      file = mkstemp(path);
    assert_true(file >= 0);
    setenv("TD_STANDIN_FAIL_CALLS", path, 1);
    setenv("TD_STANDIN_STATUS", "801", 1); /* CUDA_ERROR_NOT_SUPPORTED */
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(ftruncate(file, 0), 0);
        assert_int_equal(pwrite(file, CALLS[i], strlen(CALLS[i]), 0), strlen(CALLS[i]));
        AT_END(close_card) card c = open_card(0);
        hand_over(&c, NULL);
    }
    unsetenv("TD_STANDIN_FAIL_CALLS");
    unsetenv("TD_STANDIN_STATUS");
    close(file);
    unlink(path);
    setenv("TD_CUDA_BELLS", "gongs", 1);
    assert_int_equal(td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16}, &npu, &err), TD_EINVAL);
    assert_string_equal(err.text, "TD_CUDA_BELLS is calls, words or kernels, not \"gongs\"");
    unsetenv("TD_CUDA_BELLS");
    setenv("TD_CUDA_EARLY", "soon", 1);
    assert_int_equal(td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16}, &npu, &err), TD_EINVAL);
    assert_string_equal(err.text, "TD_CUDA_EARLY is 0 or 1, not \"soon\"");
    setenv("TD_CUDA_EARLY", "1", 1);
}

/* ---- pinned memory ------------------------------------------------------------------------------ */

/* Of ours where the driver can pin it, else the driver's; zeroed and aligned either way. The stand-in tells when it is given
 * back by the wrong call. */
TEST(pinned_memory_is_zeroed_either_way) {
    static const char *const REGISTER[] = {"1", "0"};
    for (size_t i = 0; i < 2; i++) {
        setenv("TD_STANDIN_REGISTER", REGISTER[i], 1);
        AT_END(close_card) card c = open_card(0);
        char                   *p = pinned_memory(&c, 100000), *device = device_memory(&c, 100000);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < 100000; k++) assert_int_equal(p[k], 0);
        memset(p, 7, 100000);
        to_device(&c, device, p, 100000);
        sync_stream(&c);
        memset(p, 0, 100000);
        to_host(&c, p, device, 100000);
        sync_stream(&c);
        assert_int_equal(p[99999], 7);
        c.ops->host_free(c.npu, p, 100000);
        c.ops->free(c.npu, device, 100000);
    }
    unsetenv("TD_STANDIN_REGISTER");
}

/* A card that was opened to be measured has no kernels, and says so. */
TEST(a_bare_card_has_no_blocks) {
    td_npu       *npu;
    td_npu_block *b;
    td_error      err = {0};
    td_block_desc desc = {.kind = TD_BLOCK_COMBINE, .max_tok = 1, .combine = {.hidden = 64}};
    setenv("TD_CUDA_KERNELS", "/nowhere", 1);
    OK(td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16, .bare = true}, &npu, &err));
    setenv("TD_CUDA_KERNELS", TD_CUDA_STANDIN "/kernels.image", 1);
    assert_int_equal(npu->ops->block_create(npu, &desc, &b, &err), TD_EINVAL);
    assert_string_equal(err.text, "the card was opened without its kernels");
    npu->ops->close(npu);
    setenv("TD_CUDA_KERNELS", "/nowhere", 1);
    setenv("TD_CUDA_BELLS", "kernels", 1);
    assert_int_equal(td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16, .bare = true}, &npu, &err), TD_ENOTFOUND);
    assert_string_equal(err.text, "TD_CUDA_BELLS is kernels, and the card was opened without its kernels");
    unsetenv("TD_CUDA_BELLS");
    setenv("TD_CUDA_KERNELS", TD_CUDA_STANDIN "/kernels.image", 1);
}

int main(void) {
    use_cuda_standin("5", NULL);
    if (!dlopen(TD_CUDA_STANDIN "/libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return tests_run();
}
