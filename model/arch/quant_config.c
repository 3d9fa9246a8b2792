#include "model/arch/quant_config.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/error.h"

#define GROUP_MAX (1 << 20)

/* The first refusal stays. */
static void refuse(td_quant_config *c, const char *fmt, ...) TD_PRINTF(2, 3);
static void refuse(td_quant_config *c, const char *fmt, ...) {
    va_list ap;
    if (c->refusal[0]) return;
    va_start(ap, fmt);
    vsnprintf(c->refusal, sizeof c->refusal, fmt, ap);
    va_end(ap);
}

static const char *text_of(const json_t *o, const char *key) {
    const char *v = json_string_value(json_object_get(o, key));
    return v ? v : "";
}

static bool text_is(const json_t *o, const char *key, const char *want) {
    return !strcmp(text_of(o, key), want);
}

/* An integer under one of two names; absent and null give `absent`. */
static td_status get_int(const json_t *o, const char *key, const char *alias, json_int_t absent, json_int_t min,
                         json_int_t max, json_int_t *out, td_error *err) {
    const json_t *v = json_object_get(o, key);
    if (!v && alias) v = json_object_get(o, key = alias);
    *out = absent;
    if (!v || json_is_null(v)) return TD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return td_fail(err, TD_EFORMAT, "quantization_config.%s is not an integer of %lld to %lld", key, (long long)min,
                       (long long)max);
    *out = json_integer_value(v);
    return TD_OK;
}

static td_status get_bool(const json_t *o, const char *key, bool absent, bool *out, td_error *err) {
    const json_t *v = json_object_get(o, key);
    *out = absent;
    if (!v || json_is_null(v)) return TD_OK;
    if (!json_is_boolean(v)) return td_fail(err, TD_EFORMAT, "quantization_config.%s is not true or false", key);
    *out = json_is_true(v);
    return TD_OK;
}

/* group_size: a positive number, or -1 for the whole row, as *group 0. */
static td_status get_group(const json_t *o, const char *alias, uint32_t *group, td_error *err) {
    json_int_t n;
    TD_TRY(get_int(o, "group_size", alias, -1, -1, GROUP_MAX, &n, err));
    if (n == 0) return td_fail(err, TD_EFORMAT, "quantization_config.group_size is 0");
    *group = n < 0 ? 0 : (uint32_t)n;
    return TD_OK;
}

/* [rows, columns] of a block. */
static td_status get_block(const json_t *o, const char *key, td_quant_scheme *s, td_error *err) {
    const json_t *block = json_object_get(o, key);
    json_int_t rows = json_integer_value(json_array_get(block, 0)), columns = json_integer_value(json_array_get(block, 1));
    if (json_array_size(block) != 2 || rows < 1 || rows > GROUP_MAX || columns < 1 || columns > GROUP_MAX)
        return td_fail(err, TD_EFORMAT, "quantization_config.%s is not a pair of sizes, as [128, 128]", key);
    s->block_rows = (uint32_t)rows;
    s->group = (uint32_t)columns;
    return TD_OK;
}

/* ---- methods --------------------------------------------------------------------------------- */

static td_status parse_fp8(const json_t *q, td_quant_config *c, td_error *err) {
    td_quant_scheme *s = &c->scheme[c->n_schemes++];
    *s = (td_quant_scheme){.bits = 8, .is_float = true, .symmetric = true};
    if (json_object_get(q, "fmt") && !text_is(q, "fmt", "e4m3") && !text_is(q, "fmt", "float8_e4m3fn")) /* MiniMax-M2's */
        refuse(c, "quantization_config.fmt is '%.20s', and of FP8 only e4m3 is supported", text_of(q, "fmt"));
    if (!json_is_array(json_object_get(q, "weight_block_size"))) {
        refuse(c,
               "quantization_config.quant_method is 'fp8' without a weight_block_size, and only FP8 with a scale per block "
               "is supported");
        return TD_OK;
    }
    return get_block(q, "weight_block_size", s, err);
}

/* modules_to_not_convert is not read: the tensors tell which modules are stored plainly. */
static td_status parse_mxfp4(const json_t *q, td_quant_config *c, td_error *err) {
    (void)q, (void)err;
    c->scheme[c->n_schemes++] = (td_quant_scheme){.bits = 4, .is_float = true, .symmetric = true, .group = 32};
    return TD_OK;
}

static td_status parse_gptq(const json_t *q, td_quant_config *c, td_error *err) {
    td_quant_scheme *s = &c->scheme[c->n_schemes++];
    json_int_t       bits;
    const char      *format = text_of(q, "checkpoint_format");
    TD_TRY(get_int(q, "bits", NULL, 0, 1, 16, &bits, err));
    TD_TRY(get_group(q, NULL, &s->group, err));
    TD_TRY(get_bool(q, "sym", true, &s->symmetric, err));
    TD_TRY(get_bool(q, "desc_act", false, &s->act_order, err));
    s->bits = (uint8_t)bits;
    c->gptq_v2 = !strcmp(format, "gptq_v2");
    if (bits != 4 && bits != 8)
        refuse(c, "quantization_config.bits is %d, and of GPTQ only 4 and 8 are supported", (int)bits);
    if (*format && strcmp(format, "gptq") && !c->gptq_v2)
        refuse(c, "quantization_config.checkpoint_format is '%.40s', and of GPTQ only gptq and gptq_v2 are supported",
               format);
    return TD_OK;
}

