#include "cli/flags.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

#define EXIT_USAGE 2
#define NAME_MAX_LEN 64 /* longest name that is compared with a misspelt one */

/* ---- one value ---- */

/* Returns what `value` stands for among the choices, or NULL if it is none of them. */
static const char *choose(const char *const *choices, const char *value) {
    size_t n = strlen(value);
    for (; *choices; choices++) {
        const char *to = strchr(*choices, '=');
        if (!to && !strcmp(*choices, value)) return *choices;
        if (to && (size_t)(to - *choices) == n && !memcmp(*choices, value, n)) return to + 1;
    }
    return NULL;
}

/* Lists the names of the choices with ", " between them, each enclosed in `quote`. */
static void list_choices(td_jbuf *b, const char *const *choices, const char *quote) {
    for (size_t i = 0; choices[i]; i++)
        td_jbuf_printf(b, "%s%s%.*s%s", i ? ", " : "", quote, (int)strcspn(choices[i], "="), choices[i], quote);
}

static td_status refuse_choice(const td_flag *f, const char *prefix, const char *value, td_error *err) {
    if (f->refusal) return td_fail(err, TD_ENOTSUP, "--%s%s %.60s %s", prefix, f->names[0], value, f->refusal);
    td_jbuf list = {0};
    list_choices(&list, f->choices, "");
    td_status st = td_fail(err, TD_EINVAL, "--%s%s must be one of %.*s, not '%.60s'", prefix, f->names[0], (int)list.len,
                           list.data, value);
    td_jbuf_free(&list);
    return st;
}

static td_status set_number(const td_flag *f, const char *prefix, void *to, const char *value, td_error *err) {
    const bool may_be_auto = f->type == TD_FLAG_U32_AUTO;
    if (may_be_auto && !strcmp(value, "auto")) {
        *(uint32_t *)to = UINT32_MAX;
        return TD_OK;
    }
    char     *end;
    bool      real = f->type == TD_FLAG_REAL;
    long long whole = 0;
    errno = 0;
    double x = real ? strtod(value, &end) : (double)(whole = strtoll(value, &end, 10));
    if (end == value || *end || errno || !isfinite(x))
        return td_fail(err, TD_EINVAL, "--%s%s needs %s, not '%.60s'", prefix, f->names[0],
                       real          ? "a number"
                       : may_be_auto ? "a whole number or auto"
                                     : "a whole number",
                       value);
    if (x < f->min || x > f->max)
        return td_fail(err, TD_EINVAL, "--%s%s must be between %.15g and %.15g, not %.60s", prefix, f->names[0], f->min,
                       f->max, value);
    if (whole < 0) whole = 0;
    switch (f->type) {
        case TD_FLAG_U16: *(uint16_t *)to = (uint16_t)whole; break;
        case TD_FLAG_U32:
        case TD_FLAG_U32_AUTO: *(uint32_t *)to = (uint32_t)whole; break;
        case TD_FLAG_U64: *(uint64_t *)to = (uint64_t)whole; break;
        default: *(double *)to = x;
    }
    return TD_OK;
}

static td_status set_switch(const td_flag *f, const char *prefix, void *to, const char *value, td_error *err) {
    static const char *const words[2][3] = {{"false", "no", "off"}, {"true", "yes", "on"}};
    for (size_t on = 0; on < 2; on++)
        for (size_t i = 0; i < 3; i++)
            if (!strcasecmp(value, words[on][i])) {
                if (to) *(bool *)to = on;
                return TD_OK;
            }
    return td_fail(err, TD_EINVAL, "--%s%s must be true or false, not '%.60s'", prefix, f->names[0], value);
}

