/* What tests of whole models on cards share: golden outputs (tests/data/golden/README.md), their errors, and a prompt whole,
 * in chunks, and beside others. */
#ifndef TD_TESTS_GOLDEN_RUN_H
#define TD_TESTS_GOLDEN_RUN_H

#include <math.h>

#include "golden_files.h"

#define TOKENS_MAX 512
#define CARD_FACTOR 1.5 /* a card's error may be so many times the host's */
#define CARD_SLACK 0.02 /* beyond CARD_FACTOR times the host's error, a card's may be larger by this */
#define MTP_SLACK 0.1
#define ONE_BY_ONE_MAX 40 /* tokens of prompts that go token by token; with TD_TEST_FULL all do */

/* key: "logits" or "mtp_logits". */
static inline float *read_logits(const char *folder, json_t *prompt, const char *key, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "tests/data/golden/%s/%s", folder,
             json_string_value(json_object_get(json_object_get(prompt, key), "file")));
    return read_array(path, n, sizeof(float));
}

/* Pieces of `chunk` tokens of sequence 0. */
static inline void run_in_chunks(model_run *r, const uint32_t *ids, uint32_t n, uint32_t chunk, bool absorbed,
                                 float *logits) {
    size_t vocab = td_model_get_config(r->model)->vocab;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        model_run_forward(r, &(model_piece){.first = at, .n = len, .ids = ids + at, .absorbed = absorbed}, 1);
        model_run_logits(r, len, logits + (size_t)at * vocab);
    }
}

/* Pieces of `chunk` tokens of sequence 0 through the MTP layer; fed [n + 1]: the prompt and the token behind it. */
static inline void run_mtp_in_chunks(model_run *r, const uint32_t *fed, uint32_t n, uint32_t chunk, bool absorbed,
                                     float *logits) {
    size_t vocab = td_model_get_config(r->model)->vocab;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        model_run_forward(r, &(model_piece){.first = at, .n = len, .ids = fed + at, .absorbed = absorbed}, 1);
        model_run_mtp_logits(r, fed + at + 1, len, logits + (size_t)at * vocab);
    }
}

/* If there are golden outputs of the MTP layer, the card's first n rows must be as near to them as the host's, as a prompt
 * and token by token, absorbed. Chunks of 5 must give the same bits. The layer stands behind all others: a row that one of
 * those sends to another expert is among the keys of all later rows here, so a median does not keep it out: hence MTP_SLACK.
 * One norm's weights in place of another's are 0.3 off, a row's own token in place of the next one 1.1. */
static inline void check_mtp(model_run *host, model_run *card, const char *folder, json_t *prompt, uint32_t n) {
    uint32_t fed[TOKENS_MAX + 1], all = read_ids(json_object_get(prompt, "ids"), fed, TOKENS_MAX);
    size_t   vocab = td_model_get_config(card->model)->vocab, values = n * vocab;
    if (!json_object_get(prompt, "mtp_logits")) return;
    assert_true(n <= all);
    fed[all] = (uint32_t)json_integer_value(json_array_get(json_object_get(prompt, "greedy"), 0));
    FREED float *want = read_logits(folder, prompt, "mtp_logits", all * vocab), *whole = malloc(values * sizeof *whole),
                *got = malloc(values * sizeof *got);
    assert_true(whole && got);
    bool one_by_one = n <= ONE_BY_ONE_MAX || getenv("TD_TEST_FULL");
    for (int absorbed = 0; absorbed < 1 + one_by_one; absorbed++) {
        uint32_t chunk = absorbed ? 1 : n;
        run_mtp_in_chunks(host, fed, n, chunk, absorbed, got);
        double of_host = median_distance(got, want, n, vocab);
        run_mtp_in_chunks(card, fed, n, chunk, absorbed, absorbed ? got : whole);
        double of_card = median_distance(absorbed ? got : whole, want, n, vocab);
        print_message("    %s, MTP layer, %u tokens%s: host %.4f, card %.4f\n", folder, n, absorbed ? " one by one" : "",
                      of_host, of_card);
        assert_true(of_card <= CARD_FACTOR * of_host + MTP_SLACK);
    }
    run_mtp_in_chunks(card, fed, n, 5, false, got);
    assert_memory_equal(got, whole, values * sizeof *got);
}

/* Sequence 1 beside two others of the same step. */
static inline void run_in_company(model_run *r, const uint32_t *ids, uint32_t n, float *logits) {
    size_t       vocab = td_model_get_config(r->model)->vocab;
    uint32_t     first = n / 3, rows = first + n + 1;
    FREED float *all = malloc((size_t)rows * vocab * sizeof *all);
    assert_non_null(all);
    model_run_forward(
        r,
        (model_piece[]){{.seq = 0, .n = first, .ids = ids}, {.seq = 1, .n = n, .ids = ids}, {.seq = 2, .n = 1, .ids = ids}},
        3);
    model_run_logits(r, rows, all);
    memcpy(logits, all + (size_t)first * vocab, (size_t)n * vocab * sizeof *logits);
}

#define MIXED_MAX 40 /* tokens of the longer prompt */

/* Two prompts, of n_long and n_short tokens, and a generated token of a third sequence in one step, twice: the second time
 * is a replay with nothing changed. The same bits as *want, or what becomes *want, malloc'd. */
static inline void run_mixed(model_run *r, uint32_t n_long, uint32_t n_short, float **want) {
    uint32_t     ids[MIXED_MAX], rows = n_long + n_short + 1;
    size_t       values = rows * (size_t)td_model_get_config(r->model)->vocab;
    FREED float *got = malloc(values * sizeof *got);
    assert_true(got && n_long <= MIXED_MAX);
    for (uint32_t i = 0; i < n_long; i++) ids[i] = 2 + i * 37 % 300;
    model_run_forward(r, &(model_piece){.seq = 2, .n = 9, .ids = ids}, 1);
    for (int again = 0; again < 2; again++) {
        model_run_forward(r,
                          (model_piece[]){{.seq = 0, .n = n_long, .ids = ids},
                                          {.seq = 1, .n = n_short, .ids = ids + 3},
                                          {.seq = 2, .first = 9, .n = 1, .ids = ids + 9, .absorbed = true}},
                          3);
        model_run_logits(r, rows, got);
        if (*want)
            assert_memory_equal(got, *want, values * sizeof *got);
        else
            *want = memcpy(malloc(values * sizeof *got), got, values * sizeof *got);
    }
}

#endif
