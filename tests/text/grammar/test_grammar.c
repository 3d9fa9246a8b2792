/* What grammars accept and refuse: regexes, EBNF, JSON Schema, limits. Also what the matcher itself promises. */

#include "tests/td_test.h"
#include "text/grammar/grammar_matcher.h"
#include "text/grammar/grammar_regex.h"

static td_grammar *compile(td_grammar_kind kind, const char *source) {
    td_grammar *g;
    td_error    err = {0};
    if (td_grammar_compile(kind, source, strlen(source), &g, &err) != TD_OK) fail_msg("%s: %s", source, err.text);
    return g;
}

/* texts: accepted ones, NULL, refused ones, NULL. */
static void expect(td_grammar_kind kind, const char *source, const char *const *texts) {
    td_grammar *g = compile(kind, source);
    for (bool wanted = true;; texts++) {
        bool   accepted;
        size_t at;
        if (!*texts && !wanted) break;
        if (!*texts) {
            wanted = false;
            continue;
        }
        OK(td_grammar_check(g, *texts, strlen(*texts), &accepted, &at));
        if (accepted != wanted)
            fail_msg("%s: '%s' is %saccepted, up to byte %zu", source, *texts, accepted ? "" : "not ", at);
        assert_true(at <= strlen(*texts));
    }
    td_grammar_release(g);
}

#define EXPECT(kind, source, ...) expect(TD_GRAMMAR_##kind, source, (const char *const[]){__VA_ARGS__, NULL})

static void refuse(td_grammar_kind kind, const char *source, const char *said) {
    td_grammar *g = NULL;
    td_error    err = {0};
    td_status   st = td_grammar_compile(kind, source, strlen(source), &g, &err);
    if (st == TD_OK) fail_msg("%.100s: it is not refused", source);
    assert_null(g);
    assert_int_equal(err.status, st);
    if (!strstr(err.text, said)) fail_msg("%.100s: '%s' does not say '%s'", source, err.text, said);
}

