/*
 * DeepSeek-V3.2 (encoding_dsv32.py of the checkpoint).
 *   <begin>SYSTEM\n\n[tools]<User>u<Assistant><think>R</think>text\n\n[calls]<end>\n\n<function_results>\n<result>r</result>\n
 *   </function_results>\n\n<think>…
 * Without thinking </think> stands in place of <think>. Reasoning before the last message of a user is left out.
 */
#include "text/encoding/deepseek_dsml.h"

static const char TOOLS[] =
    "\n\n## Tools\n\nYou have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following as part of your reply "
    "to the user:\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n...\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n...\n</｜DSML｜invoke>\n</｜DSML｜function_calls>\n\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should "
    "use JSON format. The \"string\" attribute should be set to \"true\" for string type parameters and \"false\" for other "
    "types (numbers, booleans, arrays, objects).\n\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. "
    "Here is an example:\n\n<｜DSML｜function_calls>\n...\n</｜DSML｜function_calls>\n\n"
    "<function_results>\n...\n</function_results>\n\n<think>...thinking about results</think>\n\n"
    "Here are the functions available in JSONSchema format:\n<functions>\n";
#define TOOLS_END "\n</functions>\n"

/* The last message opens the answer only if the request wants one. */
static bool is_answered(const dsml_chat *c, size_t i) {
    return c->opens || i + 1 < c->n;
}

static void put_thinking(dsml_chat *c, bool thinks) {
    td_dsml_puts(c, thinks ? DSML_THINK : DSML_THOUGHT);
}

static void put_user(dsml_chat *c, size_t i) {
    const dsml_message *m = &c->at[i];
    td_dsml_puts(c, DSML_USER);
    if (m->role == DSML_DEVELOPER) {
        td_dsml_put_tools(c, m, td_dsml_tools(c, m), TOOLS, TOOLS_END);
        td_dsml_put_response_format(c, m);
        td_dsml_puts(c, "\n\n# The user's message is: ");
    }
    bool any = td_dsml_put_text(c, m, "content");
    if (m->role == DSML_DEVELOPER && !any) td_dsml_refuse(c->s, "messages[%zu].content is empty", m->index);
    if (!is_answered(c, i)) return;
    td_dsml_puts(c, DSML_ASSISTANT);
    put_thinking(c, c->thinks && i + 1 == c->turn);
}

static void put_assistant(dsml_chat *c, size_t i) {
    const dsml_message *m = &c->at[i];
    const jj_list      *calls = td_dsml_calls(c, m);
    if (td_dsml_is_set(c->s, m->dict, "prefix") && !calls) { /* an answer that goes on */
        td_dsml_put_text(c, m, "content");
        return;
    }
    if (c->thinks && i >= c->turn) {
        if (!td_dsml_put_reasoning(c, m) && !calls)
            td_dsml_refuse(
                c->s,
                "messages[%zu] has neither reasoning_content nor tool_calls, which a message behind the last one of "
                "a user must have when thinking is on",
                m->index);
        td_dsml_puts(c, DSML_THOUGHT);
    }
    td_dsml_put_text(c, m, "content");
    td_dsml_put_calls(c, m, "function_calls");
    td_dsml_puts(c, DSML_END);
}

/* A run of results stands for the calls before it, one for one and in the same order. @return the message behind it. */
static size_t put_results(dsml_chat *c, size_t i) {
    const dsml_message *before = i ? &c->at[i - 1] : NULL;
    const jj_list      *calls = before && before->role == DSML_FROM_ASSISTANT ? td_dsml_calls(c, before) : NULL;
    size_t              end = i;
    while (end < c->n && c->at[end].role == DSML_TOOL) end++;
    if (!calls)
        td_dsml_refuse(c->s, "messages[%zu] is the result of a tool, and the message before it has no tool_calls",
                       c->at[i].index);
    if (calls->n != end - i)
        td_dsml_refuse(c->s, "messages[%zu].tool_calls has %zu calls, and %zu results of tools follow", before->index,
                       calls->n, end - i);
    td_dsml_puts(c, "\n\n<function_results>");
    for (size_t k = i; k < end; k++) {
        td_dsml_puts(c, "\n<result>");
        td_dsml_put_text(c, &c->at[k], "content");
        td_dsml_puts(c, "</result>");
    }
    td_dsml_puts(c, "\n</function_results>");
    if (is_answered(c, end - 1)) {
        td_dsml_puts(c, "\n\n");
        put_thinking(c, c->thinks && end >= c->turn);
    }
    return end;
}

void td_deepseek_v32_render(jj_render *r) {
    dsml_chat c = {0};
    td_dsml_read(&c, r);
    td_dsml_puts(&c, DSML_BEGIN);
    td_dsml_put_tools(&c, NULL, c.tools, TOOLS, TOOLS_END);
    for (size_t i = 0; i < c.n;) {
        const dsml_message *m = &c.at[i];
        switch (m->role) {
            case DSML_SYSTEM:
                td_dsml_put_text(&c, m, "content");
                td_dsml_put_tools(&c, m, td_dsml_tools(&c, m), TOOLS, TOOLS_END);
                td_dsml_put_response_format(&c, m);
                break;
            case DSML_DEVELOPER:
            case DSML_FROM_USER: put_user(&c, i); break;
            case DSML_FROM_ASSISTANT: put_assistant(&c, i); break;
            case DSML_TOOL: i = put_results(&c, i); continue;
            case DSML_REMINDER: td_dsml_refuse(c.s, "messages[%zu].role is not known to DeepSeek-V3.2", m->index);
        }
        i++;
    }
}
