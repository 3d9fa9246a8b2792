/*
 * The tokenizer, compared id for id with vectors of independent libraries (tests/text/tokenizer_vectors.py), and given
 * hostile text. TOKENIZERS: the folder of unpacked tokenizers.
 */
#include "tests/td_test.h"
#include "tests/text/tokenizer_fixture.h"

#include <pthread.h>
#include <utf8proc.h>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_norm.h"

AT_END_OF(end_tokenizer, td_tokenizer, td_tokenizer_close)

static td_tokenizer *open_named(const char *name) {
    char path[1024];
    if (!strcmp(name, "tale"))
        snprintf(path, sizeof path, "%s", TD_SOURCE_DIR "/models/tale-v3-14m");
    else if (!strcmp(name, "kimi"))
        snprintf(path, sizeof path, "%s", DATA "kimi");
    else
        snprintf(path, sizeof path, "%s/%s", TOKENIZERS, name);
    return fixture_open(path);
}

/* tokenizer.json without its tokenizer_config.json: what the `tokenizers` library sees. */
static td_tokenizer *open_bare(const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", strcmp(name, "tale") ? TOKENIZERS : TD_SOURCE_DIR "/models",
             strcmp(name, "tale") ? name : "tale-v3-14m");
    size_t             len;
    FREED char        *text = fixture_read(path, &len);
    td_tokenizer_files files = {.tokenizer_json = text, .tokenizer_json_len = len};
    td_tokenizer      *tok = NULL;
    td_error           err = {0};
    if (td_tokenizer_load(&files, &tok, &err) != TD_OK) fail_msg("%s", err.text);
    return tok;
}

static void check_encode(const td_tokenizer *tok, const json_t *text, bool parse_special, bool add_special,
                         const json_t *expected) {
    FREED uint32_t *ids;
    size_t          n;
    OK(td_tokenizer_encode(tok, json_string_value(text), json_string_length(text), parse_special, add_special, &ids, &n));
    fixture_same_ids(expected, ids, n, json_string_value(text));
}

static void check_decode(const td_tokenizer *tok, const json_t *list, bool skip_special, const json_t *expected) {
    size_t          n = json_array_size(list), len;
    FREED uint32_t *ids = calloc(n + 1, sizeof *ids);
    FREED char     *text;
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    OK(td_tokenizer_decode(tok, ids, n, skip_special, &text, &len));
    if (len != json_string_length(expected) || memcmp(text, json_string_value(expected), len) != 0) {
        char *e = json_dumps(list, 0);
        fail_msg("ids %s\nexpected: %s\ngot:      %s", e, json_string_value(expected), text);
    }
}

/* A member that is left out of a row is the same as the plain one. */
static const json_t *member_or(const json_t *row, const char *name, const json_t *otherwise) {
    const json_t *value = json_object_get(row, name);
    return value ? value : otherwise;
}

TEST(published_vectors) {
    static const char *const NAMES[] = {"deepseek_v3", "qwen3"};
    for (size_t k = 0; k < 2; k++) {
        char path[1024];
        snprintf(path, sizeof path, DATA "%s/vectors.jsonl", NAMES[k]);
        AT_END(end_tokenizer) td_tokenizer *tok = open_named(NAMES[k]);
        json_t                             *rows = fixture_lines(path), *row;
        size_t                              i;
        json_array_foreach(rows, i, row) {
            check_encode(tok, json_object_get(row, "text"), true, false, json_object_get(row, "ids"));
            if (!strcmp(NAMES[k], "deepseek_v3")) /* qwen3 normalizes, so not every text comes back */
                check_decode(tok, json_object_get(row, "ids"), false, json_object_get(row, "text"));
        }
        json_decref(rows);
    }
}

