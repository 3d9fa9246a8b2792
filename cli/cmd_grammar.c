/* `tandem grammar` says which texts a grammar accepts. It reads and writes one JSON object a line. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/json_lines.h"
#include "core/error.h"
#include "core/files/json_text.h"
#include "tandem.h"

typedef struct {
    const char     *json_schema, *regex, *ebnf; /* one of them is given */
    bool            json_object;
    td_grammar_kind kind;
    const char     *source; /* the regex, or a file's name */
    bool            is_file;
} options;

#define O(member) offsetof(options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"json-schema"}, TD_FLAG_TEXT, O(json_schema), .arg = "FILE", .help = "JSON texts that this JSON Schema accepts."},
    {{"json-object"}, TD_FLAG_SWITCH, O(json_object), .help = "Any JSON object."},
    {{"regex"}, TD_FLAG_TEXT, O(regex), .arg = "R", .may_be_empty = true,
     .help = "Texts that match this regular expression from beginning to end."},
    {{"ebnf"}, TD_FLAG_TEXT, O(ebnf), .arg = "FILE",
     .help = "Texts of rule root of this grammar (llama.cpp's GBNF, xgrammar's EBNF)."},
};
/* clang-format on */

static void choose_source(options *o) {
    o->is_file = o->json_schema || o->ebnf;
    o->source = o->json_schema ? o->json_schema : o->ebnf ? o->ebnf : o->regex ? o->regex : "";
    o->kind = o->json_schema ? TD_GRAMMAR_JSON_SCHEMA
              : o->ebnf      ? TD_GRAMMAR_EBNF
              : o->regex     ? TD_GRAMMAR_REGEX
                             : TD_GRAMMAR_JSON_OBJECT;
}

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_flag_group         group = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o};
    const td_flag_command command = {.name = "grammar",
                                     .synopsis = "--json-schema FILE | --regex R | --ebnf FILE | --json-object",
                                     .about =
                                         "Reads JSON lines from standard input: {\"text\": \"...\"} gives {\"accepted\": "
                                         "true or false, \"at\": N}. accepted: the whole text\n"
                                         "is in the grammar's language. at: how many of its bytes a text of the language "
                                         "can begin with. A line that cannot be done gives\n"
                                         "{\"error\": \"...\"}, the rest goes on, and the exit status is 1; a grammar that "
                                         "cannot be used is an error on standard error.\n",
                                     .after = "docs/structured-output.md says what each may hold.\n",
                                     .groups = &group,
                                     .n_groups = 1};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    choose_source(o);
    if ((o->json_schema != NULL) + (o->regex != NULL) + (o->ebnf != NULL) + o->json_object == 1) return -1;
    fprintf(stderr, "tandem grammar: exactly one of --json-schema, --json-object, --regex and --ebnf is needed\n");
    return 2;
}

/* Reads a whole file. Returns NULL and sets errno when that fails. */
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
    if (rc >= 0) return rc;
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
