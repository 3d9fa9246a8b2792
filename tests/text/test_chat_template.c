/* Chat templates, compared with what jinja2 made of them (tests/data/templates); their limits and refusals. */
#include <jansson.h>
#include <pthread.h>
#include <time.h>

#include "tandem.h"
#include "tests/td_test.h"

AT_END_OF(end_template, td_chat_template, td_chat_template_free)

#define TEMPLATES TD_SOURCE_DIR "/tests/data/templates/"

/* ---- allocations that fail: linked with --wrap=malloc,--wrap=calloc ---- */

static _Thread_local long allocations_left = -1; /* negative: no limit */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

static bool refuse(void) {
    if (allocations_left == 0) return true;
    if (allocations_left > 0) allocations_left--;
    return false;
}

void *__wrap_malloc(size_t n) {
    return refuse() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
    return refuse() ? NULL : __real_calloc(n, size);
}

/* ---- helpers ---- */

static td_status compile(const char *source, size_t len, td_chat_template **t, td_error *err) {
    *err = (td_error){0};
    return td_chat_template_compile(source, len, t, err);
}

/* Compile and render; *text is NULL unless TD_OK. */
static td_status render(const char *source, const char *request, char **text, td_error *err) {
    AT_END(end_template) td_chat_template *t = NULL;
    size_t                                 len = 0;
    *text = NULL;
    td_status status = compile(source, strlen(source), &t, err);
    if (status == TD_OK) status = td_chat_template_render(t, request, strlen(request), NULL, NULL, text, &len, err);
    if (status == TD_OK)
        assert_int_equal(len, strlen(*text));
    else
        assert_null(*text);
    return status;
}

static void assert_renders(const char *source, const char *request, const char *expected) {
    td_error    err;
    FREED char *text;
    if (render(source, request, &text, &err) != TD_OK) fail_msg("%s: %s", source, err.text);
    assert_string_equal(text, expected);
}

static void assert_fails(const char *source, const char *request, td_status status, const char *words) {
    td_error  err;
    char     *text;
    td_status got = render(source, request, &text, &err);
    free(text);
    if (got != status || err.status != status || !strstr(err.text, words))
        fail_msg("%.200s: status %d \"%s\" instead of %d \"…%s…\"", source, got, err.text, status, words);
}

