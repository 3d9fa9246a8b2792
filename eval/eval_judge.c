#include "eval/eval_judge.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

size_t td_judge_jobs_of(const td_task *t, size_t index) {
    return t->kind == TD_EVAL_CHOICE ? json_array_size(json_object_get(t->items[index], "choices")) : 1;
}

static json_t *real(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *judge_choice(td_eval_judge *j, const json_t *item, const td_eval_job *jobs) {
    const json_t *choices = json_object_get(item, "choices");
    size_t        n = json_array_size(choices), right = td_task_right_choice(item), best = 0, best_normalised = 0;
    json_t       *scores = json_array();
    double        top = -INFINITY, top_normalised = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        double score = jobs[i].logprob, normalised = score / (double)json_string_length(json_array_get(choices, i));
        if (score > top) top = score, best = i;
        if (normalised > top_normalised) top_normalised = normalised, best_normalised = i;
        json_array_append_new(scores, real(score));
    }
    j->right += best == right;
    j->right_normalised += best_normalised == right;
    return json_pack("{s:I, s:I, s:I, s:b, s:o}", "expected", (json_int_t)right, "choice", (json_int_t)best,
                     "choice_normalised", (json_int_t)best_normalised, "correct", best == right, "scores", scores);
}

/* The answer that the task expects: what the rule finds in the task's own answer, or all of it if the rule finds nothing. */
static td_status expected_answer(const td_eval_judge *j, const json_t *item, char **out) {
    const json_t *text = json_object_get(item, "answer");
    TD_TRY(td_answer_find(&j->rule, json_string_value(text), json_string_length(text), out));
    return *out ? TD_OK
                : td_answer_find(&(td_answer_rule){.kind = TD_ANSWER_WHOLE}, json_string_value(text),
                                 json_string_length(text), out);
}

static json_t *judge_match(td_eval_judge *j, const json_t *item, const td_eval_job *job) {
    char   *answer = NULL, *expected = NULL;
    json_t *line = NULL;
    if (td_answer_find(&j->rule, job->text, job->text_len, &answer) == TD_OK &&
        expected_answer(j, item, &expected) == TD_OK) {
        bool right = answer && expected && !strcmp(answer, expected);
        j->right += right;
        j->no_answer += !answer;
        line = json_pack("{s:s?, s:s?, s:b, s:o}", "expected", expected, "answer", answer, "correct", right, "completion",
                         json_stringn(job->text, job->text_len));
    }
    free(answer);
    free(expected);
    return line;
}

td_status td_judge_item(td_eval_judge *j, size_t index, const td_eval_job *jobs, td_error *err) {
    const json_t *item = j->task->items[index], *id = json_object_get(item, "task_id");
    json_t       *line;
    switch (j->task->kind) {
        case TD_EVAL_CHOICE: line = judge_choice(j, item, jobs); break;
        case TD_EVAL_MATCH: line = judge_match(j, item, jobs); break;
        default: line = json_pack("{s:o}", "completion", json_stringn(jobs->text, jobs->text_len));
    }
    if (!line) return td_fail(err, TD_ENOMEM, "out of memory to judge an item");
    j->items++;
    if (j->output) {
        if (id)
            json_object_set(line, "task_id", (json_t *)id);
        else
            json_object_set_new(line, "item", json_integer((json_int_t)index));
        errno = 0;
        if (json_dumpf(line, j->output, 0) != 0 || fputc('\n', j->output) == EOF || fflush(j->output) != 0) {
            json_decref(line);
            return td_fail(err, TD_EIO, "cannot write %s: %s", j->output_path, strerror(errno));
        }
    }
    json_decref(line);
    return TD_OK;
}
