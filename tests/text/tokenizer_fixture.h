/* Reading test vectors: JSON lines, ids, whole files. Everything fails the test on error. */
#ifndef TD_TESTS_TEXT_TOKENIZER_FIXTURE_H
#define TD_TESTS_TEXT_TOKENIZER_FIXTURE_H

/* after the above, as cmocka wants it */
#include <jansson.h>

#include "tandem.h"
#include "tests/td_test.h"

#define DATA TD_SOURCE_DIR "/tests/data/tokenizers/"

static inline char *fixture_read(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*len + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *len, f), *len);
    text[*len] = 0;
    fclose(f);
    return text;
}

/* A JSON array of the file's lines. */
static inline json_t *fixture_lines(const char *path) {
    size_t      len;
    FREED char *text = fixture_read(path, &len);
    json_t     *rows = json_array();
    for (char *line = text; *line;) {
        char        *end = strchr(line, '\n');
        json_error_t e;
        json_t      *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &e);
        if (!row) fail_msg("%s: %s", path, e.text);
        json_array_append_new(rows, row);
        line = end + 1;
    }
    assert_true(json_array_size(rows) > 0);
    return rows;
}

/* Compare ids with a JSON list; on a difference print both and the text. */
static inline void fixture_same_ids(const json_t *expected, const uint32_t *ids, size_t n, const char *text) {
    bool same = json_array_size(expected) == n;
    for (size_t i = 0; same && i < n; i++) same = json_integer_value(json_array_get(expected, i)) == ids[i];
    if (same) return;
    FREED char *e = json_dumps(expected, JSON_COMPACT);
    print_error("text: %s\nexpected: %s\ngot:      [", text, e);
    for (size_t i = 0; i < n; i++) print_error("%s%u", i ? "," : "", ids[i]);
    print_error("]\n");
    fail();
}

static inline td_tokenizer *fixture_open(const char *dir) {
    td_tokenizer *tok = NULL;
    td_error      err = {0};
    if (td_tokenizer_open(dir, &tok, &err) != TD_OK) fail_msg("%s", err.text);
    return tok;
}

#endif
