/* The values of a template: those of Python, as far as templates see them. All are immutable but lists and namespaces. */
#ifndef TD_TEXT_JINJA_VALUE_H
#define TD_TEXT_JINJA_VALUE_H

#include "text/jinja/jinja_state.h"

typedef enum {
    JJ_MISSING, /* an argument that was not given; never seen by a template */
    JJ_UNDEFINED,
    JJ_NONE,
    JJ_BOOL,
    JJ_INT,
    JJ_FLOAT,
    JJ_STR,
    JJ_LIST,
    JJ_TUPLE,
    JJ_RANGE,
    JJ_DICT,
    JJ_VIEW, /* dict.keys(), .values(), .items() */
    JJ_ITER, /* what Python gives as a generator or an iterator: passed once */
    JJ_NAMESPACE,
    JJ_LOOP,
    JJ_MACRO,
    JJ_FUNCTION,
    JJ_METHOD
} jj_kind;

typedef struct {
    const char *p; /* valid UTF-8, not terminated */
    size_t      n;
    uint64_t    hash; /* of the bytes; 0: not computed yet */
} jj_str;

typedef struct jj_value  jj_value;
typedef struct jj_list   jj_list;
typedef struct jj_dict   jj_dict;
typedef struct jj_range  jj_range;
typedef struct jj_view   jj_view;
typedef struct jj_iter   jj_iter;
typedef struct jj_undef  jj_undef;
typedef struct jj_loop   jj_loop;   /* jinja_loop.h */
typedef struct jj_method jj_method; /* jinja_environment.h */
typedef struct jj_macro  jj_macro;

typedef struct jj_args     jj_args;
typedef struct jj_function jj_function;

struct jj_value {
    jj_kind kind;
    union {
        bool               b;
        int64_t            i;
        double             f;
        const jj_str      *s;
        jj_list           *list; /* LIST, TUPLE */
        const jj_range    *range;
        jj_dict           *dict; /* DICT, NAMESPACE */
        const jj_view     *view;
        jj_iter           *iter;
        const jj_undef    *undef; /* NULL: nothing to tell */
        jj_loop           *loop;
        const jj_macro    *macro;
        const jj_function *function;
        const jj_method   *method;
    } u;
};

struct jj_list {
    jj_value *at;
    size_t    n, cap;
};

typedef struct {
    jj_value key, value;
    uint64_t hash;
} jj_item;

struct jj_dict { /* in order of insertion */
    jj_item *at;
    size_t   n, cap;
};

struct jj_range {
    int64_t start, stop, step;
    size_t  n;
};

struct jj_view {
    const char *name; /* "dict_keys", … */
    jj_list    *list;
};

struct jj_iter {
    const jj_list *list;
    size_t         pos;
};

/* Why a value is undefined, for the message when it is used. */
struct jj_undef {
    const char *hint;  /* the whole message, or NULL */
    const char *owner; /* type of the object that lacks it ("dict object"), or NULL: a variable */
    jj_value    name;  /* STR for attributes and variables, else the index */
};

/* The arguments of a call. */
struct jj_args {
    const jj_value *at;
    size_t          n;
    const jj_item  *kw; /* keys are STR */
    size_t          n_kw;
};

struct jj_function {
    const char *name;
    jj_value (*call)(jj_state *s, const jj_args *args);
};

/* What {% macro %} defines. Expressions, which call it, know nothing of the statements that it runs. */
struct jj_macro {
    const jj_str *name;
    jj_value (*call)(jj_state *s, const jj_macro *m, const jj_args *args);
    const struct jj_macro_def *def;   /* jinja_ast.h */
    struct jj_scope           *scope; /* around its definition */
    struct jj_render          *render;
};

/* ---- making ---- */

#define JJ_UNDEF_VALUE ((jj_value){JJ_UNDEFINED, {.undef = NULL}})
#define JJ_NONE_VALUE ((jj_value){JJ_NONE, {.i = 0}})

static inline jj_value jj_bool(bool b) {
    return (jj_value){JJ_BOOL, {.b = b}};
}
static inline jj_value jj_int(int64_t i) {
    return (jj_value){JJ_INT, {.i = i}};
}
static inline jj_value jj_float(double f) {
    return (jj_value){JJ_FLOAT, {.f = f}};
}

jj_value td_jj_str(jj_state *s, const char *p, size_t n); /* p must live as long as the arena */
jj_value td_jj_str_copy(jj_state *s, const char *p, size_t n);
jj_value td_jj_str_buf(jj_state *s, const jj_buf *b);
jj_value td_jj_list(jj_state *s, jj_kind kind);           /* empty LIST or TUPLE */
jj_value td_jj_pair(jj_state *s, jj_value a, jj_value b); /* TUPLE */
void     td_jj_append(jj_state *s, jj_list *list, jj_value v);
jj_value td_jj_iter_over(jj_state *s, const jj_list *list);
jj_value td_jj_dict(jj_state *s, jj_kind kind); /* empty DICT or NAMESPACE */
jj_value td_jj_undefined(jj_state *s, const char *owner, jj_value name);
jj_value td_jj_undefined_hint(jj_state *s, const char *hint);

/* ---- looking ---- */

bool        td_jj_truth(const jj_value *v);
const char *td_jj_type(const jj_value *v);                 /* Python's type name: "str", "NoneType", "Undefined", … */
bool        td_jj_is_number(const jj_value *v, double *f); /* BOOL, INT or FLOAT */
bool        td_jj_as_int(const jj_value *v, int64_t *i);   /* BOOL or INT */
bool        td_jj_len(const jj_value *v, size_t *len);     /* false: the type has no len() */
bool        td_jj_str_is(const jj_str *a, const char *b);
bool        td_jj_str_equal(const jj_str *a, const jj_str *b);

/* ---- passing over ---- */

typedef struct {
    jj_value over;
    size_t   pos;
} jj_cursor;

/** Start passing over v; fails for what is not iterable. Lists are seen live, as in Python. */
jj_cursor td_jj_begin(jj_state *s, jj_value v);
bool      td_jj_iterable(const jj_value *v);
bool      td_jj_next(jj_state *s, jj_cursor *c, jj_value *out);
jj_value  td_jj_to_list(jj_state *s, jj_value v); /* a new list */

/* ---- arguments ---- */

/**
 * Bind call arguments to parameters, named by words in `params` ("old new count"); the first n_required must be given.
 * out[k] is JJ_MISSING where parameter k was not given.
 */
void td_jj_bind(jj_state *s, const char *what, const jj_args *args, const char *params, size_t n_required, jj_value *out);

#endif
