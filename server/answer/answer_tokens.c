/* What answers say of a token, in the forms of all APIs. */
#include <math.h>

#include "server/generation/generation.h"

#define LOGPROB_FLOOR (-9999.0) /* stands for minus infinity, which JSON has not; as other servers do */

const char *td_token_bytes(const td_generation *g, uint32_t id, size_t *len, bool *special) {
    *len = 0;
    *special = false;
    const char *bytes = g->server->tokenizer ? td_tokenizer_token(g->server->tokenizer, id, len, special) : NULL;
    return bytes ? bytes : "";
}

void td_write_logprob(td_jbuf *b, float logprob) {
    if (isnan(logprob))
        td_jw_null(b);
    else
        td_jw_real(b, logprob < LOGPROB_FLOOR ? LOGPROB_FLOOR : (double)logprob, 9);
}