static char *read_whole(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

/* ---- the fixtures ---- */

static bool check_case(const json_t *c, const json_t *sources, const json_t *requests) {
    const char *file = json_string_value(json_object_get(c, "template")),
               *bos = json_string_value(json_object_get(c, "bos"));
    const char *eos = json_string_value(json_object_get(c, "eos"));
    char       *bytes = NULL, *text = NULL, path[512];
    size_t      n, text_len = 0;
    td_error    err;
    if (file) {
        snprintf(path, sizeof path, TEMPLATES "%s", file);
        bytes = read_whole(path, &n);
    }
    const json_t *inline_source = json_array_get(sources, (size_t)json_integer_value(json_object_get(c, "source")));
    const char   *source = file ? bytes : json_string_value(inline_source);
    if (!file) n = json_string_length(inline_source);
    FREED char *request =
        json_dumps(json_array_get(requests, (size_t)json_integer_value(json_object_get(c, "request"))), JSON_ENCODE_ANY);
    td_chat_template *t = NULL;
    td_status         status = compile(source, n, &t, &err);
    if (status == TD_OK) status = td_chat_template_render(t, request, strlen(request), bos, eos, &text, &text_len, &err);
    const json_t *expected = json_object_get(c, "text");
    bool          good;
    if (expected) {
        good = status == TD_OK && text_len == json_string_length(expected) &&
               !memcmp(text, json_string_value(expected), text_len);
    } else {
        bool raised = json_is_true(json_object_get(c, "raised"));
        good = status != TD_OK && (!raised || !strcmp(err.text, json_string_value(json_object_get(c, "error"))));
    }
    if (!good)
        print_error("%s\nof %s\ngives  %s\nwanted %s\n", source, request, status == TD_OK ? text : err.text,
                    expected ? json_string_value(expected) : json_string_value(json_object_get(c, "error")));
    td_chat_template_free(t);
    free(text);
    free(bytes);
    return good;
}

TEST(renders_as_jinja2) {
    json_error_t e;
    json_auto_t *doc = json_load_file(TEMPLATES "fixtures.json", JSON_ALLOW_NUL, &e);
    if (!doc) fail_msg("fixtures.json: %s", e.text);
    const json_t *cases = json_object_get(doc, "cases");
    size_t        wrong = 0;
    for (size_t k = 0; k < json_array_size(cases); k++)
        wrong += !check_case(json_array_get(cases, k), json_object_get(doc, "sources"), json_object_get(doc, "requests"));
    print_message("%zu fixtures\n", json_array_size(cases));
    assert_true(json_array_size(cases) > 1000);
    assert_int_equal(wrong, 0);
}

/* ---- variables ---- */

TEST(variables_are_those_of_transformers) {
    assert_renders("{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ bos_token is defined }}", "{}",
                   "None None False False");
    assert_renders("{{ a }}{{ b }}{{ tools }}", "{\"a\": 1, \"chat_template_kwargs\": {\"b\": 2, \"tools\": []}}", "12[]");
    assert_renders("{{ a }}", "{\"a\": 1, \"chat_template_kwargs\": null}", "1");
    assert_renders("{{ range }}", "{\"range\": \"mine\"}", "mine");
    assert_fails("x", "{\"chat_template_kwargs\": 3}", TD_EINVAL, "chat_template_kwargs");
    assert_fails("x", "[]", TD_EINVAL, "not an object");
    assert_fails("x", "{\"a\": ", TD_EINVAL, "not valid JSON");
    assert_fails("x", "{\"a\": \"\xff\"}", TD_EINVAL, "not valid JSON");

    td_chat_template *t = NULL;
    td_error          err;
    char             *text;
    size_t            len;
    OK(compile("{{ bos_token }}|{{ eos_token }}|{{ s }}", 39, &t, &err));
    OK(td_chat_template_render(t, "{\"s\":\"a\\u0000b\"}", 16, "<s>", "</s>", &text, &len, &err));
    assert_int_equal(len, 12);
    assert_memory_equal(text, "<s>|</s>|a\0b", 13);
    free(text);
    assert_int_equal(td_chat_template_render(t, "{}", 2, "\xff", NULL, &text, &len, NULL), TD_EINVAL);
    td_chat_template_free(t);
}

static void tell_day(char *text, size_t size) {
    time_t    now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(text, size, "%d %b %Y", &tm);
}

TEST(strftime_now_is_the_local_time) {
    char     before[64], after[64], *text;
    td_error err;
    tell_day(before, sizeof before);
    OK(render("{{ strftime_now('%d %b %Y') }}", "{}", &text, &err));
    tell_day(after, sizeof after);
    assert_true(!strcmp(text, before) || !strcmp(text, after)); /* midnight may pass between them */
    free(text);
}

/* ---- refusals ---- */

TEST(refuses_what_is_outside_the_subset) {
    static const struct {
        const char *source, *words;
    } CASES[] = {
        {"a\n{% extends 'x' %}", "line 2: the tag 'extends'"},
        {"{% include 'x' %}", "'include'"},
        {"{% import 'x' as y %}", "'import'"},
        {"{% from 'x' import y %}", "'from'"},
        {"{% block x %}{% endblock %}", "'block'"},
        {"{% trans %}x{% endtrans %}", "'trans'"},
        {"{% autoescape true %}{% endautoescape %}", "'autoescape'"},
        {"{% do x %}", "'do'"},
        {"{% for x in y recursive %}{% endfor %}", "recursive"},
        {"\n\n{{ x | urlize }}", "line 3: the filter 'urlize'"},
        {"{{ x is nosuchtest }}", "'nosuchtest'"},
        {"{{ cycler(1) }}", "'cycler'"},
        {"{{ '\\N{DASH}' }}", "\\N"},
        {"{{ '%s' % 1 }}", "%"},
        {"{{ '{:>3}'.format(1) }}", "the specification ':>3'"},
        {"{{ '{:{}}'.format(1, 2) }}", "within fields"},
        {"{{ 'x'.encode() }}", "not supported"},
        {"{% if true %}\n{{ x | urlize }}{% endif %}", "line 2: the filter 'urlize'"},
        {"{{ x | urlize if true }}", "'urlize'"},
        {"{{ 1 if x is nosuchtest }}", "'nosuchtest'"},
        {"{{ [1] | map('urlize') | list }}", "'urlize'"},
    };
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++)
        assert_fails(CASES[k].source, "{}", TD_ENOTSUP, CASES[k].words);
}

