/* Bodies of /v1/messages become chats that mean the same. Members that no chat can express are refused by name. */

#include "server/anthropic/messages.h"
#include "server/openai/completions.h"
#include "server/request/api_read.h"
#include "tests/td_test.h"

static const td_engine_info INFO = {.vocab_size = 100, .context_length = 1000, .max_queued_requests = 8};

#define TOOL "{\"name\": \"f\", \"description\": \"d\", \"input_schema\": {\"type\": \"object\"}"
#define FUNCTION                                                                                                   \
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": " \
    "\"object\"}"
#define CALL "{\"type\": \"tool_use\", \"id\": \"c1\", \"name\": \"f\", \"input\": {\"a\": 1}}"
#define CHAT_CALL "{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}"
#define TEXT(s) "{\"type\": \"text\", \"text\": \"" s "\"}"
#define USER(s) "{\"role\": \"user\", \"content\": \"" s "\"}"
#define ANY_THINKING(on) "\"chat_template_kwargs\": {\"enable_thinking\": " on ", \"thinking\": " on "}"

/* The members of a message's body, and of the chat's that means the same. */
static const struct {
    const char *message, *chat;
} SAME[] = {
    {"\"messages\": [" USER("Q") "]", "\"messages\": [" USER("Q") "]"},
    {"\"system\": \"S\", \"messages\": [" USER("Q") "]",
     "\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, " USER("Q") "]"},
    {"\"system\": [" TEXT("S") ", {\"type\": \"text\", \"text\": \"T\", \"cache_control\": {\"type\": \"ephemeral\"}}], "
                               "\"messages\": [" USER("Q") "]",
     "\"messages\": [{\"role\": \"system\", \"content\": \"S\\nT\"}, " USER("Q") "]"},
    {"\"system\": [], \"messages\": [" USER("Q") "]", "\"messages\": [" USER("Q") "]"},
    /* a line that is no prompt, and changes with each request */
    {"\"system\": [" TEXT("x-anthropic-billing-header: a=1;") ", " TEXT("S") "], \"messages\": [" USER("Q") "]",
     "\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, " USER("Q") "]"},
    {"\"system\": \"x-anthropic-billing-header: a=1;\\nS\\nT\", \"messages\": [" USER("Q") "]",
     "\"messages\": [{\"role\": \"system\", \"content\": \"S\\nT\"}, " USER("Q") "]"},
    {"\"system\": \"x-anthropic-billing-header: a=1;\", \"messages\": [" USER("Q") "]", "\"messages\": [" USER("Q") "]"},
    /* turns of one role are one turn */
    {"\"messages\": [" USER("Q") ", {\"role\": \"user\", \"content\": [" TEXT("R") "]}]",
     "\"messages\": [" USER("Q\\nR") "]"},
    {"\"messages\": [" USER(
         "Q") ", {\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"assistant\", \"content\": [" CALL
              "]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"c1\", \"content\": "
              "\"R\"}]}]",
     "\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": \"A\", \"tool_calls\": [" CHAT_CALL
                                 "]}, {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"name\": \"f\", \"content\": \"R\"}]"},
    /* results of tools stand in a user's turn, with text around */
    {"\"messages\": [" USER(
         "Q") ", {\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"H\", "
              "\"signature\": \"s\"}, {\"type\": \"thinking\", \"thinking\": \"I\", \"signature\": \"\"}, " CALL
              "]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"c1\", \"is_error\": "
              "true, "
              "\"content\": [" TEXT("R") ", " TEXT("T") "]}, {\"type\": \"tool_result\", \"tool_use_id\": \"c1\"}, " TEXT(
                  "U") ", " TEXT("V") "]}]",
     "\"messages\": [" USER(
         "Q") ", {\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"H\\nI\", \"tool_calls\": "
              "[" CHAT_CALL
              "]}, {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"name\": \"f\", \"content\": \"Error:\\nR\\nT\"}, "
              "{\"role\": \"tool\", \"tool_call_id\": \"c1\", \"name\": \"f\", \"content\": \"\"}, " USER("U\\nV") "]"},
    {"\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": [{\"type\": \"redacted_thinking\", \"data\": "
                                 "\"x\"}, " TEXT("A") "]}, {\"role\": \"system\", \"content\": \"S\"}, " USER("R") "]",
     "\"messages\": [" USER(
         "Q") ", {\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"system\", \"content\": \"S\"}, " USER("R") "]"},
    /* the assistant's last turn is continued */
    {"\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": \"A\"}]",
     "\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": \"A\"}], \"continue_final_message\": true"},
    /* tools */
    {"\"tools\": [" TOOL ", \"type\": \"custom\", \"strict\": null, \"cache_control\": {}, \"allowed_callers\": "
     "[\"direct\"]}], \"messages\": [" USER("Q") "]",
     "\"tools\": [" FUNCTION "}}], \"messages\": [" USER("Q") "]"},
    {"\"tools\": [" TOOL
     "}], \"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": true}, \"messages\": [" USER("Q") "]",
     "\"tools\": [" FUNCTION
     "}}], \"tool_choice\": \"auto\", \"parallel_tool_calls\": false, \"messages\": [" USER("Q") "]"},
    {"\"tools\": [" TOOL "}], \"tool_choice\": {\"type\": \"any\"}, \"messages\": [" USER("Q") "]",
     "\"tools\": [" FUNCTION "}}], \"tool_choice\": \"required\", \"messages\": [" USER("Q") "]"},
    {"\"tools\": [" TOOL "}], \"tool_choice\": {\"type\": \"tool\", \"name\": \"f\"}, \"messages\": [" USER("Q") "]",
     "\"tools\": [" FUNCTION
     "}}], \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}, \"messages\": [" USER("Q") "]"},
    {"\"tools\": [" TOOL "}], \"tool_choice\": {\"type\": \"none\"}, \"messages\": [" USER("Q") "]",
     "\"tools\": [" FUNCTION "}}], \"tool_choice\": \"none\", \"messages\": [" USER("Q") "]"},
    /* the rest */
    {"\"thinking\": {\"type\": \"disabled\"}, \"messages\": [" USER("Q") "]",
     ANY_THINKING("false") ", \"messages\": [" USER("Q") "]"},
    {"\"thinking\": {\"type\": \"adaptive\", \"display\": \"summarized\"}, \"chat_template_kwargs\": {\"thinking\": "
     "\"own\", \"more\": 1}, "
     "\"messages\": [" USER("Q") "]",
     "\"chat_template_kwargs\": {\"enable_thinking\": true, \"thinking\": \"own\", \"more\": 1}, \"messages\": [" USER(
         "Q") "]"},
    {"\"max_tokens\": 2000, \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}, \"messages\": [" USER("Q") "]",
     "\"max_tokens\": 2000, " ANY_THINKING("true") ", \"messages\": [" USER("Q") "]"},
    {"\"output_config\": {\"effort\": \"high\", \"format\": {\"type\": \"json_schema\", \"schema\": {\"type\": "
     "\"object\"}}}, "
     "\"messages\": [" USER("Q") "]",
     "\"reasoning_effort\": \"high\", \"json_schema\": {\"type\": \"object\"}, \"messages\": [" USER("Q") "]"},
    {"\"stop_sequences\": [\"a\", \"b\"], \"temperature\": 0.5, \"top_p\": 0.9, \"top_k\": 4, \"stream\": true, "
     "\"messages\": [" USER("Q") "]",
     "\"stop\": [\"a\", \"b\"], \"temperature\": 0.5, \"top_p\": 0.9, \"top_k\": 4, \"stream\": true, \"messages\": [" USER(
         "Q") "]"},
    {"\"metadata\": {\"user_id\": \"u\"}, \"service_tier\": \"auto\", \"speed\": \"fast\", \"cache_control\": {}, "
     "\"system\": null, "
     "\"context_management\": {\"edits\": [{\"type\": \"clear_thinking_20251015\", \"keep\": \"all\"}]}, \"messages\": "
     "[" USER("Q") "]",
     "\"messages\": [" USER("Q") "]"},
};

/* A body of these members; max_tokens where they have none. */
static void body_of(const char *members, char *to, size_t size) {
    const char *max = strstr(members, "\"max_tokens\"") ? "" : "\"max_tokens\": 9, ";
    snprintf(to, size, "{\"model\": \"m\", %s%s}", max, members);
}

TEST(the_same_chat) {
    const td_api *const apis[] = {&td_api_messages, &td_api_chat};
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
        td_api_request r[2];
        for (size_t k = 0; k < 2; k++) {
            char         body[4096];
            td_api_error err;
            body_of(k ? SAME[i].chat : SAME[i].message, body, sizeof body);
            if (td_api_read(apis[k], body, strlen(body), &(td_api_context){.info = &INFO}, &r[k], &err) != TD_OK)
                fail_msg("%s\n%s", body, err.message);
        }
        if (!json_equal(r[0].chat.template_doc, r[1].chat.template_doc)) {
            char *a = json_dumps(r[0].chat.template_doc, 0), *b = json_dumps(r[1].chat.template_doc, 0);
            fail_msg("%s\n%s\nnot\n%s", SAME[i].message, a, b);
        }
        assert_true(!r[0].chat.continued == !r[1].chat.continued);
        if (r[0].chat.continued) assert_true(json_equal(r[0].chat.continued, r[1].chat.continued));
        assert_int_equal(r[0].length.max, r[1].length.max);
        assert_int_equal(r[0].grammar.is_asked, r[1].grammar.is_asked);
        assert_int_equal(r[0].grammar.forces_call, r[1].grammar.forces_call);
        assert_int_equal(r[0].grammar.len, r[1].grammar.len);
        if (r[0].grammar.is_asked) assert_memory_equal(r[0].grammar.source, r[1].grammar.source, r[0].grammar.len);
        assert_int_equal(r[0].parts.parallel_calls, r[1].parts.parallel_calls);
        assert_int_equal(!r[0].parts.tools, !r[1].parts.tools);
        assert_int_equal(r[0].stop.n_texts, r[1].stop.n_texts);
        for (size_t k = 0; k < r[0].stop.n_texts; k++) assert_string_equal(r[0].stop.texts[k], r[1].stop.texts[k]);
        assert_int_equal(r[0].stream.on, r[1].stream.on);
        assert_true(r[0].sampling.temperature == r[1].sampling.temperature && r[0].sampling.top_p == r[1].sampling.top_p);
        assert_int_equal(r[0].sampling.top_k, r[1].sampling.top_k);
        for (size_t k = 0; k < 2; k++) td_api_request_free(&r[k]);
    }
}

