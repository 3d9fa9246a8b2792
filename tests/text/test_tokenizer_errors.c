/* Tokenizer files that cannot be used are refused with a sentence that tells why; small ones made here, part by part. */
#include "tests/td_test.h"
#include "tests/text/tokenizer_fixture.h"

#include "core/error.h"
#include "text/tokenizer/pretok_regex.h"
#include "text/tokenizer/tokenizer.h"

/* A usable tokenizer.json of the 256 bytes and two merges, to be spoilt. */
static json_t *usable(void) {
    json_t *vocab = json_object();
    int     next = 256;
    for (int b = 0; b < 256; b++) {
        bool     printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        unsigned c = printable ? (unsigned)b : (unsigned)next++;
        char     key[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            key[0] = (char)(0xC0 | c >> 6);
            key[1] = (char)(0x80 | (c & 0x3F));
        }
        json_object_set_new(vocab, key, json_integer(b));
    }
    json_object_set_new(vocab, "th", json_integer(256));
    json_object_set_new(vocab, "the", json_integer(257));
    json_t *root = json_pack("{s:n, s:{s:s, s:b, s:b}, s:{s:s}, s:n, s:[{s:i, s:s, s:b}], s:{s:s, s:o, s:[s, [s, s]]}}",
                             "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 1,
                             "decoder", "type", "ByteLevel", "post_processor", "added_tokens", "id", 258, "content", "<s>",
                             "special", 1, "model", "type", "BPE", "vocab", vocab, "merges", "t h", "th", "e");
    assert_non_null(root);
    return root;
}

static td_status load(const char *json, size_t len, const char *config, td_tokenizer **tok, td_error *err) {
    td_tokenizer_files files = {.tokenizer_json = json,
                                .tokenizer_json_len = len,
                                .tokenizer_config = config,
                                .tokenizer_config_len = config ? strlen(config) : 0};
    *tok = NULL;
    *err = (td_error){0};
    td_status st = td_tokenizer_load(&files, tok, err);
    assert_true((st == TD_OK) == (*tok != NULL));
    assert_true(st == TD_OK || (err->status == st && err->text[0] && !strchr(err->text, '\n')));
    return st;
}

/* What is put at path ("model.vocab") of the usable file, and what the refusal says. replacement NULL: taken away. */
typedef struct {
    const char *path, *replacement;
    td_status   status;
    const char *sentence;
} spoiling;

