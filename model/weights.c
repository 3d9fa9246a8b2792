#include "model/weights.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "model/checkpoint/stored_weight.h"
#include "model/load_progress.h"
#include "model/shard_cut.h"
#include "quant/coded_matrix.h"

/* Whether the device tier keeps a weight of this part of the model. */
static bool on_device(const td_model_config *c, const td_model_part *part, td_place place) {
    switch (place) {
        case TD_PLACE_LAYER: return true;
        case TD_PLACE_WHOLE_MODEL: return part->whole;
        case TD_PLACE_ENDS: return part->whole || part->layers.end > c->n_layers;
        case TD_PLACE_EXPERTS: return part->experts;
        case TD_PLACE_SHARED: return false;
        case TD_PLACE_SHARED_UNLESS_ROTATED: return part->whole && c->mtp_rotated;
    }
    return false;
}

/* All linears are f32 if some may be in codes: bf16 does not hold the values of codes, and which linears are in codes is not
 * known here. */
td_weight_format td_model_weight_format(const td_model_config *c, const td_tensor_spec *spec, bool w8a8) {
    if (!spec->linear || w8a8) return spec->format;
    return c->quant.method == TD_QUANT_NONE ? TD_WEIGHT_BF16 : TD_WEIGHT_F32;
}

static uint32_t all_layers(const td_model_config *c) {
    return c->n_layers + c->n_mtp_layers;
}

/* An upper bound: which linears of a quantised checkpoint are in groups is only known when they are read. */
static uint64_t bytes_of(td_npu *d, const td_model_config *c, const td_model_part *part, td_shard shard, td_role role,
                         uint32_t layer, bool w8a8) {
    static const td_weight_format IN_GROUPS[] = {TD_WEIGHT_INT4G, TD_WEIGHT_FP4G};
    td_tensor_spec                spec;
    td_shard_part                 held;
    if (!td_tensor_spec_get(c, role, layer, 0, &spec) || !on_device(c, part, spec.place) ||
        !td_shard_part_of(&spec, shard, &held))
        return 0;
    td_weight_format format = td_model_weight_format(c, &spec, w8a8);
    size_t           n = spec.rank == 1 ? 1 : held.shape[0], k = held.shape[spec.rank - 1];
    if (format == TD_WEIGHT_W8A8 && spec.place == TD_PLACE_EXPERTS && part->expert_group &&
        (k % part->expert_group == 0 || k < part->expert_group))
        return d->ops->weight_bytes(d, TD_WEIGHT_INT4G, part->expert_group, n, k);
    uint64_t bytes = d->ops->weight_bytes(d, format, 0, n, k);
    for (size_t i = 0; i < 2 && format == TD_WEIGHT_W8A8 && c->quant.method != TD_QUANT_NONE; i++) {
        uint64_t in_groups = d->ops->weight_bytes(d, IN_GROUPS[i], 0, n, k);
        if (in_groups > bytes) bytes = in_groups;
    }
    return bytes;
}

static uint32_t tensors_of(const td_model_config *c, td_role role) {
    return td_role_is_expert(c, role) ? c->n_experts : 1;
}

uint64_t td_model_weights_bytes(td_npu *d, const td_model_config *c, const td_model_part *part, td_shard shard, bool w8a8,
                                uint32_t max_pos) {
    uint64_t sum = 0;
    if (c->rope.dim) sum += d->ops->weight_bytes(d, TD_WEIGHT_F32, 0, max_pos, c->rope.dim);
    if (c->rope_far.dim) sum += d->ops->weight_bytes(d, TD_WEIGHT_F32, 0, max_pos, c->rope_far.dim);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++)
        if (!td_role_is_of_model(c, role))
            for (uint32_t i = part->layers.first; i < part->layers.end; i++)
                sum += tensors_of(c, role) * bytes_of(d, c, part, shard, role, i, w8a8);
        else
            sum += bytes_of(d, c, part, shard, role, 0, w8a8);
    return sum;
}

/* ---- which weight a kept one is --------------------------------------------------------------- */

