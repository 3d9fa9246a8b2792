/* The syntax tree of a template. jinja_parse*.c make it; after that it is read-only, so several threads may render it at
 * once. */
#ifndef TD_TEXT_JINJA_AST_H
#define TD_TEXT_JINJA_AST_H

#include "text/jinja/jinja_environment.h"
#include "text/jinja/jinja_number.h"

typedef struct jj_expr jj_expr;
typedef struct jj_stmt jj_stmt;

typedef enum {
    JJ_E_CONST,   /* value */
    JJ_E_NAME,    /* name */
    JJ_E_TUPLE,   /* items */
    JJ_E_LIST,    /* items */
    JJ_E_DICT,    /* items: key, value, key, value, … */
    JJ_E_GETATTR, /* a . name */
    JJ_E_GETITEM, /* a [ b ] */
    JJ_E_SLICE,   /* a [ items[0] : items[1] : items[2] ], items may be NULL */
    JJ_E_CALL,    /* a ( args ) */
    JJ_E_FILTER,  /* a | filter ( args ), called name; a is NULL at the head of {% filter %} and {% set x | filter %} */
    JJ_E_TEST,    /* a is test ( args ), called name */
    JJ_E_NOT,     /* not a */
    JJ_E_NEG,     /* -a */
    JJ_E_POS,     /* +a */
    JJ_E_BINARY,  /* a op b */
    JJ_E_AND,     /* a and b */
    JJ_E_OR,      /* a or b */
    JJ_E_CONCAT,  /* items joined by ~ */
    JJ_E_COMPARE, /* a ops[0] items[0] ops[1] items[1] … */
    JJ_E_COND     /* a if b else c; c may be NULL */
} jj_expr_kind;

typedef enum { JJ_EQ, JJ_NE, JJ_LT, JJ_LE, JJ_GT, JJ_GE, JJ_IN, JJ_NOT_IN } jj_cmp;

typedef struct {
    jj_expr      **args;
    size_t         n_args;
    const jj_str **kw_names;
    jj_expr      **kw_values;
    size_t         n_kw;
    jj_expr       *star, *star_star; /* *args, **kwargs; NULL: none */
} jj_call;

struct jj_expr {
    jj_expr_kind     kind;
    uint32_t         line;
    jj_expr         *a, *b, *c;
    jj_expr        **items;
    size_t           n_items;
    jj_op            op;
    jj_cmp          *ops;
    jj_value         value;
    const jj_str    *name;
    const jj_filter *filter; /* NULL: there is none of this name: an error only when it is evaluated */
    const jj_test   *test;   /* likewise */
    const jj_call   *call;
};

typedef enum {
    JJ_S_TEXT,      /* text */
    JJ_S_PRINT,     /* expr */
    JJ_S_IF,        /* expr: body, else orelse (an elif is an IF in orelse) */
    JJ_S_FOR,       /* target in expr if filter: body, else orelse */
    JJ_S_SET,       /* target = expr */
    JJ_S_SET_ATTR,  /* name.attr = expr */
    JJ_S_SET_BLOCK, /* target = body | expr (a chain of filters, or NULL) */
    JJ_S_MACRO,     /* macro */
    JJ_S_WITH,      /* items: target, value, …; body */
    JJ_S_FILTER,    /* body | expr */
    JJ_S_SCOPE,     /* body in a scope of its own: {% generation %} */
    JJ_S_BREAK,
    JJ_S_CONTINUE
} jj_stmt_kind;

typedef struct jj_macro_def {
    const jj_str  *name;
    const jj_str **params;
    jj_expr      **defaults; /* [n_params], NULL: none */
    size_t         n_params;
    bool           varargs, kwargs; /* the body uses these names, so extra arguments are taken */
    jj_stmt       *body;
} jj_macro_def;

struct jj_stmt {
    jj_stmt_kind        kind;
    uint32_t            line;
    jj_stmt            *next;
    jj_str              text;
    jj_expr            *target; /* NAME, or TUPLE of targets */
    jj_expr            *expr, *filter;
    jj_expr           **items;
    size_t              n_items;
    const jj_str       *name, *attr;
    jj_stmt            *body, *orelse;
    const jj_macro_def *macro;
};

#endif
