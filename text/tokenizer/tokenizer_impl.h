/* What the files of the tokenizer share: the structure itself and its loaders. */
#ifndef TD_TEXT_TOKENIZER_IMPL_H
#define TD_TEXT_TOKENIZER_IMPL_H

#include <jansson.h>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pretok.h"
#include "text/tokenizer/tokenizer_added.h"
#include "text/tokenizer/tokenizer_norm.h"
#include "text/tokenizer/tokenizer_vocab.h"

struct td_tokenizer {
    uint64_t  serial; /* counted in this process, from 1: names the owner of a word cache */
    td_vocab  vocab;
    td_bpe    bpe;
    td_pretok pretok;
    td_norm   norm;
    td_added  added;
    bool      whole_words;               /* a word that is a token is that token, whatever merging would make of it */
    bool      slices;                    /* long text is cut as Kimi's tokenizer cuts it: tiktoken.c */
    bool      has_template;              /* prefix and suffix come from the post-processor */
    td_ids    prefix, suffix;            /* what add_special puts around */
    char     *chat_template, *bos, *eos; /* NULL: absent */
};

/* Each loader fills a zeroed tokenizer; on failure the caller closes it. */

TD_NODISCARD td_status td_tokenizer_read_json(td_tokenizer *tok, const char *text, size_t len, td_error *err);
TD_NODISCARD td_status td_tokenizer_read_tiktoken(td_tokenizer *tok, const char *text, size_t len, const json_t *config,
                                                  td_error *err);
/** Bytes of the first slice of s, valid UTF-8; used when tok->slices. *n_chars counts the characters done so far; 0 at the
 * start of a text. */
size_t td_tiktoken_slice(const char *s, size_t len, size_t *n_chars);
/** Read bos, eos and the chat template; also BOS and EOS of add_special, if config overrules the post-processor. */
TD_NODISCARD td_status td_tokenizer_read_config(td_tokenizer *tok, const json_t *config, td_error *err);

/** Parse a whole JSON text; *out is released with json_decref. what: its name in the sentence. */
TD_NODISCARD td_status td_tokenizer_parse(const char *text, size_t len, const char *what, json_t **out, td_error *err);

/** Read an added token ({"content", "special", …}) with this id; it may name a token of the vocabulary or be a new one. */
TD_NODISCARD td_status td_tokenizer_add_token(td_tokenizer *tok, uint32_t id, const json_t *spec, td_error *err);

/** The same from a finished description; takes over t.text. Nothing is done for an empty text. */
TD_NODISCARD td_status td_tokenizer_add(td_tokenizer *tok, td_added_token t, td_error *err);

/**
 * Fill bpe.byte_id from the index. Some published vocabularies (SmolLM2) lack bytes that their training text did not have:
 * text loses them, as with Hugging Face's tokenizers. @return TD_EFORMAT when a space or a printable character of ASCII has
 * no token.
 */
TD_NODISCARD td_status td_tokenizer_bind_bytes(td_tokenizer *tok, td_error *err);

/** An id from JSON. @return TD_EFORMAT for another type or a value out of range; what: whose id, for the sentence. */
TD_NODISCARD td_status td_tokenizer_id(const json_t *value, const char *what, uint32_t *id, td_error *err);

#endif
