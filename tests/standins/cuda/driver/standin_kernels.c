/* A library of kernels for the stand-in's own tests (cuda_launch.h), by hand in C: each adds to every element of an array, a
 * value or another array; or sets a signal, or waits for it. */
#include <unistd.h>

#include "tests/standins/cuda/cuda_launch.h"

#define EXPORT __attribute__((visibility("default")))

static void *(*to_real)(const void *device);

void td_cuda_emulated_reach(void *(*reach)(const void *device)) {
    to_real = reach;
}

static void (*tell)(const void *at, size_t bytes, td_cuda_exchange what);

void td_cuda_emulated_exchanges(void (*fn)(const void *at, size_t bytes, td_cuda_exchange what)) {
    tell = fn;
}

const char *td_cuda_emulated_mistake(void) {
    return NULL;
}

static void add(void **args, useconds_t wait_us) {
    const void *x;
    uint32_t    n, value;
    __builtin_memcpy(&x, args[0], sizeof x);
    __builtin_memcpy(&n, args[1], sizeof n);
    __builtin_memcpy(&value, args[2], sizeof value);
    uint32_t *at = to_real(x);
    if (wait_us) usleep(wait_us);
    for (uint32_t i = 0; i < n; i++) at[i] += value;
}

EXPORT void td_cuda_emulated_add(const td_cuda_launch *l, void **args) {
    (void)l;
    add(args, 0);
}
EXPORT void td_cuda_emulated_add_slowly(const td_cuda_launch *l, void **args) {
    (void)l;
    add(args, 20000);
}
EXPORT void td_cuda_emulated_add_array(const td_cuda_launch *l, void **args) {
    const void *x, *y;
    uint32_t    n;
    (void)l;
    __builtin_memcpy(&x, args[0], sizeof x);
    __builtin_memcpy(&y, args[1], sizeof y);
    __builtin_memcpy(&n, args[2], sizeof n);
    uint32_t       *to = to_real(x);
    const uint32_t *from = to_real(y);
    for (uint32_t i = 0; i < n; i++) to[i] += from[i];
}
/* The first n elements of x are added to y; of x no others are used. */
EXPORT void td_cuda_emulated_add_part(const td_cuda_launch *l, void **args) {
    const void *x;
    uint32_t    n;
    __builtin_memcpy(&x, args[1], sizeof x);
    __builtin_memcpy(&n, args[2], sizeof n);
    tell(to_real(x), n * sizeof(uint32_t), TD_CUDA_EXCHANGE_READ);
    td_cuda_emulated_add_array(l, args);
}
/* A signal is set to 1, or waited for. */
static uint32_t *signal_of(void **args) {
    const void *x;
    __builtin_memcpy(&x, args[0], sizeof x);
    return to_real(x);
}
EXPORT void td_cuda_emulated_set_signal(const td_cuda_launch *l, void **args) {
    uint32_t *at = signal_of(args);
    (void)l;
    tell(at, sizeof *at, TD_CUDA_SIGNAL_SET);
    __atomic_store_n(at, 1, __ATOMIC_RELEASE);
}
EXPORT void td_cuda_emulated_await_signal(const td_cuda_launch *l, void **args) {
    uint32_t *at = signal_of(args);
    (void)l;
    while (__atomic_load_n(at, __ATOMIC_ACQUIRE) != 1) usleep(50);
    tell(at, sizeof *at, TD_CUDA_SIGNAL_READ);
}
EXPORT const td_cuda_kernel td_cuda_kernel_set_signal = {"set_signal", td_cuda_emulated_set_signal, 1, {8}, 256, 1, 1};
EXPORT const td_cuda_kernel td_cuda_kernel_await_signal = {"await_signal", td_cuda_emulated_await_signal, 1, {8}, 256, 1, 1};
EXPORT const td_cuda_kernel td_cuda_kernel_add = {"add", td_cuda_emulated_add, 3, {8, 4, 4}, 256, 1, 0};
EXPORT const td_cuda_kernel td_cuda_kernel_add_slowly = {"add_slowly", td_cuda_emulated_add_slowly, 3, {8, 4, 4}, 256, 1, 0};
EXPORT const td_cuda_kernel td_cuda_kernel_add_part = {"add_part", td_cuda_emulated_add_part, 3, {8, 8, 4}, 256, 1, 2};
EXPORT const td_cuda_kernel td_cuda_kernel_add_array = {"add_array", td_cuda_emulated_add_array, 3, {8, 8, 4}, 256, 1, 0};
