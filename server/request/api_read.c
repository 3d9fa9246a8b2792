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
            TD_TRY(td_api_parse_chat(r, info, err));
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

/* Put the images into a prompt that came as text or ids: their places are where it has the model's token of images. */
static td_status place_images(const td_api_request *r, td_api_prompt *p, size_t first, uint32_t token, td_api_error *err) {
    size_t    n_places;
    td_status st = td_api_images_place(&r->images, first, p->n_images, token, &p->ids, &p->n_ids, &n_places, &p->images);
    if (st != TD_OK) return td_api_no_memory(err);
    if (n_places == p->n_images) return TD_OK;
    const char *where = r->images.places ? r->images.places : "prompt";
    return td_api_bad(err, where, "'%s' has %zu places for images, which are the token %u, and there are %zu images.", where,
                      n_places, token, p->n_images);
}

static td_status encode_prompts(td_api_request *r, const td_api_encoding *with, uint32_t context, td_api_error *err) {
    size_t n_images = 0; /* of the prompts before */
    for (size_t i = 0; i < r->n_prompts; i++) {
        td_api_prompt *p = &r->prompts[i];
        if (p->text && !with->tok)
            return td_api_bad(err, "prompt", "This model has no tokenizer; send the prompt as token ids.");
        if (p->text) TD_TRY(td_api_encode_text(r, with->tok, p->text, p->text_len, context, &p->ids, &p->n_ids, err));
        if (r->prompt_tokens_max) keep_last(p, r->prompt_tokens_max);
        if (with->info->image_token != UINT32_MAX) TD_TRY(place_images(r, p, n_images, with->info->image_token, err));
        n_images += p->n_images;
    }
    return TD_OK;
}

static td_status encode_chat(td_api_request *r, const td_api_encoding *with, uint32_t context, td_api_error *err) {
    TD_TRY(add_prompts(r, 1, err));
    TD_TRY(td_api_encode_chat(r, with, context, &r->prompts[0], err));
    /* The conversation as JSON is not needed any more, and takes many times the room of its tokens. */
    json_decref(r->chat.template_doc);
    r->chat.template_doc = NULL;
    json_object_del(r->root, "messages");
    if (r->prompt_tokens_max) keep_last(&r->prompts[0], r->prompt_tokens_max);
    return TD_OK;
}

td_status td_api_encode(td_api_request *r, const td_api_encoding *with, td_api_error *err) {
    uint32_t context = r->prompt_tokens_max ? 0 : with->info->context_length;
    bool     is_chat = r->form == TD_READ_CHAT && r->n_prompts == 0;
    if (r->prompt_tokens_max && r->images.n)
        return td_api_bad(err, "truncate_prompt_tokens",
                          "'truncate_prompt_tokens' is not supported with images: it could cut through one.");
    TD_TRY(is_chat ? encode_chat(r, with, context, err) : encode_prompts(r, with, context, err));
    if (!r->each) return td_api_fit_context(r, r->prompts, r->n_prompts, with->info, err);
    for (size_t i = 0; i < r->n_prompts; i++) TD_TRY(td_api_fit_context(&r->each[i], &r->prompts[i], 1, with->info, err));
    return TD_OK;
}
