/* Log lines as text and as JSON; the JSON is read by jansson. */
#include <math.h>
#include <unistd.h>

#include <jansson.h>

#include "core/log/log.h"
#include "core/log/log_writer.h"
#include "tests/td_test.h"

/* What `body` prints on stderr. */
#define CAPTURE(text, body)                                    \
    do {                                                       \
        FILE *file_ = tmpfile();                               \
        int   saved_ = dup(STDERR_FILENO);                     \
        dup2(fileno(file_), STDERR_FILENO);                    \
        body;                                                  \
        dup2(saved_, STDERR_FILENO);                           \
        close(saved_);                                         \
        rewind(file_);                                         \
        (text)[fread((text), 1, sizeof(text) - 1, file_)] = 0; \
        fclose(file_);                                         \
    } while (0)

static char text[65536];

static json_t *json_line(void) {
    json_error_t e;
    size_t       n = strlen(text);
    assert_true(n > 1 && strchr(text, '\n') == text + n - 1); /* one line */
    json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!doc) fail_msg("%s: %s", e.text, text);
    return doc;
}

static const char *msg(const json_t *doc) {
    return json_string_value(json_object_get(doc, "msg"));
}

TEST(text_lines) {
    CAPTURE(text, td_info("decode: " TD_FIGURE("running", "%u") " running, " TD_FIGURE("rate", "%.1f") " tokens/s (%d %%)",
                          3u, 12.25, 50));
    assert_string_equal(text + 24, " info  decode: 3 running, 12.2 tokens/s (50 %)\n");
    CAPTURE(text, td_warn("%s", "a\nb\x1b[2J\001x\002y\003"));
    assert_string_equal(text + 24, " warn  a?b?[2J?x?y?\n");
    CAPTURE(text, td_warn("%s",
                          "a\xc2\x9b"
                          "31m \xc2\xa0\xe2\x80\xa8\xe2\x80\xae"
                          "b\xe2\x81\xa6\xe2\x82\xac\xe2\x80"));
    assert_string_equal(text + 24, " warn  a?31m \xc2\xa0??b?\xe2\x82\xac\xe2\x80\n");
    CAPTURE(text, td_debug("below the level"));
    assert_string_equal(text, "");
}

static int as_json(void **state) {
    (void)state;
    td_log_set_format(TD_LOG_JSON);
    return 0;
}

TEST_WITH(figures_are_members, as_json, NULL) {
    CAPTURE(text, td_info(TD_FIGURE("event", "%s") ": " TD_FIGURE("n", "%u") " of " TD_FIGURE("x", "%.2f") " " TD_FIGURE(
                              "nan", "%f") " " TD_FIGURE("zeros", "%s") " " TD_FIGURE("big", "%g"),
                          "decode", 7u, -0.5, (double)NAN, "007", 1e300));
    json_auto_t *doc = json_line();
    assert_string_equal(msg(doc), "decode: 7 of -0.50 nan 007 1e+300");
    assert_string_equal(json_string_value(json_object_get(doc, "event")), "decode");
    assert_int_equal(json_integer_value(json_object_get(doc, "n")), 7);
    assert_true(json_is_real(json_object_get(doc, "x")) && json_real_value(json_object_get(doc, "x")) == -0.5);
    assert_string_equal(json_string_value(json_object_get(doc, "nan")), "nan");
    assert_string_equal(json_string_value(json_object_get(doc, "zeros")), "007");
    assert_true(json_real_value(json_object_get(doc, "big")) == 1e300);
    assert_string_equal(json_string_value(json_object_get(doc, "level")), "info");
    assert_int_equal(strlen(json_string_value(json_object_get(doc, "ts"))), 24);
}

TEST_WITH(foreign_text_is_escaped, as_json, NULL) {
    CAPTURE(text, td_err("say \"%s\" \\ %s", "\xe2\x82\xac \xff \xc0\xaf \xed\xa0\x80 \xe2\x82", "a\n\001ts\002forged\003"));
    json_auto_t *doc = json_line();
    assert_string_equal(msg(doc), "say \"\u20ac \ufffd \ufffd\ufffd \ufffd\ufffd\ufffd \ufffd\ufffd\" \\ a??ts?forged?");
    assert_int_equal(json_object_size(doc), 3);
}

/* Cut at every place: always one valid line, and a figure that was cut is no member. */
TEST_WITH(long_lines_are_cut, as_json, NULL) {
    static char pad[4096];
    for (int n = 1900; n < 2100; n++) {
        memset(pad, n % 2 ? '"' : '\xc3', (size_t)n);
        pad[n] = 0;
        CAPTURE(text, td_info("%s " TD_FIGURE("name", "%d") " " TD_FIGURE("other", "%d"), pad, 123456, 5));
        json_t *doc = json_line(), *name = json_object_get(doc, "name");
        assert_true(strlen(msg(doc)) >= 1900);
        if (name) assert_int_equal(json_integer_value(name), 123456);
        json_decref(doc);
    }
}

/* How many lines a text has, and how many more its notices tell of. */
static void count_lines(const char *all, int *lines, int *notices, uint64_t *told) {
    static const char NOTICE[] = " warn  ";
    *lines = *notices = 0;
    *told = 0;
    for (const char *at = all; (at = strchr(at, '\n')); at++) ++*lines;
    for (const char *at = all; (at = strstr(at, NOTICE)); at++) {
        ++*notices;
        *told += strtoull(at + strlen(NOTICE), NULL, 10);
    }
}

/* A pipe that nobody reads: logging goes on, what is lost is counted, and told when there is room again. The writer stays:
 * this is the last case. */
TEST(nobody_reads) {
    enum { LINES = 20000, ROOM = 2 << 20 };
    td_error err = {0};
    int      ends[2], saved = dup(STDERR_FILENO), lines = 0, notices = 0;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    td_log_set_format(TD_LOG_TEXT);
    OK(td_log_writer_start(&err));
    for (int i = 0; i < LINES; i++) td_info("line %d of many that nobody reads", i); /* without the writer this never ends */
    uint64_t dropped = td_log_writer_dropped(), told = 0;
    assert_true(dropped > 0 && dropped < LINES);
    assert_false(td_log_writer_flush(0.01));

    FREED char *all = calloc(1, ROOM);
    size_t      n = 0;
    bool        again = false;
    assert_non_null(all);
    /* All that was not dropped, "read again" and the notices; a writer that comes late makes more than one. */
    while (!again || (uint64_t)lines < LINES - dropped + 1 + (uint64_t)notices || told < dropped) {
        ssize_t got = read(ends[0], all + n, ROOM - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        if (!again && n > TD_LOG_RING_BYTES / 2) td_info("read again"), again = true;
        count_lines(all, &lines, &notices, &told);
    }
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[0]);
    assert_int_equal(td_log_writer_dropped(), dropped);
    assert_int_equal(told, dropped);
    assert_int_equal(lines, LINES - (int)dropped + 1 + notices);
    assert_non_null(strstr(all, "read again\n"));
}
