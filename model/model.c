#include "model/model.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bridge/bridge.h"
#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "core/threads/thread.h"
#include "model/arch/config_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/experts_load.h"
#include "model/model_state.h"
#include "npu/handover_time.h"
#include "npu/raw_choice.h"
#include "quant/coded_matrix.h"

#define HANDOVER_ROUNDS 5
#define OTHERS_SHARE 8 /* of a chunk of prompts, the part that others have beside a pass in pieces */

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Set what the expert store is to hold, from the model's configuration. The number format is the caller's choice. */
static void settle_experts(td_model *m) {
    const td_model_config *c = &m->config;
    td_experts_config     *e = &m->spec.experts;
    e->n_layers = td_moe_layers_in(c, m->part.layers);
    e->first_layer = td_moe_layers_in(c, (td_layer_range){0, m->part.layers.first});
    e->n_experts = c->n_experts;
    e->hidden = c->hidden;
    e->inter = c->moe_inter;
    e->top_k = c->top_k;
    e->glu = c->expert_glu;
    e->bias = c->expert_bias;
    e->act_dtype = td_model_act_dtype(&m->spec);
    e->max_tok = m->spec.max_tok;
}

static void note_chosen(void *resident, uint32_t layer, uint32_t first_row, uint32_t n_tok, const uint16_t *ids) {
    td_resident_chosen(resident, layer, first_row, n_tok, ids);
}

static td_bridge_config bridge_config(const td_model *m) {
    return (td_bridge_config){.npu = m->cards->npu,
                              .spec = &m->spec.experts,
                              .experts = m->experts,
                              .pool = m->expert_pool,
                              .async = m->async_experts,
                              .max_ports = m->spec.experts.n_layers * TD_HALVES,
                              .handover = m->handover,
                              .x_int8 = m->int8_experts,
                              .in_parts = m->part.resident > 0,
                              .ahead_bytes = m->probe.sums_ahead ? 0 : TD_SUMS_AHEAD_BYTES,
                              .chosen = m->part.resident ? note_chosen : NULL,
                              .user = m->resident};
}

static size_t merged_logits_bytes(const td_model *m) {
    return m->part.whole ? (size_t)m->spec.max_out * m->config.vocab * sizeof(float) : 0;
}

/* Blocks of a card share their scratch, and the encoder's may want more of it. */
static void add_encoder(const td_model *m, td_model_memory *memory) {
    const size_t     shared = m->cards->block_bytes.scratch;
    td_vision_memory v;
    td_vision_measure(m->cards->npu, td_model_act_dtype(&m->spec), &m->config, m->spec.max_patches, &v);
    memory->encoder_weight_bytes = v.weight_bytes;
    memory->encoder_scratch_bytes = v.device_bytes + (v.scratch_bytes > shared ? v.scratch_bytes - shared : 0);
    memory->host_scratch_bytes += v.host_bytes;
}

/* With unified memory the cards' figures are added; else they are those of one card. */
void td_model_get_memory(const td_model *m, td_model_memory *memory) {
    uint64_t n = m->unified ? m->n_cards : 1;
    td_card_model_memory(m->cards, memory); /* the first card takes most */
    memory->npu_weight_bytes *= n;
    memory->device_scratch_bytes *= n;
    memory->kv_bytes_per_page *= n;
    memory->windows.page_bytes *= n;
    memory->state_bytes *= n;
    memory->slot_bytes *= n;
    memory->host_scratch_bytes *= m->n_cards;
    if (m->part.resident && m->spec.drop_experts) {
        td_resident_spec resident = td_model_resident_spec(m);
        memory->host_scratch_bytes += td_resident_doubled_bytes(&resident);
    }
    if (m->n_cards > 1) memory->host_scratch_bytes += merged_logits_bytes(m);
    if (m->spec.max_patches) add_encoder(m, memory);
    if (!m->spec.experts.n_layers) return;
    td_bridge_config bc = bridge_config(m);
    memory->expert_weight_bytes = m->expert_weight_bytes;
    memory->host_scratch_bytes += m->expert_scratch_bytes + td_bridge_bytes(&bc);
    if (!m->unified) memory->device_scratch_bytes += td_bridge_bytes(&bc);
}

/* ---- a thread a card --------------------------------------------------------------------------- */

static td_spin spin_of(const td_model *m) {
    return td_pool_spin(m->expert_pool);
}

static void *card_main(void *arg) {
    td_card_model *c = arg;
    td_model      *m = c->model;
    for (uint32_t n = 0;; n++) {
        while (td_signal_get(&m->go) == n) td_signal_wait(&m->go, n, spin_of(m));
        if (m->stop) return NULL;
        c->status = m->job(c);
        td_signal_add(&m->done);
    }
}

static td_status start_threads(td_model *m, td_error *err) {
    for (uint32_t i = 1; i < m->n_cards; i++) {
        td_card_model *c = &m->cards[i];
        TD_TRY(td_thread_start(&c->thread, "card", card_main, c, err));
        c->has_thread = true;
    }
    return TD_OK;
}

static void stop_threads(td_model *m) {
    m->stop = true;
    td_signal_add(&m->go);
    for (uint32_t i = 1; i < m->n_cards; i++)
        if (m->cards[i].has_thread) pthread_join(m->cards[i].thread, NULL);
}

