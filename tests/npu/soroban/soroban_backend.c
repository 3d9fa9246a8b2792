/*
 * A made-up backend, which shows what a third one takes. Its cards have a memory of their own, streams, captures and groups.
 * What they compute with, in place of a vendor's library, is the host device, by its table td_npu_ops.
 *
 * npu/card does what cards have in common; here is what it asks a runtime for (td_card_driver), then blocks and weights,
 * then the backend as a value.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "core/threads/pool.h"
#include "npu/card/card_stream.h"
#include "npu/host/host_npu.h"

#define CARDS 2
#define MEMORY_BYTES ((uint64_t)4 << 30)
#define HEADER_BYTES 64 /* before each piece of device memory: its size; keeps the piece aligned */

typedef struct {
    td_card         base; /* first */
    td_pool        *pool; /* one thread, which is the card */
    td_npu         *beads;
    _Atomic int64_t used_bytes;
} soroban;

struct td_npu_stream {
    td_card_stream base; /* first */
    td_npu_stream *beads;
};

struct td_npu_graph {
    td_card_graph base; /* first */
    td_npu_graph *beads;
};

/* The host device behind a card, and what it does. */
static td_npu *of(void *card) {
    return ((soroban *)card)->beads;
}
static td_npu *of_stream(const td_npu_stream *s) {
    return of(s->base.card);
}

/* ---- the driver: card and memory ----------------------------------------------------------------- */

static td_status enter(td_card *c) {
    return c ? TD_OK : TD_EDEVICE; /* there is no context */
}

static void memory(td_card *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    *total_bytes = MEMORY_BYTES;
    *free_bytes = MEMORY_BYTES - (uint64_t)atomic_load(&((soroban *)c)->used_bytes);
}

static double temperature(td_card *c) {
    (void)c;
    return NAN;
}

static td_status take(td_card *c, size_t bytes, void **out, td_error *err) {
    uint64_t free_bytes, total;
    memory(c, &free_bytes, &total);
    *out = NULL;
    char *p = bytes <= free_bytes ? aligned_alloc(64, HEADER_BYTES + (bytes + 63) / 64 * 64) : NULL;
    if (!p) {
        td_card_count(&c->given.failures);
        return td_fail(err, TD_ENOMEM, "%zu bytes of device memory are not there", bytes);
    }
    *(size_t *)p = bytes;
    atomic_fetch_add(&((soroban *)c)->used_bytes, (int64_t)bytes);
    *out = p + HEADER_BYTES;
    return TD_OK;
}

static void give(td_card *c, void *p) {
    char *piece = (char *)p - HEADER_BYTES;
    atomic_fetch_sub(&((soroban *)c)->used_bytes, (int64_t) * (size_t *)piece);
    free(piece);
}

static td_status zero(td_card *c, void *p, size_t bytes, td_error *err) {
    (void)c, (void)err;
    memset(p, 0, bytes);
    return TD_OK;
}

static td_status upload(td_card *c, void *dev, const void *host, size_t bytes, td_error *err) {
    (void)c, (void)err;
    memcpy(dev, host, bytes);
    return TD_OK;
}

static td_status pin(td_card *c, size_t bytes, void **out, td_error *err) {
    return of(c)->ops->host_alloc(of(c), bytes, out, err);
}

static void unpin(td_card *c, void *p, size_t bytes) {
    of(c)->ops->host_free(of(c), p, bytes);
}

/* ---- the driver: streams and captures -------------------------------------------------------------- */

static td_status stream_open(td_npu_stream *s, td_error *err) {
    return of_stream(s)->ops->stream_create(of_stream(s), &s->beads, err);
}

static void stream_close(td_npu_stream *s) {
    of_stream(s)->ops->stream_destroy(of_stream(s), s->beads);
}

static td_status stream_wait(td_npu_stream *s) {
    return of_stream(s)->ops->stream_sync(of_stream(s), s->beads);
}

static td_status copy(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    return of_stream(s)->ops->copy(of_stream(s), s->beads, dst, src, bytes, kind);
}

static td_status host_call(td_npu_stream *s, td_host_fn fn, void *arg) {
    return of_stream(s)->ops->host_call(of_stream(s), s->beads, fn, arg);
}

static td_status capture_begin(td_npu_stream *s) {
    return of_stream(s)->ops->graph_begin(of_stream(s), s->beads);
}

static td_status capture_end(td_npu_stream *s, td_npu_graph *g, bool keep, td_error *err) {
    return of_stream(s)->ops->graph_end(of_stream(s), s->beads, keep ? &g->beads : NULL, err);
}

static td_status launch(td_npu_stream *s, td_npu_graph *g) {
    return of_stream(s)->ops->graph_launch(of_stream(s), s->beads, g->beads);
}

static void graph_close(td_card *c, td_npu_graph *g) {
    if (g->beads) of(c)->ops->graph_destroy(of(c), g->beads);
}

static const td_card_driver DRIVER = {
    .stream_bytes = sizeof(td_npu_stream),
    .graph_bytes = sizeof(td_npu_graph),
    .enter = enter,
    .memory = memory,
    .temperature = temperature,
    .take = take,
    .give = give,
    .zero = zero,
    .upload = upload,
    .pin = pin,
    .unpin = unpin,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .stream_wait = stream_wait,
    .copy = copy,
    .host_call = host_call,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .launch = launch,
    .graph_close = graph_close,
};

