#include "model/experts_load.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"
#include "kernels/rows/convert.h"
#include "model/checkpoint/stored_weight.h"
#include "model/load_progress.h"

#define PATH_BYTES 4096

void td_expert_file_path(char *out, size_t size, const char *dir, uint32_t index) {
    snprintf(out, size, "%s/experts-%05u.tdx", dir, index);
}

td_status td_expert_files_check(const td_experts_config *ec, const char *dir, const td_checkpoint *ck, td_error *err) {
    for (uint32_t i = 0; i < ec->n_layers; i++) {
        char path[PATH_BYTES];
        td_expert_file_path(path, sizeof path, dir, ec->first_layer + i);
        TD_TRY(td_experts_check_file(ec, i, path, td_checkpoint_source_hash(ck), err));
    }
    return TD_OK;
}

static td_status get_biases(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, uint32_t expert,
                            td_scratch *scratch, td_expert_weights *out, td_error *err) {
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_GATE_BIAS, layer, expert, TD_FORM_STORED, scratch, &out->gate_bias, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_UP_BIAS, layer, expert, TD_FORM_STORED, scratch, &out->up_bias, err));
    return td_checkpoint_get(ck, c, TD_ROLE_EXPERT_DOWN_BIAS, layer, expert, TD_FORM_STORED, scratch, &out->down_bias, err);
}

static td_status get_expert(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, uint32_t expert,
                            td_scratch *scratch, td_expert_weights *out, td_error *err) {
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_GATE, layer, expert, TD_FORM_STORED, scratch, &out->gate, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_UP, layer, expert, TD_FORM_STORED, scratch, &out->up, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_DOWN, layer, expert, TD_FORM_STORED, scratch, &out->down, err));
    return get_biases(ck, c, layer, expert, scratch, out, err);
}

td_status td_checkpoint_get_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, td_scratch *scratch,
                                    td_expert_weights *out, td_error *err) {
    for (uint32_t e = 0; e < c->n_experts; e++) TD_TRY(get_expert(ck, c, layer, e, scratch, &out[e], err));
    return TD_OK;
}

/* The first routed expert; without views where the checkpoint has none. */
static td_status first_expert(const td_checkpoint *ck, const td_model_config *c, td_scratch *scratch, td_expert_weights *e,
                              td_error *err) {
    uint32_t layer = 0;
    *e = (td_expert_weights){0};
    while (layer < c->n_layers && !c->is_moe[layer]) layer++;
    if (layer == c->n_layers || td_checkpoint_is_dummy(ck) || !td_checkpoint_has_experts(ck, c)) return TD_OK;
    return get_expert(ck, c, layer, 0, scratch, e, err);
}

/* Find a format that holds the codes of all three matrices. */
static bool exact_numbers(const td_expert_weights *e, td_expert_numbers *out) {
    bool exact = false;
    for (int m = 0; !exact && m < TD_EXPERT_MATRICES; m++) {
        const td_coded_matrix *coded = td_expert_view(e, (td_expert_matrix)m)->coded;
        exact = coded && td_expert_exact_numbers(coded, out);
        for (int i = 0; exact && i < TD_EXPERT_MATRICES; i++) {
            const td_coded_matrix *other = td_expert_view(e, (td_expert_matrix)i)->coded;
            exact = other && td_expert_format_carries(out->format, &out->groups, other);
        }
    }
    return exact;
}

td_status td_checkpoint_expert_numbers(const td_checkpoint *ck, const td_model_config *c, td_expert_numbers *out,
                                       td_stored_experts *stored, td_error *err) {
    td_scratch             scratch = {0};
    td_expert_weights      e;
    td_status              st = first_expert(ck, c, &scratch, &e, err);
    const td_coded_matrix *m = e.gate.coded;
    *stored = TD_EXPERTS_NOT_CODED;
    if (st == TD_OK && exact_numbers(&e, out)) {
        *stored = TD_EXPERTS_EXACT;
    } else if (st == TD_OK && m) {
        *stored = TD_EXPERTS_ROUNDED;
        *out = *td_expert_numbers_find(m->bits == 8 && m->codes != TD_CODES_E4M3 ? "int8" : "int4");
        td_info("no format holds the experts' codes exactly%s: they are rounded to %s",
                m->group_of ? ", their columns were quantised in another order" : "", out->name);
    }
    td_scratch_reset(&scratch);
    return st;
}

/* A layer's views were refused: name file and tensor if the reason is a scale or a zero. */
static void name_fault(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, const td_expert_weights *views,
                       td_error *err) {
    for (uint32_t e = 0; e < c->n_experts; e++)
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) {
            td_tensor_spec         spec;
            const td_coded_matrix *coded = td_expert_view(&views[e], (td_expert_matrix)m)->coded;
            if (coded && td_tensor_spec_get(c, TD_ROLE_EXPERT_GATE + (td_role)m, layer, e, &spec) &&
                td_stored_check_values(td_checkpoint_get_files(ck), &spec, coded, err) != TD_OK)
                return;
        }
}

