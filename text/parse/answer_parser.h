/*
 * What the parser of answers and the syntaxes of tool calls share.
 *
 * DESIGN. Everything works byte by byte, so that the result cannot depend on how the text was cut. Outside of calls the
 * parser looks for markers and passes on everything else. A marker that opens a section of calls hands the bytes over to a
 * syntax, a small automaton. The syntax says when the section is closed, or that this is no call. In that case what came
 * since the last complete call is text after all, byte for byte, and the byte that showed it is looked at once more.
 *
 * A syntax reports a call's name as soon as it is sure, then the arguments as they come. If they turn out to be no JSON, or
 * end early, the call is dropped, and its text is content.
 */
#ifndef TD_TEXT_PARSE_ANSWER_PARSER_H
#define TD_TEXT_PARSE_ANSWER_PARSER_H

#include <jansson.h>

#include "tandem.h"
#include "text/parse/byte_buffer.h"
#include "text/parse/json_scan.h"
#include "text/parse/marker_scan.h"

#define TD_CALL_BYTES_MAX ((size_t)1 << 20) /* of one call's text; a longer one is content */
#define TD_CALL_NAME_MAX ((size_t)16 << 10) /* bytes of a tool's or an argument's name */
#define TD_BLANKS_MAX ((size_t)4096)        /* white space held back before it is content */
#define TD_OPENERS_MAX 5

typedef enum {
    TD_CALL_MORE,
    TD_CALL_CLOSED, /* the byte is the last of a section of calls */
    TD_CALL_NOT,    /* the byte shows that this is no call, or that no further one comes */
} td_call_verdict;

/** A syntax. raw holds all bytes since the section's opener, or since the last complete call. */
typedef struct {
    void (*open)(td_answer_parser *p, int opener);        /* opener -1: the format's bare byte. raw holds the opener */
    td_call_verdict (*byte)(td_answer_parser *p, char c); /* c is in raw already */
    bool (*closing)(const td_answer_parser *p); /* the text ends here: whether raw is only a part of a section's end */
} td_call_syntax;

typedef struct {
    const char           *names[4]; /* SGLang's, then others; NULL after the last */
    const td_call_syntax *syntax;   /* NULL: harmony */
    struct {
        const char *marker;
        const void *dialect;       /* a td_token_dialect or td_tag_dialect, or what else the syntax takes */
    } openers[TD_OPENERS_MAX + 1]; /* what calls begin with; no marker after the last */
    char        bare;              /* a byte that opens calls at the beginning of a line; 0: none */
    bool        bare_first;        /* it does so only at the beginning of the answer */
    bool        ends_answer;       /* what follows a call and is none is dropped */
    const char *in_template[3];    /* a chat template that has all of them makes the model write this format */
} td_tool_format;

typedef struct {
    const char *names[4];
    const char *open, *close; /* NULL: harmony */
    bool        starts_open;  /* an answer begins inside the reasoning, whether or not the marker comes */
    const char *in_template[3];
} td_reasoning_format;

/** The formats' tables; @return NULL for a name that is not there. */
const td_tool_format      *td_tool_format_find(const char *name);
const td_reasoning_format *td_reasoning_format_find(const char *name);

typedef enum { TD_SECTION_START, TD_SECTION_REASONING, TD_SECTION_CONTENT } td_section;

/* The state of each syntax; one is in use at a time. Offsets are of raw. */
typedef struct {
    int         phase;
    const void *dialect;
    size_t      calls; /* complete ones of this section */
    size_t      from;  /* where the part that is being read begins */
    size_t      name_at, name_len;
} td_section_state;

/* A call as a JSON object: {"name": …, "arguments": {…}}. */
typedef struct {
    td_json_scan scan;
    size_t       at, string_at, key_at, key_len, name_at, name_len;
    size_t       arguments_at, arguments_len; /* the object, or 0 bytes while there is none */
    bool         in_value, in_arguments, has_name, streams, bare;
} td_object_state;

/* A call's arguments between tags. */
typedef struct {
    size_t         members;
    size_t         key_at, key_len;
    bool           as_string; /* the value is written as a string while it comes */
    bool           begun;     /* the value has a byte */
    bool           newline;   /* a line's end that may be the last before the closing tag */
    td_marker_scan end;
    td_bytes       value;
} td_tag_state;

/* A list in Python. */
typedef struct {
    size_t brackets; /* open brackets */
    char   quote;    /* of the string that is open; 0: none */
    bool   escaped;
} td_list_state;

/* Harmony's messages. */
typedef struct {
    int  phase;
    bool reasoning; /* the message is the model's reasoning */
    bool as_is;     /* its markers stay in the text */
} td_harmony_state;

struct td_answer_parser {
    const td_tool_format      *tools;     /* NULL: calls stay in the text */
    const td_reasoning_format *reasoning; /* NULL: reasoning stays in the text */
    td_answer_event_fn         on_event;
    void                      *user;
    const td_tool_list        *tool_list; /* NULL: not given */
    bool                       failed;    /* memory was short */

