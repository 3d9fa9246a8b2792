/*
 * The formats of tool calls and of reasoning: their names (SGLang's, and vLLM's where they differ), and the words by which a
 * chat template of each is recognised.
 *
 * The rows are tried in order: the first one whose words are all in the template is the model's format.
 */
#include "core/error.h"
#include "text/parse/answer_parser.h"

#define N(array) (sizeof(array) / sizeof *(array))

static const td_token_dialect DEEPSEEK_V3 = {.call_open = "<｜tool▁call▁begin｜>",
                                             .kind_end = "<｜tool▁sep｜>",
                                             .fence = "```",
                                             .call_close = "<｜tool▁call▁end｜>",
                                             .section_close = "<｜tool▁calls▁end｜>"};
static const td_token_dialect DEEPSEEK_V31 = {.call_open = "<｜tool▁call▁begin｜>",
                                              .name_end = "<｜tool▁sep｜>",
                                              .call_close = "<｜tool▁call▁end｜>",
                                              .section_close = "<｜tool▁calls▁end｜>"};
static const td_token_dialect KIMI_K2 = {.call_open = "<|tool_call_begin|>",
                                         .name_end = "<|tool_call_argument_begin|>",
                                         .call_close = "<|tool_call_end|>",
                                         .section_close = "<|tool_calls_section_end|>",
                                         .has_id = true};

#define DSML_INVOKE "<｜DSML｜invoke name=\""
#define DSML_PARAMETER "<｜DSML｜parameter name=\""
#define DSML_DIALECT(close)                                                                                   \
    {                                                                                                         \
        .call_open = DSML_INVOKE, .name_end = "\">", .param_open = DSML_PARAMETER, .key_end = "\" string=\"", \
        .flag_end = "\">", .value_close = "</｜DSML｜parameter>", .call_close = "</｜DSML｜invoke>",          \
        .section_close = close, .next_param = DSML_PARAMETER, .next_close = "</｜DSML｜invoke>", .json = true \
    }
static const td_tag_dialect DEEPSEEK_V32 = DSML_DIALECT("</｜DSML｜function_calls>");
static const td_tag_dialect DEEPSEEK_V4 = DSML_DIALECT("</｜DSML｜tool_calls>");
static const td_tag_dialect QWEN3_CODER = {.call_open = "<function=",
                                           .name_end = ">",
                                           .param_open = "<parameter=",
                                           .key_end = ">",
                                           .value_close = "</parameter>",
                                           .call_close = "</function>",
                                           .section_close = "</tool_call>",
                                           .next_param = "\n<parameter=",
                                           .next_close = "\n</function>",
                                           .newlines = true};
static const td_tag_dialect GLM = {.param_open = "<arg_key>",
                                   .key_end = "</arg_key>",
                                   .value_open = "<arg_value>",
                                   .value_close = "</arg_value>",
                                   .call_close = "</tool_call>"};
static const td_tag_dialect MINIMAX_M2 = {.call_open = "<invoke name=\"",
                                          .name_end = "\">",
                                          .param_open = "<parameter name=\"",
                                          .key_end = "\">",
                                          .value_close = "</parameter>",
                                          .call_close = "</invoke>",
                                          .section_close = "</minimax:tool_call>",
                                          .json = true};