td_status td_flag_set(const td_flag *f, const char *prefix, void *options, const char *value, td_error *err) {
    void *to = f->offset == TD_FLAG_NOWHERE ? NULL : (char *)options + f->offset;
    if (!prefix) prefix = "";
    if (f->refusal && !f->choices) return td_fail(err, TD_ENOTSUP, "--%s%s %s", prefix, f->names[0], f->refusal);
    if (f->choices) {
        const char *chosen = choose(f->choices, value);
        if (!chosen) return refuse_choice(f, prefix, value, err);
        value = chosen;
    }
    if (f->type == TD_FLAG_SWITCH) return set_switch(f, prefix, to, value, err);
    bool text = f->type == TD_FLAG_TEXT || f->type == TD_FLAG_TEXTS;
    if (text && !*value && !f->may_be_empty) return td_fail(err, TD_EINVAL, "--%s%s needs a value", prefix, f->names[0]);
    if (!to) return TD_OK;
    if (f->type == TD_FLAG_TEXT) {
        *(const char **)to = value;
        return TD_OK;
    }
    if (!text) return set_number(f, prefix, to, value, err);
    td_flag_texts *list = to;
    if (list->n == TD_FLAG_TEXTS_MAX)
        return td_fail(err, TD_EINVAL, "at most %d --%s%s", TD_FLAG_TEXTS_MAX, prefix, f->names[0]);
    list->text[list->n++] = value;
    return TD_OK;
}

/* ---- a command line ---- */

static bool is_there(const td_flag_group *g, const td_flag *f) {
    return f->names[0] && (!f->in || f->in & g->in);
}

static const char *prefix_of(const td_flag_group *g) {
    return g->prefix ? g->prefix : "";
}

typedef struct {
    td_flag_group *group;
    const td_flag *flag; /* NULL: no flag has this name, or several begin with it */
} found_flag;

/* Finds the flag whose name is text[0, n), or else the only one whose name begins with it. */
static found_flag find_flag(const td_flag_command *c, const char *text, size_t n) {
    found_flag begins = {0};
    size_t     n_begin = 0;
    for (size_t i = 0; i < c->n_groups; i++) {
        td_flag_group *g = &c->groups[i];
        const char    *name = text;
        size_t         left = n, n_prefix = strlen(prefix_of(g));
        if (n_prefix >= n || memcmp(text, prefix_of(g), n_prefix)) continue;
        name += n_prefix;
        left -= n_prefix;
        for (const td_flag *f = g->flags; f < g->flags + g->n; f++)
            for (size_t k = 0; is_there(g, f) && f->names[k]; k++) {
                if (strncmp(f->names[k], name, left) != 0) continue;
                if (!f->names[k][left]) return (found_flag){g, f};
                n_begin += begins.flag != f;
                begins = (found_flag){g, f};
            }
    }
    return n_begin == 1 ? begins : (found_flag){0};
}

/* Levenshtein's distance, computed one row of its table at a time. */
static size_t distance(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t row[NAME_MAX_LEN + 1];
    for (size_t j = 0; j <= n_b; j++) row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n_b];
}

size_t td_name_distance(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    return n_a > NAME_MAX_LEN || n_b > NAME_MAX_LEN ? SIZE_MAX : distance(a, n_a, b, n_b);
}

static td_status fail_unknown(const td_flag_command *c, const char *arg, td_error *err) {
    const char *name = arg + strspn(arg, "-"), *nearest = NULL, *prefix = "";
    size_t      n = strcspn(name, "="), least = n / 2 + 1; /* a name further away than this is another word */
    if (least > 4) least = 4;
    for (size_t i = 0; i < c->n_groups; i++)
        for (const td_flag *f = c->groups[i].flags; f < c->groups[i].flags + c->groups[i].n; f++)
            for (size_t k = 0; is_there(&c->groups[i], f) && f->names[k]; k++) {
                char   whole[NAME_MAX_LEN + 1];
                size_t n_whole = (size_t)snprintf(whole, sizeof whole, "%s%s", prefix_of(&c->groups[i]), f->names[k]);
                if (n > NAME_MAX_LEN || n_whole > NAME_MAX_LEN) continue;
                size_t d = distance(name, n, whole, n_whole);
                if (d >= least) continue;
                least = d;
                nearest = f->names[k];
                prefix = prefix_of(&c->groups[i]);
            }
    if (!nearest) return td_fail(err, TD_EINVAL, "there is no flag '%.60s'; 'tandem %s --help' lists them", arg, c->name);
    return td_fail(err, TD_EINVAL, "there is no flag '%.60s'; is --%s%s meant? 'tandem %s --help' lists them", arg, prefix,
                   nearest, c->name);
}

