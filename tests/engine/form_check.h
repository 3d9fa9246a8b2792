/* The answer that a plain loop over the fake model gives for a request whose answer must follow a form, such as a JSON
 * schema. */
#ifndef TD_TESTS_FORM_CHECK_H
#define TD_TESTS_FORM_CHECK_H

#include "probe_events.h"

/** The form of a request, by itself: the grammar that its probe has is of its engine. */
typedef struct {
    td_grammar_kind kind;
    const char     *source;
    const char     *open, *close; /* of the reasoning before it; NULL: none */
    bool            opened;       /* the answer begins in the reasoning */
} form;

/**
 * What the request must have given: tokens, text, log-probabilities and how it ended, where it has no stop strings and was
 * not cancelled. @param what it is called in messages. @return how many of its tokens were no choice of the model.
 */
uint32_t form_check(const probe *p, const form *f, const td_tokenizer *tok, const char *what);

#endif