/* ---- groups, weights, blocks ----------------------------------------------------------------------- */

static td_status group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err) {
    td_npu *beads[CARDS];
    *out = NULL;
    if (n > CARDS) return td_fail(err, TD_EINVAL, "there are %d cards", CARDS);
    for (uint32_t i = 0; i < n; i++) beads[i] = of(cards[i]);
    return of(cards[0])->ops->group_create(beads, n, out, err);
}

/* A group does not know its cards; all host devices have one table. */
static const td_npu_ops *group_ops;

static void group_destroy(td_npu_group *g) {
    group_ops->group_destroy(g);
}
static void group_abort(td_npu_group *g) {
    group_ops->group_abort(g);
}
static void group_reset(td_npu_group *g) {
    group_ops->group_reset(g);
}

static size_t weight_bytes(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k) {
    return of(d)->ops->weight_bytes(of(d), format, group, n, k);
}
static td_status weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                               td_error *err) {
    return of(d)->ops->weight_create(of(d), format, src, out, err);
}
static void weight_destroy(td_npu *d, td_npu_weight *w) {
    of(d)->ops->weight_destroy(of(d), w);
}

static size_t kv_page_bytes(td_npu *d, td_kv_rows what, size_t n) {
    return of(d)->ops->kv_page_bytes(of(d), what, n);
}
static size_t block_scratch_bytes(td_npu *d, const td_block_desc *desc) {
    return of(d)->ops->block_scratch_bytes(of(d), desc);
}
static td_status block_create(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err) {
    return of(d)->ops->block_create(of(d), desc, out, err);
}
static void block_destroy(td_npu *d, td_npu_block *b) {
    of(d)->ops->block_destroy(of(d), b);
}
static td_status enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    TD_TRY(of(d)->ops->enqueue(of(d), s->beads, b, step));
    td_card_launched(s, 1);
    return TD_OK;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static void caps(td_npu *d, td_npu_caps *out) {
    *out = (td_npu_caps){.text = "an abacus", .handover = TD_HANDOVER_HOST_CALL, .experts = true, .log_sums = true};
    memory((td_card *)d, &out->memory_free, &out->memory_total);
}

static void close_card(td_npu *d) {
    soroban *a = (soroban *)d;
    td_card_close_memory(&a->base);
    if (a->beads) a->beads->ops->close(a->beads);
    td_pool_destroy(a->pool);
    free(a);
}

static const td_npu_ops OPS = {
    TD_CARD_OPS,
    .name = "soroban",
    .close = close_card,
    .caps = caps,
    .bell_ring = td_card_bell_ring,
    .bell_wait = td_card_bell_wait,
    .group_create = group_create,
    .group_destroy = group_destroy,
    .group_abort = group_abort,
    .group_reset = group_reset,
    .weight_bytes = weight_bytes,
    .weight_create = weight_create,
    .weight_destroy = weight_destroy,
    .kv_page_bytes = kv_page_bytes,
    .block_scratch_bytes = block_scratch_bytes,
    .block_create = block_create,
    .block_destroy = block_destroy,
    .enqueue = enqueue,
};

static td_status open_card(soroban *a, td_error *err) {
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    TD_TRY(td_pool_create(&place, 1, &a->pool, err));
    td_host_npu_config host = {.pool = a->pool, .own_threads = true};
    td_npu_config      config = {.act_dtype = a->base.config.act_dtype, .host = &host};
    TD_TRY(td_npu_open("host", &config, &a->beads, err));
    group_ops = a->beads->ops;
    return td_card_open_memory(&a->base, err);
}

static td_status open_soroban(const td_npu_config *config, td_npu **out, td_error *err) {
    *out = NULL;
    if (config->card >= CARDS) return td_fail(err, TD_EINVAL, "there is no soroban %u: there are %d", config->card, CARDS);
    soroban *a = calloc(1, sizeof *a);
    if (!a) return td_fail(err, TD_ENOMEM, "out of memory for the device");
    td_card_init(&a->base, &OPS, &DRIVER, config);
    td_status st = open_card(a, err);
    if (st == TD_OK)
        *out = &a->base.npu;
    else
        close_card(&a->base.npu);
    return st;
}

static void tell_facts(td_npu_fact_fn tell, void *user) {
    tell(user, &(td_npu_fact){.what = "beads", .found = "13 rods"});
}

static td_status list_accelerators(td_accelerator out[TD_ACCELERATORS_MAX], size_t *n, td_error *err) {
    (void)err;
    for (*n = 0; *n < CARDS; ++*n)
        out[*n] = (td_accelerator){
            .name = "suanpan", .compute_capability = 13, .is_usable = true, .memory_bytes = MEMORY_BYTES, .node = (int)*n};
    return TD_OK;
}

const td_backend td_soroban_backend = {
    .name = "soroban",
    .aliases = (const char *const[]){"suanpan", NULL},
    .help = "an abacus (tests/npu/soroban)",
    .open = open_soroban,
    .tell_facts = tell_facts,
    .list_accelerators = list_accelerators,
    .vendor = "Wooden",
    .usable = "13 rods or more",
};