TEST(regexes) {
    EXPECT(REGEX, "", "", NULL, "a");
    EXPECT(REGEX, "abc|d", "abc", "d", NULL, "", "ab", "abcd", "abd");
    EXPECT(REGEX, "^(a|b)*c$", "c", "abbac", NULL, "ab", "cc");
    EXPECT(REGEX, "^a|b$", "a", "b", NULL, "ab");
    EXPECT(REGEX, "a{2,3}?x{0}y{2}", "aayy", "aaayy", NULL, "ayy", "aaaayy", "aaxyy", "aay");
    EXPECT(REGEX, "a{,2}{b}", "{b}", "aa{b}", NULL, "aaa{b}");
    EXPECT(REGEX, "[^a-c\\n]é[à-ü]", "xéà", "\xF0\x9F\x98\x80éü", NULL, "aéà", "\néà", "xéa", "\xC3", "xé");
    EXPECT(REGEX, ".", "x", "\xE2\x82\xAC", NULL, "\n", "", "\x80", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80");
    EXPECT(REGEX, "\\d\\D\\w\\W\\s\\S", "1a_- x", NULL, "aa_- x", "1a_-xx",
           "\xD9\xA1"
           "a_- x");
    EXPECT(REGEX, "[]a][\\]\\-x][a-]", "]--", "axa", NULL, "]b-");
    EXPECT(REGEX, "\\u00e9\\x41\\t\\.", "éA\t.", NULL, "éA\tx");
    EXPECT(REGEX, "(?:a)(?P<n>b)(?<m>c)", "abc", NULL, "ab");
    EXPECT(REGEX, "(a*)*b", "b", "aab", NULL, "a");
    refuse(TD_GRAMMAR_REGEX, "a(", "has no end");
    refuse(TD_GRAMMAR_REGEX, "a)", "has no '('");
    refuse(TD_GRAMMAR_REGEX, "[a", "has no end");
    refuse(TD_GRAMMAR_REGEX, "*a", "nothing to repeat");
    refuse(TD_GRAMMAR_REGEX, "a**", "follows a quantifier");
    refuse(TD_GRAMMAR_REGEX, "a++", "follows a quantifier");
    EXPECT(REGEX, "^(?=.*\\d)(?!.*[xy])(?!^a+$)[a-z0-9]+$", "a1", "1", NULL, "a", "ax1", "1x", "", "é1");
    EXPECT(JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(?!.*é)(?=a|b$)\"}", "\"abc\"", "\"b\"", NULL, "\"bc\"",
           "\"aé\"", "\"a\\u00e9\"");
    refuse(TD_GRAMMAR_REGEX, "^(?=a)b|c", "'(?='");
    refuse(TD_GRAMMAR_REGEX, "(?=a)", "(?=");
    refuse(TD_GRAMMAR_REGEX, "(?<!a)", "(?<");
    refuse(TD_GRAMMAR_REGEX, "(?i)a", "(?i");
    refuse(TD_GRAMMAR_REGEX, "(a)\\1", "\\1");
    refuse(TD_GRAMMAR_REGEX, "\\bword", "\\b");
    refuse(TD_GRAMMAR_REGEX, "\\p{L}", "\\p");
    refuse(TD_GRAMMAR_REGEX, "a^b", "begins");
    refuse(TD_GRAMMAR_REGEX, "a$b", "ends");
    refuse(TD_GRAMMAR_REGEX, "(^a)+", "anchor");
    refuse(TD_GRAMMAR_REGEX, "[z-a]", "before it begins");
    refuse(TD_GRAMMAR_REGEX, "a{3,2}", "below its smallest");
    refuse(TD_GRAMMAR_REGEX, "\xFF", "UTF-8");
    refuse(TD_GRAMMAR_REGEX, "[^\\s\\S]", "no text matches");
}

TEST(ebnf) {
    EXPECT(EBNF, "root ::= \"a\" b* # comment\nb ::= [x-z] | \"(\" root \")\"", "a", "axz", "a(a(ay))", NULL, "", "a(",
           "a(a", "b");
    EXPECT(EBNF, "root ::= (\"a\"\n | \"b\"){2,3} .\n", "abé", "aba\n", NULL, "a", "aaaaa");
    EXPECT(EBNF, "my-rule.2 ::= [^\\n\\]]+\nroot ::= \"\\\"\\x41\\u00e9\\n\" my-rule.2?", "\"Aé\n", "\"Aé\nxyz", NULL,
           "\"Aé", "\"Aé\n]");
    EXPECT(EBNF, "root ::= \"a\" root \"b\" | \"\"", "", "ab", "aaabbb", NULL, "aab", "abb", "ba");
    EXPECT(EBNF, "root ::= empty empty \"x\"\nempty ::= \"\" | \"y\"", "x", "yx", "yyx", NULL, "yyyx");
    /* Ambiguous: each text has many readings. */
    EXPECT(EBNF, "root ::= \"a\" root root | \"b\"", "b", "abb", "aabbb", NULL, "ab", "bb");
    refuse(TD_GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", "begin with itself");
    refuse(TD_GRAMMAR_EBNF, "root ::= x \"a\"\nx ::= y | \"b\"\ny ::= z root\nz ::= \"\"", "begin with itself");
    EXPECT(EBNF, "root ::= endless*\nendless ::= b endless\nb ::= \"x\"?", "", NULL,
           "x"); /* what no text ends is left out */
    refuse(TD_GRAMMAR_EBNF, "root ::= \"a\" root", "no text matches");
    refuse(TD_GRAMMAR_EBNF, "root ::= missing", "'missing' is used but not defined");
    refuse(TD_GRAMMAR_EBNF, "start ::= \"a\"", "no rule 'root'");
    refuse(TD_GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", "defined twice");
    refuse(TD_GRAMMAR_EBNF, "root ::= \"a", "no end");
    refuse(TD_GRAMMAR_EBNF, "root ::= (\"a\"", "no end");
    refuse(TD_GRAMMAR_EBNF, "root ::= \"a\")", "no '('");
    refuse(TD_GRAMMAR_EBNF, "root ::= (=\"a\")", "lookahead");
    refuse(TD_GRAMMAR_EBNF, "?start: \"a\"", "::=");
}

TEST(json) {
    EXPECT(JSON_OBJECT, "", "{}", "{\"a\":1}", "{\"a\": [1, -2.5e+3, \"x\\n\\u00e9\", null], \"b\": {}}",
           "{\n  \"a\": true\n}", NULL, "", "[]", "{\"a\":1,}", "{\"a\":01}", "{a:1}", "{\"a\":\"\n\"}", "{} ",
           "{\"a\"  :1}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\\x\"}");
    EXPECT(JSON_SCHEMA, "true", "1", "\"\"", "[1,[2]]", NULL, "", "{");
    EXPECT(JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":-15,\"exclusiveMaximum\":1203}", "-15", "0", "7", "999", "1202",
           NULL, "-16", "1203", "-0", "01", "1.0", "9999");
    EXPECT(JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":10}", "0", "9.999", "0.0", NULL, "10", "-1",
           "-0.5", "10.0", "1e0");
    EXPECT(JSON_SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":2}", "2.01", "3", "100.5", NULL, "2", "2.0", "1", "-3");
    EXPECT(JSON_SCHEMA, "{\"type\":[\"string\",\"null\"],\"minLength\":2,\"maxLength\":3}", "null", "\"ab\"",
           "\"é\\u00e9\\n\"", "\"\\ud83d\\ude00x\"", NULL, "\"a\"", "\"abcd\"", "1");
    EXPECT(JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b+\"}", "\"b\"", "\"abba\"", NULL, "\"\"", "\"aca\"");
    EXPECT(JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z\\\"]+$\",\"maxLength\":3}", "\"abc\"", "\"a\\\"b\"", NULL,
           "\"abcd\"", "\"A\"", "\"a\"b\"");
    EXPECT(JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", NULL, "\"2024-13-01\"",
           "\"x2024-02-29\"");
    EXPECT(JSON_SCHEMA, "{\"enum\":[1,\"é\\n\",null,[1,{\"a\":2.5}]]}", "1", "\"é\\n\"", "\"\\u00e9\\u000a\"", "null",
           "[1,{\"a\":2.5}]", "[1, {\"a\": 2.5}]", NULL, "2", "\"e\"", "[1]");
    EXPECT(JSON_SCHEMA, "{\"type\":\"string\",\"enum\":[1,\"a\"]}", "\"a\"", NULL, "1");
    EXPECT(JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}", "[1]",
           "[1,2, 3]", "[\n  1,\n  2\n]", NULL, "[]", "[1,2,3,4]", "[\"a\"]");
    EXPECT(JSON_SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}", "[]", "[1]",
           "[1,2]", NULL, "[2]", "[1,2,3]");
    EXPECT(JSON_SCHEMA,
           "{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":9},\"minItems\":2,\"maxItems\":3}",
           "[1,9]", "[1,9,9]", NULL, "[1]", "[1,9,9,9]", "[9,9]");
}

