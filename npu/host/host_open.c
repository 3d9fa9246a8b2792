/* Opening the host device: its memory, its table, and the blocks' common life. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"
#include "core/machine/cpu.h"
#include "core/plural.h"
#include "npu/host/host_attention.h"
#include "npu/host/host_index.h"

void td_host_npu_free(td_host_npu *d) {
    td_mem_unmap(d->scratch, d->scratch_bytes);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void close_device(td_npu *npu) {
    if (npu) td_host_npu_free((td_host_npu *)npu);
}

static void caps(td_npu *npu, td_npu_caps *out) {
    const td_host_npu *d = (const td_host_npu *)npu;
    uint64_t           page = (uint64_t)sysconf(_SC_PAGESIZE);
    *out = (td_npu_caps){
        .unified_memory = true,
        .inline_work = !d->config.own_threads,
        .experts = true,
        .resident = true,
        .recurrent = true,
        .chosen_keys = true,
        .kv_int8 = true,
        .log_sums = true,
        .rope_axes = true,
        .vision = true,
        .pieces = true,
        .handover = TD_HANDOVER_HOST_CALL, /* a futex wakes its threads; bells are polled */
        .memory_total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page,
        .memory_free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page,
    };
    snprintf(out->text, sizeof out->text, "host (%u thread%s%s, %s)", d->n_workers, td_plural(d->n_workers),
             d->config.own_threads ? " of its own" : "", td_cpu_tier_name(td_cpu_features()));
}

