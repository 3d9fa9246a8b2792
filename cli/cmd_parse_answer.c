/* `tandem parse-answer` divides answers of a model into content, reasoning and tool calls. It reads and writes one JSON
 * object a line. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/json_lines.h"
#include "core/error.h"
#include "core/files/json_text.h"
#include "server/api/json_writer.h"
#include "tandem.h"

typedef struct {
    const char *tool_format, *reasoning_format;
} options;

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"tool-call-parser"}, TD_FLAG_TEXT, offsetof(options, tool_format), .arg = "NAME", .by_default = "none",
     .help = "The format of tool calls, as launch_server has them; none: calls stay in the content."},
    {{"reasoning-parser"}, TD_FLAG_TEXT, offsetof(options, reasoning_format), .arg = "NAME", .by_default = "none",
     .help = "The format of the reasoning, likewise."},
};
/* clang-format on */

static const char *none_is_null(const char *name) {
    return name && strcmp(name, "none") ? name : NULL;
}

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_flag_group         group = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o};
    const td_flag_command command = {
        .name = "parse-answer",
        .synopsis = "[--tool-call-parser NAME] [--reasoning-parser NAME]",
        .about =
            "Reads answers from standard input, one JSON object a line: {\"pieces\": [text, ...], \"tools\": [...]}, the "
            "tools as in a\n"
            "request, or left out. Writes {\"content\", \"reasoning_content\", \"tool_calls\": [{\"name\", \"arguments\"}]} "
            "for each. A line that\n"
            "cannot be read gives {\"error\": \"...\"}, the rest goes on, and the exit status is 1.\n",
        .groups = &group,
        .n_groups = 1};
    int rc = td_flags_take(&command, argc, argv);
    o->tool_format = none_is_null(o->tool_format);
    o->reasoning_format = none_is_null(o->reasoning_format);
    return rc;
}

/* ---- one answer ---- */

typedef struct {
    td_jbuf content, reasoning;
    td_jbuf name, arguments; /* of the call that is being read */
    td_jbuf calls;           /* the complete calls, as JSON */
} answer;

/* Arguments are written as the parser gives them, so that numbers keep their spelling. A line break between two values
 * becomes a space, because an answer is one line.
 */
static void add_call(answer *a) {
    for (size_t i = 0; i < a->arguments.len; i++)
        if (a->arguments.data[i] == '\n' || a->arguments.data[i] == '\r') a->arguments.data[i] = ' ';
    td_jw_open(&a->calls, '{');
    td_jw_key(&a->calls, "name");
    td_jw_text(&a->calls, a->name.data, a->name.len);
    td_jw_key(&a->calls, "arguments");
    td_jw_raw(&a->calls, a->arguments.data, a->arguments.len);
    td_jw_close(&a->calls, '}');
}

static void on_event(void *user, const td_answer_event *e) {
    answer *a = user;
    switch (e->kind) {
        case TD_ANSWER_CONTENT: td_jbuf_put(&a->content, e->text, e->len); break;
        case TD_ANSWER_REASONING: td_jbuf_put(&a->reasoning, e->text, e->len); break;
        case TD_ANSWER_CALL_ARGUMENTS: td_jbuf_put(&a->arguments, e->text, e->len); break;
        case TD_ANSWER_CALL_BEGIN:
            a->name.len = a->arguments.len = 0;
            td_jbuf_put(&a->name, e->text, e->len);
            break;
        case TD_ANSWER_CALL_END: add_call(a); break;
        case TD_ANSWER_CALL_DROPPED: break;
    }
}

static td_status feed(td_answer_parser *p, const json_t *pieces, td_error *err) {
    size_t        i;
    const json_t *piece;
    if (!json_is_array(pieces)) return td_fail(err, TD_EINVAL, "'pieces' must be a list of strings");
    json_array_foreach(pieces, i, piece) {
        if (!json_is_string(piece)) return td_fail(err, TD_EINVAL, "'pieces' at position %zu is no string", i);
        if (td_answer_parser_feed(p, json_string_value(piece), json_string_length(piece)) != TD_OK)
            return td_fail(err, TD_ENOMEM, "out of memory");
    }
    return td_answer_parser_end(p) == TD_OK ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory");
}

