/*
 * "apart": the contract of npu.h on any machine. It computes as the host device does, with the same bits, but
 *  - its memory is out of reach of everybody else (guarded_memory.h): what forgets a copy ends the process;
 *  - its streams are threads, and every operation may be delayed at random (TD_CHAOS_SEED; 1 without);
 *  - copies must have one side in its memory and the other in memory that it gave out as pinned, and are counted;
 *  - while a stream is captured, nothing may be allocated, freed or synchronised;
 *  - any call can be made to fail: TD_CHAOS_FAIL_DEVICE=n or n,count (core/threads/chaos.h);
 *  - TD_APART_MEMORY=bytes limits its memory; without, it has half of the machine's;
 *  - TD_APART_SPEEDS=link,memory,operations is for benches (bench/bench_stream): a copy and a block take the time that they
 *    would at these rates, in bytes and operations a second, and blocks with products compute nothing.
 * What breaks a rule is a bug of ours and ends the process with a sentence.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/machine/cpu.h"
#include "core/plural.h"
#include "core/threads/chaos.h"
#include "npu/apart/guarded_memory.h"
#include "npu/block_buffers.h"
#include "npu/carried_rows.h"
#include "npu/host/host_device.h"

typedef struct apart {
    td_host_npu      host; /* first */
    td_regions       device, pinned, registered;
    struct apart    *registrar;    /* itself, or its group's first card: what that registered may be copied */
    uint64_t         memory_bytes; /* it has */
    _Atomic uint64_t weight_bytes; /* of that, in weights */
    td_host_link     down, up;
    _Atomic uint32_t capturing; /* streams */
} apart;

