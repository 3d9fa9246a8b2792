/*
 * Calibration, layer by layer, with the activations of a text.
 *
 * The residual stream of all tokens in front of a layer is kept, as the layers before leave it in the numbers they were
 * written in. Then
 *   1. the layer runs as it is in the source, and the inputs of its linears and experts are noted;
 *   2. linears and experts are rounded for these inputs, and the layer's files are written;
 *   3. the layer runs as it was written. This gives the stream in front of the next layer, so its rounding sees the errors of
 *      the layers before.
 * The MTP layer is the last. It reads the stream behind the main model, and the text's next tokens, as if they were drafted.
 *
 *   calibration-NNNNN.safetensors   the stream in front of layer N
 *   calibration-state.json          the report so far: layers that are in it are done, and the next one's stream is whole
 *   calibration.json                the report; the two others are gone then
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/files/json_text.h"
#include "core/log/log.h"
#include "core/plural.h"
#include "kernels/rows/convert.h"
#include "quantize/expert_rounding.h"
#include "quantize/layer_run.h"

#define STATE "calibration-state.json"
#define REPORT "calibration.json"
#define REPORT_MAX ((size_t)16 << 20)
#define COMPARED_TOKENS 4096 /* of a layer's outputs before and after */
#define DIGITS JSON_REAL_PRECISION(6)

/* Shares of a layer's work, in parts of its experts' bytes: for progress alone. */
#define RUN_SHARE 8 /* one eighth for each run */

typedef struct {
    td_quantizer *q;
    json_t       *report;
    float        *expert_x, *expert_weights; /* [tokens, hidden], [tokens, top_k] */
    uint16_t     *expert_ids;
    float        *out[2]; /* [compared, hidden] behind the layer, source and written */
    uint64_t      compared;
    uint32_t      layer; /* under way */
    uint64_t      told;  /* progress within it, bytes */
} calibration;

/* ---- the report, which is the state too ------------------------------------------------------- */

static td_status save_report(calibration *k, const char *name) {
    char      path[PATH_MAX];
    char     *text = td_json_dump(k->report, JSON_INDENT(1) | DIGITS);
    td_status s = text ? td_output_path(k->q, path, name) : td_fail(k->q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK) s = td_file_write(path, text, strlen(text), k->q->err);
    free(text);
    return s;
}

static json_t *layers_of(const calibration *k) {
    return json_object_get(k->report, "layers");
}
static uint32_t layers_done(const calibration *k) {
    return (uint32_t)json_array_size(layers_of(k));
}

static td_status new_report(calibration *k) {
    const td_quantizer *q = k->q;
    char                hash[17];
    json_decref(k->report);
    snprintf(hash, sizeof hash, "%016" PRIx64, q->text.hash);
    k->report = json_pack("{s:s,s:s,s:i,s:i,s:s,s:s,s:[]}", "method", td_quantizer_method(q), "text_hash", hash, "windows",
                          (int)q->text.n_windows, "window", (int)q->text.window, "quantization", q->o->quantization,
                          "expert_quantization", q->experts->name, "layers");
    return k->report ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
}

/* Whether the stream in front of a layer can be read. */
static td_status stream_is_whole(td_quantizer *q, uint32_t layer, bool *whole) {
    td_hidden_states states;
    td_error        *err = q->err, ignored = {0};
    q->err = &ignored; /* one that cannot is made again */
    td_status s = td_hidden_open(q, layer, &states);
    q->err = err;
    td_hidden_close(&states);
    *whole = s == TD_OK;
    return s == TD_ENOMEM ? td_fail(err, s, "%s", ignored.text) : TD_OK;
}

/* Read what an earlier run left: its report, whether it came to the end, and whether the files of its layers and the stream
 * to go on with are all there. */
static td_status read_report(calibration *k, bool *complete) {
    static const char *const NAMES[] = {REPORT, STATE};
    char                     path[PATH_MAX];
    for (int i = 0; i < 2 && !k->report; i++) {
        TD_TRY(td_output_path(k->q, path, NAMES[i]));
        td_status s = td_json_read(path, REPORT_MAX, &k->report, NULL);
        if (s == TD_ENOMEM) return td_fail(k->q->err, s, "out of memory");
        *complete = s == TD_OK && i == 0;
    }
    bool whole = json_is_array(layers_of(k)) && layers_done(k) <= td_quantizer_layers(k->q) &&
                 (!*complete || layers_done(k) == td_quantizer_layers(k->q));
    for (uint32_t l = 0; whole && l < layers_done(k); l++) {
        TD_TRY(td_device_tensors_is_done(k->q, 1 + l, &whole));
        whole = whole && (!k->q->config.is_moe[l] || td_expert_file_is_done(k->q, l));
    }
    if (whole && layers_done(k) > 0 && layers_done(k) < td_quantizer_layers(k->q))
        TD_TRY(stream_is_whole(k->q, layers_done(k), &whole));
    if (whole && layers_done(k) > 0) return TD_OK;
    if (layers_done(k) > 0) td_warn("files of the calibration are missing or damaged: it begins anew");
    *complete = false;
    return new_report(k);
}

