/* The readers that td_api_read_form puts together: each takes some fields of the body, root, into the part of
 * the request that it is given. */
#ifndef TD_SERVER_REQUEST_API_READERS_H
#define TD_SERVER_REQUEST_API_READERS_H

#include "server/request/api_request.h"
#include "server/request/json_fields.h"

/** The fields that both forms share: reads them, checks their ranges, and refuses what is not supported; api_fields.c. */
TD_NODISCARD td_status td_api_parse_fields(td_api_request *r, const td_engine_info *info, td_api_error *err);

/** The fields that ask for structured output, at most one of them; api_grammar.c. */
TD_NODISCARD td_status td_api_parse_grammar(const json_t *root, td_api_grammar *g, td_api_error *err);

/** The answer is JSON of this schema, because of the field param; refused beside another form. api_grammar.c. */
TD_NODISCARD td_status td_api_set_schema(td_api_grammar *g, const char *param, const json_t *schema, td_api_error *err);

/** Force the answer to be calls of the tools; api_forced_call.c.
 * @param tools NULL: none. @param name the tool to call, NULL: any. @param parallel there may be several calls. */
TD_NODISCARD td_status td_api_force_call(td_api_grammar *g, const json_t *tools, const char *name, bool parallel,
                                         td_api_error *err);

/** messages, tools and template arguments of a chat into template_doc, continued and images; api_chat.c. */
TD_NODISCARD td_status td_api_parse_chat(td_api_request *r, const td_engine_info *info, td_api_error *err);

/** The list of parts that a message has as its content: as a new string, if all are text, or as a list of parts with images,
 * whose sources go to r->images. api_content.c. @param message its number. */
TD_NODISCARD td_status td_api_read_parts(td_api_request *r, const json_t *parts, size_t message, bool of_assistant,
                                         const td_engine_info *info, json_t **content, td_api_error *err);

#endif
