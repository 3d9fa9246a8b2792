/*
 * The engine thread: takes requests in, runs steps, hands tokens out.
 *
 * A step: forward over the scheduler's rows; logits of the rows that matter, max_out at a time; sampling and
 * log-probabilities of those (sample_rows.c); commit; events. Nothing of a step is kept before all of it
 * has succeeded, so a step that fails is simply run again, once; when it fails again its requests fail and the others go on.
 * When a card is lost, all requests fail. Of the step that is aside a piece runs behind each step (step/scheduler.h).
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/plural.h"
#include "engine/engine_impl.h"

#define NO_KEYS "2^31 different images have come since the server began: it takes no others until it is started again"

/* ---- statistics ------------------------------------------------------------------------------ */

/* Those that requests use: pages that only the prefix cache holds can be had at any time. */
static uint64_t kv_tokens_used(const td_engine *e) {
    return (uint64_t)(td_kv_pages_used(&e->pages) - e->cache.n_idle) * TD_KV_PAGE;
}

static void publish(td_engine *e) {
    const td_scheduler *s = &e->scheduler;
    uint64_t            done = 0, left = 0;
    uint32_t            n = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const td_request *r = s->running[i];
        if (td_request_generates(r)) continue;
        n++;
        done += r->n_computed;
        left += r->n_tokens - r->n_computed;
    }
    td_model_work work;
    td_model_get_work(e->placed.model, &work);
    pthread_mutex_lock(&e->stats.lock);
    td_engine_stats *t = &e->stats.s;
    t->running = s->n_running;
    t->retracted = s->n_retracted;
    t->retractions = s->retractions;
    t->prefill_requests = n;
    t->prefill_tokens_done = done;
    t->prefill_tokens_left = left;
    t->expert_pairs = work.expert_pairs;
    t->experts_deferred = work.deferred_pairs;
    t->residency = work.residency;
    t->images = td_images_counts(e);
    t->device = work.device;
    t->experts = work.experts;
    t->kv_tokens_used = kv_tokens_used(e);
    t->kv_tokens_cached = (uint64_t)e->cache.n_idle * TD_KV_PAGE;
    t->window_tokens = (uint64_t)e->windows.n * TD_KV_PAGE;
    t->window_tokens_used = (uint64_t)td_window_pages_used(&e->windows) * TD_KV_PAGE;
    t->window_tokens_cached = (uint64_t)e->windows.n_idle * TD_KV_PAGE;
    t->state_snapshots = e->states.n_snapshots;
    t->state_evictions = e->states.evictions;
    t->cache_evictions = e->cache.evictions;
    pthread_mutex_unlock(&e->stats.lock);
}

/* ---- events ---------------------------------------------------------------------------------- */

static td_event event_of(const td_request *r) {
    return (td_event){.text = "",
                      .stop_token = UINT32_MAX,
                      .prompt_tokens = r->n_prompt,
                      .cached_tokens = r->n_cached,
                      .completion_tokens = r->n_told - r->n_prompt};
}

/* Send an event. The last one goes out when the request has left the scheduler and is counted, so that a client that has its
 * answer finds it in the statistics. */
static void send(td_engine *e, td_request *r, td_event *ev) {
    if (r->prompt_positions && !r->prompt_positions_sent && ev->finish != TD_FINISH_ABORT && ev->finish != TD_FINISH_ERROR) {
        ev->prompt_logprobs = r->prompt_positions;
        ev->n_prompt_logprobs = r->n_prompt;
    }
    if (ev->finish != TD_FINISH_NONE) {
        td_log_end(e, r, ev->finish);
        td_stats_ended(&e->stats, ev->finish, td_now_s() - r->submit_s);
        td_scheduler_remove(&e->scheduler, r);
        publish(e);
    }
    r->on_event(r->user, ev);
    if (ev->n_prompt_logprobs) {
        free(r->prompt_positions);
        r->prompt_positions = NULL;
        r->prompt_positions_sent = true;
    }
    if (ev->finish != TD_FINISH_NONE) td_request_release(r);
}

