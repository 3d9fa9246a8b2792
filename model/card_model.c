#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "core/threads/chaos.h"
#include "kernels/exact_sum.h"
#include "model/load_progress.h"
#include "model/model_state.h"

td_resident_spec td_model_resident_spec(const td_model *m) {
    td_resident_spec s = {.n_cards = m->n_cards,
                          .experts = m->experts,
                          .packed = m->packed,
                          .n_layers = m->spec.experts.n_layers,
                          .n_experts = m->config.n_experts,
                          .top_k = m->config.top_k,
                          .n_slots = m->part.resident,
                          .stream_slots = m->part.streamed,
                          .max_tok = m->spec.max_tok,
                          .aside_row = m->spec.max_tok - m->spec.aside_tok,
                          .chaos_seed = m->probe.residency_seed ? m->probe.residency_seed : td_chaos_residency(),
                          .drop = m->spec.drop_experts};
    for (uint32_t i = 0; i < m->n_cards; i++) s.npus[i] = m->cards[i].npu;
    return s;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Bytes of a layer's cache on the card. */
static size_t cache_bytes(const td_card_model *c, const td_layer_cache *cache) {
    const td_model *m = c->model;
    size_t          unit = td_layer_cache_unit_bytes(cache, &m->spec, c->npu);
    switch (cache->per) {
        case TD_PER_STATE: return unit * m->spec.state_slots;
        case TD_PER_OPEN: return unit * m->spec.open_slots;
        case TD_PER_WINDOW: return unit * (c->window_pages + m->kv_spare_pages);
        default: return unit * (c->kv_pages + m->kv_spare_pages);
    }
}

/* Bytes of the caches whose number of slots does not depend on the room. */
static uint64_t slot_caches_bytes(const td_card_model *c) {
    uint64_t             sum = 0;
    const td_layer_range layers = c->model->part.layers;
    for (uint32_t layer = layers.first; layer < layers.end; layer++) {
        td_layer_caches list = td_layer_caches_of(&c->model->config, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].per == TD_PER_STATE || list.cache[i].per == TD_PER_OPEN) sum += cache_bytes(c, &list.cache[i]);
    }
    return sum;
}

/* Whether any step may go through as two halves. Each half reads the weights of the experts anew, which pays only if their
   arithmetic hides it; without experts there is nothing to overlap. */
static bool may_split(const td_model *m) {
    return m->spec.experts.n_layers && m->spec.overlap_min_tok && !m->probe.layer_tap;
}

bool td_card_model_splits(const void *model, uint32_t n) {
    const td_model *m = model;
    if (!may_split(m)) return false;
    return n >= (m->spec.overlap_min_tok == TD_OVERLAP_AUTO ? td_model_full_step(&m->config) : m->spec.overlap_min_tok);
}

/* Of attention by axes: with another device text alone can be served, whose positions are pos. */
static td_rope_axes axes_of(const td_model *m) {
    td_npu_caps caps;
    m->cards->npu->ops->caps(m->cards->npu, &caps);
    return caps.rope_axes ? m->config.rope.axes : (td_rope_axes){0};
}

/* @param n_pages of KV: no sequence is longer; 0: not known yet. */
static td_step_shape step_shape(const td_model *m, uint32_t n_pages) {
    uint64_t           longest = m->spec.context_length, kv = (uint64_t)n_pages * TD_KV_PAGE;
    const td_rope_axes axes = axes_of(m);
    return (td_step_shape){.max_tok = m->spec.max_tok,
                           .max_seq = m->spec.max_seq,
                           .max_out = m->part.whole ? m->spec.max_out : 0,
                           .max_seq_tokens = (uint32_t)(n_pages && kv < longest ? kv : longest),
                           .windows = m->spec.gives_windows,
                           .rope_axes = td_rope_has_axes(&axes),
                           .images = m->spec.max_patches > 0,
                           .recurrent = td_layer_caches_recurrent(&m->config, m->part.layers),
                           .splits = td_card_model_splits,
                           .user = m};
}

/* Of steps in pieces. */
static td_step_shape aside_shape(const td_model *m, uint32_t n_pages) {
    td_step_shape shape = step_shape(m, n_pages);
    shape.max_tok = m->spec.aside_tok;
    shape.max_seq = TD_ASIDE_SEQ;
    shape.first_row = m->spec.max_tok - m->spec.aside_tok;
    return shape;
}