_Noreturn static void __attribute__((format(printf, 1, 2))) broken(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("apart: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

static void not_captured(apart *a, const char *what) {
    if (atomic_load(&a->capturing)) broken("%s while a stream is captured", what);
}

static td_status refused(td_error *err, const char *what) {
    return td_fail(err, TD_EDEVICE, "%s failed, as TD_CHAOS_FAIL_DEVICE wants it", what);
}

/* Whether TD_CHAOS_FAIL_DEVICE wants this call to fail. */
static bool fails(td_npu *d) {
    bool wanted = td_chaos_device_fails();
    if (wanted) td_card_count(&((apart *)d)->host.given.failures);
    return wanted;
}

static void *reach(const void *device, const td_npu *d) {
    void *real = td_regions_find(&((apart *)d)->device, device, 1);
    if (!real) broken("%p is not in the device's memory", device);
    return real;
}

/* ---- the device -------------------------------------------------------------------------------- */

static void close_device(td_npu *d) {
    apart *a = (apart *)d;
    if (td_regions_bytes(&a->device)) broken("%zu bytes of its memory were not given back", td_regions_bytes(&a->device));
    if (td_regions_bytes(&a->pinned)) broken("%zu bytes of pinned memory were not given back", td_regions_bytes(&a->pinned));
    if (td_regions_bytes(&a->registered)) broken("%zu bytes are registered still", td_regions_bytes(&a->registered));
    td_regions_close(&a->device);
    td_regions_close(&a->pinned);
    td_regions_close(&a->registered);
    td_host_npu_free(&a->host);
}

static uint64_t used_bytes(apart *a) {
    return td_regions_bytes(&a->device) + atomic_load(&a->weight_bytes);
}

static uint64_t free_bytes(apart *a) {
    uint64_t used = used_bytes(a);
    return a->memory_bytes > used ? a->memory_bytes - used : 0;
}

static void caps(td_npu *d, td_npu_caps *out) {
    apart *a = (apart *)d;
    *out = (td_npu_caps){.handover = TD_HANDOVER_DOORBELL,
                         .experts = true,
                         .resident = true,
                         .recurrent = true,
                         .chosen_keys = true,
                         .kv_int8 = true,
                         .log_sums = true,
                         .rope_axes = true,
                         .vision = true,
                         .pieces = true,
                         .memory_total = a->memory_bytes,
                         .memory_free = free_bytes(a)};
    snprintf(out->text, sizeof out->text, "apart, for tests (%u thread%s, %s)", a->host.n_workers,
             td_plural(a->host.n_workers), td_cpu_tier_name(td_cpu_features()));
}

static void report(td_npu *d, td_npu_report *out) {
    apart *a = (apart *)d;
    out->work = td_tier_read(&a->host.meter);
    out->doing = td_tier_doing(&a->host.meter, &out->layer);
    out->link_down_bytes = atomic_load_explicit(&a->down.bytes, memory_order_relaxed);
    out->link_up_bytes = atomic_load_explicit(&a->up.bytes, memory_order_relaxed);
}

static void stats(td_npu *d, td_card_stats *out) {
    apart *a = (apart *)d;
    *out = (td_card_stats){.memory_total = a->memory_bytes, .memory_free = free_bytes(a), .temperature_c = NAN};
    td_card_read(&a->host.given, out);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static td_status take(apart *a, size_t bytes, td_error *err) {
    uint64_t used = used_bytes(a);
    if (used <= a->memory_bytes && bytes <= a->memory_bytes - used) return TD_OK;
    return td_fail(err, TD_ENOMEM,
                   "the device has %" PRIu64 " bytes of memory, of which %" PRIu64 " are taken: %zu more do not fit",
                   a->memory_bytes, used, bytes);
}

static td_status alloc(td_npu *d, size_t bytes, void **out, td_error *err) {
    apart *a = (apart *)d;
    *out = NULL;
    not_captured(a, "device memory is allocated");
    if (fails(d)) return refused(err, "an allocation");
    TD_TRY(take(a, bytes, err));
    return td_regions_add(&a->device, bytes, td_pool_home(a->host.pool), false, out, err);
}

static td_status host_alloc(td_npu *d, size_t bytes, void **out, td_error *err) {
    apart *a = (apart *)d;
    *out = NULL;
    not_captured(a, "pinned memory is allocated");
    if (fails(d)) return refused(err, "an allocation of pinned memory");
    return td_regions_add(&a->pinned, bytes, td_pool_home(a->host.pool), true, out, err);
}

static td_status host_register(td_npu *d, void *p, size_t bytes, td_error *err) {
    apart *a = (apart *)d;
    not_captured(a, "memory is pinned");
    if (fails(d)) return refused(err, "memory that is to be pinned");
    return td_regions_adopt(&a->registered, p, bytes, err);
}

static void host_unregister(td_npu *d, void *p, size_t bytes) {
    apart *a = (apart *)d;
    not_captured(a, "memory is unpinned");
    if (!td_regions_remove(&a->registered, p)) broken("%p, %zu bytes, is unregistered and was not registered", p, bytes);
}

static void release(td_npu *d, void *p, size_t bytes) {
    apart *a = (apart *)d;
    not_captured(a, "device memory is freed");
    if (p && !td_regions_remove(&a->device, p)) broken("%p, %zu bytes, is freed and is not in its memory", p, bytes);
}

static void host_release(td_npu *d, void *p, size_t bytes) {
    apart *a = (apart *)d;
    not_captured(a, "pinned memory is freed");
    if (p && !td_regions_remove(&a->pinned, p)) broken("%p, %zu bytes, is freed and is not pinned", p, bytes);
}

/* ---- streams ----------------------------------------------------------------------------------- */

static td_status stream_create(td_npu *d, td_npu_stream **out, td_error *err) {
    *out = NULL;
    if (fails(d)) return refused(err, "a stream");
    return td_host_stream_create(d, out, err);
}

static td_status stream_sync(td_npu *d, td_npu_stream *s) {
    not_captured((apart *)d, "a stream is synchronised");
    td_status st = td_host_stream_sync(d, s);
    if (st != TD_OK) td_card_count(&((apart *)d)->host.given.failures);
    return fails(d) ? TD_EDEVICE : st;
}

static td_status copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    apart      *a = (apart *)d;
    const void *device = kind == TD_COPY_H2D ? dst : src, *pinned = kind == TD_COPY_H2D ? src : dst;
    char       *real = td_regions_find(&a->device, device, bytes);
    if (!real) broken("a copy of %zu bytes: %p is not in its memory", bytes, device);
    if (!td_regions_find(&a->pinned, pinned, bytes) && !td_regions_find(&a->registrar->registered, pinned, bytes))
        broken("a copy of %zu bytes: %p is not pinned memory", bytes, pinned);
    if (fails(d)) return TD_EDEVICE;
    return td_host_link_copy(d, s, kind == TD_COPY_H2D ? real : dst, kind == TD_COPY_H2D ? src : real, bytes,
                             kind == TD_COPY_H2D ? &a->down : &a->up);
}

static td_status host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg) {
    return fails(d) ? TD_EDEVICE : td_host_call(d, s, fn, arg);
}

static void check_bell(td_npu *d, td_bell *bell) {
    if (!td_regions_find(&((apart *)d)->pinned, bell, sizeof *bell))
        broken("the bell at %p is not in pinned memory", (void *)bell);
}

static td_status bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    check_bell(d, bell);
    TD_TRY(td_carry_by_copies(d, s, rows, TD_COPY_D2H));
    return fails(d) ? TD_EDEVICE : td_host_bell_ring(d, s, bell, NULL);
}

