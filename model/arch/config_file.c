#include "model/arch/config_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "model/arch/families.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)
static const td_arch *find_architecture(td_config_reader *r, td_model_config *c) {
    const json_t *list = td_config_get(r, "architectures");
    const char   *name = json_string_value(json_array_get(list, 0));
    char          names[384];
    if (!name) {
        td_config_refuse(r, TD_EFORMAT, "architectures is missing or not a list of names");
        return NULL;
    }
    snprintf(c->arch_name, sizeof c->arch_name, "%s", name);
    snprintf(c->model_type, sizeof c->model_type, "%s", td_config_text(r, "model_type", ""));
    c->arch = td_arch_find(name);
    if (!c->arch)
        td_config_refuse(r, TD_ENOTSUP, "architectures has '%.60s', and only %s are supported", name,
                         td_arch_names(names, sizeof names));
    return c->arch;
}

/* ---- weights, tokens, sampling --------------------------------------------------------------- */

static void read_quantization(td_config_reader *r, td_model_config *c) {
    const json_t *q =
        td_config_get(r, td_config_get(r, "quantization_config") ? "quantization_config" : "compression_config");
    if (q) r->status = td_quant_config_parse(q, &c->quant, r->err);
}

static void add_eos(td_config_reader *r, td_model_config *c, const json_t *v) {
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id >= (json_int_t)c->vocab) {
        td_config_refuse(r, TD_EFORMAT, "eos_token_id is not a token of 0 to %u", c->vocab - 1);
        return;
    }
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == (uint32_t)id) return;
    if (c->n_eos == sizeof c->eos_ids / sizeof *c->eos_ids)
        td_config_refuse(r, TD_EFORMAT, "eos_token_id has more than %u tokens", c->n_eos);
    else
        c->eos_ids[c->n_eos++] = (uint32_t)id;
}

static void read_token_ids(td_config_reader *r, td_model_config *c) {
    c->bos_id = td_config_u32(r, "bos_token_id", c->bos_id, 0, c->vocab - 1);
    const json_t *eos = td_config_get(r, "eos_token_id");
    if (json_is_array(eos)) {
        size_t  i;
        json_t *v;
        json_array_foreach(eos, i, v) add_eos(r, c, v);
    } else if (eos) {
        add_eos(r, c, eos);
    }
}

static void read_model(td_config_reader *r, td_model_config *c, const td_arch *a) {
    a->read_config(r, c);
    read_quantization(r, c);
    read_token_ids(r, c);
}

/* A vision encoder that is not served leaves a model of text. */
static void read_vision(td_config_reader *root, td_model_config *c) {
    const json_t    *vision = td_config_get(root, "vision_config");
    td_error         why = {0};
    td_config_reader r = {vision, "vision_config.", &why, TD_OK}, token = {root->object, "", &why, TD_OK};
    if (!vision) return;
    if (!json_is_object(vision)) td_config_refuse(&r, TD_EFORMAT, "vision_config is not an object");
    if (r.status == TD_OK) c->arch->read_vision(&r, c);
    token.status = r.status;
    if (!td_config_get(&token, "image_token_id")) td_config_refuse(&token, TD_EFORMAT, "image_token_id is missing");
    c->vision.token = td_config_u32(&token, "image_token_id", 0, 0, c->vocab - 1);
    if (token.status == TD_OK) return;
    c->vision = (td_vision_config){0};
    snprintf(c->vision.why_not, sizeof c->vision.why_not, "%.*s", TD_VISION_WHY_BYTES - 1, why.text);
}

/* A model with more than text has its quantisation and tokens either at the top or in text_config. Where both say whether
 * embeddings are tied, the top is right: transformers 5 writes its class's default into text_config. */