/* What a weight was made from: the checkpoint (its identity is in the file's header), the tensor's name, the order
   of its rows there, and which part it is. Format and shape are compared apart from that. */
static td_device_weight_id id_of(const td_tensor_spec *spec, const td_shard_part *held, td_role role, uint32_t layer) {
    uint64_t key = XXH3_64bits_withSeed(spec->name, strlen(spec->name), XXH3_64bits(&spec->order, sizeof spec->order));
    if (memcmp(held->shape, spec->shape, sizeof held->shape))
        key = XXH3_64bits_withSeed(held->first, sizeof held->first, key);
    return (td_device_weight_id){.role = role, .layer = layer, .key = key};
}

/* The rope table is made from frequencies and a scale. */
static td_device_weight_id rope_id(const td_model_config *c, const td_rope_config *rope) {
    double made_from[TD_ROPE_DIM_MAX / 2 + 1] = {0};
    td_rope_frequencies(rope, c->max_position, made_from + 1, made_from);
    return (td_device_weight_id){
        .role = TD_ROLE_COUNT, .layer = rope == &c->rope_far, .key = XXH3_64bits(made_from, sizeof made_from)};
}

/* ---- loading ---------------------------------------------------------------------------------- */

typedef struct {
    td_npu                *d;
    const td_model_config *c;
    const td_model_part   *part;
    td_shard               shard;
    const td_checkpoint   *ck;
    const td_device_file  *kept; /* or NULL */
    bool                   w8a8;
    uint64_t               n_converted; /* weights that kept does not have */
    td_load_progress       progress;
    td_error              *err;
} loader;

/* Take a weight of that id, format and shape out of the file; *out stays NULL if there is none. */
static void adopt(loader *l, const td_device_weight_id *id, td_weight_format format, size_t n, size_t k,
                  td_npu_weight **out) {
    td_npu_packed p;
    if (!l->kept || !td_device_file_find(l->kept, id, &p) || p.format != format || p.n != n || p.k != k) return;
    if (l->d->ops->weight_adopt(l->d, &p, out, NULL) != TD_OK) *out = NULL;
}

td_status td_model_find_groups(const td_checkpoint *ck, const td_model_config *c, td_role role, uint32_t layer,
                               uint32_t expert, td_scratch *scratch, td_tensor_view *view, td_weight_format *format,
                               td_error *err) {
    td_gemm_groups groups;
    if (*format != TD_WEIGHT_W8A8 || c->quant.method == TD_QUANT_NONE) return TD_OK;
    TD_TRY(td_checkpoint_get(ck, c, role, layer, expert, TD_FORM_CODES, scratch, view, err));
    td_coded_tiles tiles = view->coded ? td_coded_exact_tiles(view->coded, &groups) : TD_CODED_ROUNDED;
    if (tiles != TD_CODED_ROUNDED) *format = tiles == TD_CODED_INT4G ? TD_WEIGHT_INT4G : TD_WEIGHT_FP4G;
    return TD_OK;
}

/* Make a weight from the checkpoint. @param coded what td_model_find_groups found, to be cut. */
static td_status make_weight(loader *l, const td_tensor_spec *spec, const td_shard_part *held, td_role role, uint32_t layer,
                             uint32_t expert, td_weight_format format, td_tensor_view *coded, td_scratch *scratch,
                             td_npu_weight **out) {
    td_tensor_view view;
    bool           in_groups = format == TD_WEIGHT_INT4G || format == TD_WEIGHT_FP4G;
    td_weight_form form = in_groups || format == TD_WEIGHT_W8A8 ? TD_FORM_FLOAT_OR_INT8 : TD_FORM_FLOAT;
    l->n_converted++;
    if (in_groups) {
        TD_TRY(td_shard_cut_codes(spec, held, scratch, coded, l->err));
        td_status st = l->d->ops->weight_create(l->d, format, coded, out, l->err);
        if (st != TD_EFORMAT) return st; /* else decoding it names the scale or zero that is wrong */
    }
    TD_TRY(td_checkpoint_get(l->ck, l->c, role, layer, expert, form, scratch, &view, l->err));
    if (!view.data) return TD_OK;
    td_status st = td_shard_cut(spec, held, format, scratch, &view, l->err);
    if (st == TD_OK) st = l->d->ops->weight_create(l->d, format, &view, out, l->err);
    if (st != TD_OK) td_fail_within(l->err, "%s, %s", td_checkpoint_dir(l->ck), spec->name);
    return st;
}