static void send_abort(td_engine *e, td_request *r) {
    td_event ev = event_of(r);
    ev.finish = TD_FINISH_ABORT;
    if (r->detok) { /* what was held back as half a character or the beginning of a stop string is text after all */
        const char *piece = "";
        size_t      len = 0;
        int         match;
        td_detok_flush(r->detok, &piece, &len);
        if (td_stream_text_add(&r->text, piece, len, false, &ev.text, &ev.text_len, &match) != TD_OK) ev.text_len = 0;
    }
    send(e, r, &ev);
}

static void send_error(td_engine *e, td_request *r, td_status status, const char *text) {
    td_error error = {.status = status};
    td_event ev = event_of(r);
    snprintf(error.text, sizeof error.text, "%s", text);
    ev.finish = TD_FINISH_ERROR;
    ev.error = &error;
    send(e, r, &ev);
}

/* Tell the client the next token that it does not have: text, stops, event. @return false: the request has ended. */
static bool tell(td_engine *e, td_request *r, const td_position_logprobs *logprobs) {
    uint32_t    token = r->tokens[r->n_told++], n = r->n_told - r->n_prompt;
    double      now = td_now_s();
    td_status   st = TD_OK;
    const char *piece = "";
    size_t      len = 0;
    int         match = -1;

    td_event ev = event_of(r);
    ev.tokens = &token;
    ev.n_tokens = 1;
    ev.logprobs = r->logprobs ? logprobs : NULL;

    bool stops = td_request_stops_at(r, token);
    bool complete = r->form && !stops && r->n_told == r->n_tokens && td_answer_form_must_end(r->form);
    if (r->detok) {
        if ((!stops || r->include_stop) && td_detok_push(r->detok, token, &piece, &len) != TD_OK)
            len = 0; /* an id of the padded vocabulary that the tokenizer does not have: no text */
        st = td_stream_text_add(&r->text, piece, len, n >= r->min_tokens && !stops, &ev.text, &ev.text_len, &match);
    }
    if (match >= 0) {
        ev.finish = TD_FINISH_STOP;
        ev.stop_reason = r->text.stop[match];
    } else if (stops || complete || n == r->max_tokens) {
        ev.finish = stops || complete ? TD_FINISH_STOP : TD_FINISH_LENGTH;
        ev.stop_token = stops ? token : UINT32_MAX;
        if (r->detok && st == TD_OK) {
            td_detok_flush(r->detok, &piece, &len);
            st = td_stream_text_finish(&r->text, piece, len, &ev.text, &ev.text_len);
        }
    }
    if (st != TD_OK) {
        send_error(e, r, st, "out of memory for the text of a token");
        return false;
    }

    pthread_mutex_lock(&e->stats.lock);
    e->stats.s.generation_tokens++;
    td_histogram_observe(n == 1 ? &e->stats.s.ttft : &e->stats.s.tpot, now - (n == 1 ? r->submit_s : r->last_token_s));
    pthread_mutex_unlock(&e->stats.lock);
    r->last_token_s = now;
    ev.age_s = now - r->submit_s;
    bool goes_on = ev.finish == TD_FINISH_NONE;
    send(e, r, &ev);
    return goes_on;
}

/* Tell the tokens that were taken without a choice, as far as what belongs to them is computed. @return as tell. */
static bool tell_jumped(td_engine *e, td_request *r) {
    while (r->n_told < r->n_tokens && r->n_computed >= (r->logprobs ? r->n_told : r->n_prompt))
        if (!tell(e, r, r->logprobs ? &r->jumped[r->n_told - r->jumped_from] : NULL)) return false;
    return true;
}