/* The spec of the card's programs, as far as outlines need it. */
static td_program_spec program_spec(const td_card_model *c) {
    const td_model *m = c->model;
    return (td_program_spec){.npu = c->npu,
                             .shard = c->shard,
                             .group = m->group,
                             .device_experts = m->part.experts || m->probe.experts_left == TD_EXPERTS_LEFT_ALL,
                             .packed = m->part.resident ? &m->packed : NULL,
                             .experts_left_out = m->probe.experts_left == TD_EXPERTS_LEFT_ALL,
                             .model = &m->spec,
                             .config = &m->config,
                             .layers = {m->part.layers.first, m->part.whole ? m->config.n_layers : m->part.layers.end},
                             .axes = axes_of(m),
                             .whole = m->part.whole,
                             .kv_pages = c->kv_pages,
                             .window_pages = c->window_pages,
                             .kv_spare_pages = m->kv_spare_pages,
                             .max_halves = may_split(m) ? TD_HALVES : 1,
                             .top_k = td_card_model_top_k(c)};
}

static size_t logits_bytes(const td_card_model *c) {
    const td_model *m = c->model;
    return m->part.whole ? (size_t)m->spec.max_out * td_shard_sizes_of(&m->config, c->shard).vocab * sizeof(float) : 0;
}

uint32_t td_card_model_top_k(const td_card_model *c) {
    uint32_t vocab = td_shard_sizes_of(&c->model->config, c->shard).vocab;
    return c->model->unified || !c->model->part.whole ? 0 : vocab < TD_MODEL_TOP ? vocab : TD_MODEL_TOP;
}

static size_t top_bytes(const td_card_model *c) {
    return (size_t)c->model->spec.max_out * td_card_model_top_k(c) * sizeof(td_logit);
}

static size_t sums_bytes(const td_card_model *c) {
    return td_card_model_top_k(c) && c->model->log_sums ? c->model->spec.max_out * sizeof(td_log_sum) : 0;
}

static bool shows_x(const td_card_model *c) {
    return c->shard.index == 0 && (c->model->probe.layer_tap || !c->model->part.whole);
}

/* td_activations has nothing but pointers of buffers. BUFFER is the index of one. */
#define BUFFER(member) (offsetof(td_activations, member) / sizeof(void *))
#define N_BUFFERS (sizeof(td_activations) / sizeof(void *))

/* The bytes of each buffer; 0: the card has none. */
typedef struct {
    size_t bytes[N_BUFFERS];
} activation_sizes;

static activation_sizes sizes_of_activations(const td_card_model *c) {
    const td_model *m = c->model;
    size_t          rows = m->spec.max_tok, hidden = m->config.hidden, streams = td_model_streams(&m->config);
    size_t          all = td_card_model_x_bytes(m) / streams;
    size_t          mtp = m->part.layers.end > m->config.n_layers ? all : 0;
    bool            routes =
        m->part.experts || (m->part.resident && c->shard.index > 0) || m->probe.experts_left == TD_EXPERTS_LEFT_ALL;
    size_t routed = routes ? rows * m->config.top_k : 0;
    size_t sums = m->part.resident ? rows * td_exact_words(hidden) * sizeof(int32_t) : 0;
    size_t later = m->spec.experts.max_deferred ? sums : 0;
    size_t f32 = m->norm_f32 && td_moe_layers_in(&m->config, m->part.layers) ? rows * hidden : 0;
    return (activation_sizes){{
        [BUFFER(x)] = all * streams,
        [BUFFER(post)] = streams > 1 ? rows * streams * (1 + streams) * sizeof(float) : 0,
        [BUFFER(h)] = all,
        [BUFFER(h_i8.q)] = m->int8_rows ? rows * hidden : 0,
        [BUFFER(h_i8.scale)] = m->int8_rows ? rows * sizeof(float) : 0,
        [BUFFER(h_f32)] = f32 * sizeof(float),
        [BUFFER(attn)] = all,
        [BUFFER(mlp)] = all,
        [BUFFER(chosen)] =
            td_model_chooses_tokens(&m->config) ? rows * td_model_index_choice(&m->config) * sizeof *c->act.chosen : 0,
        [BUFFER(routed)] = m->part.experts || m->part.resident ? all : 0,
        [BUFFER(parts)] = sums,
        [BUFFER(later[0])] = later,
        [BUFFER(later[1])] = later,
        [BUFFER(deferred)] = later ? all : 0,
        [BUFFER(ids)] = routed * m->id_bytes,
        [BUFFER(weights)] = routed * sizeof *c->act.weights,
        [BUFFER(mtp_x)] = m->part.whole ? mtp * streams : 0,
        [BUFFER(mtp_in)] = mtp * (streams > 1 ? streams : 2),
        [BUFFER(logits)] = logits_bytes(c),
        [BUFFER(top)] = top_bytes(c),
        [BUFFER(sums)] = sums_bytes(c),
        [BUFFER(images)] = td_card_model_images_bytes(m),
        [BUFFER(between)] = c->block_bytes.between,
    }};
}