static td_status bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    check_bell(d, bell);
    if (fails(d)) return TD_EDEVICE;
    TD_TRY(td_host_bell_wait(d, s, bell, NULL));
    return td_carry_by_copies(d, s, rows, TD_COPY_H2D);
}

static td_status graph_begin(td_npu *d, td_npu_stream *s) {
    if (fails(d)) return TD_EDEVICE;
    TD_TRY(td_host_graph_begin(d, s));
    atomic_fetch_add(&((apart *)d)->capturing, 1);
    return TD_OK;
}

static td_status graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    bool failed = fails(d);
    TD_TRY(td_host_graph_end(d, s, failed ? NULL : out, err));
    atomic_fetch_sub(&((apart *)d)->capturing, 1);
    return failed ? refused(err, "a capture") : TD_OK;
}

static td_status graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g) {
    return fails(d) ? TD_EDEVICE : td_host_graph_launch(d, s, g);
}

static td_status graph_fork(td_npu *d, td_npu_stream *s, td_npu_stream *branch) {
    return fails(d) ? TD_EDEVICE : td_host_graph_fork(d, s, branch);
}

static td_status graph_join(td_npu *d, td_npu_stream *s, td_npu_stream *branch) {
    return fails(d) ? TD_EDEVICE : td_host_graph_join(d, s, branch);
}

static td_status enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    return fails(d) ? TD_EDEVICE : td_host_enqueue(d, s, b, step);
}
static td_status enqueue_part(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step, const td_block_part *part) {
    return fails(d) ? TD_EDEVICE : td_host_enqueue_part(d, s, b, step, part);
}

static td_status group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err) {
    *out = NULL;
    if (fails(*cards)) return refused(err, "a group of cards");
    TD_TRY(td_host_group_create(cards, n, out, err));
    for (uint32_t i = 0; i < n; i++) ((apart *)cards[i])->registrar = (apart *)*cards;
    return TD_OK;
}

/* ---- weights and blocks ------------------------------------------------------------------------ */

static td_status weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                               td_error *err) {
    apart *a = (apart *)d;
    *out = NULL;
    if (fails(d)) return refused(err, "a weight");
    TD_TRY(td_host_weight_create(d, format, src, out, err));
    td_status st = take(a, (*out)->bytes, err);
    if (st != TD_OK) {
        td_host_weight_destroy(d, *out);
        *out = NULL;
        return st;
    }
    atomic_fetch_add(&a->weight_bytes, (*out)->bytes);
    return TD_OK;
}

static void weight_destroy(td_npu *d, td_npu_weight *w) {
    if (w) atomic_fetch_sub(&((apart *)d)->weight_bytes, w->bytes);
    td_host_weight_destroy(d, w);
}

/* A card's memory cannot be taken from a file's pages. */
static void weight_tag(td_npu *d, char tag[TD_NPU_TAG_BYTES]) {
    (void)d;
    tag[0] = 0;
}

