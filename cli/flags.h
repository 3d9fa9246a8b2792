/*
 * Flags of the commands. A flag is a row of a table: its names, type, range, default, help, and where its value goes. From
 * the rows come the parsing of command lines and --config files, --help, docs/flags.md and what a server says it runs with.
 *
 *   engine_flags.c   the table of what is an option of the engine, for every command that loads a model
 *   launch_flags.c   the table of what only launch_server has, and its --config file
 *   cmd_….c          the table of what only that command has
 */
#ifndef TD_CLI_FLAGS_H
#define TD_CLI_FLAGS_H

#include <stdio.h>

#include "server/api/json_writer.h"
#include "tandem.h"

typedef enum {
    TD_FLAG_SWITCH, /* bool; takes no value */
    TD_FLAG_U16,
    TD_FLAG_U32, /* a negative value, where the range has one, is another way to say 0 */
    TD_FLAG_U64,
    TD_FLAG_REAL,  /* double */
    TD_FLAG_TEXT,  /* const char *; borrowed from argv, or static */
    TD_FLAG_TEXTS, /* td_flag_texts: may be given several times */
} td_flag_type;

#define TD_FLAG_TEXTS_MAX 16
typedef struct {
    const char *text[TD_FLAG_TEXTS_MAX];
    size_t      n;
} td_flag_texts;

/* Commands that share the engine's table. */
enum { TD_IN_LAUNCH = 1, TD_IN_PERPLEXITY = 2, TD_IN_EVAL = 4, TD_IN_TOPO = 8, TD_IN_PLAN = 16, TD_IN_DOCTOR = 32 };
#define TD_NOT_YET "is not supported yet" /* of a flag that is known, or of a value of it */

#define TD_FLAG_NAMES_MAX 3
#define TD_FLAG_NOWHERE SIZE_MAX

/** A row; or, without a name, the title of the rows that follow, in help. */
typedef struct {
    const char        *names[TD_FLAG_NAMES_MAX + 1]; /* without "--"; the first is the documented one */
    td_flag_type       type;
    size_t             offset;     /* of the value in the options; NOWHERE: it is accepted, and nothing has to be done */
    double             min, max;   /* of numbers */
    const char        *arg;        /* what help calls the value; NULL for switches */
    const char *const *choices;    /* texts that a value must be one of, then NULL; "a=b" stores b for a. NULL: any */
    const char        *by_default; /* shown in help; NULL: none to show. NOWHERE: what is in force */
    unsigned           in;         /* TD_IN_… commands that have it; 0: each that has the table */
    const char        *help;       /* a sentence */
    const char *refusal; /* known, but not there yet, or only the choices: what is said after the flag and its value; NULL:
                            it is there */
    const char *sglang;  /* SGLang's name of the option where it is not names[0] with '_' for '-' */
    bool        secret;  /* never told */
    bool        on_line; /* not in --config files */
    bool        may_be_empty; /* of texts */
} td_flag;

#define TD_CHOICES(...) ((const char *const[]){__VA_ARGS__, NULL})

/** A table, and the options that its offsets are into. */
typedef struct {
    const td_flag *flags; /* [n] */
    size_t         n;
    void          *options;
    unsigned       in;     /* the command's bit: rows of other commands are not there */
    const char    *prefix; /* names begin with it ("against-"); NULL: none */
    const char    *about;  /* with a prefix, in place of the rows' help: what the flags are for */
    uint8_t       *given;  /* [n] set to TD_GIVEN_… ; NULL: not wanted */
    size_t         n_given;
} td_flag_group;

enum { TD_NOT_GIVEN, TD_GIVEN_IN_CONFIG, TD_GIVEN };

typedef struct {
    const char    *name;     /* "launch_server" */
    const char    *synopsis; /* after the name, in help's usage line */
    const char    *about;    /* sentences before the flags, each line ended */
    const char    *after;    /* the same after them, or NULL */
    td_flag_group *groups;   /* [n_groups] */
    size_t         n_groups;
    const char   **operand; /* receives the one argument that is no flag; NULL: there is none */
} td_flag_command;

/** What a command is asked to say of itself. */
typedef enum { TD_HELP_NONE, TD_HELP_TEXT, TD_HELP_JSON } td_flag_help;

/**
 * Take a command line into the groups' options. --help, -h and --help-json are there for every command. A name may be cut
 * short where only one begins so.
 * @param argv as of main, argv[0] is the command.
 * @param help whether it was asked for, and in which form; the rest of the line is not read then.
 * @return TD_EINVAL or TD_ENOTSUP with one sentence that names the flag; for an unknown one, the nearest there is.
 */
TD_NODISCARD td_status td_flags_parse(const td_flag_command *c, int argc, char **argv, td_flag_help *help, td_error *err);

/** The same for a command's main function. @return -1 to go on, or the exit status: 0 and help is on stdout, 2 and the
 * sentence on stderr. */
int td_flags_take(const td_flag_command *c, int argc, char **argv);

/** Set one flag from text: a switch from true, yes, on, false, no or off. @param text borrowed as the flag's type says. */
TD_NODISCARD td_status td_flag_set(const td_flag *f, const char *prefix, void *options, const char *text, td_error *err);

/** --help, a text, or --help-json: an object with the command's sentences and rows, which man pages and completions are
 * made from (packaging/make_pages.py). */
void td_flags_print_help(const td_flag_command *c, td_flag_help help, FILE *f);

/** The rows as tables in Markdown, a heading a title. */
void td_flags_print_markdown(const td_flag_command *c, FILE *f);

/** What is set, defaults too, as a JSON object by SGLang's names; no secrets. What is not there yet is null. */
void td_flags_write_json(const td_flag_command *c, td_jbuf *b);

#endif