static td_status load_tensor(loader *l, td_role role, uint32_t layer, uint32_t expert, td_npu_weight **out) {
    td_tensor_spec spec;
    td_shard_part  held;
    if (!td_tensor_spec_get(l->c, role, layer, expert, &spec) || !on_device(l->c, l->part, spec.place) ||
        !td_shard_part_of(&spec, l->shard, &held))
        return TD_OK;
    td_scratch          scratch = {0};
    td_tensor_view      coded;
    td_device_weight_id id = id_of(&spec, &held, role, layer);
    td_weight_format    format = td_model_weight_format(l->c, &spec, l->w8a8);
    td_status           st = td_model_find_groups(l->ck, l->c, role, layer, expert, &scratch, &coded, &format, l->err);
    if (st == TD_OK) adopt(l, &id, format, spec.rank == 1 ? 1 : held.shape[0], held.shape[spec.rank - 1], out);
    if (st == TD_OK && !*out) st = make_weight(l, &spec, &held, role, layer, expert, format, &coded, &scratch, out);
    td_scratch_reset(&scratch);
    td_load_progress_add(&l->progress, bytes_of(l->d, l->c, l->part, l->shard, role, layer, l->w8a8));
    return st;
}

static td_status load_list(loader *l, td_role role, uint32_t layer, td_npu_weight ***list) {
    *list = calloc(l->c->n_experts, sizeof **list);
    if (!*list) return td_fail(l->err, TD_ENOMEM, "out of memory for the weights");
    for (uint32_t e = 0; e < l->c->n_experts; e++) TD_TRY(load_tensor(l, role, layer, e, &(*list)[e]));
    return TD_OK;
}

static td_status load_experts(loader *l, uint32_t layer, td_layer_experts *out) {
    if (!l->part->experts || !l->c->is_moe[layer]) return TD_OK;
    TD_TRY(load_list(l, TD_ROLE_EXPERT_GATE, layer, &out->gate));
    TD_TRY(load_list(l, TD_ROLE_EXPERT_UP, layer, &out->up));
    return load_list(l, TD_ROLE_EXPERT_DOWN, layer, &out->down);
}

static td_status load_rope(loader *l, const td_rope_config *rope, uint32_t max_pos, td_npu_weight **out) {
    if (!rope->dim) return TD_OK;
    td_device_weight_id id = rope_id(l->c, rope);
    adopt(l, &id, TD_WEIGHT_F32, max_pos, rope->dim, out);
    if (*out) return TD_OK; /* a table of another length is computed each time: no reason to write the file anew */
    float *table = malloc((size_t)max_pos * rope->dim * sizeof *table);
    if (!table) return td_fail(l->err, TD_ENOMEM, "out of memory for the rope table of %u positions", max_pos);
    td_rope_table(rope, l->c->max_position, max_pos, table);
    td_tensor_view view = {.dtype = TD_DT_F32, .rank = 2, .shape = {max_pos, rope->dim}, .data = table};
    td_status      st = l->d->ops->weight_create(l->d, TD_WEIGHT_F32, &view, out, l->err);
    free(table);
    return st;
}

/* ---- what the MTP layer shares ----------------------------------------------------------------- */

/* A row's values, of a matrix as it is stored. @param values [2 * k], the row is in the first half. @return false: a scale
 * or zero is impossible. */
static bool stored_row(const td_stored_weight *w, size_t row, size_t k, float *values) {
    if (!w->plain) return td_coded_row(&w->coded, row, values);
    size_t bytes = k * td_dtype_bytes(w->plain->dtype);
    memcpy(values + k, (const char *)w->plain->data + row * bytes, bytes); /* the file's bytes need not be aligned */
    td_to_f32(w->plain->dtype, values + k, k, values);
    return true;
}

