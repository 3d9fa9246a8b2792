/* What comes with the weights: tokenizer files as they are, and config.json with a description of the numbers. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/files/json_text.h"
#include "model/arch/arch.h"
#include "quantize/quantizer.h"

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static const char *const NAMES[] = {"generation_config.json",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "tiktoken.model",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "LICENSE",
                                    "README.md"};

bool td_is_small_file(const char *name) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(name, NAMES[i])) return true;
    return false;
}

td_status td_small_files_copy(td_quantizer *q) {
    char from[PATH_MAX], to[PATH_MAX];
    if (!is_folder(q->o->model_path)) return TD_OK; /* a config.json alone, with dummy weights */
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char  *data;
        size_t len;
        TD_TRY(td_source_path(q, from, NAMES[i]));
        TD_TRY(td_output_path(q, to, NAMES[i]));
        td_status s = td_file_read(from, TD_SMALL_FILE_MAX, &data, &len, q->err);
        if (s == TD_ENOTFOUND) continue;
        if (s == TD_OK) s = td_file_write(to, data, len, q->err);
        free(data);
        if (s != TD_OK) return s;
    }
    return TD_OK;
}

/* compressed-tensors' description of int8 weights per channel and dynamic int8 activations per token. */
static json_t *quantization_config(void) {
    return json_pack("{s:s,s:s,s:s,s:{s:{s:[s],s:{s:i,s:s,s:b,s:s,s:b},s:{s:i,s:s,s:b,s:s,s:b}}},s:[s,s,s,s]}",
                     "quant_method", "compressed-tensors", "format", "int-quantized", "quantization_status", "compressed",
                     "config_groups", "group_0", "targets", "Linear", "weights", "num_bits", 8, "type", "int", "symmetric",
                     1, "strategy", "channel", "dynamic", 0, "input_activations", "num_bits", 8, "type", "int", "symmetric",
                     1, "strategy", "token", "dynamic", 1, "ignore", "re:.*kv_b_proj$", "re:.*mlp\\.gate$",
                     "re:.*shared_expert_gate$", "re:.*linear_attn\\.in_proj_b?a?$");
}

/* "weights" of a group. @param size of the groups of columns that share a scale; 0: a scale a row. */
static json_t *weights(int bits, uint32_t size) {
    return json_pack("{s:i,s:s,s:b,s:s,s:o,s:b}", "num_bits", bits, "type", "int", "symmetric", 1, "strategy",
                     size ? "group" : "channel", "group_size", size ? json_integer(size) : json_null(), "dynamic", 0);
}

/*
 * The description of a folder for other engines, which differ in what they ask of it (docs/checkpoints.md):
 *   Linear            for what is no expert beside it, or for the experts alone: a name has precedence over a class; vLLM and SGLang look for it in the
 *                     classes' names, and so find what they fuse (qkv_proj, gate_up_proj)
 *   ignore            every linear that is stored plainly, since SGLang refuses one that is neither a target nor ignored; fused names, too
 *   format            pack-quantized if any group is: SGLang asks for it with experts of 4 bits, the others go by the groups' own
 *   no activations    with experts of 4 bits: engines that read them keep these in 16 bits
 */
static json_t *shared_quantization_config(const td_quantizer *q) {
    static const char *const EXPERTS = "re:.*mlp\\.experts\\.\\d+\\.(gate_proj|up_proj|down_proj)$";
    static const char *const PLAIN[] = {"lm_head",
                                        "re:.*kv_b_proj$",
                                        "re:.*mlp\\.gate$",
                                        "re:.*shared_expert_gate$",
                                        "re:.*eh_proj$",
                                        "re:.*shared_head\\.head$",
                                        "re:.*linear_attn\\.in_proj_b?a?$"};
    static const char *const LINEARS[] = {"re:.*self_attn\\..*", "re:.*mlp\\.(gate|up|gate_up|down)_proj$",
                                          "re:.*mlp\\.shared_experts?\\..*", "re:.*linear_attn\\..*"};
    bool                     int8_experts = q->experts->format == TD_EXPERT_INT8C;
    int                      failed = 0;
    json_t                  *groups = json_object(), *ignore = json_array();
    if (q->w8a8 || int8_experts) {
        json_t *group = json_pack("{s:[s],s:o,s:{s:i,s:s,s:b,s:s,s:b},s:n,s:s}", "targets", "Linear", "weights",
                                  weights(8, 0), "input_activations", "num_bits", 8, "type", "int", "symmetric", 1,
                                  "strategy", "token", "dynamic", 1, "output_activations", "format", "int-quantized");
        failed |= json_object_set_new(groups, "group_0", group);
    }
    if (!int8_experts) {
        uint32_t size = q->experts->format == TD_EXPERT_INT4G ? q->experts->groups.size : 0;
        json_t  *group = json_pack("{s:[s],s:o,s:n,s:n,s:s}", "targets", q->w8a8 ? EXPERTS : "Linear", "weights",
                                   weights(4, size), "input_activations", "output_activations", "format", "pack-quantized");
        failed |= json_object_set_new(groups, q->w8a8 ? "group_1" : "group_0", group);
    }
    for (size_t i = 0; i < sizeof PLAIN / sizeof *PLAIN; i++) failed |= json_array_append_new(ignore, json_string(PLAIN[i]));
    for (size_t i = 0; !q->w8a8 && i < sizeof LINEARS / sizeof *LINEARS; i++)
        failed |= json_array_append_new(ignore, json_string(LINEARS[i]));
    if (failed) {
        json_decref(groups);
        json_decref(ignore);
        return NULL;
    }
    return json_pack("{s:s,s:s,s:s,s:n,s:n,s:o,s:o}", "quant_method", "compressed-tensors", "format",
                     int8_experts ? "int-quantized" : "pack-quantized", "quantization_status", "compressed",
                     "global_compression_ratio", "kv_cache_scheme", "config_groups", groups, "ignore", ignore);
}

td_status td_output_config_write(td_quantizer *q) {
    char    path[PATH_MAX];
    json_t *config;
    bool    folder = !td_checkpoint_is_dummy(q->source) || is_folder(q->o->model_path);
    if (folder) TD_TRY(td_source_path(q, path, "config.json"));
    TD_TRY(td_json_read(folder ? path : q->o->model_path, TD_SMALL_FILE_MAX, &config, q->err));
    json_t *text_config = td_arch_has_more(q->config.arch) ? json_object_get(config, "text_config") : config;
    json_t *places[] = {config, text_config};
    for (size_t i = 0; i < 2; i++) { /* of codes that are decoded now */
        json_object_del(places[i], "quantization_config");
        json_object_del(places[i], "compression_config");
    }
    json_t *numbers = q->compressed_tensors ? shared_quantization_config(q) : q->w8a8 ? quantization_config() : NULL;
    int     failed = q->compressed_tensors || q->w8a8 ? json_object_set_new(config, "quantization_config", numbers) : 0;
    if (q->rotated && q->config.tie_embeddings)
        failed |= json_object_set_new(text_config, "tie_word_embeddings", json_false());
    char     *text = failed ? NULL : td_json_dump(config, JSON_INDENT(2));
    td_status s = text ? td_output_path(q, path, "config.json") : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK) s = td_file_write(path, text, strlen(text), q->err);
    free(text);
    json_decref(config);
    return s;
}
