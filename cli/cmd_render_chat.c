/* `tandem render-chat`: chat requests to prompt texts, one JSON object a line. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "tandem.h"

static const char HELP[] =
    "usage: tandem render-chat --chat-template FILE [--bos-token S] [--eos-token S]\n"
    "\n"
    "Reads chat requests from standard input, one JSON object a line: {\"messages\": [...], \"tools\": [...], ...}. Writes\n"
    "{\"text\": \"...\"} for each. A request that cannot be rendered gives {\"error\": \"...\"}, the rest goes on, and the exit\n"
    "status is 1. Members of a request are variables of the template, and the members of its \"chat_template_kwargs\" too.\n"
    "\n"
    "  --chat-template FILE   a Jinja template, or a tokenizer_config.json, whose chat_template, bos_token and eos_token are used\n"
    "  --bos-token S          the template's bos_token\n"
    "  --eos-token S          the template's eos_token\n"
    "  --help                 this text\n";

typedef struct {
    const char *file, *bos, *eos;
    bool        help;
} options;

/* A template file as read. The strings are config's where there is one. */
typedef struct {
    char       *bytes;
    size_t      n;
    json_t     *config; /* NULL: a plain template */
    const char *source, *bos, *eos;
    size_t      source_len;
} template_file;

/* @return 0, or the exit status of a wrong command line. */
static int parse_options(int argc, char **argv, options *o) {
    enum { TEMPLATE = 1, BOS, EOS, SHOW_HELP };
    static const struct option LONG[] = {
        {"chat-template", required_argument, NULL, TEMPLATE},
        {"bos-token", required_argument, NULL, BOS},
        {"eos-token", required_argument, NULL, EOS},
        {"help", no_argument, NULL, SHOW_HELP},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "h", LONG, NULL)) != -1;) {
        switch (c) {
        case TEMPLATE: o->file = optarg; break;
        case BOS: o->bos = optarg; break;
        case EOS: o->eos = optarg; break;
        case SHOW_HELP:
        case 'h': o->help = true; break;
        default: return 2; /* getopt has told */
        }
    }
    if (o->help) return 0;
    if (optind < argc) {
        fprintf(stderr, "tandem render-chat: unexpected argument '%s'\n", argv[optind]);
        return 2;
    }
    if (!o->file) {
        fprintf(stderr, "tandem render-chat: --chat-template is missing; --help tells more\n");
        return 2;
    }
    return 0;
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

/* A special token stands there as a string or as an object with its content. */
static const char *token_of(const json_t *config, const char *name) {
    const json_t *value = json_object_get(config, name);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_string_value(value);
}

/* The template of a tokenizer_config.json: a string, or the "default" one of a list of {"name", "template"}. */
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
    t->config = json_loadb(t->bytes, t->n, JSON_ALLOW_NUL, &e);
    if (!t->config) {
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

/* Answer one line on stdout. @return whether it could be done. */
static bool do_line(const td_chat_template *tmpl, const char *bos, const char *eos, const char *line, size_t len) {
    td_error  err = {0};
    char     *text = NULL;
    size_t    text_len = 0;
    td_status status = td_chat_template_render(tmpl, line, len, bos, eos, &text, &text_len, &err);
    json_t   *out = status == TD_OK ? json_pack("{s:o}", "text", json_stringn(text, text_len)) : NULL;
    if (status != TD_OK) out = json_pack("{s:s}", "error", err.text);
    if (!out || json_dumpf(out, stdout, 0) != 0) fputs("{\"error\": \"the text cannot be written as JSON\"}", stdout);
    putchar('\n');
    json_decref(out);
    free(text);
    return status == TD_OK && out;
}

static int render_lines(const td_chat_template *tmpl, const char *bos, const char *eos) {
    char  *line = NULL;
    size_t room = 0;
    bool   all_done = true;
    for (ssize_t n; (n = getline(&line, &room, stdin)) >= 0;) {
        if (n > 0 && line[n - 1] == '\n') n--;
        if (!do_line(tmpl, bos, eos, line, (size_t)n)) all_done = false;
        fflush(stdout); /* someone may wait for each line */
        if (ferror(stdout)) break;
    }
    free(line);
    if (ferror(stdin) || ferror(stdout)) {
        perror("tandem render-chat");
        return 1;
    }
    return all_done ? 0 : 1;
}

int td_cmd_render_chat(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc) return rc;
    if (o.help) {
        fputs(HELP, stdout);
        return 0;
    }
    template_file     file = {0};
    td_chat_template *tmpl = NULL;
    td_error          err = {0};
    rc = 1;
    if (load_template(o.file, &file)) {
        if (td_chat_template_compile(file.source, file.source_len, &tmpl, &err) != TD_OK)
            fprintf(stderr, "tandem render-chat: %s: %s\n", o.file, err.text);
        else
            rc = render_lines(tmpl, o.bos ? o.bos : file.bos, o.eos ? o.eos : file.eos);
    }
    td_chat_template_free(tmpl);
    json_decref(file.config);
    free(file.bytes);
    return rc;
}