/* @param spec, w [2] of two matrices of one shape. */
static td_status compare_values(loader *l, const td_tensor_spec *spec, const td_stored_weight *w, bool *same) {
    size_t    n = spec[0].shape[0], k = spec[0].shape[1];
    float    *values = malloc(4 * k * sizeof *values);
    td_status st = values ? TD_OK : td_fail(l->err, TD_ENOMEM, "out of memory for a row of %s", spec[0].name);
    *same = true;
    for (size_t row = 0; st == TD_OK && *same && row < n; row++) {
        for (int i = 0; i < 2 && st == TD_OK; i++)
            if (!stored_row(&w[i], row, k, values + i * 2 * k))
                st = td_stored_check_values(td_checkpoint_get_files(l->ck), &spec[i], &w[i].coded, l->err);
        for (size_t j = 0; j < k; j++) *same &= values[j] == values[2 * k + j];
    }
    free(values);
    return st;
}

/* A checkpoint carries the MTP layer's own copies of embedding and head; DeepSeek-V3 shares them with the main model. */
static td_status check_shared(loader *l, td_role copy, td_role original) {
    td_tensor_spec   spec[2];
    td_stored_weight w[2];
    td_scratch       scratch = {0};
    bool             same = true;
    if (td_checkpoint_is_dummy(l->ck) || !td_tensor_spec_get(l->c, copy, l->c->n_layers, 0, &spec[0]) ||
        !td_tensor_spec_get(l->c, original, 0, 0, &spec[1]) || !td_stored_exists(td_checkpoint_get_files(l->ck), &spec[0]))
        return TD_OK;
    td_status st = td_stored_find(td_checkpoint_get_files(l->ck), l->c, &spec[0], &scratch, &w[0], l->err);
    if (st == TD_OK) st = td_stored_find(td_checkpoint_get_files(l->ck), l->c, &spec[1], &scratch, &w[1], l->err);
    if (st == TD_OK && w[0].plain && w[1].plain && w[0].plain->dtype == w[1].plain->dtype)
        same = !memcmp(w[0].plain->data, w[1].plain->data, w[0].plain->bytes);
    else if (st == TD_OK)
        st = compare_values(l, spec, w, &same);
    if (st == TD_OK && !same)
        st = td_fail(l->err, TD_ENOTSUP,
                     "%s: %s differs from %s; an MTP layer with weights of its own there is not supported",
                     td_checkpoint_dir(l->ck), spec[0].name, spec[1].name);
    td_scratch_reset(&scratch);
    return st;
}

td_status td_model_weights_load(td_npu *d, const td_model_config *c, const td_model_part *part, td_shard shard,
                                const td_checkpoint *ck, bool w8a8, uint32_t max_pos, const td_device_file *kept,
                                td_model_weights *w, bool *all_kept, td_error *err) {
    loader l = {.d = d, .c = c, .part = part, .shard = shard, .ck = ck, .kept = kept, .w8a8 = w8a8, .err = err};
    td_load_progress_start(&l.progress, part->whole ? "device weights" : NULL,
                           td_model_weights_bytes(d, c, part, shard, w8a8, max_pos));
    *w = (td_model_weights){.layers = calloc(all_layers(c), sizeof *w->layers),
                            .experts = calloc(all_layers(c), sizeof *w->experts)};
    if (!w->layers || !w->experts) return td_fail(err, TD_ENOMEM, "out of memory for the weights");
    TD_TRY(load_rope(&l, &c->rope, max_pos, &w->rope));
    TD_TRY(load_rope(&l, &c->rope_far, max_pos, &w->rope_far));
    for (td_role role = 0; role < TD_ROLE_COUNT; role++)
        if (td_role_is_of_model(c, role)) TD_TRY(load_tensor(&l, role, 0, 0, &w->model.role[role]));
    for (uint32_t i = part->layers.first; i < part->layers.end; i++) {
        for (td_role role = 0; role < TD_ROLE_COUNT; role++)
            if (!td_role_is_of_model(c, role) && !td_role_is_expert(c, role))
                TD_TRY(load_tensor(&l, role, i, 0, &w->layers[i].role[role]));
        TD_TRY(load_experts(&l, i, &w->experts[i]));
        td_checkpoint_files_release_all(td_checkpoint_get_files(ck));
    }
    if (c->n_mtp_layers && part->whole && shard.index == 0) { /* one card checks for all */
        TD_TRY(check_shared(&l, TD_ROLE_MTP_EMBED, TD_ROLE_EMBED));
        if (!c->mtp_rotated) TD_TRY(check_shared(&l, TD_ROLE_MTP_HEAD, TD_ROLE_LM_HEAD));
    }
    td_load_progress_end(&l.progress);
    *all_kept = l.n_converted == 0;
    return TD_OK;
}

