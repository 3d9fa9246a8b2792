/* Requests with a grammar, over the fake model: its logits are noise, so only the grammar makes texts of the language. */

#include "core/log/log.h"
#include "core/math/rng.h"
#include "fake_model.h"
#include "form_check.h"
#include "random_tokenizer.h"
#include "tests/td_test.h"

#define FIXED 6
#define KINDS (FIXED + 8) /* the others are drawn */
#define REQUESTS (2 * KINDS)

static uint64_t g_seed = 1;
static form     g_forms[KINDS] = {
        {.kind = TD_GRAMMAR_JSON_SCHEMA,
         .source = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"age\":{\"type\":"
                       "\"integer\","
                       "\"minimum\":0,"
                       "\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\"]},\"maxItems\":3}},"
                       "\"required\":["
                       "\"name\",\"age\"],"
                       "\"additionalProperties\":false}"},
        {.kind = TD_GRAMMAR_REGEX, .source = "[A-Z][a-z]{2,12}( [A-Z][a-z]{2,12}){0,2}[.!]"},
        {.kind = TD_GRAMMAR_EBNF, .source = "root ::= item (\", \" item){0,4}\nitem ::= [0-9]{1,4} | \"(\" root \")\""},
        {.kind = TD_GRAMMAR_CHOICES, .source = "[\"yes\",\"no\",\"maybe, who knows\"]"},
        {.kind = TD_GRAMMAR_JSON_OBJECT, .source = ""},
        {.kind = TD_GRAMMAR_EBNF,
         .source = "root ::= \"Once upon a time, in the kingdom of the seven ravens, there was \" [a-z]{1,9} \" \\u{1F525} and "
                       "its reign was the "
                       "longest of all.\""}, /* it begins and ends with what leaves no choice */
};

static td_grammar *compile(int i) {
    td_grammar *g;
    td_error    err = {0};
    if (td_grammar_compile(g_forms[i].kind, g_forms[i].source, strlen(g_forms[i].source), &g, &err) != TD_OK)
        fail_msg("%s", err.text);
    return g;
}

/* A regular expression of long literals with choices between them. */
static char *draw_regex(uint64_t stream) {
    static const char *const literals[] = {"the dragon of the north",
                                           " and she said: ",
                                           "princess",
                                           "0123456789",
                                           "\u00e9t\u00e9 ",
                                           "    ",
                                           "kingdoms_of_the_world",
                                           "QXZ",
                                           "\n\n",
                                           "\"answer\": \"",
                                           "}, {",
                                           "e",
                                           "ca",
                                           "</think>"};
    static const char *const choices[] = {"[a-e]{1,4}", "(red|green|greener)", "( cave)?", "[^a-z]", "(ab|abc)",
                                          "x*y",        "(\u00e9|\u00e8)"};
    char                    *text = calloc(1, 1024);
    uint64_t                 n = 0, parts = 2 + td_rng_u64(g_seed, stream, n++) % 8;
    while (parts-- > 0) {
        uint64_t    d = td_rng_u64(g_seed, stream, n++);
        const char *part = d % 3 ? literals[d / 3 % (sizeof literals / sizeof *literals)]
                                 : choices[d / 3 % (sizeof choices / sizeof *choices)];
        for (; *part; part++) {
            char *end = text + strlen(text);
            if (d % 3 && strchr("{}", *part)) *end++ = '\\';
            *end = *part;
        }
    }
    return text;
}

BEFORE_ALL {
    const char *seed = getenv("TD_SEED");
    if (seed) g_seed = strtoull(seed, NULL, 10);
    printf("seed %llu (TD_SEED)\n", (unsigned long long)g_seed);
    td_log_set_level(TD_LOG_ERROR);
    for (int i = FIXED; i < KINDS; i++) g_forms[i] = (form){.kind = TD_GRAMMAR_REGEX, .source = draw_regex((uint64_t)i)};
}

AFTER_ALL {
    for (int i = FIXED; i < KINDS; i++) free((char *)g_forms[i].source);
}

static const char *g_tokenizer; /* NULL: the demo model's */

static td_engine *open_engine_with(uint64_t kv_tokens, uint32_t chunk, uint32_t running, bool in_turns) {
    td_engine_options o = engine_options(kv_tokens, chunk, running);
    o.tokenizer_path = g_tokenizer;
    if (getenv("TD_TEST_DRAFTS")) {
        o.speculative_algorithm = "NEXTN";
        o.speculative_always = true;
    }
    o.disable_mixed_chunk = in_turns;
    return engine_open(&o);
}

