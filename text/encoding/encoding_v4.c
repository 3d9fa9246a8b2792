/*
 * DeepSeek-V4 (encoding_dsv4.py of the checkpoint, as of its version 0731).
 *   <begin>[effort]SYSTEM\n\n[tools]<User>u<Assistant><think>R</think>text\n\n[calls]<end><User><tool_result>r</tool_result>
 *   <Assistant><think>…
 * Without thinking </think> stands in place of <think>. Results of tools are messages of the user, in the order of the calls,
 * and messages of the user that follow each other are one. Reasoning before the last message of a user is left out, unless
 * there are tools.
 */
#include "text/encoding/deepseek_dsml.h"
#include "text/jinja/jinja_compare.h"

static const char TOOLS[] =
    "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<｜DSML｜tool_calls>\" block like the following:\n\n"
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n...\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"$TOOL_NAME2\">\n...\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, "
    "objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> "
    "BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n### Available Tool Schemas\n\n";
#define TOOLS_END "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"

static const char EFFORT_HIGH[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
static const char EFFORT_MAX[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause "
    "rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no "
    "assumption remains unchecked and no error remains undiscovered.\n\n";

typedef struct {
    dsml_chat           chat;
    const dsml_message *holder; /* the first system message, in which the request's tools stand; NULL: there is none */
    bool                keeps;  /* the reasoning of all turns is written */
    const jj_list      *calls;  /* the last calls written; NULL: none */
    bool                tasked; /* the message before this one had a task */
} v4_chat;

/* ---- what holds for the whole chat ---- */

static void put_effort(v4_chat *v) {
    dsml_chat      *c = &v->chat;
    const jj_value *effort = td_dsml_member(c->s, c->r->vars, "reasoning_effort");
    if (!effort) return;
    if (effort->kind != JJ_STR) td_dsml_refuse(c->s, "reasoning_effort is not a text");
    const jj_str *name = effort->u.s;
    if (td_jj_str_is(name, "none")) c->thinks = false;
    if (!c->thinks || td_jj_str_is(name, "minimal") || td_jj_str_is(name, "low") || td_jj_str_is(name, "medium")) return;
    td_dsml_puts(c, td_jj_str_is(name, "max") ? EFFORT_MAX : EFFORT_HIGH);
}

static bool has_tools(dsml_chat *c) {
    if (c->tools) return true;
    for (size_t i = 0; i < c->n; i++)
        if ((c->at[i].role == DSML_SYSTEM || c->at[i].role == DSML_DEVELOPER) && td_dsml_tools(c, &c->at[i])) return true;
    return false;
}

/* ---- messages ---- */

/* Instructions of developers held for turns that are over, but for those that the turn at hand answers. */
static void drop_developers(dsml_chat *c) {
    size_t kept = 0;
    for (size_t i = 0; i < c->n; i++)
        if (i + 1 >= c->turn || c->at[i].role != DSML_DEVELOPER) c->at[kept++] = c->at[i];
    c->turn -= c->n - kept;
    c->n = kept;
}

static const jj_str *task_of(v4_chat *v, const dsml_message *m) {
    const jj_value *task = td_dsml_member(v->chat.s, m->dict, "task");
    if (!task || m->role == DSML_TOOL) return NULL;
    if (task->kind == JJ_STR) return task->u.s;
    td_dsml_refuse(v->chat.s, "messages[%zu].task is not a text", m->index);
}

static void put_task(v4_chat *v, const dsml_message *m, const jj_str *task) {
    static const char *const TASKS[] = {"action", "query", "authority", "domain", "title", "read_url"};
    dsml_chat               *c = &v->chat;
    size_t                   k = 0;
    while (k < sizeof TASKS / sizeof *TASKS && !td_jj_str_is(task, TASKS[k])) k++;
    if (k == sizeof TASKS / sizeof *TASKS)
        td_dsml_refuse(c->s, "messages[%zu].task is not one of action, query, authority, domain, title and read_url",
                       m->index);
    if (k == 0) {
        td_dsml_puts(c, DSML_ASSISTANT);
        td_dsml_puts(c, c->thinks ? DSML_THINK : DSML_THOUGHT);
    }
    td_jj_printf(c->s, c->r->out, "<｜%s｜>", TASKS[k]);
}

static bool from_user(const dsml_message *m) {
    return m->role == DSML_FROM_USER || m->role == DSML_TOOL;
}

/* The message behind those that are one with message i: results always are, a user's unless the first has a task. Messages
 * that a dropped one was between stay two. */
static size_t end_of(v4_chat *v, size_t i) {
    const dsml_message *at = v->chat.at;
    size_t              end = i + 1;
    if (!from_user(&at[i])) return end;
    bool tasked = task_of(v, &at[i]);
    while (end < v->chat.n && at[end].index == at[end - 1].index + 1 && from_user(&at[end]) &&
           !(tasked && at[end].role == DSML_FROM_USER))
        end++;
    return end;
}

/* The number of a result's call among the last ones; 0 where none has its id. */
static int64_t call_of(v4_chat *v, const dsml_message *result) {
    jj_state       *s = v->chat.s;
    const jj_value *id = td_dsml_member(s, result->dict, "tool_call_id");
    for (size_t k = v->calls && id ? v->calls->n : 0; k-- > 0;) {
        td_jj_charge(s, 4);
        const jj_value *own = td_dsml_member(s, v->calls->at[k].u.dict, "id");
        if (own && td_jj_equal(s, own, id)) return (int64_t)k;
    }
    return 0;
}

/* The results among messages i to end in the order of their calls, as numbers of messages. */
static const jj_list *sort_results(v4_chat *v, size_t i, size_t end) {
    jj_state *s = v->chat.s;
    jj_list  *results = td_jj_list(s, JJ_LIST).u.list, *keys = td_jj_list(s, JJ_LIST).u.list;
    for (size_t k = i; k < end; k++) {
        if (v->chat.at[k].role != DSML_TOOL) continue;
        td_jj_append(s, results, jj_int((int64_t)k));
        td_jj_append(s, keys, jj_int(call_of(v, &v->chat.at[k])));
    }
    return td_jj_sorted(s, results, keys, false);
}

static void put_user(v4_chat *v, size_t i, size_t end) {
    dsml_chat     *c = &v->chat;
    const jj_list *results = sort_results(v, i, end);
    size_t         n_results = 0;
    td_dsml_puts(c, DSML_USER);
    for (size_t k = i; k < end; k++) {
        if (k > i) td_dsml_puts(c, "\n\n");
        if (c->at[k].role == DSML_FROM_USER) {
            td_dsml_put_text(c, &c->at[k], "content");
            continue;
        }
        td_dsml_puts(c, "<tool_result>");
        td_dsml_put_text(c, &c->at[results->at[n_results++].u.i], "content");
        td_dsml_puts(c, "</tool_result>");
    }
}

static void put_assistant(v4_chat *v, size_t i) {
    dsml_chat          *c = &v->chat;
    const dsml_message *m = &c->at[i];
    if (c->thinks && !v->tasked && (v->keeps || i >= c->turn)) {
        td_dsml_put_reasoning(c, m);
        td_dsml_puts(c, DSML_THOUGHT);
    }
    td_dsml_put_text(c, m, "content");
    td_dsml_put_calls(c, m, "tool_calls");
    if (td_dsml_calls(c, m)) v->calls = td_dsml_calls(c, m);
    if (!td_dsml_is_set(c->s, m->dict, "wo_eos")) td_dsml_puts(c, DSML_END);
}

/* A message of the system or a developer. */
static void put_instructions(v4_chat *v, const dsml_message *m) {
    dsml_chat *c = &v->chat;
    bool       holds = m == v->holder && c->tools;
    if (m->role == DSML_DEVELOPER) td_dsml_puts(c, DSML_USER);
    if (!td_dsml_put_text(c, m, "content") && m->role == DSML_DEVELOPER)
        td_dsml_refuse(c->s, "messages[%zu].content is empty", m->index);
    td_dsml_put_tools(c, holds ? NULL : m, holds ? c->tools : td_dsml_tools(c, m), TOOLS, TOOLS_END);
    td_dsml_put_response_format(c, m);
}

/* What the answer behind message `end` - 1 begins with. */
static void put_answer(v4_chat *v, size_t end) {
    dsml_chat *c = &v->chat;
    td_dsml_puts(c, DSML_ASSISTANT);
    td_dsml_puts(c, c->thinks && (v->keeps || end >= c->turn) ? DSML_THINK : DSML_THOUGHT);
}

/* The same if one follows message i, which ends before `end`. */
static void put_opening(v4_chat *v, size_t i, size_t end) {
    dsml_chat          *c = &v->chat;
    const dsml_message *m = &c->at[i], *next = end < c->n ? &c->at[end] : NULL;
    const jj_str       *task = task_of(v, m);
    v->tasked = task;
    if (next ? next->role != DSML_FROM_ASSISTANT && next->role != DSML_REMINDER : !c->opens) return;
    bool opens = td_dsml_asks(c, m) || (m->role == DSML_SYSTEM && (!next || next->role == DSML_FROM_ASSISTANT));
    if (task)
        put_task(v, m, task);
    else if (opens)
        put_answer(v, end);
}

void td_deepseek_v4_render(jj_render *r) {
    v4_chat    v = {.chat = {.thinks = true, .results_ask = true}};
    dsml_chat *c = &v.chat;
    td_dsml_read(c, r);
    const jj_value *drop = td_dsml_member(c->s, r->vars, "drop_thinking");
    v.keeps = has_tools(c) || (drop && !td_jj_truth(drop));
    td_dsml_puts(c, DSML_BEGIN);
    put_effort(&v);
    if (c->thinks && !v.keeps) drop_developers(c);
    for (size_t i = c->n; i-- > 0;)
        if (c->at[i].role == DSML_SYSTEM) v.holder = &c->at[i];
    if (!v.holder) td_dsml_put_tools(c, NULL, c->tools, TOOLS, TOOLS_END);
    if (!v.holder && c->tools && c->at[0].role == DSML_FROM_ASSISTANT) put_answer(&v, 0);
    for (size_t i = 0, end; i < c->n; i = end) {
        const dsml_message *m = &c->at[i];
        end = end_of(&v, i);
        switch (m->role) {
            case DSML_SYSTEM:
            case DSML_DEVELOPER: put_instructions(&v, m); break;
            case DSML_FROM_USER:
            case DSML_TOOL: put_user(&v, i, end); break;
            case DSML_FROM_ASSISTANT: put_assistant(&v, i); break;
            case DSML_REMINDER:
                td_dsml_puts(c, "<｜latest_reminder｜>");
                td_dsml_put_text(c, m, "content");
                break;
        }
        put_opening(&v, i, end);
    }
}
