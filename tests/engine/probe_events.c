#include "probe_events.h"
#include "tests/td_test.h"

#include <stdatomic.h>

static atomic_uint g_ends;

static bool whole_characters(const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)text[i];
        size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
        if (n == 0 || i + n > len) return false;
        for (size_t k = 1; k < n; k++)
            if (((unsigned char)text[i + k] & 0xc0) != 0x80) return false;
        i += n;
    }
    return true;
}

static void on_event(void *user, const td_event *ev) {
    probe *p = user;
    pthread_mutex_lock(&p->lock);
    p->n_events++;
    p->tokens = realloc(p->tokens, (p->n_tokens + ev->n_tokens + 1) * sizeof *p->tokens);
    if (ev->n_tokens) memcpy(p->tokens + p->n_tokens, ev->tokens, ev->n_tokens * sizeof *p->tokens);
    if (ev->logprobs) {
        p->logprobs = realloc(p->logprobs, (p->n_tokens + ev->n_tokens) * sizeof *p->logprobs);
        memcpy(p->logprobs + p->n_tokens, ev->logprobs, ev->n_tokens * sizeof *p->logprobs);
        p->n_logprobs += ev->n_tokens;
    }
    p->n_tokens += ev->n_tokens;
    if (ev->prompt_logprobs) {
        p->prompt_logprobs = realloc(p->prompt_logprobs, ev->n_prompt_logprobs * sizeof *p->prompt_logprobs);
        memcpy(p->prompt_logprobs, ev->prompt_logprobs, ev->n_prompt_logprobs * sizeof *p->prompt_logprobs);
        p->n_prompt_logprobs += ev->n_prompt_logprobs;
        p->prompt_logprobs_event = p->n_events;
    }
    p->text = realloc(p->text, p->text_len + ev->text_len + 1);
    memcpy(p->text + p->text_len, ev->text, ev->text_len);
    p->text_len += ev->text_len;
    if (!whole_characters(ev->text, ev->text_len)) p->half_character = true;
    p->last = *ev;
    if (ev->finish != TD_FINISH_NONE) {
        p->finish = ev->finish;
        p->n_finish++;
        p->end_number = atomic_fetch_add(&g_ends, 1);
        p->stop_token = ev->stop_token;
        if (ev->stop_reason) strncpy(p->stop_reason, ev->stop_reason, sizeof p->stop_reason - 1);
        if (ev->error) p->error = *ev->error;
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

probe *probe_new(const uint32_t *prompt, size_t n_prompt, uint32_t max_tokens) {
    probe *p = calloc(1, sizeof *p);
    p->prompt = malloc(n_prompt * sizeof *prompt);
    memcpy(p->prompt, prompt, n_prompt * sizeof *prompt);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    td_request_params_init(&p->params);
    p->params.prompt = p->prompt;
    p->params.n_prompt = n_prompt;
    p->params.max_tokens = max_tokens;
    p->params.sampling.temperature = 0;
    p->params.on_event = on_event;
    p->params.user = p;
    return p;
}

void probe_submit(td_engine *e, probe *p) {
    td_error err = {0};
    if (td_engine_submit(e, &p->params, &p->request, &err) != TD_OK) fail_msg("refused: %s", err.text);
}

void probe_wait_tokens(probe *p, size_t n) {
    pthread_mutex_lock(&p->lock);
    while (p->finish == TD_FINISH_NONE && p->n_tokens < n) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void probe_wait(probe *p) {
    probe_wait_tokens(p, SIZE_MAX);
}

void probe_free(probe *p) {
    td_request_release(p->request);
    td_grammar_release(p->grammar);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p->prompt);
    free(p->tokens);
    free(p->logprobs);
    free(p->prompt_logprobs);
    free(p->text);
    free(p);
}

td_engine_options engine_options(uint64_t kv_tokens, uint32_t chunk, uint32_t max_running) {
    td_engine_options o;
    td_engine_options_init(&o);
    o.model_path = TD_SOURCE_DIR "/models/tale-v3-14m";
    o.max_total_tokens = kv_tokens;
    o.chunked_prefill_size = chunk;
    o.max_running_requests = max_running;
    o.cpuinfer = 2;
    o.subpool_count = 1;
    o.decode_log_interval = 0;
    return o;
}

td_engine *engine_open(const td_engine_options *o) {
    td_engine *e;
    td_error   err = {0};
    if (td_engine_open(o, &e, &err) != TD_OK) fail_msg("%s", err.text);
    return e;
}