static td_engine *open_engine(uint64_t kv_tokens, uint32_t chunk, uint32_t running) {
    return open_engine_with(kv_tokens, chunk, running, false);
}

static probe *request(int i, td_grammar *const *grammars) {
    uint32_t prompt[200], n = 1 + (uint32_t)(td_rng_u64(1, 2, (uint64_t)i) % 199);
    for (uint32_t k = 0; k < n; k++) prompt[k] = 4 + (uint32_t)(td_rng_u64(3, (uint64_t)i, k) % (FAKE_VOCAB - 4));
    probe *p = probe_new(prompt, n, 10 + (uint32_t)(td_rng_u64(g_seed, 4, (uint64_t)i) % 60));
    p->params.grammar = grammars[i % KINDS];
    p->params.sampling.temperature = i % 3 ? 1 : 0;
    p->params.sampling.has_seed = true;
    p->params.sampling.seed = (uint64_t)i;
    p->params.ignore_eos = i % 4 == 0;
    p->params.logprobs = i % 2;
    p->params.n_top_logprobs = i % 4;
    if (i % 7 == 3) p->params.min_tokens = 5;
    if (i % 5 == 2)
        p->params.sampling.repetition_penalty = 1.3; /* what was taken without a choice counts as what was chosen */
    return p;
}

static void check_text(const probe *p, td_grammar *g, int i) {
    bool   accepted;
    size_t at;
    if (p->finish == TD_FINISH_ERROR) fail_msg("request %d: %s", i, p->error.text);
    OK(td_grammar_check(g, p->text, p->text_len, &accepted, &at));
    if (p->finish == TD_FINISH_STOP && !accepted) fail_msg("request %d ended with '%s'", i, p->text);
    size_t len = p->text_len; /* a character that was cut is U+FFFD */
    if (p->finish == TD_FINISH_LENGTH && len >= 3 && !memcmp(p->text + len - 3, "\uFFFD", 3)) len -= 3;
    if (at < len) fail_msg("request %d has '%s'", i, p->text);
}

static void check_same(const probe *want, const probe *got, const char *what) {
    bool same = want->n_tokens == got->n_tokens && want->n_logprobs == got->n_logprobs && want->finish == got->finish &&
                got->n_events == got->n_tokens && !memcmp(want->tokens, got->tokens, got->n_tokens * sizeof *got->tokens);
    for (size_t i = 0; same && i < got->n_logprobs; i++) {
        const td_position_logprobs *a = &want->logprobs[i], *b = &got->logprobs[i];
        same = a->id == b->id && a->logprob == b->logprob && a->n_top == b->n_top &&
               !memcmp(a->top, b->top, a->n_top * sizeof *a->top);
    }
    if (!same)
        fail_msg("%s: '%.*s', not '%.*s', or its log-probabilities differ", what, (int)got->text_len, got->text,
                 (int)want->text_len, want->text);
}

/* The tokens and log-probabilities of a plain loop: alone, in a crowd, one token of a request a step, in turns, with too few
   pages, where requests are retracted, and on pages of others' answers. */
