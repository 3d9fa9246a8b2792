/*
 * A text as windows of tokens of which some are scored: the protocol of td_perplexity (docs/evaluation.md).
 *
 * The text is tokenised whole, a JSONL file document by document; windows do not cross documents. Window k of a document t
 * has the tokens t[b .. e), b = k * stride, e = min(b + window, length). The model is fed what the tokenizer puts before a
 * text (BOS, or nothing) and t[b .. e - 1); scored is every token of the window that no earlier window has scored and that
 * something stands before.
 */
#ifndef TD_EVAL_SCORED_TEXT_H
#define TD_EVAL_SCORED_TEXT_H

#include <jansson.h>

#include "tandem_tools.h"

#define TD_TEXT_PREFIX_MAX 16

typedef struct {
    uint32_t window, stride; /* tokens; 2 <= window, 1 <= stride <= window */
    uint64_t limit;          /* of the text's tokens, the first so many; 0: all */
} td_text_protocol;

typedef struct {
    uint64_t begin;        /* of its first token in ids */
    uint32_t n;            /* tokens: n - 1 of them are fed, after the prefix */
    uint32_t first_scored; /* of the window; from there all n are scored */
} td_text_window;

typedef struct {
    td_text_protocol protocol;
    uint32_t        *ids; /* [n_ids] of all documents */
    uint32_t         prefix[TD_TEXT_PREFIX_MAX], n_prefix;
    td_text_window  *windows;
    uint64_t         n_ids, n_documents, n_windows;
    uint64_t         n_scored, n_fed; /* tokens, in all windows */
    uint64_t         hash;            /* of documents and prefix, as ids */
} td_scored_text;

/** Rows of a window that go through the model; row i predicts its token i + 1 - n_prefix. */
static inline uint32_t td_window_rows(const td_scored_text *t, const td_text_window *w) {
    return t->n_prefix + w->n - 1;
}

/** What the tokenizer puts before a text: BOS, or nothing. @return TD_ENOTSUP when that is not a short prefix. */
TD_NODISCARD td_status td_text_prefix(const td_tokenizer *tok, uint32_t prefix[TD_TEXT_PREFIX_MAX], uint32_t *n_prefix,
                                      td_error *err);

/** A line of JSON lines. */
typedef struct {
    const json_t *object;
    const char   *text;        /* [len] what it was read from */
    size_t        len, number; /* number: from 1 */
} td_text_line;

/** @param stop set it: no more lines are wanted. */
typedef td_status (*td_take_text_line)(void *user, const td_text_line *line, bool *stop, td_error *err);

/**
 * Each line of text [len] that is not blank, in order, until one fails or stops.
 * @param path for messages. @return TD_EFORMAT with the line's number, TD_ENOMEM, or the failure of take.
 */
TD_NODISCARD td_status td_text_each_line(const char *path, const char *text, size_t len, td_take_text_line take, void *user,
                                         td_error *err);

/**
 * @param path a text, or JSON lines {"text": …} when it ends in .jsonl.
 * @return TD_EIO, TD_EFORMAT with the line, TD_EINVAL when no token could be scored.
 */
TD_NODISCARD td_status td_scored_text_open(const char *path, const td_tokenizer *tok, const td_text_protocol *p,
                                           td_scored_text *out, td_error *err);
void                   td_scored_text_close(td_scored_text *t);

/** That all tokens are of a model's vocabulary. @return TD_EINVAL. */
TD_NODISCARD td_status td_scored_text_check_ids(const td_scored_text *t, uint32_t vocab, td_error *err);

#endif
