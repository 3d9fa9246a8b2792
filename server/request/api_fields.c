/* The fields of a generation request: one table of numbers and switches, one of what is refused, and the few with a shape of
 * their own. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/request/api_readers.h"

#define BOTH (TD_READ_CHAT | TD_READ_COMPLETION)

typedef enum { FIELD_REAL, FIELD_U32, FIELD_I32, FIELD_BOOL } field_type;

typedef struct {
    const char *name;
    int         forms;
    field_type  type;
    size_t      offset; /* in td_api_request */
    double      min, max;
} field;

#define AT(member) offsetof(td_api_request, member)

static const field FIELDS[] = {
    {"temperature", BOTH, FIELD_REAL, AT(sampling.temperature), 0, 2},
    {"top_p", BOTH, FIELD_REAL, AT(sampling.top_p), DBL_MIN, 1},
    {"min_p", BOTH, FIELD_REAL, AT(sampling.min_p), 0, 1},
    {"frequency_penalty", BOTH, FIELD_REAL, AT(sampling.frequency_penalty), -2, 2},
    {"presence_penalty", BOTH, FIELD_REAL, AT(sampling.presence_penalty), -2, 2},
    {"repetition_penalty", BOTH, FIELD_REAL, AT(sampling.repetition_penalty), DBL_MIN, 2},
    {"n", BOTH, FIELD_U32, AT(n), 1, TD_API_N_MAX},
    {"min_tokens", BOTH, FIELD_U32, AT(length.min), 0, INT32_MAX},
    {"truncate_prompt_tokens", BOTH, FIELD_U32, AT(prompt_tokens_max), 1, INT32_MAX},
    {"add_special_tokens", BOTH, FIELD_BOOL, AT(add_special_tokens), 0, 0},
    {"priority", BOTH, FIELD_I32, AT(priority), INT32_MIN, INT32_MAX},
    {"stream", BOTH, FIELD_BOOL, AT(stream.on), 0, 0},
    {"separate_reasoning", TD_READ_CHAT, FIELD_BOOL, AT(parts.separate_reasoning), 0, 0},
    {"parallel_tool_calls", TD_READ_CHAT, FIELD_BOOL, AT(parts.parallel_calls), 0, 0},
    {"echo", TD_READ_COMPLETION, FIELD_BOOL, AT(shown.echo), 0, 0},
    {"return_token_ids", BOTH, FIELD_BOOL, AT(shown.token_ids), 0, 0},
    {"return_tokens_as_token_ids", BOTH, FIELD_BOOL, AT(shown.tokens_as_ids), 0, 0},
    {"ignore_eos", BOTH, FIELD_BOOL, AT(stop.ignores_eos), 0, 0},
    {"skip_special_tokens", BOTH, FIELD_BOOL, AT(shown.skips_special_tokens), 0, 0},
    {"no_stop_trim", BOTH, FIELD_BOOL, AT(stop.is_shown), 0, 0},
    {"include_stop_str_in_output", BOTH, FIELD_BOOL, AT(stop.is_shown), 0, 0},
};

/* Fields that would change the answer and are not supported. */
typedef struct {
    const char *name;
    int         forms;
    enum {
        WHEN_SET,   /* any value but null */
        WHEN_TRUE,  /* what is not null, false, 0, "" or empty */
        WHEN_NOT_1, /* anything but 1, which turns it off */
        WHEN_NOT_MINUS_1
    } when;
} refusal;