TEST(texts_are_of_the_language_in_any_company) {
    static const struct {
        uint64_t kv_tokens;
        uint32_t chunk, running;
        bool     in_turns, one_form;
    } runs[] = {{.kv_tokens = 4096, .chunk = 512, .running = 1},
                {.kv_tokens = 16384, .chunk = 64, .running = 32},
                {.kv_tokens = 1024, .chunk = 17, .running = 32},
                {.kv_tokens = 16384, .chunk = 1, .running = 32},
                {.kv_tokens = 4096, .chunk = 30, .running = 5, .in_turns = true},
                {.kv_tokens = 16384, .chunk = 512, .running = 32, .one_form = true},
                {.kv_tokens = 1024, .chunk = 40, .running = 32, .one_form = true}};
    probe *plain[2][REQUESTS] = {{NULL}}; /* [one_form] checked against the loop */
    for (size_t run = 0; run < sizeof runs / sizeof *runs; run++) {
        td_grammar *grammars[KINDS];
        size_t      stopped = 0;
        uint32_t    jumped = 0;
        fake_one_form(runs[run].one_form);
        for (int i = 0; i < KINDS; i++) grammars[i] = compile(i); /* a grammar is of one engine */
        td_engine *e = open_engine_with(runs[run].kv_tokens, runs[run].chunk, runs[run].running, runs[run].in_turns);
        probe     *probes[REQUESTS];
        for (int i = 0; i < REQUESTS; i++) probe_submit(e, probes[i] = request(i, grammars));
        for (int i = 0; i < REQUESTS; i++) {
            char   what[128];
            probe *p = probes[i];
            probe_wait(p);
            snprintf(what, sizeof what, "seed %llu, run %zu, request %d", (unsigned long long)g_seed, run, i);
            check_text(p, grammars[i % KINDS], i);
            stopped += p->finish == TD_FINISH_STOP;
            probe **first = &plain[runs[run].one_form][i];
            if (*first) {
                check_same(*first, p, what);
                probe_free(p);
            } else {
                jumped += form_check(p, &g_forms[i % KINDS], td_engine_tokenizer(e), what);
                *first = p;
            }
        }
        assert_null(fake_complaint());
        assert_true(stopped > REQUESTS / 3);
        if (run == 0) assert_true(jumped > 2 * REQUESTS);
        td_engine_close(e, 0);
        for (int i = 0; i < KINDS; i++) td_grammar_release(grammars[i]);
    }
    fake_one_form(false);
    for (int i = 0; i < 2 * REQUESTS; i++) probe_free(plain[i / REQUESTS][i % REQUESTS]);
}

/* A request of one prompt token with a grammar of its own. */
static probe *with_form(const form *f, uint32_t max_tokens, td_grammar **grammar) {
    static const uint32_t prompt[] = {10, 11, 12};
    td_error              err = {0};
    if (td_grammar_compile(f->kind, f->source, strlen(f->source), grammar, &err) != TD_OK) fail_msg("%s", err.text);
    probe *p = probe_new(prompt, 3, max_tokens);
    p->params.grammar = *grammar;
    return p;
}

static void end(probe *p, td_grammar *grammar) {
    probe_free(p);
    td_grammar_release(grammar);
}

#define STORY_FORM \
    { .kind = TD_GRAMMAR_REGEX, .source = "Once upon a time there was a dragon [a-c] and it was never seen again\\." }
static const form STORY = STORY_FORM;

/* A text with one choice takes the prompt's step and one or two, whatever its length. */
TEST(steps_are_those_of_the_choices) {
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        td_grammar     *grammar;
        td_engine_stats s;
        td_engine      *e = open_engine(4096, 512, 4);
        probe          *p = with_form(&STORY, 100, &grammar);
        p->params.logprobs = logprobs;
        probe_submit(e, p);
        probe_wait(p);
        td_engine_get_stats(e, &s);
        assert_true(form_check(p, &STORY, td_engine_tokenizer(e), "the story") >= p->n_tokens - 4);
        assert_true(p->n_tokens > 12);
        assert_int_equal(s.steps_prefill, 1);
        assert_in_range(s.steps_decode, logprobs,
                        2); /* the letter, and perhaps the space before it; log-probabilities of the rest */
        assert_int_equal(s.generation_tokens, p->n_tokens);
        end(p, grammar);
        td_engine_close(e, 0);
    }
}

