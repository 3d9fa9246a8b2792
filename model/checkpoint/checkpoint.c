#include "model/checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/plural.h"
#include "kernels/rows/convert.h"
#include "model/arch/arch.h"
#include "model/checkpoint/dummy_weights.h"
#include "model/checkpoint/rotation.h"
#include "model/checkpoint/stored_families.h"
#include "model/checkpoint/stored_query.h"
#include "model/checkpoint/stored_weight.h"

struct td_checkpoint {
    td_checkpoint_files  *files;    /* NULL: dummy weights */
    td_dummy_weights     *dummy;    /* NULL: from files */
    td_hadamard           rotation; /* of the residual stream; k 0: none */
    const td_tensor_view *replaced; /* [TD_ROLE_COUNT] of replaced_layer, or NULL */
    uint32_t              replaced_layer;
};

/* ---- open, close ----------------------------------------------------------------------------- */

static td_status checkpoint_new(td_checkpoint **out, td_error *err) {
    *out = calloc(1, sizeof **out);
    return *out ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a checkpoint");
}

static td_status give_up(td_checkpoint **out, td_status s) {
    td_checkpoint_close(*out);
    *out = NULL;
    return s;
}

td_status td_checkpoint_open(const char *dir, td_checkpoint **out, td_error *err) {
    TD_TRY(checkpoint_new(out, err));
    td_status s = td_checkpoint_files_open(dir, &(*out)->files, err);
    return s == TD_OK ? s : give_up(out, s);
}

td_status td_checkpoint_open_dummy(uint64_t seed, td_checkpoint **out, td_error *err) {
    TD_TRY(checkpoint_new(out, err));
    td_status s = td_dummy_weights_open(seed, &(*out)->dummy, err);
    return s == TD_OK ? s : give_up(out, s);
}

void td_checkpoint_close(td_checkpoint *c) {
    if (!c) return;
    td_checkpoint_files_close(c->files);
    td_dummy_weights_close(c->dummy);
    td_hadamard_close(&c->rotation);
    free(c);
}

td_status td_checkpoint_rotate(td_checkpoint *c, const td_model_config *config, td_error *err) {
    return td_rotation_open(&c->rotation, config, err);
}

void td_checkpoint_replace(td_checkpoint *c, uint32_t layer, const td_tensor_view *weights) {
    c->replaced = weights;
    c->replaced_layer = layer;
}

bool td_checkpoint_is_rotated(const td_checkpoint *c) {
    return c->rotation.k != 0;
}
bool td_checkpoint_is_dummy(const td_checkpoint *c) {
    return c->dummy != NULL;
}
const char *td_checkpoint_dir(const td_checkpoint *c) {
    return c->files ? td_checkpoint_files_dir(c->files) : "dummy weights";
}
const td_checkpoint_files *td_checkpoint_get_files(const td_checkpoint *c) {
    return c->files;
}

uint64_t td_checkpoint_source_hash(const td_checkpoint *c) {
    if (!c->files) return 0;
    uint64_t h = td_checkpoint_files_hash(c->files);
    return c->rotation.k ? XXH3_64bits_withSeed("rotated", 7, h) : h;
}

uint64_t td_checkpoint_stamp(const td_checkpoint *c) {
    uint64_t h = td_checkpoint_files_stamp(c->files);
    return c->rotation.k ? XXH3_64bits_withSeed("rotated", 7, h) : h;
}

/* ---- rows in another order ------------------------------------------------------------------- */

void td_tensor_take_rows(const td_tensor_view *in, const td_row_order *order, void *data, float *scale) {
    size_t n = in->shape[0], row_bytes = (in->rank > 1 ? in->shape[1] : 1) * td_dtype_bytes(in->dtype);
    for (size_t r = 0; r < n; r++) {
        size_t from = td_row_order_place(order, r);
        memcpy((char *)data + r * row_bytes, (const char *)in->data + from * row_bytes, row_bytes);
        if (in->scale) scale[r] = in->scale[from];
    }
}

static td_status take_rows(td_tensor_view *v, const td_row_order *order, td_scratch *scratch, td_error *err) {
    size_t n = v->shape[0];
    void  *data = td_scratch_take(scratch, n * (v->rank > 1 ? v->shape[1] : 1) * td_dtype_bytes(v->dtype), err);
    if (!data) return TD_ENOMEM;
    float *scale = NULL;
    if (v->scale) {
        scale = td_scratch_take(scratch, n * sizeof *scale, err);
        if (!scale) return TD_ENOMEM;
    }
    td_tensor_take_rows(v, order, data, scale);
    v->data = data;
    v->scale = scale;
    return TD_OK;
}