/* Do a job for every card, the first card's on the calling thread. @return the first failure. */
static td_status on_cards(td_model *m, td_status (*job)(td_card_model *c)) {
    uint32_t  want = td_signal_get(&m->done) + m->n_cards - 1;
    td_status status;
    m->job = job;
    for (uint32_t i = 0; i < m->n_cards; i++) m->cards[i].error.text[0] = 0;
    if (m->n_cards > 1) td_signal_add(&m->go);
    status = job(&m->cards[0]);
    for (uint32_t v; (int32_t)((v = td_signal_get(&m->done)) - want) < 0;) td_signal_wait(&m->done, v, spin_of(m));
    for (uint32_t i = 1; i < m->n_cards && status == TD_OK; i++) status = m->cards[i].status;
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static td_status refuse_context(uint32_t wanted, const td_model_config *c, td_error *err) {
    uint32_t length = c->rope.kind == TD_ROPE_YARN ? c->rope.original_max_position : c->max_position;
    bool     within = td_arch_has_more(c->arch);
    if (!c->rope.dim)
        return td_fail(err, TD_EINVAL, "context-length %u is more than the model's %u positions (max_position_embeddings)",
                       wanted, c->max_position);
    return td_fail(
        err, TD_EINVAL,
        "context-length %u is more than the model's %u positions (max_position_embeddings): to stretch them, at some cost "
        "in "
        "quality, give json-model-override-args "
        "'%s{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": %g, \"original_max_position_embeddings\": %u}}%s'",
        wanted, c->max_position, within ? "{\"text_config\": " : "", ceil(10.0 * wanted / length) / 10, length,
        within ? "}" : "");
}

/* Whether the folder is one that td_quantize wrote: with packed files, and without tensors of experts. */
static bool has_packed_experts(const td_model *m) {
    char path[PATH_MAX];
    if (m->spec.load_dummy || td_checkpoint_has_experts(m->checkpoint, &m->config)) return false;
    td_expert_file_path(path, sizeof path, m->spec.model_path, 0);
    return access(path, F_OK) == 0;
}

/* Whether some of a layer's experts may lie on the device, and others take their places while the model runs. */
static td_status check_movable(const td_model *m, const td_npu_caps *caps, td_error *err) {
    if (m->probe.experts_left) return td_fail(err, TD_EINVAL, "the experts' work is left out");
    if (!caps->resident)
        return td_fail(err, TD_ENOTSUP, "of the %u routed experts of a layer the device keeps all (%u) or none (0)",
                       m->config.n_experts, m->config.n_experts);
    if (m->probe.layer_tap) return td_fail(err, TD_EINVAL, "taps of layers see experts of the CPU alone");
    return TD_OK;
}

/* Whether experts are to pass through the device's memory beside those that stay, and how many it is to have room for. */
static td_status place_streamed(td_model *m, td_error *err) {
    if (!m->spec.stream_experts) return TD_OK;
    if (m->spec.device_experts == TD_GPU_EXPERTS_AUTO && !m->part.resident) return TD_OK; /* as has been told */
    if (!m->part.resident)
        return td_fail(err, TD_EINVAL, "stream-experts needs some of a layer's experts on the device: add num-gpu-experts");
    if (!m->part.whole) return td_fail(err, TD_EINVAL, "stream-experts: layers by themselves are not streamed");
    if (m->unified)
        td_info("no expert is streamed: device and host share one memory");
    else
        m->part.streamed = TD_STREAM_LAYERS * (uint32_t)td_div_up(m->config.n_experts, m->n_cards);
    return TD_OK;
}

/* num-gpu-experts auto: none where experts cannot move; else at most all, until td_model_set_slots. */
static void place_what_fits(td_model *m, const td_npu_caps *caps) {
    td_error why = {.text = "device and host share one memory"};
    if (!m->spec.experts.n_layers) return;
    if (m->unified || check_movable(m, caps, &why) != TD_OK)
        td_info("num-gpu-experts auto: none: %s", why.text);
    else
        m->part.resident = m->config.n_experts / m->n_cards * m->n_cards;
}

static td_status place_all(td_model *m, const td_npu_caps *caps, td_error *err) {
    if (m->probe.experts_left) return td_fail(err, TD_EINVAL, "the experts' work is left out");
    if (!caps->experts) return td_fail(err, TD_ENOTSUP, "on this device no routed experts can be yet: %s", caps->text);
    if (m->cpu_weight_path || has_packed_experts(m))
        return td_fail(err, TD_ENOTSUP, "the experts in %s are packed for the CPU; the device takes those of a checkpoint",
                       m->cpu_weight_path ? m->cpu_weight_path : m->spec.model_path);
    if (m->config.expert_bias || !td_glu_is_silu(&m->config.expert_glu))
        return td_fail(err, TD_ENOTSUP,
                       "this model's experts have %s, which the device does not compute: leave them on the CPU (0)",
                       m->config.expert_bias ? "biases" : "another gated unit than silu(gate) * up");
    m->part.experts = true;
    m->spec.experts.n_layers = 0;
    return TD_OK;
}

static td_status place_some(td_model *m, const td_npu_caps *caps, td_error *err) {
    TD_TRY(check_movable(m, caps, err));
    if (m->spec.device_experts < m->config.top_k)
        return td_fail(err, TD_EINVAL, "a token chooses %u experts of a layer: take as many or more", m->config.top_k);
    if (m->spec.device_experts % m->n_cards)
        return td_fail(err, TD_EINVAL, "each of %u cards has equally many of a layer: take a multiple of %u", m->n_cards,
                       m->n_cards);
    m->part.resident = m->spec.device_experts;
    return TD_OK;
}

/* Decide which tier has the routed experts. */
static td_status place_experts(td_model *m, td_error *err) {
    const uint32_t wanted = m->spec.device_experts, all = m->config.n_experts;
    td_npu_caps    caps;
    td_error       why = {.text = ""};
    td_status      st;
    if (m->probe.experts_left == TD_EXPERTS_LEFT_ALL) m->spec.experts.n_layers = 0;
    if (!wanted && m->spec.drop_experts)
        return td_fail(err, TD_EINVAL, "expert-memory drop: no experts are on the device: add num-gpu-experts");
    if (!wanted) return TD_OK;
    m->cards->npu->ops->caps(m->cards->npu, &caps);
    if (wanted == TD_GPU_EXPERTS_AUTO) {
        place_what_fits(m, &caps);
        return TD_OK;
    }
    if (!all || (!m->spec.experts.n_layers && !m->probe.experts_left))
        st = td_fail(&why, TD_EINVAL, "the model has no routed experts");
    else if (wanted > all)
        st = td_fail(&why, TD_EINVAL, "a layer has %u routed experts", all);
    else
        st = wanted < all ? place_some(m, &caps, &why) : place_all(m, &caps, &why);
    return st == TD_OK ? TD_OK : td_fail(err, st, "num-gpu-experts %u: %s", wanted, why.text);
}

/* The slots of recurrent layers, those of snapshots included. */
static td_status settle_slots(td_model *m, const td_npu_caps *caps, td_error *err) {
    td_model_spec       *s = &m->spec;
    const td_layer_range layers = m->part.layers;
    if (!td_layer_caches_recurrent(&m->config, layers)) {
        s->state_slots = s->open_slots = 0;
        s->snapshot_bytes = 0;
        return TD_OK;
    }
    if (!caps->recurrent)
        return td_fail(
            err, TD_ENOTSUP, "%s has no %s, which this model needs", caps->text,
            td_model_streams(&m->config) > 1 ? "compressed rows or several residual streams" : "recurrent layers");
    if (!s->state_slots) s->state_slots = s->max_seq;
    if (!s->open_slots) s->open_slots = s->max_seq;
    if (!s->snapshot_bytes) return TD_OK;
    uint64_t each = td_layer_caches_unit_bytes(&m->config, layers, TD_PER_STATE, s, m->cards->npu);
    if (s->snapshot_bytes < each)
        return td_fail(err, TD_EINVAL,
                       "state-snapshots-gib %g is too small: a snapshot of this model's recurrent layers takes %.3f GiB",
                       (double)s->snapshot_bytes / (1 << 30), (double)each / (1 << 30));
    uint64_t n = s->snapshot_bytes / each, most = (uint64_t)s->max_running * TD_SNAPSHOTS_PER_SEQUENCE;
    s->state_slots += (uint32_t)(n < most ? n : most);
    return TD_OK;
}

/* Whether a pass may be left between two operations, and gone on with when others have run. Nothing runs on then, no thread
 * waits for it, and what it needs again lies in its own rows of the buffers. */
static bool can_go_in_pieces(const td_model *m, const td_npu_caps *caps) {
    return caps->pieces && m->n_cards == 1 && m->part.whole && !m->part.streamed &&
           !td_layer_caches_recurrent(&m->config, m->part.layers);
}

/* Most rows are those of passes in pieces. Others have a bucket's, which holds all streams and some prompts. */
static void settle_pieces(td_model *m, const td_npu_caps *caps) {
    td_model_spec *s = &m->spec;
    s->in_pieces = s->in_pieces && can_go_in_pieces(m, caps);
    uint32_t others = td_step_bucket_rows(s->max_running + (s->max_tok - s->max_running) / OTHERS_SHARE, s->max_tok);
    s->aside_tok = s->in_pieces ? s->max_tok - others : 0;
}

/* Whether a model with an encoder takes images. */
static td_status check_images(const td_model *m, const td_npu_caps *caps, td_error *why) {
    const td_checkpoint_files *files = td_checkpoint_get_files(m->checkpoint);
    if (m->config.vision.why_not[0]) return td_fail(why, TD_ENOTSUP, "%s", m->config.vision.why_not);
    if (!caps->vision) return td_fail(why, TD_ENOTSUP, "%s has no vision encoder yet", caps->text);
    if (td_checkpoint_is_rotated(m->checkpoint))
        return td_fail(why, TD_ENOTSUP, "the rotated model's features are not those of its encoder");
    return files ? td_vision_check(m->cards->npu, td_model_act_dtype(&m->spec), &m->config, files, why) : TD_OK;
}

/* What is wrong with images leaves a model of text. */
static void settle_images(td_model *m, const td_npu_caps *caps) {
    const td_vision_config *v = &m->config.vision;
    td_error                why = {0};
    const bool              wanted = m->spec.max_patches && m->part.whole && (v->depth || v->why_not[0]);
    const bool              taken = wanted && check_images(m, caps, &why) == TD_OK;
    if (wanted && !taken) td_warn("images are refused, and the model is served for text: %s", why.text);
    if (!taken) m->spec.max_patches = 0;
    td_checkpoint_log_unread(m->checkpoint, &m->config, taken ? m->config.arch->encoder_prefix : NULL);
}

static td_status check_int8_kv(const td_model *m, const td_npu_caps *caps, td_error *err) {
    if (!caps->kv_int8)
        return td_fail(err, TD_ENOTSUP, "%s keeps no KV cache of 8 bits: leave kv-cache-dtype int8 away", caps->text);
    if (!td_layer_caches_take_int8(&m->config, m->part.layers))
        return td_fail(err, TD_ENOTSUP,
                       "%s keeps rows of its own kind, which are not there in 8 bits: leave kv-cache-dtype int8 away",
                       m->config.arch_name);
    return TD_OK;
}

/* Settle in the spec what the checkpoint decides, or refuse it. */
static td_status settle_spec(td_model *m, td_error *err) {
    td_model_config *c = &m->config;
    td_model_spec   *s = &m->spec;
    td_checkpoint_look_at_mtp(m->checkpoint, c);
    if (s->without_mtp) c->n_mtp_layers = 0;
    m->part = (td_model_part){.layers = s->layers.end ? s->layers : td_all_layers(c), .whole = s->layers.end == 0};
    if (td_model_streams(c) > 1 && (!m->part.whole || m->probe.layer_tap))
        return td_fail(
            err, TD_ENOTSUP,
            "%s has several residual streams, and layers by themselves, which calibration and comparison need, have one",
            c->arch_name);
    bool mtp_alone = m->part.layers.first == c->n_layers && m->part.layers.end == c->n_layers + 1;
    if (!m->part.whole && (m->part.layers.first >= m->part.layers.end ||
                           (m->part.layers.end > c->n_layers && !(mtp_alone && c->n_mtp_layers)) || s->experts.max_deferred))
        return td_fail(err, TD_EINVAL, "layers %u to %u of %u cannot be run by themselves", m->part.layers.first,
                       m->part.layers.end, c->n_layers);
    if (td_model_chooses_tokens(c) && !c->sparse.indexed[m->part.layers.first] && !c->is_delta[m->part.layers.first])
        return td_fail(
            err, TD_EINVAL,
            "layer %u of %s attends to the keys that a layer before it chooses, and cannot be the first that is run",
            m->part.layers.first, c->arch_name);
    settle_experts(m);
    TD_TRY(place_experts(m, err));
    TD_TRY(place_streamed(m, err));
    td_npu_caps caps;
    m->cards->npu->ops->caps(m->cards->npu, &caps);
    if (td_model_chooses_tokens(c) && !caps.chosen_keys)
        return td_fail(err, TD_ENOTSUP, "%s has no attention to chosen keys, which this model needs", caps.text);
    if (s->kv_int8) TD_TRY(check_int8_kv(m, &caps, err));
    TD_TRY(settle_slots(m, &caps, err));
    settle_pieces(m, &caps);
    settle_images(m, &caps);
    s->gives_windows = s->gives_windows && td_layer_caches_window(c, m->part.layers) > 0;
    if (!s->context_length) s->context_length = c->max_position;
    if (s->context_length > c->max_position) return refuse_context(s->context_length, c, err);
    if (c->n_mtp_layers > 1)
        return td_fail(err, TD_ENOTSUP, "the model has %u multi-token-prediction layers, and only one is supported",
                       c->n_mtp_layers);
    if (s->experts.max_deferred && (!s->experts.n_layers || c->top_k == 1)) {
        const char *without = m->part.experts ? "experts are on the device" : "model has no routed experts";
        td_warn("deferral has no effect: the %s", s->experts.n_layers ? "model has one expert per token" : without);
        s->experts.max_deferred = 0;
    }
    if (s->experts.n_layers && s->experts.max_deferred >= c->top_k)
        return td_fail(err, TD_EINVAL,
                       "max-deferred-experts-per-token %u must be less than the model's %u experts per token",
                       s->experts.max_deferred, c->top_k);
    return TD_OK;
}

/* Packed files can only be loaded in their own format. Without them, a format that holds the checkpoint's codes unchanged is
 * better than one that rounds them again. */
static td_status choose_expert_format(td_model *m, td_error *err) {
    td_expert_numbers n;
    td_stored_experts stored;
    bool              found = false;
    if (m->spec.experts.n_layers == 0) return TD_OK;
    if (m->cpu_weight_path) {
        char path[PATH_MAX];
        td_expert_file_path(path, sizeof path, m->cpu_weight_path, 0);
        TD_TRY(td_experts_file_format(path, &n, err));
        found = true;
    } else if (m->spec.w8a8) {
        TD_TRY(td_checkpoint_expert_numbers(m->checkpoint, &m->config, &n, &stored, err));
        if (stored == TD_EXPERTS_EXACT) td_info("the experts' codes are carried over exactly, in %s", n.name);
        found = stored != TD_EXPERTS_NOT_CODED;
    }
    if (!found) return TD_OK;
    m->spec.experts.format = n.format;
    m->spec.experts.groups = n.groups;
    return TD_OK;
}

/* Columns that share a scale, where config.json says that all weights in codes are of 4 bits; else 0. */
static uint32_t group_of_config(const td_quant_config *q) {
    const td_quant_scheme *s = &q->scheme[0];
    if (q->n_schemes != 1 || s->bits != 4 || s->is_float || s->act_order) return 0;
    return s->group ? s->group : TD_CODED_ROW_GROUP;
}

/* The same of the checkpoint's routed experts. */
static td_status group_of_checkpoint(const td_model *m, uint32_t *group, td_error *err) {
    td_expert_numbers n = {0};
    td_stored_experts stored;
    *group = 0;
    TD_TRY(td_checkpoint_expert_numbers(m->checkpoint, &m->config, &n, &stored, err));
    if (stored != TD_EXPERTS_EXACT) return TD_OK;
    if (n.format == TD_EXPERT_INT4G) *group = n.groups.size;
    if (n.format == TD_EXPERT_INT4C) *group = TD_CODED_ROW_GROUP;
    return TD_OK;
}

static bool is_in_groups(size_t columns, uint32_t group) {
    return columns < group || columns % group == 0;
}

/* Of experts on the device: whether they are 4-bit codes that it may keep. Without a checkpoint, as in a plan, config.json is
 * believed. A device may keep the codes of all matrices or of none: what is planned is room for none then. */
static td_status find_device_experts(td_model *m, td_error *err) {
    uint32_t group = group_of_config(&m->config.quant);
    if (!m->part.experts || !m->spec.w8a8 || m->config.quant.method == TD_QUANT_NONE) return TD_OK;
    if (!m->spec.load_dummy) TD_TRY(group_of_checkpoint(m, &group, err));
    const size_t inter = td_shard_sizes_of(&m->config, (td_shard){0, m->n_cards}).moe_inter;
    if (group && is_in_groups(m->config.hidden, group) && is_in_groups(inter, group)) m->part.expert_group = group;
    return TD_OK;
}

/* Measure which form of hand-over is faster on this machine; the result is in caps. */
static td_status measure_handover(td_npu *d, td_npu_caps *caps, td_error *err) {
    double call, bell;
    TD_TRY(td_handover_time(d, TD_HANDOVER_HOST_CALL, HANDOVER_ROUNDS, &call, err));
    TD_TRY(td_handover_time(d, TD_HANDOVER_DOORBELL, HANDOVER_ROUNDS, &bell, err));
    caps->handover = bell < call ? TD_HANDOVER_DOORBELL : TD_HANDOVER_HOST_CALL;
    td_info("hand-over: %.0f us by host call, %.0f us by doorbell; %s it is", call * 1e6, bell * 1e6,
            bell < call ? "doorbells" : "host calls");
    return TD_OK;
}

/* @param suits the device */
static td_handover wanted_handover(const td_model_probe *probe, td_handover suits) {
    if (probe->sums_ahead) return TD_HANDOVER_DOORBELL;
    if (!probe->other_handover) return suits;
    return suits == TD_HANDOVER_DOORBELL ? TD_HANDOVER_HOST_CALL : TD_HANDOVER_DOORBELL;
}

static td_status open_cards(td_model *m, td_npu *const *npus, td_error *err) {
    uint32_t    n = m->spec.n_cards;
    td_npu_caps caps;
    npus[0]->ops->caps(npus[0], &caps);
    if (caps.measure) TD_TRY(measure_handover(npus[0], &caps, err));
    m->async_experts = !caps.inline_work;
    if (caps.inline_work) m->spec.overlap_min_tok = 0; /* device and experts alternate on the same threads */
    m->unified = caps.unified_memory;
    m->log_sums = caps.log_sums;
    m->step_kinds = caps.step_kinds;
    m->norm_f32 = caps.norm_f32;
    m->id_bytes = td_npu_id_bytes(&caps);
    m->groups_in_floats = caps.groups_in_floats;
    m->kv_spare_pages = caps.kv_spare ? (uint32_t)td_div_up(td_step_spare_rows(m->spec.max_tok), TD_KV_PAGE) : 0;
    m->handover = wanted_handover(&m->probe, caps.handover);
    m->cards = aligned_alloc(TD_CPU_LINE, td_round_up(n * sizeof *m->cards, TD_CPU_LINE));
    if (!m->cards) return td_fail(err, TD_ENOMEM, "out of memory for the cards");
    memset(m->cards, 0, n * sizeof *m->cards);
    for (; m->n_cards < n; m->n_cards++)
        m->cards[m->n_cards] = (td_card_model){.model = m, .npu = npus[m->n_cards], .shard = {m->n_cards, n}};
    return n > 1 ? npus[0]->ops->group_create(npus, n, &m->group, err) : TD_OK;
}

td_status td_model_open(const td_model_spec *spec, const td_model_probe *probe, td_npu *const *npus, td_pool *expert_pool,
                        td_model **out, td_error *err) {
    *out = NULL;
    td_model *m = aligned_alloc(TD_CPU_LINE, td_round_up(sizeof *m, TD_CPU_LINE));
    if (!m) return td_fail(err, TD_ENOMEM, "out of memory for the model");
    *m = (td_model){.spec = *spec, .probe = probe ? *probe : (td_model_probe){0}, .expert_pool = expert_pool};
    td_status st = open_cards(m, npus, err);
    if (st == TD_OK && spec->cpu_weight_path && !(m->cpu_weight_path = strdup(spec->cpu_weight_path)))
        st = td_fail(err, TD_ENOMEM, "out of memory for the model");
    if (st == TD_OK) st = td_model_config_read(spec->model_path, spec->override_json, &m->config, err);
    m->checkpoint = spec->checkpoint;
    if (st == TD_OK && !spec->checkpoint) {
        st = spec->load_dummy ? td_checkpoint_open_dummy(0, &m->own_checkpoint, err)
                              : td_checkpoint_open(spec->model_path, &m->own_checkpoint, err);
        m->checkpoint = m->own_checkpoint;
    }
    if (st == TD_OK) st = settle_spec(m, err);
    if (st == TD_OK) st = td_shard_check(&m->config, m->n_cards, m->part.experts, err);
    if (st == TD_OK && !m->cpu_weight_path && has_packed_experts(m) && !(m->cpu_weight_path = strdup(spec->model_path)))
        st = td_fail(err, TD_ENOMEM, "out of memory for the model");
    if (st == TD_OK && m->spec.experts_as_stored) st = choose_expert_format(m, err);
    if (st == TD_OK) st = find_device_experts(m, err);
    m->int8_rows = m->spec.w8a8 && !m->probe.rows_tap && !(m->groups_in_floats && group_of_config(&m->config.quant));
    m->int8_experts = m->int8_rows && td_expert_takes_int8(m->spec.experts.format) &&
                      !m->probe.layer_tap; /* a layer_tap sees rows as norms give them */
    if (st == TD_OK) st = td_checkpoint_check_all(m->checkpoint, &m->config, !m->cpu_weight_path, err);
    if (st == TD_OK && m->spec.experts.n_layers) {
        const td_experts_config *ec = &m->spec.experts;
        if (m->cpu_weight_path) st = td_expert_files_check(ec, m->cpu_weight_path, m->checkpoint, err);
        if (st == TD_OK && !m->probe.experts_left)
            st = td_experts_measure(ec, td_pool_subpools(expert_pool), td_pool_workers(expert_pool), &m->expert_weight_bytes,
                                    &m->expert_scratch_bytes, err);
    }
    if (st == TD_OK && m->part.resident)
        st = td_experts_packed(&m->spec.experts, td_pool_subpools(expert_pool), &m->packed, err);
    for (uint32_t i = 0; i < m->n_cards && st == TD_OK; i++) st = td_card_model_measure_blocks(&m->cards[i], err);
    if (st != TD_OK) {
        td_model_close(m);
        return st;
    }
    *out = m;
    return TD_OK;
}

void td_model_set_slots(td_model *m, uint32_t n_slots) {
    assert(m->spec.device_experts == TD_GPU_EXPERTS_AUTO && n_slots * m->n_cards <= m->config.n_experts);
    m->part.resident = m->spec.device_experts = n_slots * m->n_cards;
    if (!n_slots || m->part.resident == m->config.n_experts) m->part.streamed = 0;
    if (!n_slots)
        td_info("num-gpu-experts auto: none: beside weights and KV cache there is no room for %u of a layer",
                m->config.top_k);
}

void td_model_close(td_model *m) {
    if (!m) return;
    stop_threads(m);
    td_vision_close(m->vision);
    for (uint32_t i = 0; i < m->n_cards; i++) td_card_model_close(&m->cards[i]);
    if (m->group) m->cards->npu->ops->group_destroy(m->group);
    td_bridge_close(m->bridge);
    td_streamed_close(m->streamed);
    td_resident_close(m->resident);
    td_experts_destroy(m->experts);
    if (m->n_cards > 1) free(m->logits);
    td_watch_close(m);
    td_checkpoint_close(m->own_checkpoint);
    free(m->cards);
    free(m->cpu_weight_path);
    free(m);
}

/* ---- loading ----------------------------------------------------------------------------------- */

/* What is resident may leave host memory only if it can be read again. */
static td_status check_drop(const td_model *m, td_error *err) {
    if (!m->spec.drop_experts || !m->spec.experts.n_layers) return TD_OK;
    if (!m->part.resident)
        td_info("expert-memory drop has no effect: no experts of this model move");
    else if (!m->cpu_weight_path)
        return td_fail(err, TD_ENOTSUP,
                       "expert-memory drop: there are no packed files from which experts could be read again: write them "
                       "with tandem quantize, and name their folder in cpu-weight-path");
    return TD_OK;
}

static td_status load_experts(td_model *m, td_error *err) {
    const bool        drop = m->part.resident && m->spec.drop_experts;
    td_experts_config ec = m->spec.experts;
    ec.droppable = drop;
    TD_TRY(td_experts_create(&ec, m->expert_pool, &m->experts, err));
    const td_resident_spec resident = td_model_resident_spec(m);
    if (m->part.resident) TD_TRY(td_resident_open(&resident, &m->resident, err));
    return td_experts_load_all(m->experts, &ec, &m->config, m->part.layers, m->checkpoint, m->cpu_weight_path,
                               drop ? m->resident : NULL, err);
}

static void measure_streamed(td_model *m) {
    if (td_model_resident_spec(m).chaos_seed) return; /* what is streamed is drawn */
    td_status st = td_card_model_measure_streamed(m->cards);
    if (st != TD_OK) td_warn("streamed experts could not be measured: %s; none is streamed", td_status_text(st));
}

td_status td_model_load(td_model *m, uint32_t n_pages, td_error *err) {
    TD_TRY(check_drop(m, err));
    for (uint32_t i = 0; i < m->n_cards; i++) TD_TRY(td_card_model_load(&m->cards[i], err));
    if (m->spec.max_patches)
        TD_TRY(td_vision_open(m->cards->npu, td_model_act_dtype(&m->spec), &m->config,
                              td_checkpoint_get_files(m->checkpoint), m->spec.max_patches, &m->vision, err));
    if (m->spec.experts.n_layers) {
        if (!m->probe.experts_left) TD_TRY(load_experts(m, err));
        if (m->part.streamed)
            TD_TRY(td_streamed_open(m->resident, td_moe_layers_in(&m->config, (td_layer_range){0, m->config.n_layers}),
                                    &m->streamed, err));
        td_bridge_config bc = bridge_config(m);
        TD_TRY(td_bridge_open(&bc, &m->bridge, err));
    }
    for (uint32_t i = 0; i < m->n_cards; i++) TD_TRY(td_card_model_build(&m->cards[i], n_pages, err));
    m->logits = m->n_cards > 1 ? malloc(merged_logits_bytes(m)) : m->cards->logits;
    if (m->part.whole && !m->logits) return td_fail(err, TD_ENOMEM, "out of memory for the logits");
    TD_TRY(start_threads(m, err));
    if (m->streamed) measure_streamed(m);
    for (uint32_t i = 0; i < m->n_cards; i++) td_card_model_keep_weights(&m->cards[i]);
    td_checkpoint_close(m->own_checkpoint);
    m->own_checkpoint = NULL;
    m->checkpoint = NULL;
    return TD_OK;
}

const td_model_spec *td_model_get_spec(const td_model *m) {
    return &m->spec;
}
const td_model_config *td_model_get_config(const td_model *m) {
    return &m->config;
}
uint64_t td_model_source_hash(const td_model *m) {
    return td_checkpoint_source_hash(m->checkpoint);
}
uint32_t td_model_one_form_from(const td_model *m) {
    return td_layer_caches_one_form_from(&m->config);
}

uint32_t td_model_window(const td_model *m) {
    return td_layer_caches_window(&m->config, m->part.layers);
}

bool td_model_recurrent(const td_model *m) {
    return td_layer_caches_recurrent(&m->config, td_all_layers(&m->config));
}

const td_vision_config *td_model_vision(const td_model *m) {
    return m->spec.max_patches ? &m->config.vision : NULL;
}

uint32_t td_model_context_length(const td_model *m) {
    return m->spec.context_length;
}
td_experts *td_model_get_experts(const td_model *m) {
    return m->experts;
}
td_status td_model_outline(const td_model *m, uint32_t n_halves, td_outline *out, td_error *err) {
    return td_card_model_outline(m->cards, n_halves, out, err);
}
void td_model_handover_bytes(const td_model *m, size_t *to_host, size_t *to_device) {
    td_bridge_config bc = bridge_config(m);
    td_bridge_row_bytes(&bc, to_host, to_device);
}
uint32_t td_model_halves(const td_model *m, uint32_t n_tok) {
    return td_card_model_splits(m, n_tok) ? TD_HALVES : 1;
}
uint32_t td_model_device_expert_group(const td_model *m) {
    return m->part.expert_group;
}
const char *td_model_expert_quantization(const td_model *m) {
    if (m->part.expert_group)
        return td_expert_format_name(TD_EXPERT_INT4G,
                                     &(td_gemm_groups){.size = (uint16_t)m->part.expert_group, .scale_dtype = TD_DT_BF16});
    if (m->part.experts) return m->spec.w8a8 ? "w8a8_int8" : "none";
    return td_expert_format_name(m->spec.experts.format, &m->spec.experts.groups);
}
const char *td_model_expert_kernel(const td_model *m) {
    return m->experts ? td_experts_kernel_name(m->experts) : "none";
}

void td_model_get_work(const td_model *m, td_model_work *out) {
    *out = (td_model_work){0};
    for (uint32_t i = 0; i < m->n_cards; i++) {
        td_npu_report card;
        m->cards[i].npu->ops->report(m->cards[i].npu, &card);
        out->device.bytes += card.work.bytes;
        out->device.int8_ops += card.work.int8_ops;
        out->device.f32_ops += card.work.f32_ops;
        out->device.busy_ns += card.work.busy_ns / m->n_cards; /* the average of the cards */
        out->link_down_bytes += card.link_down_bytes;
        out->link_up_bytes += card.link_up_bytes;
    }
    if (!m->experts) return;
    td_experts_counters(m->experts, &out->expert_pairs, &out->experts);
    out->deferred_pairs = td_bridge_deferred(m->bridge);
    if (m->resident) td_resident_report(m->resident, &out->residency);
    if (m->streamed) td_streamed_report(m->streamed, &out->residency.stream);
}

uint32_t td_model_get_cards(const td_model *m, td_card_stats out[TD_CARDS_MAX]) {
    uint32_t n = 0;
    for (; n < m->n_cards && m->cards[n].npu->ops->stats; n++) {
        m->cards[n].npu->ops->stats(m->cards[n].npu, &out[n]);
        if (m->streamed) td_streamed_report_card(m->streamed, n, &out[n]);
    }
    return n;
}

bool td_model_is_lost(const td_model *m, td_error *why) {
    for (uint32_t i = 0; i < m->n_cards; i++) {
        td_npu *card = m->cards[i].npu;
        if (card->ops->lost && card->ops->lost(card, why)) return true;
    }
    return false;
}

const char *td_model_why(const td_model *m, td_status st) {
    for (uint32_t i = 0; i < m->n_cards; i++)
        if (m->cards[i].error.text[0]) return m->cards[i].error.text;
    return td_status_text(st);
}

/* The model's layer of a layer of the expert store. */
static uint32_t layer_of_moe(const td_model_config *c, uint32_t moe_layer) {
    uint32_t layer = 0;
    for (;; layer++)
        if (c->is_moe[layer] && moe_layer-- == 0) return layer;
}

void td_model_describe(const td_model *m, char *text, size_t size) {
    td_npu_report device;
    uint32_t      moe_layer;
    size_t        n = 0;
    m->cards->npu->ops->report(m->cards->npu, &device); /* the first card: all do the same */
    text[0] = 0;
    if (device.doing && device.layer != TD_NO_LAYER)
        n = (size_t)snprintf(text, size, "%s of layer %u on the device", device.doing, device.layer);
    else if (device.doing)
        n = (size_t)snprintf(text, size, "%s on the device", device.doing);
    if (n < size && m->experts && td_experts_doing(m->experts, &moe_layer))
        snprintf(text + n, size - n, "%sexperts of layer %u", n ? ", " : "", layer_of_moe(&m->config, moe_layer));
}

/* ---- running --------------------------------------------------------------------------------- */

/* Spread a row's best logits into a row of -inf. */
static void spread_best(float *row, size_t n, const td_logit *best, uint32_t k) {
    for (size_t i = 0; i < n; i++) row[i] = -INFINITY;
    for (uint32_t i = 0; i < k; i++) row[best[i].id] = best[i].value;
}

/* log(sum(exp(logit))) of a row, from the cards' stretches in their order. */
static double log_sum_of(const td_model *m, uint32_t row) {
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < m->n_cards; i++) max = fmax(max, (double)m->cards[i].sums[row].max);
    for (uint32_t i = 0; i < m->n_cards; i++) {
        td_log_sum s = m->cards[i].sums[row];
        sum += (double)s.sum * exp((double)s.max - max);
    }
    return max + log(sum);
}