/* What ends a request ends it within what leaves no choice, too. */
TEST(limits_hold_within_what_is_forced) {
    td_grammar     *grammar;
    td_engine      *e = open_engine(4096, 512, 4);
    const uint32_t *tokens = NULL;
    probe          *whole = with_form(&STORY, 100, &grammar);
    probe_submit(e, whole);
    probe_wait(whole);
    tokens = whole->tokens;
    td_grammar_release(grammar);
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        probe *p = with_form(&STORY, 3, &grammar); /* max_tokens */
        p->params.logprobs = logprobs;
        probe_submit(e, p);
        probe_wait(p);
        form_check(p, &STORY, td_engine_tokenizer(e), "three tokens");
        assert_int_equal(p->finish, TD_FINISH_LENGTH);
        assert_int_equal(p->n_tokens, 3);
        end(p, grammar);

        static const char *const stop = "a time";
        p = with_form(&STORY, 100, &grammar);
        p->params.logprobs = logprobs;
        p->params.stop = &stop;
        p->params.n_stop = 1;
        probe_submit(e, p);
        probe_wait(p);
        assert_int_equal(p->finish, TD_FINISH_STOP);
        assert_string_equal(p->stop_reason, stop);
        assert_int_equal(p->text_len, strlen("Once upon "));
        assert_int_equal(p->last.completion_tokens, p->n_tokens);
        assert_int_equal(p->n_events, p->n_tokens);
        assert_int_equal(p->n_logprobs, logprobs ? p->n_tokens : 0);
        assert_true(p->n_tokens < whole->n_tokens);
        end(p, grammar);

        p = with_form(&STORY, 100, &grammar); /* one of its tokens is a stop id: the text is written with others */
        p->params.logprobs = logprobs;
        p->params.stop_ids = &tokens[1];
        p->params.n_stop_ids = 1;
        probe_submit(e, p);
        probe_wait(p);
        form_check(p, &STORY, td_engine_tokenizer(e), "a stop id");
        assert_int_not_equal(p->tokens[1], tokens[1]);
        assert_int_equal(p->finish, TD_FINISH_STOP);
        assert_int_equal(p->stop_token, UINT32_MAX);
        end(p, grammar);

        const float bias = -100;
        p = with_form(&STORY, 100, &grammar); /* every token is chosen */
        p->params.logprobs = logprobs;
        p->params.sampling.bias_ids = &tokens[1];
        p->params.sampling.bias = &bias;
        p->params.sampling.n_bias = 1;
        probe_submit(e, p);
        probe_wait(p);
        assert_int_equal(form_check(p, &STORY, td_engine_tokenizer(e), "a bias"), 0);
        assert_int_not_equal(p->tokens[1], tokens[1]);
        end(p, grammar);
    }
    probe_free(whole);
    td_engine_close(e, 0);
}

/* A request that goes while tokens of it wait for their log-probabilities leaves nothing behind. */
TEST(cancelled_within_what_is_forced) {
    static char source[600] = "[a-c]";
    form        f = {.kind = TD_GRAMMAR_REGEX, .source = source};
    td_grammar *grammar;
    for (int i = 0; i < 40; i++) strcat(source, "0123456789 ");
    td_engine *e = open_engine(4096, 4, 4);
    for (uint32_t n = 1; n < 60; n += 7) {
        probe *p = with_form(&f, 500, &grammar);
        p->params.logprobs = true;
        fake_delay(500);
        probe_submit(e, p);
        probe_wait_tokens(p, n);
        td_request_cancel(p->request);
        probe_wait(p);
        assert_int_equal(p->n_logprobs, p->n_tokens);
        assert_int_equal(p->last.completion_tokens, p->n_tokens);
        td_engine_stats s;
        td_engine_get_stats(e, &s);
        assert_int_equal(s.kv_tokens_used, 0);
        end(p, grammar);
    }
    fake_delay(0);
    td_engine_close(e, 0);
}

/* What the fake model says before noise. */
static void say(td_engine *e, const char *text) {
    FREED uint32_t *ids;
    size_t          n;
    OK(td_tokenizer_encode(td_engine_tokenizer(e), text, strlen(text), true, false, &ids, &n));
    fake_says(ids, n);
}