#define Q "\"messages\": [" USER("Q") "]"
#define BLOCK(block) "\"messages\": [{\"role\": \"user\", \"content\": [" block "]}]"
#define ANSWERED(block) "\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": [" block "]}, " USER("R") "]"

/* Members of bodies that are refused, and what the sentence has to name. */
static const struct {
    const char *message, *names;
} REFUSED[] = {
    {"\"system\": \"S\"", "'messages' is missing"},
    {"\"messages\": []", "'messages'"},
    {"\"messages\": {}", "'messages'"},
    {"\"messages\": [1]", "'messages[0]'"},
    {"\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]", "'messages[0]' has the role 'tool'"},
    {"\"messages\": [{\"role\": \"user\"}]", "'messages[0].content'"},
    {"\"messages\": [{\"role\": \"user\", \"content\": []}]", "'messages[0].content'"},
    {"\"messages\": [{\"role\": \"user\", \"content\": null}]", "'messages[0].content'"},
    {"\"messages\": [{\"role\": \"user\", \"content\": 1}]", "'messages[0].content'"},
    {"\"messages\": [{\"role\": \"assistant\", \"content\": \"A\"}]", "must begin with a user's"},
    {"\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"assistant\", \"content\": \"A\"}]",
     "must begin with a user's"},
    {"\"messages\": [" USER("Q") ", {\"role\": \"system\", \"content\": [" CALL "]}]",
     "'messages[1].content[0]' is of type 'tool_use'"},
    {BLOCK("1"), "'messages[0].content[0]'"},
    {BLOCK("{\"type\": \"text\"}"), "'messages[0].content[0]' must have a 'text'"},
    {BLOCK("{\"type\": \"image\", \"source\": {}}"), "'messages[0].content[0]' must have a 'source'"},
    {BLOCK("{\"type\": \"document\"}"), "is of type 'document'"},
    {BLOCK(CALL), "is of type 'tool_use'"},
    {BLOCK("{\"type\": \"tool_result\"}"), "'tool_use_id'"},
    {BLOCK("{\"type\": \"tool_result\", \"tool_use_id\": \"c9\", \"content\": \"x\"}"), "'c9'"},
    {ANSWERED("{\"type\": \"server_tool_use\"}"), "'messages[1].content[0]' is of type 'server_tool_use'"},
    {ANSWERED("{\"type\": \"image\"}"), "is of type 'image'"},
    {ANSWERED("{\"type\": \"thinking\"}"), "'thinking'"},
    {ANSWERED("{\"type\": \"thinking\", \"thinking\": \"x\", \"signature\": 1}"), "'signature'"},
    {ANSWERED("{\"type\": \"tool_use\", \"id\": 1, \"name\": \"f\", \"input\": {}}"), "'messages[1].content[0]'"},
    {ANSWERED("{\"type\": \"tool_use\", \"id\": \"c\", \"input\": {}}"), "'messages[1].content[0]'"},
    {ANSWERED("{\"type\": \"tool_use\", \"id\": \"c\", \"name\": \"f\", \"input\": \"{}\"}"), "'messages[1].content[0]'"},
    {"\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": [" CALL "]}]", "must not end with a 'tool_use'"},
    {"\"messages\": [" USER(
         "Q") ", {\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"H\"}, " TEXT("A") "]}]",
     "text alone"},
    {"\"messages\": [" USER(
         "Q") ", {\"role\": \"assistant\", \"content\": [" CALL "]}, {\"role\": \"user\", \"content\": "
              "[{\"type\": \"tool_result\", \"tool_use_id\": \"c1\", \"content\": [{\"type\": \"image\"}]}]}]",
     "'messages[2].content[0].content[0]' must have a 'source'"},
    {"\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": [" CALL "]}, {\"role\": \"user\", \"content\": "
                                 "[{\"type\": \"tool_result\", \"tool_use_id\": \"c1\", \"content\": 1}]}]",
     "'messages[2].content[0].content'"},
    {"\"messages\": [" USER("Q") ", {\"role\": \"assistant\", \"content\": [" CALL "]}, {\"role\": \"user\", \"content\": "
                                 "[{\"type\": \"tool_result\", \"tool_use_id\": \"c1\", \"is_error\": \"no\"}]}]",
     "'is_error'"},
    {"\"system\": 1, " Q, "'system'"},
    {"\"system\": [{\"type\": \"image\"}], " Q, "'system[0]' is of type 'image'"},
    {"\"max_tokens\": \"9\", " Q, "'max_tokens'"},
    {"\"max_tokens\": 0, " Q, "'max_tokens'"},
    {"\"max_tokens\": null, " Q, "'max_tokens' is missing"},
    {"\"temperature\": \"hot\", " Q, "'temperature'"},
    {"\"temperature\": 3, " Q, "'temperature'"},
    {"\"top_p\": 0, " Q, "'top_p'"},
    {"\"top_k\": 1.5, " Q, "'top_k'"},
    {"\"stream\": 1, " Q, "'stream'"},
    {"\"stop_sequences\": \"x\", " Q, "'stop_sequences'"},
    {"\"stop_sequences\": [\"\"], " Q, "'stop_sequences'"},
    {"\"stop_sequences\": [1], " Q, "'stop_sequences'"},
    {"\"tools\": {}, " Q, "'tools'"},
    {"\"tools\": [1], " Q, "'tools[0]'"},
    {"\"tools\": [{\"name\": \"f\", \"input_schema\": {}, \"description\": 1}], " Q, "'tools[0]'"},
    {"\"tools\": [{\"name\": \"f\", \"input_schema\": {}, \"strict\": 1}], " Q, "'tools[0]'"},
    {"\"tools\": [{\"name\": \"f\", \"input_schema\": {}, \"type\": 1}], " Q, "'tools[0]'"},
    {"\"tools\": [{\"name\": \"f\"}], " Q, "'tools[0]'"},
    {"\"tools\": [{\"name\": 1, \"input_schema\": {}}], " Q, "'tools[0]'"},
    {"\"tools\": [" TOOL "}, {\"type\": \"web_search_20250305\", \"name\": \"web_search\"}], " Q,
     "'tools[1]' is a tool of type 'web_search_20250305'"},
    {"\"tools\": [" TOOL ", \"defer_loading\": true}], " Q, "'defer_loading'"},
    {"\"tools\": [" TOOL ", \"input_examples\": [{}]}], " Q, "'input_examples'"},
    {"\"tools\": [" TOOL ", \"allowed_callers\": [\"code_execution_20250825\"]}], " Q, "'allowed_callers'"},
    {"\"tools\": [" TOOL ", \"parameters\": {}}], " Q, "'parameters'"},
    {"\"tool_choice\": \"auto\", " Q, "'tool_choice'"},
    {"\"tool_choice\": {\"type\": \"required\"}, " Q, "'tool_choice'"},
    {"\"tool_choice\": {\"type\": \"tool\"}, " Q, "'name'"},
    {"\"tool_choice\": {\"type\": \"any\"}, " Q, "'tool_choice'"},
    {"\"tools\": [" TOOL "}], \"tool_choice\": {\"type\": \"tool\", \"name\": \"g\"}, " Q, "'g'"},
    {"\"tools\": [" TOOL "}], \"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": 1}, " Q,
     "disable_parallel_tool_use"},
    {"\"tools\": [" TOOL "}], \"tool_choice\": {\"type\": \"any\"}, \"thinking\": {\"type\": \"adaptive\"}, " Q,
     "'thinking'"},
    {"\"thinking\": true, " Q, "'thinking'"},
    {"\"thinking\": {\"type\": \"between_tools\"}, " Q, "'thinking'"},
    {"\"thinking\": {\"type\": \"enabled\"}, " Q, "'thinking.budget_tokens'"},
    {"\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 10}, " Q, "'thinking.budget_tokens'"},
    {"\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}, " Q, "below 'max_tokens'"},
    {"\"thinking\": {\"type\": \"adaptive\", \"display\": \"some\"}, " Q, "'thinking.display'"},
    {"\"thinking\": {\"type\": \"adaptive\"}, \"chat_template_kwargs\": 1, " Q, "'chat_template_kwargs'"},
    {"\"output_config\": 1, " Q, "'output_config'"},
    {"\"output_config\": {\"effort\": 1}, " Q, "'output_config.effort'"},
    {"\"output_config\": {\"task_budget\": {}}, " Q, "'output_config.task_budget'"},
    {"\"output_config\": {\"format\": {\"type\": \"text\"}}, " Q, "'output_config.format'"},
    {"\"context_management\": {\"edits\": [{\"type\": \"clear_tool_uses_20250919\"}]}, " Q, "'context_management.edits[0]'"},
    {"\"context_management\": {\"edits\": [{\"type\": \"clear_thinking_20251015\"}]}, " Q, "'context_management.edits[0]'"},
    {"\"metadata\": 1, " Q, "'metadata'"},
    {"\"service_tier\": 1, " Q, "'service_tier'"},
    {"\"container\": \"c\", " Q, "'container'"},
    {"\"mcp_servers\": [{}], " Q, "'mcp_servers'"},
    {"\"inference_geo\": 1, " Q, "'inference_geo'"},
    {"\"thread\": {\"type\": \"create\"}, " Q, "'thread'"},
    {"\"n\": 2, " Q, "'n'"},
    {"\"max_completion_tokens\": 2, " Q, "'max_completion_tokens'"},
};

TEST(refused_by_name) {
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        char                                       body[4096];
        AT_END(td_api_request_free) td_api_request r;
        td_api_error                               err;
        body_of(REFUSED[i].message, body, sizeof body);
        if (td_api_read(&td_api_messages, body, strlen(body), &(td_api_context){.info = &INFO}, &r, &err) == TD_OK)
            fail_msg("accepted: %s", body);
        if (err.http != 400 || !strstr(err.message, REFUSED[i].names)) fail_msg("%s\n%d %s", body, err.http, err.message);
    }
}
