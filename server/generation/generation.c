/* The life of a generation: submitted, fed by the engine, taken by the answering thread, cancelled. */
#include "server/generation/generation.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/math/rng.h"

/* Bytes that a slow reader may leave unsent before its request is cancelled, for the stream and for each choice. */
#define STREAM_UNSENT_MAX ((size_t)1 << 20)
#define CHOICE_UNSENT_MAX ((size_t)16 << 10)

void td_news_free(td_news *n) {
    td_jbuf_free(&n->text);
    free(n->deltas);
    free(n->tokens);
    free(n->text_end);
    free(n->lp);
    free(n->prompt_lp);
    *n = (td_news){0};
}

/* ---- what generations share ---- */

void td_generations_init(td_generations *all, uint32_t stream_interval) {
    *all = (td_generations){.stream_interval = stream_interval, .wake_fd = -1};
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->fell, NULL);
}

void td_generations_free(td_generations *all) {
    pthread_cond_destroy(&all->fell);
    pthread_mutex_destroy(&all->lock);
}

static struct timespec after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

bool td_await_zero(pthread_cond_t *changed, pthread_mutex_t *lock, const uint32_t *count, const bool *hurry,
                   double seconds) {
    struct timespec deadline = after(seconds);
    while (*count && !(hurry && *hurry))
        if (pthread_cond_clockwait(changed, lock, CLOCK_MONOTONIC, &deadline) == ETIMEDOUT) break;
    return *count == 0;
}

bool td_generations_await_end(td_generations *all, double seconds) {
    pthread_mutex_lock(&all->lock);
    bool ended = td_await_zero(&all->fell, &all->lock, &all->n_live, NULL, seconds);
    pthread_mutex_unlock(&all->lock);
    return ended;
}

td_ended_requests td_generations_ended(td_generations *all) {
    pthread_mutex_lock(&all->lock);
    td_ended_requests ended = all->ended;
    pthread_mutex_unlock(&all->lock);
    return ended;
}

static uint64_t draw_id(td_generations *all) {
    return atomic_fetch_add_explicit(&all->next_id, 1, memory_order_relaxed);
}

static void wake_watcher(const td_generations *all) {
    uint64_t one = 1;
    /* Fails only when the counter is at its limit, and then the watcher is awake anyway. */
    if (write(all->wake_fd, &one, sizeof one) < 0) return;
}

/* ---- rows for people to look at ---- */

static const char *finish_of(const td_generation *g) {
    static const char *const names[] = {
        [TD_FINISH_STOP] = "stop", [TD_FINISH_LENGTH] = "length", [TD_FINISH_ABORT] = "abort", [TD_FINISH_ERROR] = "error"};
    td_finish finish = g->choices[0].finish;
    return g->has_error ? "error" : finish == TD_FINISH_NONE ? "abort" : names[finish];
}

td_request_row td_generation_row(const td_generation *g) {
    td_request_row row = {
        .choices = (uint32_t)g->n_choices, .age_s = 1e-9 * (double)(td_trace_now() - g->begin_ns), .ttft_s = INFINITY};
    td_usage used = td_generation_usage(g);
    double   between_s = 0;
    uint32_t gaps = 0;
    memcpy(row.id, g->id, sizeof row.id);
    row.cached_tokens = (uint32_t)used.cached;
    row.completion_tokens = (uint32_t)used.completion;
    for (size_t i = 0; i < g->req.n_prompts; i++) row.prompt_tokens += (uint32_t)g->req.prompts[i].n_ids;
    for (size_t i = 0; i < g->n_choices; i++) {
        const td_choice *c = &g->choices[i];
        if (c->completion_tokens == 0) continue;
        if (c->first_s < row.ttft_s) row.ttft_s = c->first_s;
        between_s += c->last_s - c->first_s;
        gaps += c->completion_tokens - 1;
    }
    if (isinf(row.ttft_s)) row.ttft_s = NAN;
    row.tpot_s = gaps ? between_s / gaps : NAN;
    return row;
}

/* Keep a row of g, to which nobody refers any more. A generation that was never submitted gets none. */
static void note_end(td_ended_requests *e, const td_generation *g) {
    if (g->req.api->internal || !g->submitted) return;
    td_request_row *row = &e->rows[e->n++ % TD_REQUESTS_ENDED_MAX];
    *row = td_generation_row(g);
    row->finish = finish_of(g);
}