/* The grammar begins behind the reasoning, where there is one. */
TEST(a_form_behind_the_reasoning) {
    static const struct {
        const char        *format, *open, *close, *says;
        td_reasoning_start start;
        bool               opened, reasons;
        uint32_t           max_tokens;
    } cases[] = {
        {"qwen3", "<think>", "</think>", "<think>\nA dragon? </thin </think>", TD_REASONING_BY_FORMAT, false, true, 100},
        {"qwen3", "<think>", "</think>", "no thought", TD_REASONING_BY_FORMAT, false, false, 100},
        {"qwen3", "<think>", "</think>", "<thi", TD_REASONING_BY_FORMAT, false, false,
         100}, /* what has begun as the marker alone goes on so */
        {"qwen3", "<think>", "</think>", "<think></think>", TD_REASONING_BY_FORMAT, false, true, 100},
        {"qwen3", "<think>", "</think>", "Once </think> upon", TD_REASONING_OPEN, true, true, 100},
        {"qwen3", "<think>", "</think>", "<think>no</think>", TD_REASONING_CLOSED, false, false, 100},
        {"qwen3", "<think>", "</think>", "<think>for ever", TD_REASONING_BY_FORMAT, false, true, 9}, /* cut */
        {"deepseek-r1", "<think>", "</think>", "<think>Let us see.</think>", TD_REASONING_BY_FORMAT, true, true, 100},
        {"deepseek-r1", "<think>", "</think>", "I know.</think>", TD_REASONING_BY_FORMAT, true, true, 100},
        {"kimi", "\u25c1think\u25b7", "\u25c1/think\u25b7", "\u25c1think\u25b7hm\u25c1/think\u25b7", TD_REASONING_BY_FORMAT,
         false, true, 100},
    };
    static const form forms[] = {STORY_FORM, {.kind = TD_GRAMMAR_REGEX, .source = "<t[a-z]{3}>!"}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const int   k = (int)(i / 2);
        char        what[64];
        td_grammar *grammar;
        form        f = forms[i % 2];
        td_engine  *e = open_engine(4096, 64, 4);
        if (cases[k].start != TD_REASONING_CLOSED) {
            f.open = cases[k].open;
            f.close = cases[k].close;
            f.opened = cases[k].opened;
        }
        say(e, cases[k].says);
        probe *p = with_form(&f, cases[k].max_tokens, &grammar);
        p->params.reasoning_format = cases[k].format;
        p->params.reasoning_start = cases[k].start;
        p->params.logprobs = i % 2;
        p->params.sampling.temperature = 0.5;
        p->params.sampling.has_seed = true;
        probe_submit(e, p);
        probe_wait(p);
        snprintf(what, sizeof what, "case %zu", i);
        form_check(p, &f, td_engine_tokenizer(e), what);
        size_t at = 0, n_said = strlen(cases[k].says);
        bool   accepted = false;
        if (cases[k].reasons && cases[k].max_tokens == 100) { /* behind the marker */
            assert_true(p->text_len > n_said && !memcmp(p->text, cases[k].says, n_said - 5));
            const char *marker = memmem(p->text, p->text_len, cases[k].close, strlen(cases[k].close));
            assert_non_null(marker);
            at = (size_t)(marker - p->text) + strlen(cases[k].close);
        }
        if (p->finish == TD_FINISH_STOP) {
            size_t until;
            OK(td_grammar_check(grammar, p->text + at, p->text_len - at, &accepted, &until));
            assert_true(accepted);
        } else {
            assert_true(p->n_tokens == cases[k].max_tokens);
        }
        fake_says(NULL, 0);
        end(p, grammar);
        td_engine_close(e, 0);
    }
}

/* A token by its bytes. */
static uint32_t find_token(const td_tokenizer *tok, const char *bytes) {
    for (uint32_t id = 0; id < td_tokenizer_vocab_size(tok); id++) {
        size_t      len;
        bool        special;
        const char *at = td_tokenizer_token(tok, id, &len, &special);
        if (at && len == strlen(bytes) && !memcmp(at, bytes, len)) return id;
    }
    fail_msg("no token is '%s'", bytes);
    return 0;
}

/* Behind `before`, the model would like a token that ends the reasoning and goes on. */
static void say_beyond(td_engine *e, const char *before, const char *token) {
    const td_tokenizer *tok = td_engine_tokenizer(e);
    uint32_t           *ids, says[FAKE_SAYS_MAX];
    size_t              n;
    OK(td_tokenizer_encode(tok, before, strlen(before), true, false, &ids, &n));
    memcpy(says, ids, n * sizeof *ids);
    free(ids);
    says[n++] = find_token(tok, token);
    says[n++] = find_token(tok, ">"); /* what it may say instead, or after it */
    fake_says(says, n);
}