static const spoiling SPOILINGS[] = {
    {"model", NULL, TD_EFORMAT, "model is missing"},
    {"model.type", "\"WordPiece\"", TD_ENOTSUP, "'WordPiece'"},
    {"model.type", "\"Unigram\"", TD_ENOTSUP, "only byte-level BPE"},
    {"model.merges", NULL, TD_EFORMAT, "model.merges is missing"},
    {"model.merges", "\"t h\"", TD_EFORMAT, "model.merges"},
    {"model.merges", "[\"th\"]", TD_EFORMAT, "entry 0"},
    {"model.merges", "[\"t h\", \"q q\"]", TD_EFORMAT, "entry 1"},
    {"model.merges", "[[\"t\", \"h\", \"e\"]]", TD_EFORMAT, "entry 0"},
    {"model.merges", "[[\"t\", 5]]", TD_EFORMAT, "entry 0"},
    {"model.merges", "[\" h\"]", TD_EFORMAT, "entry 0"},
    {"model.vocab", NULL, TD_EFORMAT, "model.vocab"},
    {"model.vocab", "{}", TD_EFORMAT, "model.vocab"},
    {"model.vocab", "{\"a\": 0}", TD_EFORMAT, "no token for the byte"},
    {"model.vocab.the", "256", TD_EFORMAT, "two tokens have the id 256"},
    {"model.vocab.the", "-1", TD_EFORMAT, "id -1"},
    {"model.vocab.the", "2097152", TD_EFORMAT, "id 2097152"},
    {"model.vocab.the", "9223372036854775807", TD_EFORMAT, "9223372036854775807"},
    {"model.vocab.the", "257.0", TD_EFORMAT, "not an integer"},
    {"model.vocab.the", "\"257\"", TD_EFORMAT, "not an integer"},
    {"model.byte_fallback", "true", TD_ENOTSUP, "byte_fallback"},
    {"model.dropout", "0.1", TD_ENOTSUP, "dropout"},
    {"model.end_of_word_suffix", "\"</w>\"", TD_ENOTSUP, "end_of_word_suffix"},
    {"normalizer", "{\"type\": \"Lowercase\"}", TD_ENOTSUP, "'Lowercase'"},
    {"normalizer", "{}", TD_EFORMAT, "without a type"},
    {"pre_tokenizer", NULL, TD_ENOTSUP, "pre_tokenizer is missing"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\"}", TD_ENOTSUP, "'Metaspace'"},
    {"pre_tokenizer", "{\"type\": \"Digits\"}", TD_ENOTSUP, "does not end in ByteLevel"},
    {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": \"Digits\"}]}",
     TD_ENOTSUP, "after ByteLevel"},
    {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"}", TD_EFORMAT,
     "regular expression '(a'"},
    {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}", TD_ENOTSUP, "'Odd'"},
    {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {}, \"behavior\": \"Isolated\"}", TD_EFORMAT, "pattern"},
    {"decoder", NULL, TD_ENOTSUP, "decoder"},
    {"decoder", "{\"type\": \"WordPiece\"}", TD_ENOTSUP, "'WordPiece'"},
    {"post_processor", "{\"type\": \"BertProcessing\"}", TD_ENOTSUP, "'BertProcessing'"},
    {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": [], \"special_tokens\": {}}", TD_ENOTSUP,
     "sequence once"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], \"special_tokens\": {}}",
     TD_EFORMAT, "'x'"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], \"special_tokens\": {\"x\": "
     "{\"ids\": [999]}}}",
     TD_EFORMAT, "no id 999"},
    {"added_tokens", "[{\"id\": 5}]", TD_EFORMAT, "no content"},
    {"added_tokens", "[{\"content\": \"x\"}]", TD_EFORMAT, "id is missing"},
    {"added_tokens", "[{\"id\": 256, \"content\": \"<x>\"}]", TD_EFORMAT, "'<x>' has the id 256 of another"},
    {"added_tokens", "[{\"id\": 4294967296, \"content\": \"<x>\"}]", TD_EFORMAT, "4294967296"},
    {"added_tokens", "7", TD_EFORMAT, "not a list"},
};

TEST(spoilt_json) {
    for (size_t i = 0; i < sizeof SPOILINGS / sizeof *SPOILINGS; i++) {
        const spoiling *s = &SPOILINGS[i];
        json_t         *root = usable(), *at = root;
        char            path[64], *name = path, *dot;
        snprintf(path, sizeof path, "%s", s->path);
        for (; (dot = strchr(name, '.')); name = dot + 1) {
            *dot = 0;
            at = json_object_get(at, name);
        }
        if (s->replacement)
            json_object_set_new(at, name, json_loads(s->replacement, JSON_DECODE_ANY, NULL));
        else
            json_object_del(at, name);
        FREED char   *json = json_dumps(root, 0);
        td_tokenizer *tok;
        td_error      err;
        td_status     st = load(json, strlen(json), NULL, &tok, &err);
        if (st != s->status || !strstr(err.text, s->sentence) || !strstr(err.text, "tokenizer.json"))
            fail_msg("%s = %s: status %d, '%s'", s->path, s->replacement ? s->replacement : "(none)", st, err.text);
        json_decref(root);
    }
}