static void random_vectors(const char *name) {
    char path[1024];
    snprintf(path, sizeof path, DATA "%s/random.jsonl", name);
    AT_END(end_tokenizer) td_tokenizer *tok = open_bare(name);
    json_t                             *rows = fixture_lines(path), *row;
    size_t                              i;
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids");
        if (text) {
            check_encode(tok, text, true, false, ids);
            check_encode(tok, text, true, true, member_or(row, "special", ids));
            check_encode(tok, text, false, false, member_or(row, "plain", ids));
        } else {
            ids = json_object_get(row, "decode");
        }
        check_decode(tok, ids, false, member_or(row, "decoded", text));
        check_decode(tok, ids, true, member_or(row, "skipped", text));
    }
    json_decref(rows);
}

TEST(random_deepseek_v3) {
    (void)state, random_vectors("deepseek_v3");
}
TEST(random_qwen3) {
    (void)state, random_vectors("qwen3");
}
TEST(random_tale) {
    (void)state, random_vectors("tale");
}

/* A unit many times over; the ids by their number and a weighted sum. */
static void check_repeated(const td_tokenizer *tok, const json_t *row) {
    const json_t *unit = json_object_get(row, "unit");
    size_t unit_len = json_string_length(unit), len = unit_len * (size_t)json_integer_value(json_object_get(row, "times")),
           n;
    FREED char     *text = malloc(len);
    FREED uint32_t *ids;
    uint64_t        weighted = 0;
    for (size_t i = 0; i < len; i++) text[i] = json_string_value(unit)[i % unit_len];
    OK(td_tokenizer_encode(tok, text, len, true, false, &ids, &n));
    for (size_t i = 0; i < n; i++) weighted += (i + 1) * ids[i];
    assert_int_equal(n, json_integer_value(json_object_get(row, "n")));
    assert_int_equal(weighted, json_integer_value(json_object_get(row, "weighted")));
}

TEST(kimi_vectors) {
    td_tokenizer *tok = open_named("kimi");
    json_t       *rows = fixture_lines(DATA "kimi/vectors.jsonl"), *row;
    size_t        i;
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids");
        if (json_object_get(row, "unit")) {
            check_repeated(tok, row);
            continue;
        }
        if (text) {
            check_encode(tok, text, true, false, ids);
            check_encode(tok, text, true, true, ids);
            check_encode(tok, text, false, false, member_or(row, "plain", ids));
        } else {
            ids = json_object_get(row, "decode");
        }
        check_decode(tok, ids, false, member_or(row, "decoded", text));
    }
    json_decref(rows);
    assert_int_equal(td_tokenizer_vocab_size(tok), 1000 + 256);
    assert_string_equal(td_tokenizer_bos(tok), "[BOS]");
    assert_string_equal(td_tokenizer_eos(tok), "[EOS]");
    assert_string_equal(td_tokenizer_chat_template(tok), "{{ messages[0].content }}");
    assert_int_equal(td_tokenizer_find(tok, "<|reserved_token_1100|>", 23), 1100);
    td_tokenizer_close(tok);
}

/* Pre-tokenizers, normalizers and the flags of added tokens, over one small vocabulary. */
TEST(variants) {
    json_t *rows = fixture_lines(DATA "variants.jsonl"), *row, *text;
    size_t  i, k;
    json_array_foreach(rows, i, row) {
        if (i == 0) continue;
        static const char *const PARTS[] = {"pre_tokenizer", "normalizer"};
        json_auto_t             *spec = json_copy(json_object_get(json_array_get(rows, 0), "base"));
        for (k = 0; k < 2; k++)
            if (json_object_get(row, PARTS[k])) json_object_set(spec, PARTS[k], json_object_get(row, PARTS[k]));
        FREED char                         *json = json_dumps(spec, 0);
        td_tokenizer_files                  files = {.tokenizer_json = json, .tokenizer_json_len = strlen(json)};
        AT_END(end_tokenizer) td_tokenizer *tok = NULL;
        td_error                            err = {0};
        if (td_tokenizer_load(&files, &tok, &err) != TD_OK)
            fail_msg("%s: %s", json_string_value(json_object_get(row, "name")), err.text);
        print_message("%s\n", json_string_value(json_object_get(row, "name")));
        json_array_foreach(json_object_get(row, "texts"), k, text) {
            check_encode(tok, text, true, false, json_array_get(json_object_get(row, "ids"), k));
            check_encode(tok, text, false, false, json_array_get(json_object_get(row, "plain"), k));
        }
    }
    json_decref(rows);
}

