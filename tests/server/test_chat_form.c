/* Tool calls as clients send them, through templates that want them in different forms. */

#include "server/openai/completions.h"
#include "server/request/api_read.h"
#include "tests/td_test.h"

AT_END_OF(end_template, td_chat_template, td_chat_template_free)

#define TEMPLATES TD_SOURCE_DIR "/tests/data/templates/"

/* What stands before the messages' loop in all of them. */
#define EACH "{% for m in messages %}{% if m.role == 'assistant' %}"
#define REST "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"

/* Every argument of its own, content by a macro that prints what it is given: GLM-4.6, MiniMax-M2, Qwen3-Coder. */
static const char ITEMS[] =
    "{% macro text(c) %}{% if c is string %}{{ c }}{% else %}{{ c }}{% endif %}{% endmacro %}" EACH
    "{{ text(m.content) }}{% for tc in m.tool_calls %}[{{ tc.function.name }}{% for k, v in tc.function.arguments.items() %}"
    " {{ k }}={{ v if v is string else v | tojson }}{% endfor %}]{% endfor %}" REST;
/* Left out where they are no mapping: MiniMax-M2 as others have mended it, DeepSeek-V3.2. */
static const char MAPPING[] = EACH
    "{{ m.content or '' }}{% for tc in m.tool_calls %}[{{ tc.function.name }}{% if tc.function.arguments is mapping %}"
    "{% for k, v in tc.function.arguments | items %} {{ k }}={{ v }}{% endfor %}{% endif %}]{% endfor %}" REST;
/* tojson: Qwen2.5, Llama 3, Mistral. */
static const char TOJSON[] = EACH
    "{{ m.content or '' }}{% for tc in m.tool_calls %}[{{ tc.function.name }} {{ tc.function.arguments | tojson }}]{% "
    "endfor %}" REST;
/* Added to the text, under a content that is none: R1, V3. */
static const char ADDED[] = EACH
    "{% if m.content is none %}{% for tc in m.tool_calls %}{{ '[' + tc.function.name + ' ' + tc.function.arguments + ']' }}"
    "{% endfor %}{% endif %}{% if m.content is not none %}{{ m.content }}{% endif %}" REST;
/* Looks into the content, and prints the arguments as they are. */
static const char IN_CONTENT[] = EACH
    "{% if '</think>' in m.content %}!{% endif %}{{ m.content }}{% for tc in m.tool_calls %}[{{ tc.function.name }} "
    "{{ tc.function.arguments }}]{% endfor %}" REST;

/* What was thought is `thinking`, and not beside a content; the content is looked into: gpt-oss. */
static const char THINKING[] = EACH
    "{% if 'x<' in m.content %}!{% endif %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') "
    "}}"
    "{% elif m.content %}({{ m.content }}){% elif m.thinking %}({{ m.thinking }}){% endif %}"
    "[{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}]{% else %}{{ m.content }}"
    "{% endif %}" REST;

/* A body whose assistant's turn has this content and one call with these arguments. */
#define BODY(content, arguments)                                                                                      \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": " content       \
    ", \"refusal\": null, \"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", " \
    "\"arguments\": " arguments                                                                                       \
    "}}]}, {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"R\", \"tool_calls\": null}]}"
#define CALL BODY("null", "\"{\\\"a\\\": 1, \\\"b\\\": \\\"x\\\"}\"")

static const td_engine_info INFO = {.vocab_size = 100, .context_length = 1000, .max_queued_requests = 8};

static td_chat_template *compile(const char *source) {
    td_chat_template *t;
    td_error          err = {0};
    if (td_chat_template_compile(source, strlen(source), &t, &err) != TD_OK) fail_msg("%s", err.text);
    return t;
}

static td_chat_markers g_markers; /* of the model */

/* The text of a body, malloc'd; NULL with err filled. */
static char *render(const char *source, const char *body, td_error *err) {
    AT_END(end_template) td_chat_template     *t = compile(source);
    td_chat_form                               form;
    AT_END(td_api_request_free) td_api_request r;
    td_api_error                               why;
    td_chat_text                               text;
    td_chat_form_learn(&form, t, &g_markers);
    if (td_api_read(&td_api_chat, body, strlen(body), &(td_api_context){.info = &INFO}, &r, &why) != TD_OK)
        fail_msg("%s", why.message);
    *err = (td_error){0};
    return td_chat_form_render(&form, r.chat.template_doc, NULL, &text, err) == TD_OK ? text.text : NULL;
}

static void assert_renders(const char *source, const char *body, const char *expected) {
    td_error    err;
    FREED char *text = render(source, body, &err);
    if (!text) fail_msg("%s\n%s", source, err.text);
    assert_string_equal(text, expected);
}

TEST(calls_reach_every_kind_of_template) {
    assert_renders(ITEMS, CALL, "<user>Q[f a=1 b=x]<tool>R");
    assert_renders(MAPPING, CALL, "<user>Q[f a=1 b=x]<tool>R");
    assert_renders(TOJSON, CALL, "<user>Q[f {\"a\": 1, \"b\": \"x\"}]<tool>R");
    assert_renders(ADDED, CALL, "<user>Q[f {\"a\": 1, \"b\": \"x\"}]<tool>R");
    assert_renders(IN_CONTENT, CALL, "<user>Q[f {\"a\": 1, \"b\": \"x\"}]<tool>R");
}