static const refusal REFUSED[] = {
    {"structural_tag", BOTH, WHEN_TRUE},
    {"guided_whitespace_pattern", BOTH, WHEN_TRUE},
    {"stop_regex", BOTH, WHEN_TRUE},
    {"lora_path", BOTH, WHEN_TRUE},
    {"custom_logit_processor", BOTH, WHEN_TRUE},
    {"session_params", BOTH, WHEN_TRUE},
    {"return_hidden_states", BOTH, WHEN_TRUE},
    {"use_beam_search", BOTH, WHEN_TRUE},
    {"length_penalty", BOTH, WHEN_NOT_1},
    {"early_stopping", BOTH, WHEN_TRUE},
    {"allowed_token_ids", BOTH, WHEN_TRUE},
    {"bad_words", BOTH, WHEN_TRUE},
    {"logits_processors", BOTH, WHEN_TRUE},
    {"lora_name", BOTH, WHEN_TRUE},
    {"lora", BOTH, WHEN_TRUE},
    {"input_embeds", BOTH, WHEN_TRUE},
    {"max_new_tokens", BOTH, WHEN_SET},
    {"min_new_tokens", BOTH, WHEN_TRUE},
    {"random_seed", BOTH, WHEN_SET},
    /* llama.cpp's names */
    {"n_predict", BOTH, WHEN_NOT_MINUS_1},
    {"t_max_predict_ms", BOTH, WHEN_NOT_MINUS_1},
    {"n_probs", BOTH, WHEN_TRUE},
    {"repeat_penalty", BOTH, WHEN_NOT_1},
    {"samplers", BOTH, WHEN_TRUE},
    {"mirostat", BOTH, WHEN_TRUE},
    {"dynatemp_range", BOTH, WHEN_TRUE},
    {"typical_p", BOTH, WHEN_NOT_1},
    {"tfs_z", BOTH, WHEN_NOT_1},
    {"top_n_sigma", BOTH, WHEN_NOT_MINUS_1},
    {"xtc_probability", BOTH, WHEN_TRUE},
    {"dry_multiplier", BOTH, WHEN_TRUE},
    /* of other engines */
    {"top_a", BOTH, WHEN_TRUE},
    {"epsilon_cutoff", BOTH, WHEN_TRUE},
    {"eta_cutoff", BOTH, WHEN_TRUE},
    {"suffix", TD_READ_COMPLETION, WHEN_TRUE},
    {"prompt_embeds", TD_READ_COMPLETION, WHEN_TRUE},
    {"echo", TD_READ_CHAT, WHEN_TRUE},
    {"chat_template", TD_READ_CHAT, WHEN_SET},
    {"enable_thinking", TD_READ_CHAT, WHEN_SET},
    {"thinking", TD_READ_CHAT, WHEN_SET},
    {"audio", TD_READ_CHAT, WHEN_SET},
    {"functions", TD_READ_CHAT, WHEN_TRUE},
    {"function_call", TD_READ_CHAT, WHEN_SET},
    {"web_search_options", TD_READ_CHAT, WHEN_SET},
};

/* What to use in place of some of the refused fields. */
static const struct {
    const char *name, *hint;
} INSTEAD[] = {
    {"max_new_tokens", "use 'max_tokens'"},
    {"min_new_tokens", "use 'min_tokens'"},
    {"random_seed", "use 'seed'"},
    {"n_predict", "use 'max_tokens'"},
    {"n_probs", "use 'logprobs'"},
    {"repeat_penalty", "use 'repetition_penalty', which looks at all tokens"},
    {"chat_template", "start the server with --chat-template"},
    {"enable_thinking", "put it into 'chat_template_kwargs'"},
    {"thinking", "put what the template knows into 'chat_template_kwargs'"},
};

static bool is_refused(const refusal *f, const json_t *v) {
    switch (f->when) {
        case WHEN_SET: return true;
        case WHEN_TRUE: return td_api_is_on(v);
        case WHEN_NOT_1: return !json_is_number(v) || json_number_value(v) != 1;
        case WHEN_NOT_MINUS_1: return !json_is_number(v) || json_number_value(v) != -1;
    }
    return true;
}

static td_status refuse(const char *name, td_api_error *err) {
    const char *hint = NULL;
    for (size_t i = 0; i < sizeof INSTEAD / sizeof *INSTEAD; i++)
        if (!strcmp(INSTEAD[i].name, name)) hint = INSTEAD[i].hint;
    return td_api_bad(err, name, "'%s' is not supported%s%s.", name, hint ? "; " : "", hint ? hint : "");
}