/* The same of codes. */
static td_status take_coded_rows(td_coded_matrix *m, const td_row_order *order, td_scratch *scratch, td_error *err) {
    uint32_t *row_of = td_scratch_take(scratch, m->n * sizeof *row_of, err);
    if (!row_of) return TD_ENOMEM;
    for (size_t r = 0; r < m->n; r++) row_of[r] = (uint32_t)td_row_order_place(order, r);
    m->row_of = row_of;
    return TD_OK;
}

/* ---- as stored, or made ------------------------------------------------------------------------------ */

td_status td_checkpoint_get_stored(const td_checkpoint *c, const td_model_config *config, const td_tensor_spec *spec,
                                   const td_safetensors_entry **out, td_error *err) {
    td_stored_weight w;
    *out = NULL;
    TD_TRY(td_stored_find(c->files, config, spec, NULL, &w, err));
    *out = w.plain;
    return TD_OK;
}

static td_status align(td_tensor_view *v, size_t bytes, td_scratch *scratch, td_error *err) {
    if ((uintptr_t)v->data % td_dtype_bytes(v->dtype) == 0) return TD_OK;
    void *p = td_scratch_take(scratch, bytes, err);
    if (!p) return TD_ENOMEM;
    memcpy(p, v->data, bytes);
    v->data = p;
    return TD_OK;
}

/* The spec of a role, or of what stands in for it in this checkpoint. */
static bool resolve(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer, uint32_t expert,
                    td_tensor_spec *spec) {
    if (!td_tensor_spec_get(config, role, layer, expert, spec)) return false;
    if (spec->fallback != TD_ROLE_COUNT && !td_checkpoint_is_dummy(c) && !td_stored_exists(c->files, spec))
        return td_tensor_spec_get(config, spec->fallback, 0, 0, spec);
    return true;
}

/* A matrix decoded to f32, row by row. */
static td_status decode(const td_checkpoint *c, const td_tensor_spec *spec, const td_coded_matrix *m, td_scratch *scratch,
                        td_tensor_view *out, td_error *err) {
    float *data = td_scratch_take(scratch, m->n * m->k * sizeof *data, err);
    bool   ok = true;
    if (!data) return TD_ENOMEM;
    for (size_t r = 0; r < m->n; r++) ok &= td_coded_row(m, r, data + r * m->k);
    *out = (td_tensor_view){.dtype = TD_DT_F32, .rank = 2, .shape = {m->n, m->k}, .data = data};
    return ok ? TD_OK : td_stored_check_values(c->files, spec, m, err);
}

/* int8 codes as they lie in the file, scales in f32. */
static td_status view_int8(const td_checkpoint *c, const td_tensor_spec *spec, const td_coded_matrix *m, td_scratch *scratch,
                           td_tensor_view *out, td_error *err) {
    float *scale = td_scratch_take(scratch, m->n * sizeof *scale, err);
    bool   ok = true;
    if (!scale) return TD_ENOMEM;
    for (size_t r = 0; r < m->n; r++) ok &= td_coded_scales(m, r, scale + r);
    *out = (td_tensor_view){.dtype = TD_DT_I8, .rank = 2, .shape = {m->n, m->k}, .data = m->data, .scale = scale};
    return ok ? TD_OK : td_stored_check_values(c->files, spec, m, err);
}

/* Whether a weight is a rotated model's U (rotation.h), and has to be made because no file has it. */
static bool made_of_identity(const td_checkpoint *c, const td_tensor_spec *spec) {
    return spec->rotation.kind == TD_ROTATION_UNDOES && c->rotation.k;
}

static td_status make_identity(size_t n, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    float *p = td_scratch_take(scratch, n * n * sizeof *p, err);
    if (!p) return TD_ENOMEM;
    memset(p, 0, n * n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i * n + i] = 1;
    *out = (td_tensor_view){.dtype = TD_DT_F32, .rank = 2, .shape = {n, n}, .data = p};
    return TD_OK;
}

