#include "engine/step/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/math/rng.h"
#include "core/math/row_math.h"

#define BLOCK 1024 /* elements between two running sums of the inverse CDF */
#define BUCKETS 4096
#define BUCKETS_PER_E 64 /* buckets per unit of log-probability: 4096 / 64 = 64 units below the maximum */
#define APPLIED (1u << 31)

size_t td_sampler_bytes(uint32_t vocab) {
    return (size_t)vocab * (2 * sizeof(float) + sizeof(uint32_t) + sizeof(uint64_t));
}

td_status td_sampler_open(td_sampler *s, uint32_t vocab, td_error *err) {
    *s = (td_sampler){.vocab = vocab};
    s->work = calloc(vocab, sizeof *s->work);
    s->prob = calloc(vocab, sizeof *s->prob);
    s->count = calloc(vocab, sizeof *s->count);
    s->cand = calloc(vocab, sizeof *s->cand);
    if (s->work && s->prob && s->count && s->cand) return TD_OK;
    td_sampler_close(s);
    return td_fail(err, TD_ENOMEM, "out of memory for sampling from %u tokens", vocab);
}

void td_sampler_close(td_sampler *s) {
    free(s->work);
    free(s->prob);
    free(s->count);
    free(s->cand);
    *s = (td_sampler){0};
}

/* ---- steps 1 to 4 ---------------------------------------------------------------------------- */

static bool changes_logits(const td_sample_args *a) {
    const td_sampling *p = a->sampling;
    return p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0 || p->n_bias || a->n_banned ||
           a->allowed;
}

static void penalise(td_sampler *s, const td_sampling *p, const uint32_t *ids, uint32_t n) {
    float rep = (float)p->repetition_penalty;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ids[i], count = s->count[id];
        if (count & APPLIED) continue;
        float x = s->work[id];
        x = x > 0 ? x / rep : x * rep;
        if (count) x -= (float)(p->frequency_penalty * count + p->presence_penalty);
        s->work[id] = x;
        s->count[id] = count | APPLIED;
    }
}

static void rule_out(float *x, size_t n, const uint32_t *allowed) {
    for (size_t i = 0; i < n; i += 32) {
        if (allowed[i / 32] == UINT32_MAX) continue;
        for (size_t k = i; k < n && k < i + 32; k++) x[k] = allowed[i / 32] >> (k - i) & 1 ? x[k] : -INFINITY;
    }
}

static void change_logits(td_sampler *s, const td_sample_args *a) {
    const td_sampling *p = a->sampling;
    if (p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0) {
        uint32_t n_prompt = p->repetition_penalty != 1 ? a->n_prompt : 0;
        for (uint32_t i = 0; i < a->n_generated; i++) s->count[a->generated[i]]++;
        penalise(s, p, a->prompt, n_prompt);
        penalise(s, p, a->generated, a->n_generated);
        for (uint32_t i = 0; i < n_prompt; i++) s->count[a->prompt[i]] = 0;
        for (uint32_t i = 0; i < a->n_generated; i++) s->count[a->generated[i]] = 0;
    }
    for (size_t i = 0; i < p->n_bias; i++) s->work[p->bias_ids[i]] += p->bias[i];
    for (uint32_t i = 0; i < a->n_banned; i++) s->work[a->banned[i]] = -INFINITY;
    if (a->allowed) rule_out(s->work, s->vocab, a->allowed);
}

/* ---- sorting candidates ---------------------------------------------------------------------- */

/* Descending order of the key is descending logit, then ascending id. */
static uint64_t sort_key(float x, uint32_t id) {
    uint32_t bits;
    x += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 1u << 31;
    return (uint64_t)bits << 32 | ~id;
}

static uint32_t key_id(uint64_t key) {
    return ~(uint32_t)key;
}

static void sift_down(uint64_t *h, size_t root, size_t n) {
    uint64_t v = h[root];
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && h[child + 1] < h[child]) child++;
        if (v <= h[child]) break;
        h[root] = h[child];
    }
    h[root] = v;
}

/* Heap sort: qsort may allocate. */
static void sort_descending(uint64_t *h, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sift_down(h, i, n);
    for (size_t end = n; end-- > 1;) {
        uint64_t least = h[0];
        h[0] = h[end];
        h[end] = least;
        sift_down(h, 0, end);
    }
}

static uint32_t bucket_of(float z) { /* z <= 0 */
    float b = -z * BUCKETS_PER_E;
    return b < BUCKETS - 1 ? (uint32_t)b : BUCKETS - 1;
}

/* ---- steps 6 to 9 ---------------------------------------------------------------------------- */

/* In these, s->work holds z = (x - max) / temperature, and s->prob holds exp(z), or 0 for a token that was dropped. */

/* The tokens of one bucket that are left, in descending order, in s->cand. */
static uint32_t sort_bucket(td_sampler *s, uint32_t bucket) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->prob[i] > 0 && bucket_of(s->work[i]) == bucket) s->cand[n++] = sort_key(s->work[i], i);
    sort_descending(s->cand, n);
    return n;
}

/* Drop every token after `last` in descending order. */
static void drop_after(td_sampler *s, uint64_t last) {
    uint32_t last_id = key_id(last);
    float    least = s->work[last_id];
    for (uint32_t i = 0; i < s->vocab; i++) {
        bool keep = s->work[i] > least || (s->work[i] == least && i <= last_id);
        s->prob[i] = keep ? s->prob[i] : 0;
    }
}