static void report(td_npu *npu, td_npu_report *out) {
    const td_host_npu *d = (const td_host_npu *)npu;
    *out = (td_npu_report){.work = td_tier_read(&d->meter)}; /* nothing is copied: the memory is the host's */
    out->doing = td_tier_doing(&d->meter, &out->layer);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static const td_host_block_kind *const KINDS[TD_BLOCK_COUNT] = {
    [TD_BLOCK_EMBED] = &td_host_embed,   [TD_BLOCK_NORM] = &td_host_norm,       [TD_BLOCK_LINEAR] = &td_host_linear,
    [TD_BLOCK_MLA] = &td_host_mla,       [TD_BLOCK_GQA] = &td_host_gqa,         [TD_BLOCK_MLP] = &td_host_mlp,
    [TD_BLOCK_ROUTER] = &td_host_router, [TD_BLOCK_EXPERTS] = &td_host_experts, [TD_BLOCK_RESIDENT] = &td_host_resident,
    [TD_BLOCK_JOIN] = &td_host_join,     [TD_BLOCK_COMBINE] = &td_host_combine, [TD_BLOCK_ALL_REDUCE] = &td_host_all_reduce,
    [TD_BLOCK_HEAD] = &td_host_head,     [TD_BLOCK_TOP] = &td_host_top,         [TD_BLOCK_DELTA] = &td_host_delta,
    [TD_BLOCK_MIX] = &td_host_mix,       [TD_BLOCK_SPREAD] = &td_host_spread,   [TD_BLOCK_SPARSE] = &td_host_sparse,
};

size_t td_host_block_scratch_bytes(td_npu *npu, const td_block_desc *desc) {
    td_npu_block b = {.desc = *desc};
    if (desc->kind >= TD_BLOCK_COUNT) return 0;
    KINDS[desc->kind]->place((td_host_npu *)npu, desc, &b);
    return b.scratch_bytes;
}

uint32_t td_host_block_parts(td_npu *npu, const td_block_desc *desc, uint32_t n_tok, td_parts_wanted wanted,
                             size_t *between_bytes) {
    td_host_npu *d = (td_host_npu *)npu;
    td_npu_block b = {.desc = *desc};
    *between_bytes = 0;
    if (desc->kind >= TD_BLOCK_COUNT) return 1;
    KINDS[desc->kind]->place(d, desc, &b);
    *between_bytes = b.at.between * (n_tok < b.at.chunk ? n_tok : b.at.chunk);
    return b.parts && n_tok && wanted.n ? (uint32_t)b.parts(d, &b, n_tok, wanted) : 1;
}

td_status td_host_block_create(td_npu *npu, const td_block_desc *desc, td_npu_block **out, td_error *err) {
    td_host_npu *d = (td_host_npu *)npu;
    *out = NULL;
    TD_TRY(td_block_check(desc, TD_HOST_TOK_MAX, err));
    TD_TRY(td_block_check_weights(desc, err));
    const td_host_block_kind *kind = KINDS[desc->kind];
    td_npu_block             *b = calloc(1, sizeof *b);
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for a block");
    b->desc = *desc;
    pthread_mutex_lock(&d->lock);
    td_status status = td_host_lay_out(d, desc, err);
    if (status == TD_OK && kind->check) status = kind->check(d, desc, err);
    if (status == TD_OK) {
        kind->place(d, desc, b);
        status = td_host_scratch_grow(d, b->scratch_bytes, err);
    }
    pthread_mutex_unlock(&d->lock);
    if (status != TD_OK) {
        free(b);
        return status;
    }
    *out = b;
    return TD_OK;
}

void td_host_block_destroy(td_npu *d, td_npu_block *b) {
    (void)d;
    free(b);
}

/* Copies are this process's own, from any of its memory. */
static td_status register_any(td_npu *d, void *p, size_t bytes, td_error *err) {
    (void)d, (void)p, (void)bytes, (void)err;
    return TD_OK;
}
static void forget(td_npu *d, void *p, size_t bytes) {
    (void)d, (void)p, (void)bytes;
}

size_t td_host_kv_page_bytes(td_npu *d, td_kv_rows what, size_t n) {
    const td_host_npu *host = (td_host_npu *)d;
    if (what == TD_KV_INDEX) return td_index_path_of(host)->page_bytes(host, TD_KV_PAGE, n);
    if (what == TD_KV_ROW) return td_host_act_bytes(host, TD_KV_PAGE * n);
    return td_attn_path_of(host, what == TD_KV_INT8)->page_bytes(n);
}

static const td_npu_ops OPS = {
    .name = "host",
    .close = close_device,
    .caps = caps,
    .report = report,
    .alloc = td_host_alloc,
    .free = td_host_free,
    .host_alloc = td_host_alloc,
    .host_free = td_host_free,
    .host_register = register_any,
    .host_unregister = forget,
    .stream_create = td_host_stream_create,
    .stream_destroy = td_host_stream_destroy,
    .stream_sync = td_host_stream_sync,
    .copy = td_host_copy,
    .host_call = td_host_call,
    .bell_ring = td_host_bell_ring,
    .bell_wait = td_host_bell_wait,
    .graph_begin = td_host_graph_begin,
    .graph_end = td_host_graph_end,
    .graph_launch = td_host_graph_launch,
    .graph_destroy = td_host_graph_destroy,
    .group_create = td_host_group_create,
    .group_destroy = td_host_group_destroy,
    .group_abort = td_host_group_abort,
    .group_reset = td_host_group_reset,
    .weight_bytes = td_host_weight_bytes,
    .weight_create = td_host_weight_create,
    .weight_destroy = td_host_weight_destroy,
    .kv_page_bytes = td_host_kv_page_bytes,
    .weight_tag = td_host_weight_tag,
    .weight_export = td_host_weight_export,
    .weight_adopt = td_host_weight_adopt,
    .block_scratch_bytes = td_host_block_scratch_bytes,
    .block_create = td_host_block_create,
    .block_destroy = td_host_block_destroy,
    .enqueue = td_host_enqueue,
    .block_parts = td_host_block_parts,
    .enqueue_part = td_host_enqueue_part,
};

td_status td_host_npu_init(td_host_npu *d, const td_npu_ops *ops, const td_npu_config *config, td_error *err) {
    if (config->act_dtype != TD_DT_BF16 && config->act_dtype != TD_DT_F32)
        return td_fail(err, TD_EINVAL, "the device \"%s\" computes with bf16 or f32 activations", ops->name);
    if (!config->host || !config->host->pool) return td_fail(err, TD_EINVAL, "the device \"%s\" needs a pool", ops->name);
    d->base.ops = ops;
    d->config = *config->host;
    d->pool = config->host->pool;
    d->n_workers = td_pool_workers(d->pool);
    d->act = config->act_dtype;
    d->kernels = td_kernels_here();
    pthread_mutex_init(&d->lock, NULL);
    return TD_OK;
}

static td_status open_device(const td_npu_config *config, td_npu **out, td_error *err) {
    *out = NULL;
    td_host_npu *d = calloc(1, sizeof *d);
    if (!d) return td_fail(err, TD_ENOMEM, "out of memory for the host device");
    td_status st = td_host_npu_init(d, &OPS, config, err);
    if (st != TD_OK) {
        free(d);
        return st;
    }
    *out = &d->base;
    return TD_OK;
}

void td_host_tell_facts(td_npu_fact_fn tell, void *user) {
    tell(user, &(td_npu_fact){.what = "instructions", .found = td_cpu_tier_name(td_cpu_features())});
}

const td_backend td_host_backend = {
    .name = "host",
    .aliases = (const char *const[]){"cpu", NULL},
    .help = "the CPU",
    .open = open_device,
    .tell_facts = td_host_tell_facts,
    .threads_in_group = 1,
};