/* Finds the flag of an argument whose name ends at arg[n]: "--name", or "-n" with one or two letters. */
static found_flag find_on_line(const td_flag_command *c, const char *arg, size_t n) {
    if (!strncmp(arg, "--", 2)) return n > 2 ? find_flag(c, arg + 2, n - 2) : (found_flag){0};
    if (n < 2 || n > 3) return (found_flag){0};
    found_flag at = find_flag(c, arg + 1, n - 1);
    for (size_t k = 0; at.flag && at.flag->names[k]; k++)
        if (strlen(at.flag->names[k]) == n - 1 && !memcmp(at.flag->names[k], arg + 1, n - 1)) return at;
    return (found_flag){0};
}

const char *td_flag_strings_keep(td_flag_strings *s, const char *text) {
    char **list = realloc(s->text, (s->n + 1) * sizeof *list);
    if (!list) return NULL;
    s->text = list;
    char *copy = strdup(text);
    if (copy) list[s->n++] = copy;
    return copy;
}

void td_flag_strings_free(td_flag_strings *s) {
    for (size_t i = 0; i < s->n; i++) free(s->text[i]);
    free(s->text);
    *s = (td_flag_strings){0};
}

/* The words from argv[*i] on, up to the next flag, with commas between them. *i then counts the last of them. NULL: memory
 * is short. */
static const char *join_words(const td_flag_command *c, int argc, char **argv, int *i) {
    td_jbuf list = {0};
    td_jbuf_puts(&list, argv[*i]);
    while (*i + 1 < argc && argv[*i + 1][0] != '-') td_jbuf_printf(&list, ",%s", argv[++*i]);
    td_jbuf_put(&list, "", 1);
    const char *kept = list.failed ? NULL : td_flag_strings_keep(c->strings, list.data);
    td_jbuf_free(&list);
    return kept;
}

td_status td_flags_parse(const td_flag_command *c, int argc, char **argv, td_flag_help *help, td_error *err) {
    *help = TD_HELP_NONE;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            *help = TD_HELP_TEXT;
            return TD_OK;
        }
        if (!strcmp(arg, "--help-all")) {
            *help = TD_HELP_ALL;
            return TD_OK;
        }
        if (!strcmp(arg, "--help-json")) {
            *help = TD_HELP_JSON;
            return TD_OK;
        }
        if (arg[0] != '-' || !arg[1]) {
            if (!c->operand) return td_fail(err, TD_EINVAL, "'%.60s' is not a flag; flags start with --", arg);
            if (*c->operand)
                return td_fail(err, TD_EINVAL, "'%.60s' is one argument too many, beside '%.60s'", arg, *c->operand);
            *c->operand = arg;
            continue;
        }
        size_t      n = strcspn(arg, "=");
        const char *value = arg[n] ? arg + n + 1 : NULL;
        found_flag  at = find_on_line(c, arg, n);
        if (!at.flag) return fail_unknown(c, arg, err);
        if (at.flag->type == TD_FLAG_SWITCH) {
            if (value) return td_fail(err, TD_EINVAL, "--%s%s takes no value", prefix_of(at.group), at.flag->names[0]);
            value = "true";
        } else if (!value && ++i == argc) {
            return td_fail(err, TD_EINVAL, "%.60s needs a value", arg);
        } else if (!value) {
            value = at.flag->takes_words ? join_words(c, argc, argv, &i) : argv[i];
            if (!value) return td_fail(err, TD_ENOMEM, "out of memory");
        }
        TD_TRY(td_flag_set(at.flag, at.group->prefix, at.group->options, value, err));
        if (at.group->given) at.group->given[at.flag - at.group->flags] = TD_GIVEN;
        at.group->n_given++;
    }
    return TD_OK;
}

int td_flags_take(const td_flag_command *c, int argc, char **argv) {
    td_error     err = {0};
    td_flag_help help;
    if (td_flags_parse(c, argc, argv, &help, &err) != TD_OK) {
        fprintf(stderr, "tandem %s: %s\n", c->name, err.text);
        return EXIT_USAGE;
    }
    if (help == TD_HELP_NONE) return -1;
    td_flags_print_help(c, help, stdout);
    return 0;
}