/* ---- a generation's life ---- */

static void generation_free(td_generation *g) {
    td_generations *all = g->all;
    pthread_mutex_lock(&all->lock);
    note_end(&all->ended, g);
    pthread_mutex_unlock(&all->lock);
    for (size_t i = 0; g->choices && i < g->n_choices; i++) {
        td_news_free(&g->choices[i].news);
        td_answer_parser_free(g->choices[i].parser);
        free(g->choices[i].stop_reason);
    }
    free(g->choices);
    free(g->handles);
    td_jbuf_free(&g->out);
    td_answer_hold_set(&g->unsent_hold, 0);
    td_answer_hold_set(&g->out_hold, 0);
    td_api_request_free(&g->req);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->handles_lock);
    free(g);
    pthread_mutex_lock(&all->lock);
    all->n_live--;
    pthread_cond_broadcast(&all->fell);
    pthread_mutex_unlock(&all->lock);
}

static void set_id(td_generation *g) {
    if (g->req.rid) {
        snprintf(g->id, sizeof g->id, "%s", g->req.rid);
        return;
    }
    uint64_t n = draw_id(g->all);
    snprintf(g->id, sizeof g->id, "%s%016llx%016llx", g->req.api->id_prefix,
             (unsigned long long)td_rng_u64(g->all->id_seed, 0, n), (unsigned long long)td_rng_u64(g->all->id_seed, 1, n));
}

td_generation *td_generation_new(td_generations *all, td_api_request *req) {
    td_generation *g = calloc(1, sizeof *g);
    if (!g) {
        td_api_request_free(req);
        return NULL;
    }
    g->req = *req;
    *req = (td_api_request){0};
    g->all = all;
    g->created_s = (int64_t)time(NULL);
    g->begin_ns = td_trace_now();
    g->slot = UINT32_MAX;
    g->unsent_hold.budget = g->out_hold.budget = all->answers;
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->handles_lock, NULL);
    pthread_mutex_lock(&all->lock);
    all->n_live++;
    pthread_mutex_unlock(&all->lock);
    set_id(g);
    for (size_t i = 0; i < g->req.n_warnings; i++) td_warn("request %s: %s", g->id, g->req.warnings[i]);
    g->n_choices = g->req.n_prompts * g->req.n;
    g->choices = calloc(g->n_choices, sizeof *g->choices);
    g->handles = calloc(g->n_choices, sizeof *g->handles);
    if (!g->choices || !g->handles) {
        td_generation_unref(g);
        return NULL;
    }
    for (size_t i = 0; i < g->n_choices; i++)
        g->choices[i] = (td_choice){.generation = g, .index = (uint32_t)i, .stop_token = UINT32_MAX};
    return g;
}

void td_generation_ref(td_generation *g) {
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void td_generation_unref(td_generation *g) {
    /* acq_rel: the last owner sees what the others wrote. */
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) == 1) generation_free(g);
}

/* ---- news from the engine ---- */

static void *grow(void *p, size_t *room, size_t need, size_t item) {
    size_t n = *room ? *room : 64, bytes;
    if (need <= *room) return p;
    while (n < need) n *= 2;
    void *q = __builtin_mul_overflow(n, item, &bytes) ? NULL : realloc(p, bytes);
    if (q) *room = n;
    return q;
}

static bool add_positions(td_token_logprob **lp, size_t *n, size_t *room, size_t top, const td_position_logprobs *add,
                          size_t n_add) {
    size_t            stride = 1 + top;
    td_token_logprob *to = grow(*lp, room, *n + n_add, stride * sizeof *to);
    if (!to) return false;
    *lp = to;
    for (size_t i = 0; i < n_add; i++) {
        td_token_logprob *at = to + (*n + i) * stride;
        at[0] = (td_token_logprob){add[i].id, add[i].logprob};
        for (size_t k = 0; k < top; k++) at[1 + k] = k < add[i].n_top ? add[i].top[k] : (td_token_logprob){TD_LP_NONE, 0};
    }
    *n += n_add;
    return true;
}

static bool shows_prompt_logprobs(const td_api_request *r) {
    return r->shown.prompt_logprobs || (r->shown.logprobs && r->shown.echo);
}