td_status td_card_model_outline(const td_card_model *c, uint32_t n_halves, td_outline *out, td_error *err) {
    td_program_spec spec = program_spec(c);
    return td_program_outline(&spec, n_halves, out, err);
}

/* Blocks may want scratch that grows with the cache (block_scratch_bytes of npu.h), which is planned with the pages. A block
 * wants a + b * pages, and with many pages the block with the largest b wants most. */
td_status td_card_model_measure_blocks(td_card_model *c, td_error *err) {
    const uint32_t   many = 1u << 20;
    td_program_spec  spec = program_spec(c);
    td_program_bytes with_many;
    spec.kv_pages = 0;
    TD_TRY(td_program_measure(&spec, &c->block_bytes, err));
    spec.kv_pages = many;
    TD_TRY(td_program_measure(&spec, &with_many, err));
    c->page_scratch_bytes = td_div_up(with_many.scratch - c->block_bytes.scratch, many);
    return TD_OK;
}

/* Pages of windows that requests hold at most. One with n rows in the step has those from its window before the last border
 * of a page on: with w pages of a window, w + 2 + n / TD_KV_PAGE at most. */
static uint32_t least_windows(const td_model *m) {
    uint32_t window = td_layer_caches_window(&m->config, m->part.layers);
    return m->spec.max_running * (uint32_t)(td_div_up(window - 1, TD_KV_PAGE) + 2) +
           (uint32_t)td_div_up(m->spec.max_tok, TD_KV_PAGE);
}

void td_card_model_memory(const td_card_model *c, td_model_memory *memory) {
    const td_model  *m = c->model;
    td_step_shape    shape = step_shape(m, 0);
    activation_sizes act = sizes_of_activations(c);
    size_t weights = td_model_weights_bytes(c->npu, &m->config, &m->part, c->shard, m->spec.w8a8, m->spec.context_length);
    *memory = (td_model_memory){.npu_weight_bytes = weights,
                                .device_scratch_bytes = c->block_bytes.scratch,
                                .host_scratch_bytes = td_step_buf_bytes(&shape),
                                .unified_memory = m->unified};
    if (m->spec.aside_tok) {
        shape = aside_shape(m, 0);
        memory->host_scratch_bytes += td_step_buf_bytes(&shape);
    }
    for (size_t i = 0; i < N_BUFFERS; i++) memory->device_scratch_bytes += act.bytes[i];
    if (m->part.resident) {
        td_resident_spec resident = td_model_resident_spec(m);
        memory->npu_weight_bytes += td_resident_table_bytes(&resident) + td_resident_stream_bytes(&resident);
        memory->host_scratch_bytes += td_resident_pinned_bytes(&resident);
        if (m->part.streamed) memory->host_scratch_bytes += td_streamed_pinned_bytes(&resident);
        memory->stream_slots = m->part.streamed;
        memory->slot_bytes = td_resident_slot_bytes(&resident);
        memory->slots = m->part.resident / m->n_cards;
        if (m->spec.drop_experts) memory->saved_bytes = td_resident_saved_bytes(&resident) * m->n_cards;
        if (m->spec.device_experts == TD_GPU_EXPERTS_AUTO)
            memory->slots_least = (uint32_t)td_div_up(m->config.top_k, m->n_cards);
    }
    if (!m->unified) {
        memory->device_scratch_bytes += memory->host_scratch_bytes;
        memory->host_scratch_bytes += logits_bytes(c) + top_bytes(c) + sums_bytes(c) + td_card_model_images_bytes(m) +
                                      (shows_x(c) ? td_card_model_x_bytes(m) : 0);
    }
    memory->kv_bytes_per_page =
        td_layer_caches_unit_bytes(&m->config, m->part.layers, TD_PER_TOKEN, &m->spec, c->npu) + c->page_scratch_bytes;
    memory->state_bytes = slot_caches_bytes(c);
    uint64_t window = td_layer_caches_unit_bytes(&m->config, m->part.layers, TD_PER_WINDOW, &m->spec, c->npu);
    memory->device_scratch_bytes += m->kv_spare_pages * (memory->kv_bytes_per_page + window);
    if (m->spec.gives_windows)
        memory->windows = (td_window_cost){window, least_windows(m)};
    else
        memory->kv_bytes_per_page += window;
}