/* What tokenizer_config.json says about BOS, EOS and templates. */
TEST(config_rules) {
    td_tokenizer *deepseek = open_named("deepseek_v3"), *qwen = open_named("qwen3"), *tale = open_named("tale");
    uint32_t     *ids;
    size_t        n;
    /* deepseek_v3: ByteLevel post-processor, LlamaTokenizerFast with add_bos_token. */
    OK(td_tokenizer_encode(deepseek, "a", 1, true, true, &ids, &n));
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 0);
    free(ids);
    assert_string_equal(td_tokenizer_bos(deepseek), "<｜begin▁of▁sentence｜>");
    assert_non_null(td_tokenizer_chat_template(deepseek));
    /* qwen3: no BOS at all. */
    OK(td_tokenizer_encode(qwen, "a", 1, true, true, &ids, &n));
    assert_int_equal(n, 1);
    free(ids);
    assert_null(td_tokenizer_bos(qwen));
    assert_string_equal(td_tokenizer_eos(qwen), "<|im_end|>");
    /* the demo model: a template and add_bos_token both ask for BOS, which comes once. */
    OK(td_tokenizer_encode(tale, "", 0, true, true, &ids, &n));
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 0);
    free(ids);
    OK(td_tokenizer_encode(tale, "", 0, true, false, &ids, &n));
    assert_int_equal(n, 0);
    assert_null(ids);
    assert_int_equal(td_tokenizer_find(qwen, "</think>", 8), 151668);
    assert_int_equal(td_tokenizer_find(qwen, "</thinx>", 8), TD_NO_TOKEN);
    assert_int_equal(td_tokenizer_vocab_size(qwen), 151669);
    td_tokenizer_close(deepseek);
    td_tokenizer_close(qwen);
    td_tokenizer_close(tale);
}

/* Invalid UTF-8 goes byte by byte, and decodes to U+FFFD where it is not part of a character. */
TEST(invalid_utf8) {
    static const struct {
        const char *in, *out;
    } CASES[] = {
        {"a\xFF"
         "b",
         "a\xEF\xBF\xBD"
         "b"},
        {"\xE4\xBD", "\xEF\xBF\xBD"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF0\x9F\x98 x", "\xEF\xBF\xBD x"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    AT_END(end_tokenizer) td_tokenizer *tok = open_named("tale");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        FREED uint32_t *ids;
        size_t          n, len;
        FREED char     *text;
        OK(td_tokenizer_encode(tok, CASES[i].in, strlen(CASES[i].in), true, false, &ids, &n));
        OK(td_tokenizer_decode(tok, ids, n, false, &text, &len));
        assert_string_equal(text, CASES[i].out);
    }
}

/* A megabyte of one word, of white space, of marks out of order: with quadratic steps these would outlive the time limit. */
TEST(hostile_megabytes) {
    static const struct {
        const char *name, *unit;
    } CASES[] = {
        {"qwen3", "a"},
        {"qwen3", "ab"},
        {"qwen3", " "},
        {"qwen3", "\n \t"},
        {"qwen3", "中"},
        {"qwen3", "\u0301\u0323\u0301"},
        {"deepseek_v3", "="},
        {"deepseek_v3", "a\u0301"},
        {"deepseek_v3", " \u00a0"},
        {"deepseek_v3", "1"},
        {"deepseek_v3", "<｜"},
        {"kimi", "a"},
        {"kimi", "Aa'"},
        {"kimi", "中a"},
        {"kimi", "\u0301"},
        {"kimi", " "},
    };
    size_t      len = 1 << 20;
    FREED char *text = malloc(len);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (i == 0 || strcmp(CASES[i].name, CASES[i - 1].name)) *state = open_named(CASES[i].name);
        size_t          unit = strlen(CASES[i].unit), n, back_len, whole = len / unit * unit;
        FREED uint32_t *ids;
        FREED char     *back;
        for (size_t k = 0; k < whole; k++) text[k] = CASES[i].unit[k % unit];
        OK(td_tokenizer_encode(*state, text, whole, true, false, &ids, &n));
        OK(td_tokenizer_decode(*state, ids, n, false, &back, &back_len));
        if (strcmp(CASES[i].unit, "\u0301\u0323\u0301")) { /* normalized */
            assert_int_equal(back_len, whole);
            assert_memory_equal(back, text, whole);
        }
        if (i + 1 == sizeof CASES / sizeof *CASES || strcmp(CASES[i].name, CASES[i + 1].name)) td_tokenizer_close(*state);
    }
}