static td_status read_field(const field *f, const json_t *v, td_api_request *r, td_api_error *err) {
    void *to = (char *)r + f->offset;
    if (f->type == FIELD_BOOL) {
        if (!json_is_boolean(v)) return td_api_bad(err, f->name, "'%s' must be true or false.", f->name);
        *(bool *)to = json_is_true(v);
        return TD_OK;
    }
    bool       whole = f->type != FIELD_REAL;
    json_int_t integer = 0;
    if (whole ? !td_api_integer(v, &integer) : !json_is_number(v))
        return td_api_bad(err, f->name, "'%s' must be %s.", f->name, whole ? "an integer" : "a number");
    double x = json_number_value(v);
    if (f->min == DBL_MIN && !(x > 0 && x <= f->max))
        return td_api_bad(err, f->name, "'%s' must be above 0 and at most %g.", f->name, f->max);
    if (!(x >= f->min && x <= f->max))
        return td_api_bad(err, f->name, "'%s' must be between %.10g and %.10g.", f->name, f->min, f->max);
    if (f->type == FIELD_REAL)
        *(double *)to = x;
    else if (f->type == FIELD_U32)
        *(uint32_t *)to = (uint32_t)integer;
    else
        *(int32_t *)to = (int32_t)integer;
    return TD_OK;
}

static td_status read_max_tokens(td_api_request *r, td_api_error *err) {
    /* max_completion_tokens is the newer name and wins. */
    const char *name = "max_completion_tokens";
    json_t     *v = r->form == TD_READ_CHAT ? json_object_get(r->root, name) : NULL;
    if (!td_api_is_set(v)) v = json_object_get(r->root, name = "max_tokens");
    if (!td_api_is_set(v)) {
        r->length.has_max = r->form == TD_READ_COMPLETION;
        r->length.max = TD_API_COMPLETION_MAX_TOKENS;
        return TD_OK;
    }
    json_int_t min = r->form == TD_READ_CHAT ? 1 : 0, n;
    if (!td_api_integer(v, &n)) return td_api_bad(err, name, "'%s' must be an integer.", name);
    if (n < min || n > INT32_MAX) return td_api_bad(err, name, "'%s' must be at least %d and fit 31 bits.", name, (int)min);
    r->length.max = (uint32_t)n;
    r->length.has_max = true;
    return TD_OK;
}

static td_status read_logprobs(td_api_request *r, td_api_error *err) {
    const json_t *v = json_object_get(r->root, "logprobs"), *top = json_object_get(r->root, "top_logprobs");
    const json_t *count = r->form == TD_READ_CHAT ? top : v;
    const char   *name = r->form == TD_READ_CHAT ? "top_logprobs" : "logprobs";
    if (r->form == TD_READ_CHAT && td_api_is_set(v)) {
        if (!json_is_boolean(v))
            return td_api_bad(err, "logprobs", "'logprobs' must be true or false; the count is 'top_logprobs'.");
        r->shown.logprobs = json_is_true(v);
    }
    if (!td_api_is_set(count)) return TD_OK;
    json_int_t n;
    if (!td_api_integer(count, &n) || n < 0 || n > TD_LOGPROBS_MAX)
        return td_api_bad(err, name, "'%s' must be an integer between 0 and %d.", name, TD_LOGPROBS_MAX);
    r->shown.top_logprobs = (uint32_t)n;
    if (r->form == TD_READ_COMPLETION)
        r->shown.logprobs = true;
    else if (!r->shown.logprobs && r->shown.top_logprobs > 0)
        return td_api_bad(err, name, "'top_logprobs' needs 'logprobs': true.");
    return TD_OK;
}

/* Behind read_logprobs and the table of fields. */
static td_status read_prompt_logprobs(td_api_request *r, td_api_error *err) {
    const char   *name = "prompt_logprobs";
    const json_t *v = json_object_get(r->root, name);
    json_int_t    n;
    if (!td_api_is_set(v)) return TD_OK;
    if (!td_api_integer(v, &n) || n < 0 || n > TD_LOGPROBS_MAX)
        return td_api_bad(err, name, "'%s' must be an integer between 0 and %d.", name, TD_LOGPROBS_MAX);
    if (r->stream.on) return td_api_bad(err, name, "'%s' is not supported with 'stream'.", name);
    if (r->shown.echo && r->shown.logprobs && n != (json_int_t)r->shown.top_logprobs)
        return td_api_bad(err, name, "'%s' must be the same as 'logprobs' with 'echo', which shows the prompt's, too.",
                          name);
    r->shown.prompt_logprobs = true;
    r->shown.top_prompt_logprobs = (uint32_t)n;
    return TD_OK;
}