/* The id of a call: random, as OpenAI's. A model that numbers its calls itself sees its own number again. */
static void put_call_id(td_choice *c, const td_answer_event *e) {
    td_generations *all = c->generation->all;
    td_jbuf        *text = &c->news.text;
    if (e->id) {
        td_jbuf_put(text, e->id, e->id_len);
        return;
    }
    uint64_t n = draw_id(all);
    td_jbuf_printf(text, "call_%016llx%08llx", (unsigned long long)td_rng_u64(all->id_seed, 2, n),
                   (unsigned long long)(uint32_t)td_rng_u64(all->id_seed, 3, n));
}

/* A stream's chunk has --stream-interval tokens at most. */
static bool same_chunk(const td_generation *g, size_t token, size_t next) {
    size_t step = g->all->stream_interval;
    return !g->req.stream.on || token / step == next / step;
}

static void on_answer(void *user, const td_answer_event *e) {
    td_choice *c = user;
    td_news   *news = &c->news;
    bool stays = e->kind == TD_ANSWER_REASONING && !c->generation->req.parts.separate_reasoning; /* before forced calls */
    td_answer_event_kind kind = stays ? TD_ANSWER_CONTENT : e->kind;
    td_delta            *last = news->n_deltas ? &news->deltas[news->n_deltas - 1] : NULL;
    if (c->ends_early) return;
    if (e->kind == TD_ANSWER_CALL_END) {
        c->n_calls++;
        c->ends_early = !c->generation->req.parts.parallel_calls;
        c->generation->ends_some = c->generation->ends_some || c->ends_early;
    }
    size_t from = news->text.len;
    td_jbuf_put(&news->text, e->text, e->len);
    if (last && last->kind == kind && last->call == e->call && e->kind != TD_ANSWER_CALL_BEGIN &&
        same_chunk(c->generation, last->token, news->n_tokens)) {
        last->len += e->len;
        last->token_end = news->n_tokens + 1;
        return;
    }
    td_delta *deltas = grow(news->deltas, &news->deltas_room, news->n_deltas + 1, sizeof *deltas);
    if (!deltas) {
        news->text.failed = true;
        return;
    }
    news->deltas = deltas;
    if (e->kind == TD_ANSWER_CALL_BEGIN) put_call_id(c, e);
    deltas[news->n_deltas++] = (td_delta){.kind = kind,
                                          .call = e->call,
                                          .from = from,
                                          .len = e->len,
                                          .id_len = news->text.len - from - e->len,
                                          .token = news->n_tokens,
                                          .token_end = news->n_tokens + 1};
}

static bool add_parsers(td_generation *g) {
    const td_api_request *r = &g->req;
    const char           *reasoning_format = td_api_divides_reasoning(r) ? r->parts.reasoning_format : NULL;
    for (size_t i = 0; i < g->n_choices && (r->parts.tool_format || reasoning_format); i++) {
        td_answer_parser_options o = {.tool_format = r->parts.tool_format,
                                      .reasoning_format = reasoning_format,
                                      .tools = r->parts.tools,
                                      .start = r->parts.reasoning_start,
                                      .on_event = on_answer,
                                      .user = &g->choices[i]};
        if (td_answer_parser_new(&o, &g->choices[i].parser, NULL) != TD_OK) return false;
    }
    return true;
}

/* Keep an event's text, through the parser where there is one. */
static bool keep_text(td_choice *c, const td_event *e) {
    bool reasons = c->parser && td_answer_parser_reasons(c->parser);
    if (!c->parser)
        td_jbuf_put(&c->news.text, e->text, e->text_len);
    else if (td_answer_parser_feed(c->parser, e->text, e->text_len) != TD_OK ||
             (e->finish != TD_FINISH_NONE && td_answer_parser_end(c->parser) != TD_OK))
        return false;
    reasons = reasons || (c->parser && td_answer_parser_reasons(c->parser));
    if (reasons) c->reasoning_tokens += (uint32_t)e->n_tokens;
    return !c->news.text.failed;
}

static void count(td_choice *c, const td_event *e) {
    c->prompt_tokens = e->prompt_tokens;
    c->cached_tokens = e->cached_tokens;
    c->completion_tokens = e->completion_tokens;
    if (!e->n_tokens) return;
    if (c->first_s == 0) c->first_s = e->age_s;
    c->last_s = e->age_s;
}

