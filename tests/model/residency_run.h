/* A model whose experts move, for tests: its logits with some of them on the device, in whatever placement, beside those
 * with all on the CPU. */
#ifndef TD_TESTS_RESIDENCY_RUN_H
#define TD_TESTS_RESIDENCY_RUN_H

#include "core/math/rng.h"
#include "model_run.h"
#include "residency/resident_experts.h"
#include "tests/td_test.h"

#define PROMPT 40
#define N_SEQ 3

/* What happens to the folder of a model with experts on the device, when its prompts are through. NULL: nothing. */
static void (*residency_midway)(const char *folder);
static td_residency_counts residency_counts; /* of the last run */

static inline td_residency_counts counts_of(const model_run *r) {
    td_model_work work;
    td_model_get_work(r->model, &work);
    return work.residency;
}

/* Whether experts have come to the device; of drawn ones some came and went. */
static inline bool have_moved(const model_run_options *o, const td_residency_counts *c) {
    return c->hits && (!o->residency_seed || residency_midway || c->uploads > c->resident);
}

/* Logits [o->max_len, N_SEQ, vocab]: prompts in chunks, then a token of each sequence in a step. */
static inline float *run_model(const model_run_options *o, uint32_t *vocab) {
    AT_END(model_run_close) model_run r;
    model_run_open(&r, o);
    const td_model_config *c = td_model_get_config(r.model);
    *vocab = c->vocab;
    const uint32_t tokens = o->max_len;
    float         *out = calloc((size_t)tokens * N_SEQ * c->vocab, sizeof *out);
    uint32_t      *ids[N_SEQ];
    assert_non_null(out);
    for (uint32_t s = 0; s < N_SEQ; s++) {
        ids[s] = malloc(tokens * sizeof *ids[s]);
        for (uint32_t i = 0; i < tokens; i++) ids[s][i] = (uint32_t)(td_rng_u64(11, s, i) % c->vocab);
    }
    model_piece pieces[N_SEQ];
    for (uint32_t at = 0, n; at < tokens; at += n) {
        n = at < PROMPT ? 10 : 1;
        if (at == PROMPT && residency_midway && o->device_experts) residency_midway(o->path);
        for (uint32_t s = 0; s < N_SEQ; s++)
            pieces[s] = (model_piece){.seq = s, .first = at, .n = n, .ids = ids[s] + at, .absorbed = at >= PROMPT};
        const td_step_rows *step = model_run_forward(&r, pieces, N_SEQ);
        model_run_logits(&r, step->n_tok, out + (size_t)at * N_SEQ * c->vocab);
    }
    /* Uploads have a thread of their own, which may have had no turn yet: the last step is run again until it had. */
    for (residency_counts = counts_of(&r); o->device_experts && !have_moved(o, &residency_counts);
         residency_counts = counts_of(&r))
        model_run_forward(&r, pieces, N_SEQ);
    for (uint32_t s = 0; s < N_SEQ; s++) free(ids[s]);
    const td_residency_counts *counts = &residency_counts;
    assert_int_equal(counts->slots,
                     td_moe_layers_in(c, (td_layer_range){0, c->n_layers + c->n_mtp_layers}) * o->device_experts);
    if (o->device_experts) {
        assert_int_equal(counts->failed, 0);
        assert_true(counts->misses && counts->resident <= counts->slots);
        if (o->residency_seed && o->stream_experts) {
            assert_int_equal(counts->stream.failed, 0);
            assert_true(counts->stream.steps && counts->streamed);
        }
        assert_int_equal(counts->drops, o->drop_experts);
    }
    return out;
}

/* Placements of the policy's choice, then drawn ones, on each of the devices; in the first drawn ones sums come ahead. What is wanted is what the first of them
 * gives with all experts on the CPU. @param decoded tokens of a sequence, behind its prompt @param devices ends with NULL */
static inline void check_residency(model_run_options o, uint32_t resident, uint32_t decoded, const char *const *devices) {
    uint32_t   vocab;
    const bool streams = o.stream_experts;
    o.stream_experts = false;
    o.n_seq = N_SEQ, o.max_len = PROMPT + decoded, o.max_tok = N_SEQ * PROMPT, o.device = devices[0];
    FREED float *want = run_model(&o, &vocab);
    o.device_experts = resident;
    o.stream_experts = streams;
    for (uint64_t seed = 0; seed < 3; seed++)
        for (const char *const *d = devices; *d; d++) {
            o.residency_seed = seed;
            o.sums_ahead = seed == 1;
            o.device = *d;
            FREED float *got = run_model(&o, &vocab);
            assert_memory_equal(got, want, (size_t)o.max_len * N_SEQ * vocab * sizeof *got);
        }
}

#endif
