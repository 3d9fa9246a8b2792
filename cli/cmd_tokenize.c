/* `tandem tokenize` turns text into token ids and back. It reads and writes one JSON object a line. */
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
    const char *dir;
    bool        decode, add_special, no_parse_special, skip_special;
} options;

#define O(member) offsetof(options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"tokenizer-path", "model-path"}, TD_FLAG_TEXT, O(dir), .arg = "DIR",
     .help = "Folder with tokenizer.json, or tiktoken.model and tokenizer_config.json. Required."},
    {{"decode"}, TD_FLAG_SWITCH, O(decode), .help = "Ids to text."},
    {{"add-special"}, TD_FLAG_SWITCH, O(add_special), .help = "Encode: put the model's BOS/EOS around the text."},
    {{"no-parse-special"}, TD_FLAG_SWITCH, O(no_parse_special),
     .help = "Encode: special tokens in the text (\"<|user|>\") are ordinary text."},
    {{"skip-special"}, TD_FLAG_SWITCH, O(skip_special), .help = "Decode: leave special tokens out."},
};
/* clang-format on */

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_flag_group         group = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o};
    const td_flag_command command = {.name = "tokenize",
                                     .synopsis = "--tokenizer-path DIR [--decode] [flags]",
                                     .about =
                                         "Reads JSON lines from standard input: {\"text\": \"...\"} gives {\"ids\": [...]}; "
                                         "with --decode, {\"ids\": [...]} gives\n"
                                         "{\"text\": \"...\"}. A line that cannot be done gives {\"error\": \"...\"}, the "
                                         "rest goes on, and the exit status is 1.\n",
                                     .groups = &group,
                                     .n_groups = 1};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0 || o->dir) return rc;
    fprintf(stderr, "tandem tokenize: --tokenizer-path is missing; --help tells more\n");
    return 2;
}

typedef struct {
    const td_tokenizer *tok;
    const options      *o;
} tokenizing;

static json_t *encode_object(const tokenizing *t, const json_t *in, td_error *err) {
    const json_t *text = json_object_get(in, "text");
    uint32_t     *ids = NULL;
    size_t        n = 0;
    if (!json_is_string(text)) {
        td_fail(err, TD_EINVAL, "the line is not an object with a string \"text\"");
        return NULL;
    }
    td_status st = td_tokenizer_encode(t->tok, json_string_value(text), json_string_length(text), !t->o->no_parse_special,
                                       t->o->add_special, &ids, &n);
    if (st != TD_OK) {
        td_fail(err, st, "%s", td_status_text(st));
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return json_pack("{s:o}", "ids", list);
}

static json_t *decode_object(const tokenizing *t, const json_t *in, td_error *err) {
    const json_t *list = json_object_get(in, "ids");
    size_t        n = json_array_size(list), text_len = 0;
    uint32_t     *ids = malloc((n + 1) * sizeof *ids);
    char         *text = NULL;
    bool          integers = json_is_array(list);
    if (!ids) return NULL;
    for (size_t i = 0; integers && i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t    value = json_integer_value(id);
        integers = json_is_integer(id);
        /* An id that does not fit into 32 bits becomes UINT32_MAX, which no vocabulary has. */
        ids[i] = value >= 0 && value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
    }
    td_status st = integers ? td_tokenizer_decode(t->tok, ids, n, t->o->skip_special, &text, &text_len) : TD_EINVAL;
    free(ids);
    if (st != TD_OK) {
        td_fail(err, st, "%s",
                !integers         ? "the line is not an object with a list of integers \"ids\""
                : st == TD_EINVAL ? "an id is outside the vocabulary"
                                  : td_status_text(st));
        return NULL;
    }
    json_t *out = json_pack("{s:o}", "text", json_stringn(text, text_len));
    free(text);
    return out;
}

static char *tokenize_line(void *ctx, const char *line, size_t len, td_error *err) {
    const tokenizing *t = ctx;
    json_error_t      e;
    json_t           *in;
    td_status         st = td_json_load(line, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &in, &e);
    if (st != TD_OK) {
        td_fail(err, st, "%s", e.text);
        return NULL;
    }
    json_t *out = t->o->decode ? decode_object(t, in, err) : encode_object(t, in, err);
    json_decref(in);
    return td_json_answer_of(out);
}

int td_cmd_tokenize(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    td_tokenizer *tok = NULL;
    td_error      err = {0};
    if (td_tokenizer_open(o.dir, &tok, &err) != TD_OK) {
        fprintf(stderr, "tandem tokenize: %s\n", err.text);
        return 1;
    }
    rc = td_json_lines("tandem tokenize", tokenize_line, &(tokenizing){.tok = tok, .o = &o});
    td_tokenizer_close(tok);
    return rc;
}