/* Append and tell a sampled token, and those that follow it without a choice. @return as tell. */
static bool deliver(td_engine *e, td_request *r, const td_row_result *result) {
    td_status st = TD_OK;
    td_request_append(r, result->token);
    if (r->form && !td_request_stops_at(r, result->token)) st = td_answer_form_advance(r->form, result->token);
    if (st == TD_OK) {
        if (!tell(e, r, &result->logprobs)) return false;
        st = td_request_jump(r);
    }
    if (st == TD_OK) return tell_jumped(e, r);
    send_error(e, r, st, st == TD_ENOMEM ? "out of memory for the grammar" : TD_GRAMMAR_AMBIGUOUS);
    return false;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Add to n jobs the rows of entry i that predict its request's tokens from .. end - 1. @return the number of jobs then. */
static uint32_t list_positions(td_engine *e, uint32_t n, uint32_t i, uint32_t from, uint32_t end) {
    const td_step_entry *entry = &e->step->entries[i];
    for (uint32_t k = 0; k < entry->n_rows; k++) {
        uint32_t predicted = entry->first_pos + k + 1;
        if (predicted >= from && predicted < end)
            e->jobs[n++] = (td_row_job){.entry = i, .row = entry->first_row + k, .predicted = predicted};
    }
    return n;
}

/* List the rows whose logits matter, entry by entry; behind them those of the drafts. @return how many, without the
 * drafts'. */
static uint32_t list_jobs(td_engine *e) {
    const td_scheduled_step *s = e->step;
    uint32_t                 n = 0;
    for (uint32_t i = 0; i < s->n_entries; i++) {
        const td_step_entry *entry = &s->entries[i];
        td_request          *r = entry->request;
        e->results[i] = (td_row_result){.status = TD_OK};
        if (r->prompt_logprobs && !r->prompt_positions_sent) {
            if (!r->prompt_positions && !(r->prompt_positions = calloc(r->n_prompt, sizeof *r->prompt_positions))) {
                e->results[i].status = TD_ENOMEM;
                continue;
            }
            r->prompt_positions[0] = (td_position_logprobs){.id = r->tokens[0], .logprob = NAN};
            n = list_positions(e, n, i, 1, r->n_prompt);
        }
        if (r->logprobs) n = list_positions(e, n, i, r->n_told, r->n_tokens);
        if (entry->last && r->max_tokens && !r->complete)
            e->jobs[n++] = (td_row_job){.entry = i, .row = entry->first_row + entry->n_rows - 1, .predicted = TD_ROW_NEXT};
    }
    for (uint32_t i = 0, at = n; i < s->n_entries; i++) {
        const td_step_entry *entry = &s->entries[i];
        if (entry->drafted)
            e->jobs[at++] =
                (td_row_job){.entry = i, .row = entry->first_row + entry->n_rows, .predicted = TD_ROW_BEHIND_DRAFT};
    }
    return n;
}

static td_out_logprobs logprobs_of(const td_engine *e, const td_row_job *job) {
    td_out_logprobs none = {.id = UINT32_MAX, .log_sum = (double)NAN};
    if (job->predicted == TD_ROW_REJECTED) return none;
    const td_request *r = e->step->entries[job->entry].request;
    bool              chooses = job->predicted > TD_ROW_REJECTED;
    return (td_out_logprobs){
        .wanted = !chooses || r->logprobs, .id = chooses ? UINT32_MAX : r->tokens[job->predicted], .log_sum = (double)NAN};
}

/* The next jobs' rows, as many as logits are computed for at a time. */
static td_out_rows next_rows(td_engine *e, const td_row_job *jobs, uint32_t n_left) {
    uint32_t n = n_left < e->config.model.max_out ? n_left : e->config.model.max_out;
    for (uint32_t i = 0; i < n; i++) {
        e->job_rows[i] = jobs[i].row;
        e->job_best[i] = td_row_takes_best(e, &jobs[i]);
        e->job_logprobs[i] = logprobs_of(e, &jobs[i]);
    }
    return (td_out_rows){.row = e->job_rows, .best = e->job_best, .logprobs = e->job_logprobs, .n = n};
}

/* Sample for jobs whose logits are computed now, as many at a time as there is room for. */
static td_status sample_in_turns(td_engine *e, const td_row_job *jobs, uint32_t n) {
    td_row_batch batch = {.e = e, .jobs = jobs, .logprobs = e->job_logprobs};
    for (td_out_rows out; n; n -= out.n, batch.jobs += out.n) {
        out = next_rows(e, batch.jobs, n);
        uint64_t begin = td_trace_begin();
        td_stats_phase(&e->stats, TD_STEP_HEAD, NULL);
        td_status st = td_model_head(e->placed.model, out, &batch.logits);
        td_trace_end(begin, &(td_trace_label){TD_TRACE_ENGINE, "head", {"rows"}, {out.n}});
        if (st != TD_OK) return st;
        td_rows_sample(e, &batch, out.n);
    }
    return TD_OK;
}

/* The first jobs' logits come with the layers; there are more where a prompt's log-probabilities are wanted. Those of drafts
 * come along where all find room. */
static td_status try_step(td_engine *e, uint32_t n_jobs) {
    const td_step_rows *rows = &e->step->rows;
    td_row_batch        batch = {.e = e, .jobs = e->jobs, .logprobs = e->job_logprobs};
    uint32_t            n_along = n_jobs + e->step->n_drafts <= e->config.model.max_out ? e->step->n_drafts : 0;
    td_out_rows         out = next_rows(e, batch.jobs, n_jobs + n_along);
    uint64_t            begin = td_trace_begin();
    td_stats_phase(&e->stats, TD_STEP_FORWARD, rows);
    td_status st = td_model_forward(e->placed.model, rows, out, &batch.logits);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_ENGINE, "forward", {"tokens", "sequences"}, {rows->n_tok, rows->n_seq}});
    if (st == TD_OK && out.n) td_rows_sample(e, &batch, out.n - n_along);
    e->draft_logits = n_along ? batch.logits + (size_t)n_jobs * e->limits.vocab : NULL;
    e->draft_logprobs = e->job_logprobs + (n_along ? n_jobs : 0);
    return st == TD_OK ? sample_in_turns(e, e->jobs + out.n, n_jobs + n_along - out.n) : st;
}

