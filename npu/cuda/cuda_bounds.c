/*
 * What an NVIDIA card can do at most, measured by kernels/bounds.cu and by a copy within its memory.
 *
 * Time is the host's clock around work that takes some ms and the wait for it, not the card's events. Starting and waiting
 * take some us of these ms, and it is the clock that all else is timed with. The work is doubled until it takes so long, by
 * which time the card's clocks have risen, too.
 */
#include "core/error.h"
#include "core/log/trace.h"
#include "npu/cuda/cuda_op.h"

#define ENOUGH_S 4e-3
#define DOUBLINGS_MAX 16     /* 65536 rounds: what the kernels' sums are exact up to */
#define BUFFER_CACHES 16     /* times the card's second-level cache: at most a 16th of what is read can lie there */
#define CACHE_MOST (1 << 30) /* the number of 16 bytes stays a word */

/* What one measurement works on. */
typedef struct {
    td_cuda_npu *d;
    uint32_t     multiprocessors;
    void        *from, *to; /* of bytes each; to is also where a copy goes */
    size_t       bytes, to_bytes;
} probe;

typedef struct {
    td_status (*enqueue)(probe *p, uint32_t times); /* what fails is in the log */
    double (*work)(const probe *p);                 /* of one time */
} probe_kind;

static size_t threads_of(const probe *p, uint32_t blocks) {
    return (size_t)p->multiprocessors * blocks * TD_CUDA_BOUND_THREADS;
}

static td_status enqueue_reads(probe *p, uint32_t times) {
    td_cuda_run r = {.d = p->d, .stream = p->d->setup};
    for (uint32_t i = 0; i < times; i++)
        TD_CUDA_LAUNCH(&r, BOUND_READ, TD_GRID((size_t)p->multiprocessors * TD_CUDA_BOUND_READ_BLOCKS, 1, 1), 0,
                       TD_P(p->from), TD_U(p->bytes / 16), TD_P(p->to));
    return r.status;
}

static td_status enqueue_copies(probe *p, uint32_t times) {
    td_cuda_npu *d = p->d;
    for (uint32_t i = 0; i < times; i++)
        TD_TRY(td_cuda_done(d, "cuMemcpyDtoDAsync",
                            d->cu->cuMemcpyDtoDAsync(td_cuda_address(p->to), td_cuda_address(p->from), p->bytes, d->setup),
                            NULL));
    return TD_OK;
}

static td_status enqueue_products(probe *p, td_cuda_kernel_id id, uint32_t times) {
    td_cuda_run r = {.d = p->d, .stream = p->d->setup};
    td_cuda_launch(&r, id, TD_GRID((size_t)p->multiprocessors * TD_CUDA_BOUND_MMA_BLOCKS, 1, 1), 0,
                   (void *const[]){TD_U(times), TD_P(p->to)}, 2);
    return r.status;
}

static td_status enqueue_int8(probe *p, uint32_t times) {
    return enqueue_products(p, TD_CUDA_KERNEL_BOUND_INT8, times);
}

static td_status enqueue_bf16(probe *p, uint32_t times) {
    return enqueue_products(p, TD_CUDA_KERNEL_BOUND_BF16, times);
}

static double read_work(const probe *p) {
    return (double)p->bytes;
}
static double copy_work(const probe *p) {
    return 2 * (double)p->bytes;
}
static double products_of(const probe *p) {
    return (double)(threads_of(p, TD_CUDA_BOUND_MMA_BLOCKS) / 32 * TD_CUDA_BOUND_CHAINS);
}
static double int8_work(const probe *p) {
    return TD_CUDA_BOUND_INT8_OPS * products_of(p);
}
static double bf16_work(const probe *p) {
    return TD_CUDA_BOUND_BF16_OPS * products_of(p);
}

static const probe_kind KINDS[] = {[TD_BOUND_READ] = {enqueue_reads, read_work},
                                   [TD_BOUND_COPY] = {enqueue_copies, copy_work},
                                   [TD_BOUND_INT8] = {enqueue_int8, int8_work},
                                   [TD_BOUND_BF16] = {enqueue_bf16, bf16_work}};

static td_status settle(probe *p, td_error *err) {
    return td_cuda_done(p->d, "cuStreamSynchronize", p->d->cu->cuStreamSynchronize(p->d->setup), err);
}

static td_status ask(probe *p, td_npu_bound what, td_error *err) {
    td_cuda_npu *d = p->d;
    int          multiprocessors = 0, cache = 0;
    td_cu_status said =
        d->cu->cuDeviceGetAttribute(&multiprocessors, TD_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->device);
    if (said == TD_CUDA_SUCCESS) said = d->cu->cuDeviceGetAttribute(&cache, TD_CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, d->device);
    TD_TRY(td_cuda_done(d, "cuDeviceGetAttribute", said, err));
    if (multiprocessors < 1 || multiprocessors > UINT16_MAX || cache < 1 || cache > CACHE_MOST)
        return td_fail(err, TD_EDEVICE, "CUDA card %u says that it has %d multiprocessors and a cache of %d bytes",
                       d->base.config.card, multiprocessors, cache);
    p->multiprocessors = (uint32_t)multiprocessors;
    p->bytes = what == TD_BOUND_READ || what == TD_BOUND_COPY ? (size_t)cache / 16 * 16 * BUFFER_CACHES : 0;
    p->to_bytes = threads_of(p, TD_CUDA_BOUND_READ_BLOCKS) * sizeof(uint32_t);
    if (what == TD_BOUND_COPY && p->to_bytes < p->bytes) p->to_bytes = p->bytes;
    return TD_OK;
}

/* What is read was written once: a page that never was need not come from memory. */
static td_status take(probe *p, td_error *err) {
    td_cuda_npu *d = p->d;
    TD_TRY(td_card_take(&d->base, p->to_bytes, &p->to, err));
    if (!p->bytes) return TD_OK;
    TD_TRY(td_card_take(&d->base, p->bytes, &p->from, err));
    return td_cuda_done(d, "cuMemsetD8Async", d->cu->cuMemsetD8Async(td_cuda_address(p->from), 0x5a, p->bytes, d->setup),
                        err);
}

static td_status measure(probe *p, const probe_kind *kind, double *per_s, td_error *err) {
    double seconds = 0;
    TD_TRY(settle(p, err));
    for (uint32_t doublings = 0; doublings <= DOUBLINGS_MAX && seconds < ENOUGH_S; doublings++) {
        uint32_t  times = 1u << doublings;
        uint64_t  begin = td_trace_now();
        td_status st = kind->enqueue(p, times);
        TD_TRY(settle(p, err)); /* before the buffers are freed, too */
        if (st != TD_OK) return td_fail(err, st, "CUDA card %u: a bound cannot be measured", p->d->base.config.card);
        seconds = (double)(td_trace_now() - begin) * 1e-9;
        *per_s = times * kind->work(p) / seconds;
    }
    return TD_OK;
}

td_status td_cuda_bound(td_npu *base, td_npu_bound what, double *per_s, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    probe        p = {.d = d};
    *per_s = 0;
    if (d->base.config.bare) return td_fail(err, TD_EINVAL, "the card was opened without its kernels");
    TD_TRY(td_card_enter(&d->base));
    td_status st = ask(&p, what, err);
    if (st == TD_OK) st = take(&p, err);
    if (st == TD_OK) st = measure(&p, &KINDS[what], per_s, err);
    td_card_give(&d->base, p.from);
    td_card_give(&d->base, p.to);
    return st;
}