static td_status read_top_k(const json_t *root, td_sampling *sampling, td_api_error *err) {
    const json_t *v = json_object_get(root, "top_k");
    if (!td_api_is_set(v)) return TD_OK;
    json_int_t k;
    if (!td_api_integer(v, &k) || k < -1 || k > INT32_MAX)
        return td_api_bad(err, "top_k", "'top_k' must be an integer of at least 1, or -1 or 0 for all tokens.");
    sampling->top_k = k < 0 ? 0 : (uint32_t)k;
    return TD_OK;
}

static td_status read_seed(const json_t *root, td_sampling *sampling, td_api_error *err) {
    const json_t *v = json_object_get(root, "seed");
    if (!td_api_is_set(v)) return TD_OK;
    json_int_t seed;
    if (!td_api_integer(v, &seed)) return td_api_bad(err, "seed", "'seed' must be an integer.");
    sampling->seed = (uint64_t)seed;
    sampling->has_seed = true;
    return TD_OK;
}

static td_status read_stop(const json_t *root, td_api_stops *stop, td_api_error *err) {
    const json_t *v = json_object_get(root, "stop");
    if (!td_api_is_set(v)) return TD_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > TD_STOP_MAX) return td_api_bad(err, "stop", "'stop' has %zu strings; at most %d are allowed.", n, TD_STOP_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!td_api_is_c_string(s) || json_string_length(s) == 0)
            return td_api_bad(err, "stop",
                              "'stop' must be a string or a list of strings, none of them empty or with a NUL.");
        stop->texts[stop->n_texts++] = json_string_value(s);
    }
    return TD_OK;
}

static td_status read_logit_bias(const json_t *root, td_sampling *sampling, const td_engine_info *info, td_api_error *err) {
    json_t *v = json_object_get(root, "logit_bias");
    if (!td_api_is_set(v)) return TD_OK;
    if (!json_is_object(v)) return td_api_bad(err, "logit_bias", "'logit_bias' must be an object of token ids and biases.");
    size_t n = json_object_size(v);
    if (n > TD_API_BIAS_MAX)
        return td_api_bad(err, "logit_bias", "'logit_bias' has %zu entries; at most %d are allowed.", n, TD_API_BIAS_MAX);
    if (n == 0) return TD_OK;
    uint32_t *ids = calloc(n, sizeof *ids);
    float    *bias = calloc(n, sizeof *bias);
    sampling->bias_ids = ids;
    sampling->bias = bias;
    if (!ids || !bias) return td_api_no_memory(err);

    const char *key;
    json_t     *value;
    json_object_foreach(v, key, value) {
        char         *end;
        unsigned long id = strtoul(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id >= info->vocab_size)
            return td_api_bad(err, "logit_bias", "'logit_bias' has the key '%.40s'; keys are token ids below %u.", key,
                              info->vocab_size);
        double x = json_number_value(value);
        if (!json_is_number(value) || !(x >= -100 && x <= 100))
            return td_api_bad(err, "logit_bias", "'logit_bias' of token %lu must be a number between -100 and 100.", id);
        ids[sampling->n_bias] = (uint32_t)id;
        bias[sampling->n_bias++] = (float)x;
    }
    return TD_OK;
}

static td_status read_stream_options(const json_t *root, td_api_streaming *stream, td_api_error *err) {
    const json_t *v = json_object_get(root, "stream_options");
    if (!td_api_is_set(v)) return TD_OK;
    if (!json_is_object(v)) return td_api_bad(err, "stream_options", "'stream_options' must be an object.");
    if (!stream->on) return td_api_bad(err, "stream_options", "'stream_options' is only allowed with 'stream': true.");
    const struct {
        const char *name, *param;
        bool       *to;
    } options[] = {{"include_usage", "stream_options.include_usage", &stream->usage},
                   {"continuous_usage_stats", "stream_options.continuous_usage_stats", &stream->continuous_usage}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const json_t *o = json_object_get(v, options[i].name);
        if (!td_api_is_set(o)) continue;
        if (!json_is_boolean(o)) return td_api_bad(err, options[i].param, "'%s' must be true or false.", options[i].param);
        *options[i].to = json_is_true(o);
    }
    return TD_OK;
}

