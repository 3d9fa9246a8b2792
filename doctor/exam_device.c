/* Checks everything about a device but its blocks: memory, the link to it, the order of its stream, hand-overs. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "doctor/check.h"
#include "npu/handover_time.h"

#define GIB ((double)(1 << 30))

static void say(td_finding *f, const char *format, ...) TD_PRINTF(2, 3);
static void say(td_finding *f, const char *format, ...) {
    size_t  used = strlen(f->said);
    va_list list;
    va_start(list, format);
    vsnprintf(f->said + used, sizeof f->said - used, format, list);
    va_end(list);
}

static const char PATTERN_SEED = 17;

static void fill_pattern(uint8_t *p, size_t bytes, uint32_t salt) {
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(i * 131 + i / 251 + salt * 29 + (uint32_t)PATTERN_SEED);
}

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t bytes) {
    size_t i = 0;
    while (i < bytes && a[i] == b[i]) i++;
    return i;
}

/* ---- memory ------------------------------------------------------------------------------------ */

#define MEMORY_BYTES ((size_t)8 << 20)

static td_status exam_memory(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    td_npu_caps caps;
    td_rig      r;
    (void)arg;
    e->cards[0]->ops->caps(e->cards[0], &caps);
    say(f, "%s, %.1f of %.1f GiB free", caps.unified_memory ? "this machine's" : "of its own",
        (double)caps.memory_free / GIB, (double)caps.memory_total / GIB);
    if (!caps.memory_total) return td_fail(err, TD_EDEVICE, "the device does not say how much memory it has");
    td_rig_open(&r, e->cards[0], false, err);
    uint8_t *device = td_rig_alloc(&r, MEMORY_BYTES), *there = td_rig_host(&r, MEMORY_BYTES),
            *here = td_rig_host(&r, MEMORY_BYTES), *pinned = td_rig_pinned(&r, 4096);
    td_rig_get(&r, device, there, MEMORY_BYTES);
    if (r.st == TD_OK && first_difference(there, here, MEMORY_BYTES) < MEMORY_BYTES)
        td_rig_fail(&r, TD_EDEVICE, "memory that was allocated is not zero");
    if (r.st == TD_OK && first_difference(pinned, here, 4096) < 4096)
        td_rig_fail(&r, TD_EDEVICE, "pinned memory that was allocated is not zero");
    if (r.st == TD_OK) fill_pattern(here, MEMORY_BYTES, 0);
    td_rig_put(&r, device, here, MEMORY_BYTES);
    td_rig_get(&r, device, there, MEMORY_BYTES);
    if (r.st == TD_OK && first_difference(there, here, MEMORY_BYTES) < MEMORY_BYTES)
        td_rig_fail(&r, TD_EDEVICE, "memory does not hold what was written to it");
    return td_rig_close(&r);
}

/* Asks for more memory than the device has, which must be refused as a shortage of memory. */
static td_status exam_too_much(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    td_npu     *d = e->cards[0];
    td_npu_caps caps;
    void       *p = NULL;
    td_error    why = {0};
    (void)arg;
    d->ops->caps(d, &caps);
    if (caps.unified_memory) return td_fail(err, TD_ENOTSUP, "its memory is this machine's, which ends processes instead");
    size_t    bytes = caps.memory_total + ((size_t)1 << 30);
    td_status st = d->ops->alloc(d, bytes, &p, &why);
    if (st == TD_OK) {
        d->ops->free(d, p, bytes);
        return td_fail(err, TD_EDEVICE, "%zu bytes were given, more than the device has", bytes);
    }
    if (st != TD_ENOMEM) return td_fail(err, st, "it is not refused as memory that is short: %s", why.text);
    say(f, "refused: %.200s", why.text);
    return TD_OK;
}

/* ---- the link ---------------------------------------------------------------------------------- */

