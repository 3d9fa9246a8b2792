/* The loader of the CUDA driver: a driver that is not there, too old, incomplete, or without a card is a sentence. Each case
 * in a process of its own, because a driver stays loaded. */
#include "tests/standins/refusal.h"

#include "tests/standins/cuda/cuda_driver_rig.h"

/** Load, and say on standard error what came of it. */
static void load(void) {
    td_cuda_driver d;
    td_error       err = {0};
    td_status      st = td_cuda_load(&d, &err);
    if (st != TD_OK && d.library) _exit(7);
    fprintf(stderr, "loader: %s\n", st == TD_OK ? "loaded" : err.text);
    td_cuda_unload(&d);
}
static void with(const char *variable, const char *value) {
    if (variable) setenv(variable, value, 1);
    driver_is(TD_CUDA_STANDIN "/libcuda.so.1");
    load();
}

static void there(void) {
    with(NULL, NULL);
}
static void too_old(void) {
    with("TD_STANDIN_CUDA", "11080");
}
static void oldest(void) {
    with("TD_STANDIN_CUDA", "12000");
}
static void no_card(void) {
    with("TD_STANDIN_DEVICES", "0");
}
static void mismatch(void) {
    with("TD_STANDIN_INIT", "803");
}
static void stub(void) {
    with("TD_STANDIN_INIT", "34");
}
static void unknown(void) {
    with("TD_STANDIN_INIT", "999");
}
static void newer_status(void) {
    with("TD_STANDIN_INIT", "12345");
}
static void no_function(void) {
    driver_is(TD_CUDA_STANDIN "/no_update/libcuda.so.1");
    load();
}

typedef struct {
    const char *name;
    void (*act)(void);
    const char *sentence;
} loading;

static const loading CASES[] = {
    {"there", there, "loaded"},
    {"oldest", oldest, "loaded"},
    {"too_old", too_old, "NVIDIA's driver serves CUDA 11.8 and is too old: CUDA 12.0 (driver 525) or later is needed"},
    {"no_card", no_card, "NVIDIA's driver is there and finds no card"},
    {"mismatch", mismatch, "restart the machine after an update"},
    {"stub", stub, "is the toolkit's stub to link with, not a driver"},
    {"unknown", unknown, "does not start (cuInit): unknown error (CUDA_ERROR_UNKNOWN, 999)"},
    {"newer_status", newer_status, "does not start (cuInit): unknown error (of a newer driver, 12345)"},
    {"no_function", no_function, "of CUDA 12.8 has no cuGraphExecUpdate_v2"},
};
#define N_CASES (sizeof CASES / sizeof *CASES)

static void act(const void *what) {
    ((const loading *)what)->act();
}

static void check_case(void **state) {
    const loading *l = *state;
    refusal_check(act, l, 0, l->sentence, "loader: ");
}

/** A machine without a driver; one that has it cannot show this. */
static void not_there(void **state) {
    td_cuda_driver d;
    td_error       err = {0};
    void          *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    (void)state;
    if (library) skip();
    assert_int_equal(td_cuda_load(&d, &err), TD_ENOTFOUND);
    assert_non_null(strstr(err.text, "NVIDIA's driver is not installed: libcuda.so.1: "));
    assert_null(d.library);
}

int main(void) {
    struct CMUnitTest tests[N_CASES + 1];
    for (size_t i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){.name = CASES[i].name, .test_func = check_case, .initial_state = (void *)&CASES[i]};
    tests[N_CASES] = (struct CMUnitTest)cmocka_unit_test(not_there);
    return _cmocka_run_group_tests("cuda_loader", tests, N_CASES + 1, NULL, NULL);
}
