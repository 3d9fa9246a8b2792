/*
 * What a stand-in of the CUDA driver sees of kernels that run on the CPU: libtandem_cuda_kernels_emulated.so.
 *
 * DESIGN. The library has every kernel of npu/cuda/kernels, compiled as C++ against cuda_emulation.h. For a kernel NAME it
 * exports a function and a record, which dlsym finds. The function td_cuda_emulated_NAME runs a whole launch to its end on
 * the calling thread. The record td_cuda_kernel_NAME says what a driver knows of a kernel that it has loaded. Launches of
 * several threads are independent. A mistake in a kernel (a barrier that not all threads reach, shared memory written out of
 * bounds) ends the launch; td_cuda_emulated_mistake then has the sentence.
 *
 * Plain C: the stand-in is C, the emulation C++.
 */
#ifndef TD_TESTS_CUDA_LAUNCH_H
#define TD_TESTS_CUDA_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TD_CUDA_ARGS_MAX 32

#pragma GCC visibility push(default)

typedef struct {
    unsigned grid[3], block[3];
    size_t   shared_bytes; /* dynamic; what was in it before is gone */
    int      is_early;     /* may begin before the kernel before it has ended: all of its threads take their turn */
} td_cuda_launch;

/** Run a kernel. args as cuLaunchKernel takes them: n_args pointers to the arguments. */
typedef void (*td_cuda_launch_fn)(const td_cuda_launch *l, void **args);

typedef struct {
    const char       *name;
    td_cuda_launch_fn launch;
    unsigned          n_args;
    unsigned          arg_bytes[TD_CUDA_ARGS_MAX]; /* of each: what a graph copies when it is captured */
    unsigned          max_threads;                 /* of a block: __launch_bounds__ */
    uint32_t          written;                     /* bit i: argument i points to what it may write */
    uint32_t          exchanges; /* bit i: argument i points to what others use at the same time: td_signal, td_exchange */
} td_cuda_kernel;

/** What was wrong in this thread's last launch, valid until its next; NULL: nothing. */
const char *td_cuda_emulated_mistake(void);

/**
 * How kernels get at what their pointer arguments point to; kernels have no other pointers than their arguments. Before the
 * first launch; NULL, and at the start: where they point. reach is called with each pointer argument but NULL ones, by the
 * thread that launches.
 */
void td_cuda_emulated_reach(void *(*reach)(const void *device));

/** Sets the function that a kernel's thread calls when it uses memory that other cards' kernels use, too. It is called when
 * a signal is about to be set, when one was read and is not 0, and with the bytes of an exchange that a block is about to
 * use. Call it before the first launch. NULL, the default, for none. */
typedef enum { TD_CUDA_SIGNAL_SET, TD_CUDA_SIGNAL_READ, TD_CUDA_EXCHANGE_READ, TD_CUDA_EXCHANGE_WRITTEN } td_cuda_exchange;
void td_cuda_emulated_exchanges(void (*tell)(const void *at, size_t bytes, td_cuda_exchange what));

/** In which order a block's threads run between barriers, and its blocks: 0 ascending (the default), else a shuffle of this
 * seed. What a kernel computes must not depend on it. Between launches. */
void td_cuda_emulated_order(uint64_t seed);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