/* The drawn forms, with and without a reasoning before them, over vocabularies with random merges. */
TEST(random_vocabularies) {
    static const char open[] = "<think>", close[] = "</think>";
    const char       *texts[KINDS - FIXED + 1] = {"I think <think> that </think>\n\n{\"answer"};
    for (int i = FIXED; i < KINDS; i++) texts[i - FIXED + 1] = g_forms[i].source;
    for (uint64_t round = 0; round < 3; round++) {
        char dir[RANDOM_TOKENIZER_DIR_MAX];
        random_tokenizer_write(g_seed * 1000 + round, texts, sizeof texts / sizeof *texts, (marker_tokens)round, open, close,
                               dir);
        g_tokenizer = dir;
        for (int i = FIXED; i < KINDS; i++) {
            form       f = g_forms[i];
            td_engine *e = open_engine(4096, i % 2 ? 1 : 512, 4);
            char       what[96];
            if (i % 4) {
                f.open = open;
                f.close = close;
                f.opened = i % 4 == 3;
            }
            if (i % 4 && round == MARKERS_IN_PIECES)
                say_beyond(e, f.opened ? "hm </think" : "<think>hm </think", ">\n");
            else if (i % 4)
                say(e, f.opened ? "hm</think>" : "<think>hm</think>");
            for (int logprobs = 0; logprobs < 2; logprobs++) {
                td_grammar *grammar;
                probe      *p = with_form(&f, 60, &grammar);
                p->params.logprobs = logprobs;
                p->params.skip_special_tokens = false;
                p->params.sampling.temperature = logprobs;
                p->params.sampling.has_seed = true;
                p->params.reasoning_format = f.open ? "qwen3" : NULL;
                p->params.reasoning_start = f.opened ? TD_REASONING_OPEN : TD_REASONING_BY_FORMAT;
                probe_submit(e, p);
                probe_wait(p);
                snprintf(what, sizeof what, "seed %llu, vocabulary %d, form %d", (unsigned long long)g_seed, (int)round, i);
                form_check(p, &f, td_engine_tokenizer(e), what);
                end(p, grammar);
            }
            fake_says(NULL, 0);
            td_engine_close(e, 0);
        }
        random_tokenizer_remove(dir);
        g_tokenizer = NULL;
    }
}

TEST(reasoning_that_cannot_be_followed_is_refused) {
    td_grammar *grammar;
    td_error    err = {0};
    td_engine  *e = open_engine(4096, 64, 4);
    probe      *p = with_form(&STORY, 20, &grammar);
    p->params.reasoning_format = "nobody's";
    assert_int_equal(td_engine_submit(e, &p->params, &p->request, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "reasoning_format"));
    p->params.reasoning_format = "gpt-oss";
    assert_int_equal(td_engine_submit(e, &p->params, &p->request, &err), TD_ENOTSUP);
    assert_null(p->request);
    end(p, grammar);
    td_engine_close(e, 0);

    char              dir[RANDOM_TOKENIZER_DIR_MAX];
    const char *const text = "some text";
    random_tokenizer_write(1, &text, 1, MARKERS_SPECIAL, "<think>", "</think>", dir);
    g_tokenizer = dir;
    e = open_engine(4096, 64, 4);
    p = with_form(&STORY, 20, &grammar);
    p->params.reasoning_format = "qwen3"; /* its end would not be seen */
    assert_int_equal(td_engine_submit(e, &p->params, &p->request, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "skip_special_tokens"));
    end(p, grammar);
    td_engine_close(e, 0);
    random_tokenizer_remove(dir);
    g_tokenizer = NULL;
}

TEST(a_failed_step_goes_on_where_it_was) {
    td_grammar *grammar;
    td_engine  *e = open_engine(4096, 5, 4);
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        probe *p = with_form(&STORY, 50, &grammar);
        p->params.logprobs = logprobs;
        fake_delay(1000);
        probe_submit(e, p);
        probe_wait_tokens(p, 4);
        fake_fail_forwards(1);
        probe_wait(p);
        form_check(p, &STORY, td_engine_tokenizer(e), "a failed step");
        end(p, grammar);
    }
    fake_delay(0);
    td_engine_close(e, 0);
}

/* Nothing is left: an error with a sentence, and the engine goes on. */
TEST(a_grammar_that_allows_nothing_is_an_error) {
    td_grammar    *grammar, *choices = compile(3);
    td_error       err = {0};
    td_engine     *e = open_engine(4096, 512, 4);
    const uint32_t prompt[] = {10, 11, 12};
    OK(td_grammar_compile(TD_GRAMMAR_REGEX, "", 0, &grammar, &err));
    probe *p = probe_new(prompt, 3, 10);
    p->params.grammar = grammar;
    p->params.ignore_eos = true; /* the empty text can only end, and nothing ends it */
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->finish, TD_FINISH_ERROR);
    assert_non_null(strstr(p->error.text, "grammar allows no token"));
    probe_free(p);

    p = probe_new(prompt, 3, 10);
    p->params.grammar = grammar; /* with an end of sequence it is an answer */
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->finish, TD_FINISH_STOP);
    assert_int_equal(p->text_len, 0);
    probe_free(p);

    p = probe_new(prompt, 3, 10);
    p->params.grammar = choices;
    probe_submit(e, p);
    probe_wait(p);
    check_text(p, choices, 0);
    probe_free(p);
    td_engine_close(e, 0);
    td_grammar_release(grammar);
    td_grammar_release(choices);
}