static const char *row_error_text(td_status st, const td_request *r) {
    switch (st) {
        case TD_ENOMEM: return "out of memory for the prompt's log-probabilities or the grammar";
        case TD_ENOTSUP: return TD_GRAMMAR_AMBIGUOUS;
        case TD_EINVAL:
            return r->form ? "the grammar allows no token that min_tokens, logit_bias and stop ids leave"
                           : "every token is ruled out by logit_bias and min_tokens";
        default: return "the model's output is not a number";
    }
}

/* Count the requests that are in a step for the first time. */
static void note_starts(td_engine *e) {
    double now = td_now_s();
    for (uint32_t i = 0; i < e->step->n_entries; i++) {
        td_request *r = e->step->entries[i].request;
        if (r->started) continue;
        r->started = true;
        pthread_mutex_lock(&e->stats.lock);
        e->stats.s.prompt_tokens += r->n_prompt;
        e->stats.s.cached_tokens += r->n_cached;
        td_histogram_observe(&e->stats.s.queue_time, now - r->submit_s);
        pthread_mutex_unlock(&e->stats.lock);
    }
}

static void fail_step(td_engine *e, td_status st) {
    char text[TD_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "the step failed twice: %s", td_model_why(e->placed.model, st));
    td_err("%s; it ends %u request%s", text, e->step->n_entries, td_plural(e->step->n_entries));
    for (uint32_t i = 0; i < e->step->n_entries; i++) send_error(e, e->step->entries[i].request, st, text);
}

/* A step has succeeded: everything about it is counted and logged before its tokens are handed out. */
static void count_step(td_engine *e, double seconds) {
    pthread_mutex_lock(&e->stats.lock);
    *(e->step->n_prefill ? &e->stats.s.steps_prefill : &e->stats.s.steps_decode) += 1;
    pthread_mutex_unlock(&e->stats.lock);
    publish(e);
    td_log_prefill(e, seconds);
    td_log_load(e);
}

/* Tell what a step found for an entry. */
static void hand_out(td_engine *e, uint32_t i) {
    td_step_entry *entry = &e->step->entries[i];
    td_request    *r = entry->request;
    bool           goes_on = true;
    if (e->results[i].status != TD_OK) {
        send_error(e, r, e->results[i].status, row_error_text(e->results[i].status, r));
        goes_on = false;
    } else if (!r->max_tokens && entry->last) {
        td_event ev = event_of(r);
        ev.finish = TD_FINISH_LENGTH;
        send(e, r, &ev);
        goes_on = false;
    } else {
        goes_on = tell_jumped(e, r) && (!entry->last || deliver(e, r, &e->results[i]));
    }
    if (!goes_on) entry->request = NULL;
}

