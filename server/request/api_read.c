#include "server/request/api_read.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/request/api_readers.h"
#include "server/request/prompt_tokens.h"

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
    if (!r->each) return td_api_fit_context(r, r->prompts, r->n_prompts, info, err);
    for (size_t i = 0; i < r->n_prompts; i++) TD_TRY(td_api_fit_context(&r->each[i], &r->prompts[i], 1, info, err));
    return TD_OK;
}
