#include "eval/layer_errors.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "kernels/rows/convert.h"

#define KEPT_BYTES ((size_t)256 << 20)

enum { HIDDEN, ROUTED };

td_status td_layer_errors_open(td_layer_errors *e, uint32_t n_layers, uint32_t hidden, uint32_t rows,
                               const td_rotated_stream *rotated, td_error *err) {
    size_t row_bytes = 2 * (size_t)n_layers * hidden * sizeof(float), fit = KEPT_BYTES / row_bytes;
    *e = (td_layer_errors){.n_layers = n_layers,
                           .hidden = hidden,
                           .max_rows = fit < 1      ? 1
                                       : fit < rows ? (uint32_t)fit
                                                    : rows,
                           .rotated = rotated};
    bool ok = (e->scratch = malloc(2 * hidden * sizeof(float))) && (e->has_routed = calloc(n_layers, sizeof(bool)));
    for (int k = 0; k < 2; k++)
        ok = ok && (e->kept[k] = malloc((size_t)n_layers * e->max_rows * hidden * sizeof(float))) &&
             (e->signal[k] = calloc(n_layers, sizeof(double))) && (e->noise[k] = calloc(n_layers, sizeof(double)));
    if (ok) return TD_OK;
    td_layer_errors_close(e);
    return td_fail(err, TD_ENOMEM, "out of memory to compare the layers");
}

void td_layer_errors_close(td_layer_errors *e) {
    for (int k = 0; k < 2; k++) {
        free(e->kept[k]);
        free(e->signal[k]);
        free(e->noise[k]);
    }
    free(e->scratch);
    free(e->has_routed);
    *e = (td_layer_errors){0};
}

static const char *row_of(const td_layer_errors *e, const td_layer_output *o, const void *rows, uint32_t row) {
    return (const char *)rows + (size_t)row * e->hidden * td_dtype_bytes(o->dtype);
}

/* What the routed experts add at a row: of this layer, and deferred ones of the layer before. */
static void routed_row(const td_layer_errors *e, const td_layer_output *o, uint32_t row, float *out) {
    td_to_f32(o->dtype, row_of(e, o, o->routed, row), e->hidden, out);
    if (!o->deferred) return;
    float *late = e->scratch + e->hidden;
    td_to_f32(o->dtype, row_of(e, o, o->deferred, row), e->hidden, late);
    for (uint32_t i = 0; i < e->hidden; i++) out[i] += late[i];
}

static float *kept_row(const td_layer_errors *e, int kind, uint32_t layer, uint32_t row) {
    return e->kept[kind] + ((size_t)layer * e->max_rows + row) * e->hidden;
}

static uint32_t rows_of(const td_layer_errors *e, const td_layer_output *o) {
    return o->n_tok < e->max_rows ? o->n_tok : e->max_rows;
}

void td_layer_errors_reference(void *user, const td_layer_output *o) {
    td_layer_errors *e = user;
    e->has_routed[o->layer] = o->routed != NULL;
    for (uint32_t r = 0; r < rows_of(e, o); r++) {
        td_to_f32(o->dtype, row_of(e, o, o->x, r), e->hidden, kept_row(e, HIDDEN, o->layer, r));
        if (o->routed) routed_row(e, o, r, kept_row(e, ROUTED, o->layer, r));
    }
    td_rotated_stream_rows(e->rotated, kept_row(e, HIDDEN, o->layer, 0), rows_of(e, o));
    if (o->routed) td_rotated_stream_rows(e->rotated, kept_row(e, ROUTED, o->layer, 0), rows_of(e, o));
}

static void add(td_layer_errors *e, int kind, uint32_t layer, const float *ref, const float *own) {
    double signal = 0, noise = 0;
    for (uint32_t i = 0; i < e->hidden; i++) {
        double d = (double)own[i] - ref[i];
        signal += (double)ref[i] * ref[i];
        noise += d * d;
    }
    e->signal[kind][layer] += signal;
    e->noise[kind][layer] += noise;
}

void td_layer_errors_compare(void *user, const td_layer_output *o) {
    td_layer_errors *e = user;
    if (e->has_routed[o->layer] != (o->routed != NULL)) e->mismatch = true;
    if (e->mismatch) return;
    for (uint32_t r = 0; r < rows_of(e, o); r++) {
        td_to_f32(o->dtype, row_of(e, o, o->x, r), e->hidden, e->scratch);
        add(e, HIDDEN, o->layer, kept_row(e, HIDDEN, o->layer, r), e->scratch);
        if (!o->routed) continue;
        routed_row(e, o, r, e->scratch);
        add(e, ROUTED, o->layer, kept_row(e, ROUTED, o->layer, r), e->scratch);
    }
}

static double decibels(double signal, double noise) {
    return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

td_layer_snr *td_layer_errors_result(const td_layer_errors *e) {
    td_layer_snr *out = malloc(e->n_layers * sizeof *out);
    for (uint32_t i = 0; out && i < e->n_layers; i++) {
        out[i].hidden_db = decibels(e->signal[HIDDEN][i], e->noise[HIDDEN][i]);
        out[i].routed_db = e->has_routed[i] ? decibels(e->signal[ROUTED][i], e->noise[ROUTED][i]) : NAN;
    }
    return out;
}
