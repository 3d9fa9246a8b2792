/*
 * The text of a calibration as windows of tokens of equal length.
 *
 * A text file is one document. In a file of JSON lines each line is one: {"text": "…"}, or {"messages": […]}, rendered by
 * the model's chat template. The documents' tokens follow each other in one stream, which is cut into windows. Each window
 * begins with what the tokenizer puts before a text (BOS). If there are more windows than wanted, evenly spaced ones are
 * taken.
 */
#ifndef TD_QUANTIZE_CALIBRATION_TEXT_H
#define TD_QUANTIZE_CALIBRATION_TEXT_H

#include "tandem.h"

typedef struct {
    uint32_t *ids; /* [n_windows, window] */
    uint32_t  window, n_windows;
    uint64_t  hash; /* of ids and window */
} td_calibration_text;

static inline uint64_t td_calibration_tokens(const td_calibration_text *t) {
    return (uint64_t)t->n_windows * t->window;
}

/**
 * @param dir the model's folder, for its tokenizer. @param tokens at most; @param window of each.
 * @return TD_ENOTFOUND, TD_EIO; TD_EFORMAT for a text that is not UTF-8 or a line that is no document; TD_EINVAL for one
 * with fewer tokens than a window, or ids that the vocabulary has not.
 */
TD_NODISCARD td_status td_calibration_text_read(const char *path, const char *dir, uint64_t tokens, uint32_t window,
                                                uint32_t vocab, td_calibration_text *out, td_error *err);
void                   td_calibration_text_free(td_calibration_text *t);

#endif