/* ---- one layer -------------------------------------------------------------------------------- */

static void tell(calibration *k, uint64_t bytes, const char *doing) {
    char what[80];
    if (bytes <= k->told) return;
    snprintf(what, sizeof what, "layer %u of %u, %s", k->layer + 1, td_quantizer_layers(k->q), doing);
    td_quantizer_progress(k->q, bytes - k->told, what);
    k->told = bytes;
}

static bool is_mtp(const calibration *k, uint32_t layer) {
    return layer >= k->q->config.n_layers;
}

/* sum (a - b)^2 / sum (b - x)^2 over the tokens compared: of the layer's contribution, how much is error. An MTP layer's
 * stream begins in it: x = 0. */
static td_status add_output_error(const calibration *k, uint32_t layer, const td_hidden_states *in, json_t *entry) {
    size_t hidden = k->q->config.hidden;
    double noise = 0, signal = 0;
    float *x = calloc(hidden, sizeof *x);
    if (!x) return td_fail(k->q->err, TD_ENOMEM, "out of memory to compare the layer's outputs");
    for (uint64_t t = 0; t < k->compared; t++) {
        const float *a = k->out[TD_LAYER_WRITTEN] + t * hidden, *b = k->out[TD_LAYER_SOURCE] + t * hidden;
        if (!is_mtp(k, layer)) td_to_f32(in->dtype, in->rows + t * hidden * td_dtype_bytes(in->dtype), hidden, x);
        for (size_t i = 0; i < hidden; i++) {
            noise += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            signal += ((double)b[i] - x[i]) * ((double)b[i] - x[i]);
        }
    }
    free(x);
    if (json_object_set_new(entry, "output_error", json_real(signal > 0 ? noise / signal : 0)) == 0) return TD_OK;
    return td_fail(k->q->err, TD_ENOMEM, "out of memory");
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* {"nearest": mean, "error": mean, "worst": largest, "worst_expert": whose} */
static json_t *fit_json(const td_expert_fit *fits, uint32_t n, int which) {
    double   nearest = 0, error = 0;
    uint32_t worst = 0;
    for (uint32_t e = 0; e < n; e++) {
        nearest += fits[e].nearest[which] / n;
        error += fits[e].error[which] / n;
        if (fits[e].error[which] > fits[worst].error[which]) worst = e;
    }
    return json_pack("{s:f,s:f,s:f,s:i}", "nearest", nearest, "error", error, "worst", fits[worst].error[which],
                     "worst_expert", (int)worst);
}

static json_t *experts_json(const td_expert_fit *fits, uint32_t n) {
    uint32_t *tokens = malloc(n * sizeof *tokens), borrowing = 0;
    if (!tokens) return NULL;
    for (uint32_t e = 0; e < n; e++) {
        tokens[e] = fits[e].tokens;
        borrowing += fits[e].borrowed > 0;
    }
    qsort(tokens, n, sizeof *tokens, ascending);
    json_t *o =
        json_pack("{s:i,s:i,s:i,s:o,s:o}", "tokens_min", (int)tokens[0], "tokens_median", (int)tokens[n / 2], "borrowing",
                  (int)borrowing, "gate_up", fit_json(fits, n, TD_FIT_GATE_UP), "down", fit_json(fits, n, TD_FIT_DOWN));
    free(tokens);
    return o;
}

static void experts_done(void *user, uint32_t n) {
    calibration *k = user;
    uint64_t     bytes = td_expert_source_bytes(k->q, k->layer), runs = bytes / RUN_SHARE;
    tell(k, runs + (uint64_t)((double)(bytes - 2 * runs) * n / k->q->config.n_experts), "rounding");
}

/* Step 2 of a layer with experts. @param entry of the report. */
static td_status round_layer(calibration *k, uint32_t layer, json_t *entry) {
    td_quantizer      *q = k->q;
    td_expert_inputs   in = {.n_tok = (uint32_t)td_calibration_tokens(&q->text),
                             .x = k->expert_x,
                             .ids = k->expert_ids,
                             .weights = k->expert_weights,
                             .done = experts_done,
                             .user = k};
    td_rounded_experts rounded;
    TD_TRY(td_experts_round(q, layer, &in, &rounded));
    td_status s = td_expert_file_write_codes(q, layer, rounded.experts);
    if (s == TD_OK && json_object_set_new(entry, "experts", experts_json(rounded.fits, q->config.n_experts)) != 0)
        s = td_fail(q->err, TD_ENOMEM, "out of memory");
    td_rounded_experts_free(&rounded);
    return s;
}

static td_status run_written(calibration *k, uint32_t layer, const td_hidden_states *in) {
    td_quantizer    *q = k->q;
    td_hidden_writer next = {0};
    td_layer_seen    seen = {.out = k->out[TD_LAYER_WRITTEN], .out_tokens = k->compared};
    if (layer + 1 == td_quantizer_layers(q)) return td_layer_run(q, layer, TD_LAYER_WRITTEN, in, &seen, NULL);
    td_status s = td_hidden_create(q, layer + 1, &next);
    if (s == TD_OK) s = td_layer_run(q, layer, TD_LAYER_WRITTEN, in, &seen, &next);
    if (s == TD_OK) s = td_hidden_commit(q, &next);
    td_hidden_writer_close(&next);
    return s;
}

static td_status linears_json(const td_quantizer *q, uint32_t layer, const td_linear_fit *f, json_t *entry) {
    td_tensor_spec spec;
    if (!f->n) return TD_OK;
    td_tensor_spec_get(&q->config, f->worst_role, layer, 0, &spec);
    json_t *o = json_pack("{s:f,s:f,s:f,s:s}", "nearest", f->nearest, "error", f->error, "worst", f->worst, "worst_linear",
                          spec.name);
    return json_object_set_new(entry, "linears", o) == 0 ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
}

/* Steps 1 to 3. */
static td_status calibrate_with(calibration *k, uint32_t layer, const td_hidden_states *in, td_linear_rounding *linears,
                                json_t *entry) {
    td_quantizer *q = k->q;
    uint64_t      bytes = td_expert_source_bytes(q, layer);
    td_linear_fit fit;
    td_layer_seen seen = {.expert_x = k->expert_x,
                          .expert_ids = k->expert_ids,
                          .expert_weights = k->expert_weights,
                          .out = k->out[TD_LAYER_SOURCE],
                          .out_tokens = k->compared,
                          .linears = q->method == TD_ROUND_NEAREST ? NULL : linears};
    TD_TRY(td_layer_run(q, layer, TD_LAYER_SOURCE, in, &seen, NULL));
    tell(k, bytes / RUN_SHARE, "rounding");
    TD_TRY(td_linears_round(linears, &fit));
    TD_TRY(linears_json(q, layer, &fit, entry));
    if (q->config.is_moe[layer]) TD_TRY(round_layer(k, layer, entry));
    tell(k, bytes - bytes / RUN_SHARE, "running");
    TD_TRY(td_device_tensors_write(q, 1 + layer, linears->weights));
    td_checkpoint_replace(q->source, layer, linears->weights);
    td_checkpoint_files_release_all(td_checkpoint_get_files(q->source));
    td_status s = run_written(k, layer, in);
    td_checkpoint_replace(q->source, layer, NULL);
    TD_TRY(s);
    tell(k, bytes, "done");
    return add_output_error(k, layer, in, entry);
}

static td_status calibrate_layer(calibration *k, uint32_t layer, const td_hidden_states *in, json_t *entry) {
    td_linear_rounding linears;
    td_linear_rounding_open(&linears, k->q, layer);
    td_status s = calibrate_with(k, layer, in, &linears, entry);
    td_linear_rounding_close(&linears);
    return s;
}

/* ---- all layers ------------------------------------------------------------------------------- */

/* The stream in front of layer 0: the tokens' rows of the embedding, in bf16 as the device keeps it. */
static td_status embed(calibration *k) {
    td_quantizer    *q = k->q;
    size_t           hidden = q->config.hidden;
    td_scratch       scratch = {0};
    td_tensor_view   table;
    td_hidden_writer w = {0};
    float           *wide = malloc(hidden * sizeof *wide);
    td_bf16         *row = malloc(hidden * sizeof *row);
    td_status        s = wide && row ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK)
        s = td_checkpoint_get(q->source, &q->config, TD_ROLE_EMBED, 0, 0, TD_FORM_FLOAT, &scratch, &table, q->err);
    if (s == TD_OK) s = td_hidden_create(q, 0, &w);
    for (uint64_t t = 0; s == TD_OK && t < td_calibration_tokens(&q->text); t++) {
        td_to_f32(table.dtype, (const char *)table.data + q->text.ids[t] * hidden * td_dtype_bytes(table.dtype), hidden,
                  wide);
        td_f32_to_bf16_n(wide, hidden, row);
        td_to_f32(TD_DT_BF16, row, hidden, wide);
        s = td_hidden_append(q, &w, t, 1, q->w8a8 ? (void *)row : wide);
    }
    if (s == TD_OK) s = td_hidden_commit(q, &w);
    td_hidden_writer_close(&w);
    td_scratch_reset(&scratch);
    free(wide);
    free(row);
    return s;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static td_status take_memory(calibration *k) {
    td_quantizer *q = k->q;
    uint64_t n = td_calibration_tokens(&q->text), hidden = q->config.hidden, work = 0, result = 0, running = 0, rounding = 0;
    k->compared = n < COMPARED_TOKENS ? n : COMPARED_TOKENS;
    if (q->config.n_experts) td_experts_round_bytes(q, &work, &result);
    for (uint32_t l = 0; l < td_quantizer_layers(q); l++) {
        td_linear_bytes linears = td_linears_round_bytes(q, l);
        uint64_t        run, experts = q->config.is_moe[l] ? work + 2 * result : 0; /* the codes, and the packed layer */
        TD_TRY(td_layer_run_bytes(q, l, &run));
        running = larger(running, run + larger(linears.sums, linears.codes)); /* as in the source, then as written */
        rounding = larger(rounding, linears.codes + larger(linears.sums + linears.work, experts));
    }
    uint64_t seen = n * (hidden * sizeof(float) + q->config.top_k * (sizeof(uint16_t) + sizeof(float))) +
                    2 * k->compared * hidden * sizeof(float);
    uint64_t all = seen + larger(running, rounding);
    td_info(
        "calibration on %" PRIu64
        " token%s in %u window%s takes at most %.0f MB: %.0f MB of activations, %.0f MB to run a layer, %.0f MB to round it",
        n, td_plural(n), q->text.n_windows, td_plural(q->text.n_windows), (double)all * 1e-6, (double)seen * 1e-6,
        (double)running * 1e-6, (double)rounding * 1e-6);
    if (all > q->available_bytes)
        return td_fail(q->err, TD_ENOMEM,
                       "the calibration needs %.0f MB of memory, and %.0f MB are free: use fewer --calibration-tokens",
                       (double)all * 1e-6, (double)q->available_bytes * 1e-6);
    k->expert_x = malloc(n * hidden * sizeof *k->expert_x);
    k->expert_ids = malloc(n * (q->config.top_k + 1) * sizeof *k->expert_ids);
    k->expert_weights = malloc(n * (q->config.top_k + 1) * sizeof *k->expert_weights);
    k->out[0] = malloc(k->compared * hidden * sizeof(float));
    k->out[1] = malloc(k->compared * hidden * sizeof(float));
    return k->expert_x && k->expert_ids && k->expert_weights && k->out[0] && k->out[1]
               ? TD_OK
               : td_fail(q->err, TD_ENOMEM, "out of memory for the activations");
}

/* The layer's files, its entry in the report, and the stream behind it; then the layer counts as done. */
static td_status finish_layer(calibration *k, uint32_t layer) {
    td_quantizer    *q = k->q;
    td_hidden_states in = {0};
    json_t          *entry = json_pack("{s:i}", "layer", (int)layer);
    td_status        s = entry ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
    k->layer = layer;
    k->told = 0;
    if (s == TD_OK) s = td_hidden_open(q, layer, &in);
    if (s == TD_OK) s = calibrate_layer(k, layer, &in, entry);
    td_hidden_close(&in);
    if (s == TD_OK && json_array_append(layers_of(k), entry) != 0) s = td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK) s = save_report(k, STATE);
    if (s == TD_OK) td_hidden_remove(q, layer);
    json_decref(entry);
    return s;
}