static td_status block_create(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err) {
    apart          *a = (apart *)d;
    td_block_desc   real = *desc;
    td_block_buffer list[TD_BLOCK_BUFFERS_MAX];
    size_t          n = td_block_buffers(&real, a->host.act, list);
    *out = NULL;
    if (fails(d)) return refused(err, "a block");
    for (size_t i = 0; i < n; i++)
        if (*list[i].at) *list[i].at = reach(*list[i].at, d);
    return td_host_block_create(d, &real, out, err);
}

static const td_npu_ops OPS = {
    .name = "apart",
    .close = close_device,
    .caps = caps,
    .report = report,
    .stats = stats,
    .alloc = alloc,
    .free = release,
    .host_alloc = host_alloc,
    .host_free = host_release,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .stream_create = stream_create,
    .stream_destroy = td_host_stream_destroy,
    .stream_sync = stream_sync,
    .copy = copy,
    .host_call = host_call,
    .bell_ring = bell_ring,
    .bell_wait = bell_wait,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_fork = graph_fork,
    .graph_join = graph_join,
    .graph_destroy = td_host_graph_destroy,
    .group_create = group_create,
    .group_destroy = td_host_group_destroy,
    .group_abort = td_host_group_abort,
    .group_reset = td_host_group_reset,
    .weight_bytes = td_host_weight_bytes,
    .weight_create = weight_create,
    .weight_destroy = weight_destroy,
    .weight_tag = weight_tag,
    .kv_page_bytes = td_host_kv_page_bytes,
    .block_scratch_bytes = td_host_block_scratch_bytes,
    .block_create = block_create,
    .block_destroy = td_host_block_destroy,
    .enqueue = enqueue,
    .block_parts = td_host_block_parts,
    .enqueue_part = enqueue_part,
};

static uint64_t memory_of(void) {
    const char *limit = getenv("TD_APART_MEMORY");
    if (limit && *limit) return strtoull(limit, NULL, 10);
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
}

static td_status speeds_of(td_host_speeds *v, td_error *err) {
    const char *given = getenv("TD_APART_SPEEDS");
    if (!given || !*given) return TD_OK;
    if (sscanf(given, "%lf,%lf,%lf", &v->link_per_s, &v->read_per_s, &v->ops_per_s) != 3 ||
        !(v->link_per_s > 0 && v->read_per_s > 0 && v->ops_per_s > 0))
        return td_fail(err, TD_EINVAL, "TD_APART_SPEEDS=%.40s: three rates above 0 are wanted: link, memory, operations",
                       given);
    td_warn("TD_APART_SPEEDS: products are not computed, and what the model gives has no meaning");
    return TD_OK;
}

static td_status open_device(const td_npu_config *config, td_npu **out, td_error *err) {
    *out = NULL;
    if (config->host && !config->host->own_threads)
        return td_fail(err, TD_EINVAL, "the device \"apart\" needs threads of its own: give npu-threads");
    if (config->host && config->host->rows_tap)
        return td_fail(err, TD_ENOTSUP, "the device \"apart\" does not show what its linears read; \"host\" does");
    td_host_speeds speeds = {0};
    TD_TRY(speeds_of(&speeds, err));
    apart *a = calloc(1, sizeof *a);
    if (!a) return td_fail(err, TD_ENOMEM, "out of memory for the device");
    td_status st = td_host_npu_init(&a->host, &OPS, config, err);
    if (st != TD_OK) {
        free(a);
        return st;
    }
    a->host.reach = reach;
    a->memory_bytes = memory_of();
    a->host.speeds = speeds;
    td_regions_open(&a->device);
    td_regions_open(&a->pinned);
    td_regions_open(&a->registered);
    a->registrar = a;
    if (!speeds.link_per_s) td_chaos_start();
    *out = &a->host.base;
    return TD_OK;
}

const td_backend td_apart_backend = {
    .name = "apart",
    .help = "the host with a memory of its own",
    .is_for_tests = true,
    .open = open_device,
    .tell_facts = td_host_tell_facts,
    .threads_alone = 1,
    .threads_in_group = 1,
};