/* NFC of every character, its decomposition, and either before a mark, against utf8proc's own. */
TEST(nfc_against_utf8proc) {
    td_norm nfc = {.forms = {TD_NFC}, .n = 1};
    for (int32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char             in[128];
        utf8proc_int32_t parts[32];
        size_t           n[3];
        n[0] = (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)in);
        int              boundary = 0;
        utf8proc_ssize_t k = utf8proc_decompose_char(c, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
        n[1] = n[0];
        for (utf8proc_ssize_t i = 0; i < k; i++)
            n[1] += (size_t)utf8proc_encode_char(parts[i], (utf8proc_uint8_t *)in + n[1]);
        n[2] = n[1] + (size_t)utf8proc_encode_char(0x0301, (utf8proc_uint8_t *)in + n[1]);
        for (size_t i = 0; i < 3; i++) {
            FREED char             *got = NULL;
            size_t                  len;
            FREED utf8proc_uint8_t *want = NULL;
            utf8proc_ssize_t        want_len =
                utf8proc_map((utf8proc_uint8_t *)in, (utf8proc_ssize_t)n[i], &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            OK(td_norm_apply(&nfc, in, n[i], &got, &len));
            if (len != (size_t)want_len || memcmp(got ? got : in, want, len) != 0)
                fail_msg("NFC differs at U+%04X, case %zu", (unsigned)c, i);
        }
    }
}

typedef struct {
    const td_tokenizer *tok[2];
    const char         *text;
    size_t              len;
    size_t              n_ids[2];
    bool                failed;
} worker;

static void *encode_repeatedly(void *arg) {
    worker *w = arg;
    for (int i = 0; i < 8; i++) {
        FREED uint32_t *ids;
        size_t          n;
        int             k = i & 1; /* two tokenizers in turn: the word cache changes hands */
        if (td_tokenizer_encode(w->tok[k], w->text, w->len, true, false, &ids, &n) != TD_OK ||
            (w->n_ids[k] && n != w->n_ids[k]))
            w->failed = true;
        w->n_ids[k] = n;
    }
    return NULL;
}

TEST(threads_agree) {
    AT_END(end_tokenizer) td_tokenizer *a = open_named("tale"), *b = open_named("kimi");
    size_t                              len;
    FREED char                         *text = fixture_read(TD_SOURCE_DIR "/models/tale-v3-14m/valid.txt", &len);
    worker                              w[4];
    pthread_t                           t[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (worker){.tok = {a, b}, .text = text, .len = len};
        assert_int_equal(pthread_create(&t[i], NULL, encode_repeatedly, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_false(w[i].failed);
        assert_true(w[i].n_ids[0] > 0 && w[i].n_ids[0] == w[0].n_ids[0] && w[i].n_ids[1] == w[0].n_ids[1]);
    }
}