/* ---- keeping ---------------------------------------------------------------------------------- */

typedef struct {
    td_device_weight_id *ids;
    td_npu_packed       *weights;
    size_t               n;
} kept_list;

static void list_role(td_npu *d, const td_model_config *c, td_shard shard, td_role role, uint32_t layer,
                      const td_npu_weight *w, kept_list *list) {
    td_tensor_spec spec;
    td_shard_part  held;
    if (!w || !td_tensor_spec_get(c, role, layer, 0, &spec) || !td_shard_part_of(&spec, shard, &held)) return;
    list->ids[list->n] = id_of(&spec, &held, role, layer);
    d->ops->weight_export(d, w, &list->weights[list->n++]);
}

td_status td_model_weights_keep(td_npu *d, const td_model_config *c, td_shard shard, const td_model_weights *w,
                                const char *path, const char *tag, uint64_t source_hash, td_pool *pool, td_error *err) {
    size_t    most = (size_t)TD_ROLE_COUNT * (all_layers(c) + 1) + 2;
    kept_list list = {.ids = calloc(most, sizeof *list.ids), .weights = calloc(most, sizeof *list.weights)};
    td_status st = list.ids && list.weights ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for %s", path);
    if (st == TD_OK) {
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) list_role(d, c, shard, role, 0, w->model.role[role], &list);
        for (uint32_t i = 0; i < all_layers(c); i++)
            for (td_role role = 0; role < TD_ROLE_COUNT; role++)
                list_role(d, c, shard, role, i, w->layers[i].role[role], &list);
        if (w->rope) {
            list.ids[list.n] = rope_id(c, &c->rope);
            d->ops->weight_export(d, w->rope, &list.weights[list.n++]);
        }
        if (w->rope_far) {
            list.ids[list.n] = rope_id(c, &c->rope_far);
            d->ops->weight_export(d, w->rope_far, &list.weights[list.n++]);
        }
        st = td_device_file_write(path, tag, source_hash, pool, list.ids, list.weights, list.n, err);
    }
    free(list.ids);
    free(list.weights);
    return st;
}

static void free_list(td_npu *d, td_npu_weight **list, uint32_t n) {
    for (uint32_t e = 0; list && e < n; e++)
        if (list[e]) d->ops->weight_destroy(d, list[e]);
    free(list);
}

void td_model_weights_free(td_npu *d, const td_model_config *c, td_model_weights *w) {
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        if (w->model.role[role]) d->ops->weight_destroy(d, w->model.role[role]);
        for (uint32_t i = 0; w->layers && i < all_layers(c); i++)
            if (w->layers[i].role[role]) d->ops->weight_destroy(d, w->layers[i].role[role]);
    }
    for (uint32_t i = 0; w->experts && i < all_layers(c); i++) {
        free_list(d, w->experts[i].gate, c->n_experts);
        free_list(d, w->experts[i].up, c->n_experts);
        free_list(d, w->experts[i].down, c->n_experts);
    }
    if (w->rope) d->ops->weight_destroy(d, w->rope);
    if (w->rope_far) d->ops->weight_destroy(d, w->rope_far);
    free(w->experts);
    free(w->layers);
    *w = (td_model_weights){0};
}