/* Numbers of experts become f32. */
static td_status take_experts(const td_tensor_spec *spec, td_tensor_view *v, td_scratch *scratch, td_error *err) {
    const size_t n = v->shape[0] * v->shape[1], bytes = td_dtype_bytes(v->dtype);
    float       *p = td_scratch_take(scratch, n * sizeof *p, err);
    if (!p) return TD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int64_t number = 0;
        int32_t narrow;
        memcpy(v->dtype == TD_DT_I64 ? (void *)&number : &narrow, (const char *)v->data + i * bytes, bytes);
        if (v->dtype == TD_DT_I32) number = narrow;
        if (number < 0 || number >= spec->n_experts)
            return td_fail(err, TD_EFORMAT, "%s has expert %lld, and there are %u", spec->name, (long long)number,
                           spec->n_experts);
        p[i] = (float)number;
    }
    v->dtype = TD_DT_F32;
    v->data = p;
    return TD_OK;
}

static td_status read_stored(const td_checkpoint *c, const td_model_config *config, const td_tensor_spec *spec,
                             td_weight_form form, bool computed, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    static const td_row_order IN_PLACE;
    td_stored_weight          w;
    td_tensor_view            v;
    TD_TRY(td_stored_find(c->files, config, spec, scratch, &w, err));
    const td_row_order *order = computed ? &spec->order : &IN_PLACE;
    if (w.plain && form == TD_FORM_CODES) return TD_OK;
    if (w.plain && w.found.stack.n_experts) {
        TD_TRY(td_stored_stack_take(&w.found, w.plain, scratch, &v, err));
    } else if (w.plain) {
        v = (td_tensor_view){.dtype = w.plain->dtype, .rank = spec->rank, .data = w.plain->data};
        memcpy(v.shape, w.found.shape, sizeof w.found.shape);
        if (v.dtype == TD_DT_I64 || v.dtype == TD_DT_I32) TD_TRY(take_experts(spec, &v, scratch, err));
    } else if (form == TD_FORM_STORED || form == TD_FORM_CODES) {
        td_coded_matrix *coded = td_scratch_take(scratch, sizeof *coded, err);
        if (!coded) return TD_ENOMEM;
        *coded = w.coded;
        if (td_row_order_moves(order)) TD_TRY(take_coded_rows(coded, order, scratch, err));
        *out = (td_tensor_view){.dtype = TD_DT_F32, .rank = 2, .shape = {coded->n, coded->k}, .coded = coded};
        return TD_OK;
    } else if (form == TD_FORM_FLOAT_OR_INT8 && w.coded.codes == TD_CODES_INT8) {
        TD_TRY(view_int8(c, &w.found, &w.coded, scratch, &v, err));
    } else {
        TD_TRY(decode(c, &w.found, &w.coded, scratch, &v, err));
    }
    if (td_row_order_moves(order))
        TD_TRY(take_rows(&v, order, scratch, err)); /* its copy is aligned */
    else
        TD_TRY(align(&v, v.shape[0] * (v.rank > 1 ? v.shape[1] : 1) * td_dtype_bytes(v.dtype), scratch, err));
    *out = v;
    return TD_OK;
}

/* A view's values in f32, the scratch's. */
static float *widen(const td_tensor_view *v, size_t n, td_scratch *scratch, td_error *err) {
    float *p = td_scratch_take(scratch, n * sizeof *p, err);
    if (p) td_to_f32(v->dtype, v->data, n, p);
    return p;
}

/* w += by, in f32. */
static td_status add_number(td_tensor_view *v, float by, td_scratch *scratch, td_error *err) {
    size_t n = v->shape[0];
    float *p = widen(v, n, scratch, err);
    if (!p) return TD_ENOMEM;
    for (size_t i = 0; i < n; i++) p[i] += by;
    v->dtype = TD_DT_F32;
    v->data = p;
    return TD_OK;
}

static td_status get_stored_values(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer,
                                   uint32_t expert, td_weight_form form, bool computed, td_scratch *scratch,
                                   td_tensor_view *out, td_error *err) {
    td_tensor_spec spec;
    *out = (td_tensor_view){0};
    if (!resolve(c, config, role, layer, expert, &spec)) return TD_OK;
    if (td_checkpoint_is_dummy(c))
        TD_TRY(td_dummy_weights_make(c->dummy, &spec, scratch, out, err));
    else if (made_of_identity(c, &spec))
        return make_identity(spec.shape[0], scratch, out, err);
    else
        TD_TRY(read_stored(c, config, &spec, form, computed, scratch, out, err));
    return spec.plus_one && computed && out->data ? add_number(out, 1, scratch, err) : TD_OK;
}