TEST(objects) {
    EXPECT(JSON_SCHEMA,
           "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"required\":["
           "\"b\"],"
           "\"additionalProperties\":false}",
           "{\"b\":2}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}", "{\"a\":1,\"b\":2, \"c\":3}", NULL, "{}", "{\"a\":1}",
           "{\"c\":3,\"b\":2}", "{\"b\":2,\"d\":1}", "{\"b\":2,}", "{,\"b\":2}", "{\"b\":3}", "{\"b\":2,\"b\":2}");
    EXPECT(JSON_SCHEMA,
           "{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{\"type\":\"string\"}}",
           "{}", "{\"ab\":1}", "{\"a\":\"x\",\"abc\":\"y\"}", "{\"ab\":1,\"\":\"y\"}", NULL, "{\"ab\":\"x\"}",
           "{\"\\u0061b\":\"x\"}", "{\"ab\":1,\"z\":2}");
    EXPECT(JSON_SCHEMA, "{\"type\":\"object\",\"required\":[\"x\"]}", "{\"x\":1}", "{\"x\":[],\"y\":2}", NULL, "{}",
           "{\"y\":2}");
    EXPECT(JSON_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"string\"}}}", "1", "{\"a\":\"x\"}", "[]", NULL, "{\"a\":1}");
    EXPECT(JSON_SCHEMA,
           "{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#\"},\"v\":{\"$ref\":\"#/$defs/"
           "v\"}},\"additionalProperties\":false,"
           "\"$defs\":{\"v\":{\"enum\":[1,2]}}}",
           "{}", "{\"next\":{\"next\":{\"v\":1}},\"v\":2}", NULL, "{\"next\":1}", "{\"v\":3}");
    EXPECT(JSON_SCHEMA,
           "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":"
           "[\"a\"]}]}",
           "5", "{\"a\":null}", NULL, "\"x\"", "{}");
    EXPECT(JSON_SCHEMA,
           "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},\"required\":[\"k\"],\"oneOf\":[{"
           "\"properties\":{\"k\":{\"const\":\"x\"}}},"
           "{\"properties\":{\"k\":{\"const\":\"y\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}]}",
           "{\"k\":\"x\"}", "{\"k\":\"y\",\"n\":1}", NULL, "{\"k\":\"z\"}", "{\"k\":\"y\"}");
    EXPECT(JSON_SCHEMA,
           "{\"allOf\":[{\"$ref\":\"#/$defs/"
           "a\"},{\"maximum\":10}],\"description\":\"x\",\"$defs\":{\"a\":{\"type\":\"integer\",\"minimum\":5}}}",
           "5", "10", NULL, "4", "11", "\"x\"");
}

