/* From a body of /generate to a completion's: fields, and members of sampling_params. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"
#include "server/sglang/generate.h"

#define MAX_NEW_TOKENS 128 /* SGLang's default */

/* How a field is read: here; by the completion, under its name there; or not at all, because the answer does not depend on
 * it. REFUSED: refused unless it is off. Fields that are in no table are refused, too. */
typedef enum { READ_HERE, READ_BY_COMPLETION, NO_EFFECT, REFUSED } field_use;

typedef struct {
    const char *name;
    field_use   use;
    const char *completion; /* its name in a completion; NULL: the same */
} field;

static const field FIELDS[] = {
    {"text", READ_HERE, NULL},
    {"input_ids", READ_HERE, NULL},
    {"sampling_params", READ_HERE, NULL},
    {"return_logprob", READ_HERE, NULL},
    {"logprob_start_len", READ_HERE, NULL},
    {"top_logprobs_num", READ_HERE, NULL},
    {"return_text_in_logprobs", READ_HERE, NULL},
    {"stream", READ_BY_COMPLETION, NULL},
    {"rid", READ_HERE, NULL},
    {"priority", READ_BY_COMPLETION, NULL},
    {"model", READ_BY_COMPLETION, NULL},
    {"log_metrics", NO_EFFECT, NULL},
    {"no_logs", NO_EFFECT, NULL},
    {"custom_labels", NO_EFFECT, NULL},
    {"data_parallel_rank", NO_EFFECT, NULL},
    {"routed_dp_rank", NO_EFFECT, NULL},
    {"extra_key", NO_EFFECT, NULL},
    {"conversation_id", NO_EFFECT, NULL},
    {"token_ids_logprob", REFUSED, NULL},
    {"input_embeds", REFUSED, NULL},
    {"image_data", READ_HERE, NULL},
    {"video_data", REFUSED, NULL},
    {"audio_data", REFUSED, NULL},
    {"modalities", REFUSED, NULL},
    {"session_params", REFUSED, NULL},
    {"lora_path", REFUSED, NULL},
    {"custom_logit_processor", REFUSED, NULL},
    {"return_hidden_states", REFUSED, NULL},
    {"return_routed_experts", REFUSED, NULL},
    {"return_bytes", REFUSED, NULL},
    {"return_entropy", REFUSED, NULL},
    {"require_reasoning", REFUSED, NULL},
    {"background", REFUSED, NULL},
};

static const field SAMPLING[] = {
    {"max_new_tokens", READ_BY_COMPLETION, "max_tokens"},
    {"min_new_tokens", READ_BY_COMPLETION, "min_tokens"},
    {"sampling_seed", READ_BY_COMPLETION, "seed"},
    {"temperature", READ_BY_COMPLETION, NULL},
    {"top_p", READ_BY_COMPLETION, NULL},
    {"top_k", READ_BY_COMPLETION, NULL},
    {"min_p", READ_BY_COMPLETION, NULL},
    {"frequency_penalty", READ_BY_COMPLETION, NULL},
    {"presence_penalty", READ_BY_COMPLETION, NULL},
    {"repetition_penalty", READ_BY_COMPLETION, NULL},
    {"logit_bias", READ_BY_COMPLETION, NULL},
    {"stop", READ_BY_COMPLETION, NULL},
    {"stop_token_ids", READ_BY_COMPLETION, NULL},
    {"ignore_eos", READ_BY_COMPLETION, NULL},
    {"skip_special_tokens", READ_BY_COMPLETION, NULL},
    {"no_stop_trim", READ_BY_COMPLETION, NULL},
    {"n", READ_BY_COMPLETION, NULL},
    {"json_schema", READ_BY_COMPLETION, NULL},
    {"regex", READ_BY_COMPLETION, NULL},
    {"ebnf", READ_BY_COMPLETION, NULL},
    {"spaces_between_special_tokens", NO_EFFECT, NULL},
    {"stream_interval", NO_EFFECT, NULL},
    {"structural_tag", REFUSED, NULL},
    {"stop_regex", REFUSED, NULL},
    {"custom_params", REFUSED, NULL},
};

/* Errors about a completion's prompt name SGLang's field. */
static const td_api_name IDS_NAMES[] = {{"prompt", "input_ids"}, {0}}, TEXT_NAMES[] = {{"prompt", "text"}, {0}};

/* Copies the fields that a completion has, and refuses those that are not supported. where: "", or "sampling_params.". */
static td_status take_fields(json_t *from, const field *fields, size_t n, const char *where, json_t *completion,
                             td_api_error *err) {
    const char *key;
    json_t     *value;
    json_object_foreach(from, key, value) {
        size_t i = 0;
        while (i < n && strcmp(key, fields[i].name) != 0) i++;
        if (!td_api_is_set(value)) continue;
        if (i == n || (fields[i].use == REFUSED && td_api_is_on(value)))
            return td_api_bad(err, key, "'%s%.60s' is not supported.", where, key);
        const char *name = i < n && fields[i].completion ? fields[i].completion : key;
        if (fields[i].use == READ_BY_COMPLETION && json_object_set(completion, name, value) != 0)
            return td_api_no_memory(err);
    }
    return TD_OK;
}

