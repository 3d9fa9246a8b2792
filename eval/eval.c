/* td_eval: prompts of a task's items, through the engine, to the judge. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/files/file_write.h"
#include "eval/eval_judge.h"

#define AT_ONCE 4 /* requests in the engine, times those that it runs at a time: a slow one does not hold the others up */

#define QUEUE 1000000 /* never full */

/* What a kind of task brings along. */
typedef struct {
    const char        *prompt;
    const char *const *stop; /* NULL-terminated */
    uint32_t           max_tokens;
} task_defaults;

static const char *const   MATCH_STOP[] = {"\n\n", "Question:", NULL};
static const char *const   COMPLETE_STOP[] = {"\nclass", "\ndef",   "\n#",
                                              "\nif",    "\nprint", NULL}; /* Codex, arXiv 2107.03374, section 2.1 */
static const task_defaults DEFAULTS[] = {
    [TD_EVAL_CHOICE] = {.prompt = "Question: {question}\nAnswer:"},
    [TD_EVAL_MATCH] = {.prompt = "Question: {question}\nAnswer:", .stop = MATCH_STOP, .max_tokens = 256},
    [TD_EVAL_COMPLETE] = {.prompt = "{prompt}", .stop = COMPLETE_STOP, .max_tokens = 512},
};

typedef struct {
    const td_eval_options *o;
    td_task                task, shots;
    char                  *examples; /* before every prompt */
    const char            *pattern;
    const char *const     *stop;
    size_t                 n_stop;
    size_t                 first, end; /* items that are scored */
    td_engine             *engine;
    td_engine_info         info;
    td_eval_job           *jobs;     /* [n_jobs] of all items, in order */
    size_t                *job_item; /* [n_jobs] */
    size_t                 n_jobs;
    td_eval_judge          judge;
    uint64_t               prompt_tokens, generated_tokens;
} run;

/* ---- prompts --------------------------------------------------------------------------------- */

static td_status join(char **out, const char *a, const char *b, const char *c, td_error *err) {
    if (asprintf(out, "%s%s%s", a, b, c) >= 0) return TD_OK;
    *out = NULL;
    return td_fail(err, TD_ENOMEM, "out of memory for a prompt");
}

/* An item as the pattern shows it. @param path of a task other than the one that is scored, or NULL */
static td_status prompt_of(const run *r, const td_task *task, const char *path, size_t index, char **out, td_error *err) {
    td_status st = td_task_prompt(r->pattern, task->items[index], out, err);
    if (st != TD_OK) td_fail_within(err, path ? "%s, item %zu" : "%sitem %zu", path ? path : "", index);
    return st;
}

/* Solved items: "prompt answer", an empty line after each. */
static td_status make_examples(run *r, td_error *err) {
    const td_task *from = r->o->shots_path ? &r->shots : &r->task;
    td_status      st = join(&r->examples, "", "", "", err);
    for (size_t i = 0; st == TD_OK && i < r->o->shots; i++) {
        char *prompt = NULL, *one = NULL, *all = NULL;
        st = prompt_of(r, from, r->o->shots_path, i, &prompt, err);
        if (st == TD_OK) st = join(&one, prompt, " ", td_task_answer(from, i), err);
        if (st == TD_OK) st = join(&all, r->examples, one, "\n\n", err);
        if (all) {
            free(r->examples);
            r->examples = all;
        }
        free(one);
        free(prompt);
    }
    return st;
}

static td_status open_task(run *r, td_error *err) {
    const td_eval_options *o = r->o;
    if (!o->task_path) return td_fail(err, TD_EINVAL, "task is missing");
    TD_TRY(td_task_read(&r->task, o->task_path, o->kind, err));
    const task_defaults *d = &DEFAULTS[r->task.kind];
    r->pattern = o->prompt ? o->prompt : d->prompt;
    r->stop = o->stop ? o->stop : o->chat ? NULL : d->stop;
    r->n_stop = o->n_stop;
    if (!o->stop)
        while (r->stop && r->stop[r->n_stop]) r->n_stop++;
    if (r->task.kind == TD_EVAL_CHOICE && (o->stop || o->max_tokens || o->extract))
        return td_fail(err, TD_EINVAL,
                       "stop, max-tokens and extract say how an answer is generated and read, and choices are only scored");
    if (r->task.kind == TD_EVAL_COMPLETE && o->extract)
        return td_fail(err, TD_EINVAL, "extract finds an answer, and items to complete have none");
    if (o->shots_path && !o->shots)
        return td_fail(err, TD_EINVAL, "shots-from says where solved items come from: give shots, their number, too");
    if (o->shots && r->task.kind == TD_EVAL_COMPLETE)
        return td_fail(err, TD_EINVAL, "shots: items to complete have no answers to show");
    if (o->shots && o->shots_path) TD_TRY(td_task_read(&r->shots, o->shots_path, r->task.kind, err));
    if (o->shots > (o->shots_path ? r->shots.n : r->task.n))
        return td_fail(err, TD_EINVAL, "shots %u: there are not so many items", o->shots);
    r->first = o->shots_path ? 0 : o->shots;
    r->end = o->limit && o->limit < r->task.n - r->first ? r->first + o->limit : r->task.n;
    if (r->first == r->end) return td_fail(err, TD_EINVAL, "no item is left to be scored");
    TD_TRY(td_answer_rule_open(&r->judge.rule, o->extract ? o->extract : "last-number", err));
    return make_examples(r, err);
}