/* What a condition leaves out is not missed, as in Jinja; the rest is, before anything is rendered. */
TEST(unknown_names_in_branches_not_taken) {
    assert_renders("a{% if x %}{{ y | urlize }}{% elif false and y is nosuchtest %}{% else %}b{% endif %}", "{\"x\": false}",
                   "ab");
}

TEST(formats_as_python) {
    assert_renders(
        "{{ '{} and {}'.format('a', 2) }} {{ '{1}{0}{1}'.format(none, true) }} {{ '{a}{b!r}{{}}'.format(a=1.5, b='x') }}",
        "{}", "a and 2 TrueNoneTrue 1.5'x'{}");
    assert_renders("{{ '{0.name}-{0[k]}-{1[1]}-{m.a.b}'.format(d, l, m={'a': {'b': 3}}) }}",
                   "{\"d\": {\"name\": \"n\", \"k\": 2}, \"l\": [5, 6]}", "n-2-6-3");
    assert_renders("{{ '{}'.format(nothing) }}{{ '{:}'.format('s') }}", "{}", "s");
    assert_fails("{{ '{}{}'.format(1) }}", "{}", TD_EINVAL, "Replacement index 1 out of range");
    assert_fails("{{ '{}{0}'.format(1) }}", "{}", TD_EINVAL, "do not go together");
    assert_fails("{{ '{x}'.format(1) }}", "{}", TD_EINVAL, "no argument 'x'");
    assert_fails("{{ '{'.format(1) }}", "{}", TD_EINVAL, "Single '{'");
    assert_fails("{{ 'a}'.format(1) }}", "{}", TD_EINVAL, "Single '}'");
    assert_fails("{{ '{0'.format(1) }}", "{}", TD_EINVAL, "expected '}'");
    assert_fails("{{ '{0.}'.format(1) }}", "{}", TD_EINVAL, "empty attribute");
    assert_fails("{{ '{0[1}'.format(1) }}", "{}", TD_EINVAL, "expected ']'");
    assert_fails("{{ '{99999999999999999999999}'.format(1) }}", "{}", TD_EINVAL, "no argument");
}

TEST(names_the_line_of_a_mistake) {
    assert_fails("a\nb {{ x", "{}", TD_EFORMAT, "line 2");
    assert_fails("a\n\n{% if x %}\n\n", "{}", TD_EFORMAT, "line 3");
    assert_fails("\n{{ 1 +\n }}", "{}", TD_EFORMAT, "line 3");
    assert_fails("\r\n\r{{ nothing.x }}", "{}", TD_EINVAL, "line 3: 'nothing' is undefined");
    assert_fails("{{ {}.a.b }}", "{}", TD_EINVAL, "'dict object' has no attribute 'a'");
    assert_fails("{{ raise_exception('one\ntwo') }}", "{}", TD_EINVAL, "one two");
    assert_fails("{{ 9223372036854775807 + 1 }}", "{}", TD_EINVAL, "64 bits");
    assert_fails("{{ 9223372036854775808 }}", "{}", TD_EINVAL, "64 bits");

    td_chat_template *t = NULL;
    td_error          err;
    assert_int_equal(compile("\xc3(", 2, &t, &err), TD_EFORMAT);
    assert_null(t);
    assert_int_equal(td_chat_template_compile("{{", 2, &t, NULL), TD_EFORMAT);
}

/* ---- limits ---- */