TEST(schemas_that_are_not_followed_in_all) {
    td_grammar *g = compile(TD_GRAMMAR_JSON_SCHEMA,
                            "{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"x\",\"a\":1}},"
                            "\"required\":[\"a\"],\"a\":2,\"strict\":true}");
    assert_string_equal(td_grammar_warning(g),
                        "The schema is not followed in all: these have no effect: 'a', 'format': 'x'.");
    td_grammar_release(g);
    g = compile(TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true}");
    assert_non_null(strstr(td_grammar_warning(g), "'uniqueItems'"));
    td_grammar_release(g);
    g = compile(TD_GRAMMAR_JSON_SCHEMA, "{\"title\":\"t\",\"x-y\":1,\"type\":\"integer\",\"format\":\"int64\"}");
    assert_null(td_grammar_warning(g));
    td_grammar_release(g);
    /* More than eight values: each once, in the schema's order. */
    EXPECT(JSON_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9]}}",
           "[1,9]", "[2,3,4]", NULL, "[9,1]", "[3,3]", "[1]");
    EXPECT(JSON_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":12,\"minimum\":100,\"maximum\":150}", "108", "144", NULL, "96",
           "110", "156");
    EXPECT(JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":-0.25,\"exclusiveMaximum\":1.5}", "-0.25", "-0.2", "0", "1.49",
           NULL, "-0.26", "1.5", "1.50");
    EXPECT(JSON_SCHEMA,
           "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"const\":1}},\"additionalProperties\":false,"
           "\"minProperties\":1,\"maxProperties\":2}",
           "{\"ab\":1}", "{\"a\":1,\"ac\":1}", NULL, "{}", "{\"b\":1}", "{\"a\":2}", "{\"a\":1,\"b\":1}",
           "{\"a\":1,\"a1\":1,\"a2\":1}");
}

