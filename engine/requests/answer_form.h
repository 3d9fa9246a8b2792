/*
 * The form that a request's answer must have: where its text is in the grammar, and in the reasoning before it.
 *
 * DESIGN. Three phases, which only follow each other:
 *   OPENING    the model may still begin to reason: the text is empty, or the beginning of the format's opening marker, and
 *              perhaps the beginning of a text of the grammar as well
 *   REASONING  any text, until the closing marker; the token that completes it ends with it, and the request cannot end
 *              before
 *   TEXT       the grammar's text, from the token behind the marker on, or from the first one
 * A mask depends on the form and the request's own text alone.
 *
 * The form stands behind the request's last token. The engine thread uses it, or one of the threads that sample for it.
 */
#ifndef TD_ENGINE_REQUESTS_ANSWER_FORM_H
#define TD_ENGINE_REQUESTS_ANSWER_FORM_H

#include "engine/requests/marker_tokens.h"
#include "text/grammar/grammar.h"
#include "text/parse/marker_scan.h"

/** What TD_EINVAL of a form means. */
#define TD_GRAMMAR_AMBIGUOUS "the answer has more readings in the grammar, or is nested deeper, than can be followed"

typedef enum { TD_FORM_OPENING, TD_FORM_REASONING, TD_FORM_TEXT } td_form_phase;

typedef struct {
    const td_tokenizer *tokenizer;
    td_vocab_trie      *trie; /* of tokenizer; held by the form */
    td_grammar         *grammar;
    td_marker_tokens   *markers;       /* of the reasoning before the text, held by the form; NULL: no reasoning */
    bool                opened;        /* the answer begins in the reasoning */
    bool                shows_special; /* special tokens are part of the text */
    const uint32_t     *stop_ids;      /* [n_stop_ids] borrowed for the form's life: allowed where the text may end, alone */
    size_t              n_stop_ids;
} td_answer_form_params;

typedef struct {
    td_answer_form_params p;
    td_grammar_place     *place;
    td_form_phase         phase;
    size_t                n_opened; /* OPENING: the text is the marker's first n_opened bytes */
    bool                  fits;     /* OPENING: the grammar allows the text so far, and place is behind it */
    td_marker_scan        scan;     /* REASONING: the search for the closing marker */
    uint32_t             *mask;     /* [TD_TRIE_WORDS(vocab)] with markers; else NULL */
} td_answer_form;

/** @return TD_ENOMEM; TD_EINVAL when the grammar was used with another vocabulary. */
TD_NODISCARD td_status td_answer_form_open(const td_answer_form_params *p, td_answer_form **out, td_error *err);
void                   td_answer_form_close(td_answer_form *f); /* f may be NULL */

/**
 * The ids that may come next: bit i % 32 of (*mask)[i / 32]. Owned by f, valid until f is used again.
 * @return TD_ENOMEM; TD_EINVAL when the text has too many readings to follow.
 */
TD_NODISCARD td_status td_answer_form_mask(td_answer_form *f, const uint32_t **mask);

/** The text goes on by a token that the mask let through and that is no stop id. @return TD_ENOMEM, TD_EINVAL as above. */
TD_NODISCARD td_status td_answer_form_advance(td_answer_form *f, uint32_t token);

/** Take the tokens that leave no choice (engine/requests/jump_ahead.h): at most room of them, and stand behind them. */
TD_NODISCARD td_status td_answer_form_jump(td_answer_form *f, uint32_t *tokens, uint32_t room, uint32_t *n);

bool td_answer_form_must_end(const td_answer_form *f); /* the text is complete, and nothing can follow it */

#endif