static bool keep_text_ends(td_news *n, size_t n_tokens) {
    size_t *text_end = grow(n->text_end, &n->text_end_room, n->n_tokens + n_tokens, sizeof *text_end);
    if (!text_end) return false;
    n->text_end = text_end;
    for (size_t i = 0; i < n_tokens; i++) text_end[n->n_tokens + i] = n->text.len;
    return true;
}

static bool keep(td_choice *c, const td_event *e) {
    const td_api_request *req = &c->generation->req;
    td_news              *n = &c->news;
    if (c->ends_early) {
        count(c, e);
        if (e->finish != TD_FINISH_NONE) c->finish = TD_FINISH_STOP;
        return true;
    }
    if (!keep_text(c, e)) return false;
    if (e->n_tokens) {
        uint32_t *tokens = grow(n->tokens, &n->tokens_room, n->n_tokens + e->n_tokens, sizeof *tokens);
        if (!tokens) return false;
        n->tokens = tokens;
        memcpy(tokens + n->n_tokens, e->tokens, e->n_tokens * sizeof *tokens);
        if (!c->parser && !keep_text_ends(n, e->n_tokens)) return false;
        n->n_tokens += e->n_tokens;
    }
    if (e->logprobs && !add_positions(&n->lp, &n->n_lp, &n->lp_room, req->shown.top_logprobs, e->logprobs, e->n_tokens))
        return false;
    if (e->prompt_logprobs && shows_prompt_logprobs(req) &&
        !add_positions(&n->prompt_lp, &n->n_prompt_lp, &n->prompt_lp_room, td_api_prompt_top(&req->shown),
                       e->prompt_logprobs, e->n_prompt_logprobs))
        return false;
    count(c, e);
    c->generation->unsent += e->text_len + e->n_tokens * sizeof *n->tokens +
                             (e->logprobs ? e->n_tokens * (1 + req->shown.top_logprobs) * sizeof *n->lp : 0);
    if (e->finish == TD_FINISH_NONE) return true;
    c->finish = e->finish;
    c->stop_token = e->stop_token;
    if (e->stop_reason) c->stop_reason = strdup(e->stop_reason);
    return !e->stop_reason || c->stop_reason;
}

/* Under the lock: the answer is an error; what else comes is dropped and what still runs is to be cancelled. */
static void fail_locked(td_generation *g) {
    g->has_error = g->dropped = g->attend = g->ready = true;
}

static void note(td_generation *g, td_choice *c, const td_event *e) {
    bool first = !c->started;
    c->started = true;
    if (!keep(c, e)) {
        td_api_fail(&g->error, 500, "internal_error", "Out of memory while the answer was collected.");
        fail_locked(g);
    } else if (e->finish == TD_FINISH_ERROR) {
        td_api_from_status(&g->error, e->error ? e->error->status : TD_EDEVICE, e->error, NULL);
        fail_locked(g);
    } else if (g->req.stream.on) {
        bool too_much = g->unsent > STREAM_UNSENT_MAX + g->n_choices * CHOICE_UNSENT_MAX;
        if (too_much || !td_answer_hold_set(&g->unsent_hold, g->unsent)) {
            td_warn("request %s: its reader is too slow; cancelled", g->id);
            g->aborted = g->dropped = g->attend = g->ready = true;
        } else if (first || e->finish != TD_FINISH_NONE || c->news.n_tokens >= g->all->stream_interval) {
            g->ready = true;
        }
    }
}

static void resume_locked(td_generation *g) {
    if (!g->suspended) return;
    g->suspended = false;
    if (g->connection)
        MHD_resume_connection(g->connection);
    else
        g->waiter.wake(g->waiter.user);
}

static void on_event(void *user, const td_event *e) {
    td_choice     *c = user;
    td_generation *g = c->generation;
    bool           last = e->finish != TD_FINISH_NONE;
    pthread_mutex_lock(&g->lock);
    if (!g->dropped) note(g, c, e);
    if (last && --g->n_unfinished == 0) g->ready = true;
    if (g->ready) resume_locked(g);
    bool attend = g->attend || g->ends_some;
    pthread_mutex_unlock(&g->lock);
    if (attend) wake_watcher(g->all);
    if (last) td_generation_unref(g);
}

/* ---- submit, cancel ---- */