/* ---- what may be a list with an item for each prompt ---- */

static td_status single(const json_t *body, const char *name, const json_t **to, td_api_error *err) {
    const json_t *v = json_object_get(body, name);
    *to = td_api_is_set(v) ? v : NULL;
    if (!json_is_array(v)) return TD_OK;
    *to = json_array_get(v, 0);
    for (size_t i = 1; i < json_array_size(v); i++)
        if (!json_equal(json_array_get(v, i), *to))
            return td_api_bad(err, name, "'%s' must be the same for all prompts.", name);
    if (!td_api_is_set(*to)) *to = NULL;
    return TD_OK;
}

static td_status read_switch(const json_t *body, const char *name, bool *to, td_api_error *err) {
    const json_t *v;
    TD_TRY(single(body, name, &v, err));
    if (v && !json_is_boolean(v)) return td_api_bad(err, name, "'%s' must be true or false.", name);
    *to = json_is_true(v);
    return TD_OK;
}

static td_status read_count(const json_t *body, const char *name, json_int_t min, json_int_t max, json_int_t *to,
                            td_api_error *err) {
    const json_t *v;
    TD_TRY(single(body, name, &v, err));
    if (v && (!td_api_integer(v, to) || *to < min || *to > max))
        return td_api_bad(err, name, "'%s' must be an integer from %lld to %lld.", name, (long long)min, (long long)max);
    return TD_OK;
}

/* ---- prompts, log-probabilities ---- */

static td_status read_prompts(const json_t *body, json_t *completion, td_generate_state *state, td_api_error *err) {
    json_t *text = json_object_get(body, "text"), *ids = json_object_get(body, "input_ids");
    if (td_api_is_set(text) == td_api_is_set(ids))
        return td_api_bad(err, "text", "One of 'text' and 'input_ids' must be given%s.",
                          td_api_is_set(text) ? ", not both" : "");
    const json_t *first = json_array_get(td_api_is_set(text) ? text : ids, 0);
    if (td_api_is_set(text) && !json_is_string(text) && !json_is_string(first))
        return td_api_bad(err, "text", "'text' must be a string or a list of strings, and not empty.");
    if (td_api_is_set(ids) && !json_is_integer(first) && !json_is_array(first))
        return td_api_bad(err, "input_ids",
                          "'input_ids' must be a list of token ids or a list of such lists, and not empty.");
    state->is_list = json_is_string(first) || json_is_array(first);
    return json_object_set(completion, "prompt", td_api_is_set(text) ? text : ids) == 0 ? TD_OK : td_api_no_memory(err);
}

static td_status read_logprobs(const json_t *body, json_t *completion, td_generate_state *state, td_api_error *err) {
    bool       wanted, texts;
    json_int_t top = 0, start = -1;
    TD_TRY(read_switch(body, "return_logprob", &wanted, err));
    TD_TRY(read_switch(body, "return_text_in_logprobs", &texts, err));
    TD_TRY(read_count(body, "top_logprobs_num", 0, TD_LOGPROBS_MAX, &top, err));
    TD_TRY(read_count(body, "logprob_start_len", -1, INT32_MAX, &start, err));
    state->logprob_texts = texts;
    state->logprob_start = wanted && start >= 0 ? (size_t)start : SIZE_MAX;
    if (!wanted) return TD_OK;
    int bad = json_object_set_new(completion, "logprobs", json_integer(top));
    if (start >= 0) bad |= json_object_set_new(completion, "echo", json_true()); /* log-probabilities of the prompt, too */
    return bad ? td_api_no_memory(err) : TD_OK;
}

static td_status read_rid(const json_t *body, json_t *completion, td_api_error *err) {
    json_t *v = json_object_get(body, "rid");
    if (!td_api_is_set(v)) return TD_OK;
    if (json_is_array(v) && json_array_size(v) == 1) v = json_array_get(v, 0);
    if (json_is_array(v)) return td_api_bad(err, "rid", "'rid' must be a string: all prompts of a request have the same.");
    return json_object_set(completion, "rid", v) == 0 ? TD_OK : td_api_no_memory(err);
}

/* ---- images ---- */

/* Add what a prompt has as its images: one, a list of them, or null. */
static td_status add_images(json_t *v, const char *at, const td_api_context *with, td_api_request *r, td_api_prompt *prompt,
                            td_api_error *err) {
    size_t n = json_is_array(v) ? json_array_size(v) : td_api_is_set(v) ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        char param[TD_API_PARAM_MAX];
        if (json_is_array(v))
            snprintf(param, sizeof param, "%s[%zu]", at, i);
        else
            snprintf(param, sizeof param, "%s", at);
        TD_TRY(td_api_images_add(&r->images, with->info, param, json_is_array(v) ? json_array_get(v, i) : v, err));
        prompt->n_images++;
    }
    return TD_OK;
}