/* Whether the draft has become the request's newest token: then its row is the row of a token like any other. */
static bool is_accepted(const td_engine *e, const td_row_job *job) {
    const td_step_entry *entry = &e->step->entries[job->entry];
    const td_request    *r = entry->request;
    uint32_t             at = entry->first_pos + entry->n_rows;
    return r && r->n_tokens == at + 1 && r->tokens[at] == e->step->rows.token[job->row];
}

/* Sample from the rows of accepted drafts, whose logits may have to be computed first. @return how many rows were sampled
 * from. */
static uint32_t sample_behind_drafts(td_engine *e, const td_row_job *jobs, uint32_t n) {
    td_row_batch batch = {.e = e, .jobs = jobs, .logits = e->draft_logits, .logprobs = e->draft_logprobs};
    if (batch.logits) {
        td_rows_sample(e, &batch, n);
        return n;
    }
    for (uint32_t done = 0; done < n;) {
        td_out_rows out = next_rows(e, jobs + done, n - done);
        batch.jobs = jobs + done;
        td_stats_phase(&e->stats, TD_STEP_HEAD, NULL);
        if (td_model_head(e->placed.model, out, &batch.logits) != TD_OK) return done; /* as if they were rejected */
        td_rows_sample(e, &batch, out.n);
        done += out.n;
    }
    return n;
}

/* A second token for the requests whose draft was the first. The state is as if a step had ended between the two, and so
 * everything about the second is as if nobody had drafted. @return how many. */
static uint32_t hand_out_behind_drafts(td_engine *e, td_row_job *jobs, uint32_t n) {
    uint32_t n_accepted = 0, n_given = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool accepted = is_accepted(e, &jobs[i]);
        jobs[i].predicted = accepted ? TD_ROW_NEXT : TD_ROW_REJECTED;
        if (!accepted) continue;
        e->results[jobs[i].entry] = (td_row_result){.status = TD_OK};
        n_accepted++;
    }
    if (!n_accepted) return 0;
    n = sample_behind_drafts(e, jobs, n);
    td_stats_phase(&e->stats, TD_STEP_DELIVERING, NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (jobs[i].predicted != TD_ROW_NEXT) continue;
        td_request *r = e->step->entries[jobs[i].entry].request;
        td_scheduler_commit_draft(&e->scheduler, r);
        e->drafts.next[jobs[i].row] = e->results[jobs[i].entry].token;
        hand_out(e, jobs[i].entry);
        n_given++;
    }
    return n_given;
}

/* Not if requests of the step have begun again already, since their states were lost (td_scheduler_retract_step). */
static bool may_try_again(const td_scheduled_step *s) {
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].request->failed_before) return false;
    return true;
}

/* Count a step that has run, hand out its tokens, and draft the next ones. @param n_jobs without the drafts'. */
static void finish_step(td_engine *e, uint32_t n_jobs, double seconds) {
    const td_scheduled_step *s = e->step;
    count_step(e, seconds);
    if (e->config.drafts) td_drafts_note(e);
    uint64_t begin = td_trace_begin();
    for (uint32_t i = 0; i < s->n_entries; i++) hand_out(e, i);
    double   begin_s = td_now_s();
    uint32_t n_accepted = hand_out_behind_drafts(e, e->jobs + n_jobs, s->n_drafts);
    td_scheduler_drop_drafts(&e->scheduler);
    seconds += td_now_s() - begin_s;
    td_trace_end(begin, &(td_trace_label){TD_TRACE_ENGINE, "deliver", {"requests"}, {s->n_entries}});
    if (e->config.drafts) td_drafts_run(e, n_accepted, seconds);
}

static void warn_of_retry(const td_engine *e, td_status st) {
    td_warn("a step of %u token%s failed (%s): trying once more", e->step->rows.n_tok, td_plural(e->step->rows.n_tok),
            td_model_why(e->placed.model, st));
}

