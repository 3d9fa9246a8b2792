/*
 * Token masks of random grammars over random vocabularies, against the definition: a token may come next exactly when the
 * matcher takes its bytes, one by one. Vocabularies have all kinds of tokens that masks treat differently: many of one
 * shape, tokens that begin alike, long ones, parts of characters, and bytes that are not characters. Each grammar is tried
 * as new, and with its states computed before.
 *
 * TD_SEED: where to begin (printed); TD_TEST_FULL: more of them.
 */

#include "core/math/rng.h"
#include "tests/td_test.h"
#include "text/grammar/grammar_ebnf.h"
#include "text/grammar/grammar_mask.h"
#include "text/grammar/grammar_regex.h"
#include "text/grammar/grammar_schema.h"

#define VOCAB_MAX 6000
#define TOKEN_MAX 200
#define SOURCE_MAX 4000
#define STEPS 10

/* ---- chance ---- */

static uint64_t g_seed = 1, g_trial, g_draw;

static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(g_seed, g_trial, g_draw++) % n);
}

#define PICK(list) list[draw(sizeof(list) / sizeof *(list))]

/* ---- a vocabulary, in place of a tokenizer's: the trie asks for no more ---- */

static struct {
    char     bytes[VOCAB_MAX][TOKEN_MAX];
    size_t   len[VOCAB_MAX];
    uint32_t n;
} g_vocab;

size_t td_tokenizer_vocab_size(const td_tokenizer *tok) {
    (void)tok;
    return g_vocab.n;
}

const char *td_tokenizer_token(const td_tokenizer *tok, uint32_t id, size_t *len, bool *special) {
    (void)tok;
    *special = false;
    *len = g_vocab.len[id];
    return g_vocab.bytes[id];
}

static void put(const char *bytes, size_t n) {
    size_t *len = &g_vocab.len[g_vocab.n];
    if (*len + n > TOKEN_MAX) return;
    memcpy(g_vocab.bytes[g_vocab.n] + *len, bytes, n);
    *len += n;
}

static void put_piece(void) {
    static const char *const pieces[] = {
        "the", "fox", "a", "e", "th", " ",  " ",   "\n", "\t", "\"", "\\", "\\u00", ",",  ".",    ", ", "\": ",
        "{",   "}",   "[", "]", "-",  "_",  "0",   "12", "9f", "é",  "я",  "да",    "的", "一二", "龥", "\xF0\x9F\x98\x80",
        "x",   "Q",   "(", ")", "a)", "))", "The", "FOX"};
    char raw = (char)draw(256);
    if (draw(25) == 0) {
        put(&raw, 1);
    } else if (draw(2) == 0) {
        char word[4];
        for (size_t i = 0; i < sizeof word; i++) word[i] = (char)((draw(8) ? 'a' : 'A') + draw(26));
        put(word, 1 + draw(sizeof word));
    } else {
        const char *piece = PICK(pieces);
        put(piece, strlen(piece));
    }
}

static void make_vocabulary(void) {
    static const char signs[] = " -=a\n.";
    uint32_t          n = 256 + draw(VOCAB_MAX - 256);
    memset(&g_vocab, 0, sizeof g_vocab);
    for (; g_vocab.n < n; g_vocab.n++) {
        char byte = (char)g_vocab.n;
        if (g_vocab.n < 256) {
            put(&byte, 1);
        } else if (draw(30) == 0) {
            byte = PICK(signs);
            for (uint32_t k = 1 + draw(90); k > 0; k--) put(&byte, 1);
        } else if (draw(20) == 0) {
            for (uint32_t k = 6 + draw(15); k > 0; k--) put_piece();
        } else {
            if (draw(3) == 0) put(" ", 1);
            for (uint32_t k = 1 + draw(3); k > 0; k--) put_piece();
        }
    }
}

/* ---- grammars ---- */

static char   g_source[SOURCE_MAX];
static size_t g_len;

static void say(const char *text) {
    size_t n = strlen(text);
    if (g_len + n >= sizeof g_source) return;
    memcpy(g_source + g_len, text, n + 1);
    g_len += n;
}

static void say_quantifier(uint32_t count_max) {
    char text[32];
    switch (draw(8)) {
        case 0: say("*"); break;
        case 1: say("+"); break;
        case 2: say("?"); break;
        case 3:
            snprintf(text, sizeof text, "{%u}", 1 + draw(count_max));
            say(text);
            break;
        case 4:
        case 5: {
            uint32_t min = draw(count_max);
            snprintf(text, sizeof text, "{%u,%u}", min, min + 1 + draw(count_max));
            say(text);
            break;
        }
        default: break;
    }
}

