/*
 * A marker that a template writes, hidden where others have written it.
 *
 * A template marks an image's place by the text of a special token. Where a message, a tool or an argument has the same
 * text, it must stay text. So it is hidden before the template renders: one character stands for it, a noncharacter of
 * Unicode (U+FDD0 to U+FDEF) that the conversation does not have. What the rendered text then has of the marker, the
 * template has written.
 */
#ifndef TD_SERVER_REQUEST_HIDDEN_TEXT_H
#define TD_SERVER_REQUEST_HIDDEN_TEXT_H

#include <jansson.h>

#include "tandem.h"

#define TD_HIDDEN_BYTES 3 /* of the character that stands for the marker */

/** Zero-initialise all but the marker. */
typedef struct {
    const char *marker; /* [marker_len], the caller's */
    size_t      marker_len;
    bool        occurs;                      /* in what was looked at: so there is something to hide */
    uint32_t    taken;                       /* bits of noncharacters that occur in it */
    char        stands[TD_HIDDEN_BYTES + 1]; /* the character; empty before td_hidden_choose */
} td_hidden_text;

/** Look at a value and all that is in it, names of members too. */
void td_hidden_look(td_hidden_text *h, const json_t *v);

/** The marker occurs in what was looked at: choose what stands for it. @return TD_EINVAL if every noncharacter occurs, too. */
TD_NODISCARD td_status td_hidden_choose(td_hidden_text *h, td_error *err);

/** Hide the marker in a value, where it occurs. *value, a reference, becomes one to another string, or stays the same array
 * or object, in which the strings and the names of members are replaced. @return TD_ENOMEM. */
TD_NODISCARD td_status td_hidden_replace(const td_hidden_text *h, json_t **value);

#endif