/* A step that goes whole. */
static void run_whole(td_engine *e) {
    td_scheduler            *scheduler = &e->scheduler;
    const td_scheduled_step *s = e->step = &scheduler->step;
    note_starts(e);
    double    begin_s = td_now_s();
    uint32_t  n_jobs = list_jobs(e);
    td_status st = try_step(e, n_jobs);
    if (st != TD_OK && !td_model_is_lost(e->placed.model, NULL) && may_try_again(s)) {
        warn_of_retry(e, st);
        if (scheduler->states) {
            td_scheduler_retract_step(scheduler);
            return;
        }
        n_jobs = list_jobs(e);
        st = try_step(e, n_jobs);
    }
    td_stats_phase(&e->stats, TD_STEP_DELIVERING, NULL);
    if (st != TD_OK) {
        if (!td_model_is_lost(e->placed.model, NULL)) fail_step(e, st); /* else fail_requests ends all */
        return;
    }
    double seconds = td_now_s() - begin_s;
    td_scheduler_commit(scheduler, seconds);
    finish_step(e, n_jobs, seconds);
}

/* A piece of the step aside, and what belongs behind the last one. @param n_jobs out, once piece->ended. */
static td_status try_piece(td_engine *e, td_piece *piece, uint32_t *n_jobs) {
    td_aside_step *aside = &e->scheduler.aside;
    if (!aside->begun) td_model_start_pieces(e->placed.model, &aside->step.rows);
    if (!aside->begun) aside->begin_s = td_now_s();
    aside->begun = true;
    uint64_t begin = td_trace_begin();
    td_stats_phase(&e->stats, TD_STEP_FORWARD, &aside->step.rows);
    td_status st = td_model_run_piece(e->placed.model, piece);
    pthread_mutex_lock(&e->stats.lock);
    e->stats.s.pieces++;
    pthread_mutex_unlock(&e->stats.lock);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_ENGINE, "piece", {"tokens"}, {aside->step.rows.n_tok}});
    if (st != TD_OK || !piece->ended) return st;
    *n_jobs = list_jobs(e);
    return sample_in_turns(e, e->jobs, *n_jobs);
}

/* Go on with the step aside. One that fails begins again, once. */
static void run_piece(td_engine *e) {
    td_scheduler  *scheduler = &e->scheduler;
    td_aside_step *aside = &scheduler->aside;
    td_piece       piece = td_scheduler_piece(scheduler, aside->gave_way, &e->waker->awake);
    uint32_t       n_jobs = 0;
    e->step = &aside->step;
    note_starts(e);
    td_status st = try_piece(e, &piece, &n_jobs);
    if (st != TD_OK && !td_model_is_lost(e->placed.model, NULL) && !aside->failed) {
        warn_of_retry(e, st);
        aside->failed = true;
        aside->begun = false;
        st = try_piece(e, &piece, &n_jobs);
    }
    aside->gave_way = piece.gave_way;
    if (piece.longest_s > aside->longest_s) aside->longest_s = piece.longest_s;
    if (st == TD_OK && !piece.ended) return;
    td_stats_phase(&e->stats, TD_STEP_DELIVERING, NULL);
    if (st != TD_OK) {
        if (!td_model_is_lost(e->placed.model, NULL)) fail_step(e, st); /* else fail_requests ends all */
        return;
    }
    td_scheduler_commit_aside(scheduler);
    e->draft_logits = NULL;
    finish_step(e, n_jobs, td_now_s() - aside->begin_s);
    td_scheduler_end_aside(scheduler);
}

/* Go on with the image that is encoded. One that fails twice ends the requests that wait for it. */
static void encode(td_engine *e) {
    td_status st = td_images_run_piece(e);
    if (st == TD_OK || td_model_is_lost(e->placed.model, NULL)) return;
    const td_known_image *k = e->images.under_way;
    char                  text[TD_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "an image could not be encoded twice: %s", td_model_why(e->placed.model, st));
    td_err("%s", text);
    for (uint32_t i = e->scheduler.n_running; i-- > 0;)
        if (td_request_images_reads(&e->scheduler.running[i]->images, k)) send_error(e, e->scheduler.running[i], st, text);
    td_images_leave(e);
}

/* A piece of the step that is aside, or of an image that is encoded; of both in turn. */
static void run_between(td_engine *e) {
    td_scheduler *s = &e->scheduler;
    const bool    is_aside = s->aside.step.n_entries, encodes = s->image.known || e->images.under_way;
    const bool    turns = is_aside && encodes;
    if (is_aside && !(turns && e->images.has_turn)) run_piece(e);
    if (encodes && (!turns || e->images.has_turn)) encode(e);
    e->images.has_turn = turns && !e->images.has_turn;
}

