#include "probe_check.h"

#include <math.h>

#include "engine/step/sampler.h"
#include "fake_model.h"
#include "image/image.h"
#include "tests/td_test.h"

typedef struct {
    uint32_t *tokens; /* prompt and what follows */
    uint32_t  n_prompt, n;
    td_finish finish;
    uint32_t  stop_token;
    int       stop; /* stop string, or -1 */
    char     *text; /* [text_len] */
    size_t    text_len;
} outcome;

static bool in(const uint32_t *ids, size_t n, uint32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The text of the first n generated tokens, up to where it is whole characters (or with U+FFFD for what is not, at the end).
 */
static void decode(const td_tokenizer *tok, const outcome *o, uint32_t n, bool skip_special, char **text, size_t *len) {
    OK(td_tokenizer_decode(tok, o->tokens + o->n_prompt, n, skip_special, text, len));
}

/* The first end of a stop string in text that begins at or after `from`. */
static int find_stop(const td_request_params *p, const char *text, size_t len, size_t from, size_t *end) {
    for (*end = from + 1; *end <= len; ++*end) {
        int best = -1;
        for (size_t i = 0; i < p->n_stop; i++) {
            size_t n = strlen(p->stop[i]);
            if (n <= *end - from && !memcmp(text + *end - n, p->stop[i], n) && (best < 0 || n > strlen(p->stop[best])))
                best = (int)i;
        }
        if (best >= 0) return best;
    }
    return -1;
}

static outcome run_plain(const td_request_params *p, const td_tokenizer *tok, uint64_t kv_tokens, uint32_t context) {
    uint64_t     room = (kv_tokens < context ? kv_tokens : context) - p->n_prompt;
    uint32_t     max = p->max_tokens < room ? p->max_tokens : (uint32_t)room, banned[64], n_banned = 0;
    FREED float *logits = malloc(FAKE_VOCAB * sizeof *logits);
    outcome      o = {.n_prompt = (uint32_t)p->n_prompt, .n = (uint32_t)p->n_prompt, .stop_token = UINT32_MAX, .stop = -1};
    AT_END(td_sampler_close) td_sampler s;
    size_t                              armed_from = 0;
    OK(td_sampler_open(&s, FAKE_VOCAB, NULL));
    o.tokens = malloc((p->n_prompt + max + 1) * sizeof *o.tokens);
    memcpy(o.tokens, p->prompt, p->n_prompt * sizeof *o.tokens);
    for (size_t i = 0; i < p->n_images; i++)
        for (uint32_t at = 0; at < td_image_tokens(p->images[i].image); at++)
            o.tokens[p->images[i].first + at] = fake_image_row(p->images[i].image->rgb[0], at);
    if (!p->ignore_eos) banned[n_banned++] = FAKE_EOS;
    for (size_t i = 0; i < p->n_stop_ids; i++) banned[n_banned++] = p->stop_ids[i];
    if (max == 0) o.finish = TD_FINISH_LENGTH;
    while (o.finish == TD_FINISH_NONE) {
        uint32_t       n = o.n - o.n_prompt, token;
        td_sample_args a = WITH(td_sample_args, .sampling = &p->sampling, .seed = p->sampling.seed, .prompt = o.tokens,
                                .n_prompt = o.n_prompt, .generated = o.tokens + o.n_prompt, .n_generated = n,
                                .banned = banned, .n_banned = n < p->min_tokens ? n_banned : 0);
        fake_logits(o.tokens, o.n, o.n_prompt, logits);
        OK(td_sample(&s, logits, &a, &token));
        o.tokens[o.n++] = token;
        bool stops = in(banned, n_banned, token);
        free(o.text);
        decode(tok, &o, n + (!stops || p->include_stop), p->skip_special_tokens, &o.text, &o.text_len);
        size_t end;
        if (n + 1 < p->min_tokens) armed_from = o.text_len;
        /* An unfinished character at the end decodes to U+FFFD, which no stop string of the tests has. */
        if (!stops && n + 1 >= p->min_tokens && (o.stop = find_stop(p, o.text, o.text_len, armed_from, &end)) >= 0) {
            o.finish = TD_FINISH_STOP;
            o.text_len = p->include_stop ? end : end - strlen(p->stop[o.stop]);
        } else if (stops) {
            o.finish = TD_FINISH_STOP;
            o.stop_token = token;
        } else if (n + 1 == max) {
            o.finish = TD_FINISH_LENGTH;
        }
    }
    return o;
}

static void check_logprobs(const td_position_logprobs *got, const uint32_t *tokens, uint32_t at, uint32_t n_prompt,
                           uint32_t n_top) {
    float                logits[FAKE_VOCAB];
    td_position_logprobs want;
    fake_logits(tokens, at, n_prompt, logits);
    td_logprobs(logits, FAKE_VOCAB, td_log_sum_of(logits, FAKE_VOCAB), tokens[at], n_top, &want);
    assert_int_equal(got->id, want.id);
    assert_true(got->logprob == want.logprob);
    assert_int_equal(got->n_top, want.n_top);
    for (uint32_t i = 0; i < want.n_top; i++) {
        assert_int_equal(got->top[i].id, want.top[i].id);
        assert_true(got->top[i].logprob == want.top[i].logprob);
    }
}

void probe_check(const probe *p, const td_tokenizer *tok, uint64_t kv_tokens, uint32_t context) {
    outcome o = run_plain(&p->params, tok, kv_tokens, context);
    bool    cut = p->finish == TD_FINISH_ABORT;
    size_t  n = o.n - o.n_prompt;
    assert_int_equal(p->n_finish, 1);
    assert_false(p->half_character);
    if (cut)
        assert_true(p->n_tokens <= n);
    else
        assert_int_equal(p->n_tokens, n);
    if (p->n_tokens) assert_memory_equal(p->tokens, o.tokens + o.n_prompt, p->n_tokens * sizeof *p->tokens);
    assert_int_equal(p->last.prompt_tokens, p->params.n_prompt);
    assert_int_equal(p->last.completion_tokens, p->n_tokens);
    if (cut) {
        assert_true(p->text_len <= o.text_len + 3); /* an unfinished character may be U+FFFD in the longer text's place */
    } else {
        assert_int_equal(p->finish, o.finish);
        assert_int_equal(p->text_len, o.text_len);
        if (o.text_len) assert_memory_equal(p->text, o.text, o.text_len);
        assert_int_equal(p->stop_token, o.stop_token);
        if (o.stop >= 0)
            assert_string_equal(p->stop_reason, p->params.stop[o.stop]);
        else
            assert_int_equal(p->stop_reason[0], 0);
    }
    assert_int_equal(p->n_logprobs, p->params.logprobs ? p->n_tokens : 0);
    for (uint32_t i = 0; i < p->n_logprobs; i++)
        check_logprobs(&p->logprobs[i], o.tokens, o.n_prompt + i, o.n_prompt, p->params.n_top_logprobs);
    if (p->params.prompt_logprobs && !cut) {
        assert_int_equal(p->n_prompt_logprobs, p->params.n_prompt);
        assert_int_equal(p->prompt_logprobs_event, 1);
        assert_int_equal(p->prompt_logprobs[0].id, p->prompt[0]);
        assert_true(isnan(p->prompt_logprobs[0].logprob));
        for (uint32_t i = 1; i < o.n_prompt; i++)
            check_logprobs(&p->prompt_logprobs[i], o.tokens, i, o.n_prompt, p->params.n_top_logprobs);
    }
    free(o.tokens);
    free(o.text);
}

void probe_finish(td_engine *e, probe *p) {
    td_engine_info info;
    td_engine_get_info(e, &info);
    probe_wait(p);
    probe_check(p, td_engine_tokenizer(e), info.max_total_tokens, info.context_length);
    probe_free(p);
}

td_engine_stats idle_stats(td_engine *e) {
    td_engine_stats s;
    td_engine_get_stats(e, &s);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.queued, 0);
    assert_int_equal(s.queued_tokens, 0);
    assert_int_equal(s.kv_tokens_used, 0);
    return s;
}

void close_engine(td_engine *e) {
    idle_stats(e);
    td_engine_close(e, 10);
    if (fake_complaint()) fail_msg("%s", fake_complaint());
}
