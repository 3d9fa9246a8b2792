/* Filling a td_error: one sentence for a person, and the status that goes with it. */
#ifndef TD_CORE_ERROR_H
#define TD_CORE_ERROR_H

#include "tandem.h"

/** Set err (may be NULL) to a formatted sentence and return status, so that a failing path is `return td_fail(err, …)`. */
td_status td_fail(td_error *err, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);

/** Put "prefix: " before a sentence that is already in err; returns err's status. */
td_status td_fail_within(td_error *err, const char *fmt, ...) TD_PRINTF(2, 3);

/** Return from the caller unless the expression is TD_OK. */
#define TD_TRY(expr)                                        \
    do {                                                    \
        td_status td_try_status_ = (expr);                  \
        if (td_try_status_ != TD_OK) return td_try_status_; \
    } while (0)

#endif
