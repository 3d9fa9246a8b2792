#include "server/request/api_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/request/api_readers.h"

static td_status add_prompts(td_api_request *r, size_t n, td_api_error *err) {
    r->prompts = calloc(n, sizeof *r->prompts);
    if (!r->prompts) return td_api_no_memory(err);
    r->n_prompts = n;
    return TD_OK;
}

static td_status read_text_prompt(td_api_prompt *p, const json_t *v) {
    p->text = json_string_value(v);
    p->text_len = json_string_length(v);
    return TD_OK;
}

/* A string, a list of strings, a list of ids, or a list of lists of ids. */
static td_status parse_prompt(td_api_request *r, const td_engine_info *info, td_api_error *err) {
    const json_t *v = json_object_get(r->root, "prompt");
    const json_t *first = json_array_get(v, 0);
    if (!v || json_is_null(v)) return td_api_bad(err, "prompt", "'prompt' is missing.");
    if (!json_is_string(v) && !first)
        return td_api_bad(
            err, "prompt",
            "'prompt' must be a string, a list of strings, a list of token ids or a list of such lists, and not empty.");

    if (json_is_string(v)) {
        TD_TRY(add_prompts(r, 1, err));
        return read_text_prompt(&r->prompts[0], v);
    }
    if (json_is_integer(first)) {
        TD_TRY(add_prompts(r, 1, err));
        return td_api_parse_ids(v, "prompt", SIZE_MAX, info->vocab_size, &r->prompts[0].ids, &r->prompts[0].n_ids, err);
    }
    size_t n = json_array_size(v);
    if (n > TD_API_CHOICES_MAX)
        return td_api_bad(err, "prompt", "'prompt' has %zu prompts; at most %d are allowed.", n, TD_API_CHOICES_MAX);
    TD_TRY(add_prompts(r, n, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(v, i);
        if (json_typeof(item) != json_typeof(first) || !(json_is_string(item) || json_is_array(item)))
            return td_api_bad(err, "prompt",
                              "'prompt' at position %zu is not of the kind of the others (strings, or lists of token ids).",
                              i);
        if (json_is_string(item))
            read_text_prompt(&r->prompts[i], item);
        else if (td_api_parse_ids(item, "prompt", SIZE_MAX, info->vocab_size, &r->prompts[i].ids, &r->prompts[i].n_ids,
                                  err) != TD_OK)
            return TD_EINVAL;
    }
    return TD_OK;
}

/* Refuse a request with more choices than the engine's queue can ever hold. */
static td_status check_choices(const td_api_request *r, const td_engine_info *info, td_api_error *err) {
    size_t      n_prompts = r->n_prompts ? r->n_prompts : 1;
    const char *param = r->n > 1 ? "n" : "prompt";
    if (n_prompts * r->n > TD_API_CHOICES_MAX)
        return td_api_bad(err, param, "%zu prompts times 'n' %u is above %d choices.", n_prompts, r->n, TD_API_CHOICES_MAX);
    if (n_prompts * r->n > info->max_queued_requests)
        return td_api_bad(err, param,
                          "%zu prompts times 'n' %u is above the %u choices that may wait here (--max-queued-requests).",
                          n_prompts, r->n, info->max_queued_requests);
    return TD_OK;
}

td_status td_api_read(const td_api *api, const char *body, size_t len, const td_api_context *with, td_api_request *out,
                      td_api_error *err) {
    *out = (td_api_request){.api = api};
    json_t *json = td_api_load(body, len, err);
    return json ? api->read(json, with, out, err) : TD_EINVAL;
}

td_status td_api_read_form(td_api_form form, json_t *body, const td_api_context *with, td_api_request *r,
                           td_api_error *err) {
    const td_engine_info *info = with->info;
    r->form = form;
    r->root = body;
    TD_TRY(td_api_parse_fields(r, info, err));
    TD_TRY(td_api_parse_grammar(r->root, &r->grammar, err));
    if (form == TD_READ_COMPLETION) {
        TD_TRY(parse_prompt(r, info, err));
    } else {
        json_t *ids = json_object_get(r->root, "input_ids");
        if (ids && !json_is_null(ids)) {
            TD_TRY(add_prompts(r, 1, err));
            TD_TRY(td_api_parse_ids(ids, "input_ids", SIZE_MAX, info->vocab_size, &r->prompts[0].ids, &r->prompts[0].n_ids,
                                    err));
        } else {
            TD_TRY(td_api_parse_chat(r, err));
        }
    }
    return check_choices(r, info, err);
}

td_status td_api_read_probe(const td_api *api, uint32_t *ids, size_t n_ids, td_api_request *out) {
    *out = (td_api_request){.api = api, .n = 1, .length = {.has_max = true, .max = 1}, .shown.skips_special_tokens = true};
    out->sampling = (td_sampling){.top_p = 1, .repetition_penalty = 1};
    out->prompts = calloc(1, sizeof *out->prompts);
    if (!out->prompts) {
        free(ids);
        return TD_ENOMEM;
    }
    out->prompts[0] = (td_api_prompt){.ids = ids, .n_ids = n_ids};
    out->n_prompts = 1;
    return TD_OK;
}

/* OpenAI's sentence: programs look for its beginning to shorten a conversation, or to try a model with a longer context. */
static void say_too_long(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err) {
    const char *what = r->form == TD_READ_CHAT ? "messages" : "prompt";
    strcpy(err->param, what);
    if (r->length.has_max)
        snprintf(
            err->message, sizeof err->message,
            "This model's maximum context length is %u tokens. However, you requested %llu tokens (%zu in the %s, %u in "
            "the completion). Please reduce the length of the %s or completion.",
            context, (unsigned long long)prompt_tokens + r->length.max, prompt_tokens, what, r->length.max, what);
    else
        snprintf(err->message, sizeof err->message,
                 "This model's maximum context length is %u tokens. However, your %s resulted in %zu tokens. Please reduce "
                 "the length of the %s.",
                 context, what, prompt_tokens, what);
}

static td_status refuse_too_long(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err) {
    *err = (td_api_error){.http = 400, .code = "context_length_exceeded"};
    (r->api && r->api->say_too_long ? r->api->say_too_long : say_too_long)(r, prompt_tokens, context, err);
    return TD_EINVAL;
}

td_status td_api_encode_text(const td_api_request *r, const td_tokenizer *tok, const char *text, size_t len,
                             uint32_t context, uint32_t **ids, size_t *n_ids, td_api_error *err) {
    const char *what = r->form == TD_READ_CHAT ? "messages" : "prompt";
    size_t      fewest = td_tokenizer_tokens_min(tok, len);
    if (context && fewest >= context) {
        refuse_too_long(r, fewest, context, err);
        size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof err->message - n, " That is the fewest tokens that a text of %zu bytes can have.",
                 len);
        return TD_EINVAL;
    }
    td_status st = td_tokenizer_encode(tok, text, len, true, r->add_special_tokens, ids, n_ids);
    if (st == TD_OK) return TD_OK;
    if (st == TD_ECANCELLED)
        return td_api_fail(err, 503, "shutting_down", "The server is shutting down, or the client has left.");
    if (st == TD_ELIMIT)
        return td_api_bad(err, what,
                          "The expressions of this model's tokenizer take too many steps on this text: %d a byte and %llu "
                          "more are the limit.",
                          TD_ENCODE_STEPS_PER_BYTE, (unsigned long long)TD_ENCODE_STEPS_FREE);
    return td_api_from_status(err, st, NULL, what);
}