TEST(schemas_that_are_refused) {
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"$dynamicRef\":\"#x\"}", "'$dynamicRef'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"not\":{\"patternProperties\":{\"a\":false}}}", "'patternProperties'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a(?=.*\\\\d).+$\"}",
           "'pattern': 'a(?=.*\\d).+$': regex, byte 3: '(?='");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":0}", "'multipleOf'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":123456789}", "'multipleOf'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"maxProperties\":60000}", "'maxProperties'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"text\"}", "'text'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/none\"}", "points to nothing");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"http://example.org/x\"}", "'$ref'");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "no text matches");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}]}", "refers to itself");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "false", "no text matches");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{", "not valid JSON");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "[]", "must be an object");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"minLength\":-1}", "'minLength'");
    refuse(TD_GRAMMAR_CHOICES, "[]", "at least one");
    refuse(TD_GRAMMAR_CHOICES, "[1]", "strings");
}

/* A text of `head`, n times `middle`, n times `tail`; owned by the caller. */
static char *nested(const char *head, const char *middle, const char *tail, size_t n) {
    size_t m = strlen(middle), t = strlen(tail), h = strlen(head);
    char  *text = malloc(h + n * (m + t) + 1), *to = text;
    assert_non_null(text);
    memcpy(to, head, h), to += h;
    for (size_t i = 0; i < n; i++) memcpy(to, middle, m), to += m;
    for (size_t i = 0; i < n; i++) memcpy(to, tail, t), to += t;
    *to = 0;
    return text;
}

TEST(explosions_are_refused) {
    refuse(TD_GRAMMAR_REGEX, "(a|b)*a(a|b){30}", "too large");
    refuse(TD_GRAMMAR_REGEX, "((a{1,1000}){1,1000}){1,1000}", "too large");
    refuse(TD_GRAMMAR_REGEX, "[^x]{1,60000}", "too large");
    refuse(TD_GRAMMAR_REGEX, "a{1,1000000}", "65536");
    refuse(TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":1000000}", "'maxLength'");
    static const struct {
        td_grammar_kind kind;
        const char     *head, *middle, *tail, *said;
        size_t          n;
    } deep[] = {{TD_GRAMMAR_REGEX, "", "(", ")", "nested", 5000},
                {TD_GRAMMAR_REGEX, "", "^", "", "nested", 5000},
                {TD_GRAMMAR_EBNF, "root ::= ", "(", ")", "nested", 5000},
                {TD_GRAMMAR_EBNF, "root ::= \"a\"", "?", "", "nested", 5000},
                {TD_GRAMMAR_JSON_SCHEMA, "", "{\"items\":", "}", "JSON", 5000},
                {TD_GRAMMAR_JSON_SCHEMA, "{\"a\":", "[", "]", "JSON", 5000},
                {TD_GRAMMAR_REGEX, "", "a", "", "bytes", (1 << 20) + 1},
                {TD_GRAMMAR_JSON_SCHEMA, "", " ", "", "bytes", 1 << 20}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        FREED char *source = nested(deep[i].head, deep[i].middle, deep[i].tail, deep[i].n);
        refuse(deep[i].kind, source, deep[i].said);
    }
    FREED char *items = nested("{\"items\":{\"x-\":1,", "\"items\":{", "}", 200), *schema = malloc(strlen(items) + 10);
    assert_non_null(schema);
    sprintf(schema, "%s}}", items);
    refuse(TD_GRAMMAR_JSON_SCHEMA, schema, "");
}

/* ---- the matcher ------------------------------------------------------------------------------- */

static void open_regex(td_gr_pda *pda, td_gr_matcher *m, const char *regex) {
    td_gr_builder b;
    td_gr_open(&b, NULL);
    b.root = td_gr_rule_new(&b, "regex");
    td_gr_define(&b, b.root, td_gr_regex(&b, regex, strlen(regex)));
    td_gr_pda_make(&b, pda);
    OK(b.status);
    td_gr_close(&b);
    OK(td_gr_matcher_open(m, pda));
}

