/*
 * From a body to prompts of token ids: the part of reading that all APIs share.
 *
 * Reading is a pure function of the body and the model's defaults: it can be tested and fuzzed without an engine. Which
 * fields are supported, ignored and refused: docs/server.md.
 */
#ifndef TD_SERVER_REQUEST_API_READ_H
#define TD_SERVER_REQUEST_API_READ_H

#include "server/request/api_request.h"

/**
 * Read a body as an API has it. *out is to be freed with td_api_request_free whether or not that succeeded.
 * @return TD_OK; TD_EINVAL with err filled.
 */
TD_NODISCARD td_status td_api_read(const td_api *api, const char *body, size_t len, const td_api_context *with,
                                   td_api_request *out, td_api_error *err);

/**
 * Read a body (taken over, also on failure) of one of the two forms; every API's `read` ends with this. Errors name the
 * form's fields; td_api_rename_error gives them the API's names.
 */
TD_NODISCARD td_status td_api_read_form(td_api_form form, json_t *body, const td_api_context *with, td_api_request *r,
                                        td_api_error *err);

/**
 * An image of another API as the part of a chat's message: {"type": "image_url", …} with a member that chats do not have,
 * which is the field that errors about it name. A client that sends such a member reads its own words in them.
 * @param source, detail stay the caller's; detail NULL: none.
 * @return NULL: memory is short.
 */
json_t *td_api_image_part(json_t *source, json_t *detail, const char *field);

/** A greedy one-token request of the given prompt (malloc'd, taken over). @return TD_ENOMEM. */
TD_NODISCARD td_status td_api_read_probe(const td_api *api, uint32_t *ids, size_t n_ids, td_api_request *out);

/** By what prompts become tokens. tok and chat->tmpl may be NULL: requests that need them are refused. */
typedef struct {
    const td_tokenizer   *tok;
    const td_chat_form   *chat;
    const td_engine_info *info;
} td_api_encoding;

/** Render the chat, encode every prompt, put the images into it, which are loaded, and settle max_tokens. Refuses a prompt
 * that does not fit the context. */
TD_NODISCARD td_status td_api_encode(td_api_request *r, const td_api_encoding *with, td_api_error *err);

/**
 * Render template_doc (and continued) and encode it, as td_api_encode_text, with its images; sets reasoning_start, adds the
 * warnings.
 * @param to what it has is the caller's, also on failure (td_api_prompt_free).
 */
TD_NODISCARD td_status td_api_encode_chat(td_api_request *r, const td_api_encoding *with, uint32_t context,
                                          td_api_prompt *to, td_api_error *err);

/** How many tokens the prompt of a chat has. No answer follows, so it need not fit the context. */
TD_NODISCARD td_status td_api_count_chat(td_api_request *r, const td_api_encoding *with, size_t *n, td_api_error *err);

#endif