#define LINK_ROUNDS 8
static const size_t LINK_BYTES[] = {(size_t)4 << 10, (size_t)256 << 10, (size_t)16 << 20};
#define LINK_SIZES (sizeof LINK_BYTES / sizeof *LINK_BYTES)

/** @return seconds of one copy, the shortest of several rounds. */
static double time_copies(td_rig *r, void *device, void *pinned, size_t bytes, td_copy_kind kind) {
    double best = INFINITY;
    for (int i = 0; r->st == TD_OK && i < LINK_ROUNDS; i++) {
        uint64_t  begin = td_trace_now();
        td_status st = kind == TD_COPY_H2D ? r->ops->copy(r->npu, r->stream, device, pinned, bytes, kind)
                                           : r->ops->copy(r->npu, r->stream, pinned, device, bytes, kind);
        if (st != TD_OK) td_rig_fail(r, st, "a copy over the link cannot be enqueued");
        td_rig_sync(r);
        best = fmin(best, (double)(td_trace_now() - begin) * 1e-9);
    }
    return best;
}

static td_status exam_link(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    td_copy_kind kind = *(const td_copy_kind *)arg;
    size_t       largest = LINK_BYTES[LINK_SIZES - 1];
    td_rig       r;
    td_rig_open(&r, e->cards[0], false, err);
    if (r.unified) {
        td_rig_fail(&r, TD_ENOTSUP, "there is none: one memory");
        return td_rig_close(&r);
    }
    uint8_t *pinned = td_rig_pinned(&r, largest), *device = td_rig_alloc(&r, largest), *other = td_rig_pinned(&r, largest);
    if (r.st == TD_OK) fill_pattern(pinned, largest, kind);
    time_copies(&r, device, pinned, largest, TD_COPY_H2D);
    for (size_t i = 0; i < LINK_SIZES; i++) {
        double s = time_copies(&r, device, kind == TD_COPY_H2D ? pinned : other, LINK_BYTES[i], kind);
        if (r.st != TD_OK) break;
        say(f, "%s%zu KiB in %.1f us", i ? ", " : "", LINK_BYTES[i] >> 10, s * 1e6);
        f->value = (double)LINK_BYTES[i] / s * 1e-9;
    }
    f->unit = "GB/s";
    time_copies(&r, device, other, largest, TD_COPY_D2H);
    if (r.st == TD_OK && first_difference(pinned, other, largest) < largest)
        td_rig_fail(&r, TD_EDEVICE, "what came back is not what was sent");
    return td_rig_close(&r);
}

/* ---- the order of a stream ----------------------------------------------------------------------- */

#define ORDER_BYTES 65536
#define ORDER_ROUNDS 32

/* Data that go from pinned memory to the device and back, then to a host call, which checks them and writes the next.
 * Captured once and replayed. */
typedef struct {
    uint8_t *out, *in; /* pinned: data to the device, and data that came back */
    uint32_t round, wrong;
} relay;

static void relay_call(void *arg) {
    relay  *y = arg;
    uint8_t want[256];
    fill_pattern(want, sizeof want, y->round);
    /* also looks at the last byte, which an unfinished copy has not written yet */
    if (first_difference(y->in, want, sizeof want) < sizeof want ||
        y->in[ORDER_BYTES - 1] != (uint8_t)((ORDER_BYTES - 1) * 131 + (ORDER_BYTES - 1) / 251 + y->round * 29 + 17))
        y->wrong++;
    memset(y->in, 0, ORDER_BYTES);
    fill_pattern(y->out, ORDER_BYTES, ++y->round);
}