TEST(hostile_templates_end_with_an_error) {
    static const struct {
        const char *source, *words;
    } CASES[] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper"},
        {"{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "more work"},
        {"{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}", "more work"},
        {"{% set ns = namespace(s='0123456789') %}{% for x in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "4 MiB"},
        {"{{ 'x' * 9223372036854775807 }}", "4 MiB"},
        {"{{ ('x' * 1000000) | replace('', 'y' * 1000) }}", "4 MiB"},
        {"{{ [1] * 9223372036854775807 }}", "more work"},
        {"{{ 'x' | center(9223372036854775807) }}", "4 MiB"},
        {"{{ 'x' | indent(9223372036854775807) }}", "4 MiB"},
        {"{{ [1] | batch(9223372036854775807, 1) | list }}", "more work"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "nested deeper"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", "nested deeper"},
        {"{% set a = [] %}{% set b = [] %}{% set _ = a.append(b) %}{% set _ = b.append(a) %}{{ a == b }}", "nested deeper"},
        {"{% set ns = namespace(t=()) %}{% for x in range(5000) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {ns.t: 1} }}",
         "nested deeper"},
        {"{% for x in range(100000) %}{{ 'x' * 10000 }}{% endfor %}", "4 MiB"},
        {"{{ range(100001) }}", "range()"},
        {"{% set s = 'A' * 4000000 %}{% for a in range(100000) %}{{ s is upper }}{% endfor %}", "work"},
        {"{% set s = '0' * 4000000 %}{% for a in range(100000) %}{{ s | int }}{% endfor %}", "work"},
        {"{% set s = 'a' * 4000000 %}{% for a in range(100000) %}{{ s.startswith(s) }}{% endfor %}", "work"},
        {"{% set s = 'a' * 4000000 %}{% for a in range(100000) %}{{ {'a': 1}.get(s.strip()) }}{% endfor %}", "work"},
        {"{{ ('a' * 3000000).rsplit('b' * 30000) }}", "work"},
        {"{% for x in range(1000) %}{% set a = ('ab' * 1000000)[::-1] %}{% endfor %}", "more work"},
    };
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        td_error  err;
        char     *text;
        td_status status = render(CASES[k].source, "{}", &text, &err);
        free(text);
        if (status == TD_OK || !strstr(err.text, CASES[k].words)) fail_msg("%s: %d %s", CASES[k].source, status, err.text);
    }
}

/* Long requests may have long prompts. */
TEST(limits_grow_with_the_request) {
    enum { N = 1 << 20 };
    char    *request = malloc(N + 100), *text;
    td_error err = {0};
    assert_non_null(request);
    size_t n = (size_t)sprintf(request, "{\"x\":\"");
    memset(request + n, 'a', N);
    strcpy(request + n + N, "\"}");
    OK(render("{{ x * 15 }}", request, &text, &err));
    assert_int_equal(strlen(text), 15 * N);
    free(text);
    assert_int_equal(render("{{ x * 21 }}", request, &text, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "a longer text than is allowed for this request: 20 MiB"));
    free(request);
}

/* head, n times piece, middle, n times close, tail */
static char *repeated(const char *head, const char *piece, const char *middle, const char *close, const char *tail,
                      size_t n) {
    char *s = malloc(strlen(head) + n * (strlen(piece) + strlen(close)) + strlen(middle) + strlen(tail) + 1), *p = s;
    assert_non_null(s);
    p = stpcpy(p, head);
    for (size_t k = 0; k < n; k++) p = stpcpy(p, piece);
    p = stpcpy(p, middle);
    for (size_t k = 0; k < n; k++) p = stpcpy(p, close);
    strcpy(p, tail);
    return s;
}

TEST(deep_nesting_ends_with_an_error) {
    static const struct {
        const char *head, *piece, *middle, *close, *tail;
        td_status   status; /* EFORMAT: the parser stops; EINVAL: long chains are parsed in a loop and stop when evaluated */
    } CASES[] = {
        {"{{ ", "(", "1", ")", " }}", TD_EFORMAT},
        {"{{ ", "[", "1", "]", " }}", TD_EFORMAT},
        {"{{ ", "{1:", "1", "}", " }}", TD_EFORMAT},
        {"{{ ", "x(", "1", ")", " }}", TD_EFORMAT},
        {"{{ ", "x[", "1", "]", " }}", TD_EFORMAT},
        {"{{ ", "x|d(", "1", ")", " }}", TD_EFORMAT},
        {"{{ x is eq ", "[", "1", "]", " }}", TD_EFORMAT},
        {"{% set ", "(", "a", ")", " = 1 %}", TD_EFORMAT},
        {"{% for ", "(", "a", ")", " in b %}{% endfor %}", TD_EFORMAT},
        {"", "{% if x %}", "", "{% endif %}", "", TD_EFORMAT},
        {"", "{% macro f() %}", "", "{% endmacro %}", "", TD_EFORMAT},
        {"{{ ", "not ", "1", "", " }}", TD_EFORMAT},
        {"{{ ", "-", "1", "", " }}", TD_EFORMAT},
        {"{{ 1", " if 0 else 1", "", "", " }}", TD_EFORMAT},
        {"{{ 1", "+1", "", "", " }}", TD_EINVAL},
        {"{{ 'x'", "|upper", "", "", " }}", TD_EINVAL},
        {"{{ x", ".y", "", "", " }}", TD_EINVAL},
        {"{{ 1", " and 1", "", "", " }}", TD_EINVAL},
        {"{% set x ", "| upper ", "%}{% endset %}", "", "", TD_EINVAL},
    };
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        FREED char *source = repeated(CASES[k].head, CASES[k].piece, CASES[k].middle, CASES[k].close, CASES[k].tail, 20000);
        assert_fails(source, "{}", CASES[k].status, "nested deeper");
    }
    FREED char *request = repeated("{\"a\": ", "[", "1", "]", "}", 1000);
    assert_fails("x", request, TD_EINVAL, "nested deeper");
    FREED char *chain =
        repeated("{% if 0 %}", "{% elif 0 %}a", "", "", "{% else %}b{% endif %}", 20000); /* wide is not deep */
    assert_renders(chain, "{}", "b");
}

