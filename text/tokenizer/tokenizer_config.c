/* tokenizer_config.json: BOS, EOS, the chat template. */
#include <string.h>

#include "core/error.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_impl.h"

/* Read a special token, given as a string, as an object with its content, or as null. */
static td_status read_token(const json_t *config, const char *name, char **out, td_error *err) {
    const json_t *value = json_object_get(config, name);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    else if (!value || json_is_null(value))
        return TD_OK;
    if (!json_is_string(value))
        return td_fail(err, TD_EFORMAT, "tokenizer_config.json: %s is neither a string nor an added token", name);
    *out = strdup(json_string_value(value));
    return *out ? TD_OK : td_fail(err, TD_ENOMEM, "tokenizer_config.json: out of memory");
}

/* Read the chat template: a string, or a list of {"name", "template"}, of which "default" is taken. */
static td_status read_template(td_tokenizer *tok, const json_t *config, td_error *err) {
    const json_t *value = json_object_get(config, "chat_template");
    if (json_is_array(value)) {
        const json_t *found = NULL;
        size_t        i;
        json_t       *item;
        json_array_foreach(value, i, item) {
            const char *name = json_string_value(json_object_get(item, "name"));
            if (name && !strcmp(name, "default")) found = json_object_get(item, "template");
        }
        value = found;
    }
    if (!value || json_is_null(value)) return TD_OK;
    if (!json_is_string(value)) return td_fail(err, TD_EFORMAT, "tokenizer_config.json: chat_template is not a string");
    tok->chat_template = strdup(json_string_value(value));
    return tok->chat_template ? TD_OK : td_fail(err, TD_ENOMEM, "tokenizer_config.json: out of memory");
}

static td_status set_only(td_tokenizer *tok, td_ids *ids, const char *name, const char *token, td_error *err) {
    uint32_t id = td_tokenizer_find(tok, token, strlen(token));
    if (id == TD_NO_TOKEN)
        return td_fail(err, TD_EFORMAT, "tokenizer_config.json: %s '%.60s' is not in the vocabulary", name, token);
    if (td_ids_reserve(ids, 1) != TD_OK) return td_fail(err, TD_ENOMEM, "tokenizer_config.json: out of memory");
    ids->v[ids->n++] = id;
    return TD_OK;
}

/*
 * Decide about BOS and EOS as transformers does. LlamaTokenizer(Fast) builds its template from add_bos_token (default true)
 * and add_eos_token (default false) and drops the template of tokenizer.json. For other classes that template stands, and
 * add_bos_token and add_eos_token count only where there is none.
 */
static td_status decide_bos_eos(td_tokenizer *tok, const json_t *config, td_error *err) {
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    const json_t *add_bos = json_object_get(config, "add_bos_token"), *add_eos = json_object_get(config, "add_eos_token");
    bool          llama = class && (!strcmp(class, "LlamaTokenizer") || !strcmp(class, "LlamaTokenizerFast"));
    if (tok->has_template && !llama) return TD_OK;
    tok->prefix.n = tok->suffix.n = 0;
    if ((json_is_true(add_bos) || (llama && !add_bos)) && tok->bos)
        TD_TRY(set_only(tok, &tok->prefix, "bos_token", tok->bos, err));
    if (json_is_true(add_eos) && tok->eos) TD_TRY(set_only(tok, &tok->suffix, "eos_token", tok->eos, err));
    return TD_OK;
}

td_status td_tokenizer_read_config(td_tokenizer *tok, const json_t *config, td_error *err) {
    if (!json_is_object(config)) return td_fail(err, TD_EFORMAT, "tokenizer_config.json is not a JSON object");
    TD_TRY(read_token(config, "bos_token", &tok->bos, err));
    TD_TRY(read_token(config, "eos_token", &tok->eos, err));
    TD_TRY(read_template(tok, config, err));
    return decide_bos_eos(tok, config, err);
}