/* The text that an item's answer follows. */
static td_status item_text(const run *r, size_t index, char **out, td_error *err) {
    char     *prompt = NULL, *whole = NULL;
    td_status st = prompt_of(r, &r->task, NULL, index, &prompt, err);
    if (st == TD_OK) st = join(&whole, r->examples, prompt, "", err);
    free(prompt);
    *out = whole;
    if (st != TD_OK || !r->o->chat) return st;
    const td_tokenizer *tok = td_engine_tokenizer(r->engine);
    json_t             *request =
        json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", whole, "add_generation_prompt", 1);
    size_t len;
    *out = NULL;
    st = request ? td_chat_template_render_value(td_engine_chat_template(r->engine), request, td_tokenizer_bos(tok),
                                                 td_tokenizer_eos(tok), out, &len, err)
                 : td_fail(err, TD_ENOMEM, "out of memory for a prompt");
    json_decref(request);
    free(whole);
    return st;
}

static td_status encode(const run *r, const char *text, uint32_t **ids, size_t *n, td_error *err) {
    td_status st = td_tokenizer_encode(td_engine_tokenizer(r->engine), text, strlen(text), r->o->chat, !r->o->chat, ids, n);
    return st == TD_OK ? st : td_fail(err, st, "a prompt cannot be tokenised: %s", td_status_text(st));
}

/* The tokens of text + choice; those of the choice are what differs from the text's own, at least one. */
static td_status fill_choice(run *r, td_eval_job *job, const char *text, const char *choice, td_error *err) {
    char     *whole = NULL;
    uint32_t *context = NULL;
    size_t    n_context = 0, n = 0, same = 0;
    td_status st = join(&whole, text, r->o->chat ? "" : " ", choice, err);
    if (st == TD_OK) st = encode(r, text, &context, &n_context, err);
    if (st == TD_OK) st = encode(r, whole, &job->prompt, &n, err);
    if (st == TD_OK) {
        while (same < n_context && same + 1 < n && context[same] == job->prompt[same]) same++;
        job->first = same ? (uint32_t)same : 1; /* nothing predicts the first token of all */
        job->params.n_prompt = n;
        job->params.max_tokens = 0;
        job->params.prompt_logprobs = true;
    }
    free(context);
    free(whole);
    return st;
}

static td_status fill_generation(run *r, td_eval_job *job, const char *text, td_error *err) {
    td_request_params *p = &job->params;
    p->max_tokens = r->o->max_tokens ? r->o->max_tokens : DEFAULTS[r->task.kind].max_tokens;
    p->stop = r->stop;
    p->n_stop = r->n_stop;
    return encode(r, text, &job->prompt, &p->n_prompt, err);
}

static td_status fill_jobs(run *r, size_t index, td_eval_job *jobs, td_error *err) {
    char         *text = NULL;
    const json_t *choices = json_object_get(r->task.items[index], "choices");
    td_status     st = item_text(r, index, &text, err);
    for (size_t i = 0; st == TD_OK && i < td_judge_jobs_of(&r->task, index); i++) {
        td_request_params *p = &jobs[i].params;
        td_request_params_init(p);
        p->sampling.temperature = 0;
        st = r->task.kind == TD_EVAL_CHOICE
                 ? fill_choice(r, &jobs[i], text, json_string_value(json_array_get(choices, i)), err)
                 : fill_generation(r, &jobs[i], text, err);
        p->prompt = jobs[i].prompt;
        if (st == TD_OK && (p->n_prompt == 0 || p->n_prompt + (p->max_tokens > 0) > r->info.context_length))
            st = td_fail(err, TD_EINVAL, "item %zu: its prompt has %zu tokens, the context length is %u", index, p->n_prompt,
                         r->info.context_length);
        r->prompt_tokens += p->n_prompt;
    }
    free(text);
    return st;
}

