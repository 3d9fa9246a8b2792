/* The loader of the CUDA driver. A driver that is missing, too old, incomplete, or without a card is reported in a sentence.
 * Each case runs in a process of its own, because a driver stays loaded. */
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
typedef struct {
    const char *name, *variable, *value; /* of the stand-in; NULL: none is set */
    const char *sentence;
    bool        has_no_update; /* the driver without cuGraphExecUpdate_v2 */
} loading;

static const loading CASES[] = {
    {"there", NULL, NULL, "loaded", false},
    {"oldest", "TD_STANDIN_CUDA", "12000", "loaded", false},
    {"too old", "TD_STANDIN_CUDA", "11080",
     "NVIDIA's driver serves CUDA 11.8 and is too old: CUDA 12.0 (driver 525) or later is needed", false},
    {"no card", "TD_STANDIN_DEVICES", "0", "NVIDIA's driver is there and finds no card", false},
    {"mismatch", "TD_STANDIN_INIT", "803", "restart the machine after an update", false},
    {"stub", "TD_STANDIN_INIT", "34", "is the toolkit's stub to link with, not a driver", false},
    {"unknown", "TD_STANDIN_INIT", "999", "does not start (cuInit): unknown error (CUDA_ERROR_UNKNOWN, 999)", false},
    {"newer status", "TD_STANDIN_INIT", "12345", "does not start (cuInit): unknown error (of a newer driver, 12345)", false},
    {"no function", NULL, NULL, "of CUDA 12.8 has no cuGraphExecUpdate_v2", true},
};

static void act(const void *what) {
    const loading *l = what;
    if (l->variable) setenv(l->variable, l->value, 1);
    driver_is(l->has_no_update ? TD_CUDA_STANDIN "/no_update/libcuda.so.1" : TD_CUDA_STANDIN "/libcuda.so.1");
    load();
}

static void check_case(void **state) {
    const loading *l = *state;
    refusal_check(act, l, 0, l->sentence, "loader: ");
}
TEST_ROWS(check_case, CASES)

/** A machine without a driver; one that has it cannot show this. */
TEST(not_there) {
    td_cuda_driver d;
    td_error       err = {0};
    void          *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library) skip();
    assert_int_equal(td_cuda_load(&d, &err), TD_ENOTFOUND);
    assert_non_null(strstr(err.text, "NVIDIA's driver is not installed: libcuda.so.1: "));
    assert_null(d.library);
}
