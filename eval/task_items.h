/*
 * Tasks from JSON lines: the items, and the prompts made of them.
 *
 *   choice    {"question": "…", "choices": ["…", …], "answer": 1 | "B" | "the choice itself"}
 *   match     {"question": "…", "answer": "…"}                            (GSM8K)
 *   complete  {"task_id": "…", "prompt": "…"}                             (HumanEval)
 */
#ifndef TD_EVAL_TASK_ITEMS_H
#define TD_EVAL_TASK_ITEMS_H

#include <jansson.h>

#include "tandem_tools.h"

typedef struct {
    json_t     **items; /* objects */
    size_t       n;
    td_eval_kind kind;
} td_task;

/** Read and check every line. kind TD_EVAL_AUTO: that of the first item. @return TD_EIO, TD_EFORMAT with the line, TD_EINVAL
 * for an empty file. */
TD_NODISCARD td_status td_task_read(td_task *t, const char *path, td_eval_kind kind, td_error *err);
void                   td_task_close(td_task *t);

/** The choice that is right, in [0, number of choices). Checked by td_task_read. */
size_t td_task_right_choice(const json_t *item);

/** What follows the prompt in an example: the right choice, or the answer. Borrowed. */
const char *td_task_answer(const td_task *t, size_t index);

/** A template with each {name} replaced by the item's string of that name; other braces are text. @param out malloc'd.
 * @return TD_EINVAL names what the item lacks. */
TD_NODISCARD td_status td_task_prompt(const char *pattern, const json_t *item, char **out, td_error *err);

#endif