/* ---- the device's weights, kept beside the packed experts -------------------------------------- */

typedef struct {
    char tag[TD_NPU_TAG_BYTES]; /* "": nothing is kept */
    char path[PATH_MAX];
} kept_file;

/* The file that keeps the card's weights for the next start. There is one only for a single card, and beside packed experts,
   whose folder Tandem may write to. With memory placed on NUMA nodes there is none, since mapped pages cannot be placed. */
static kept_file kept_file_of(const td_card_model *c) {
    const td_model *m = c->model;
    kept_file       k = {0};
    bool            wanted = m->n_cards == 1 && m->part.whole && m->cpu_weight_path && !m->spec.load_dummy &&
                  !m->spec.experts.copy_files && !td_mem_places(td_pool_home(m->expert_pool));
    if (wanted) c->npu->ops->weight_tag(c->npu, k.tag);
    size_t n = k.tag[0] ? (size_t)snprintf(k.path, sizeof k.path, "%s/device-%s-%s.tdw", m->cpu_weight_path, k.tag,
                                           m->spec.w8a8 ? "w8a8" : "bf16")
                        : 0;
    if (n >= sizeof k.path) k.tag[0] = 0;
    return k;
}

static void on_checked(void *user, uint64_t bytes, uint64_t total_bytes) {
    td_load_progress *p = user;
    if (!bytes)
        td_load_progress_start(p, "weights to compare them with their checksums", total_bytes);
    else
        td_load_progress_add(p, bytes);
}

/* The checkpoint's files against their checksums, once for all cards. */
static td_status check_files(const td_card_model *c, td_error *err) {
    const td_model  *m = c->model;
    td_load_progress progress = {0};
    if (c != m->cards) return TD_OK;
    TD_TRY(td_checkpoint_files_check(td_checkpoint_get_files(m->checkpoint), m->expert_pool, on_checked, &progress, err));
    td_load_progress_end(&progress);
    return TD_OK;
}

/* The checkpoint's files are checked unless no weight comes from them. */
static td_status load_weights(td_card_model *c, td_error *err) {
    const td_model *m = c->model;
    kept_file       k = kept_file_of(c);
    td_error        why = {0};
    if (k.tag[0]) {
        td_status st =
            td_device_file_open(k.path, k.tag, td_checkpoint_stamp(m->checkpoint), m->expert_pool, &c->device_file, &why);
        if (st != TD_OK && st != TD_ENOTFOUND) td_warn("%s; the device's weights are converted again", why.text);
    }
    const bool reads_files = !c->device_file || m->spec.max_patches; /* the encoder's come from there */
    if (reads_files) TD_TRY(check_files(c, err));
    TD_TRY(td_model_weights_load(c->npu, &m->config, &m->part, c->shard, m->checkpoint, m->spec.w8a8, m->spec.context_length,
                                 c->device_file, &c->weights, &c->all_kept, err));
    return !reads_files && !c->all_kept ? check_files(c, err) : TD_OK;
}

/* If keeping fails, the next start converts again. */
void td_card_model_keep_weights(const td_card_model *c) {
    const td_model *m = c->model;
    kept_file       k = kept_file_of(c);
    td_error        why = {0};
    if (!k.tag[0] || c->all_kept) return;
    td_info("writing the device's weights to %s, which the next start maps", k.path);
    if (td_model_weights_keep(c->npu, &m->config, c->shard, &c->weights, k.path, k.tag, td_checkpoint_stamp(m->checkpoint),
                              m->expert_pool, &why) != TD_OK)
        td_info("the device's weights are not kept: %s", why.text);
}

#define GRAPHS(c) ((TD_PASSES + 1) * TD_STEP_KINDS * (size_t)(c)->step.n)

