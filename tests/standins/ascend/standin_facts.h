/* The arguments of a call against the table of facts. */
#ifndef TD_TESTS_ASCEND_STANDIN_FACTS_H
#define TD_TESTS_ASCEND_STANDIN_FACTS_H

#include <stdarg.h>

#include "standin_op.h"

/** The tensor behind a handle, which must not be destroyed. @param what for sentences. */
const standin_tensor *standin_live(const td_acl_tensor *tensor, const char *what);

/** All arguments of a call of op, in the order of its function, and STANDIN_END behind them; who breaks a fact ends here.
 * @return false: TD_STANDIN_LACKS names the type of one; the words for aclGetRecentErrMsg are set. */
bool standin_check_facts(const td_acl_executor *x, const char *op, va_list *list);

#endif