/* ---- what the tables print ---- */

/* Whether the flag is known but no value of it is supported yet. */
static bool is_refused(const td_flag *f) {
    return f->refusal && !f->choices;
}

static void print_choices(FILE *f, const char *const *choices, const char *quote) {
    td_jbuf list = {0};
    list_choices(&list, choices, quote);
    fprintf(f, "%.*s", (int)list.len, list.data);
    td_jbuf_free(&list);
}

/* The dashes before a name: one before names of one or two letters. */
static const char *dashes(const td_flag_group *g, const char *name) {
    return !g->prefix && strlen(name) <= 2 ? "-" : "--";
}

/* Name k as help shows it, or NULL behind the last. Names with a prefix have no short forms, which stand last in a row. */
static const char *shown_name(const td_flag_group *g, const td_flag *f, size_t k) {
    return f->names[k] && g->prefix && strlen(f->names[k]) <= 2 ? NULL : f->names[k];
}

/* What makes a text stand out, and ends that: nothing where it is not read on a terminal, or no colours are wanted. */
typedef struct {
    const char *strong, *plain;
} emphasis;

static emphasis emphasis_for(FILE *f) {
    const char *term = getenv("TERM"), *without = getenv("NO_COLOR");
    bool        on = isatty(fileno(f)) && term && strcmp(term, "dumb") != 0 && !(without && *without);
    return on ? (emphasis){"\033[1m", "\033[0m"} : (emphasis){"", ""};
}

/* Prints a text in lines of TD_HELP_COLUMNS. The first line continues at column `at`; those after it begin with `indent`
 * blanks. Ends with a line break. */