/* ---- captures ---------------------------------------------------------------------------------- */

static td_status enqueue_pass(td_card_model *c, td_pass_kind kind, td_pass_form form, const td_step_bucket *bucket) {
    td_npu *d = c->npu;
    TD_TRY(td_step_buf_enqueue_upload(c->model->rows_aside ? &c->aside : &c->step, bucket, c->stream));
    if (c->model->resident && !form.streamed)
        TD_TRY(td_resident_enqueue_table(c->model->resident, c->shard.index, c->stream));
    TD_TRY(td_program_enqueue(&c->program[kind], d, c->stream, bucket, form));
    bool with_head = kind == TD_PASS_FORWARD && c->model->part.whole;
    form.streamed = false;
    return with_head ? td_program_enqueue(&c->program[TD_PASS_HEAD], d, c->stream, bucket, form) : TD_OK;
}

/* The pass over the bucket as a graph, recorded when it is needed first. A graph holds no counts: it serves every step of
 * the bucket that is of this kind, where the device tells kinds apart. */
static td_status capture(td_card_model *c, td_pass_kind kind, bool is_streamed, const td_step_bucket *bucket,
                         td_step_kind of_step, td_npu_graph **out, td_error *err) {
    td_npu      *d = c->npu;
    const size_t row = is_streamed ? TD_PASSES : kind;
    if (!c->model->step_kinds) of_step = TD_STEP_ANY;
    td_npu_graph **graph = &c->graphs[(row * TD_STEP_KINDS + of_step) * c->step.n + (size_t)(bucket - c->step.buckets)];
    *out = *graph;
    if (*graph) return TD_OK;
    td_step_buf_set_kind(&c->step, bucket, of_step);
    if (c->model->resident) td_resident_pause(c->model->resident);
    td_status st = d->ops->graph_begin(d, c->stream), ended = TD_OK;
    if (st == TD_OK) {
        st = enqueue_pass(c, kind, (td_pass_form){.streamed = is_streamed, .captured = true}, bucket);
        ended = d->ops->graph_end(d, c->stream, st == TD_OK ? graph : NULL, err);
    }
    if (c->model->resident) td_resident_resume(c->model->resident);
    if (st != TD_OK)
        return td_fail(err, st, "a step of %u tokens cannot be captured: %s", bucket->max_tok, td_status_text(st));
    *out = *graph;
    return ended;
}

/* ---- life ------------------------------------------------------------------------------------ */

static td_status allocate_activations(td_card_model *c, td_error *err) {
    td_npu          *d = c->npu;
    activation_sizes act = sizes_of_activations(c);
    for (size_t i = 0; i < N_BUFFERS; i++)
        if (act.bytes[i]) TD_TRY(d->ops->alloc(d, act.bytes[i], (void **)&c->act + i, err));
    if (c->model->unified) {
        c->logits = c->act.logits;
        c->x = c->act.x;
        c->images = c->act.images;
        return TD_OK;
    }
    if (logits_bytes(c)) TD_TRY(d->ops->host_alloc(d, logits_bytes(c), (void **)&c->logits, err));
    if (top_bytes(c)) TD_TRY(d->ops->host_alloc(d, top_bytes(c), (void **)&c->top, err));
    if (sums_bytes(c)) TD_TRY(d->ops->host_alloc(d, sums_bytes(c), (void **)&c->sums, err));
    if (c->act.images) TD_TRY(d->ops->host_alloc(d, td_card_model_images_bytes(c->model), &c->images, err));
    return shows_x(c) ? d->ops->host_alloc(d, td_card_model_x_bytes(c->model), &c->x, err) : TD_OK;
}

td_status td_card_model_load(td_card_model *c, td_error *err) {
    TD_TRY(c->npu->ops->stream_create(c->npu, &c->stream, err));
    TD_TRY(allocate_activations(c, err));
    return load_weights(c, err);
}

static td_status allocate_kv(td_card_model *c, uint32_t n_pages, td_error *err) {
    const td_model *m = c->model;
    td_npu         *d = c->npu;
    td_model_memory memory;
    td_card_model_memory(c, &memory);
    c->kv_pages = n_pages;
    c->window_pages = td_window_count(memory.windows, n_pages);
    c->kv = calloc(td_model_all_layers(m), sizeof *c->kv);
    if (!c->kv) return td_fail(err, TD_ENOMEM, "out of memory for the KV cache");
    for (uint32_t i = m->part.layers.first; i < m->part.layers.end; i++) {
        td_layer_caches list = td_layer_caches_of(&m->config, i);
        for (uint32_t k = 0; k < list.n; k++)
            TD_TRY(d->ops->alloc(d, cache_bytes(c, &list.cache[k]), &c->kv[i].cache[k], err));
    }
    return TD_OK;
}

