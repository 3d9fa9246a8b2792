/* A request's error as OpenAI's clients expect it: HTTP status and {"error": {"message", "type", "param", "code"}}. */
#ifndef TD_SERVER_API_API_ERROR_H
#define TD_SERVER_API_API_ERROR_H

#include "server/api/json_writer.h"
#include "tandem.h"

#define TD_API_PARAM_MAX 96

typedef struct {
    int         http;                    /* 400, 401, 404, … */
    const char *code;                    /* static: "model_not_found", "context_length_exceeded", …; NULL: null */
    char        param[TD_API_PARAM_MAX]; /* the field at fault; empty: null */
    char        message[TD_ERROR_TEXT_MAX];
} td_api_error;

/** A 400 about the field param (NULL: none). Returns TD_EINVAL, so that a failing path is `return td_api_bad(err, "n",
 * …)`. */
td_status td_api_bad(td_api_error *err, const char *param, const char *fmt, ...) TD_PRINTF(3, 4);

/** Any other status; returns TD_EINVAL. */
td_status td_api_fail(td_api_error *err, int http, const char *code, const char *fmt, ...) TD_PRINTF(4, 5);

/** A 500 that says that memory is short; returns TD_EINVAL. */
td_status td_api_no_memory(td_api_error *err);

/** From a library error: EINVAL and ENOTSUP 400, EBUSY, ESHUTDOWN and ELOST 503, the rest 500. Returns TD_EINVAL. */
td_status td_api_from_status(td_api_error *err, td_status status, const td_error *cause, const char *param);

/** A field that an API calls by another name than the common request; errors about it have to say this one. */
typedef struct {
    const char *common, *here;
} td_api_name;

/** Put an error of the common code into an API's words: its param, and the field that its sentence quotes. @param names
 * ended by {0}; NULL: none. */
void td_api_rename_error(const td_api_name *names, td_api_error *err);

/** Writes an error in the form of an API. */
typedef void (*td_error_writer)(td_jbuf *b, const td_api_error *err);

/** Append {"error": {…}}. */
void td_api_error_write(td_jbuf *b, const td_api_error *err);

#endif
