#include "eval/eval_jobs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

struct td_job_state {
    pthread_mutex_t lock; /* guards every job's done */
    pthread_cond_t  changed;
};

static bool append(td_eval_job *j, const char *text, size_t len) {
    if (j->text_len + len + 1 > j->text_room) {
        size_t room = 2 * j->text_room + len + 64;
        char  *more = realloc(j->text, room);
        if (!more) return false;
        j->text = more;
        j->text_room = room;
    }
    memcpy(j->text + j->text_len, text, len);
    j->text_len += len;
    j->text[j->text_len] = 0;
    return true;
}

/* On the engine thread. */
static void on_event(void *user, const td_event *ev) {
    td_eval_job *j = user;
    if (!append(j, ev->text, ev->text_len)) td_fail(&j->error, TD_ENOMEM, "out of memory for an answer");
    for (size_t i = j->first; i < ev->n_prompt_logprobs; i++) j->logprob += ev->prompt_logprobs[i].logprob;
    if (ev->finish == TD_FINISH_NONE) return;
    j->n_tokens = ev->completion_tokens;
    if (ev->finish == TD_FINISH_ERROR) j->error = *ev->error;
    if (ev->finish == TD_FINISH_ABORT) td_fail(&j->error, TD_ECANCELLED, "the request was aborted");
    pthread_mutex_lock(&j->state->lock);
    j->done = true;
    pthread_cond_signal(&j->state->changed);
    pthread_mutex_unlock(&j->state->lock);
}

static td_status submit(td_engine *e, td_job_state *state, td_eval_job *j, td_error *err) {
    j->state = state;
    j->params.on_event = on_event;
    j->params.user = j;
    return td_engine_submit(e, &j->params, &j->request, err);
}

static void wait_for(td_eval_job *j) {
    pthread_mutex_lock(&j->state->lock);
    while (!j->done) pthread_cond_wait(&j->state->changed, &j->state->lock);
    pthread_mutex_unlock(&j->state->lock);
    td_request_release(j->request);
    j->request = NULL;
}

td_status td_eval_jobs_run(td_engine *e, td_eval_job *jobs, size_t n, size_t at_once, td_job_done done, void *user,
                           td_error *err) {
    td_job_state state = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    td_status    st = TD_OK;
    size_t       submitted = 0, finished = 0;
    for (; st == TD_OK && finished < n; finished++) {
        for (; st == TD_OK && submitted < n && submitted - finished < at_once; submitted += st == TD_OK)
            st = submit(e, &state, &jobs[submitted], err);
        if (st != TD_OK) break;
        wait_for(&jobs[finished]);
        if (jobs[finished].error.status != TD_OK)
            st = td_fail(err, jobs[finished].error.status, "%s", jobs[finished].error.text);
        else
            st = done(user, finished, err);
    }
    for (size_t i = finished; i < submitted; i++)
        if (jobs[i].request) td_request_cancel(jobs[i].request);
    for (size_t i = finished; i < submitted; i++)
        if (jobs[i].request) wait_for(&jobs[i]);
    pthread_cond_destroy(&state.changed);
    pthread_mutex_destroy(&state.lock);
    return st;
}

void td_eval_job_free(td_eval_job *job) {
    free(job->prompt);
    free(job->text);
    *job = (td_eval_job){0};
}
