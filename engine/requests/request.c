#include "engine/requests/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "npu/npu.h"

void td_request_params_init(td_request_params *p) {
    *p = (td_request_params){
        .max_tokens = 16, .skip_special_tokens = true, .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
}

/* ---- checking -------------------------------------------------------------------------------- */

static td_status check_range(const char *name, double v, double low, double high, td_error *err) {
    if (v >= low && v <= high) return TD_OK;
    return td_fail(err, TD_EINVAL, "%s: %g is outside [%g, %g]", name, v, low, high);
}

static td_status check_ids(const char *name, const uint32_t *ids, size_t n, size_t limit, uint32_t vocab, td_error *err) {
    if (n > limit) return td_fail(err, TD_EINVAL, "%s: %zu ids given, at most %zu are allowed", name, n, limit);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return td_fail(err, TD_EINVAL, "%s: token id %u is outside the vocabulary of %u", name, ids[i], vocab);
    return TD_OK;
}

static td_status check_sampling(const td_sampling *s, uint32_t vocab, td_error *err) {
    TD_TRY(check_range("temperature", s->temperature, 0, 100, err));
    TD_TRY(check_range("top_p", s->top_p, 0, 1, err));
    if (s->top_p == 0) return td_fail(err, TD_EINVAL, "top_p: must be greater than 0");
    TD_TRY(check_range("min_p", s->min_p, 0, 1, err));
    TD_TRY(check_range("frequency_penalty", s->frequency_penalty, -2, 2, err));
    TD_TRY(check_range("presence_penalty", s->presence_penalty, -2, 2, err));
    TD_TRY(check_range("repetition_penalty", s->repetition_penalty, 0.01, 100, err));
    TD_TRY(check_ids("logit_bias", s->bias_ids, s->n_bias, TD_BIAS_MAX, vocab, err));
    for (size_t i = 0; i < s->n_bias; i++)
        if (!isfinite(s->bias[i]) || fabsf(s->bias[i]) > 1e6f)
            return td_fail(err, TD_EINVAL, "logit_bias: %g is not a usable bias", (double)s->bias[i]);
    return TD_OK;
}

/* The tokens that stand for images are those of the images, in order. */
static td_status check_images(const td_request_params *p, uint32_t image_token, td_error *err) {
    if (image_token == UINT32_MAX && p->n_images)
        return td_fail(err, TD_ENOTSUP, "images: the model is served for text only, and takes none");
    size_t at = 0;
    for (size_t i = 0; image_token != UINT32_MAX && i <= p->n_images; i++) {
        const size_t first = i < p->n_images ? p->images[i].first : p->n_prompt;
        const size_t n = i < p->n_images ? td_image_tokens(p->images[i].image) : 0;
        if (first < at || first > p->n_prompt || n > p->n_prompt - first)
            return td_fail(err, TD_EINVAL, "images: number %zu is not behind the others, within the prompt", i + 1);
        while (at < first && p->prompt[at] != image_token) at++;
        if (at < first)
            return td_fail(err, TD_EINVAL, "prompt: token %zu is %u, which stands for an image, and there is none", at,
                           image_token);
        while (at < first + n && p->prompt[at] == image_token) at++;
        if (at < first + n)
            return td_fail(err, TD_EINVAL, "images: token %zu of the prompt is not %u, which stands for number %zu", at,
                           image_token, i + 1);
    }
    return TD_OK;
}

static td_status check_params(const td_request_params *p, const td_request_limits *l, td_error *err) {
    if (!p->on_event) return td_fail(err, TD_EINVAL, "on_event: a request needs a callback");
    if (p->n_prompt == 0) return td_fail(err, TD_EINVAL, "prompt: it is empty");
    size_t needed = p->n_prompt + (p->max_tokens > 0);
    if (needed > l->context_length)
        return td_fail(err, TD_EINVAL, "prompt: its %zu tokens do not fit the context length of %u%s", p->n_prompt,
                       l->context_length, p->max_tokens ? " with one more" : "");
    if (needed > l->kv_tokens)
        return td_fail(err, TD_EINVAL, "prompt: its %zu tokens do not fit the KV capacity of %llu%s", p->n_prompt,
                       (unsigned long long)l->kv_tokens, p->max_tokens ? " with one more" : "");
    TD_TRY(check_ids("prompt", p->prompt, p->n_prompt, SIZE_MAX, l->vocab, err));
    TD_TRY(check_images(p, l->image_token, err));
    TD_TRY(check_ids("stop_token_ids", p->stop_ids, p->n_stop_ids, TD_STOP_IDS_MAX, l->vocab, err));
    if (p->max_tokens == 0 && !p->prompt_logprobs)
        return td_fail(err, TD_EINVAL, "max_tokens: 0 makes sense with prompt logprobs only");
    if (p->min_tokens > p->max_tokens)
        return td_fail(err, TD_EINVAL, "min_tokens: %u is more than max_tokens %u", p->min_tokens, p->max_tokens);
    if (p->n_top_logprobs > TD_LOGPROBS_MAX)
        return td_fail(err, TD_EINVAL, "top_logprobs: %u is more than %d", p->n_top_logprobs, TD_LOGPROBS_MAX);
    if (p->n_stop && !l->tokenizer) return td_fail(err, TD_EINVAL, "stop: the model was loaded without a tokenizer");
    return check_sampling(&p->sampling, l->vocab, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void *copy_of(const void *src, size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (p && bytes) memcpy(p, src, bytes);
    return p;
}

static void request_free(td_request *r) {
    td_waker_release(r->waker);
    free((void *)r->sampling.bias_ids);
    free((void *)r->sampling.bias);
    free(r->stop_ids);
    if (r->keys != r->tokens) free(r->keys);
    free(r->tokens);
    td_request_images_close(&r->images);
    free(r->pages);
    free(r->windows.table);
    free(r->prompt_positions);
    td_detok_free(r->detok);
    td_answer_form_close(r->form);
    free(r->jumped);
    td_stream_text_close(&r->text);
    free(r);
}

static td_status fill(td_request *r, const td_request_params *p, const td_request_limits *l, td_error *err) {
    uint64_t room = (l->context_length < l->kv_tokens ? l->context_length : l->kv_tokens) - p->n_prompt;
    r->n_prompt = r->n_tokens = r->n_told = (uint32_t)p->n_prompt;
    r->draft = TD_NO_DRAFT;
    r->state = (td_request_state)TD_REQUEST_STATE_IDLE;
    r->jumps = p->grammar && !p->sampling.n_bias; /* with a bias the request has a say in how its text is cut into tokens */
    r->max_tokens = p->max_tokens < room ? p->max_tokens : (uint32_t)room;
    r->min_tokens = p->min_tokens;
    r->include_stop = p->include_stop;
    r->logprobs = p->logprobs;
    r->prompt_logprobs = p->prompt_logprobs;
    r->n_top_logprobs = p->n_top_logprobs;
    r->priority = p->priority;
    r->on_event = p->on_event;
    r->user = p->user;

    size_t n_all = (size_t)r->n_prompt + r->max_tokens, n_eos = p->ignore_eos ? 0 : l->n_eos;
    r->sampling = p->sampling;
    r->sampling.bias_ids = copy_of(p->sampling.bias_ids, p->sampling.n_bias * sizeof(uint32_t));
    r->sampling.bias = copy_of(p->sampling.bias, p->sampling.n_bias * sizeof(float));
    r->stop_ids = malloc((p->n_stop_ids + n_eos + 1) * sizeof *r->stop_ids);
    r->tokens = malloc(n_all * sizeof *r->tokens);
    r->keys = p->n_images ? malloc(n_all * sizeof *r->keys) : r->tokens;
    r->pages = malloc((n_all / TD_KV_PAGE + 1) * sizeof *r->pages);
    r->windows.table = malloc((n_all / TD_KV_PAGE + 1) * sizeof *r->windows.table);
    if (!r->sampling.bias_ids || !r->sampling.bias || !r->stop_ids || !r->tokens || !r->keys || !r->pages ||
        !r->windows.table || td_request_images_open(&r->images, p->images, p->n_images) != TD_OK ||
        (l->tokenizer && td_detok_create(l->tokenizer, p->skip_special_tokens, &r->detok) != TD_OK))
        return td_fail(err, TD_ENOMEM, "out of memory for a request");
    memcpy(r->tokens, p->prompt, p->n_prompt * sizeof *r->tokens);
    if (r->keys != r->tokens) memcpy(r->keys, p->prompt, p->n_prompt * sizeof *r->keys);
    for (size_t i = 0; i < n_eos; i++) r->stop_ids[r->n_stop_ids++] = l->eos_ids[i];
    for (size_t i = 0; i < p->n_stop_ids; i++) r->stop_ids[r->n_stop_ids++] = p->stop_ids[i];
    return td_stream_text_open(&r->text, p->stop, p->n_stop, p->include_stop, err);
}

td_status td_request_create(const td_request_params *p, const td_request_limits *limits, td_waker *waker, td_request **out,
                            td_error *err) {
    *out = NULL;
    TD_TRY(check_params(p, limits, err));
    td_request *r = calloc(1, sizeof *r);
    if (!r) return td_fail(err, TD_ENOMEM, "out of memory for a request");
    atomic_init(&r->refs, 1);
    atomic_init(&r->cancelled, false);
    r->waker = td_waker_hold(waker);
    td_status st = fill(r, p, limits, err);
    if (st != TD_OK) {
        request_free(r);
        return st;
    }
    *out = r;
    return TD_OK;
}

void td_request_hold(td_request *r) {
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void td_request_release(td_request *r) {
    if (r && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) request_free(r);
}

void td_request_cancel(td_request *r) {
    atomic_store_explicit(&r->cancelled, true, memory_order_relaxed);
    td_waker_wake(r->waker);
}

td_status td_request_jump(td_request *r) {
    uint32_t room = r->n_prompt + r->max_tokens - r->n_tokens, n = 0;
    if (!r->jumps || !room) return TD_OK;
    TD_TRY(td_answer_form_jump(r->form, r->tokens + r->n_tokens, room, &n));
    if (!n) return TD_OK;
    if (r->logprobs) {
        td_position_logprobs *jumped = realloc(r->jumped, n * sizeof *jumped);
        if (!jumped) return TD_ENOMEM;
        r->jumped = jumped;
        r->jumped_from = r->n_tokens;
        r->n_jumped = n;
    }
    if (r->keys != r->tokens) memcpy(r->keys + r->n_tokens, r->tokens + r->n_tokens, n * sizeof *r->keys);
    r->n_tokens += n;
    r->complete = n == room || td_answer_form_must_end(r->form);
    return TD_OK;
}

bool td_request_stops_at(const td_request *r, uint32_t id) {
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}