/* One prompt has all images; a list of prompts, a list with what each of them has. */
static td_status read_images(const json_t *body, bool is_list, const td_api_context *with, td_api_request *r,
                             td_api_error *err) {
    json_t *v = json_object_get(body, "image_data");
    r->images.places = td_api_is_set(json_object_get(body, "text")) ? "text" : "input_ids";
    if (!td_api_is_on(v)) return TD_OK;
    if (!is_list) return add_images(v, "image_data", with, r, &r->prompts[0], err);
    if (json_array_size(v) != r->n_prompts)
        return td_api_bad(err, "image_data", "'image_data' must have an item for each of the %zu prompts.", r->n_prompts);
    for (size_t i = 0; i < r->n_prompts; i++) {
        char at[TD_API_PARAM_MAX];
        snprintf(at, sizeof at, "image_data[%zu]", i);
        TD_TRY(add_images(json_array_get(v, i), at, with, r, &r->prompts[i], err));
    }
    return TD_OK;
}

/* ---- sampling_params ---- */

/* Read the completion with one object of sampling_params (NULL: none) into r. @param names how errors call the prompt. */
static td_status read_sampled(json_t *shared, json_t *params, const td_api_name *names, const td_api_context *with,
                              td_api_request *r, td_api_error *err) {
    json_t *completion = json_copy(shared);
    if (!completion || json_object_set_new(completion, "max_tokens", json_integer(MAX_NEW_TOKENS)) != 0) {
        json_decref(completion);
        return td_api_no_memory(err);
    }
    td_status st = take_fields(params, SAMPLING, sizeof SAMPLING / sizeof *SAMPLING, "sampling_params.", completion, err);
    if (st != TD_OK) {
        json_decref(completion);
        return st;
    }
    st = td_api_read_form(TD_READ_COMPLETION, completion, with, r, err);
    if (st != TD_OK) td_api_rename_error(names, err);
    return st;
}

/* Read each prompt's own parameters: one object of the list for each prompt. */
static td_status read_each(json_t *shared, const json_t *list, const td_api_name *names, const td_api_context *with,
                           td_api_request *r, td_api_error *err) {
    json_t *prompts = json_object_get(shared, "prompt");
    if (json_array_size(list) != json_array_size(prompts))
        return td_api_bad(err, "sampling_params", "'sampling_params' has %zu items for %zu prompts.", json_array_size(list),
                          json_array_size(prompts));
    r->each = calloc(r->n_prompts, sizeof *r->each);
    if (!r->each) return td_api_no_memory(err);
    for (size_t i = 0; i < r->n_prompts; i++) {
        json_t *own = json_copy(shared);
        if (!own || json_object_set(own, "prompt", json_array_get(prompts, i)) != 0) {
            json_decref(own);
            return td_api_no_memory(err);
        }
        r->each[i].api = r->api;
        td_status st = read_sampled(own, json_array_get(list, i), names, with, &r->each[i], err);
        json_decref(own);
        TD_TRY(st);
        if (r->each[i].n != r->n) return td_api_bad(err, "n", "'sampling_params.n' must be the same for all prompts.");
    }
    return TD_OK;
}

static td_status check_params(const json_t *v, bool is_list, td_api_error *err) {
    bool fits = !td_api_is_set(v) || json_is_object(v) || (json_is_array(v) && is_list);
    for (size_t i = 0; fits && i < json_array_size(v); i++) fits = json_is_object(json_array_get(v, i));
    if (fits) return TD_OK;
    return td_api_bad(err, "sampling_params",
                      "'sampling_params' must be an object, or for a list of prompts a list with one for each.");
}

td_status td_generate_read(json_t *body, const td_api_context *with, td_generate_state *state, td_api_request *r,
                           td_api_error *err) {
    json_t            *params = json_object_get(body, "sampling_params"), *shared = json_object();
    const td_api_name *names = td_api_is_set(json_object_get(body, "text")) ? TEXT_NAMES : IDS_NAMES;
    td_status          st = shared ? TD_OK : td_api_no_memory(err);
    if (st == TD_OK) st = take_fields(body, FIELDS, sizeof FIELDS / sizeof *FIELDS, "", shared, err);
    if (st == TD_OK) st = read_prompts(body, shared, state, err);
    if (st == TD_OK) st = read_logprobs(body, shared, state, err);
    if (st == TD_OK) st = read_rid(body, shared, err);
    if (st == TD_OK) st = check_params(params, state->is_list, err);
    bool listed = json_is_array(params);
    if (st == TD_OK) st = read_sampled(shared, listed ? json_array_get(params, 0) : params, names, with, r, err);
    if (st == TD_OK && listed) st = read_each(shared, params, names, with, r, err);
    if (st == TD_OK) st = read_images(body, state->is_list, with, r, err);
    json_decref(shared);
    if (st != TD_OK) return st;
    r->shown.token_ids = true;
    state->is_list = state->is_list || r->n > 1;
    return TD_OK;
}
