/* `tandem grammar`: which texts a grammar accepts, one JSON object a line. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/json_lines.h"
#include "core/error.h"
#include "core/json_text.h"
#include "tandem.h"

static const char HELP[] =
    "usage: tandem grammar --json-schema FILE | --regex R | --ebnf FILE | --json-object\n"
    "\n"
    "Reads JSON lines from standard input: {\"text\": \"...\"} gives {\"accepted\": true or false, \"at\": N}. accepted: "
    "the whole text\n"
    "is in the grammar's language. at: how many of its bytes a text of the language can begin with. A line that cannot be "
    "done gives\n"
    "{\"error\": \"...\"}, the rest goes on, and the exit status is 1; a grammar that cannot be used is an error on "
    "standard error.\n"
    "\n"
    "  --json-schema FILE   JSON texts that this JSON Schema accepts\n"
    "  --json-object        any JSON object\n"
    "  --regex R            texts that match this regular expression from beginning to end\n"
    "  --ebnf FILE          texts of rule root of this grammar (llama.cpp's GBNF, xgrammar's EBNF)\n"
    "  --help               this text\n"
    "\n"
    "docs/structured-output.md says what each may hold.\n";

typedef struct {
    int             given; /* how many grammars */
    td_grammar_kind kind;
    const char     *source; /* the regex, or a file's name */
    bool            is_file, help;
} options;

static void set_source(options *o, td_grammar_kind kind, const char *source, bool is_file) {
    o->given++;
    o->kind = kind;
    o->source = source;
    o->is_file = is_file;
}

/* @return 0, or the exit status of a wrong command line. */
static int parse_options(int argc, char **argv, options *o) {
    enum { SCHEMA = 1, OBJECT, REGEX, EBNF, SHOW_HELP };
    static const struct option LONG[] = {
        {"json-schema", required_argument, NULL, SCHEMA}, {"json-object", no_argument, NULL, OBJECT},
        {"regex", required_argument, NULL, REGEX},        {"ebnf", required_argument, NULL, EBNF},
        {"help", no_argument, NULL, SHOW_HELP},           {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "h", LONG, NULL)) != -1;) {
        switch (c) {
            case SCHEMA: set_source(o, TD_GRAMMAR_JSON_SCHEMA, optarg, true); break;
            case OBJECT: set_source(o, TD_GRAMMAR_JSON_OBJECT, "", false); break;
            case REGEX: set_source(o, TD_GRAMMAR_REGEX, optarg, false); break;
            case EBNF: set_source(o, TD_GRAMMAR_EBNF, optarg, true); break;
            case SHOW_HELP:
            case 'h': o->help = true; break;
            default: return 2; /* getopt has told */
        }
    }
    if (o->help) return 0;
    if (optind < argc) {
        fprintf(stderr, "tandem grammar: unexpected argument '%s'\n", argv[optind]);
        return 2;
    }
    if (o->given != 1) {
        fprintf(stderr, "tandem grammar: exactly one of --json-schema, --json-object, --regex and --ebnf is needed\n");
        return 2;
    }
    return 0;
}

/* A whole file; NULL with errno set. */
static char *read_source(const char *path, size_t *len) {
    FILE  *f = fopen(path, "rb");
    char  *text = NULL;
    size_t room = 0, n = 0;
    if (!f) return NULL;
    for (size_t got = 1; got > 0; n += got) {
        if (n == room) {
            char *more = realloc(text, room = room ? 2 * room : 4096);
            if (!more) break;
            text = more;
        }
        got = fread(text + n, 1, room - n, f);
    }
    bool bad = ferror(f) || n == room;
    fclose(f);
    if (bad) {
        free(text);
        return NULL;
    }
    *len = n;
    return text;
}

static char *check_line(void *ctx, const char *line, size_t len, td_error *err) {
    json_error_t e;
    json_t      *in;
    td_status    st = td_json_load(line, len, JSON_ALLOW_NUL, &in, &e);
    if (st != TD_OK) {
        td_fail(err, st, "not JSON: %s", e.text);
        return NULL;
    }
    const json_t *text = json_object_get(in, "text");
    json_t       *out = NULL;
    bool          accepted;
    size_t        at;
    if (!json_is_string(text))
        td_fail(err, TD_EINVAL, "the line is not {\"text\": \"...\"}");
    else if ((st = td_grammar_check(ctx, json_string_value(text), json_string_length(text), &accepted, &at)) != TD_OK)
        td_fail(err, st, st == TD_EINVAL ? "the grammar has too many readings of this text" : "out of memory");
    else if (!(out = json_pack("{s:b,s:I}", "accepted", accepted, "at", (json_int_t)at)))
        td_fail(err, TD_ENOMEM, "out of memory");
    json_decref(in);
    return td_json_answer_of(out);
}

int td_cmd_grammar(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc) return rc;
    if (o.help) {
        fputs(HELP, stdout);
        return 0;
    }
    td_error    err = {0};
    td_grammar *grammar = NULL;
    size_t      len = strlen(o.source);
    char       *file = o.is_file ? read_source(o.source, &len) : NULL;
    if (o.is_file && !file) {
        fprintf(stderr, "tandem grammar: %s: %s\n", o.source, strerror(errno));
        return 1;
    }
    td_status st = td_grammar_compile(o.kind, file ? file : o.source, len, &grammar, &err);
    free(file);
    if (st != TD_OK) {
        fprintf(stderr, "tandem grammar: %s\n", err.text);
        return 1;
    }
    rc = td_json_lines("tandem grammar", check_line, grammar);
    td_grammar_release(grammar);
    return rc;
}