/* Fill err from the engine's refusal. The engine's sentences about a field begin with its name. */
static td_status refuse(td_api_error *err, td_status st, const td_error *cause, const td_api_request *r) {
    char   param[TD_API_PARAM_MAX] = "";
    size_t n = strspn(cause->text, "abcdefghijklmnopqrstuvwxyz_");
    if (st == TD_EINVAL && n < sizeof param && !strncmp(cause->text + n, ": ", 2)) memcpy(param, cause->text, n);
    td_api_from_status(err, st, cause, param);
    td_api_rename_error(r->api->names, err);
    return TD_EINVAL;
}

static td_request_params common_params(const td_api_request *r) {
    td_request_params p;
    td_request_params_init(&p);
    p.max_tokens = r->length.max;
    p.min_tokens = r->length.min;
    p.sampling = r->sampling;
    p.stop = r->stop.texts;
    p.n_stop = r->stop.n_texts;
    p.stop_ids = r->stop.ids;
    p.n_stop_ids = r->stop.n_ids;
    p.ignore_eos = r->stop.ignores_eos;
    p.skip_special_tokens = r->shown.skips_special_tokens && !r->parts.keeps_special;
    p.include_stop = r->stop.is_shown;
    p.logprobs = r->shown.logprobs;
    p.prompt_logprobs = shows_prompt_logprobs(r) || r->length.max == 0; /* an engine request must ask for something */
    uint32_t top = r->shown.top_logprobs, top_of_prompt = td_api_prompt_top(&r->shown);
    p.n_top_logprobs = top > top_of_prompt ? top : top_of_prompt;
    p.priority = r->priority;
    p.grammar = r->grammar.compiled;
    p.reasoning_format = r->parts.reasoning_format;
    p.reasoning_start = r->parts.reasoning_start;
    p.on_event = on_event;
    return p;
}

td_status td_generation_submit(td_generation *g, td_api_error *err) {
    const td_api_request *r = &g->req;
    td_request_params    *params = add_parsers(g) ? malloc(g->n_choices * sizeof *params) : NULL;
    if (!params) return td_api_no_memory(err);
    for (size_t i = 0; i < g->n_choices; i++) {
        const td_api_prompt  *prompt = &r->prompts[i / r->n];
        const td_api_request *own = td_api_of_prompt(r, i / r->n);
        params[i] = common_params(own);
        params[i].prompt = prompt->ids;
        params[i].n_prompt = prompt->n_ids;
        params[i].images = prompt->images;
        params[i].n_images = prompt->n_images;
        /* Choices of one prompt must differ: each has a seed of its own. */
        if (own->sampling.has_seed) params[i].sampling.seed = own->sampling.seed + i % r->n;
        params[i].user = &g->choices[i];
    }
    /* A reference for each engine request until its last event, which may come before the call returns. */
    pthread_mutex_lock(&g->lock);
    g->n_unfinished = g->n_choices;
    pthread_mutex_unlock(&g->lock);
    atomic_fetch_add_explicit(&g->refs, (unsigned)g->n_choices, memory_order_relaxed);

    td_error cause = {0};
    pthread_mutex_lock(&g->handles_lock);
    td_status st = td_engine_submit_all(g->all->engine, params, g->n_choices, g->handles, &cause);
    pthread_mutex_unlock(&g->handles_lock);
    free(params);
    g->submitted = st == TD_OK;
    if (g->submitted) {
        td_api_images_given(&g->req.images);
        return TD_OK;
    }

    pthread_mutex_lock(&g->lock);
    g->n_unfinished = 0;
    pthread_mutex_unlock(&g->lock);
    atomic_fetch_sub_explicit(&g->refs, (unsigned)g->n_choices, memory_order_relaxed); /* the call's reference is left */
    return refuse(err, st, &cause, r);
}

bool td_generation_end_early(td_generation *g) {
    bool any = false;
    pthread_mutex_lock(&g->handles_lock);
    for (size_t i = 0; i < g->n_choices; i++) {
        if (!g->handles[i]) continue;
        td_request_cancel(g->handles[i]);
        any = true;
    }
    pthread_mutex_unlock(&g->handles_lock);
    return any;
}

void td_generation_cancel(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    g->dropped = true;
    g->attend = false;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&g->handles_lock);
    for (size_t i = 0; i < g->n_choices; i++) {
        if (!g->handles[i]) continue;
        td_request_cancel(g->handles[i]);
        td_request_release(g->handles[i]);
        g->handles[i] = NULL;
    }
    pthread_mutex_unlock(&g->handles_lock);
}

