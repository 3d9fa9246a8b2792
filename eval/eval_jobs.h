/* Many requests through an engine at once, and their answers in order. */
#ifndef TD_EVAL_EVAL_JOBS_H
#define TD_EVAL_EVAL_JOBS_H

#include "tandem.h"

typedef struct td_job_state td_job_state;

/** A request and its result. The caller fills params, except the callback, and prompt (owned) and first. */
typedef struct {
    td_request_params params;
    uint32_t         *prompt; /* of params */
    uint32_t          first;  /* prompt logprobs are summed from this token on */

    td_job_state *state;
    td_request   *request;
    bool          done;
    char         *text; /* generated, terminated; NULL: none */
    size_t        text_len, text_room;
    uint32_t      n_tokens; /* generated */
    double        logprob;  /* sum */
    td_error      error;    /* status TD_OK: the request succeeded */
} td_eval_job;

/** Called when job number i and all before it are done. @return not TD_OK: stop. */
typedef td_status (*td_job_done)(void *user, size_t i, td_error *err);

/** Run all; at most `at_once` are in the engine. @return the first failure, with the job's number, or what done returned. */
TD_NODISCARD td_status td_eval_jobs_run(td_engine *e, td_eval_job *jobs, size_t n, size_t at_once, td_job_done done,
                                        void *user, td_error *err);
void                   td_eval_job_free(td_eval_job *job);

#endif