/* A row whose words include another row's comes before it. */
static const td_tool_format TOOLS[] = {
    {.names = {"gpt-oss", "openai", "harmony"}, .in_template = {"<|channel|>", "<|message|>"}},
    /* The empty line before the calls is theirs: it is written again when the answer comes back as a message. V4 has been
     * seen to shorten the opener's name, and to leave it out. */
    {.names = {"deepseekv4", "deepseek_v4"},
     .syntax = &td_syntax_tags,
     .openers = {{"\n\n<｜DSML｜tool_calls>", &DEEPSEEK_V4},
                 {"<｜DSML｜tool_calls>", &DEEPSEEK_V4},
                 {"<｜DSML｜toolcalls>", &DEEPSEEK_V4},
                 {"<｜DSML｜tool>", &DEEPSEEK_V4},
                 {DSML_INVOKE, &DEEPSEEK_V4}},
     .ends_answer = true,
     .in_template = {"<｜DSML｜tool_calls>"}},
    {.names = {"deepseekv32", "deepseek_v32"},
     .syntax = &td_syntax_tags,
     .openers = {{"\n\n<｜DSML｜function_calls>", &DEEPSEEK_V32}, {"<｜DSML｜function_calls>", &DEEPSEEK_V32}},
     .ends_answer = true,
     .in_template = {"｜DSML｜"}},
    {.names = {"deepseekv3", "deepseek_v3"},
     .syntax = &td_syntax_tokens,
     .openers = {{"<｜tool▁calls▁begin｜>", &DEEPSEEK_V3}},
     .in_template = {"<｜tool▁calls▁begin｜>", "```json"}},
    {.names = {"deepseekv31", "deepseek_v31"},
     .syntax = &td_syntax_tokens,
     .openers = {{"<｜tool▁calls▁begin｜>", &DEEPSEEK_V31}},
     .in_template = {"<｜tool▁calls▁begin｜>"}},
    {.names = {"kimi_k2"},
     .syntax = &td_syntax_tokens,
     .openers = {{"<|tool_calls_section_begin|>", &KIMI_K2}},
     .in_template = {"<|tool_calls_section_begin|>"}},
    {.names = {"minimax-m2", "minimax_m2"},
     .syntax = &td_syntax_tags,
     .openers = {{"<minimax:tool_call>", &MINIMAX_M2}},
     .in_template = {"<minimax:tool_call>"}},
    {.names = {"glm47"},
     .syntax = &td_syntax_tags,
     .openers = {{"<tool_call>", &GLM}},
     .in_template = {"{function-name}<arg_key>", "<tool_call>"}},
    {.names = {"glm45", "glm"},
     .syntax = &td_syntax_tags,
     .openers = {{"<tool_call>", &GLM}},
     .in_template = {"<arg_key>", "<tool_call>"}},
    {.names = {"qwen3_coder"},
     .syntax = &td_syntax_tags,
     .openers = {{"<tool_call>", &QWEN3_CODER}, {"<function=", &QWEN3_CODER}},
     .in_template = {"<function=", "<parameter="}},
    {.names = {"qwen25", "qwen", "qwen3"},
     .syntax = &td_syntax_object,
     .openers = {{"<tool_call>", "</tool_call>"}},
     .in_template = {"<tool_call>", "<|im_start|>"}},
    {.names = {"hermes"},
     .syntax = &td_syntax_object,
     .openers = {{"<tool_call>", "</tool_call>"}},
     .in_template = {"<tool_call>"}},
    {.names = {"mistral"},
     .syntax = &td_syntax_mistral,
     .openers = {{"[TOOL_CALLS]", NULL}},
     .in_template = {"[TOOL_CALLS]"}},
    {.names = {"pythonic"},
     .syntax = &td_syntax_python,
     .openers = {{"<|python_start|>", "<|python_end|>"}},
     .bare = '[',
     .in_template = {"<|python_start|>"}},
    {.names = {"pythonic"},
     .syntax = &td_syntax_python,
     .openers = {{"<|python_start|>", "<|python_end|>"}},
     .bare = '[',
     .in_template = {"[func_name1("}},
    {.names = {"llama3"},
     .syntax = &td_syntax_object,
     .openers = {{"<|python_tag|>", NULL}},
     .bare = '{',
     .bare_first = true,
     .in_template = {"<|python_tag|>"}},
    /* What a request's schema makes any model write: [{"name": …, "arguments": {…}}, …] as the whole answer. */
    {.names = {"json-list"}, .syntax = &td_syntax_mistral, .bare = '[', .bare_first = true},
};

static const td_reasoning_format REASONINGS[] = {
    {{"gpt-oss", "harmony"}, NULL, NULL, false, {"<|channel|>", "<|message|>"}},
    {{"kimi"}, "◁think▷", "◁/think▷", false, {"◁think▷"}},
    {{"kimi_k2"}, "<think>", "</think>", false, {"<|tool_calls_section_begin|>", "<think>"}},
    {{"minimax"}, "<think>", "</think>", true, {"<think>", "minimax"}},
    {{"glm45"}, "<think>", "</think>", false, {"<think>", "<|assistant|>", "<|observation|>"}},
    {{"deepseek-v4", "deepseek_v4"}, "<think>", "</think>", false, {"<think>", "<｜DSML｜tool_calls>"}},
    {{"deepseek-v3"}, "<think>", "</think>", false, {"<think>", "<｜DSML｜function_calls>"}},
    {{"deepseek-v3"}, "<think>", "</think>", false, {"<think>", "<｜Assistant｜>", "not thinking"}},
    {{"deepseek-r1", "deepseek_r1"}, "<think>", "</think>", true, {"<｜Assistant｜><think>"}},
    {{"qwen3", "interns1"}, "<think>", "</think>", false, {"<think>", "enable_thinking"}},
    {{"qwen3-thinking"}, "<think>", "</think>", true, {"<|im_start|>assistant\\n<think>"}},
    {{"qwen3"}, "<think>", "</think>", false, {"<think>"}},
    {{"deepseek-r1"}, "<think>", "</think>", true, {"</think>"}},
};

