/* Properties that parsers of answers have with every format: cuts change nothing, text without markers is content, and a
 * lack of memory is an error. */

#include <unistd.h>

#include "answer_fixture.h"
#include "core/math/rng.h"
#include "tests/td_test.h"

#define ROUNDS 4000

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static long g_left = -1; /* allocations until one fails, and all after; -1: none does */

static bool fails(void) {
    if (g_left > 0) g_left--;
    return g_left == 0;
}
void *__wrap_malloc(size_t n) {
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) {
    return fails() ? NULL : __real_realloc(p, n);
}

/* What texts are put together from: whole markers, parts of calls, and what is nearly one of them. */
static const char *const PARTS[] = {
    "<think>",
    "</think>",
    "◁think▷",
    "◁/think▷",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n",
    "\n</tool_call>\n",
    "<function=f>",
    "<function=",
    "</function>",
    "<parameter=a>",
    "<parameter=b>\n",
    "<parameter=c>",
    "\n</parameter>",
    "</parameter>",
    "<arg_key>a</arg_key>",
    "<arg_key>b</arg_key>\n",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"f\">",
    "</invoke>",
    "<parameter name=\"a\">",
    "<parameter name=\"c\">",
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    "\n\n<｜DSML｜tool_calls>",
    "<｜DSML｜tool>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"f\">",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "<｜DSML｜parameter name=\"b\" string=\"false\">",
    "<｜DSML｜parameter name=\"c\">",
    "</｜DSML｜parameter>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>",
    "<｜tool▁sep｜>",
    "\n```json\n",
    "\n```",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]x1",
    "[f(a='x', b=2)]",
    "[f(",
    "a=[1, (2,)]",
    ")]",
    "<|channel|>",
    "analysis",
    "final",
    "commentary",
    " to=functions.f",
    "<|constrain|>json",
    "<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "<|call|>",
    "<|return|>",
    "{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}",
    "{\"name\": \"f\", \"parameters\": {}}",
    "{\"arguments\": {}, \"name\": \"f\"}",
    "[{\"name\": \"f\", \"arguments\": {\"b\": [1, {\"c\": null}]}}]",
    "{\"name\": ",
    "\"f\"",
    ", \"arguments\": ",
    "{\"a\": 1}",
    "{\"a\": \"\\u00e9\\\"\"}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    ";",
    " ",
    "\n",
    "\n\n",
    "f",
    "f\n",
    "a",
    "1",
    "x",
    "é",
    "日本",
    "😀",
    "\\",
    "<",
    "<t",
    "<｜",
    "\x01",
    "'",
    "text",
};
#define N_PARTS (sizeof PARTS / sizeof *PARTS)

static uint64_t g_seed;

