/*
 * Drafting: the MTP (multi-token prediction) layer behind a step.
 *
 * DESIGN. When a step's tokens are handed out, the layer runs over the step's rows. Each row is fed the token that follows
 * its own, and the layer's cache gets a row for every position, as the main model's does. A request's last row then
 * predicts what follows its newest token: the draft. It is sampled as the request would sample, with the same random
 * number, so it is the next token wherever the layer's distribution is near enough to the model's. The next step computes
 * the draft as a row behind the newest token's, in the form of a generated token. If the token that is then sampled is the
 * draft, the draft's row is already that token's, and gives another one (step_loop.c). Otherwise nothing of the row is
 * used: its KV is overwritten by the row of the token that came. So is its row of a recurrent layer's open block, and a
 * state behind it is dropped (engine/kv/request_state.h).
 *
 * Nothing here can change a token, so nothing here can fail a request: a layer that fails drafts nothing.
 *
 * The layer's rows are computed while the gate is on (draft_gate.h), and those of prompts also while it is on for fewer
 * requests than run. A request with a gap in its rows goes on without drafts. Pages of the prefix cache hold the layer's
 * rows, too. The row of a page's last token was fed the token that followed in the sequence that published the page, and
 * rows are missing where the gate was off. So drafts may be worse behind such pages; the tokens are the same.
 */
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "engine/engine_impl.h"

td_status td_drafts_open(td_engine *e, td_error *err) {
    if (!e->config.drafts) return TD_OK;
    td_draft_gate_open(&e->drafts.gate, e->config.draft_always);
    e->stats.s.has_drafts = true;
    e->stats.s.draft_gain = 1;
    e->drafts.next = calloc(e->scheduler.step.rows.max_tok, sizeof *e->drafts.next);
    return e->drafts.next ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for drafting");
}

void td_drafts_close(td_engine *e) {
    free(e->drafts.next);
}

/* The token that follows the last row of entry i, its draft aside; 0 if it is not known. */
static uint32_t token_behind(const td_engine *e, uint32_t i) {
    const td_step_entry *entry = &e->step->entries[i];
    const td_request    *r = entry->request;
    uint32_t             end = entry->first_pos + entry->n_rows;
    if (end < r->n_tokens) return r->tokens[end];
    return e->results[i].status == TD_OK ? e->results[i].token : 0;
}

/* Whether the layer's cache has a row for every token in front of the entry's. */
static bool is_whole(const td_step_entry *entry) {
    return entry->request && entry->request->n_layer >= entry->first_pos;
}

void td_drafts_note(td_engine *e) {
    const td_step_rows *rows = &e->step->rows;
    e->drafts.prompts = false;
    for (uint32_t i = 0; i < e->step->n_entries; i++) {
        const td_step_entry *entry = &e->step->entries[i];
        uint32_t             last = entry->first_row + entry->n_rows - 1;
        for (uint32_t row = entry->first_row; row < last; row++) e->drafts.next[row] = rows->token[row + 1];
        e->drafts.next[last] = token_behind(e, i);
        if (entry->drafted) e->drafts.next[last + 1] = 0; /* not known until the draft is accepted */
        if (entry->first_pos < entry->request->n_prompt && is_whole(entry)) e->drafts.prompts = true;
    }
}

static bool anybody_whole(const td_scheduled_step *s) {
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (is_whole(&s->entries[i])) return true;
    return false;
}

static bool run_layer(td_engine *e) {
    const td_scheduled_step *s = e->step;
    td_status                st = td_model_mtp(e->placed.model, e->drafts.next);
    if (st != TD_OK) {
        td_warn("the MTP layer failed (%s): the requests of the step go on without drafts",
                td_model_why(e->placed.model, st));
        return false;
    }
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (is_whole(&s->entries[i])) s->entries[i].request->n_layer = s->entries[i].request->n_computed;
    return true;
}

/* List a row for each request that can draft: the row that predicts what follows its newest token. @return how many. */
static uint32_t list_jobs(td_engine *e) {
    const td_scheduled_step *s = e->step;
    uint32_t                 n = 0;
    for (uint32_t i = 0; i < s->n_entries; i++) {
        const td_step_entry *entry = &s->entries[i];
        const td_request    *r = entry->request;
        if (!r || !entry->last || r->n_layer != r->n_computed || r->n_tokens != r->n_computed + 1 || r->complete ||
            r->n_tokens + 1 >= r->n_prompt + r->max_tokens)
            continue;
        e->jobs[n++] = (td_row_job){
            .entry = i, .row = entry->first_row + r->n_computed - 1 - entry->first_pos, .predicted = TD_ROW_NEXT};
    }
    return n;
}

