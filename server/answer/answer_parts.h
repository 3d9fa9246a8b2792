/*
 * Whole answers that are written piece by piece, as the client takes them. What an answer is made of, its prompts and news,
 * is held until all is sent. Its JSON is not: log-probabilities with their tokens' texts take ten times as much, and an
 * echoed prompt is copied for each choice.
 *
 * An API lists the parts of its answer in a table, in the order in which they are written. A part can be of any size: its
 * writer stops when a piece is full, and goes on with the next one.
 */
#ifndef TD_SERVER_ANSWER_ANSWER_PARTS_H
#define TD_SERVER_ANSWER_ANSWER_PARTS_H

#include "server/generation/generation.h"

/** Bytes of a piece, about: a writer stops behind the entry of a list or the slice of a text that fills it. An answer of one
 * piece is sent with its length. */
#define TD_ANSWER_PIECE ((size_t)48 << 10)

/** Write on a part. @return whether it is complete. */
typedef bool (*td_part_fn)(td_jbuf *b, td_writing *w);

/** The parts of an answer, each list ended by NULL. */
typedef struct {
    td_part_fn begin[4];
    td_part_fn choice[12]; /* for each choice */
    td_part_fn end[6];     /* these and `begin` once, with the first choice */
} td_answer_parts;

/** Write on the answer of a finished generation, a piece at most. @return whether all is written. */
bool td_write_parts(td_generation *g, const td_answer_parts *of, td_jbuf *b);

/** Write all of a part with these news of a choice, as into the event of a stream. */
void td_write_part(td_jbuf *b, td_part_fn part, td_choice *c, const td_choice_state *st, const td_news *news);

/** Write on the member `key`, a list of n entries, each by `entry`; counts in w->at. @return whether the list is complete;
 * w->at is 0 then. */
bool td_write_list(td_jbuf *b, td_writing *w, const char *key, size_t n,
                   void (*entry)(td_jbuf *b, const td_writing *w, size_t i));

/** Where a slice of a text ends that begins at `at`: some KiB on, and not within a character. */
size_t td_slice_end(const char *text, size_t len, size_t at);

/** Write on a text in a JSON string that is open; counts in *at. @return whether all of it is written. */
bool td_write_slices(td_jbuf *b, const td_writing *w, const char *text, size_t len, size_t *at);

#endif
