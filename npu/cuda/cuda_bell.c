#include "npu/cuda/cuda_bell.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "npu/carried_rows.h"
#include "npu/cuda/cuda_op.h"
#include "npu/cuda/cuda_stream.h"
#include "npu/handover_time.h"

#define ROUNDS 5
/* The trial has an idle expert pool and nothing else in its graph. In a step the other ways cost ten times what kernels do
 * (docs/cuda.md, Hand-over), so kernels are taken unless the trial finds them this much slower. */
#define KERNELS_MAY_TAKE 4.0

_Static_assert(TD_CUDA_CARRIED == TD_CARRIED_ARRAYS, "a kernel takes what a hand-over carries");

/* Pinned memory as the card sees it. */
static td_status address_of(td_cuda_npu *d, const volatile void *pinned, td_cu_address *out) {
    return td_cuda_accepted(d, "cuMemHostGetDevicePointer",
                            d->cu->cuMemHostGetDevicePointer(out, (void *)(uintptr_t)pinned, 0));
}

/* ---- words -------------------------------------------------------------------------------------- */

static td_status word_of(td_npu_stream *s, td_bell *bell, td_cu_address *out) {
    td_cuda_npu *d = td_cuda_of(s);
    TD_TRY(td_card_enter(&d->base));
    return address_of(d, bell, out);
}

static td_status enqueued(td_npu_stream *s, const char *call, td_cu_status said) {
    TD_TRY(td_cuda_accepted(td_cuda_of(s), call, said));
    td_card_launched(s, 1);
    return TD_OK;
}

static td_status write_word(td_npu_stream *s, td_cu_address word, uint32_t value) {
    return enqueued(s, "cuStreamWriteValue32", td_cuda_of(s)->cu->cuStreamWriteValue32(s->stream, word, value, 0));
}

static td_status ring_word(td_npu_stream *s, td_bell *bell) {
    td_cu_address word;
    TD_TRY(word_of(s, bell, &word));
    return write_word(s, word, 1);
}

static td_status await_word(td_npu_stream *s, td_bell *bell) {
    td_cu_address word;
    TD_TRY(word_of(s, bell, &word));
    TD_TRY(enqueued(s, "cuStreamWaitValue32",
                    td_cuda_of(s)->cu->cuStreamWaitValue32(s->stream, word, 1, TD_CU_STREAM_WAIT_VALUE_GEQ)));
    return write_word(s, word, 0); /* whoever rings it next has heard from us in between */
}

/* ---- kernels ------------------------------------------------------------------------------------ */

/* One kernel that carries rows and rings, or waits and carries rows. */
static td_status launch(td_npu_stream *s, td_bell *bell, const td_carried *rows, td_copy_kind kind) {
    td_cuda_npu  *d = td_cuda_of(s);
    td_cuda_run   r = {.d = d, .stream = s->stream};
    td_cu_address word, to[TD_CUDA_CARRIED] = {0}, from[TD_CUDA_CARRIED] = {0};
    uint32_t      row[TD_CUDA_CARRIED] = {0};
    size_t        bytes = 0;
    TD_TRY(word_of(s, bell, &word));
    for (uint32_t i = 0; rows && i < rows->n; i++) {
        to[i] = td_cuda_address(rows->arrays[i].to);
        from[i] = td_cuda_address(rows->arrays[i].from);
        TD_TRY(kind == TD_COPY_H2D ? address_of(d, rows->arrays[i].from, &from[i])
                                   : address_of(d, rows->arrays[i].to, &to[i]));
        row[i] = (uint32_t)rows->arrays[i].row_bytes;
        bytes += rows->arrays[i].row_bytes * rows->step->max_tok;
    }
    td_cuda_kernel_id id = kind == TD_COPY_H2D ? TD_CUDA_KERNEL_AWAIT_ROWS : TD_CUDA_KERNEL_RING_ROWS;
    size_t            blocks = td_div_up(bytes, TD_CUDA_CARRY_BYTES);
    void *const       args[] = {TD_P(bytes ? &rows->step->dev.counts->n_tok : NULL),
                                &to[0],
                                &from[0],
                                &row[0],
                                &to[1],
                                &from[1],
                                &row[1],
                                &to[2],
                                &from[2],
                                &row[2],
                                &to[3],
                                &from[3],
                                &row[3],
                                &d->came,
                                &word};
    td_cuda_launch(&r, id,
                   TD_GRID(blocks < 1                      ? 1
                           : blocks > TD_CUDA_CARRY_BLOCKS ? TD_CUDA_CARRY_BLOCKS
                                                           : blocks,
                           1, 1),
                   0, args, sizeof args / sizeof *args);
    td_card_launched(s, r.launches);
    if (r.status == TD_OK) td_card_linked(s, kind, bytes);
    return r.status;
}