static void print_wrapped(const char *text, size_t at, size_t indent, FILE *out) {
    bool first = true;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (!first && at + 1 + n > TD_HELP_COLUMNS) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", (int)n, text);
        at += n + !first;
        first = false;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

/* Prints the sentences of a command. Lines that begin with a blank are rows of a list, "  name  text": their text is wrapped
 * under itself. Other lines are joined until an empty one. */
static void print_about(const char *text, FILE *out) {
    td_jbuf paragraph = {0};
    while (*text) {
        size_t n = strcspn(text, "\n");
        bool   is_row = *text == ' ' || n == 0;
        if (is_row && paragraph.len) {
            td_jbuf_put(&paragraph, "", 1);
            print_wrapped(paragraph.data, 0, 0, out);
            paragraph.len = 0;
        }
        if (is_row) {
            size_t lead = strspn(text, " "), name = lead;
            while (name < n && (text[name] != ' ' || text[name + 1] != ' ')) name++;
            size_t body = name < n ? name + strspn(text + name, " ") : lead;
            char  *row = strndup(text + body, n - body);
            fprintf(out, "%.*s", (int)body, text);
            print_wrapped(row ? row : "", body, body, out);
            free(row);
        } else {
            td_jbuf_printf(&paragraph, "%s%.*s", paragraph.len ? " " : "", (int)n, text);
        }
        text += n + (text[n] != 0);
    }
    if (paragraph.len) {
        td_jbuf_put(&paragraph, "", 1);
        print_wrapped(paragraph.data, 0, 0, out);
    }
    td_jbuf_free(&paragraph);
}

static void print_flag_help(const td_flag_group *g, const td_flag *f, emphasis e, FILE *out) {
    td_jbuf text = {0};
    for (size_t k = 0; shown_name(g, f, k); k++)
        td_jbuf_printf(&text, "%s%s%s%s", k ? ", " : "", dashes(g, f->names[k]), prefix_of(g), f->names[k]);
    fprintf(out, "  %s%.*s%s%s%s\n", e.strong, (int)text.len, text.data, e.plain, f->arg ? " " : "", f->arg ? f->arg : "");
    text.len = 0;
    if (!g->prefix) {
        td_jbuf_printf(&text, "%s%s", is_refused(f) ? "Not supported yet. " : "", f->help);
        if (f->by_default) td_jbuf_printf(&text, " (default: %s)", f->by_default);
        td_jbuf_put(&text, "", 1);
        fprintf(out, "        ");
        print_wrapped(text.data, 8, 8, out);
        text.len = 0;
        if (f->choices) {
            list_choices(&text, f->choices, "");
            td_jbuf_put(&text, "", 1);
            fprintf(out, "        Values: ");
            print_wrapped(text.data, 16, 16, out);
        }
    }
    td_jbuf_free(&text);
}

/* Whether there are rows for this command below a title. */
static bool has_rows(const td_flag_group *g, const td_flag *title) {
    for (const td_flag *f = title + 1; f < g->flags + g->n && f->names[0]; f++)
        if (is_there(g, f)) return true;
    return false;
}

static void print_help_text(const td_flag_command *c, bool all, FILE *out) {
    emphasis e = emphasis_for(out);
    fprintf(out, "%susage: tandem %s%s %s\n\n", e.strong, c->name, e.plain, c->synopsis);
    print_about(c->about, out);
    all |= !c->short_help;
    if (!all) fputc('\n', out);
    for (size_t i = 0; i < c->n_groups; i++) {
        const td_flag_group *g = &c->groups[i];
        if (all && g->prefix) {
            fputc('\n', out);
            print_wrapped(g->about, 0, 0, out);
        } else if (all && g->n && g->flags[0].names[0]) {
            fputc('\n', out);
        }
        for (const td_flag *f = g->flags; f < g->flags + g->n; f++) {
            if (is_there(g, f) && (all || f->basic))
                print_flag_help(g, f, e, out);
            else if (all && !g->prefix && !f->names[0] && has_rows(g, f))
                fprintf(out, "\n%s%s%s\n", e.strong, f->help, e.plain);
        }
    }
    fprintf(out, "\n  %s--help, -h%s\n        Print this.\n", e.strong, e.plain);
    if (!all) fprintf(out, "  %s--help-all%s\n        Print all flags.\n", e.strong, e.plain);
    if (!c->after) return;
    fputc('\n', out);
    print_about(c->after, out);
}

static void describe_flag(const td_flag_group *g, const td_flag *f, const char *title, td_jbuf *b) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "title", title);
    td_jw_key(b, "names");
    td_jw_open(b, '[');
    for (size_t k = 0; shown_name(g, f, k); k++) {
        char name[NAME_MAX_LEN + 3];
        snprintf(name, sizeof name, "%s%s%s", dashes(g, f->names[k]), prefix_of(g), f->names[k]);
        td_jw_str(b, name);
    }
    td_jw_close(b, ']');
    td_jw_member_str(b, "arg", f->type == TD_FLAG_SWITCH ? NULL : f->arg);
    td_jw_member_str(b, "default", f->by_default);
    td_jw_member_bool(b, "supported", !is_refused(f));
    td_jw_member_bool(b, "repeats", f->type == TD_FLAG_TEXTS);
    td_jw_member_str(b, "help", g->prefix ? NULL : f->help);
    td_jw_key(b, "values");
    td_jw_open(b, '[');
    for (size_t i = 0; f->choices && f->choices[i]; i++) td_jw_text(b, f->choices[i], strcspn(f->choices[i], "="));
    td_jw_close(b, ']');
    td_jw_close(b, '}');
}

static void describe(const td_flag_command *c, td_jbuf *b) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "name", c->name);
    td_jw_member_str(b, "synopsis", c->synopsis);
    td_jw_member_str(b, "about", c->about);
    td_jw_member_str(b, "after", c->after);
    td_jw_member_bool(b, "operand", c->operand != NULL);
    td_jw_key(b, "flags");
    td_jw_open(b, '[');
    for (size_t i = 0; i < c->n_groups; i++) {
        const td_flag_group *g = &c->groups[i];
        const char          *title = g->prefix ? g->about : NULL;
        for (const td_flag *f = g->flags; f < g->flags + g->n; f++) {
            if (!f->names[0] && !g->prefix) title = f->help;
            if (is_there(g, f)) describe_flag(g, f, title, b);
        }
    }
    td_jw_close(b, ']');
    td_jw_close(b, '}');
}