static td_status remove_state(const calibration *k) {
    char path[PATH_MAX];
    TD_TRY(td_output_path(k->q, path, STATE));
    unlink(path);
    return TD_OK;
}

static td_status calibrate(calibration *k) {
    td_quantizer *q = k->q;
    bool          complete = false;
    TD_TRY(read_report(k, &complete));
    TD_TRY(td_device_tensors_write(q, 0, NULL));
    uint32_t done = layers_done(k);
    for (uint32_t l = 0; l < done; l++)
        td_quantizer_progress(q, td_device_tensors_bytes(q, 1 + l) + td_expert_source_bytes(q, l), "layers done before");
    if (complete) return remove_state(k);
    TD_TRY(take_memory(k));
    if (done == 0) TD_TRY(embed(k));
    for (uint32_t l = 0; l < done; l++) td_hidden_remove(q, l);
    if (done > 0) td_info("%u of %u layers done, the calibration continues", done, td_quantizer_layers(q));
    for (uint32_t l = done; l < td_quantizer_layers(q); l++) TD_TRY(finish_layer(k, l));
    TD_TRY(save_report(k, REPORT));
    return remove_state(k);
}

td_status td_calibrate(td_quantizer *q) {
    calibration k = {.q = q};
    td_status   s = calibrate(&k);
    json_decref(k.report);
    free(k.expert_x);
    free(k.expert_ids);
    free(k.expert_weights);
    free(k.out[0]);
    free(k.out[1]);
    return s;
}