/* Reads the "tools" of a line. Leaves *out NULL when there are none. */
static td_status read_tools(const json_t *tools, td_tool_list **out, td_error *err) {
    if (!tools || json_is_null(tools)) return TD_OK;
    char     *json = td_json_dump(tools, JSON_ENCODE_ANY);
    td_status st = json ? td_tool_list_new(json, strlen(json), out, err) : td_fail(err, TD_ENOMEM, "out of memory");
    free(json);
    return st;
}

static td_status parse_answer(const options *o, const json_t *root, answer *a, td_error *err) {
    td_tool_list            *tools = NULL;
    td_answer_parser        *p = NULL;
    td_status                st = read_tools(json_object_get(root, "tools"), &tools, err);
    td_answer_parser_options parser = {.tool_format = o->tool_format,
                                       .reasoning_format = o->reasoning_format,
                                       .tools = tools,
                                       .on_event = on_event,
                                       .user = a};
    if (st == TD_OK) st = td_answer_parser_new(&parser, &p, err);
    if (st == TD_OK) st = feed(p, json_object_get(root, "pieces"), err);
    td_answer_parser_free(p);
    td_tool_list_free(tools);
    return st;
}

static char *write_answer(const answer *a) {
    td_jbuf out = {0};
    td_jw_open(&out, '{');
    td_jw_key(&out, "content");
    td_jw_text(&out, a->content.data, a->content.len);
    td_jw_key(&out, "reasoning_content");
    td_jw_text(&out, a->reasoning.data, a->reasoning.len);
    td_jw_key(&out, "tool_calls");
    td_jw_open(&out, '[');
    if (a->calls.len) td_jw_raw(&out, a->calls.data, a->calls.len);
    td_jw_close(&out, ']');
    td_jw_close(&out, '}');
    td_jbuf_put(&out, "", 1);
    if (!out.failed) return out.data;
    td_jbuf_free(&out);
    return NULL;
}

static char *parse_line(void *ctx, const char *line, size_t len, td_error *err) {
    json_error_t why;
    json_t      *root;
    char        *out = NULL;
    if (td_json_load(line, len, JSON_ALLOW_NUL, &root, &why) != TD_OK) {
        td_fail(err, TD_EINVAL, "the line is not valid JSON: %s", why.text);
        return NULL;
    }
    answer a = {0};
    if (parse_answer(ctx, root, &a, err) == TD_OK) {
        bool failed = a.content.failed || a.reasoning.failed || a.name.failed || a.arguments.failed || a.calls.failed;
        out = failed ? NULL : write_answer(&a);
        if (!out) td_fail(err, TD_ENOMEM, "out of memory");
    }
    td_jbuf_free(&a.content);
    td_jbuf_free(&a.reasoning);
    td_jbuf_free(&a.name);
    td_jbuf_free(&a.arguments);
    td_jbuf_free(&a.calls);
    json_decref(root);
    return out;
}

int td_cmd_parse_answer(int argc, char **argv) {
    options           o = {0};
    td_answer_parser *p = NULL;
    td_error          err = {0};
    int               rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    /* A wrong name of a format is an error of the command line, so it is found before the first line is read. */
    td_answer_parser_options po = {.tool_format = o.tool_format, .reasoning_format = o.reasoning_format};
    if (td_answer_parser_new(&po, &p, &err) != TD_OK) {
        fprintf(stderr, "tandem parse-answer: %s\n", err.text);
        return 2;
    }
    td_answer_parser_free(p);
    return td_json_lines("tandem parse-answer", parse_line, &o);
}
