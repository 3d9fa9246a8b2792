#include "image/image_rule.h"

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "core/error.h"
#include "core/files/json_file.h"

#define SIDE_MAX 4096 /* patches of a side, of Kimi's rule */

/* An image processor of transformers, and what it takes for missing members. */
typedef struct {
    const char   *type; /* image_processor_type, without "Fast" or "Pil" behind it */
    td_image_rule rule;
} processor;

#define CLIP .mean = {0.48145466f, 0.4578275f, 0.40821073f}, .std = {0.26862954f, 0.26130258f, 0.27577711f}
#define HALF .mean = {0.5f, 0.5f, 0.5f}, .std = {0.5f, 0.5f, 0.5f}

static const processor PROCESSORS[] = {
    {"Qwen2VLImageProcessor", {TD_IMAGE_QWEN, 14, 2, 2, 56 * 56, 28 * 28 * 1280, 0, CLIP}},
    {"Glm4vImageProcessor", {TD_IMAGE_GLM4V, 14, 2, 2, 112 * 112, 28 * 28 * 15000, 0, CLIP}},
    {"Glm46VImageProcessor", {TD_IMAGE_GLM4V, 14, 2, 2, 112 * 112, 28 * 28 * 15000, 0, CLIP}},
    {"Glm5NextImageProcessor", {TD_IMAGE_GLM5, 14, 2, 2, 16, 8000, 0, CLIP}},
    {"Kimi_K25ImageProcessor", {TD_IMAGE_KIMI, 14, 2, 1, 0, 16384, 512, HALF}},
};
static const processor *const KIMI = &PROCESSORS[4];

static const processor *find_processor(const char *type) {
    for (size_t i = 0; i < sizeof PROCESSORS / sizeof *PROCESSORS; i++) {
        const size_t n = strlen(PROCESSORS[i].type);
        if (strncmp(type, PROCESSORS[i].type, n)) continue;
        if (!type[n] || !strcmp(type + n, "Fast") || !strcmp(type + n, "Pil")) return &PROCESSORS[i];
    }
    return NULL;
}

/* A member; NULL where it is missing or null. */
static const json_t *member(const json_t *from, const char *key) {
    const json_t *v = json_object_get(from, key);
    return json_is_null(v) ? NULL : v;
}

/* A whole number, which may be missing. */
static td_status read_number(const json_t *from, const char *key, uint64_t *out, td_error *err) {
    const json_t *v = member(from, key);
    if (!v) return TD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0) return td_fail(err, TD_EFORMAT, "%s is no whole number", key);
    *out = (uint64_t)json_integer_value(v);
    return TD_OK;
}

/* The same, for a member of the rule of 32 bits. */
static td_status read_small(const json_t *from, const char *key, uint32_t *out, td_error *err) {
    uint64_t value = *out;
    TD_TRY(read_number(from, key, &value, err));
    if (value > INT32_MAX) return td_fail(err, TD_ENOTSUP, "%s is too large", key);
    *out = (uint32_t)value;
    return TD_OK;
}

static td_status read_colours(const json_t *from, const char *key, float out[3], td_error *err) {
    const json_t *v = member(from, key);
    if (!v) return TD_OK;
    if (!json_is_array(v) || json_array_size(v) != 3) return td_fail(err, TD_EFORMAT, "%s is no list of three numbers", key);
    for (size_t c = 0; c < 3; c++) {
        if (!json_is_number(json_array_get(v, c))) return td_fail(err, TD_EFORMAT, "%s is no list of three numbers", key);
        out[c] = (float)json_number_value(json_array_get(v, c));
    }
    return TD_OK;
}

/* A step of the processor that has to be done, or must not be. */
static td_status want_step(const json_t *from, const char *key, bool wanted, td_error *err) {
    const json_t *v = member(from, key);
    if (!v || (json_is_boolean(v) && json_is_true(v) == wanted)) return TD_OK;
    return td_fail(err, TD_ENOTSUP, "%s is not %s", key, wanted ? "true" : "false");
}

static td_status want_number(const json_t *from, const char *key, double wanted, td_error *err) {
    const json_t *v = member(from, key);
    if (!v || (json_is_number(v) && fabs(json_number_value(v) - wanted) <= 1e-9 * wanted)) return TD_OK;
    return td_fail(err, TD_ENOTSUP, "%s is not %g", key, wanted);
}

static td_status check_steps(const json_t *from, td_error *err) {
    TD_TRY(want_step(from, "do_resize", true, err));
    TD_TRY(want_step(from, "do_rescale", true, err));
    TD_TRY(want_step(from, "do_normalize", true, err));
    TD_TRY(want_step(from, "do_convert_rgb", true, err));
    TD_TRY(want_step(from, "do_center_crop", false, err));
    TD_TRY(want_number(from, "rescale_factor", 1.0 / 255, err));
    return want_number(from, "resample", 3, err); /* bicubic */
}

