/*
 * How much work the encoding of one text has been, and whether it is to go on.
 *
 * The expressions of a tokenizer file may backtrack so often that a text of megabytes takes years. The steps of such matches
 * are counted (pretok_regex.c), over all matches of a text, and bounded by its length. Who called may stop the work, too.
 */
#ifndef TD_TEXT_ENCODE_WORK_H
#define TD_TEXT_ENCODE_WORK_H

#include "tandem.h"

/* A thread asks so often whether it is to stop: after this many matches or bytes without one, or so many steps. It takes
 * milliseconds of real work, some tenths of a second of the worst. */
#define TD_ENCODE_ASKS_EVERY ((uint64_t)1 << 14)

typedef struct {
    uint64_t  steps, steps_max;
    uint64_t  unasked; /* work since the caller was asked whether to stop */
    size_t    at;      /* where in the text the last step was */
    td_status end;     /* what ended the work: TD_ELIMIT or TD_ECANCELLED */
} td_encode_work;

/** Begin with a text of so many bytes. */
void td_encode_work_begin(td_encode_work *w, size_t text_len);

/** Ask whether to stop. @return TD_ECANCELLED if so. */
TD_NODISCARD td_status td_encode_work_ask(td_encode_work *w);

/** Note work that is not counted. @return TD_ECANCELLED when the caller stops it. */
TD_NODISCARD static inline td_status td_encode_work_done(td_encode_work *w, uint64_t n) {
    w->unasked += n;
    return w->unasked < TD_ENCODE_ASKS_EVERY ? TD_OK : td_encode_work_ask(w);
}

/** A step of a match, at this place of the text. @return TD_ELIMIT or TD_ECANCELLED, in w->end, too: no more of them. */
TD_NODISCARD td_status td_encode_work_step(td_encode_work *w, size_t at);

#endif