static void say_class(void) {
    static const char *const classes[] = {"[a-z]",    "[a-e]",     "[A-Z]",   "[0-9]",  "[0-9a-f]", "[aeiou]",
                                          "[^aeiou]", "[^\\n]",    "[a-z ,]", "[ -~]",  "[а-я]",    "[一-龥]",
                                          "[^\\x22]", "[a-zA-Z_]", ".",       "[^a-z]", "[é一 ]"};
    say(PICK(classes));
}

static void say_regex(int depth) {
    static const char *const words[] = {"the", "fox", "a", " ", "12", "é", ", ", "th", "\\n", "的"};
    uint32_t                 n = 1 + draw(4);
    for (uint32_t i = 0; i < n; i++) {
        bool group = depth > 0 && draw(3) == 0;
        if (i && draw(5) == 0) say("|");
        if (group) {
            say("(");
            say_regex(depth - 1);
            say(")");
            say_quantifier(6);
        } else if (draw(3) == 0) {
            say(PICK(words));
        } else {
            say_class();
            say_quantifier(40);
        }
    }
}

/* Rules whose alternatives begin with a byte, so none begins with itself. */
static void say_ebnf(void) {
    static const char *const rules[] = {"root", "one", "two", "three"};
    static const char *const words[] = {"\"the\"", "\"fox \"", "\"(\"", "\"a\"", "\" \"", "\"\\n\"", "\"é\"", "\", \""};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        say(rules[r]);
        say(" ::= ");
        for (uint32_t alternatives = 1 + draw(3); alternatives > 0; alternatives--) {
            if (draw(2)) {
                say_class();
                if (draw(2)) say("+");
            } else {
                say(PICK(words));
            }
            for (uint32_t n = draw(4); n > 0; n--) {
                say(" ");
                switch (draw(3)) {
                    case 0: say(PICK(words)); break;
                    case 1: say_class(); break;
                    default: say(PICK(rules)); break;
                }
                say_quantifier(5);
            }
            if (alternatives > 1) say(" | ");
        }
        say("\n");
    }
}

static void say_schema(void) {
    static const char *const patterns[] = {"fox", "^[a-z ]{2,40}$", "^(the|fox)?[^e]*", "[0-9]{2}", "^[一-龥]*$"};
    char                     text[300];
    uint32_t                 min = draw(20);
    say("{\"type\":\"object\",\"properties\":{");
    snprintf(text, sizeof text, "\"the\":{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u},", min, min + draw(60));
    say(text);
    snprintf(text, sizeof text, "\"fox\":{\"type\":\"string\",\"pattern\":\"%s\"},\"x\":{\"type\":[\"number\",\"null\"]},",
             PICK(patterns));
    say(text);
    say("\"list\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}},\"required\":[\"the\"]");
    if (draw(2)) say(",\"additionalProperties\":{\"enum\":[\"a\",\"fox\",12,true]}");
    say("}");
}

/* What chance seldom makes: a rule whose states are like the root's, which nothing follows; one that may end after every
   letter, with letters behind it; many readings. */
static void say_known(void) {
    static const char *const grammars[] = {
        "root ::= \"e\" [a-z]* | \"(\" word \")\"\nword ::= [a-z]+ | \"(\" word \")\"\n",
        "root ::= word | word \" \" root | \"(\" root \")\"\nword ::= [a-z]+ | [a-z]+ \"-\" word\n",
        "root ::= word [a-df-z] [A-Za-z]* \".\"\nword ::= [a-z]+ | \"(\" word \")\"\n",
        "root ::= [a-z .,] root? | \"(\" root \")\"\n",
        "root ::= \"a\" root \"a\" | \"e\" root \"e\" | [a-z ]\n",
    };
    say(PICK(grammars));
}

/* A random grammar's automaton. @return false: it was refused. */
static bool make_grammar(td_gr_pda *pda) {
    AT_END(td_gr_close) td_gr_builder b;
    td_error                          err = {0};
    td_gr_open(&b, &err);
    g_len = 0;
    switch (draw(4)) {
        case 0:
            say_regex(2);
            b.root = td_gr_rule_new(&b, "regex");
            td_gr_define(&b, b.root, td_gr_regex(&b, g_source, g_len));
            break;
        case 1:
        case 2:
            if (draw(2))
                say_ebnf();
            else
                say_known();
            td_gr_ebnf(&b, g_source, g_len);
            break;
        default:
            say_schema();
            td_gr_schema(&b, g_source, g_len);
            break;
    }
    if (b.status == TD_OK) td_gr_pda_make(&b, pda);
    bool made = b.status == TD_OK;
    if (!made) td_gr_pda_free(pda);
    return made;
}