/* Put the cards' logits together: each card has those of its stretch of the vocabulary. */
static void gather_logits(td_model *m) {
    const td_out_rows *out = &m->pass.out;
    size_t             vocab = m->config.vocab, part = td_shard_sizes_of(&m->config, m->cards->shard).vocab;
    for (uint32_t i = 0; i < m->n_cards; i++) {
        const td_card_model *c = &m->cards[i];
        for (uint32_t r = 0; r < out->n; r++) {
            float *to = m->logits + r * vocab + i * part;
            if (td_card_model_gives_best(c, r)) {
                size_t at = td_card_model_asked(c, r);
                float  asked = at < part ? c->logits[r * part + at] : 0;
                spread_best(to, part, c->top + (size_t)r * td_card_model_top_k(c), td_card_model_top_k(c));
                if (at < part) to[at] = asked;
            } else if (m->n_cards > 1) {
                memcpy(to, c->logits + r * part, part * sizeof *to);
            }
        }
    }
    for (uint32_t r = 0; out->logprobs && r < out->n; r++) {
        out->logprobs[r].log_sum = td_card_model_gives_sum(m->cards, r) ? log_sum_of(m, r) : (double)NAN;
    }
}

/* Clean up after a pass that failed. Sums of several cards may have been given up half-way, so the group is made anew, and
 * what was captured with the old one is gone (td_npu_ops.group_abort). */