static void keep_top_k(td_sampler *s, uint32_t k) {
    uint32_t count[BUCKETS] = {0}, bucket = 0;
    for (uint32_t i = 0; i < s->vocab; i++) count[bucket_of(s->work[i])] += s->prob[i] > 0;
    while (bucket + 1 < BUCKETS && count[bucket] < k) k -= count[bucket++];
    uint32_t n = sort_bucket(s, bucket);
    if (n) drop_after(s, s->cand[(k < n ? k : n) - 1]); /* n < k: fewer than k have a probability at all */
}

static void keep_top_p(td_sampler *s, double p) {
    double   mass[BUCKETS] = {0}, wanted = p * td_row_sum(s->prob, s->vocab), have = 0;
    uint32_t bucket = 0, at = 0;
    for (uint32_t i = 0; i < s->vocab; i++) mass[bucket_of(s->work[i])] += s->prob[i];
    while (bucket + 1 < BUCKETS && have + mass[bucket] < wanted) have += mass[bucket++];
    uint32_t n = sort_bucket(s, bucket);
    while (at < n && (have += s->prob[key_id(s->cand[at])]) < wanted) at++;
    if (at < n) drop_after(s, s->cand[at]); /* else rounding: p is as good as 1 */
}

static void keep_min_p(td_sampler *s, double min_p) {
    float least = (float)min_p; /* the largest is exp(0) = 1 */
    for (uint32_t i = 0; i < s->vocab; i++) s->prob[i] = s->prob[i] >= least ? s->prob[i] : 0;
}

/* The first id in begin..end-1 at which the running sum, which begins at `below`, passes target. Where rounding keeps the
 * sum from that, the last id with a probability. */
static uint32_t walk_to(const float *prob, uint32_t begin, uint32_t end, double below, double target) {
    uint32_t last = begin;
    for (uint32_t i = begin; i < end; i++) {
        if (!(prob[i] > 0)) continue;
        last = i;
        below += prob[i];
        if (below > target) break;
    }
    return last;
}

/* Inverse CDF, in ascending id. */
static uint32_t draw(const td_sampler *s, double u) {
    double   target = u * td_row_sum(s->prob, s->vocab), below = 0, sum = 0;
    uint32_t n = 0;
    for (uint32_t begin = 0; begin < s->vocab; begin += n, below += sum) {
        n = s->vocab - begin < BLOCK ? s->vocab - begin : BLOCK;
        sum = td_row_sum(s->prob + begin, n);
        if (below + sum > target) return walk_to(s->prob, begin, begin + n, below, target);
    }
    return walk_to(s->prob, 0, s->vocab, 0, INFINITY);
}

static bool is_greedy(const td_sampling *p) {
    return p->temperature < TD_TEMPERATURE_MIN || p->top_k == 1;
}

bool td_sample_takes_best(const td_sample_args *a, uint32_t n_best) {
    uint32_t k = a->sampling->top_k;
    return (is_greedy(a->sampling) || (k && k <= n_best)) && !changes_logits(a);
}

td_status td_sample(td_sampler *s, const float *logits, const td_sample_args *a, uint32_t *token) {
    const td_sampling *p = a->sampling;
    size_t             n = s->vocab;
    const float       *x = logits;
    float              max = td_row_max(logits, n);
    if (isnan(max)) return TD_EDEVICE;
    if (changes_logits(a)) {
        memcpy(s->work, logits, n * sizeof *logits);
        change_logits(s, a);
        x = s->work;
        max = td_row_max(x, n);
    }
    if (!isfinite(max)) return TD_EINVAL;
    if (is_greedy(p)) {
        *token = td_row_find(x, n, max);
        return TD_OK;
    }

    float inverse = (float)(1 / p->temperature);
    for (size_t i = 0; i < n; i++) s->work[i] = (x[i] - max) * inverse;
    td_row_exp(s->work, s->prob, n);
    if (p->top_k && p->top_k < n) keep_top_k(s, p->top_k);
    if (p->top_p < 1) keep_top_p(s, p->top_p);
    if (p->min_p > 0) keep_min_p(s, p->min_p);
    *token = draw(s, td_rng_uniform(a->seed, 0, a->n_generated));
    return TD_OK;
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

double td_log_sum_of(const float *logits, uint32_t vocab) {
    float max = td_row_max(logits, vocab);
    return (double)max + log((double)td_row_exp_sum(logits, vocab, max));
}

void td_logprobs(const float *logits, uint32_t vocab, double log_sum, uint32_t id, uint32_t n_top,
                 td_position_logprobs *out) {
    out->id = id;
    out->logprob = (float)((double)logits[id] - log_sum);
    out->n_top = n_top < vocab ? n_top : vocab;

    uint32_t have = 0;
    float    least = -INFINITY; /* the smallest logit in a full list */
    for (uint32_t i = 0; i < vocab && out->n_top; i++) {
        if (have == out->n_top && !(logits[i] > least)) continue;
        uint32_t at = have < out->n_top ? have++ : have - 1;
        for (; at > 0 && logits[i] > logits[out->top[at - 1].id]; at--) out->top[at] = out->top[at - 1];
        out->top[at].id = i;
        least = logits[out->top[have - 1].id];
    }
    for (uint32_t i = 0; i < have; i++) out->top[i].logprob = (float)((double)logits[out->top[i].id] - log_sum);
}