static td_status exam_order(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    td_npu_graph *g = NULL;
    relay         y = {0};
    td_rig        r;
    (void)arg;
    td_rig_open(&r, e->cards[0], false, err);
    if (r.unified) {
        td_rig_fail(&r, TD_ENOTSUP, "nothing is copied: one memory");
        return td_rig_close(&r);
    }
    void *device = td_rig_alloc(&r, ORDER_BYTES);
    y.out = td_rig_pinned(&r, ORDER_BYTES);
    y.in = td_rig_pinned(&r, ORDER_BYTES);
    if (r.st != TD_OK) return td_rig_close(&r);
    fill_pattern(y.out, ORDER_BYTES, 0);
    td_status st = r.ops->graph_begin(r.npu, r.stream);
    if (st == TD_OK) {
        td_status each[] = {r.ops->copy(r.npu, r.stream, device, y.out, ORDER_BYTES, TD_COPY_H2D),
                            r.ops->copy(r.npu, r.stream, y.in, device, ORDER_BYTES, TD_COPY_D2H),
                            r.ops->host_call(r.npu, r.stream, relay_call, &y)};
        for (size_t i = 0; i < sizeof each / sizeof *each && st == TD_OK; i++) st = each[i];
        td_status ended = r.ops->graph_end(r.npu, r.stream, &g, err);
        if (st == TD_OK) st = ended;
    }
    if (st != TD_OK) td_rig_fail(&r, st, "copies and a host call cannot be captured");
    for (uint32_t i = 0; r.st == TD_OK && i < ORDER_ROUNDS; i++) {
        st = r.ops->graph_launch(r.npu, r.stream, g);
        if (st != TD_OK) td_rig_fail(&r, st, "a capture cannot be replayed");
    }
    td_rig_sync(&r);
    if (r.st == TD_OK && y.round != ORDER_ROUNDS) td_rig_fail(&r, TD_EDEVICE, "not every host call came");
    if (r.st == TD_OK) *f = (td_finding){.value = y.wrong, .bound = 0, .unit = "host calls that saw an unfinished copy"};
    if (g) r.ops->graph_destroy(r.npu, g);
    return td_rig_close(&r);
}

/* ---- hand-over --------------------------------------------------------------------------------- */

#define HANDOVER_ROUNDS 15

static td_status exam_handover(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    td_handover form = *(const td_handover *)arg;
    td_npu_caps caps;
    double      seconds;
    e->cards[0]->ops->caps(e->cards[0], &caps);
    TD_TRY(td_handover_time(e->cards[0], form, HANDOVER_ROUNDS, &seconds, err));
    f->value = seconds * 1e6;
    f->unit = "us, one of 32 in a replay";
    if (caps.handover == form) say(f, "the device's choice");
    return TD_OK;
}

/* ---- the list ---------------------------------------------------------------------------------- */

static const td_copy_kind DOWN = TD_COPY_H2D, UP = TD_COPY_D2H;
static const td_handover  HOST_CALL = TD_HANDOVER_HOST_CALL, DOORBELL = TD_HANDOVER_DOORBELL;

static const td_check CHECKS[] = {
    {"memory", "zeroed, and keeps what is written", exam_memory, NULL, "look at the card's health and at what else uses it",
     TD_SUBJECT_HEALTH},
    {"memory", "more than there is", exam_too_much, NULL, "a start that does not fit will not say so; report this",
     TD_SUBJECT_NONE},
    {"link", "to the device", exam_link, &DOWN, "look at the slot that the card is in, and at the driver's log",
     TD_SUBJECT_NONE},
    {"link", "from the device", exam_link, &UP, "look at the slot that the card is in, and at the driver's log",
     TD_SUBJECT_NONE},
    {"stream", "copies are done before the host call behind them", exam_order, NULL,
     "answers would be wrong: do not serve with this device; report this", TD_SUBJECT_NONE},
    {"hand-over", "host call", exam_handover, &HOST_CALL, "the experts cannot be reached this way; report this",
     TD_SUBJECT_NONE},
    {"hand-over", "doorbell", exam_handover, &DOORBELL, "the experts cannot be reached this way; report this",
     TD_SUBJECT_NONE},
};

td_check_list td_exam_device(void) {
    return (td_check_list){CHECKS, sizeof CHECKS / sizeof *CHECKS};
}