/* What the parsers have held back is content now. */
void td_generation_cut(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n_choices; i++) {
        td_choice *c = &g->choices[i];
        if (g->dropped || c->finish != TD_FINISH_NONE) continue;
        if (c->parser && td_answer_parser_end(c->parser) != TD_OK) c->news.text.failed = true;
        c->started = true;
        c->finish = TD_FINISH_ABORT;
    }
    g->dropped = g->ready = true;
    pthread_mutex_unlock(&g->lock);
    td_generation_cancel(g);
}

void td_generation_leave(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    g->suspended = false;
    g->connection = NULL;
    g->waiter = (td_generation_waiter){0};
    pthread_mutex_unlock(&g->lock);
    td_generation_cancel(g);
}

/* Have the engine end the choices whose ends_early is set. */
static void end_some(td_generation *g) {
    pthread_mutex_lock(&g->handles_lock);
    for (size_t i = 0; i < g->n_choices; i++) {
        pthread_mutex_lock(&g->lock);
        bool ends = g->choices[i].ends_early;
        pthread_mutex_unlock(&g->lock);
        if (ends && g->handles[i]) td_request_cancel(g->handles[i]);
    }
    pthread_mutex_unlock(&g->handles_lock);
}

void td_generation_attend(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    bool attend = g->attend, some = g->ends_some;
    g->ends_some = false;
    pthread_mutex_unlock(&g->lock);
    if (attend)
        td_generation_cancel(g);
    else if (some)
        end_some(g);
}

/* The flags are set before the engine is asked to end the choices: their last events may come at once, and would otherwise
 * make a whole answer of what there is. */
void td_generation_abort(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    g->aborted = g->dropped = g->ready = true;
    resume_locked(g);
    pthread_mutex_unlock(&g->lock);
    td_generation_cancel(g);
}

void td_generation_fail(td_generation *g, int http, const char *code, const char *sentence) {
    pthread_mutex_lock(&g->lock);
    if (!g->has_error) td_api_fail(&g->error, http, code, "%s", sentence);
    g->has_error = g->dropped = g->ready = true;
    resume_locked(g);
    pthread_mutex_unlock(&g->lock);
    td_generation_cancel(g);
}

/* ---- for the answering thread ---- */

bool td_generation_wait(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    bool wait = !g->ready;
    if (wait) {
        g->suspended = true;
        if (g->connection) MHD_suspend_connection(g->connection);
    }
    pthread_mutex_unlock(&g->lock);
    return wait;
}

void td_choice_take(td_choice *c, td_news *out) {
    *out = c->news;
    c->news = (td_news){0};
}

static size_t bytes_of_news(const td_news *n, const td_api_shown *shown) {
    size_t positions = n->lp_room * (1 + shown->top_logprobs) + n->prompt_lp_room * (1 + td_api_prompt_top(shown));
    return n->text.room + n->deltas_room * sizeof *n->deltas + n->tokens_room * sizeof *n->tokens +
           n->text_end_room * sizeof *n->text_end + positions * sizeof *n->lp;
}

size_t td_generation_bytes(const td_generation *g) {
    size_t bytes = g->req.api->own_bytes ? g->req.api->own_bytes(g->req.own) : 0;
    for (size_t i = 0; i < g->req.n_prompts; i++)
        bytes += g->req.prompts[i].text_len + g->req.prompts[i].n_ids * sizeof *g->req.prompts->ids;
    for (size_t i = 0; i < g->n_choices; i++) bytes += bytes_of_news(&g->choices[i].news, &g->req.shown);
    return bytes;
}

td_choice_state td_choice_get_state(const td_choice *c) {
    return (td_choice_state){.finish = c->finish,
                             .n_calls = c->n_calls,
                             .stop_token = c->stop_token,
                             .stop_reason = c->stop_reason,
                             .used = {c->prompt_tokens, c->cached_tokens, c->completion_tokens, c->reasoning_tokens,
                                      td_api_divides_reasoning(&c->generation->req)}};
}

td_usage td_generation_usage(const td_generation *g) {
    td_usage u = {.reasons = td_api_divides_reasoning(&g->req)};
    for (size_t i = 0; i < g->n_choices; i++) {
        const td_choice *c = &g->choices[i];
        u.completion += c->completion_tokens;
        u.reasoning += c->reasoning_tokens;
        if (i % g->req.n) continue;
        u.prompt += c->prompt_tokens;
        u.cached += c->cached_tokens;
    }
    return u;
}