static td_status parse_config(const json_t *root, td_model_config *c, td_error *err) {
    td_config_reader r = {root, "", err, TD_OK};
    const td_arch   *a = find_architecture(&r, c);
    if (!a) return r.status;
    if (td_arch_has_more(a)) {
        td_config_reader text = {td_config_get(&r, "text_config"), "text_config.", err, TD_OK};
        if (!json_is_object(text.object))
            return td_fail(err, TD_EFORMAT, "text_config is missing or not an object, and %s has its language model there",
                           c->arch_name);
        read_model(&text, c, a);
        r.status = text.status;
        if (td_config_get(&r, "quantization_config")) read_quantization(&r, c);
        read_token_ids(&r, c);
        if (a->read_vision) read_vision(&r, c);
        c->tie_embeddings = td_config_bool(&r, "tie_word_embeddings", c->tie_embeddings);
    } else {
        read_model(&r, c, a);
    }
    return r.status;
}

static td_status parse_generation(const json_t *root, td_model_config *c, td_error *err) {
    td_config_reader r = {root, "", err, TD_OK};
    read_token_ids(&r, c);
    c->temperature = td_config_number(&r, "temperature", NAN, 0, 1e6);
    c->top_p = td_config_number(&r, "top_p", NAN, 0, 1);
    c->repetition_penalty = td_config_number(&r, "repetition_penalty", NAN, 1e-6, 1e6);
    c->top_k_sampling = td_config_u32(&r, "top_k", 0, 0, INT32_MAX);
    return r.status;
}

static td_status merge_override(json_t *root, const char *override_json, td_error *err) {
    json_t *more;
    if (td_json_parse(override_json, strlen(override_json), &more, err) != TD_OK)
        return td_fail_within(err, "the config override");
    int failed = json_object_update_recursive(root, more);
    json_decref(more);
    return failed ? td_fail(err, TD_ENOMEM, "no memory to merge the config override") : TD_OK;
}

td_status td_model_config_parse(const char *config, size_t config_len, const char *generation, size_t generation_len,
                                const char *override_json, td_model_config *out, td_error *err) {
    json_t *root = NULL, *gen = NULL;
    memset(out, 0, sizeof *out);
    out->bos_id = UINT32_MAX;
    out->temperature = out->top_p = out->repetition_penalty = NAN;
    td_status s = td_json_parse(config, config_len, &root, err);
    if (s == TD_OK && override_json) s = merge_override(root, override_json, err);
    if (s == TD_OK) s = parse_config(root, out, err);
    if (s != TD_OK) td_fail_within(err, "config.json");
    if (s == TD_OK && generation) {
        s = td_json_parse(generation, generation_len, &gen, err);
        if (s == TD_OK) s = parse_generation(gen, out, err);
        if (s != TD_OK) td_fail_within(err, "generation_config.json");
    }
    json_decref(root);
    json_decref(gen);
    return s;
}

td_status td_model_config_read(const char *path, const char *override_json, td_model_config *out, td_error *err) {
    struct stat st;
    char        folder[4096], file[4096 + 32];
    char       *config = NULL, *generation = NULL;
    size_t      config_len = 0, generation_len = 0;
    if (stat(path, &st) != 0) return td_fail(err, errno == ENOENT ? TD_ENOTFOUND : TD_EIO, "%s: %s", path, strerror(errno));
    if (strlen(path) >= sizeof folder)
        return td_fail(err, TD_EINVAL, "the model path is longer than %zu bytes", sizeof folder - 1);
    snprintf(folder, sizeof folder, "%s", path);
    if (S_ISDIR(st.st_mode)) {
        snprintf(file, sizeof file, "%s/config.json", folder);
    } else {
        snprintf(file, sizeof file, "%s", path);
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = 0;
        else
            strcpy(folder, ".");
    }
    TD_TRY(td_file_read(file, CONFIG_BYTES_MAX, &config, &config_len, err));
    snprintf(file, sizeof file, "%s/generation_config.json", folder);
    td_status s = td_file_read(file, CONFIG_BYTES_MAX, &generation, &generation_len, err);
    if (s == TD_ENOTFOUND) s = TD_OK;
    if (s == TD_OK) {
        s = td_model_config_parse(config, config_len, generation, generation_len, override_json, out, err);
        if (s != TD_OK) td_fail_within(err, "%s", path);
        if (s == TD_OK && out->quant.method == TD_QUANT_NONE && !out->quant.refusal[0] &&
            td_modelslim_description(folder, file, sizeof file))
            out->quant = td_quant_config_modelslim();
    }
    free(config);
    free(generation);
    return s;
}