static td_status make_jobs(run *r, td_error *err) {
    for (size_t i = r->first; i < r->end; i++) r->n_jobs += td_judge_jobs_of(&r->task, i);
    r->jobs = calloc(r->n_jobs, sizeof *r->jobs);
    r->job_item = calloc(r->n_jobs, sizeof *r->job_item);
    if (!r->jobs || !r->job_item) return td_fail(err, TD_ENOMEM, "out of memory for the task's requests");
    for (size_t i = r->first, at = 0; i < r->end; i++) {
        size_t n = td_judge_jobs_of(&r->task, i);
        TD_TRY(fill_jobs(r, i, r->jobs + at, err));
        for (size_t k = 0; k < n; k++) r->job_item[at++] = i;
    }
    return TD_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static td_status open_engine(run *r, td_error *err) {
    td_engine_options eo = r->o->model;
    eo.decode_log_interval = 0;
    eo.max_queued_requests = QUEUE;
    TD_TRY(td_engine_open(&eo, &r->engine, err));
    td_engine_get_info(r->engine, &r->info);
    if (!td_engine_tokenizer(r->engine)) return td_fail(err, TD_EINVAL, "the model has no tokenizer");
    if (r->o->chat && !td_engine_chat_template(r->engine)) return td_fail(err, TD_EINVAL, "the model has no chat template");
    return TD_OK;
}

static td_status open_output(run *r, td_error *err) {
    r->judge.task = &r->task;
    r->judge.output_path = r->o->output_path;
    if (!r->o->output_path) return TD_OK;
    if (td_same_file(r->o->output_path, r->o->task_path) || td_same_file(r->o->output_path, r->o->shots_path))
        return td_fail(err, TD_EINVAL, "%s would be overwritten: choose another output", r->o->output_path);
    r->judge.output = fopen(r->o->output_path, "wb");
    return r->judge.output ? TD_OK : td_fail(err, TD_EIO, "cannot write %s: %s", r->o->output_path, strerror(errno));
}

/* In order of the jobs; an item is judged with its last. */
static td_status job_done(void *user, size_t i, td_error *err) {
    run   *r = user;
    size_t item = r->job_item[i], n = td_judge_jobs_of(&r->task, item);
    r->generated_tokens += r->jobs[i].n_tokens;
    if (i + 1 < r->n_jobs && r->job_item[i + 1] == item) return TD_OK;
    TD_TRY(td_judge_item(&r->judge, item, &r->jobs[i + 1 - n], err));
    for (size_t k = i + 1 - n; k <= i; k++) td_eval_job_free(&r->jobs[k]);
    if (r->o->progress) r->o->progress(r->o->user, item + 1 - r->first, r->end - r->first, "items");
    return TD_OK;
}

static td_estimate share(uint64_t right, uint64_t n) {
    double p = (double)right / (double)n;
    return (td_estimate){.mean = p, .error = n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : NAN};
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static td_status run_all(run *r, td_eval_result *out, td_error *err) {
    double begin = now_s();
    if (r->o->progress) r->o->progress(r->o->user, 0, r->end - r->first, "items");
    TD_TRY(
        td_eval_jobs_run(r->engine, r->jobs, r->n_jobs, (size_t)AT_ONCE * r->info.max_running_requests, job_done, r, err));
    *out = (td_eval_result){.kind = r->task.kind,
                            .items = r->judge.items,
                            .no_answer = r->judge.no_answer,
                            .prompt_tokens = r->prompt_tokens,
                            .generated_tokens = r->generated_tokens,
                            .seconds = now_s() - begin,
                            .quantization = r->info.quantization,
                            .expert_quantization = r->info.expert_quantization};
    if (out->kind != TD_EVAL_COMPLETE) out->accuracy = share(r->judge.right, r->judge.items);
    if (out->kind == TD_EVAL_CHOICE) out->accuracy_normalised = share(r->judge.right_normalised, r->judge.items);
    return TD_OK;
}

static td_status close_run(run *r, td_status st, td_error *err) {
    td_engine_close(r->engine, 0);
    for (size_t i = 0; r->jobs && i < r->n_jobs; i++) td_eval_job_free(&r->jobs[i]);
    free(r->jobs);
    free(r->job_item);
    free(r->examples);
    td_answer_rule_close(&r->judge.rule);
    td_task_close(&r->task);
    td_task_close(&r->shots);
    if (r->judge.output && fclose(r->judge.output) != 0 && st == TD_OK)
        st = td_fail(err, TD_EIO, "cannot write %s: %s", r->o->output_path, strerror(errno));
    return st;
}

td_status td_eval(const td_eval_options *o, td_eval_result *out, td_error *err) {
    run r = {.o = o};
    *out = (td_eval_result){0};
    td_status st = open_task(&r, err);
    if (st == TD_OK) st = open_output(&r, err);
    if (st == TD_OK) st = open_engine(&r, err);
    if (st == TD_OK) st = make_jobs(&r, err);
    if (st == TD_OK) st = run_all(&r, out, err);
    return close_run(&r, st, err);
}