#define THOUGHT "\"reasoning_content\": \"because\""
TEST(reasoning_before_a_call_is_kept) {
    static const char reasoning_content[] =
        EACH "({{ m.reasoning_content }}){{ m.thinking }}[{{ m.tool_calls[0].function.arguments | tojson }}]" REST;
    assert_renders(THINKING, CALL, "<user>Q[f {\"a\": 1, \"b\": \"x\"}]<tool>R");
    assert_renders(THINKING, BODY("null, " THOUGHT, "{}"), "<user>Q(because)[f {}]<tool>R");
    assert_renders(THINKING, BODY("\"\", " THOUGHT, "{}"), "<user>Q(because)[f {}]<tool>R");
    assert_renders(THINKING, BODY("\"T\", " THOUGHT, "{}"), "<user>Q(T)[f {}]<tool>R");
    assert_renders(THINKING, BODY("\"\", \"thinking\": \"own\", " THOUGHT, "{}"), "<user>Q(own)[f {}]<tool>R");
    assert_renders(reasoning_content, BODY("\"\", " THOUGHT, "{}"), "<user>Q(because)[{}]<tool>R");
}

TEST(arguments_that_are_objects_already) {
    assert_renders(ITEMS, BODY("\"T\"", "{\"a\": [1, 2.5]}"), "<user>QT[f a=[1, 2.5]]<tool>R");
    assert_renders(TOJSON, BODY("\"T\"", "{\"a\": [1, 2.5]}"), "<user>QT[f {\"a\": [1, 2.5]}]<tool>R");
    assert_renders(ADDED, BODY("null", "{\"a\": [1, 2.5], \"b\": \"\u00e9\"}"),
                   "<user>Q[f {\"a\": [1, 2.5], \"b\": \"\xc3\xa9\"}]<tool>R");
}

TEST(arguments_that_do_not_parse) {
    td_error err;
    assert_renders(TOJSON, BODY("null", "\"{\\\"a\\\": \""), "<user>Q[f \"{\\\"a\\\": \"]<tool>R");
    assert_renders(ADDED, BODY("null", "\"[1]\""), "<user>Q[f [1]]<tool>R");
    assert_renders(ITEMS, BODY("null", "\"\""), "<user>Q[f]<tool>R");
    assert_null(render(ITEMS, BODY("null", "\"x\""), &err));
    assert_int_equal(err.status, TD_EINVAL);
}

/* A request that the template's form does not fit is tried in the others. */
TEST(other_forms_are_tried) {
    static const char one[] =
        "{% for m in messages %}{{ m.content + '' if m.role != 'assistant' or not m.tool_calls else 'c' }}{% endfor %}";
    assert_renders(
        one, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": null}]}",
        "Q");
}

TEST(refusals_are_those_of_the_template) {
    static const char refuses[] = "{{ raise_exception('no ' ~ messages[1].tool_calls[0].function.arguments.a) }}";
    td_error          err;
    assert_null(render(refuses, CALL, &err));
    assert_string_equal(err.text, "no 1");
}

TEST(tools_and_effort_that_nothing_shows) {
    td_chat_form form;
    for (int shows = 0; shows < 2; shows++) {
        AT_END(end_template)
        td_chat_template *t = compile(shows ? "{{ tools | length if tools }}{{ reasoning_effort }}{{ messages[0].content }}"
                                            : "{{ messages[0].content }}");
        td_chat_form_learn(&form, t, &(td_chat_markers){0});
        assert_int_equal(form.ignores_tools, !shows);
        assert_int_equal(form.ignores_effort, !shows);
    }
    td_chat_form_learn(&form, NULL, &(td_chat_markers){0});
    assert_false(form.ignores_tools);
}

