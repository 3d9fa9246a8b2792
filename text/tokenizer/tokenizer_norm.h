/* Unicode normalization forms as tokenizer.json names them (UAX 15). */
#ifndef TD_TEXT_TOKENIZER_NORM_H
#define TD_TEXT_TOKENIZER_NORM_H

#include <jansson.h>

#include "tandem.h"

#define TD_NORM_FORMS_MAX 8
/* A text has at least one byte in four after any of the forms: four-byte letters of mathematics become ASCII. */
#define TD_NORM_SHRINKS_MAX 4

typedef enum { TD_NFC, TD_NFD, TD_NFKC, TD_NFKD } td_norm_form;

/** Forms applied one after the other. Zero-initialise for none. */
typedef struct {
    td_norm_form forms[TD_NORM_FORMS_MAX];
    size_t       n;
} td_norm;

/** Read a "normalizer". @return TD_ENOTSUP with a sentence for another type. */
TD_NODISCARD td_status td_norm_parse(td_norm *norm, const json_t *spec, td_error *err);

/**
 * Normalize valid UTF-8. *out is malloc'd, of *out_len bytes, and the caller's; NULL when s is normalized already (then
 * *out_len == len). Time is O(len log len) also for long runs of combining marks.
 */
TD_NODISCARD td_status td_norm_apply(const td_norm *norm, const char *s, size_t len, char **out, size_t *out_len);

#endif
