/* A template's source cut into tokens, with the white space control of Jinja applied. */
#ifndef TD_TEXT_JINJA_LEX_H
#define TD_TEXT_JINJA_LEX_H

#include "text/jinja/jinja_value.h"

typedef enum {
    JJ_T_EOF,
    JJ_T_TEXT, /* value: STR */
    JJ_T_PRINT_BEGIN,
    JJ_T_PRINT_END,
    JJ_T_BLOCK_BEGIN,
    JJ_T_BLOCK_END,
    JJ_T_NAME,   /* value: STR */
    JJ_T_STRING, /* value: STR, escapes resolved */
    JJ_T_NUMBER, /* value: INT or FLOAT */
    JJ_T_OP      /* op */
} jj_token_kind;

/* Operators of one character are that character. */
#define JJ_OP_FLOORDIV 256
#define JJ_OP_POW 257
#define JJ_OP_EQ 258
#define JJ_OP_NE 259
#define JJ_OP_GE 260
#define JJ_OP_LE 261

typedef struct {
    jj_token_kind kind;
    uint32_t      line;
    int           op;
    jj_value      value;
} jj_token;

/** All tokens, the last is EOF. As jinja2.lexer with trim_blocks and lstrip_blocks and without keep_trailing_newline. */
const jj_token *td_jj_lex(jj_state *s, const char *source, size_t len);

#endif
