/*
 * The device that computes on this machine's cores: what opening it takes, beyond what all devices take.
 */
#ifndef TD_NPU_HOST_HOST_NPU_H
#define TD_NPU_HOST_HOST_NPU_H

#include "core/threads/pool.h"
#include "npu/npu.h"

/**
 * What linears read, for calibration: m rows x [m, k] of dtype that the n weights are about to be multiplied with, as they
 * are before any rounding. Called on the stream's thread, in the order of the rows; must not call the device.
 */
typedef void (*td_rows_tap)(void *user, const td_npu_weight *const *weights, size_t n, td_dtype dtype, const void *x,
                            size_t m, size_t k);

struct td_host_npu_config {
    td_pool *pool;    /* the threads to compute on; borrowed */
    bool own_threads; /* true: a stream is a thread of its own that drives `pool` (streams of one device share it in turn);
                         false: enqueuing runs the work at once on the caller and `pool` */
    td_rows_tap rows_tap; /* or NULL */
    void       *rows_tap_user;
};

#endif
