#include "server/request/prompt_tokens.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

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

td_status td_api_refuse_too_long(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err) {
    *err = (td_api_error){.http = 400, .code = "context_length_exceeded"};
    (r->api && r->api->say_too_long ? r->api->say_too_long : say_too_long)(r, prompt_tokens, context, err);
    return TD_EINVAL;
}

td_status td_api_encode_text(const td_api_request *r, const td_tokenizer *tok, const char *text, size_t len,
                             uint32_t context, uint32_t **ids, size_t *n_ids, td_api_error *err) {
    const char *what = r->form == TD_READ_CHAT ? "messages" : "prompt";
    size_t      fewest = td_tokenizer_tokens_min(tok, len);
    if (context && fewest >= context) {
        td_api_refuse_too_long(r, fewest, context, err);
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

td_status td_api_fit_context(td_api_request *r, const td_api_prompt *prompts, size_t n_prompts, const td_engine_info *info,
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
    if (wanted > info->context_length) return td_api_refuse_too_long(r, longest, info->context_length, err);
    if (!r->length.has_max) r->length.max = (uint32_t)(room - longest);
    if (r->length.min > r->length.max)
        return td_api_bad(err, "min_tokens", "'min_tokens' is above the %u tokens that the context has left.",
                          r->length.max);
    return TD_OK;
}