static td_status rotate(const td_checkpoint *c, const td_model_config *config, const td_rotation_effect *effect,
                        uint32_t layer, td_scratch *scratch, td_tensor_view *v, td_error *err) {
    float *gain = NULL;
    size_t n = v->rank > 1 ? v->shape[0] : 1, k = v->shape[v->rank - 1];
    if (effect->norm != TD_ROLE_COUNT) {
        td_tensor_view g;
        TD_TRY(get_stored_values(c, config, effect->norm, layer, 0, TD_FORM_FLOAT, true, scratch, &g, err));
        gain = widen(&g, g.shape[0], scratch, err);
        if (!gain) return TD_ENOMEM;
    }
    float *w = widen(v, n * k, scratch, err);
    if (!w) return TD_ENOMEM;
    td_rotation_apply(&c->rotation, effect, gain, w, n, k);
    v->dtype = TD_DT_F32;
    v->data = w;
    return TD_OK;
}

/* A replaced weight, as it is. */
static td_status get_replaced(const td_checkpoint *c, const td_tensor_spec *spec, td_role role, bool computed,
                              td_scratch *scratch, td_tensor_view *out, td_error *err) {
    *out = c->replaced[role];
    return computed && td_row_order_moves(&spec->order) ? take_rows(out, &spec->order, scratch, err) : TD_OK;
}

/* @param computed as the model computes with it: rows in the model's order, and one added where it is stored less one. */
static td_status get(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer, uint32_t expert,
                     td_weight_form form, bool computed, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    td_tensor_spec spec;
    *out = (td_tensor_view){0};
    if (!td_tensor_spec_get(config, role, layer, expert, &spec)) return TD_OK;
    bool rotated = c->rotation.k && spec.rotation.kind != TD_ROTATION_NONE,
         replaced = c->replaced && layer == c->replaced_layer && c->replaced[role].data;
    if (form == TD_FORM_CODES && (rotated || replaced || td_checkpoint_is_dummy(c))) return TD_OK;
    if (replaced) return get_replaced(c, &spec, role, computed, scratch, out, err);
    TD_TRY(get_stored_values(c, config, role, layer, expert, rotated ? TD_FORM_FLOAT : form, computed, scratch, out, err));
    if (rotated && out->data) TD_TRY(rotate(c, config, &spec.rotation, layer, scratch, out, err));
    return rotated && spec.plus_one && !computed ? add_number(out, -1, scratch, err) : TD_OK;
}

td_status td_checkpoint_get(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer,
                            uint32_t expert, td_weight_form form, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    return get(c, config, role, layer, expert, form, true, scratch, out, err);
}

td_status td_checkpoint_get_as_stored(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer,
                                      td_weight_form form, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    return get(c, config, role, layer, 0, form, false, scratch, out, err);
}

size_t td_checkpoint_stored_bytes(const td_checkpoint *c, const td_model_config *config, const td_tensor_spec *spec) {
    td_stored_weight w;
    if (td_stored_find(c->files, config, spec, NULL, &w, NULL) != TD_OK) return 0;
    if (w.plain && w.found.stack.n_experts)
        return spec->shape[0] * (spec->rank > 1 ? spec->shape[1] : 1) * td_dtype_bytes(w.plain->dtype);
    return w.plain ? w.plain->bytes : w.coded.n * w.coded.k * w.coded.bits / 8;
}

/* Whether a tensor's name is that of a role. */
static bool is_read(const td_model_config *config, uint32_t layer, const char *name) {
    td_tensor_spec spec;
    for (td_role role = 0; role < TD_ROLE_COUNT; role++)
        if (td_tensor_spec_get(config, role, layer, 0, &spec) && !strcmp(spec.name, name)) return true;
    return false;
}

/* Refuse an X.bias beside X.weight that is not read and not zero: it would change what the model computes. Some quantisers
 * write zeros. */
static td_status check_bias(const td_checkpoint *c, const td_model_config *config, uint32_t layer,
                            const td_tensor_spec *spec, td_error *err) {
    static const char           WEIGHT[] = ".weight";
    char                        name[sizeof spec->name];
    size_t                      n = strlen(spec->name), suffix = sizeof WEIGHT - 1;
    const td_safetensors_entry *bias;
    if (n <= suffix || strcmp(spec->name + n - suffix, WEIGHT)) return TD_OK;
    snprintf(name, sizeof name, "%.*s.bias", (int)(n - suffix), spec->name);
    bias = td_checkpoint_files_find(c->files, name);
    if (!bias || td_stored_all_zero(bias) || is_read(config, layer, name)) return TD_OK;
    return td_stored_fail(
        &(stored_query){.files = c->files, .err = err}, bias, TD_ENOTSUP,
        spec->rank == 1 ? "is not zero: a norm's bias, of ModelSlim's asymmetric suppression of outliers, is not supported"
                        : "is not zero, and the architecture has no bias there");
}