/* ---- either ------------------------------------------------------------------------------------- */

td_status td_cuda_bell_ring(td_npu *base, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    switch (((td_cuda_npu *)base)->bells) {
        case TD_CUDA_BELLS_KERNELS: return launch(s, bell, rows, TD_COPY_D2H);
        case TD_CUDA_BELLS_WORDS: TD_TRY(td_carry_by_copies(base, s, rows, TD_COPY_D2H)); return ring_word(s, bell);
        default: return td_card_bell_ring(base, s, bell, rows);
    }
}

td_status td_cuda_bell_wait(td_npu *base, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    switch (((td_cuda_npu *)base)->bells) {
        case TD_CUDA_BELLS_KERNELS: return launch(s, bell, rows, TD_COPY_H2D);
        case TD_CUDA_BELLS_WORDS: TD_TRY(await_word(s, bell)); return td_carry_by_copies(base, s, rows, TD_COPY_H2D);
        default: return td_card_bell_wait(base, s, bell, rows);
    }
}

/* ---- the choice --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *words;
} WAYS[TD_CUDA_BELLS_COUNT] = {[TD_CUDA_BELLS_CALLS] = {"calls", "host functions"},
                               [TD_CUDA_BELLS_WORDS] = {"words", "the driver's words"},
                               [TD_CUDA_BELLS_KERNELS] = {"kernels", "kernels"}};

static td_status named_way(td_cuda_npu *d, const char *name, td_error *err) {
    for (d->bells = 0; d->bells < TD_CUDA_BELLS_COUNT && strcmp(name, WAYS[d->bells].name) != 0;) d->bells++;
    if (d->bells == TD_CUDA_BELLS_COUNT)
        return td_fail(err, TD_EINVAL, "TD_CUDA_BELLS is calls, words or kernels, not \"%.40s\"", name);
    if (d->bells == TD_CUDA_BELLS_KERNELS && !d->kernels.module)
        return td_fail(err, TD_ENOTFOUND, "TD_CUDA_BELLS is kernels, and the card was opened without its kernels");
    return TD_OK;
}

/* A wait takes as long as the experts: seconds, where they come from a file. */
static bool may_wait_in_kernels(const td_cuda_npu *d) {
    if (d->kernels.module && d->ends_long_kernels)
        td_info("doorbells: not by kernels: the driver ends those of this card that run for seconds, as for a display");
    return d->kernels.module && !d->ends_long_kernels;
}

td_status td_cuda_bells_open(td_cuda_npu *d, td_error *err) {
    const char   *named = getenv("TD_CUDA_BELLS");
    td_cuda_bells best = TD_CUDA_BELLS_CALLS;
    double        took[TD_CUDA_BELLS_COUNT];
    if (named) return named_way(d, named, err);
    td_info("doorbells: trying host functions, the driver's waits for words, kernels that wait (TD_CUDA_BELLS names one)");
    for (d->bells = 0; d->bells < TD_CUDA_BELLS_COUNT; d->bells++) {
        td_error why = {0};
        if (d->bells == TD_CUDA_BELLS_KERNELS && !may_wait_in_kernels(d)) continue;
        td_status st = td_handover_time(&d->base.npu, TD_HANDOVER_DOORBELL, ROUNDS, &took[d->bells], &why);
        if (st != TD_OK && td_card_loss_get(&d->base.loss, err)) return TD_EDEVICE;
        if (st != TD_OK && d->bells == TD_CUDA_BELLS_CALLS) return td_fail(err, st, "%s", why.text);
        if (st != TD_OK) {
            td_info("doorbells: not by %s, which fail: %s", WAYS[d->bells].words, why.text);
            continue;
        }
        td_info("doorbells: %.1f us by %s", took[d->bells] * 1e6, WAYS[d->bells].words);
        double may = d->bells == TD_CUDA_BELLS_KERNELS ? KERNELS_MAY_TAKE : 1;
        if (took[d->bells] < may * took[best]) best = d->bells;
    }
    d->bells = best;
    td_info("doorbells: by %s", WAYS[best].words);
    return TD_OK;
}