static td_status give_up(td_model *m, td_status st) {
    if (!m->group) return st;
    m->cards->npu->ops->group_abort(m->group);
    for (uint32_t i = 0; i < m->n_cards; i++) td_card_model_forget_captures(&m->cards[i]);
    return st;
}

/* Run one pass over the rows of the step, with other tokens if `token` is not NULL. Then the logits of its out rows are on
 * the host. */
static td_status run(td_model *m, td_pass_kind kind, const uint32_t *token, td_out_rows out) {
    const td_program *p = td_card_model_program(m->cards, kind);
    bool              hands_over = m->bridge && p;
    m->pass = (td_pass){.kind = kind, .token = token, .out = out};
    if (m->streamed && kind == TD_PASS_FORWARD) m->pass.share = td_streamed_share(m->streamed, m->rows->n_tok);
    if (m->group) m->cards->npu->ops->group_reset(m->group);
    td_status st = on_cards(m, td_card_model_prepare);
    if (st != TD_OK) return give_up(m, st);
    td_pool_hold(m->expert_pool);
    if (hands_over) {
        td_bridge_pass pass = td_program_pass(p, m->cards->bucket);
        if (m->resident) td_resident_begin_pass(m->resident, m->cards->bucket->whole.first_row);
        if (m->streamed) td_streamed_begin_pass(m->streamed, m->pass.share);
        td_bridge_begin_pass(m->bridge, &pass);
    }
    st = on_cards(m, td_card_model_run);
    td_status  ticket = hands_over ? td_bridge_end_pass(m->bridge) : TD_OK;
    const bool ok = st == TD_OK && ticket == TD_OK;
    if (hands_over && m->streamed) td_streamed_end_pass(m->streamed, ok);
    if (hands_over && m->resident) td_resident_end_pass(m->resident, ok ? &m->cards->bucket->whole : NULL);
    td_pool_release(m->expert_pool);
    if (st != TD_OK) return give_up(m, st);
    gather_logits(m);
    return ticket;
}

