/* The answers of /tokenize and /detokenize, which are made piece by piece as the client takes them: the ids alone are held,
 * since a text can be many times as large. */
#ifndef TD_SERVER_TOKEN_ANSWER_H
#define TD_SERVER_TOKEN_ANSWER_H

#include "server/connection/call.h"

struct td_token_answer {
    bool           decodes; /* it has the ids' texts; else the ids, their counts and the model's length */
    bool           skips_special;
    bool           in_lists; /* there may be more lists than one */
    uint32_t      *ids;      /* [n_ids] of all lists, one after another; owned */
    size_t         n_ids;
    size_t        *ends; /* [n_lists] where each list ends; owned */
    size_t         n_lists;
    td_answer_hold hold; /* of the ids and ends */

    /* where the answer stands */
    size_t  list, at;
    td_jbuf piece; /* made, and taken up to `sent` */
    size_t  sent;
    bool    begun, ended;
};

/** An empty answer, in c->tokens; NULL: no memory. */
td_token_answer *td_token_answer_new(td_call *c);
void             td_token_answer_free(td_token_answer *a); /* NULL: nothing */

/** Add a list of ids, which is freed. @return TD_EINVAL with err filled: no memory, or no room among the answers. */
TD_NODISCARD td_status td_token_answer_add(td_token_answer *a, uint32_t *ids, size_t n, td_api_error *err);

/** The next bytes of the answer in c->tokens, as td_answer_pieces wants them. */
ssize_t td_token_answer_read(td_call *c, char *to, size_t max);

/** Answer with c->tokens, or with the call's error. */
enum MHD_Result td_route_tokens(td_call *c);

#endif