/* Run a step, and a piece of the one that is aside. @return false: there was nothing to run. */
static bool run_step(td_engine *e) {
    td_scheduler *s = &e->scheduler;
    uint64_t      begin = td_trace_begin();
    td_stats_phase(&e->stats, TD_STEP_SCHEDULING, NULL);
    td_page_exchange_take_in(&e->exchange);
    if (td_images_unwanted(e)) td_images_leave(e);
    bool work = td_scheduler_build(s);
    td_trace_end(begin, &(td_trace_label){
                            TD_TRACE_ENGINE, "schedule", {"running", "prefill tokens"}, {s->n_running, s->step.n_prefill}});
    if (!work) return false;
    publish(e);
    if (s->step.n_entries) run_whole(e);
    if (!s->aside.step.n_entries) td_model_drop_pieces(e->placed.model);
    run_between(e);
    if (s->starved) send_error(e, s->starved, TD_ENOMEM, "out of memory for what the encoder makes of an image");
    return true;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void take_in(td_engine *e, td_request *list) {
    while (list) {
        td_request *r = list;
        list = r->next;
        td_log_arrival(e, r);
        pthread_mutex_lock(&e->stats.lock);
        e->stats.s.requests_total++;
        pthread_mutex_unlock(&e->stats.lock);
        td_status st = td_scheduler_add(&e->scheduler, r);
        if (st != TD_OK) send_error(e, r, st, st == TD_ENOMEM ? "out of memory for the images of a request" : NO_KEYS);
    }
}

/* End the requests that were cancelled, or all. */
static void abort_requests(td_engine *e, bool all) {
    td_scheduler *s = &e->scheduler;
    for (uint32_t i = s->n_running; i-- > 0;)
        if (all || atomic_load_explicit(&s->running[i]->cancelled, memory_order_relaxed)) send_abort(e, s->running[i]);
    for (td_request *r = s->waiting, *next; r; r = next) {
        next = r->next;
        if (all || atomic_load_explicit(&r->cancelled, memory_order_relaxed)) send_abort(e, r);
    }
}

/* End all requests: no step will succeed any more. */
static void fail_requests(td_engine *e, const td_error *why) {
    td_scheduler *s = &e->scheduler;
    for (uint32_t i = s->n_running; i-- > 0;) send_error(e, s->running[i], why->status, why->text);
    while (s->waiting) send_error(e, s->waiting, why->status, why->text);
}

void *td_engine_thread(void *engine) {
    td_engine    *e = engine;
    td_error      lost = {0};
    td_scheduler *s = &e->scheduler;
    td_npu_caps   caps;
    e->placed.npus[0]->ops->caps(e->placed.npus[0], &caps);
    if (caps.inline_work)
        td_pool_pin_caller(e->expert_pool);
    else
        td_pool_avoid(e->expert_pool); /* a thread of the bridge drives it */
    for (bool ran = true;;) {
        bool idle = s->n_running == 0 && s->waiting == NULL;
        /* If nothing could run though requests wait, they wait for the page store. */
        double until_s = idle ? INFINITY : ran ? 0 : td_page_exchange_deadline(&e->exchange);
        if (idle) assert(kv_tokens_used(e) == 0);
        publish(e);
        uint64_t      begin = idle ? td_trace_begin() : 0;
        td_inbox_news news = td_inbox_take(e->inbox, until_s);
        td_trace_end(begin, &(td_trace_label){.tier = TD_TRACE_ENGINE, .name = "idle"});
        if (idle) td_log_window_open(e);
        if (news.flush) td_scheduler_flush_cache(s);
        take_in(e, news.requests);
        abort_requests(e, news.deadline_s > 0 && td_now_s() >= news.deadline_s);
        if (td_model_is_lost(e->placed.model, &lost)) fail_requests(e, &lost);
        if (news.deadline_s > 0 && s->n_running == 0 && s->waiting == NULL) return NULL;
        ran = run_step(e);
        td_stats_phase(&e->stats, TD_STEP_NONE, NULL);
    }
}