TEST(a_switch_for_thinking) {
    static const struct {
        const char *source;
        bool        ignores;
    } cases[] = {{"{{ messages[0].content }}", true},
                 {"{{ '<think></think>' if enable_thinking is defined and not enable_thinking }}", false},
                 {"{{ '<think>' if thinking else '</think>' }}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_chat_form                           form;
        AT_END(end_template) td_chat_template *t = compile(cases[i].source);
        td_chat_form_learn(&form, t, &(td_chat_markers){0});
        assert_int_equal(form.ignores_thinking, cases[i].ignores);
    }
}

/* The published templates: the arguments' member is there once, as JSON or as the template's own form, and nothing prints
 * None. */
TEST(published_templates) {
    static const struct {
        const char *file, *shows;
    } cases[] = {{"Qwen-Qwen2.5-7B-Instruct.jinja", "\"arguments\": {\"a\": 1, \"b\": \"x\"}}"},
                 {"Qwen-Qwen3-0.6B.jinja", "\"arguments\": {\"a\": 1, \"b\": \"x\"}}"},
                 {"Kimi-K2-Instruct.jinja", "{\"a\": 1, \"b\": \"x\"}<|tool_call_end|>"},
                 {"Kimi-K2-Thinking.jinja", "{\"a\": 1, \"b\": \"x\"}<|tool_call_end|>"},
                 {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", "\n```json\n{\"a\": 1, \"b\": \"x\"}\n```"},
                 {"deepseek-ai-DeepSeek-V3.1.jinja", "{\"a\": 1, \"b\": \"x\"}<｜tool▁call▁end｜>"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char  path[512], *source = calloc(1, 1 << 16), *text;
        FILE *f;
        snprintf(path, sizeof path, TEMPLATES "%s", cases[i].file);
        f = fopen(path, "rb");
        assert_non_null(f);
        assert_true(fread(source, 1, (1 << 16) - 1, f) > 0);
        fclose(f);
        td_error err;
        text = render(source, CALL, &err);
        if (!text) fail_msg("%s: %s", cases[i].file, err.text);
        if (!strstr(text, cases[i].shows) || strstr(text, "None")) fail_msg("%s: %s", cases[i].file, text);
        free(text);
        free(source);
    }
}

/* ---- images ---- */

/* Parts of a list, as the templates of Qwen's vision models write them. */
#define PARTS                                                                                                            \
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}" \
    "{% if p.type == 'image' %}{% if m.role == 'system' %}{{ raise_exception('No images here.') }}{% endif %}"           \
    "(<|pad|>){% elif 'text' in p %}{{ p.text }}{% else %}{{ raise_exception('What is that?') }}{% endif %}{% endfor %}" \
    "{% endif %}{% for tc in m.tool_calls %}[{{ tc.function.arguments | tojson }}]{% endfor %}{% endfor %}"

static const td_chat_markers PAD = {.image = "<|pad|>", .image_len = 7};

static bool shows_images(const char *source, const td_chat_markers *markers) {
    AT_END(end_template) td_chat_template *t = compile(source);
    td_chat_form                           form;
    td_chat_form_learn(&form, t, markers);
    return form.shows_images;
}

TEST(whether_a_template_shows_images) {
    assert_true(shows_images(PARTS, &PAD));
    assert_false(shows_images(PARTS, &(td_chat_markers){0}));                               /* of a model that takes none */
    assert_false(shows_images("{% for m in messages %}{{ m.content }}{% endfor %}", &PAD)); /* knows no lists */
    assert_false(shows_images("{% for m in messages %}{{ m.content + '!' }}{% endfor %}", &PAD));
    assert_false(shows_images(PARTS "<|pad|>", &PAD)); /* the marker is no mark of an image */
    assert_false(shows_images(ITEMS, &PAD));
}

static const td_engine_info WITH_IMAGES = {
    .vocab_size = 100, .context_length = 1000, .max_queued_requests = 8, .image_token = 7};

/* A body is rendered to this text; "~" in it is what stands for a hidden marker. */
static void assert_shows(const char *body, const char *expected) {
    AT_END(end_template) td_chat_template     *t = compile(PARTS);
    AT_END(td_api_request_free) td_api_request r;
    td_chat_form                               form;
    td_api_error                               why;
    td_error                                   err = {0};
    td_chat_text                               text;
    td_chat_form_learn(&form, t, &PAD);
    if (td_api_read(&td_api_chat, body, strlen(body), &(td_api_context){.info = &WITH_IMAGES}, &r, &why) != TD_OK)
        fail_msg("%s", why.message);
    OK(td_chat_form_render(&form, r.chat.template_doc, r.chat.continued, &text, &err));
    char  *shown = malloc(text.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        bool hidden = text.hidden[0] && !strncmp(text.text + i, text.hidden, TD_HIDDEN_BYTES);
        shown[n++] = hidden ? '~' : text.text[i];
        i += hidden ? TD_HIDDEN_BYTES - 1 : 0;
    }
    shown[n] = 0;
    assert_string_equal(shown, expected);
    free(shown);
    free(text.text);
}

#define IMAGE "{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:,\"}}"

TEST(images_stand_between_texts) {
    assert_shows("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, " IMAGE
                 ", {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"user\", \"content\": \"c\"}]}",
                 "<user>a(<|pad|>)b<user>c");
}

/* In texts, in names of arguments and their values, also where JSON hides it behind an escape, and behind what the template
 * writes. */
TEST(a_marker_that_others_write_is_hidden) {
    assert_shows("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a<|pad|>\"}, " IMAGE
                 "]}, {\"role\": \"user\", \"content\": \"<|pad|><|pad|>\"}]}",
                 "<user>a~(<|pad|>)<user>~~");
    assert_shows(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"x\", "
        "\"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"<|pad|>\\\": \\\"\\\\u003c|pad|>\\\"}\"}}]}]}",
        "<user>Q<assistant>x[{\"~\": \"~\"}]");
    assert_shows(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": "
        "\"<|pad|>!\"}], \"continue_final_message\": true}",
        "<user>Q~!");
}
