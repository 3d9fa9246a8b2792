#include "eval/rotated_stream.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "kernels/rows/convert.h"
#include "model/checkpoint/rotation.h"

/* The gains of a norm. @param out [hidden] */
static td_status read_gain(const td_checkpoint *ck, const td_model_config *c, td_role role, uint32_t layer, float *out,
                           td_error *err) {
    td_scratch     scratch = {0};
    td_tensor_view v;
    td_status      st = td_checkpoint_get(ck, c, role, layer, 0, TD_FORM_FLOAT, &scratch, &v, err);
    if (st == TD_OK) td_to_f32(v.dtype, v.data, c->hidden, out);
    td_scratch_reset(&scratch);
    return st;
}

/* The gains in front of all MLPs, and whether they and those in front of attention are 1. @param gain [n_layers, hidden] out
 */
static td_status read_gains(const td_scored_model *m, const td_engine_options *o, float *gain, bool *all_one,
                            td_error *err) {
    const td_model_config *c = td_model_get_config(m->model);
    td_checkpoint         *ck;
    float                 *input = malloc(c->hidden * sizeof *input);
    if (!input) return td_fail(err, TD_ENOMEM, "out of memory for the norms' gains");
    td_status st = td_scored_checkpoint_open(o, &ck, err);
    *all_one = true;
    for (uint32_t l = 0; st == TD_OK && l < c->n_layers; l++) {
        float *row = gain + (size_t)l * c->hidden;
        st = read_gain(ck, c, TD_ROLE_POST_NORM, l, row, err);
        if (st == TD_OK) st = read_gain(ck, c, TD_ROLE_INPUT_NORM, l, input, err);
        for (uint32_t i = 0; st == TD_OK && i < c->hidden; i++) *all_one = *all_one && row[i] == 1 && input[i] == 1;
    }
    td_checkpoint_close(ck);
    free(input);
    return st;
}

static bool is_dummy(const td_engine_options *o) {
    return o->load_format && !strcmp(o->load_format, "dummy");
}

td_status td_rotated_stream_open(td_rotated_stream *t, const td_scored_model *own, const td_engine_options *own_options,
                                 const td_scored_model *reference, const td_engine_options *reference_options,
                                 td_error *err) {
    const td_model_config *c = td_model_get_config(own->model);
    bool                   own_rotated, reference_rotated;
    *t = (td_rotated_stream){0};
    if (is_dummy(own_options) || is_dummy(reference_options)) return TD_OK;
    t->gain = malloc((size_t)c->n_layers * c->hidden * sizeof *t->gain);
    if (!t->gain) return td_fail(err, TD_ENOMEM, "out of memory for the norms' gains");
    TD_TRY(read_gains(own, own_options, t->gain, &own_rotated, err));
    TD_TRY(read_gains(reference, reference_options, t->gain, &reference_rotated, err));
    t->apart = reference_rotated && !own_rotated;
    if (t->apart) td_warn("the reference is rotated and the model is not: layers and experts are not compared");
    return own_rotated && !reference_rotated ? td_rotation_open(&t->rotation, c, err) : TD_OK;
}

void td_rotated_stream_close(td_rotated_stream *t) {
    td_hadamard_close(&t->rotation);
    free(t->gain);
    *t = (td_rotated_stream){0};
}

void td_rotated_stream_rows(const td_rotated_stream *t, float *x, size_t n) {
    if (t->rotation.k) td_hadamard_rows(&t->rotation, x, n);
}

void td_rotated_stream_inputs(const td_rotated_stream *t, uint32_t layer, float *x, size_t n) {
    size_t       hidden = t->rotation.k;
    const float *gain = t->gain + layer * hidden;
    /* Where the gain is 0 the input is too, and the rotated weights do not read it. */
    for (size_t i = 0; i < n * hidden; i++)
        if (gain[i % hidden] != 0) x[i] /= gain[i % hidden];
    td_rotated_stream_rows(t, x, n);
}