TEST(survives_failing_allocations) {
    static const char SOURCE[] =
        "{% macro m(a) %}{{ a }}{% endmacro %}{% for x in range(40) %}{{ m('abc' * 900) | tojson }}{% endfor %}";
    bool done = false;
    for (long k = 0; k < 1000 && !done; k++) {
        AT_END(end_template) td_chat_template *t = NULL;
        td_error                               err;
        FREED char                            *text = NULL;
        size_t                                 len;
        allocations_left = k;
        td_status status = compile(SOURCE, sizeof SOURCE - 1, &t, &err);
        if (status == TD_OK) status = td_chat_template_render(t, "{}", 2, NULL, NULL, &text, &len, &err);
        allocations_left = -1;
        assert_true(status == TD_OK || status == TD_ENOMEM || status == TD_EINVAL); /* EINVAL: jansson without memory */
        assert_true((text != NULL) == (status == TD_OK));
        done = status == TD_OK;
    }
    assert_true(done);
}

/* ---- threads ---- */

static void *render_many(void *arg) {
    static const char REQUEST[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    for (int k = 0; k < 200; k++) {
        char  *text;
        size_t len;
        if (td_chat_template_render(arg, REQUEST, sizeof REQUEST - 1, NULL, NULL, &text, &len, NULL) != TD_OK)
            return "error";
        bool same = !strcmp(text, "user:hi{'role': 1};");
        free(text);
        if (!same) return "another text";
    }
    return NULL;
}

TEST(threads_share_a_template) {
    static const char SOURCE[] = "{% for m in messages %}{{ m['role'] }}:{{ m.content }}{{ {'role': 1} }};{% endfor %}";
    AT_END(end_template) td_chat_template *t = NULL;
    td_error                               err;
    pthread_t                              thread[4];
    void                                  *wrong;
    OK(compile(SOURCE, sizeof SOURCE - 1, &t, &err));
    for (size_t k = 0; k < 4; k++) assert_int_equal(pthread_create(&thread[k], NULL, render_many, t), 0);
    for (size_t k = 0; k < 4; k++) {
        pthread_join(thread[k], &wrong);
        if (wrong) fail_msg("%s", (const char *)wrong);
    }
}