TEST(copies_and_going_back) {
    AT_END(td_gr_pda_free) td_gr_pda          pda;
    AT_END(td_gr_matcher_close) td_gr_matcher m, copy;
    open_regex(&pda, &m, "ab(cd|ce)f?");
    assert_int_equal(td_gr_matcher_advance(&m, "abc", 3), 3);
    uint32_t here = m.current;
    OK(td_gr_matcher_copy(&copy, &m));
    assert_int_equal(td_gr_matcher_advance(&m, "dx", 2), 1);
    assert_true(m.sets[m.current].may_end);
    m.current = here;
    assert_int_equal(td_gr_matcher_advance(&m, "ef", 2), 2);
    assert_int_equal(td_gr_matcher_advance(&copy, "d", 1), 1);
    assert_true(copy.sets[copy.current].may_end && copy.sets[copy.current].n == 1);
}

/* 4,096 states of characters of which each may be the last or not; every text can go on. */
TEST(ends_of_the_whole_text_tell_nothing_apart) {
    AT_END(td_gr_pda_free) td_gr_pda          pda;
    AT_END(td_gr_matcher_close) td_gr_matcher m;
    size_t                                    n_classes = 0;
    open_regex(&pda, &m, "(.|\n)*a(.|\n){11}");
    for (size_t i = 0; i < pda.a.n_states; i++) n_classes += pda.alike[i] == i;
    assert_true(pda.a.n_states > 4096);
    assert_true(n_classes < 16);
    assert_true(pda.alike_always);
}

TEST(what_is_forced) {
    AT_END(td_gr_pda_free) td_gr_pda          pda;
    AT_END(td_gr_matcher_close) td_gr_matcher m;
    char                                      bytes[16];
    bool                                      ends;
    open_regex(&pda, &m, "hello (world|word)!");
    assert_int_equal(td_gr_matcher_forced(&m, bytes, sizeof bytes, &ends), 9);
    assert_memory_equal(bytes, "hello wor", 9);
    assert_false(ends);
    assert_int_equal(td_gr_matcher_forced(&m, bytes, 3, &ends), 3);
    assert_int_equal(td_gr_matcher_advance(&m, "hello wor", 9), 9);
    assert_int_equal(td_gr_matcher_forced(&m, bytes, sizeof bytes, &ends), 0);
    assert_int_equal(td_gr_matcher_advance(&m, "l", 1), 1);
    assert_int_equal(td_gr_matcher_forced(&m, bytes, sizeof bytes, &ends), 2);
    assert_true(ends);
    assert_int_equal(td_gr_matcher_forced(&m, bytes, 1, &ends), 1);
    assert_false(ends); /* one byte more */
}

/* Long and deep texts: what is remembered stays small, and limits are told, not passed. */
TEST(long_texts) {
    td_grammar *g = compile(TD_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"$ref\":\"#\"},\"type\":\"array\"}");
    bool        accepted;
    size_t      at;
    char       *text = nested("", "[", "]", 500);
    OK(td_grammar_check(g, text, 1000, &accepted, &at));
    assert_true(accepted);
    free(text);
    text = nested("", "[", "]", 5000);
    assert_int_equal(td_grammar_check(g, text, 10000, &accepted, &at), TD_EINVAL);
    free(text);
    td_grammar_release(g);

    g = compile(TD_GRAMMAR_JSON_OBJECT, "");
    text = nested("{\"a\":[", "{\"b\":\"some text\",\"c\":[1,2,3]},", "", 5000);
    OK(td_grammar_check(g, text, strlen(text), &accepted, &at));
    assert_int_equal(at, strlen(text));
    free(text);
    td_grammar_release(g);

    /* Readings double with each byte: followed as far as they can be. */
    g = compile(TD_GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"");
    text = nested("", "a", "b", 60);
    td_status st = td_grammar_check(g, text, strlen(text), &accepted, &at);
    assert_true(st == TD_OK || st == TD_EINVAL);
    free(text);
    td_grammar_release(g);
}
