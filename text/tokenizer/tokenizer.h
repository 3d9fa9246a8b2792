/*
 * The tokenizer as the rest of the engine sees it, beyond the public interface of tandem.h.
 *
 * Who does what, in the order text goes through:
 *   tokenizer.c          encode and decode
 *   tokenizer_added      added tokens out of the text
 *   tokenizer_norm       Unicode normalization of the rest
 *   pretok, pretok_regex words; encode_work: how much work they may be
 *   bpe                  ids of a word; tokenizer_scratch: the per-thread word cache in front of it
 *   detok                ids to text, one by one
 * and on loading:
 *   tokenizer_load       files, and td_tokenizer's own life
 *   tokenizer_json       tokenizer.json
 *   tiktoken             tiktoken.model
 *   tokenizer_config     tokenizer_config.json
 */
#ifndef TD_TEXT_TOKENIZER_H
#define TD_TEXT_TOKENIZER_H

#include "tandem.h"

#define TD_NO_TOKEN UINT32_MAX

/** What td_tokenizer_open finds in a folder, in memory. A NULL pointer means that there is no such file. */
typedef struct {
    const char *tokenizer_json;
    size_t      tokenizer_json_len;
    const char *tiktoken_model;
    size_t      tiktoken_model_len;
    const char *tokenizer_config;
    size_t      tokenizer_config_len;
    const char *chat_template; /* chat_template.jinja */
    size_t      chat_template_len;
} td_tokenizer_files;

/** td_tokenizer_open without the folder; the files are the caller's and not kept. */
TD_NODISCARD td_status td_tokenizer_load(const td_tokenizer_files *files, td_tokenizer **out, td_error *err);

/** Id of the token with exactly this text ("</think>"), an added one or one of the vocabulary; TD_NO_TOKEN: none. */
uint32_t td_tokenizer_find(const td_tokenizer *tok, const char *text, size_t len);

/** Bytes of the longest token. */
size_t td_tokenizer_token_len_max(const td_tokenizer *tok);

#endif