/* Log whether experts in codes are kept unchanged or rounded again. */
static void report_rounded(const td_experts_config *ec, const td_model_config *c, uint32_t layer,
                           const td_expert_weights *views) {
    uint32_t coded = 0, rounded = 0;
    for (uint32_t e = 0; e < c->n_experts; e++)
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) {
            const td_coded_matrix *w = td_expert_view(&views[e], (td_expert_matrix)m)->coded;
            coded += w != NULL;
            rounded += w && !td_expert_format_carries(ec->format, &ec->groups, w);
        }
    if (rounded && rounded < coded)
        td_warn("layer %u: %u of %u expert matrices are not stored as the others and are rounded again", layer, rounded,
                coded);
    else if (coded)
        td_debug("layer %u: the experts' codes are %s", layer, rounded ? "rounded again" : "carried over exactly");
}

/* ---- a layer's experts as a source ----------------------------------------------------------- */

typedef struct {
    const td_checkpoint       *ck;
    const td_model_config     *c;
    uint32_t                   layer;
    const td_expert_weights   *views; /* [n_experts]; only biases if the layer is copied as it is read */
    const td_checkpoint_files *files; /* from which bytes are fetched; NULL: they are read where they lie */
    size_t                     fetch_bytes;
} layer_source;

/* Bytes of a view that lie one after the other; 0: not known here. */
static size_t view_bytes(const td_tensor_view *v) {
    size_t n = v->shape[0] * v->shape[1];
    if (!v->coded) return n * td_dtype_bytes(v->dtype);
    return v->coded->codes == TD_CODES_E4M3 || v->coded->codes == TD_CODES_INT8 ? n : 0;
}

/* Take a matrix of an expert. The buffer holds fetch_bytes, and behind them the td_coded_matrix of these codes. */
static td_status take_view(const void *ctx, size_t expert, td_expert_matrix m, void *buffer, td_tensor_view *out,
                           td_error *err) {
    const layer_source *src = ctx;
    (void)err;
    *out = *td_expert_view(&src->views[expert], m);
    size_t bytes = src->files ? view_bytes(out) : 0;
    if (bytes && out->coded) {
        td_coded_matrix *coded = (void *)((char *)buffer + src->fetch_bytes);
        *coded = *out->coded;
        coded->data = td_checkpoint_files_fetch(src->files, coded->data, bytes, buffer);
        out->coded = coded;
    } else if (bytes) {
        out->data = td_checkpoint_files_fetch(src->files, out->data, bytes, buffer);
    }
    return TD_OK;
}

static void leave_view(const void *ctx, size_t expert, td_expert_matrix m) {
    const layer_source   *src = ctx;
    const td_tensor_view *v = td_expert_view(&src->views[expert], m);
    if (src->files) td_checkpoint_files_release(src->files, v->coded ? v->coded->data : v->data, view_bytes(v));
}

static td_tensor_view bias_view(const void *ctx, size_t expert, td_expert_matrix m) {
    return *td_expert_bias_view(&((const layer_source *)ctx)->views[expert], m);
}

static td_status pack_views(layer_source *src, td_experts *x, const td_experts_config *ec, uint32_t index, td_error *err) {
    const td_model_config *c = src->c;
    td_expert_weights     *views = calloc(c->n_experts, sizeof *views);
    td_scratch             scratch = {0};
    if (!views) return td_fail(err, TD_ENOMEM, "out of memory for the views of %u experts", c->n_experts);
    td_status st = td_checkpoint_get_experts(src->ck, c, src->layer, &scratch, views, err);
    if (st == TD_OK) {
        td_expert_source source = {.take = take_view, .leave = leave_view, .bias = bias_view, .ctx = src};
        size_t           widest = 0;
        src->views = views;
        for (uint32_t e = 0; src->files && e < c->n_experts; e++)
            for (td_expert_matrix m = 0; m < TD_EXPERT_MATRICES; m++) {
                size_t bytes = view_bytes(td_expert_view(&views[e], m));
                widest = bytes > widest ? bytes : widest;
            }
        src->fetch_bytes = td_round_up(widest + TD_FETCH_SLACK, TD_CACHE_LINE);
        if (src->files) source.buffer_bytes = src->fetch_bytes + sizeof(td_coded_matrix);
        report_rounded(ec, c, src->layer, views);
        st = td_experts_load(x, index, &source, err);
        if (st == TD_EFORMAT) name_fault(src->ck, c, src->layer, views, err);
    }
    td_scratch_reset(&scratch);
    free(views);
    return st;
}