/* Every way to cut the file short is an error and never more than that. */
TEST(truncated_json) {
    json_auto_t  *root = usable();
    FREED char   *json = json_dumps(root, JSON_COMPACT);
    td_tokenizer *tok;
    td_error      err;
    OK(load(json, strlen(json), NULL, &tok, &err));
    td_tokenizer_close(tok);
    for (size_t len = 0; len < strlen(json); len++) {
        char *cut = malloc(len + 1); /* no byte beyond, for the sanitizers */
        memcpy(cut, json, len);
        assert_int_equal(load(cut, len, NULL, &tok, &err), TD_EFORMAT);
        free(cut);
    }
}

TEST(duplicate_keys) {
    static const char JSON[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"a\": 2}}}";
    td_tokenizer     *tok;
    td_error          err;
    assert_int_equal(load(JSON, sizeof JSON - 1, NULL, &tok, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "duplicate"));
}

TEST(configs) {
    static const struct {
        const char *config;
        td_status   status;
        const char *sentence;
    } CASES[] = {
        {"{\"add_bos_token\": true, \"bos_token\": \"<s>\"}", TD_OK, ""},
        {"{\"add_bos_token\": true, \"bos_token\": {\"content\": \"the\"}, \"chat_template\": null}", TD_OK, ""},
        {"{\"add_bos_token\": true, \"bos_token\": \"<bos>\"}", TD_EFORMAT, "bos_token '<bos>' is not in the vocabulary"},
        {"{\"bos_token\": 5}", TD_EFORMAT, "bos_token"},
        {"{\"eos_token\": {}}", TD_EFORMAT, "eos_token"},
        {"{\"chat_template\": {}}", TD_EFORMAT, "chat_template"},
        {"[]", TD_EFORMAT, "not a JSON object"},
        {"{", TD_EFORMAT, "tokenizer_config.json is not valid JSON"},
    };
    json_auto_t *root = usable();
    FREED char  *json = json_dumps(root, 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        td_tokenizer *tok;
        td_error      err;
        td_status     st = load(json, strlen(json), CASES[i].config, &tok, &err);
        if (st != CASES[i].status || !strstr(err.text, CASES[i].sentence))
            fail_msg("%s: %d '%s'", CASES[i].config, st, err.text);
        if (tok) {
            FREED uint32_t *ids;
            size_t          n;
            OK(td_tokenizer_encode(tok, "the", 3, true, true, &ids, &n));
            assert_int_equal(n, 2);
            assert_int_equal(ids[1], 257);
            td_tokenizer_close(tok);
        }
    }
}

/* A vocabulary without the byte 4 (SmolLM2's is like that): text loses it, and what stood on both sides merges, in short
   words and in long ones. So it is with Hugging Face's tokenizers 0.23.3. */
TEST(missing_byte) {
    json_auto_t  *root = usable();
    td_tokenizer *tok;
    td_error      err;
    char          text[100];
    json_object_set_new(json_object_get(root, "pre_tokenizer"), "use_regex",
                        json_false()); /* else words are cut at the byte */
    assert_int_equal(json_object_del(json_object_get(json_object_get(root, "model"), "vocab"), "\xC4\x84"), 0); /* U+0104 */
    FREED char *json = json_dumps(root, 0);
    OK(load(json, strlen(json), NULL, &tok, &err));
    for (size_t n_x = 0; n_x <= 60; n_x += 60) {
        uint32_t *ids;
        size_t    n;
        memset(text, 'x', n_x);
        memcpy(text + n_x, "t\4he\4", 5);
        OK(td_tokenizer_encode(tok, text, n_x + 5, false, false, &ids, &n));
        assert_int_equal(n, n_x + 1);
        assert_int_equal(ids[n_x], 257);
        free(ids);
        OK(td_tokenizer_encode(tok, "\4", 1, false, false, &ids, &n));
        assert_int_equal(n, 0);
        free(ids);
    }
    td_tokenizer_close(tok);
}

TEST(ids_out_of_range) {
    json_auto_t *root = usable();
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "zz",
                        json_integer(300)); /* 259..299 are gaps */
    FREED char   *json = json_dumps(root, 0);
    td_tokenizer *tok;
    td_error      err;
    OK(load(json, strlen(json), NULL, &tok, &err));
    assert_int_equal(td_tokenizer_vocab_size(tok), 301);
    static const uint32_t BAD[] = {259, 299, 301, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        uint32_t ids[2] = {1, BAD[i]};
        char    *text;
        size_t   len;
        assert_int_equal(td_tokenizer_decode(tok, ids, 2, false, &text, &len), TD_EINVAL);
        bool special;
        assert_null(td_tokenizer_token(tok, BAD[i], &len, &special));
    }
    td_tokenizer_close(tok);
}