    td_section           section, first_section; /* first_section: what follows START */
    td_marker_set        markers;                /* of the section */
    td_marker_scan       scan;
    td_bytes             lead;       /* white space at the start of the answer */
    td_bytes             blank;      /* white space of the content that may be between calls */
    bool                 fresh;      /* the content has had only blanks since its start or the last call */
    bool                 line_start; /* the line has had only blanks */
    bool                 seen_text;  /* the content has had more than blanks */
    td_bytes             out;        /* text of kind out_kind that is not reported yet */
    td_answer_event_kind out_kind;

    bool           in_call; /* the bytes go to the syntax */
    td_bytes       raw;
    td_marker_scan literal;
    bool           begun;          /* the call at hand has been reported */
    uint32_t       n_begun;        /* calls reported */
    uint32_t       n_calls;        /* complete calls */
    td_bytes       arguments;      /* of the call at hand */
    td_json_scan   arguments_scan; /* of arguments that are JSON as they stand */
    json_t        *schema;         /* parameters of the call's tool, borrowed; NULL: unknown */

    td_section_state at;
    td_object_state  object;
    td_tag_state     tag;
    td_list_state    list;
    td_harmony_state harmony;
};

/* ---- for the syntaxes: answer_sections.c ---- */

/** Report a call. @param id the model's own, or NULL. */
void td_call_begin(td_answer_parser *p, const char *name, size_t name_len, const char *id, size_t id_len);
void td_call_arguments(td_answer_parser *p, const char *json, size_t n);

/** The arguments are complete. @return false when they are no JSON object. */
bool td_call_end(td_answer_parser *p);

/** A whole call at once. @return false when the arguments are no JSON object. */
bool td_call_whole(td_answer_parser *p, const char *name, size_t name_len, const char *arguments, size_t n);

/** It was no call: drop it if it was reported, and give back raw, without its last byte, as text. */
void td_call_give_back(td_answer_parser *p);

/** Add a byte to the open section: content or reasoning. */
void td_section_put(td_answer_parser *p, char c);

/** Whether the request's tools allow a call by this name; true where they were not given. */
bool td_call_name_known(const td_answer_parser *p, const char *name, size_t n);

/** Shrink a slice of `at` by the blanks around it. */
void td_trim(const char *at, size_t *from, size_t *n);

/** A JSON object or array by td_json_load_shape. @return NULL when it is none, or memory is short (then failed). */
json_t *td_parse_json(td_answer_parser *p, const char *text, size_t n);

/* ---- for the parser: answer_sections.c ---- */

/** Open a section, and look for the markers that may end it. */
void td_section_enter(td_answer_parser *p, td_section section);
/** The answer has begun with something else than a marker of reasoning. */
void td_section_leave_start(td_answer_parser *p);
/** Collect text for an event of this kind; it goes out when another kind comes, or the piece ends. */
void td_answer_put(td_answer_parser *p, td_answer_event_kind kind, const char *text, size_t n);
/** Tell what was collected. */
void td_answer_flush(td_answer_parser *p);

/* ---- the syntaxes ---- */

/** call_object.c: a JSON object that is a call, byte by byte; also part of call_mistral.c. */
void            td_call_object_open(td_answer_parser *p, bool bare); /* raw ends before its '{' */
td_call_verdict td_call_object_byte(td_answer_parser *p, char c);    /* MORE; CLOSED: the call is complete; NOT */

/** A byte of arguments that are JSON as they stand; the first is '{'. @return as td_call_object_byte. */
td_call_verdict td_call_json_arguments(td_answer_parser *p, td_json_scan *scan, char c);

extern const td_call_syntax td_syntax_object, td_syntax_mistral, td_syntax_tokens, td_syntax_tags, td_syntax_python;

/** harmony.c: all bytes of an answer in harmony's messages, and its end. */
void td_harmony_open(td_answer_parser *p);
void td_harmony_byte(td_answer_parser *p, char c);
void td_harmony_end(td_answer_parser *p);

/* Dialects of td_syntax_tokens and td_syntax_tags. */
typedef struct {
    const char *call_open;
    const char *kind_end; /* between "function" and the name; NULL: there is no such word */
    const char *name_end; /* NULL: the name's line ends */
    const char *fence;    /* around the arguments; NULL: none */
    const char *call_close, *section_close;
    bool        has_id; /* the name is functions.NAME:INDEX */
} td_token_dialect;

typedef struct {
    const char *call_open;  /* up to the name; NULL: it follows the section's opener */
    const char *name_end;   /* NULL: where its line ends or a tag begins */
    const char *param_open; /* up to the argument's name */
    const char *key_end;
    const char *flag_end;   /* behind the word true or false, whether the value is a string; in place of key_end where the
                               word is left out; NULL: no such word */
    const char *value_open; /* NULL: the value follows the name */
    const char *value_close, *call_close;
    const char *next_param, *next_close; /* what ends a value whose closing tag is missing; NULL: nothing does */
    const char *section_close;           /* NULL: call_close */
    bool newlines; /* one line break behind the value's opening tag and one before its closing tag do not belong to it */
    bool json;     /* an object may stand in place of the tags */
} td_tag_dialect;

#endif
