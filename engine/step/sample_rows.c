/* Rows of logits to tokens and log-probabilities, on the expert threads, which are idle then. */
#include <math.h>

#include "core/log/trace.h"
#include "engine/engine_impl.h"

td_sample_args td_row_sample_args(const td_request *r) {
    uint32_t n = td_request_generated(r);
    return (td_sample_args){.sampling = &r->sampling,
                            .seed = r->seed,
                            .prompt = r->tokens,
                            .generated = r->tokens + r->n_prompt,
                            .n_prompt = r->n_prompt,
                            .n_generated = n,
                            .banned = r->stop_ids,
                            .n_banned = n < r->min_tokens ? r->n_stop_ids : 0};
}

/* Whether a job needs only the best logits of its row. Log-probabilities need these, the row's sum and their token's logit.
 * Sampling needs no more unless a grammar or the request changes the logits. For the row of a draft the request's state
 * before the draft decides: what changes logits behind the draft does so in front of it, too. */
bool td_row_takes_best(const td_engine *e, const td_row_job *job) {
    if (job->predicted <= TD_ROW_REJECTED)
        return true; /* log-probabilities; or a rejected draft, whose logits are not read and whose request may be gone */
    const td_request *r = e->step->entries[job->entry].request;
    td_sample_args    args = td_row_sample_args(r);
    return !r->form && td_sample_takes_best(&args, TD_MODEL_TOP);
}

/* The ids that the request's form allows next. A step that is run again finds the same. */
td_status td_row_allowed_ids(td_request *r, const uint32_t **allowed) {
    td_status st = r->form ? td_answer_form_mask(r->form, allowed) : TD_OK;
    return st == TD_EINVAL ? TD_ENOTSUP : st;
}

static void list_logprobs(const td_row_batch *batch, uint32_t item, uint32_t id, td_position_logprobs *out) {
    uint32_t          vocab = batch->e->limits.vocab;
    const float      *logits = batch->logits + (size_t)item * vocab;
    const td_request *r = batch->e->step->entries[batch->jobs[item].entry].request;
    double            log_sum = batch->logprobs[item].log_sum;
    td_logprobs(logits, vocab, isnan(log_sum) ? td_log_sum_of(logits, vocab) : log_sum, id, r->n_top_logprobs, out);
}

/* Do one job: sample from its row, or take log-probabilities from it. */
static void do_row(void *ctx, uint32_t item, const td_worker *w) {
    const td_row_batch *batch = ctx;
    td_engine          *e = batch->e;
    const td_row_job   *job = &batch->jobs[item];
    const float        *logits = batch->logits + (size_t)item * e->limits.vocab;
    td_request         *r = e->step->entries[job->entry].request;
    uint32_t            at = job->predicted;
    if (at == TD_ROW_REJECTED) return;
    if (at != TD_ROW_NEXT) {
        td_position_logprobs *to = at < r->n_prompt ? &r->prompt_positions[at] : &r->jumped[at - r->jumped_from];
        list_logprobs(batch, item, r->tokens[at], to);
        return;
    }
    td_row_result *result = &e->results[job->entry];
    td_sample_args args = td_row_sample_args(r);
    result->status = td_row_allowed_ids(r, &args.allowed);
    if (result->status != TD_OK) return;
    result->status = td_sample(&e->samplers[w->index], logits, &args, &result->token);
    if (result->status == TD_OK && r->logprobs) list_logprobs(batch, item, result->token, &result->logprobs);
}

void td_rows_sample(td_engine *e, td_row_batch *batch, uint32_t n) {
    td_trace_label label = {TD_TRACE_ENGINE, "sample", {"rows"}, {n}};
    uint64_t       begin = td_trace_begin();
    td_pool_label(e->expert_pool, &label);
    td_stats_phase(&e->stats, TD_STEP_SAMPLING, NULL);
    td_pool_run(e->expert_pool, do_row, batch, n);
    td_trace_end(begin, &label);
}
