/* Texts of prompts to tokens, and whether these fit the context. */
#ifndef TD_SERVER_REQUEST_PROMPT_TOKENS_H
#define TD_SERVER_REQUEST_PROMPT_TOKENS_H

#include "server/request/api_request.h"

/**
 * Encode a prompt of a request, of which form and add_special_tokens count.
 * @param context refuse a text, before it is encoded, that cannot have fewer tokens than these; 0: take any.
 * @param ids     receives a malloc'd array.
 */
TD_NODISCARD td_status td_api_encode_text(const td_api_request *r, const td_tokenizer *tok, const char *text, size_t len,
                                          uint32_t context, uint32_t **ids, size_t *n_ids, td_api_error *err);

/** Refuse a prompt that has so many tokens, or at least so many. @return TD_EINVAL. */
td_status td_api_refuse_too_long(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err);

/** The prompts must leave room for at least what is asked for; max_tokens is what is left where it was not given. */
TD_NODISCARD td_status td_api_fit_context(td_api_request *r, const td_api_prompt *prompts, size_t n_prompts,
                                          const td_engine_info *info, td_api_error *err);

#endif
