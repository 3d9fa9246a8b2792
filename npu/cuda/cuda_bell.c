#include "npu/cuda/cuda_bell.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "npu/cuda/cuda_stream.h"
#include "npu/handover_time.h"

#define ROUNDS 5

/* ---- words -------------------------------------------------------------------------------------- */

static td_status word_of(td_npu_stream *s, td_bell *bell, td_cu_address *out) {
    td_cuda_npu *d = td_cuda_of(s);
    TD_TRY(td_card_enter(&d->base));
    return td_cuda_accepted(d, "cuMemHostGetDevicePointer", d->cu->cuMemHostGetDevicePointer(out, (void *)bell, 0));
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

/* ---- either ------------------------------------------------------------------------------------- */

td_status td_cuda_bell_ring(td_npu *base, td_npu_stream *s, td_bell *bell) {
    return ((td_cuda_npu *)base)->bell_words ? ring_word(s, bell) : td_card_bell_ring(base, s, bell);
}

td_status td_cuda_bell_wait(td_npu *base, td_npu_stream *s, td_bell *bell) {
    return ((td_cuda_npu *)base)->bell_words ? await_word(s, bell) : td_card_bell_wait(base, s, bell);
}

static td_status measure(td_cuda_npu *d, bool words, double *seconds, td_error *err) {
    d->bell_words = words;
    return td_handover_time(&d->base.npu, TD_HANDOVER_DOORBELL, ROUNDS, seconds, err);
}

td_status td_cuda_bells_open(td_cuda_npu *d, td_error *err) {
    const char *named = getenv("TD_CUDA_BELLS");
    double      by_words, by_calls;
    td_error    why = {0};
    d->bell_words = named && !strcmp(named, "words");
    if (named && !d->bell_words && strcmp(named, "calls") != 0)
        return td_fail(err, TD_EINVAL, "TD_CUDA_BELLS is words or calls, not \"%.40s\"", named);
    if (named) return TD_OK;
    td_info("doorbells: trying the driver's waits for words (TD_CUDA_BELLS=calls leaves them out)");
    td_status st = measure(d, true, &by_words, &why);
    if (st != TD_OK && td_card_loss_get(&d->base.loss, err)) return TD_EDEVICE;
    if (st != TD_OK) {
        td_info("doorbells: by host functions, as the driver's waits for words fail: %s", why.text);
        d->bell_words = false;
        return TD_OK;
    }
    TD_TRY(measure(d, false, &by_calls, err));
    d->bell_words = by_words < by_calls;
    td_info("doorbells: %.0f us by the driver's words, %.0f us by host functions", by_words * 1e6, by_calls * 1e6);
    return TD_OK;
}