TEST(tiktoken_files) {
    static const struct {
        const char *model, *config;
        td_status   status;
        const char *sentence;
    } CASES[] = {
        {"", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "empty"},
        {"YQ== 0\n", "{\"tokenizer_class\": \"QWenTokenizer\"}", TD_ENOTSUP, "'QWenTokenizer'"},
        {"YQ== 0\n", "{}", TD_ENOTSUP, "tokenizer_class"},
        {"YQ== 0\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "byte 0x20"},
        {"YQ== 0\nYg== 0\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "line 2 repeats the rank 0"},
        {"YQ== 0\nYQ== 1\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "twice"},
        {"YQ== 0\nYg== 5\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "rank 1 is missing"},
        {"YQ= 0\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "base64"},
        {"Y*== 0\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "base64"},
        {"YQ== x\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "line 1"},
        {"YQ== 99999999999999999999999\n", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "line 1"},
        {"YQ==", "{\"tokenizer_class\": \"TikTokenTokenizer\"}", TD_EFORMAT, "line 1"},
        {"YQ== 0\n", NULL, TD_ENOTFOUND, "tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        td_tokenizer_files files = {.tiktoken_model = CASES[i].model,
                                    .tiktoken_model_len = strlen(CASES[i].model),
                                    .tokenizer_config = CASES[i].config,
                                    .tokenizer_config_len = CASES[i].config ? strlen(CASES[i].config) : 0};
        td_tokenizer      *tok = NULL;
        td_error           err = {0};
        td_status          st = td_tokenizer_load(&files, &tok, &err);
        if (st != CASES[i].status || !strstr(err.text, CASES[i].sentence)) fail_msg("case %zu: %d '%s'", i, st, err.text);
    }
}

TEST(folder_without_tokenizer) {
    td_tokenizer *tok = NULL;
    td_error      err = {0};
    assert_int_equal(td_tokenizer_open(TD_SOURCE_DIR "/core", &tok, &err), TD_ENOTFOUND);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    assert_int_equal(td_tokenizer_open("/nonexistent/folder", &tok, &err), TD_ENOTFOUND);
    assert_int_equal(td_tokenizer_open("/nonexistent/folder", &tok, NULL), TD_ENOTFOUND);
}

static td_tokenizer *with_pattern(const char *pattern) {
    json_t       *root = usable();
    td_tokenizer *tok;
    td_error      err;
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}", "type", "Sequence", "pretokenizers",
                                  "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "type", "ByteLevel",
                                  "add_prefix_space", 0, "use_regex", 0));
    char *json = json_dumps(root, 0);
    OK(load(json, strlen(json), NULL, &tok, &err));
    free(json);
    json_decref(root);
    return tok;
}

static bool always(void *user) {
    ++*(size_t *)user;
    return true;
}

/* Expressions that would take hours: their steps are counted over all matches of a text, and whoever called may stop
 * them. */
TEST(backtracking_is_bounded) {
    static const char *const HOSTILE[] = {"(?=(a+))a*b", "(?:a(?=.*b))*|.", "(a*)*b|.", "a*a*a*b|."};
    static char              text[1 << 18];
    uint32_t                *ids;
    size_t                   n, asked = 0;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof HOSTILE / sizeof *HOSTILE; i++) {
        td_tokenizer *tok = with_pattern(HOSTILE[i]);
        OK(td_tokenizer_encode(tok, text, 10, false, false, &ids, &n));
        assert_int_equal(n, 10);
        free(ids);
        assert_int_equal(td_tokenizer_encode(tok, text, sizeof text, false, false, &ids, &n), TD_ELIMIT);
        assert_null(ids);
        td_tokenizer_stop_when(always, &asked);
        assert_int_equal(td_tokenizer_encode(tok, text, sizeof text, false, false, &ids, &n), TD_ECANCELLED);
        assert_int_equal(asked, i + 1);
        td_tokenizer_stop_when(NULL, NULL);
        td_tokenizer_close(tok);
    }
    td_tokenizer *tok = with_pattern("aa|."); /* nothing is counted, and it can be stopped all the same */
    td_tokenizer_stop_when(always, &asked);
    assert_int_equal(td_tokenizer_encode(tok, text, sizeof text, false, false, &ids, &n), TD_ECANCELLED);
    td_tokenizer_stop_when(NULL, NULL);
    OK(td_tokenizer_encode(tok, text, sizeof text, false, false, &ids, &n));
    free(ids);
    td_tokenizer_close(tok);
}

TEST(fewest_tokens) {
    td_tokenizer *tok = with_pattern("."); /* its longest token has three bytes */
    assert_int_equal(td_tokenizer_tokens_min(tok, 3000), 1000);
    td_tokenizer_close(tok);
}

/* Translation of regular expressions: what means the same under PCRE2, what is rewritten, what is refused. */
TEST(regex_translation) {
    static const struct {
        const char *pattern, *translated; /* NULL: refused */
    } CASES[] = {
        {"a|b?[c-e]+", "a|b?[c-e]+"},
        {"[\\p{Zs}&&[^\\p{Greek}]]+", "(?:(?![\\p{sc:Greek}])[\\p{Zs}])+"},
        {"[a&&[b]&&[^c]]", "(?:(?=[b])(?![c])[a])"},
        {"[a[b-c]]", "[ab-c]"},
        {"\\u0041\\x{1F600}\\x7f\\v", "\\x{0041}\\x{1F600}\\x{7f}\\x{b}"},
        {"^a{,3}$", "(?m:^)a{0,3}(?m:$)"},
        {"a{x", "a\\{x"},
        {"\\P{Zs}[\\P{Zs}]", "[^\\p{Zs}][\\P{Zs}]"},
        {"\\p{^Zs}", "[^\\p{Zs}]"},
        {"(?i:'s)(?=b)(?<!c)(?>d)", "(?i:'s)(?=b)(?<!c)(?>d)"},
        {"", ""},
        {"\\w", NULL},
        {"\\bx", NULL},
        {"\\h", NULL},
        {"[[:alpha:]]", NULL},
        {"a{1,3}+", NULL},
        {"a{3}?", NULL},
        {"(?<n>a)", NULL},
        {"(*FAIL)", NULL},
        {"a(?i)b", NULL},
        {"(?m:a)", NULL},
        {"\\1", NULL},
        {"\\", NULL},
        {"[", NULL},
        {"[]", NULL},
        {"[^a&&[b]]", NULL},
        {"[a&&b]", NULL},
        {"[a[^b]]", NULL},
        {"[[[[[[a]]]]]]", NULL},
        {"\\p", NULL},
        {"\\p{", NULL},
        {"\\p{}", NULL},
        {"\\x{", NULL},
        {"\\u12", NULL},
        {"a{2000}", NULL},
        {"\\Qa", NULL},
        {"\\K", NULL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        FREED char *got = NULL;
        td_error    err = {0};
        td_status   st = td_regex_translate(CASES[i].pattern, strlen(CASES[i].pattern), &got, &err);
        if (!CASES[i].translated) {
            if (st != TD_ENOTSUP) fail_msg("'%s' should be refused, got '%s'", CASES[i].pattern, got);
        } else {
            if (st != TD_OK || strcmp(got, CASES[i].translated))
                fail_msg("'%s' became '%s' (%s)", CASES[i].pattern, got ? got : "", err.text);
        }
    }
}