static td_status parse_awq(const json_t *q, td_quant_config *c, td_error *err) {
    td_quant_scheme *s = &c->scheme[c->n_schemes++];
    json_int_t       bits;
    bool             zeros;
    const char      *version = text_of(q, "version");
    TD_TRY(get_int(q, "bits", "w_bit", 0, 1, 16, &bits, err));
    TD_TRY(get_group(q, "q_group_size", &s->group, err));
    TD_TRY(get_bool(q, "zero_point", true, &zeros, err));
    s->bits = (uint8_t)bits;
    s->symmetric = !zeros;
    if (bits != 4) refuse(c, "quantization_config.bits is %d, and of AWQ only 4 is supported", (int)bits);
    if (*version && strcasecmp(version, "gemm"))
        refuse(c, "quantization_config.version is '%.40s', and of AWQ only the packing gemm is supported", version);
    return TD_OK;
}

bool td_modelslim_description(const char *dir, char *path, size_t size) {
    static const char *const NAMES[] = {"quant_model_description.json", "quant_model_description_w8a8_dynamic.json"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if ((size_t)snprintf(path, size, "%s/%s", dir, NAMES[i]) < size && access(path, F_OK) == 0) return true;
    return false;
}

td_quant_config td_quant_config_modelslim(void) {
    return (td_quant_config){.method = TD_QUANT_MODELSLIM, .n_schemes = 1, .scheme = {{.bits = 8, .symmetric = true}}};
}

static td_status parse_modelslim(const json_t *q, td_quant_config *c, td_error *err) {
    (void)q, (void)err;
    *c = td_quant_config_modelslim();
    return TD_OK;
}

/* What can be combined in a group of compressed-tensors. */
static const struct {
    const char *format;
    bool        is_float;
    uint8_t     bits;       /* 0: 4 or 8 */
    const char *strategies; /* between spaces */
    uint32_t    group;      /* 0: any */
} COMPRESSED[] = {
    {"int-quantized", false, 8, " channel ", 0},
    {"pack-quantized", false, 0, " group channel ", 0},
    {"float-quantized", true, 8, " tensor channel block ", 0},
    {"mxfp4-pack-quantized", true, 4, " group ", 32},
    {"nvfp4-pack-quantized", true, 4, " tensor_group ", 16},
    {"naive-quantized", false, 8, " channel ", 0},
    {"naive-quantized", true, 8, " tensor channel block ", 0},
};

/* Whether activations are quantised as here: per token as they come, symmetrically; or not at all. */
static bool activations_ok(const json_t *a) {
    if (!a || json_is_null(a)) return true;
    return json_integer_value(json_object_get(a, "num_bits")) == 8 && text_is(a, "strategy", "token") &&
           json_is_true(json_object_get(a, "dynamic")) && json_is_true(json_object_get(a, "symmetric"));
}

/* "weight" and its other name put columns back in their order; "group", "dynamic" and true leave them in that of the groups.
 */
static bool has_act_order(const json_t *w) {
    const json_t *order = json_object_get(w, "actorder");
    return json_is_true(order) ||
           (json_is_string(order) && !text_is(w, "actorder", "weight") && !text_is(w, "actorder", "static"));
}

static td_status parse_group(const json_t *q, const char *name, const json_t *group, td_quant_config *c, td_error *err) {
    const json_t *w = json_object_get(group, "weights");
    const char   *format = *text_of(group, "format") ? text_of(group, "format") : text_of(q, "format"),
               *strategy = text_of(w, "strategy");
    bool is_float = text_is(w, "type", "float"), has_size = json_is_integer(json_object_get(w, "group_size"));
    bool packed = !strcmp(format, "pack-quantized"); /* this format has zeros, and its activations are not quantised here */
    json_int_t bits;
    char       spaced[40];
    if (!json_is_object(w)) return td_fail(err, TD_EFORMAT, "quantization_config.config_groups.%.60s has no weights", name);
    if (c->n_schemes == TD_QUANT_SCHEMES_MAX)
        return td_fail(err, TD_ENOTSUP, "quantization_config.config_groups has more than %d groups", TD_QUANT_SCHEMES_MAX);
    TD_TRY(get_int(w, "num_bits", NULL, 0, 1, 16, &bits, err));
    if (!*strategy) strategy = has_size ? "group" : "tensor"; /* compressed-tensors' own defaults */
    snprintf(spaced, sizeof spaced, " %.30s ", strategy);

    td_quant_scheme s = {.bits = (uint8_t)bits, .is_float = is_float, .act_order = has_act_order(w)};
    TD_TRY(get_bool(w, "symmetric", true, &s.symmetric, err));
    if (!strcmp(strategy, "group") || !strcmp(strategy, "tensor_group")) TD_TRY(get_group(w, NULL, &s.group, err));
    bool known = false;
    for (size_t i = 0; i < sizeof COMPRESSED / sizeof *COMPRESSED; i++)
        known |= !strcmp(COMPRESSED[i].format, format) && COMPRESSED[i].is_float == is_float &&
                 strstr(COMPRESSED[i].strategies, spaced) &&
                 (COMPRESSED[i].bits ? bits == COMPRESSED[i].bits : bits == 4 || bits == 8) &&
                 (!COMPRESSED[i].group || s.group == COMPRESSED[i].group);
    if (!strcmp(strategy, "block")) TD_TRY(get_block(w, "block_structure", &s, err));
    if (!known || (!packed && !s.symmetric))
        refuse(c,
               "quantization_config.config_groups.%.40s stores %s%s of %d bits, strategy '%.20s', in format '%.30s', which "
               "is not supported",
               name, s.symmetric ? "" : "asymmetric ", is_float ? "floats" : "integers", (int)bits, strategy, format);
    if (!is_float && !packed && !activations_ok(json_object_get(group, "input_activations")))
        refuse(c,
               "quantization_config.config_groups.%.40s has input_activations other than dynamic symmetric 8 bits per "
               "token, which are not supported",
               name);
    c->scheme[c->n_schemes++] = s;
    return TD_OK;
}

/* Refuse rotations of the inputs, outputs or caches of modules, which would have to be computed for every token. Rotations
 * of weights are in the weights already. */
static void refuse_transforms(const json_t *q, td_quant_config *c) {
    const json_t *groups = json_object_get(json_object_get(q, "transform_config"), "config_groups");
    const char   *name;
    json_t       *group, *apply;
    size_t        i;
    json_object_foreach((json_t *)groups, name, group) {
        json_array_foreach(json_object_get(group, "apply"), i, apply) {
            if (text_is(apply, "location", "weight_input") || text_is(apply, "location", "weight_output")) continue;
            refuse(c,
                   "quantization_config.transform_config.config_groups.%.40s applies to the location '%.20s', and only what "
                   "is in the weights already is supported",
                   name, text_of(apply, "location"));
        }
    }
}

static td_status parse_compressed(const json_t *q, td_quant_config *c, td_error *err) {
    const json_t *groups = json_object_get(q, "config_groups"), *sparsity = json_object_get(q, "sparsity_config");
    const char   *name;
    json_t       *group;
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return td_fail(err, TD_EFORMAT, "quantization_config.config_groups is missing or empty");
    if (json_object_size(sparsity) && !text_is(sparsity, "format", "dense"))
        refuse(c, "quantization_config.sparsity_config has the format '%.40s', and sparse weights are not supported",
               text_of(sparsity, "format"));
    refuse_transforms(q, c);
    json_object_foreach((json_t *)groups, name, group) TD_TRY(parse_group(q, name, group, c, err));
    return TD_OK;
}

static const struct {
    const char     *name;
    td_quant_method method;
    td_status (*parse)(const json_t *q, td_quant_config *c, td_error *err);
} METHODS[] = {
    {"fp8", TD_QUANT_FP8, parse_fp8},
    {"gptq", TD_QUANT_GPTQ, parse_gptq},
    {"awq", TD_QUANT_AWQ, parse_awq},
    {"mxfp4", TD_QUANT_MXFP4, parse_mxfp4},
    {"compressed-tensors", TD_QUANT_COMPRESSED, parse_compressed},
    {"ascend", TD_QUANT_MODELSLIM, parse_modelslim},
};

td_status td_quant_config_parse(const json_t *q, td_quant_config *out, td_error *err) {
    *out = (td_quant_config){0};
    if (!json_is_object(q)) return td_fail(err, TD_EFORMAT, "quantization_config is not an object");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!method) return td_fail(err, TD_EFORMAT, "quantization_config has no quant_method");
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++)
        if (!strcmp(method, METHODS[i].name)) {
            out->method = METHODS[i].method;
            return METHODS[i].parse(q, out, err);
        }
    refuse(out,
           "quantization_config.quant_method is '%.40s', and only fp8, gptq, awq, mxfp4, compressed-tensors and ascend are "
           "supported",
           method);
    return TD_OK;
}

bool td_quant_config_has_int8(const td_quant_config *q) {
    for (uint32_t i = 0; i < q->n_schemes; i++)
        if (q->scheme[i].bits == 8 && !q->scheme[i].is_float && q->scheme[i].group == 0 && q->method != TD_QUANT_GPTQ)
            return true;
    return false;
}