/* The prompts must leave room for at least what is asked for; max_tokens is what is left where it was not given. */
static td_status fit_context(td_api_request *r, const td_api_prompt *prompts, size_t n_prompts, const td_engine_info *info,
                             td_api_error *err) {
    const char *what = r->form == TD_READ_CHAT ? "messages" : "prompt";
    size_t      longest = 0;
    for (size_t i = 0; i < n_prompts; i++) {
        size_t n = prompts[i].n_ids;
        if (n == 0) return td_api_bad(err, what, "The prompt is empty: it has no tokens.");
        if (n > longest) longest = n;
    }
    /* The KV capacity may be below the context: do not ask for what could never be held. */
    uint64_t room = info->context_length;
    if (info->max_total_tokens > longest && info->max_total_tokens < room) room = info->max_total_tokens;
    if (r->length.fits_max && longest < room && longest + r->length.max > room) {
        r->length.max = (uint32_t)(room - longest);
        r->length.context_ends = true;
    }
    uint64_t wanted = longest + (r->length.has_max ? (uint64_t)r->length.max : 1);
    if (wanted > info->context_length) return refuse_too_long(r, longest, info->context_length, err);
    if (!r->length.has_max) r->length.max = (uint32_t)(room - longest);
    if (r->length.min > r->length.max)
        return td_api_bad(err, "min_tokens", "'min_tokens' is above the %u tokens that the context has left.",
                          r->length.max);
    return TD_OK;
}

static void keep_last(td_api_prompt *p, size_t n) {
    if (p->n_ids <= n) return;
    memmove(p->ids, p->ids + p->n_ids - n, n * sizeof *p->ids);
    p->n_ids = n;
    p->text = NULL; /* an echo, too, has only what was kept */
    p->text_len = 0;
}

td_status td_api_encode(td_api_request *r, const td_tokenizer *tok, const td_chat_form *chat, const td_engine_info *info,
                        td_api_error *err) {
    uint32_t context = r->prompt_tokens_max ? 0 : info->context_length;
    if (r->form == TD_READ_CHAT && r->n_prompts == 0) {
        TD_TRY(add_prompts(r, 1, err));
        TD_TRY(td_api_encode_chat(r, tok, chat, context, &r->prompts[0].ids, &r->prompts[0].n_ids, err));
        /* The conversation as JSON is not needed any more, and takes many times the room of its tokens. */
        json_decref(r->chat.template_doc);
        r->chat.template_doc = NULL;
        json_object_del(r->root, "messages");
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        td_api_prompt *p = &r->prompts[i];
        if (!p->text) continue;
        if (!tok) return td_api_bad(err, "prompt", "This model has no tokenizer; send the prompt as token ids.");
        TD_TRY(td_api_encode_text(r, tok, p->text, p->text_len, context, &p->ids, &p->n_ids, err));
    }
    for (size_t i = 0; i < r->n_prompts && r->prompt_tokens_max; i++) keep_last(&r->prompts[i], r->prompt_tokens_max);
    if (!r->each) return fit_context(r, r->prompts, r->n_prompts, info, err);
    for (size_t i = 0; i < r->n_prompts; i++) TD_TRY(fit_context(&r->each[i], &r->prompts[i], 1, info, err));
    return TD_OK;
}