/* ---- masks ---- */

static bool takes(td_gr_matcher *m, const char *bytes, size_t n) {
    uint32_t set = m->current;
    for (size_t i = 0; i < n; i++) {
        set = td_gr_matcher_step(m, set, (uint8_t)bytes[i]);
        if (!td_gr_matcher_alive(m, set)) return false;
    }
    return true;
}

/* Along a random text. @return the masks that were compared. */
static size_t follow(const td_gr_pda *pda, td_vocab_trie *trie, bool warm) {
    AT_END(td_gr_masks_close) td_gr_masks masks;
    td_gr_matcher                         m, plain;
    td_gr_walk                            walk;
    size_t                                words = TD_TRIE_WORDS(trie->vocab), n_masks = 0;
    FREED uint32_t                       *mask = malloc(words * sizeof *mask);
    assert_non_null(mask);
    OK(td_gr_masks_open(&masks, pda, trie));
    OK(td_gr_matcher_open(&m, pda));
    OK(td_gr_walk_open(&walk, trie));
    if (warm) OK(td_gr_masks_warm(&masks, &walk));
    for (int step = 0; step < STEPS; step++) {
        uint32_t chosen = UINT32_MAX, n_allowed = 0, n_bytes = draw(2) ? 256 : 0; /* single bytes are rather taken */
        if (td_gr_mask(&masks, &m, &walk, mask) != TD_OK) break;                  /* too many readings */
        OK(td_gr_matcher_copy(&plain, &m));
        for (uint32_t id = 0; id < g_vocab.n; id++) {
            bool allowed = mask[id / 32] >> id % 32 & 1, wanted = takes(&plain, g_vocab.bytes[id], g_vocab.len[id]);
            if (plain.overflow) break;
            if (allowed != wanted)
                fail_msg("TD_SEED=%llu, trial %llu, step %d, %s: token %u '%.*s' is %sallowed by:\n%s",
                         (unsigned long long)g_seed, (unsigned long long)g_trial, step, warm ? "warm" : "new", id,
                         (int)g_vocab.len[id], g_vocab.bytes[id], allowed ? "" : "not ", g_source);
            if (allowed && (id < n_bytes || n_bytes == 0 || n_allowed == 0) && draw(++n_allowed) == 0) chosen = id;
        }
        for (size_t i = g_vocab.n; i < words * 32; i++) assert_false(mask[i / 32] >> i % 32 & 1);
        bool overflow = plain.overflow;
        td_gr_matcher_close(&plain);
        if (overflow || chosen == UINT32_MAX) break;
        n_masks++;
        assert_int_equal(td_gr_matcher_advance(&m, g_vocab.bytes[chosen], g_vocab.len[chosen]), g_vocab.len[chosen]);
    }
    td_gr_walk_close(&walk);
    td_gr_matcher_close(&m);
    return n_masks;
}

TEST(masks_are_what_the_matcher_takes) {
    uint32_t trials = getenv("TD_TEST_FULL") ? 500 : 100, n_grammars = 0;
    size_t   n_masks = 0;
    for (g_trial = 0; g_trial < trials; g_trial++) {
        td_vocab_trie *trie;
        td_gr_pda      pda;
        g_draw = 0;
        make_vocabulary();
        OK(td_vocab_trie_make(NULL, g_vocab.n, &trie));
        for (int i = 0; i < 3; i++) {
            if (!make_grammar(&pda)) continue;
            n_masks += follow(&pda, trie, false) + follow(&pda, trie, true);
            n_grammars++;
            td_gr_pda_free(&pda);
        }
        td_vocab_trie_release(trie);
    }
    printf("seed %llu (TD_SEED): %u grammars, %zu masks\n", (unsigned long long)g_seed, n_grammars, n_masks);
    assert_true(n_grammars > 2 * trials && n_masks > 10 * trials);
}

int main(void) {
    const char *seed = getenv("TD_SEED");
    if (seed) g_seed = strtoull(seed, NULL, 10);
    return tests_run();
}