/* Whether reading an expert's matrix copies it, because it is rotated or lies transposed in a tensor of all experts. Copies
 * of all experts would be as large as the layer, so each is made when it is packed. */
static bool copied_as_read(const td_checkpoint *ck, const td_model_config *c, uint32_t layer) {
    td_tensor_spec              spec;
    const td_safetensors_entry *plain;
    if (td_checkpoint_is_rotated(ck)) return true;
    return td_tensor_spec_get(c, TD_ROLE_EXPERT_GATE, layer, 0, &spec) && (spec.stack.transposed || spec.stack.by_shape) &&
           td_checkpoint_get_stored(ck, c, &spec, &plain, NULL) == TD_OK && plain;
}

static td_status take_copy(const void *ctx, size_t expert, td_expert_matrix m, void *buffer, td_tensor_view *out,
                           td_error *err) {
    const layer_source *src = ctx;
    td_scratch          scratch = {0};
    td_status st = td_checkpoint_get(src->ck, src->c, TD_ROLE_EXPERT_GATE + (td_role)m, src->layer, (uint32_t)expert,
                                     TD_FORM_FLOAT, &scratch, out, err);
    if (st == TD_OK) {
        td_to_f32(out->dtype, out->data, out->shape[0] * out->shape[1], buffer);
        out->dtype = TD_DT_F32;
        out->data = buffer;
    }
    td_scratch_reset(&scratch);
    return st;
}

static td_status pack_copies(layer_source *src, td_experts *x, uint32_t index, td_error *err) {
    const td_model_config *c = src->c;
    td_expert_weights     *views = calloc(c->n_experts, sizeof *views);
    td_scratch             scratch = {0};
    td_status              st = TD_OK;
    if (!views) return td_fail(err, TD_ENOMEM, "out of memory for the views of %u experts", c->n_experts);
    for (uint32_t e = 0; st == TD_OK && e < c->n_experts; e++)
        st = get_biases(src->ck, c, src->layer, e, &scratch, &views[e], err);
    src->views = views;
    if (st == TD_OK)
        st = td_experts_load(x, index,
                             &(td_expert_source){.take = take_copy,
                                                 .bias = bias_view,
                                                 .buffer_bytes = (size_t)c->hidden * c->moe_inter * sizeof(float),
                                                 .ctx = src},
                             err);
    td_scratch_reset(&scratch);
    free(views);
    return st;
}

td_status td_checkpoint_pack_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, td_experts *x,
                                     const td_experts_config *ec, uint32_t index, bool fetch, td_error *err) {
    layer_source src = {.ck = ck, .c = c, .layer = layer, .files = fetch ? td_checkpoint_get_files(ck) : NULL};
    return copied_as_read(ck, c, layer) ? pack_copies(&src, x, index, err) : pack_views(&src, x, ec, index, err);
}

td_status td_experts_load_all(td_experts *x, const td_experts_config *ec, const td_model_config *c, td_layer_range layers,
                              const td_checkpoint *ck, const char *dir, td_resident_experts *fill, td_error *err) {
    td_load_progress progress;
    uint32_t         moe_layer = 0;
    uint64_t         bits = ec->format == TD_EXPERT_BF16 ? 16 : ec->format == TD_EXPERT_INT8C ? 8 : 4; /* without scales */
    uint64_t         layer_bytes = (uint64_t)c->n_experts * 3 * c->hidden * c->moe_inter * bits / 8;
    bool             all = layers.first == 0 && layers.end == td_all_layers(c).end;
    td_load_progress_start(&progress, all ? "experts" : NULL, layer_bytes * ec->n_layers);
    for (uint32_t layer = layers.first; layer < layers.end; layer++) {
        if (!c->is_moe[layer]) continue;
        if (dir) {
            char path[PATH_BYTES];
            td_expert_file_path(path, sizeof path, dir, ec->first_layer + moe_layer);
            TD_TRY(td_experts_load_file(x, moe_layer, path, td_checkpoint_source_hash(ck), err));
        } else if (td_checkpoint_is_dummy(ck)) {
            TD_TRY(td_experts_fill_layer(x, moe_layer, ec->first_layer + moe_layer, err));
        } else {
            td_status st = td_checkpoint_pack_experts(ck, c, layer, x, ec, moe_layer, false, err);
            td_checkpoint_files_release_all(td_checkpoint_get_files(ck));
            if (st != TD_OK) td_fail_within(err, "%s, experts of layer %u", td_checkpoint_dir(ck), layer);
            TD_TRY(st);
        }
        if (fill) TD_TRY(td_resident_fill(fill, moe_layer, err));
        moe_layer++;
        td_load_progress_add(&progress, layer_bytes);
    }
    td_load_progress_end(&progress);
    return TD_OK;
}
