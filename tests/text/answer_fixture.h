/* Collects what a parser of answers tells, and checks the order of its events; for tests and the fuzz target. */
#ifndef TD_TESTS_ANSWER_FIXTURE_H
#define TD_TESTS_ANSWER_FIXTURE_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem.h"

#define ANSWER_BYTES_MAX ((size_t)1 << 16)

/* gpt-oss is the last one. */
static const char *const TOOL_FORMATS[] = {NULL,     "deepseekv3", "deepseekv31", "deepseekv32", "deepseekv4", "kimi_k2",
                                           "qwen25", "hermes",     "qwen3_coder", "glm45",       "glm47",      "minimax-m2",
                                           "llama3", "mistral",    "pythonic",    "json-list",   "gpt-oss"};
static const char *const REASONING_FORMATS[] = {NULL,   "deepseek-r1", "qwen3",   "glm45",
                                                "kimi", "kimi_k2",     "minimax", "gpt-oss"};
#define N_TOOL_FORMATS (sizeof TOOL_FORMATS / sizeof *TOOL_FORMATS)
#define N_REASONING_FORMATS (sizeof REASONING_FORMATS / sizeof *REASONING_FORMATS)

static const char FIXTURE_TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": "
    "\"string\"}, "
    "\"b\": {\"type\": \"integer\"}, \"c\": {\"anyOf\": [{\"type\": \"null\"}, {\"enum\": [\"x\", 1]}]}}}}}]";

static bool g_memory_ends; /* a test lets allocations fail: arguments cannot be checked */

static inline void answer_require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "answer: %s\n", what);
    abort();
}

/* Content, reasoning and complete calls as text; \1 NAME \2 ARGUMENTS for a call. */
typedef struct {
    char     content[2 * ANSWER_BYTES_MAX], reasoning[2 * ANSWER_BYTES_MAX], calls[16 * ANSWER_BYTES_MAX];
    size_t   n_content, n_reasoning, n_calls, begun_at, arguments_at;
    bool     in_call, whole_characters;
    uint32_t next;
} answer_seen;

static inline void answer_put(char *to, size_t *n, size_t max, const char *text, size_t len) {
    answer_require(len <= max - *n, "more comes out than could go in");
    memcpy(to + *n, text, len);
    *n += len;
}

static inline void answer_on_event(void *user, const td_answer_event *e) {
    answer_seen *s = user;
    bool         text = e->kind == TD_ANSWER_CONTENT || e->kind == TD_ANSWER_REASONING;
    answer_require(text == !s->in_call || e->kind == TD_ANSWER_CALL_BEGIN, "text within a call, or a part of none");
    answer_require(!text || e->len > 0, "an empty text");
    if (s->whole_characters && e->text) {
        json_auto_t *characters = json_stringn(e->text, e->len);
        answer_require(g_memory_ends || characters, "half a character");
    }
    if (e->kind == TD_ANSWER_CONTENT) answer_put(s->content, &s->n_content, sizeof s->content, e->text, e->len);
    if (e->kind == TD_ANSWER_REASONING) answer_put(s->reasoning, &s->n_reasoning, sizeof s->reasoning, e->text, e->len);
    if (text) return;
    if (e->kind == TD_ANSWER_CALL_BEGIN) {
        answer_require(!s->in_call && e->call == s->next++ && e->len > 0, "a call's begin out of order");
        s->in_call = true;
        s->begun_at = s->n_calls;
        answer_put(s->calls, &s->n_calls, sizeof s->calls, "\1", 1);
        answer_put(s->calls, &s->n_calls, sizeof s->calls, e->text, e->len);
        answer_put(s->calls, &s->n_calls, sizeof s->calls, "\2", 1);
        s->arguments_at = s->n_calls;
        return;
    }
    answer_require(e->call + 1 == s->next, "a part of another call");
    if (e->kind == TD_ANSWER_CALL_ARGUMENTS) {
        answer_put(s->calls, &s->n_calls, sizeof s->calls, e->text, e->len);
        return;
    }
    s->in_call = false;
    if (e->kind == TD_ANSWER_CALL_DROPPED) {
        s->n_calls = s->begun_at;
        return;
    }
    const char  *arguments = s->calls + s->arguments_at;
    size_t       n = s->n_calls - s->arguments_at;
    json_error_t why;
    json_auto_t *v = json_loadb(arguments, n, JSON_ALLOW_NUL, &why);
    bool         large = !v && json_error_code(&why) == json_error_numeric_overflow; /* a number that only text holds */
    answer_require(g_memory_ends || large || json_is_object(v), "arguments that are no object");
}

/* Parse text, in pieces of 1 to step bytes (0: whole), of whole characters where s->whole_characters. @return false when
 * memory was short. */
static inline bool answer_parse(size_t tool, size_t reasoning, bool with_tools, const char *text, size_t n, unsigned step,
                                uint64_t seed, answer_seen *s) {
    td_answer_parser *p = NULL;
    td_tool_list     *tools = NULL;
    s->n_content = s->n_reasoning = s->n_calls = s->next = 0;
    s->in_call = false;
    td_status st = with_tools ? td_tool_list_new(FIXTURE_TOOLS, sizeof FIXTURE_TOOLS - 1, &tools, NULL) : TD_OK;
    if (st == TD_OK)
        st = td_answer_parser_new(&(td_answer_parser_options){.tool_format = TOOL_FORMATS[tool],
                                                              .reasoning_format = REASONING_FORMATS[reasoning],
                                                              .tools = tools,
                                                              .on_event = answer_on_event,
                                                              .user = s},
                                  &p, NULL);
    for (size_t at = 0; st == TD_OK && at < n;) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t len = step ? 1 + (size_t)(seed >> 33) % step : n;
        if (len > n - at) len = n - at;
        while (s->whole_characters && at + len < n && (text[at + len] & 0xc0) == 0x80) len++;
        st = td_answer_parser_feed(p, text + at, len);
        at += len;
    }
    if (st == TD_OK) st = td_answer_parser_end(p);
    td_answer_parser_free(p);
    td_tool_list_free(tools);
    answer_require(st == TD_OK || st == TD_ENOMEM, "a status that is not its");
    answer_require(st != TD_OK || !s->in_call, "a call without an end");
    return st == TD_OK;
}

/* Formats that go together. */
static inline bool answer_pair(size_t tool, size_t reasoning) {
    bool one = TOOL_FORMATS[tool] && !strcmp(TOOL_FORMATS[tool], "gpt-oss"),
         other = REASONING_FORMATS[reasoning] && !strcmp(REASONING_FORMATS[reasoning], "gpt-oss");
    return one == other || !TOOL_FORMATS[tool] || !REASONING_FORMATS[reasoning];
}

static inline bool answer_equal(const answer_seen *a, const answer_seen *b) {
    return a->n_content == b->n_content && a->n_reasoning == b->n_reasoning && a->n_calls == b->n_calls &&
           !memcmp(a->content, b->content, a->n_content) && !memcmp(a->reasoning, b->reasoning, a->n_reasoning) &&
           !memcmp(a->calls, b->calls, a->n_calls);
}

#endif
