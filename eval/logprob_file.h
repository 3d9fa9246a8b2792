/*
 * A file with a model's log-probabilities at every scored position of a text: the reference of a later comparison.
 *
 *   header  td_logprob_header, 56 bytes, little endian
 *   rows    [n_rows] of 8 + 2 * vocab bytes: f32 log-probability of the token that comes, f32 range, u16 [vocab] codes (logit_rows.h)
 *
 * A file gets its name when it is whole (core/files/partial_file.h). Every byte read is checked: what is not exactly a file
 * for this text, protocol and vocabulary is refused.
 */
#ifndef TD_EVAL_LOGPROB_FILE_H
#define TD_EVAL_LOGPROB_FILE_H

#include <stdio.h>

#include "core/files/partial_file.h"
#include "eval/scored_text.h"

typedef struct {
    char     magic[8]; /* "TDLOGPRB" */
    uint32_t version, vocab, window, stride;
    uint64_t limit, text_hash, n_rows, n_windows;
} td_logprob_header;

typedef struct {
    td_partial_file written;
    FILE           *f;    /* when reading */
    char           *path; /* of f */
    uint32_t        vocab;
    char           *row; /* one */
} td_logprob_file;

TD_NODISCARD td_status td_logprob_file_create(td_logprob_file *file, const char *path, const td_scored_text *t,
                                              uint32_t vocab, td_error *err);
/** One row: logits, their td_log_sum_exp, the token that comes. */
TD_NODISCARD td_status td_logprob_file_write(td_logprob_file *file, const float *logits, double lse, uint32_t target,
                                             td_error *err);
/** All rows are written: give it its name. */
TD_NODISCARD td_status td_logprob_file_finish(td_logprob_file *file, td_error *err);

/** @return TD_EFORMAT for a file that is damaged, TD_EINVAL for one of another text, protocol or vocabulary. */
TD_NODISCARD td_status td_logprob_file_open(td_logprob_file *file, const char *path, const td_scored_text *t, td_error *err);
/** The next row. @param logprobs [vocab] */
TD_NODISCARD td_status td_logprob_file_read(td_logprob_file *file, float *logprobs, float *target_logprob, td_error *err);

void td_logprob_file_close(td_logprob_file *file); /* removes what was not finished */

#endif
