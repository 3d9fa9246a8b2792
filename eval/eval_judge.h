/* Judges the answers to an item, and writes the line about it into the output. */
#ifndef TD_EVAL_EVAL_JUDGE_H
#define TD_EVAL_EVAL_JUDGE_H

#include <stdio.h>

#include "eval/answer_text.h"
#include "eval/eval_jobs.h"
#include "eval/task_items.h"

typedef struct {
    const td_task *task;
    td_answer_rule rule;
    FILE          *output; /* NULL: none */
    const char    *output_path;
    uint64_t       items, right, right_normalised, no_answer;
} td_eval_judge;

/** Jobs of an item: one, or one a choice. */
size_t td_judge_jobs_of(const td_task *t, size_t index);

/** @param jobs of the item, done. @return TD_EIO when the line cannot be written. */
TD_NODISCARD td_status td_judge_item(td_eval_judge *j, size_t index, const td_eval_job *jobs, td_error *err);

#endif
