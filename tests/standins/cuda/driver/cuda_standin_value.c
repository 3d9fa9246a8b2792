/*
 * Words that a stream writes, and waits for: the driver's "Stream Memory Operations".
 *
 * Waiting for a word orders nothing between streams here. The manual says that "Synchronization ordering established through
 * these APIs is not visible to CUDA". It adds that tasks so ordered "should also have that order expressed with CUDA-visible
 * dependencies such as events". The check of memory that two streams use reports a missing event. Order between a stream and
 * the host, which writes the word or reads it, is not checked. Of what kernels tell while they run, a word that a stream
 * writes comes before what the host enqueues then; and what the host has synchronised comes before what waited for a word.
 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

typedef struct {
    const void *at;
    uint64_t    value;
    size_t      bytes;
    unsigned    flags;
} word;

bool standin_can_64_bit(void) {
    return standin_setting("TD_STANDIN_64_BIT", 1) != 0;
}

static uint64_t load(const word *w, const char *what) {
    void *real = standin_real(w->at, w->bytes, what);
    return w->bytes == 4 ? __atomic_load_n((uint32_t *)real, __ATOMIC_ACQUIRE)
                         : __atomic_load_n((uint64_t *)real, __ATOMIC_ACQUIRE);
}

bool standin_value_came(const standin_op *op) {
    const word *w = op->payload;
    uint64_t    now = load(w, op->name), value = w->value;
    switch (w->flags) {
        case TD_CU_STREAM_WAIT_VALUE_GEQ: /* cyclic */
            return w->bytes == 4 ? (int32_t)(uint32_t)(now - value) >= 0 : (int64_t)(now - value) >= 0;
        case TD_CU_STREAM_WAIT_VALUE_EQ: return now == value;
        default: return (now & value) != 0;
    }
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/** In a context that has failed it ends at once, and nothing behind it runs. */
static void run_wait(standin_op *op, td_cu_stream s) {
    uint64_t begin = now_ms(), longest = standin_setting("TD_STANDIN_WAIT_MS", 60000);
    while (!atomic_load(&s->context->failure) && !standin_value_came(op)) {
        if (now_ms() - begin > longest)
            standin_refuse(op->name, "a stream waits for a word that has not come for %llu ms", (unsigned long long)longest);
        usleep(20);
    }
}

static void run_write(standin_op *op, td_cu_stream s) {
    const word *w = op->payload;
    void       *real = standin_real(w->at, w->bytes, op->name);
    (void)s;
    if (w->bytes == 4)
        __atomic_store_n((uint32_t *)real, (uint32_t)w->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)real, w->value, __ATOMIC_RELEASE);
}

static void drop(standin_op *op) {
    free(op->payload);
}

static void check(const char *call, const word *w, unsigned flags_most) {
    if ((uintptr_t)w->at % w->bytes) standin_refuse(call, "%s of the word at %p, which is not aligned", call, w->at);
    if (w->flags > flags_most) standin_refuse("stand-in", "%s with flags 0x%x, which are not here", call, w->flags);
    STANDIN_LOCKED;
    const standin_memory *m = standin_memory_of(w->at, w->bytes);
    if (!m) standin_refuse(call, "%s of a word at %p, in no live memory of a device and in no pinned memory", call, w->at);
    if (m->device >= 0 && m->device != standin_current()->device)
        standin_refuse(call, "%s of a word of device %d on a stream of device %d: access between devices was not enabled",
                       call, m->device, standin_current()->device);
}

static td_cu_status submit(const char *call, standin_op_kind kind, word given, td_cu_stream stream) {
    bool         writes = kind == STANDIN_WRITE_VALUE;
    td_cu_stream s = standin_stream_of(stream, call);
    check(call, &given, writes ? 0 : TD_CU_STREAM_WAIT_VALUE_AND);
    STANDIN_CAN_FAIL_OF(call);
    if (given.bytes == 8 && !standin_can_64_bit()) return TD_CUDA_ERROR_NOT_SUPPORTED;
    standin_op *op = standin_op_new(call, kind, writes ? run_write : run_wait);
    word       *w = malloc(sizeof *w);
    *w = given;
    op->payload = w;
    op->drop = drop;
    standin_op_use(op, w->at, w->bytes, writes, true); /* words are there to be used by two at once */
    standin_submit(s, op);
    return TD_CUDA_SUCCESS;
}

static const void *at_of(td_cu_address a) {
    return (const void *)(uintptr_t)a;
}

td_cu_status cuStreamWaitValue32_v2(td_cu_stream stream, td_cu_address at, uint32_t value, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return submit("cuStreamWaitValue32", STANDIN_WAIT_VALUE, (word){at_of(at), value, 4, flags}, stream);
}
td_cu_status cuStreamWaitValue64_v2(td_cu_stream stream, td_cu_address at, uint64_t value, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return submit("cuStreamWaitValue64", STANDIN_WAIT_VALUE, (word){at_of(at), value, 8, flags}, stream);
}
td_cu_status cuStreamWriteValue32_v2(td_cu_stream stream, td_cu_address at, uint32_t value, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return submit("cuStreamWriteValue32", STANDIN_WRITE_VALUE, (word){at_of(at), value, 4, flags}, stream);
}
td_cu_status cuStreamWriteValue64_v2(td_cu_stream stream, td_cu_address at, uint64_t value, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return submit("cuStreamWriteValue64", STANDIN_WRITE_VALUE, (word){at_of(at), value, 8, flags}, stream);
}
