#include "model/experts_load.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log.h"
#include "kernels/rows/convert.h"
#include "model/load_progress.h"
#include "model/stored_weight.h"

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

static td_status get_expert(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, uint32_t expert,
                            td_scratch *scratch, td_expert_weights *out, td_error *err) {
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_GATE, layer, expert, TD_FORM_STORED, scratch, &out->gate, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_UP, layer, expert, TD_FORM_STORED, scratch, &out->up, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_DOWN, layer, expert, TD_FORM_STORED, scratch, &out->down, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_GATE_BIAS, layer, expert, TD_FORM_STORED, scratch, &out->gate_bias, err));
    TD_TRY(td_checkpoint_get(ck, c, TD_ROLE_EXPERT_UP_BIAS, layer, expert, TD_FORM_STORED, scratch, &out->up_bias, err));
    return td_checkpoint_get(ck, c, TD_ROLE_EXPERT_DOWN_BIAS, layer, expert, TD_FORM_STORED, scratch, &out->down_bias, err);
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

/* A format for one matrix may hold the others too. */
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

/* A layer's views were refused: file and tensor, where it is a scale or a zero of a coded one. */
static void name_fault(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, const td_expert_weights *views,
                       td_error *err) {
    for (uint32_t e = 0; e < c->n_experts; e++)
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) {
            td_tensor_spec         spec;
            const td_coded_matrix *coded = td_expert_view(&views[e], (td_expert_matrix)m)->coded;
            if (coded && td_tensor_spec_get(c, TD_ROLE_EXPERT_GATE + (td_role)m, layer, e, &spec) &&
                td_stored_check_values(ck, &spec, coded, err) != TD_OK)
                return;
        }
}

/* Whether what is stored in codes is carried or rounded again is worth a line. */
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

/* A layer whose experts are rotated as they are read. */
typedef struct {
    const td_checkpoint   *ck;
    const td_model_config *c;
    uint32_t               layer;
} rotated_layer;

static td_status make_rotated(const void *ctx, size_t expert, td_expert_matrix m, float *out) {
    const rotated_layer *l = ctx;
    td_scratch           scratch = {0};
    td_tensor_view       v;
    td_status            st = td_checkpoint_get(l->ck, l->c, TD_ROLE_EXPERT_GATE + (td_role)m, l->layer, (uint32_t)expert,
                                                TD_FORM_FLOAT, &scratch, &v, NULL);
    if (st == TD_OK) td_to_f32(v.dtype, v.data, v.shape[0] * v.shape[1], out);
    td_scratch_reset(&scratch);
    return st;
}

static td_status pack_views(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, td_experts *x,
                            const td_experts_config *ec, uint32_t index, const td_expert_fetch *fetch, td_error *err) {
    td_expert_weights *views = calloc(c->n_experts, sizeof *views);
    td_scratch         scratch = {0};
    if (!views) return td_fail(err, TD_ENOMEM, "out of memory for the views of %u experts", c->n_experts);
    td_status st = td_checkpoint_get_experts(ck, c, layer, &scratch, views, err);
    if (st == TD_OK) {
        report_rounded(ec, c, layer, views);
        st = td_experts_load_views(x, index, views, fetch, err);
        if (st == TD_EFORMAT) name_fault(ck, c, layer, views, err);
    }
    td_scratch_reset(&scratch);
    free(views);
    return st;
}

td_status td_checkpoint_pack_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer, td_experts *x,
                                     const td_experts_config *ec, uint32_t index, const td_expert_fetch *fetch,
                                     td_error *err) {
    if (!td_checkpoint_is_rotated(ck)) return pack_views(ck, c, layer, x, ec, index, fetch, err);
    return td_experts_load_made(x, index, &(td_expert_maker){make_rotated, &(rotated_layer){ck, c, layer}}, err);
}

td_status td_experts_load_all(td_experts *x, const td_experts_config *ec, const td_model_config *c, td_layer_range layers,
                              const td_checkpoint *ck, const char *dir, td_error *err) {
    td_load_progress progress;
    uint32_t         moe_layer = 0;
    uint64_t         half_bytes = ec->format == TD_EXPERT_BF16    ? 4
                                  : ec->format == TD_EXPERT_INT8C ? 2
                                                                  : 1; /* per weight, scales not counted */
    uint64_t         layer_bytes = (uint64_t)c->n_experts * 3 * c->hidden * c->moe_inter * half_bytes / 2;
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
            td_status st = td_checkpoint_pack_experts(ck, c, layer, x, ec, moe_layer, NULL, err);
            td_checkpoint_release_pages(ck);
            if (st != TD_OK) td_fail_within(err, "%s, experts of layer %u", td_checkpoint_dir(ck), layer);
            TD_TRY(st);
        }
        moe_layer++;
        td_load_progress_add(&progress, layer_bytes);
    }
    td_load_progress_end(&progress);
    return TD_OK;
}