static void free_kv(td_card_model *c) {
    const td_model *m = c->model;
    td_npu         *d = c->npu;
    for (uint32_t i = 0; c->kv && i < td_model_all_layers(m); i++) {
        td_layer_caches list = td_layer_caches_of(&m->config, i);
        for (uint32_t k = 0; k < list.n; k++)
            if (c->kv[i].cache[k]) d->ops->free(d, c->kv[i].cache[k], cache_bytes(c, &list.cache[k]));
    }
    free(c->kv);
}

static td_status build_programs(td_card_model *c, td_error *err) {
    td_model       *m = c->model;
    td_program_spec spec = program_spec(c);
    spec.bridge = m->bridge;
    spec.resident = m->resident;
    spec.streamed = m->streamed;
    spec.weights = &c->weights;
    spec.kv = c->kv;
    spec.act = c->act;
    if (c->shard.index == 0) TD_TRY(td_watch_open(m, &spec, err));
    for (td_pass_kind kind = 0; kind < TD_PASSES; kind++)
        if (td_program_has_pass(&spec, kind)) TD_TRY(td_program_build(&spec, kind, &c->program[kind], err));
    return TD_OK;
}

/* Steps without prompts are captured before the first request; there is a bucket for each number of streams. */
static td_status capture_decode(td_card_model *c, td_error *err) {
    td_npu_graph *graph;
    for (uint32_t i = 0; i < c->step.n && (i == 0 || c->step.buckets[i - 1].max_tok < c->model->spec.max_seq); i++)
        TD_TRY(capture(c, TD_PASS_FORWARD, false, &c->step.buckets[i], TD_STEP_GENERATED, &graph, err));
    return TD_OK;
}

td_status td_card_model_build(td_card_model *c, uint32_t n_pages, td_error *err) {
    td_step_shape shape = step_shape(c->model, n_pages);
    TD_TRY(allocate_kv(c, n_pages, err));
    TD_TRY(td_step_buf_open(&c->step, &shape, c->npu, err));
    if (c->model->spec.aside_tok) {
        shape = aside_shape(c->model, n_pages);
        TD_TRY(td_step_buf_open(&c->aside, &shape, c->npu, err));
    }
    c->graphs = calloc(GRAPHS(c), sizeof *c->graphs);
    if (!c->graphs) return td_fail(err, TD_ENOMEM, "out of memory for the captured steps");
    TD_TRY(build_programs(c, err));
    return capture_decode(c, err);
}

void td_card_model_forget_captures(td_card_model *c) {
    for (size_t i = 0; c->graphs && i < GRAPHS(c); i++) {
        if (c->graphs[i]) c->npu->ops->graph_destroy(c->npu, c->graphs[i]);
        c->graphs[i] = NULL;
    }
}

void td_card_model_close(td_card_model *c) {
    const td_model *m = c->model;
    td_npu         *d = c->npu;
    if (c->stream) d->ops->stream_destroy(d, c->stream);
    td_card_model_forget_captures(c);
    free(c->graphs);
    for (td_pass_kind kind = 0; kind < TD_PASSES; kind++) td_program_free(d, &c->program[kind]);
    free_kv(c);
    if (c->logits && c->logits != c->act.logits) d->ops->host_free(d, c->logits, logits_bytes(c));
    if (c->top) d->ops->host_free(d, c->top, top_bytes(c));
    if (c->sums) d->ops->host_free(d, c->sums, sums_bytes(c));
    if (c->images && c->images != c->act.images) d->ops->host_free(d, c->images, td_card_model_images_bytes(m));
    if (c->x && c->x != c->act.x) d->ops->host_free(d, c->x, td_card_model_x_bytes(m));
    td_card_model_close_page_copies(c);
    activation_sizes act = sizes_of_activations(c);
    for (size_t i = 0; i < N_BUFFERS; i++)
        if (((void **)&c->act)[i]) d->ops->free(d, ((void **)&c->act)[i], act.bytes[i]);
    td_model_weights_free(d, &m->config, &c->weights);
    td_device_file_close(c->device_file);
    td_step_buf_close(&c->step);
    td_step_buf_close(&c->aside);
}

