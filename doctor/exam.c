/* Runs the checks one after the other on a thread of their own, and waits for each with a limit. */
#include "doctor/doctor.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/threads/thread.h"
#include "doctor/check.h"

#define LISTS 3

typedef struct {
    td_finding finding;
    td_status  st;
    td_error   err;
    double     seconds;
} result;

typedef struct {
    td_doctor_exam  exam;
    td_check_list   lists[LISTS];
    size_t          n;
    pthread_mutex_t lock;
    pthread_cond_t  moved;
    size_t          done; /* number of checks that have a result */
    result          latest;
    bool            is_told; /* the latest result was reported, so the next check may begin */
} visit;

static const td_check *check_of(const visit *v, size_t i) {
    const td_check_list *list = v->lists;
    while (i >= list->n) i -= list++->n;
    return &list->checks[i];
}

static result run_check(const visit *v, const td_check *c) {
    result   r = {.finding = {.value = NAN, .bound = NAN}};
    uint64_t begin = td_trace_now();
    r.st = c->run(&v->exam, c->arg, &r.finding, &r.err);
    r.seconds = (double)(td_trace_now() - begin) * 1e-9;
    return r;
}

static void *run_all(void *arg) {
    visit *v = arg;
    for (size_t i = 0; i < v->n; i++) {
        result r = run_check(v, check_of(v, i));
        pthread_mutex_lock(&v->lock);
        v->latest = r;
        v->done = i + 1;
        v->is_told = false;
        pthread_cond_broadcast(&v->moved);
        while (!v->is_told) pthread_cond_wait(&v->moved, &v->lock);
        pthread_mutex_unlock(&v->lock);
    }
    return NULL;
}

static td_doctor_outcome outcome_of(const result *r) {
    const td_finding *f = &r->finding;
    if (r->st == TD_ENOTSUP) return TD_DOCTOR_NOTE;
    if (r->st != TD_OK) return TD_DOCTOR_FAILED;
    if (!isnan(f->bound) && !(f->value <= f->bound)) return TD_DOCTOR_FAILED; /* a NaN fails every bound */
    return f->is_note ? TD_DOCTOR_NOTE : TD_DOCTOR_OK;
}

/* Writes what to do about a failed check: the check's advice, then the backend's. */
static const char *advice_on(const visit *v, const td_check *c, char text[TD_ERROR_TEXT_MAX]) {
    const td_backend *b = td_backend_find(v->exam.cards[0]->ops->name);
    const char       *more = !b                                ? NULL
                             : c->subject == TD_SUBJECT_HEALTH ? b->health_advice
                             : c->subject == TD_SUBJECT_GROUP  ? b->group_advice
                                                               : NULL;
    snprintf(text, TD_ERROR_TEXT_MAX, "%s%s%s", c->advice, more ? "; " : "", more ? more : "");
    return text;
}

static void tell(const visit *v, const td_check *c, const result *r) {
    char          advice[TD_ERROR_TEXT_MAX];
    td_doctor_row row = {.part = c->part,
                         .what = c->what,
                         .outcome = outcome_of(r),
                         .found = r->st == TD_OK ? r->finding.said : r->err.text,
                         .value = r->finding.value,
                         .bound = r->finding.bound,
                         .unit = r->finding.unit,
                         .seconds = r->seconds};
    if (row.outcome == TD_DOCTOR_FAILED) row.advice = advice_on(v, c, advice);
    v->exam.tell(v->exam.user, &row);
}

static void tell_hung(const visit *v, const td_check *c) {
    char text[128], advice[TD_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "it has not ended within %u s; the checks behind it were not run", v->exam.patience_s);
    td_doctor_row row = {.part = c->part,
                         .what = c->what,
                         .outcome = TD_DOCTOR_FAILED,
                         .found = text,
                         .advice = advice_on(v, c, advice),
                         .value = NAN,
                         .bound = NAN,
                         .seconds = v->exam.patience_s};
    v->exam.tell(v->exam.user, &row);
}

/* @return false if the result did not come in time. */
static bool await_result(visit *v, size_t i, result *out) {
    struct timespec until;
    int             late = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += v->exam.patience_s;
    pthread_mutex_lock(&v->lock);
    while (v->done <= i && late != ETIMEDOUT) late = pthread_cond_timedwait(&v->moved, &v->lock, &until);
    bool came = v->done > i;
    *out = v->latest;
    v->is_told = true;
    pthread_cond_broadcast(&v->moved);
    pthread_mutex_unlock(&v->lock);
    return came;
}

td_status td_doctor_run(const td_doctor_exam *e, td_error *err) {
    visit    *v = calloc(1, sizeof *v); /* allocated, because a check that hangs uses it for ever */
    pthread_t thread;
    if (!v) return td_fail(err, TD_ENOMEM, "out of memory for the checks");
    *v = (visit){.exam = *e, .lists = {td_exam_device(), td_exam_blocks(), td_exam_group()}};
    for (size_t i = 0; i < LISTS; i++) v->n += v->lists[i].n;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->moved, NULL);
    td_status st = td_thread_start(&thread, "doctor", run_all, v, err);
    for (size_t i = 0; st == TD_OK && i < v->n; i++) {
        result r;
        if (!await_result(v, i, &r)) {
            tell_hung(v, check_of(v, i));
            return td_fail(err, TD_EDEVICE, "the check \"%s\" of %s hangs", check_of(v, i)->what, check_of(v, i)->part);
        }
        tell(v, check_of(v, i), &r);
    }
    if (st == TD_OK) pthread_join(thread, NULL);
    pthread_cond_destroy(&v->moved);
    pthread_mutex_destroy(&v->lock);
    free(v);
    return st;
}
