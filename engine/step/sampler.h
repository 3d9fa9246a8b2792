/*
 * From logits to a token, on the host.
 *
 * Order of the steps (that of SGLang and Hugging Face):
 *   1. repetition penalty r over the distinct tokens of prompt and output: x > 0 ? x / r : x * r   (CTRL, arXiv 1909.05858)
 *   2. frequency and presence penalty over the output:  x -= frequency * count + presence * (count > 0)
 *   3. logit bias:  x += bias
 *   4. ids that may not come yet (EOS and stop ids before min_tokens), and those that the grammar does not allow:  x = -inf
 *   5. temperature 0: the largest x, ties to the lowest id; else x /= temperature
 *   6. top-k: the k largest, ties to the lower id
 *   7. top-p: of those, renormalised, the shortest run in descending order whose probabilities add up to p; at least one
 *   8. min-p: of those, the ones with at least min_p times the largest probability
 *   9. inverse CDF of the rest, in ascending id, with td_rng_uniform(seed, 0, number of the generated token)
 * A token therefore depends on the logits, the request's own history, its seed and nothing else.
 */
#ifndef TD_ENGINE_STEP_SAMPLER_H
#define TD_ENGINE_STEP_SAMPLER_H

#include "tandem.h"

/** Temperatures below this are greedy: 1 / temperature would leave the range of f32 logits. */
#define TD_TEMPERATURE_MIN 1e-5

/** Scratch for one thread. */
typedef struct {
    uint32_t  vocab;
    float    *work;  /* [vocab] logits after penalties, then (x - max) / temperature */
    float    *prob;  /* [vocab] exp of the above, 0 for what was dropped */
    uint32_t *count; /* [vocab] zero between calls */
    uint64_t *cand;  /* [vocab] sortable (logit, id) pairs */
} td_sampler;

TD_NODISCARD td_status td_sampler_open(td_sampler *s, uint32_t vocab, td_error *err);
void                   td_sampler_close(td_sampler *s);
size_t                 td_sampler_bytes(uint32_t vocab);

typedef struct {
    const td_sampling *sampling;
    uint64_t           seed;
    const uint32_t    *prompt;    /* [n_prompt] */
    const uint32_t    *generated; /* [n_generated] */
    uint32_t           n_prompt, n_generated;
    const uint32_t    *banned; /* [n_banned] ids that may not come now */
    uint32_t           n_banned;
    const uint32_t    *allowed; /* [(vocab + 31) / 32] bit i: id i may come now; NULL: all may */
} td_sample_args;

/** Whether the n_best largest logits (ties to the lower id) decide the token, so that the others may be given as -inf. */
bool td_sample_takes_best(const td_sample_args *a, uint32_t n_best);

/**
 * Choose the token number n_generated of a request.
 * @param logits [vocab] f32. @return TD_EDEVICE when a logit is NaN or +inf; TD_EINVAL when every token is banned.
 */
TD_NODISCARD td_status td_sample(td_sampler *s, const float *logits, const td_sample_args *a, uint32_t *token);

/** log(sum(exp(x))) of a row of raw logits. */
double td_log_sum_of(const float *logits, uint32_t vocab);

/**
 * Log-probabilities of id and of the n_top best tokens: x - log_sum of the raw logits; ties to the lower id. The
 * others may be given as -inf.
 * @param log_sum td_log_sum_of the whole row. @param n_top 0..TD_LOGPROBS_MAX, at most vocab.
 */
void td_logprobs(const float *logits, uint32_t vocab, double log_sum, uint32_t id, uint32_t n_top,
                 td_position_logprobs *out);

#endif