static td_status check_role(const td_checkpoint *c, const td_model_config *config, td_role role, td_error *err) {
    uint32_t n_layers, n_experts;
    td_role_extent(config, role, &n_layers, &n_experts);
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t expert = 0; expert < n_experts; expert++) {
            td_tensor_spec   spec;
            td_stored_weight w;
            if (!resolve(c, config, role, layer, expert, &spec) || made_of_identity(c, &spec)) continue;
            TD_TRY(td_stored_find(c->files, config, &spec, NULL, &w, err));
            TD_TRY(check_bias(c, config, layer, &w.found, err));
        }
    return TD_OK;
}

td_status td_checkpoint_check_all(const td_checkpoint *c, const td_model_config *config, bool experts, td_error *err) {
    if (td_checkpoint_is_dummy(c)) return TD_OK;
    if (config->quant.refusal[0])
        return td_fail(err, TD_ENOTSUP, "%s/config.json: %s", td_checkpoint_dir(c), config->quant.refusal);
    for (td_role role = 0; role < TD_ROLE_COUNT; role++)
        if (experts || !td_role_is_expert(config, role)) TD_TRY(check_role(c, config, role, err));
    return TD_OK;
}

bool td_checkpoint_has_experts(const td_checkpoint *c, const td_model_config *config) {
    td_tensor_spec spec;
    for (uint32_t layer = 0; layer < config->n_layers + config->n_mtp_layers; layer++)
        if (td_tensor_spec_get(config, TD_ROLE_EXPERT_GATE, layer, 0, &spec))
            return td_checkpoint_is_dummy(c) || td_stored_exists(c->files, &spec);
    return true; /* the model has no experts */
}

/* Whether the checkpoint has any tensor of the MTP layer. */
static bool has_mtp_layer(const td_checkpoint *c, const td_model_config *config) {
    char prefix[96];
    if (config->arch->mtp) return td_checkpoint_files_have(c->files, config->arch->mtp);
    const td_arch *a = config->arch;
    snprintf(prefix, sizeof prefix, "%s%slayers.%u.", a->prefix ? a->prefix : "", a->body ? a->body : "model.",
             config->n_layers);
    return td_checkpoint_files_have(c->files, prefix);
}

void td_checkpoint_look_at_mtp(const td_checkpoint *c, td_model_config *config) {
    td_tensor_spec unrotate;
    config->mtp_rotated = false;
    if (td_checkpoint_is_dummy(c) || config->n_mtp_layers == 0) return;
    if (!has_mtp_layer(c, config)) config->n_mtp_layers = 0;
    config->mtp_rotated = config->n_mtp_layers > 0; /* the rule of U exists only with this set */
    config->mtp_rotated = td_tensor_spec_get(config, TD_ROLE_MTP_UNROTATE, config->n_layers, 0, &unrotate) &&
                          (c->rotation.k || td_stored_exists(c->files, &unrotate));
}

/* Whether a tensor is of the vision encoder, or of another part of a model with more than text. */
static bool is_outside(const td_arch *a, const char *name) {
    if (a->prefix) return strncmp(name, a->prefix, strlen(a->prefix)) != 0;
    return a->body && !strncmp(name, "model.", 6) && strncmp(name, a->body, strlen(a->body)) != 0;
}

void td_checkpoint_log_unread(const td_checkpoint *c, const td_model_config *config, const char *encoder) {
    size_t n = 0, bytes = 0;
    if (td_checkpoint_is_dummy(c)) return;
    for (size_t f = 0; f < td_checkpoint_files_count(c->files); f++) {
        const td_safetensors *file = td_checkpoint_files_at(c->files, f);
        for (size_t i = 0; i < td_safetensors_count(file); i++) {
            const td_safetensors_entry *e = td_safetensors_at(file, i);
            if (!is_outside(config->arch, e->name) || (encoder && !strncmp(e->name, encoder, strlen(encoder)))) continue;
            n++;
            bytes += e->bytes;
        }
    }
    if (n)
        td_info("%zu tensor%s (%.1f MB) outside of the language model%s", n, td_plural(n), (double)bytes * 1e-6,
                encoder ? " and the vision encoder: not read" : ": not read, the model is served for text alone");
}