/* ---- running --------------------------------------------------------------------------------- */

const td_program *td_card_model_program(const td_card_model *c, td_pass_kind kind) {
    bool hands_over = kind == TD_PASS_FORWARD || kind == TD_PASS_MTP;
    return hands_over ? &c->program[kind] : NULL;
}

td_status td_card_model_download(td_card_model *c, void *host, const void *dev, size_t bytes) {
    if (host == dev || !bytes) return TD_OK;
    return c->npu->ops->copy(c->npu, c->stream, host, dev, bytes, TD_COPY_D2H);
}

size_t td_card_model_asked(const td_card_model *c, uint32_t row) {
    const td_out_logprobs *l = c->model->pass.out.logprobs;
    size_t                 vocab = td_shard_sizes_of(&c->model->config, c->shard).vocab, first = c->shard.index * vocab;
    return l && l[row].wanted && l[row].id >= first && l[row].id - first < vocab ? l[row].id - first : SIZE_MAX;
}

/* Download the wanted rows: a row's best logits if they suffice, with the logit that is asked for and the sum if
 * log-probabilities are wanted; else all of the row. */
static td_status download_logits(td_card_model *c) {
    const td_out_rows *out = &c->model->pass.out;
    size_t             vocab = td_shard_sizes_of(&c->model->config, c->shard).vocab, n_best = 0, n_sums = 0;
    if (!out->best || !c->top)
        return td_card_model_download(c, c->logits, c->act.logits, out->n * vocab * sizeof *c->logits);
    for (uint32_t i = 0; i < out->n; i++) {
        bool   best = td_card_model_gives_best(c, i);
        size_t asked = td_card_model_asked(c, i), from = i * vocab + (best && asked < vocab ? asked : 0),
               n = !best           ? vocab
                   : asked < vocab ? 1
                                   : 0;
        n_best += best;
        n_sums += td_card_model_gives_sum(c, i);
        TD_TRY(td_card_model_download(c, c->logits + from, c->act.logits + from, n * sizeof *c->logits));
    }
    if (n_best)
        TD_TRY(td_card_model_download(c, c->top, c->act.top, out->n * (size_t)td_card_model_top_k(c) * sizeof *c->top));
    return n_sums ? td_card_model_download(c, c->sums, c->act.sums, out->n * sizeof *c->sums) : TD_OK;
}

td_status td_card_model_prepare(td_card_model *c) {
    const td_model *m = c->model;
    td_step_buf    *buf = m->rows_aside ? &c->aside : &c->step;
    c->bucket = td_step_buf_fill(buf, m->rows, m->pass.token, m->pass.out.row, m->pass.out.n);
    c->graph = NULL;
    if (m->rows_aside) return TD_OK; /* not worth a capture */
    if (m->pass.kind == TD_PASS_FORWARD) td_card_model_fill_images(c, m->rows, c->bucket->whole.first_row);
    return capture(c, m->pass.kind, m->pass.share > 0, c->bucket, td_step_rows_kind(m->rows), &c->graph, &c->error);
}

/* Other cards may wait for this one: for its parts of sums, or for streamed experts whose slots it has not left. */
static void let_others_go(const td_card_model *c) {
    const td_model *m = c->model;
    if (m->group) c->npu->ops->group_abort(m->group);
    if (m->streamed) td_streamed_break_off(m->streamed);
}

td_status td_card_model_run(td_card_model *c) {
    const td_model *m = c->model;
    td_npu         *d = c->npu;
    td_status       st = TD_OK;
    if (m->pass.kind == TD_PASS_FORWARD) st = td_card_model_enqueue_images(c, m->rows, c->bucket->whole.first_row);
    if (st == TD_OK)
        st = c->graph ? d->ops->graph_launch(d, c->stream, c->graph)
                      : enqueue_pass(c, m->pass.kind, (td_pass_form){0}, c->bucket);
    if (st == TD_OK) st = download_logits(c);
    if (st != TD_OK) let_others_go(c);
    td_status synced = d->ops->stream_sync(d, c->stream); /* even after a failure, since nothing may run on */
    if (synced != TD_OK) let_others_go(c);                /* a stream that failed may have dropped the rest */
    return st != TD_OK ? st : synced;
}
