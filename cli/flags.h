/*
 * Flags of the commands. A flag is a row of a table: its names, type, range, default, help, and where its value goes. From
 * the rows come the parsing of command lines and --config files, --help, docs/flags.md and what a server says it runs with.
 *
 *   engine_flags.c   the engine's options, for every command that loads a model
 *   launch_flags.c   the options that only launch_server has, and its --config file
 *   cmd_….c          the options that only that command has
 */
#ifndef TD_CLI_FLAGS_H
#define TD_CLI_FLAGS_H

#include <stdio.h>

#include "server/api/json_writer.h"
#include "tandem.h"

typedef enum {
    TD_FLAG_SWITCH, /* bool; takes no value */
    TD_FLAG_U16,
    TD_FLAG_U32,      /* if the range allows negative values, they mean 0 */
    TD_FLAG_U32_AUTO, /* the same; "auto" is UINT32_MAX */
    TD_FLAG_U64,
    TD_FLAG_REAL,  /* double */
    TD_FLAG_TEXT,  /* const char *, which points into argv or is static */
    TD_FLAG_TEXTS, /* td_flag_texts; the flag may be given several times */
} td_flag_type;

#define TD_FLAG_TEXTS_MAX 16
typedef struct {
    const char *text[TD_FLAG_TEXTS_MAX];
    size_t      n;
} td_flag_texts;

/** Copies of texts, which their owner frees with td_flag_strings_free. */
typedef struct {
    char **text; /* [n] */
    size_t n;
} td_flag_strings;

/** Copy a text. @return the copy, or NULL where memory is short. */
const char *td_flag_strings_keep(td_flag_strings *s, const char *text);
void        td_flag_strings_free(td_flag_strings *s);

/* The commands that share the engine's table, a bit each. */
enum { TD_IN_LAUNCH = 1, TD_IN_PERPLEXITY = 2, TD_IN_EVAL = 4, TD_IN_TOPO = 8, TD_IN_PLAN = 16, TD_IN_DOCTOR = 32 };
#define TD_NOT_YET "is not supported yet" /* the refusal of a known flag, or of a value of it */

#define TD_FLAG_NAMES_MAX 6
#define TD_FLAG_NOWHERE SIZE_MAX

/** A flag. A row without a name is the title of the rows that follow, for help. */
typedef struct {
    const char        *names[TD_FLAG_NAMES_MAX + 1]; /* without "--" or "-"; docs/flags.md and messages use the first */
    td_flag_type       type;
    size_t             offset;     /* of the value in the options; NOWHERE: the flag is accepted and changes nothing */
    double             min, max;   /* range of a number, both ends included */
    const char        *arg;        /* what help calls the value; NULL for switches */
    const char *const *choices;    /* the allowed texts, then NULL; "a=b" stores b for a. NULL: any text */
    const char        *by_default; /* shown in help, or NULL; with NOWHERE it is the value in force */
    unsigned           in;         /* TD_IN_… bits of the commands that have it; 0: all that use the table */
    const char        *help;       /* a sentence */
    const char *refusal;      /* follows the flag and its value in a refusal, of the flag or of all but `choices`; or NULL */
    const char *sglang;       /* SGLang's name of the option where it is not names[0] with '_' for '-' */
    bool        secret;       /* is left out of what the server tells about itself */
    bool        on_line;      /* only on the command line, not in --config files */
    bool        may_be_empty; /* whether a text may be empty */
    bool        takes_words;  /* a text: more words may follow the first one, which are joined by commas */
    bool        basic;        /* shown by the --help of a command whose help is short */
} td_flag;

#define TD_CHOICES(...) ((const char *const[]){__VA_ARGS__, NULL})

/** A table, and the options into which its offsets point. */
typedef struct {
    const td_flag *flags; /* [n] */
    size_t         n;
    void          *options;
    unsigned       in;     /* the command's TD_IN_… bit, which selects rows */
    const char    *prefix; /* what all names begin with ("against-"), or NULL */
    const char    *about;  /* with a prefix: one text in help for all rows */
    uint8_t       *given;  /* [n] receives TD_GIVEN_…; or NULL */
    size_t         n_given;
} td_flag_group;

enum { TD_NOT_GIVEN, TD_GIVEN_IN_CONFIG, TD_GIVEN };

typedef struct {
    const char      *name;     /* "launch_server" */
    const char      *synopsis; /* follows the name in help's usage line */
    const char      *about;    /* sentences before the flags; each line ends with "\n" */
    const char      *after;    /* sentences after the flags, or NULL */
    td_flag_group   *groups;   /* [n_groups] */
    size_t           n_groups;
    bool             short_help; /* --help shows basic flags only, --help-all all of them */
    td_flag_strings *strings;    /* receives the texts that were joined; NULL: no flag takes words */
    const char     **operand;    /* receives the one argument that is not a flag; NULL: the command takes none */
} td_flag_command;

/** The help that was asked for: none, --help, --help-all, or --help-json. */
typedef enum { TD_HELP_NONE, TD_HELP_TEXT, TD_HELP_ALL, TD_HELP_JSON } td_flag_help;

#define TD_HELP_COLUMNS 80

/** How many characters must be added, removed or replaced to make b of a (Levenshtein's distance). SIZE_MAX for names longer
 * than any flag's. */
size_t td_name_distance(const char *a, const char *b);

/**
 * Read a command line into the groups' options. Every command also has --help, -h, --help-all and --help-json. A name may be
 * shortened as long as only one flag begins with it. Names of one or two letters have one dash (-m, -np).
 * @param argv main's arguments from the command on: argv[0] is its name.
 * @param help receives the help that was asked for; after such a flag the rest of the line is not read.
 * @return TD_EINVAL or TD_ENOTSUP with one sentence that names the flag, and for an unknown flag the nearest name.
 */
TD_NODISCARD td_status td_flags_parse(const td_flag_command *c, int argc, char **argv, td_flag_help *help, td_error *err);

/** td_flags_parse for a command's main function: prints help or the error itself.
 * @return -1 to go on, or the exit status: 0 after help on stdout, 2 after an error on stderr. */
int td_flags_take(const td_flag_command *c, int argc, char **argv);

/** Set one flag from text: a switch from true, yes, on, false, no or off. @param text borrowed as the flag's type says. */
TD_NODISCARD td_status td_flag_set(const td_flag *f, const char *prefix, void *options, const char *text, td_error *err);

/** Print --help or --help-all, texts of 80 columns, or --help-json: an object with the command's sentences and rows, from
 * which packaging/make_pages.py makes man pages and completions. */
void td_flags_print_help(const td_flag_command *c, td_flag_help help, FILE *f);

/** Print the rows as tables in Markdown. Each title becomes a heading. */
void td_flags_print_markdown(const td_flag_command *c, FILE *f);

/** Write all values, defaults too, as a JSON object with SGLang's names. Secrets are left out; flags that are not supported
 * yet are null. */
void td_flags_write_json(const td_flag_command *c, td_jbuf *b);

#endif