static td_status run_head(td_model *m, td_pass_kind kind, td_out_rows out, const float **logits) {
    assert(out.n <= m->spec.max_out);
    TD_TRY(run(m, kind, NULL, out));
    if (out.n) *logits = m->logits;
    return TD_OK;
}

td_status td_model_forward(td_model *m, const td_step_rows *rows, td_out_rows out, const float **logits) {
    assert(m->part.whole && rows->n_tok >= 1 && rows->n_tok <= m->spec.max_tok);
    m->rows = rows;
    m->rows_aside = false;
    return run_head(m, TD_PASS_FORWARD, out, logits);
}

td_status td_model_head(td_model *m, td_out_rows out, const float **logits) {
    return run_head(m, TD_PASS_HEAD, out, logits);
}

td_status td_model_mtp(td_model *m, const uint32_t *next_token) {
    return m->config.n_mtp_layers ? run(m, TD_PASS_MTP, next_token, (td_out_rows){0}) : TD_ENOTSUP;
}

td_status td_model_mtp_head(td_model *m, td_out_rows out, const float **logits) {
    return m->config.n_mtp_layers ? run_head(m, TD_PASS_MTP_HEAD, out, logits) : TD_ENOTSUP;
}

td_status td_model_start_image(td_model *m, const float *pixels, uint32_t rows, uint32_t columns, float *features) {
    assert(m->vision);
    return td_vision_start(m->vision, pixels, rows, columns, features, &m->cards->error);
}