/* Refusals that depend on the value. */
static td_status refuse_values(td_api_request *r, td_api_error *err) {
    const json_t *v = json_object_get(r->root, "best_of");
    json_int_t    best_of;
    if (td_api_is_set(v) && !(td_api_integer(v, &best_of) && best_of == (json_int_t)r->n))
        return td_api_bad(err, "best_of", "'best_of' is not supported unless it equals 'n'.");
    v = json_object_get(r->root, "verbosity");
    if (r->form == TD_READ_CHAT && td_api_is_set(v)) {
        const char *level = json_is_string(v) ? json_string_value(v) : "";
        if (strcmp(level, "low") != 0 && strcmp(level, "medium") != 0 && strcmp(level, "high") != 0)
            return td_api_bad(err, "verbosity", "'verbosity' must be 'low', 'medium' or 'high'.");
        if (strcmp(level, "medium") != 0)
            r->warnings[r->n_warnings++] = "'verbosity' has no effect: no model that is served has such a switch.";
    }
    v = json_object_get(r->root, "modalities");
    if (r->form == TD_READ_CHAT && td_api_is_set(v)) {
        const char *only = json_array_size(v) == 1 ? json_string_value(json_array_get(v, 0)) : NULL;
        if (!only || strcmp(only, "text") != 0) return td_api_bad(err, "modalities", "'modalities' may only be [\"text\"].");
    }
    return TD_OK;
}

static td_status read_string(const json_t *root, const char *name, const char **to, td_api_error *err) {
    const json_t *v = json_object_get(root, name);
    if (!td_api_is_set(v)) return TD_OK;
    if (!td_api_is_c_string(v)) return td_api_bad(err, name, "'%s' must be a string, without a NUL.", name);
    *to = json_string_value(v);
    return TD_OK;
}

static void set_defaults(td_api_request *r, const td_engine_info *info) {
    r->n = 1;
    r->shown.skips_special_tokens = r->parts.separate_reasoning = r->parts.parallel_calls = true;
    r->add_special_tokens = r->form == TD_READ_COMPLETION; /* a chat's template writes them */
    r->sampling.temperature = isnan(info->default_temperature) ? 1 : info->default_temperature;
    r->sampling.top_p = isnan(info->default_top_p) || info->default_top_p <= 0 ? 1 : info->default_top_p;
    r->sampling.top_k = info->default_top_k;
    r->sampling.repetition_penalty = isnan(info->default_repetition_penalty) || info->default_repetition_penalty <= 0
                                         ? 1
                                         : info->default_repetition_penalty;
}

td_status td_api_parse_fields(td_api_request *r, const td_engine_info *info, td_api_error *err) {
    set_defaults(r, info);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        const refusal *f = &REFUSED[i];
        const json_t  *v = f->forms & r->form ? json_object_get(r->root, f->name) : NULL;
        if (td_api_is_set(v) && is_refused(f, v)) return refuse(f->name, err);
    }
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const json_t *v = FIELDS[i].forms & r->form ? json_object_get(r->root, FIELDS[i].name) : NULL;
        if (td_api_is_set(v) && read_field(&FIELDS[i], v, r, err) != TD_OK) return TD_EINVAL;
    }
    if (read_string(r->root, "model", &r->model, err) != TD_OK || read_string(r->root, "rid", &r->rid, err) != TD_OK ||
        read_max_tokens(r, err) != TD_OK || read_logprobs(r, err) != TD_OK || read_prompt_logprobs(r, err) != TD_OK ||
        read_top_k(r->root, &r->sampling, err) != TD_OK || read_seed(r->root, &r->sampling, err) != TD_OK ||
        read_stop(r->root, &r->stop, err) != TD_OK || read_logit_bias(r->root, &r->sampling, info, err) != TD_OK ||
        read_stream_options(r->root, &r->stream, err) != TD_OK || refuse_values(r, err) != TD_OK)
        return TD_EINVAL;
    if (r->rid && strlen(r->rid) > TD_API_NAME_MAX)
        return td_api_bad(err, "rid", "'rid' may have at most %d bytes.", TD_API_NAME_MAX);
    if (r->length.has_max && r->length.min > r->length.max)
        return td_api_bad(err, "min_tokens", "'min_tokens' must not be above 'max_tokens' (%u).", r->length.max);
    const json_t *stop_ids = json_object_get(r->root, "stop_token_ids");
    if (td_api_is_set(stop_ids))
        return td_api_parse_ids(stop_ids, "stop_token_ids", TD_API_STOP_IDS_MAX, info->vocab_size, &r->stop.ids,
                                &r->stop.n_ids, err);
    return TD_OK;
}
