/* Encodings of chats (text/encoding): published cases and others as rows of tests/data/encodings, through the form in which the
 * server gives messages. */
#include "core/files/json_text.h"
#include "server/request/chat_form.h"
#include "tests/td_test.h"

#define ROWS TD_SOURCE_DIR "/tests/data/encodings/deepseek.jsonl"

AT_END_OF(end_template, td_chat_template, td_chat_template_free)

static td_chat_template *encoding_of(const char *model_type) {
    td_chat_template *t;
    td_error          err = {0};
    if (td_chat_template_of_model(model_type, &t, &err) != TD_OK) fail_msg("%s", err.text);
    return t;
}

static void check_row(const json_t *row) {
    const char *name = json_string_value(json_object_get(row, "name")),
               *model_type = json_string_value(json_object_get(row, "model_type")),
               *want = json_string_value(json_object_get(row, "text")),
               *refusal = json_string_value(json_object_get(row, "error"));
    AT_END(end_template) td_chat_template *t = encoding_of(model_type);
    td_chat_form                           form;
    td_error                               err = {0};
    td_chat_text                           out;
    td_chat_form_learn(&form, t, &(td_chat_markers){0});
    td_status   st = td_chat_form_render(&form, json_object_get(row, "request"), NULL, &out, &err);
    FREED char *text = out.text;
    size_t      len = out.len;
    if (refusal && (st != TD_EINVAL || strcmp(err.text, refusal) != 0))
        fail_msg("%s, %s: '%s' in place of '%s'", model_type, name, st == TD_OK ? text : err.text, refusal);
    if (want && st != TD_OK) fail_msg("%s, %s: %s", model_type, name, err.text);
    if (want && (strlen(want) != len || memcmp(want, text, len) != 0))
        fail_msg("%s, %s:\n%s\nin place of\n%s", model_type, name, text, want);
}

TEST(rows_of_chats) {
    FILE       *f = fopen(ROWS, "r");
    FREED char *line = NULL;
    size_t      room = 0, n = 0;
    assert_non_null(f);
    for (ssize_t len; (len = getline(&line, &room, f)) > 0; n++) {
        json_error_t why;
        json_t      *row;
        assert_int_equal(td_json_load(line, (size_t)len, 0, &row, &why), TD_OK);
        check_row(row);
        json_decref(row);
    }
    fclose(f);
    assert_true(n > 60);
}

TEST(what_the_server_learns) {
    static const struct {
        const char *model_type, *tools, *reasoning;
        bool        ignores_effort;
    } cases[] = {{"deepseek_v32", "deepseekv32", "deepseek-v3", true}, {"deepseek_v4", "deepseekv4", "deepseek-v4", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AT_END(end_template) td_chat_template *t = encoding_of(cases[i].model_type);
        td_chat_form                           form;
        td_chat_form_learn(&form, t, &(td_chat_markers){0});
        assert_int_equal(form.form, 0);
        assert_false(form.reads_thinking || form.ignores_tools || form.ignores_thinking);
        assert_int_equal(form.ignores_effort, cases[i].ignores_effort);
        assert_string_equal(td_tool_format_of_template(td_chat_template_source(t)), cases[i].tools);
        assert_string_equal(td_reasoning_format_of_template(td_chat_template_source(t)), cases[i].reasoning);
    }
}

TEST(other_models_have_none) {
    td_chat_template *t;
    td_error          err = {0};
    assert_int_equal(td_chat_template_of_model("deepseek_v3", &t, &err), TD_ENOTFOUND);
    assert_null(t);
}

/* A chat with so many messages takes no longer than the work of a rendering allows: results look for their calls. */
TEST(many_results_of_many_calls) {
    enum { N = 20000 };
    AT_END(end_template) td_chat_template *t = encoding_of("deepseek_v4");
    json_t                                *calls = json_array(), *messages = json_array(), *request;
    td_error                               err = {0};
    char                                  *text = NULL, id[16];
    size_t                                 len;
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "u"));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "assistant", "tool_calls", calls));
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "call%d", i);
        json_array_append_new(calls, json_pack("{s:s, s:{s:s}}", "id", id, "function", "name", "f"));
        json_array_append_new(messages, json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", id, "content", "r"));
    }
    request = json_pack("{s:o}", "messages", messages);
    assert_int_equal(td_chat_template_render_value(t, request, NULL, NULL, &text, &len, &err), TD_EINVAL);
    assert_null(text);
    json_decref(request);
}
