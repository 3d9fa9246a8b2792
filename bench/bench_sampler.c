/*
 * Sampling one token from a vocabulary of 129280 (DeepSeek-V3): microseconds per case, and how that compares with reading
 * the logits once. usage: bench_sampler [rounds]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/math/rng.h"
#include "engine/step/sampler.h"

#define VOCAB 129280

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 101;
    if (rounds == 0 || rounds > 100000) return 2;
    static float  logits[VOCAB];
    static double us[100000];
    uint32_t      history[4096], token = 0;
    for (uint32_t v = 0; v < VOCAB; v++) { /* normal, deviation 2.5: about as peaked as a language model's */
        double u = td_rng_uniform(1, 0, v), w = td_rng_uniform(1, 1, v);
        logits[v] = (float)(2.5 * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * w));
    }
    for (uint32_t i = 0; i < 4096; i++) history[i] = (uint32_t)(td_rng_u64(1, 2, i) % VOCAB);

    static const struct {
        const char *name;
        td_sampling sampling;
    } cases[] = {
        {"greedy", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}},
        {"temperature", {.temperature = 0.8, .top_p = 1, .repetition_penalty = 1}},
        {"top_k_50", {.temperature = 0.8, .top_k = 50, .top_p = 1, .repetition_penalty = 1}},
        {"top_p_0.95", {.temperature = 0.8, .top_p = 0.95, .repetition_penalty = 1}},
        {"top_p_0.95_flat", {.temperature = 5, .top_p = 0.95, .repetition_penalty = 1}},
        {"min_p_0.05", {.temperature = 0.8, .top_p = 1, .min_p = 0.05, .repetition_penalty = 1}},
        {"penalties_4096", {.temperature = 0, .top_p = 1, .repetition_penalty = 1.1, .frequency_penalty = 0.2}},
        {"logprobs_20", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}},
    };
    td_sampler s;
    td_error   err = {0};
    if (td_sampler_open(&s, VOCAB, &err) != TD_OK) return 1;
    printf("# tandem " TD_VERSION ", 1 thread, vocabulary %d, %zu rounds\n", VOCAB, rounds);
    printf("case,us_median,us_best,ns_per_logit\n");
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (size_t i = 0; i < rounds; i++) {
            td_position_logprobs top;
            td_sample_args       a = {.sampling = &cases[c].sampling,
                                      .seed = i,
                                      .prompt = history,
                                      .n_prompt = 2048,
                                      .generated = history + 2048,
                                      .n_generated = 2048};
            double               begin = now_us();
            if (c + 1 == sizeof cases / sizeof cases[0])
                td_logprobs(logits, VOCAB, td_log_sum_of(logits, VOCAB), token, 20, &top);
            else if (td_sample(&s, logits, &a, &token) != TD_OK)
                return 1;
            us[i] = now_us() - begin;
        }
        qsort(us, rounds, sizeof *us, by_value);
        printf("%s,%.1f,%.1f,%.3f\n", cases[c].name, us[rounds / 2], us[0], 1e3 * us[rounds / 2] / VOCAB);
    }
    td_sampler_close(&s);
    return 0;
}
