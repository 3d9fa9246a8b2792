#include "server/answer/token_texts.h"

#define SOME 4096 /* ids, about */

/* Whether the text of an id goes on with a character that began before it. */
static bool goes_on(const td_tokenizer *tok, uint32_t id, bool skip_special) {
    size_t      len;
    bool        special;
    const char *bytes = td_tokenizer_token(tok, id, &len, &special);
    return !bytes || len == 0 || (special && skip_special) || ((unsigned char)bytes[0] & 0xc0) == 0x80;
}

td_status td_decode_some(const td_tokenizer *tok, const uint32_t *ids, size_t n, bool skip_special, size_t *at, char **text,
                         size_t *len) {
    size_t from = *at, to = n - from > SOME ? from + SOME : n;
    while (to < n && goes_on(tok, ids[to], skip_special)) to++;
    *at = to;
    return td_tokenizer_decode(tok, ids + from, to - from, skip_special, text, len);
}