static size_t make_text(uint64_t stream, char *text) {
    size_t n = 0, parts = 1 + td_rng_u64(g_seed, stream, 0) % 24;
    for (size_t i = 0; i < parts; i++) {
        const char *part = PARTS[td_rng_u64(g_seed, stream, 1 + i) % N_PARTS];
        memcpy(text + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

TEST(test_cuts_change_nothing) {
    static answer_seen whole, cut;
    static char        text[24 * 96];
    for (uint64_t round = 0; round < ROUNDS; round++) {
        size_t tool = td_rng_u64(g_seed, round, 100) % N_TOOL_FORMATS,
               reasoning = td_rng_u64(g_seed, round, 101) % N_REASONING_FORMATS;
        bool with_tools = td_rng_u64(g_seed, round, 102) % 2;
        if (!answer_pair(tool, reasoning)) continue;
        size_t n = make_text(round, text);
        assert_true(answer_parse(tool, reasoning, with_tools, text, n, 0, 0, &whole));
        for (unsigned step = 1; step < 20; step += 6) {
            cut.whole_characters = step > 6;
            assert_true(answer_parse(tool, reasoning, with_tools, text, n, step, round, &cut));
            if (answer_equal(&whole, &cut)) continue;
            print_message("seed %llu, round %llu, step %u: %.*s\n", (unsigned long long)g_seed, (unsigned long long)round,
                          step, (int)n, text);
            fail();
        }
    }
}

/* Where no call is found, all of the text that is no marker of reasoning is there, byte for byte. */
TEST(test_nothing_is_lost) {
    static answer_seen seen;
    static char        text[24 * 96];
    size_t             without = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        size_t tool = 1 + td_rng_u64(g_seed, round, 100) % (N_TOOL_FORMATS - 2); /* harmony has markers of its own */
        size_t n = make_text(round + ROUNDS, text);
        assert_true(answer_parse(tool, 0, true, text, n, 3, round, &seen));
        if (seen.n_calls) continue;
        without++;
        if (seen.n_content != n || memcmp(seen.content, text, n) != 0) {
            print_message("seed %llu, round %llu, %s: %.*s\n", (unsigned long long)g_seed, (unsigned long long)round,
                          TOOL_FORMATS[tool], (int)n, text);
            fail();
        }
    }
    assert_true(without > ROUNDS / 2);
}

TEST(test_text_is_content) {
    static answer_seen seen;
    static const char  BYTES[] = "abcXYZ 0123456789.,:;!?-_/\\\"'*#\n\t~`^&%$@+=()";
    char               text[512];
    for (uint64_t round = 0; round < 500; round++) {
        size_t n = td_rng_u64(g_seed, round, 0) % sizeof text;
        for (size_t i = 0; i < n; i++) text[i] = BYTES[td_rng_u64(g_seed, round, 1 + i) % (sizeof BYTES - 1)];
        for (size_t tool = 0; tool < N_TOOL_FORMATS; tool++) {
            assert_true(answer_parse(tool, 0, round % 2, text, n, 5, round, &seen));
            assert_int_equal(seen.n_content, n);
            assert_memory_equal(seen.content, text, n);
            assert_int_equal(seen.n_calls + seen.n_reasoning, 0);
        }
    }
}

/* Bytes that are no text: nothing breaks, and what was whole before is whole after. */
TEST(test_any_bytes) {
    static answer_seen whole, cut;
    static char        text[24 * 96];
    for (uint64_t round = 0; round < ROUNDS; round++) {
        size_t tool = td_rng_u64(g_seed, round, 100) % N_TOOL_FORMATS;
        size_t n = make_text(round + 2 * ROUNDS, text);
        for (size_t k = 0; k < 3; k++)
            text[td_rng_u64(g_seed, round, 200 + k) % n] = (char)td_rng_u64(g_seed, round, 300 + k);
        assert_true(answer_parse(tool, 0, true, text, n, 0, 0, &whole));
        assert_true(answer_parse(tool, 0, true, text, n, 1, 0, &cut));
        assert_true(answer_equal(&whole, &cut));
    }
}

TEST(test_memory_ends) {
    static answer_seen       seen;
    static const char *const TEXTS[][2] = {
        {"hermes", "a<tool_call>{\"arguments\": {\"a\": \"x\"}, \"name\": \"f\"}</tool_call>"},
        {"qwen3_coder",
         "<tool_call><function=f><parameter=b>1</parameter><parameter=a>x</parameter></function></tool_call>"},
        {"pythonic", "[f(a='x', b=[1, {'c': 2}])]"},
        {"kimi_k2",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": "
         "1}<|tool_call_end|>"},
    };
    g_memory_ends = true;
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        size_t tool = 0;
        bool   done = false;
        while (!TOOL_FORMATS[tool] || strcmp(TOOL_FORMATS[tool], TEXTS[i][0])) tool++;
        for (long n = 1; !done; n++) {
            assert_true(n < 1000);
            g_left = n;
            done = answer_parse(tool, 0, true, TEXTS[i][1], strlen(TEXTS[i][1]), 4, 1, &seen) && g_left > 0;
            g_left = -1;
        }
        assert_true(seen.n_calls > 0);
    }
    g_memory_ends = false;
}

TEST(test_templates) {
    static const struct {
        const char *file, *tools, *reasoning;
    } WANT[] = {{"Kimi-K2-Instruct", "kimi_k2", NULL},
                {"Kimi-K2-Thinking", "kimi_k2", "kimi_k2"},
                {"Qwen-Qwen2.5-7B-Instruct", "qwen25", NULL},
                {"Qwen-Qwen3-0.6B", "qwen25", "qwen3"},
                {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseekv3", "deepseek-r1"},
                {"deepseek-ai-DeepSeek-V3.1", "deepseekv31", "deepseek-v3"},
                {"demo-model", NULL, NULL}};
    for (size_t i = 0; i < sizeof WANT / sizeof *WANT; i++) {
        static char text[1 << 16];
        char        path[512];
        snprintf(path, sizeof path, TD_SOURCE_DIR "/tests/data/templates/%s.jinja", WANT[i].file);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        const char *tools = td_tool_format_of_template(text), *reasoning = td_reasoning_format_of_template(text);
        assert_string_equal(tools ? tools : "none", WANT[i].tools ? WANT[i].tools : "none");
        assert_string_equal(reasoning ? reasoning : "none", WANT[i].reasoning ? WANT[i].reasoning : "none");
    }
    /* What the templates of models that are not here have in them. */
    assert_string_equal(td_tool_format_of_template("<tool_call>\n<function=x>\n<parameter=y>\n"), "qwen3_coder");
    assert_string_equal(td_tool_format_of_template("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>"), "glm45");
    assert_string_equal(td_tool_format_of_template("<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>"), "glm47");
    assert_string_equal(td_tool_format_of_template("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}"),
                        "minimax-m2");
    assert_string_equal(td_tool_format_of_template("'<|channel|>commentary json<|message|>'"), "gpt-oss");
    assert_string_equal(td_tool_format_of_template("[TOOL_CALLS]"), "mistral");
    assert_string_equal(td_tool_format_of_template("<|python_tag|>"), "llama3");
    assert_null(td_tool_format_of_template("{{ messages }}"));
}

/* Kimi's small tokenizer, with markers among its added tokens: one that is special and one that is not. */
TEST(test_special_tokens) {
    static const char ADDED[] =
        "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {"
        "\"1000\": {\"content\": \"<|python_tag|>\", \"special\": true}, \"1001\": {\"content\": \"[TOOL_CALLS]\", "
        "\"special\": false}, "
        "\"1002\": {\"content\": \"</think>\", \"special\": true}, \"1003\": {\"content\": \"<|channel|>\", \"special\": "
        "true}}}";
    char          folder[] = "/tmp/td_answer_XXXXXX", path[64];
    td_tokenizer *tok = NULL;
    td_error      err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tiktoken.model", folder);
    assert_int_equal(symlink(TD_SOURCE_DIR "/tests/data/tokenizers/kimi/tiktoken.model", path), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(ADDED, 1, sizeof ADDED - 1, f), sizeof ADDED - 1);
    fclose(f);
    td_status st = td_tokenizer_open(folder, &tok, &err);
    unlink(path);
    snprintf(path, sizeof path, "%s/tiktoken.model", folder);
    unlink(path);
    rmdir(folder);
    if (st != TD_OK) fail_msg("%s", err.text);
    assert_true(td_answer_in_special_tokens("llama3", NULL, tok));
    assert_false(td_answer_in_special_tokens("mistral", NULL, tok));
    assert_false(td_answer_in_special_tokens("qwen25", NULL, tok));
    assert_true(td_answer_in_special_tokens("mistral", "qwen3", tok));
    assert_false(td_answer_in_special_tokens("mistral", "kimi", tok));
    assert_true(td_answer_in_special_tokens("gpt-oss", NULL, tok));
    assert_false(td_answer_in_special_tokens(NULL, NULL, tok));
    assert_false(td_answer_in_special_tokens("llama3", "qwen3", NULL));
    td_tokenizer_close(tok);
}

static td_reasoning_start after(const char *format, const char *prompt, const char *answer) {
    char text[256];
    snprintf(text, sizeof text, "%s%s", prompt, answer);
    return td_reasoning_after(format, text, strlen(text), strlen(answer));
}

TEST(test_reasoning_after) {
    assert_int_equal(after("qwen3", "<|im_start|>assistant\n", ""), TD_REASONING_BY_FORMAT);
    assert_int_equal(after("qwen3", "<|im_start|>assistant\n<think>\n", ""), TD_REASONING_OPEN);
    assert_int_equal(after("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", ""), TD_REASONING_CLOSED);
    assert_int_equal(after("glm45", "<|user|>Hi<|assistant|><think>", ""), TD_REASONING_OPEN); /* GLM-5.3, always */
    assert_int_equal(after("deepseek-r1", "x", ""), TD_REASONING_BY_FORMAT);
    assert_int_equal(after("qwen3", "a", "<think>x"), TD_REASONING_OPEN);
    assert_int_equal(after("qwen3", "a", "<think>x</think>y"), TD_REASONING_CLOSED);
    assert_int_equal(after("qwen3", "a", "y"), TD_REASONING_CLOSED);
    assert_int_equal(after("deepseek-r1", "a", "y"), TD_REASONING_BY_FORMAT);
    assert_int_equal(after("gpt-oss", "a", "y"), TD_REASONING_BY_FORMAT);
    assert_int_equal(after("qwen3", "", ""), TD_REASONING_BY_FORMAT);
}

int main(void) {
    const char *seed = getenv("TD_SEED");
    FILE       *random = fopen("/dev/urandom", "rb");
    if (seed)
        g_seed = strtoull(seed, NULL, 10);
    else if (!random || fread(&g_seed, sizeof g_seed, 1, random) != 1)
        g_seed = 1;
    if (random) fclose(random);
    print_message("seed %llu\n", (unsigned long long)g_seed);
    return tests_run();
}
