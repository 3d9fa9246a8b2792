/*
 * Token masks against the definition: a token may come next exactly when the matcher takes all of its bytes. Along random
 * texts of tokens that the mask allows, on the demo model's vocabulary; fuzz_grammar does the same on a made-up one. The
 * seed is printed.
 */

#include "core/math/rng.h"
#include "tests/td_test.h"
#include "text/grammar/grammar.h"

#define STEPS 40

static td_tokenizer *g_demo;

static const struct {
    td_grammar_kind kind;
    const char     *source;
} SOURCES[] = {
    {TD_GRAMMAR_JSON_OBJECT, ""},
    {TD_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"the\":{\"type\":\"string\",\"maxLength\":9},\"fox\":{\"type\":\"number\"},"
     "\"list\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\"},{\"const\":\"a "
     "b\"},{\"type\":\"integer\",\"maximum\":99}]}}}}"},
    {TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":5,\"maxLength\":40}"},
    {TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z ,]{3,30}[.!]$\"}"},
    {TD_GRAMMAR_REGEX, "[^\"\\\\\\n]*"},
    {TD_GRAMMAR_REGEX, "[a-z]+( [a-z]+)*\\."},
    {TD_GRAMMAR_REGEX, ".{0,20}\n"},
    {TD_GRAMMAR_REGEX, "(.|\n)*"},
    {TD_GRAMMAR_REGEX, "(.|\n)*a(.|\n){6}"},
    {TD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a.{6}$\"}"},
    {TD_GRAMMAR_EBNF,
     "root ::= expr \"\\n\"\nexpr ::= term ((\" + \" | \" \") term)*\nterm ::= word | \"(\" expr \")\"\nword ::= [a-zA-Z]+"},
    {TD_GRAMMAR_EBNF, "root ::= \"a\" root \"a\" | \"b\" root \"b\" | [a-z ]"},
    {TD_GRAMMAR_CHOICES, "[\"the fox\",\"the crow\",\"then\",\"a\"]"},
};

static uint64_t g_seed = 1, g_draw;

static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(g_seed, 0, g_draw++) % n);
}

/* Whether the text can go on by these bytes: by a new place, from its beginning. */
static bool takes(td_grammar *g, const char *text, size_t len, const char *bytes, size_t n) {
    FREED char *whole = malloc(len + n + 1);
    bool        accepted;
    size_t      at;
    assert_non_null(whole);
    memcpy(whole, text, len);
    memcpy(whole + len, bytes, n);
    td_status st = td_grammar_check(g, whole, len + n, &accepted, &at);
    OK(st);
    return at == len + n;
}

static void follow(size_t source) {
    td_grammar       *g;
    td_grammar_place *p;
    td_vocab_trie    *trie;
    td_error          err = {0};
    uint32_t          vocab = (uint32_t)td_tokenizer_vocab_size(g_demo);
    char              text[STEPS * 64];
    size_t            len = 0;
    OK(td_grammar_compile(SOURCES[source].kind, SOURCES[source].source, strlen(SOURCES[source].source), &g, &err));
    OK(td_vocab_trie_make(g_demo, vocab, &trie));
    OK(td_grammar_place_open(g, trie, &p, &err));
    for (int step = 0; step < STEPS && len + 64 < sizeof text; step++) {
        uint32_t *mask, n_allowed = 0, chosen = UINT32_MAX;
        OK(td_grammar_place_mask(p, &mask));
        for (uint32_t id = 0; id < vocab; id++) {
            size_t      n;
            bool        special, allowed = mask[id / 32] >> id % 32 & 1;
            const char *bytes = td_tokenizer_token(g_demo, id, &n, &special);
            bool        wanted = bytes && !special && n > 0 && takes(g, text, len, bytes, n);
            if (allowed != wanted)
                fail_msg("seed %llu, grammar %zu, after '%.*s': token %u '%.*s' is %sallowed", (unsigned long long)g_seed,
                         source, (int)len, text, id, (int)n, bytes ? bytes : "", allowed ? "" : "not ");
            if (allowed && n < 64 && draw(++n_allowed) == 0) chosen = id;
        }
        if (chosen == UINT32_MAX) {
            assert_true(td_grammar_place_may_end(p));
            break;
        }
        size_t      n;
        bool        special;
        const char *bytes = td_tokenizer_token(g_demo, chosen, &n, &special);
        OK(td_grammar_place_advance(p, bytes, n));
        memcpy(text + len, bytes, n);
        len += n;
    }
    td_grammar_place_close(p);
    td_vocab_trie_release(trie);
    td_grammar_release(g);
}

TEST(masks_are_what_the_matcher_takes) {
    for (size_t i = 0; i < sizeof SOURCES / sizeof *SOURCES; i++) follow(i);
}

BEFORE_ALL {
    td_error    err = {0};
    const char *seed = getenv("TD_SEED");
    if (seed) g_seed = strtoull(seed, NULL, 10);
    printf("seed %llu (TD_SEED)\n", (unsigned long long)g_seed);
    OK(td_tokenizer_open(TD_SOURCE_DIR "/models/tale-v3-14m", &g_demo, &err));
}

AFTER_ALL {
    td_tokenizer_close(g_demo);
}