td_status td_model_run_image_piece(td_model *m, td_piece *piece) {
    td_pool_hold(m->expert_pool);
    td_status st = td_vision_run(m->vision, piece, &m->cards->error);
    td_pool_release(m->expert_pool);
    return st;
}

size_t td_model_page_bytes(const td_model *m) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < m->n_cards; i++) bytes += td_card_model_page_bytes(&m->cards[i]);
    return bytes;
}

td_status td_model_prepare_page_copies(td_model *m, td_error *err) {
    for (uint32_t i = 0; i < m->n_cards; i++) TD_TRY(td_card_model_prepare_page_copies(&m->cards[i], err));
    return TD_OK;
}

td_status td_model_read_page(td_model *m, uint32_t page, void *to) {
    m->copy = (td_page_copy){.page = page, .host = to};
    return on_cards(m, td_card_model_copy_page);
}

td_status td_model_write_page(td_model *m, uint32_t page, const void *from) {
    m->copy = (td_page_copy){.page = page, .host = (char *)from, .to_device = true};
    return on_cards(m, td_card_model_copy_page);
}

td_status td_model_run_layers(td_model *m, const td_step_rows *rows, const void *in, void *out) {
    assert(!m->part.whole && m->n_cards == 1 && rows->n_tok >= 1 && rows->n_tok <= m->spec.max_tok);
    td_card_model *c = m->cards;
    td_npu        *d = c->npu;
    size_t         bytes = (size_t)rows->n_tok * m->config.hidden * td_dtype_bytes(td_model_act_dtype(&m->spec));
    memmove(c->x, in, bytes);
    if (c->x != c->act.x) TD_TRY(d->ops->copy(d, c->stream, c->act.x, c->x, bytes, TD_COPY_H2D));
    m->rows = rows;
    TD_TRY(run(m, TD_PASS_FORWARD, NULL, (td_out_rows){0}));
    TD_TRY(td_card_model_download(c, c->x, c->act.x, bytes));
    TD_TRY(d->ops->stream_sync(d, c->stream));
    memmove(out, c->x, bytes);
    return TD_OK;
}

static bool find_role(const td_role_weights *r, const td_npu_weight *w, td_role *role) {
    for (*role = 0; *role < TD_ROLE_COUNT; ++*role)
        if (r->role[*role] == w) return true;
    return false;
}

bool td_model_find_weight(const td_model *m, const td_npu_weight *w, uint32_t *layer, td_role *role) {
    for (*layer = m->part.layers.first; *layer < m->part.layers.end; ++*layer)
        if (find_role(&m->cards->weights.layers[*layer], w, role)) return true;
    *layer = 0;
    return find_role(&m->cards->weights.model, w, role);
}
