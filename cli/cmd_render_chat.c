/* `tandem render-chat` makes prompt texts of chat requests. It reads and writes one JSON object a line. */
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
    const char *file, *bos, *eos;
} options;

/* A template file that was read. The strings point into config, or into bytes if config is NULL. */
typedef struct {
    char       *bytes;
    size_t      n;
    json_t     *config; /* NULL: a plain template */
    const char *source, *bos, *eos;
    size_t      source_len;
} template_file;

#define O(member) offsetof(options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"chat-template"}, TD_FLAG_TEXT, O(file), .arg = "FILE",
     .help = "A Jinja template, or a tokenizer_config.json, whose chat_template, bos_token and eos_token are used. "
             "Required."},
    {{"bos-token"}, TD_FLAG_TEXT, O(bos), .arg = "S", .may_be_empty = true, .help = "The template's bos_token."},
    {{"eos-token"}, TD_FLAG_TEXT, O(eos), .arg = "S", .may_be_empty = true, .help = "The template's eos_token."},
};
/* clang-format on */

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_flag_group         group = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o};
    const td_flag_command command = {.name = "render-chat",
                                     .synopsis = "--chat-template FILE [--bos-token S] [--eos-token S]",
                                     .about =
                                         "Reads chat requests from standard input, one JSON object a line: {\"messages\": "
                                         "[...], \"tools\": [...], ...}. Writes\n"
                                         "{\"text\": \"...\"} for each. A request that cannot be rendered gives {\"error\": "
                                         "\"...\"}, the rest goes on, and the exit\n"
                                         "status is 1. Members of a request are variables of the template, and the members "
                                         "of its \"chat_template_kwargs\" too.\n",
                                     .groups = &group,
                                     .n_groups = 1};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0 || o->file) return rc;
    fprintf(stderr, "tandem render-chat: --chat-template is missing; --help tells more\n");
    return 2;
}

static bool read_file(const char *path, char **bytes, size_t *n) {
    FILE  *f = fopen(path, "rb");
    size_t room = 1 << 16;
    *n = 0;
    *bytes = f ? malloc(room) : NULL;
    while (*bytes) {
        *n += fread(*bytes + *n, 1, room - *n, f);
        if (*n < room) break;
        char *more = realloc(*bytes, room *= 2);
        if (!more) free(*bytes);
        *bytes = more;
    }
    bool done = *bytes && !ferror(f);
    if (f) fclose(f);
    return done;
}

/* Returns the text of a special token, which the file has as a string or as an object with "content". */
static const char *token_of(const json_t *config, const char *name) {
    const json_t *value = json_object_get(config, name);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_string_value(value);
}

/* Returns the template of a tokenizer_config.json: a string, or the one named "default" in a list of {"name", "template"}.
 */
static const json_t *template_of(const json_t *config) {
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t k = 0; k < json_array_size(value); k++) {
        const json_t *item = json_array_get(value, k);
        const char   *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default")) return json_object_get(item, "template");
    }
    return value;
}

static bool is_config(const char *path) {
    size_t n = strlen(path);
    return n >= 5 && !strcmp(path + n - 5, ".json");
}

static bool load_template(const char *path, template_file *t) {
    json_error_t e;
    if (!read_file(path, &t->bytes, &t->n)) {
        fprintf(stderr, "tandem render-chat: %s: %s\n", path, strerror(errno));
        return false;
    }
    t->source = t->bytes;
    t->source_len = t->n;
    if (!is_config(path)) return true;
    if (td_json_load(t->bytes, t->n, JSON_ALLOW_NUL, &t->config, &e) != TD_OK) {
        fprintf(stderr, "tandem render-chat: %s: line %d: %s\n", path, e.line, e.text);
        return false;
    }
    const json_t *source = template_of(t->config);
    if (!json_is_string(source)) {
        fprintf(stderr, "tandem render-chat: %s has no chat_template\n", path);
        return false;
    }
    t->source = json_string_value(source);
    t->source_len = json_string_length(source);
    t->bos = token_of(t->config, "bos_token");
    t->eos = token_of(t->config, "eos_token");
    return true;
}

typedef struct {
    const td_chat_template *tmpl;
    const char             *bos, *eos;
} renderer;

static char *render_line(void *ctx, const char *line, size_t len, td_error *err) {
    const renderer *r = ctx;
    char           *text = NULL;
    size_t          text_len = 0;
    if (td_chat_template_render(r->tmpl, line, len, r->bos, r->eos, &text, &text_len, err) != TD_OK) return NULL;
    json_t *out = json_pack("{s:o}", "text", json_stringn(text, text_len));
    free(text);
    if (!out) td_fail(err, TD_ENOMEM, "the text cannot be written as JSON");
    return td_json_answer_of(out);
}

int td_cmd_render_chat(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    template_file     file = {0};
    td_chat_template *tmpl = NULL;
    td_error          err = {0};
    rc = 1;
    if (load_template(o.file, &file)) {
        if (td_chat_template_compile(file.source, file.source_len, &tmpl, &err) != TD_OK)
            fprintf(stderr, "tandem render-chat: %s: %s\n", o.file, err.text);
        else
            rc = td_json_lines("tandem render-chat", render_line,
                               &(renderer){.tmpl = tmpl, .bos = o.bos ? o.bos : file.bos, .eos = o.eos ? o.eos : file.eos});
    }
    td_chat_template_free(tmpl);
    json_decref(file.config);
    free(file.bytes);
    return rc;
}