void td_flags_print_help(const td_flag_command *c, td_flag_help help, FILE *out) {
    if (help != TD_HELP_JSON) {
        print_help_text(c, help == TD_HELP_ALL, out);
        return;
    }
    td_jbuf b = {0};
    describe(c, &b);
    fprintf(out, "%.*s\n", (int)b.len, b.data);
    td_jbuf_free(&b);
}

void td_flags_print_markdown(const td_flag_command *c, FILE *out) {
    for (size_t i = 0; i < c->n_groups; i++) {
        const td_flag_group *g = &c->groups[i];
        for (const td_flag *f = g->flags; f < g->flags + g->n; f++) {
            if (!f->names[0] && has_rows(g, f))
                fprintf(out, "\n## %s\n\n| flag | values | default | what it does |\n|---|---|---|---|\n", f->help);
            if (!is_there(g, f)) continue;
            fprintf(out, "| ");
            for (size_t k = 0; f->names[k]; k++)
                fprintf(out, "%s`%s%s`", k ? ", " : "", dashes(g, f->names[k]), f->names[k]);
            fprintf(out, " | ");
            if (f->choices)
                print_choices(out, f->choices, "`");
            else
                fprintf(out, "%s", f->type == TD_FLAG_SWITCH ? "switch" : f->arg);
            fprintf(out, " | %s | %s%s |\n", f->by_default ? f->by_default : "", is_refused(f) ? "Not supported yet. " : "",
                    f->help);
        }
    }
}

/* Writes the value of a flag that has no place in the options: it is always its default. */
static void write_fixed(const td_flag *f, td_jbuf *b) {
    if (is_refused(f) || !f->by_default)
        td_jw_null(b);
    else if (f->type == TD_FLAG_SWITCH)
        td_jw_bool(b, !strcmp(f->by_default, "on"));
    else if (f->type == TD_FLAG_TEXT)
        td_jw_str(b, f->by_default);
    else
        td_jw_int(b, strtoll(f->by_default, NULL, 10));
}

static void write_value(const td_flag *f, const void *at, td_jbuf *b) {
    switch (f->type) {
        case TD_FLAG_SWITCH: td_jw_bool(b, *(const bool *)at); break;
        case TD_FLAG_U16: td_jw_int(b, *(const uint16_t *)at); break;
        case TD_FLAG_U32: td_jw_int(b, *(const uint32_t *)at); break;
        case TD_FLAG_U32_AUTO:
            if (*(const uint32_t *)at == UINT32_MAX)
                td_jw_str(b, "auto");
            else
                td_jw_int(b, *(const uint32_t *)at);
            break;
        case TD_FLAG_U64: td_jw_int(b, (int64_t) * (const uint64_t *)at); break;
        case TD_FLAG_REAL: td_jw_real(b, *(const double *)at, 15); break;
        case TD_FLAG_TEXT: td_jw_str(b, *(const char *const *)at); break;
        case TD_FLAG_TEXTS: {
            const td_flag_texts *list = at;
            td_jw_open(b, '[');
            for (size_t i = 0; i < list->n; i++) td_jw_str(b, list->text[i]);
            td_jw_close(b, ']');
        }
    }
}

void td_flags_write_json(const td_flag_command *c, td_jbuf *b) {
    td_jw_open(b, '{');
    for (size_t i = 0; i < c->n_groups; i++) {
        const td_flag_group *g = &c->groups[i];
        for (const td_flag *f = g->flags; f < g->flags + g->n; f++) {
            bool accepted_only = f->offset == TD_FLAG_NOWHERE && f->type == TD_FLAG_SWITCH && !f->by_default;
            if (!is_there(g, f) || f->secret || f->on_line || accepted_only) continue;
            char key[NAME_MAX_LEN + 1];
            snprintf(key, sizeof key, "%s", f->sglang ? f->sglang : f->names[0]);
            for (char *dash = key; (dash = strchr(dash, '-'));) *dash = '_';
            td_jw_key(b, key);
            if (f->offset == TD_FLAG_NOWHERE)
                write_fixed(f, b);
            else
                write_value(f, (const char *)g->options + f->offset, b);
        }
    }
    td_jw_close(b, '}');
}