static bool has_name(const char *const *names, const char *name) {
    for (size_t i = 0; i < 4 && names[i]; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

static bool is_in(const char *const *words, const char *template_text) {
    for (size_t i = 0; i < 3 && words[i]; i++)
        if (!strstr(template_text, words[i])) return false;
    return words[0];
}

const td_tool_format *td_tool_format_find(const char *name) {
    for (size_t i = 0; i < N(TOOLS); i++)
        if (has_name(TOOLS[i].names, name)) return &TOOLS[i];
    return NULL;
}

const td_reasoning_format *td_reasoning_format_find(const char *name) {
    for (size_t i = 0; i < N(REASONINGS); i++)
        if (has_name(REASONINGS[i].names, name)) return &REASONINGS[i];
    return NULL;
}

const char *td_tool_format_of_template(const char *template_text) {
    for (size_t i = 0; i < N(TOOLS); i++)
        if (is_in(TOOLS[i].in_template, template_text)) return TOOLS[i].names[0];
    return NULL;
}

const char *td_reasoning_format_of_template(const char *template_text) {
    for (size_t i = 0; i < N(REASONINGS); i++)
        if (is_in(REASONINGS[i].in_template, template_text)) return REASONINGS[i].names[0];
    return NULL;
}

static bool has_special(const td_tokenizer *tok, const char *marker) {
    uint32_t *ids = NULL;
    size_t    n = 0, len;
    bool      special = false, any = false;
    if (!tok || !marker || td_tokenizer_encode(tok, marker, strlen(marker), true, false, &ids, &n) != TD_OK) return false;
    for (size_t i = 0; i < n; i++) any |= td_tokenizer_token(tok, ids[i], &len, &special) && special;
    free(ids);
    return any;
}

bool td_reasoning_format_ends(const char *reasoning_format) {
    const td_reasoning_format *f = td_reasoning_format_find(reasoning_format);
    return f && f->close;
}

bool td_answer_in_special_tokens(const char *tool_format, const char *reasoning_format, const td_tokenizer *tok) {
    const td_tool_format      *t = tool_format ? td_tool_format_find(tool_format) : NULL;
    const td_reasoning_format *r = reasoning_format ? td_reasoning_format_find(reasoning_format) : NULL;
    if ((t && !t->syntax) || (r && !r->close)) return has_special(tok, "<|channel|>");
    return (t && has_special(tok, t->openers[0].marker)) || (r && (has_special(tok, r->open) || has_special(tok, r->close)));
}

/* Where the last such marker in the text ends; 0: there is none. */
static size_t end_of_last(const char *text, size_t len, const char *marker) {
    size_t n = strlen(marker);
    for (size_t at = len; at >= n; at--)
        if (!memcmp(text + at - n, marker, n)) return at;
    return 0;
}

td_reasoning_start td_reasoning_after(const char *format, const char *prompt, size_t len, size_t answer_len) {
    const td_reasoning_format *f = td_reasoning_format_find(format);
    if (!f || !f->close) return TD_REASONING_BY_FORMAT;
    if (answer_len) { /* in an answer that goes on, the last marker counts */
        const char *answer = prompt + len - answer_len;
        size_t      open = end_of_last(answer, answer_len, f->open), close = end_of_last(answer, answer_len, f->close);
        if (open || close) return open > close ? TD_REASONING_OPEN : TD_REASONING_CLOSED;
        return f->starts_open ? TD_REASONING_BY_FORMAT : TD_REASONING_CLOSED; /* the answer has begun with text */
    }
    while (len && td_is_blank(prompt[len - 1])) len--;
    if (len && end_of_last(prompt, len, f->open) == len) return TD_REASONING_OPEN;
    return len && end_of_last(prompt, len, f->close) == len ? TD_REASONING_CLOSED : TD_REASONING_BY_FORMAT;
}