static void draft_row(void *ctx, uint32_t item, const td_worker *w) {
    const td_row_batch *batch = ctx;
    td_engine          *e = batch->e;
    td_request         *r = e->step->entries[batch->jobs[item].entry].request;
    const float        *logits = batch->logits + (size_t)item * e->limits.vocab;
    td_sample_args      args = td_row_sample_args(r);
    double              log_sum = batch->logprobs[item].log_sum;
    uint32_t            token;
    if (td_row_allowed_ids(r, &args.allowed) != TD_OK || td_sample(&e->samplers[w->index], logits, &args, &token) != TD_OK)
        return;
    if (e->drafts.least > 0 && isnan(log_sum)) log_sum = td_log_sum_of(logits, e->limits.vocab);
    if (e->drafts.least <= 0 || exp((double)logits[token] - log_sum) >= e->drafts.least) r->draft = token;
}

static void draft(td_engine *e) {
    uint32_t     n = list_jobs(e);
    td_row_batch batch = {.e = e, .jobs = e->jobs, .logprobs = e->job_logprobs};
    for (uint32_t left = n, now; left; left -= now, batch.jobs += now) {
        now = left < e->config.model.max_out ? left : e->config.model.max_out;
        for (uint32_t i = 0; i < now; i++) {
            e->job_rows[i] = batch.jobs[i].row;
            e->job_best[i] = td_row_takes_best(e, &batch.jobs[i]);
            e->job_logprobs[i] = (td_out_logprobs){.wanted = e->drafts.least > 0, .id = UINT32_MAX, .log_sum = (double)NAN};
        }
        td_out_rows out = {.row = e->job_rows, .best = e->job_best, .logprobs = e->job_logprobs, .n = now};
        td_status   st = td_model_mtp_head(e->placed.model, out, &batch.logits);
        if (st != TD_OK) {
            td_warn("the MTP layer's head failed (%s): nothing is drafted", td_model_why(e->placed.model, st));
            return;
        }
        td_pool_run(e->expert_pool, draft_row, &batch, now);
    }
}

/* The step's drafts and the gate's gain go into the statistics. */
static void count(td_engine *e, const td_draft_step *step, uint32_t n_accepted) {
    double gain = td_draft_gate_gain(&e->drafts.gate, step->n_seq);
    pthread_mutex_lock(&e->stats.lock);
    td_engine_stats *t = &e->stats.s;
    t->drafts_verified += step->n_drafts;
    t->drafts_accepted += n_accepted;
    t->drafted_steps += step->n_drafts > 0;
    t->drafted_seqs += step->n_drafts > 0 ? step->n_seq : 0;
    t->drafted_tokens += step->n_drafts > 0 ? step->n_tokens : 0;
    t->draft_gain = gain;
    pthread_mutex_unlock(&e->stats.lock);
}

void td_drafts_run(td_engine *e, uint32_t n_accepted, double seconds) {
    const td_scheduled_step *s = e->step;
    const uint32_t           n_running = e->scheduler.n_running;
    td_draft_gate           *gate = &e->drafts.gate;
    td_draft_step            step = {
                   .n_seq = s->n_entries, .n_drafts = s->n_drafts, .n_tokens = s->n_entries + n_accepted, .step_s = seconds};
    bool     decodes = s->rows.n_tok == s->n_entries + s->n_drafts && s->n_prefill == 0;
    bool     on = decodes ? td_draft_gate_is_on(gate, s->n_entries) : td_draft_gate_is_on_up_to(gate, s->n_entries);
    double   begin_s = td_now_s();
    uint64_t begin = td_trace_begin();
    /* A prompt's rows are computed even if its request has ended, since the prefix cache keeps its pages. */
    if (on && (e->drafts.prompts || anybody_whole(s))) {
        td_stats_phase(&e->stats, TD_STEP_DRAFTING, NULL);
        e->drafts.least = td_draft_gate_threshold(gate, s->n_entries);
        if (run_layer(e) && n_running && td_draft_gate_is_on(gate, n_running)) draft(e);
        td_trace_end(begin, &(td_trace_label){TD_TRACE_ENGINE, "draft", {"tokens"}, {s->rows.n_tok}});
        step.layer_s = td_now_s() - begin_s;
    }
    if (decodes) td_draft_gate_observe(gate, &step);
    /* drafts are left out while the gate measures what a step without them costs */
    for (uint32_t i = 0; i < n_running; i++)
        if (!td_draft_gate_drafts(gate, n_running)) e->scheduler.running[i]->draft = TD_NO_DRAFT;
    count(e, &step, n_accepted);
}