/* Qwen's old min_pixels and max_pixels win over size. */
static td_status read_area(const json_t *from, td_image_rule *rule, td_error *err) {
    const json_t *size = member(from, "size");
    if (size && (!member(size, "shortest_edge") || !member(size, "longest_edge")))
        return td_fail(err, TD_EFORMAT, "size has no shortest_edge and longest_edge");
    TD_TRY(read_number(size, "shortest_edge", &rule->min, err));
    TD_TRY(read_number(size, "longest_edge", &rule->max, err));
    if (rule->sizing != TD_IMAGE_QWEN) return TD_OK;
    TD_TRY(read_number(from, "min_pixels", &rule->min, err));
    return read_number(from, "max_pixels", &rule->max, err);
}

static td_status read_tokens(const json_t *from, td_image_rule *rule, td_error *err) {
    TD_TRY(want_number(from, "patch_expand_factor", 1, err));
    TD_TRY(read_number(from, "min_image_tokens", &rule->min, err));
    return read_number(from, "max_image_tokens", &rule->max, err);
}

/* transformers calls Kimi's settings otherwise than Kimi's own file does. */
static td_status read_patches(const json_t *from, td_image_rule *rule, td_error *err) {
    const json_t *size = member(from, "size");
    uint64_t      height = rule->side_max;
    if (member(from, "fixed_output_tokens")) return td_fail(err, TD_ENOTSUP, "fixed_output_tokens is not null");
    TD_TRY(read_number(from, "max_patches", &rule->max, err));
    TD_TRY(read_number(from, "in_patch_limit", &rule->max, err));
    TD_TRY(read_small(from, "patch_limit_on_one_side", &rule->side_max, err));
    if (!size) return TD_OK;
    TD_TRY(read_small(size, "max_width", &rule->side_max, err));
    TD_TRY(read_number(size, "max_height", &height, err));
    return height == rule->side_max ? TD_OK : td_fail(err, TD_ENOTSUP, "size has a max_height and another max_width");
}

static td_status read_settings(const json_t *from, td_image_rule *rule, td_error *err) {
    TD_TRY(check_steps(from, err));
    TD_TRY(read_small(from, "patch_size", &rule->patch, err));
    TD_TRY(want_number(from, "merge_size", 2, err));
    TD_TRY(want_number(from, "merge_kernel_size", 2, err));
    if (rule->sizing != TD_IMAGE_KIMI) TD_TRY(want_number(from, "temporal_patch_size", 2, err));
    TD_TRY(read_colours(from, "image_mean", rule->mean, err));
    TD_TRY(read_colours(from, "image_std", rule->std, err));
    switch (rule->sizing) {
        case TD_IMAGE_QWEN:
        case TD_IMAGE_GLM4V: return read_area(from, rule, err);
        case TD_IMAGE_GLM5: return read_tokens(from, rule, err);
        case TD_IMAGE_KIMI: return read_patches(from, rule, err);
    }
    return TD_EINVAL;
}

static td_status read_rule(const json_t *root, td_image_rule *out, td_error *err) {
    const json_t *from = member(root, "image_processor") ? member(root, "image_processor") : root;
    const json_t *own = member(from, "media_proc_cfg");
    const char   *type = json_string_value(json_object_get(from, "image_processor_type"));
    if (!own && !type)
        return td_fail(err, TD_ENOTSUP, "neither image_processor_type nor media_proc_cfg says how it is done");
    const processor *p = own ? KIMI : find_processor(type);
    if (!p) return td_fail(err, TD_ENOTSUP, "image_processor_type %.60s is not one of those that are there", type);
    td_image_rule rule = p->rule;
    TD_TRY(read_settings(own ? own : from, &rule, err));
    if (!td_image_rule_is_valid(&rule))
        return td_fail(err, TD_ENOTSUP, "patch_size, the limits of size, image_mean or image_std are beyond what is taken");
    *out = rule;
    return TD_OK;
}

td_status td_image_rule_parse(const char *text, size_t len, td_image_rule *out, td_error *err) {
    json_t *root;
    TD_TRY(td_json_parse(text, len, &root, err));
    td_status s = read_rule(root, out, err);
    json_decref(root);
    return s == TD_OK ? TD_OK : td_fail_within(err, "how the model wants its pictures cannot be read");
}

bool td_image_rule_is_valid(const td_image_rule *r) {
    const bool is_kimi = r->sizing == TD_IMAGE_KIMI;
    if (r->sizing < TD_IMAGE_QWEN || r->sizing > TD_IMAGE_KIMI) return false;
    if (r->patch < 1 || r->patch > TD_IMAGE_PATCH_MAX || r->merge != 2 || r->frames != (is_kimi ? 1 : 2)) return false;
    const uint64_t block = (uint64_t)r->patch * r->patch * r->merge * r->merge; /* pixels of a token */
    const uint64_t unit = is_kimi ? block / 4 : r->sizing == TD_IMAGE_GLM5 ? block : 1;
    if (is_kimi ? r->min != 0 : r->min < 1) return false; /* with none, a side could become 0 */
    if (r->min > r->max || r->max < 1 || r->max > TD_IMAGE_CANVAS_MAX / unit) return false;
    if (is_kimi ? r->side_max < 1 || r->side_max > SIDE_MAX : r->side_max != 0) return false;
    for (int c = 0; c < 3; c++)
        if (!isfinite(r->mean[c]) || !isfinite(r->std[c]) || !(r->std[c] >= 1e-6f)) return false;
    return true;
}
