/*
 * Every argument of a call against the table of facts (op_facts.inc): what the vendor's definitions, checks and documents say
 * of it. The rules of shapes are with each operation; here is what holds of an argument alone.
 *
 * TD_STANDIN_CALLS=PATH: each call with other types, shapes or values than before is appended to this file, a line a call.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "standin_facts.h"

typedef enum { INPUT, OUTPUT, INPUT_LIST, OUTPUT_LIST, INTS, SCALAR, TEXT, REAL, LONG, INT, FLAG, DTYPE } fact_class;
typedef enum { REQUIRED, OPTIONAL, DYNAMIC, ABSENT } fact_kind; /* DYNAMIC: a list, which may be empty; ABSENT: null */

typedef struct {
    const char *op, *name;
    fact_class  what;
    fact_kind   kind;
    uint64_t    types; /* bits 1 << td_acl_dtype; 0: it names none that is here */
    const char *values, *repository, *where;
} fact;

static const fact FACTS[] = {
#define D(type) (1ull << TD_ACL_##type)
#define FACT(op, name, what, kind, types, values, repository, where) \
    {#op, name, what, kind, types, values, repository, where},
#include "op_facts.inc"
#undef FACT
#undef D
};
#define N_FACTS (sizeof FACTS / sizeof *FACTS)

const char standin_end_of_arguments = 0;

/* ---- values -------------------------------------------------------------------------------------- */

/* "-1|0..3|32..": numbers and ranges. */
static bool has_number(const char *values, double v) {
    for (const char *at = values; *at;) {
        char  *end;
        double first = (double)strtoll(at, &end, 10), last = first;
        if (end[0] == '.' && end[1] == '.') {
            at = end + 2;
            last = *at && *at != '|' ? (double)strtoll(at, &end, 10) : INFINITY;
            if (isinf(last)) end = (char *)at;
        }
        if (v >= first && v <= last) return true;
        at = *end ? end + 1 : end;
    }
    return !*values;
}

static bool has_word(const char *values, const char *word) {
    size_t n = strlen(word);
    for (const char *at = values; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (!strncmp(at, word, n) && (at[n] == '|' || !at[n])) return true;
    }
    return !*values;
}

/* ---- a call, as it is written down ---------------------------------------------------------------- */

typedef struct {
    char   text[4096];
    size_t n;
    bool   lacks; /* an argument is of the type that TD_STANDIN_LACKS names */
} line;

static void append(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(line *l, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = vsnprintf(l->text + l->n, sizeof l->text - l->n, format, list);
    va_end(list);
    l->n += n > 0 ? (size_t)n : 0;
    if (l->n >= sizeof l->text) standin_refuse("stand-in", "a call is longer than %zu characters", sizeof l->text);
}

static const char *name_of(td_acl_dtype t) {
    switch (t) {
        case TD_ACL_FLOAT: return "FLOAT";
        case TD_ACL_FLOAT16: return "FLOAT16";
        case TD_ACL_BF16: return "BF16";
        case TD_ACL_INT4: return "INT4";
        case TD_ACL_INT8: return "INT8";
        case TD_ACL_UINT8: return "UINT8";
        case TD_ACL_BOOL: return "BOOL";
        case TD_ACL_INT16: return "INT16";
        case TD_ACL_INT32: return "INT32";
        case TD_ACL_UINT32: return "UINT32";
        case TD_ACL_INT64: return "INT64";
        case TD_ACL_UINT64: return "UINT64";
        default: return "other";
    }
}

/* BF16[3,7168], INT8:NZ[7168,2112]; ~ where it has gaps. */
static void append_tensor(line *l, const standin_tensor *t) {
    append(l, "%s%s%s[", name_of(t->dtype), t->format == TD_ACL_FORMAT_FRACTAL_NZ ? ":NZ" : "",
           t->format == TD_ACL_FORMAT_ND && !standin_contiguous(t) ? "~" : "");
    for (uint32_t i = 0; i < t->n_view; i++) append(l, "%s%" PRId64, i ? "," : "", t->view[i]);
    append(l, "]");
}

/* Calls that are in a file: a set of their hashes, with the file's. Under the lock. */
static uint64_t *known;
static size_t    n_known, room;

static uint64_t hash_of(const char *text) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001b3ull;
    return h ? h : 1;
}

static bool is_new(uint64_t hash) {
    if (2 * n_known >= room) {
        uint64_t *old = known;
        size_t    n = room;
        room = room ? 2 * room : 1024;
        known = calloc(room, sizeof *known);
        n_known = 0;
        for (size_t i = 0; i < n; i++)
            if (old[i]) (void)is_new(old[i]);
        free(old);
    }
    size_t at = hash % room;
    while (known[at] && known[at] != hash) at = (at + 1) % room;
    if (known[at] == hash) return false;
    known[at] = hash;
    n_known++;
    return true;
}

static void write_down(const line *l) {
    STANDIN_LOCKED;
    const char *path = getenv("TD_STANDIN_CALLS");
    FILE       *f = is_new(hash_of(l->text) ^ hash_of(path)) ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s\n", l->text);
    fclose(f);
}

/* ---- what is lacking -------------------------------------------------------------------------------- */

/* OP:TYPE */
static bool is_lacking(const char *op, const char *type) {
    const char  *names = getenv("TD_STANDIN_LACKS");
    const size_t n = strlen(op);
    return names && !strncmp(names, op, n) && names[n] == ':' && !strcmp(names + n + 1, type);
}

/* ---- an argument --------------------------------------------------------------------------------- */

static void check_pointer(const td_acl_executor *x, const fact *f, const void *p) {
    if (!p && f->kind == REQUIRED)
        standin_bad(x, "%s is a null pointer, and required by %s %s", f->name, f->repository, f->where);
    if (p && f->kind == ABSENT)
        standin_bad(x, "%s is given, which has to be a null pointer by %s %s", f->name, f->repository, f->where);
}

static void check_tensor(const td_acl_executor *x, const fact *f, const td_acl_tensor *tensor, line *l) {
    check_pointer(x, f, tensor);
    if (!tensor) {
        append(l, " %s=null", f->name);
        return;
    }
    const standin_tensor *t = standin_live(tensor, f->name);
    if (f->types && !(f->types & 1ull << t->dtype))
        standin_bad(x, "%s is of type %d, which %s %s does not have", f->name, (int)t->dtype, f->repository, f->where);
    if (is_lacking(f->op, name_of(t->dtype))) {
        (void)standin_fail(TD_ACLNN_ERR_INVALID, "%s of type %s is not supported", f->name, name_of(t->dtype));
        l->lacks = true;
    }
    append(l, " %s=", f->name);
    append_tensor(l, t);
}

static void check_list(const td_acl_executor *x, const fact *f, const td_acl_tensor_list *list, line *l) {
    check_pointer(x, f, list);
    if (list && !list->alive) standin_bad(x, "%s is a list that was destroyed", f->name);
    for (uint64_t i = 0; list && i < list->n; i++) check_tensor(x, f, list->tensors[i], l);
    if (!list) append(l, " %s=null", f->name);
}

static void check_ints(const td_acl_executor *x, const fact *f, const td_acl_int_array *a, line *l) {
    check_pointer(x, f, a);
    if (a && !a->alive) standin_bad(x, "%s is an array that was destroyed", f->name);
    if (a && *f->values && !has_number(f->values, (double)a->n)) /* "3 values" begins with their number */
        standin_bad(x, "%s has %" PRIu64 " values, and %s %s wants %s", f->name, a->n, f->repository, f->where, f->values);
    if (a)
        append(l, " %s=%" PRIu64 "_values", f->name, a->n);
    else
        append(l, " %s=null", f->name);
}

static void check_number(const td_acl_executor *x, const fact *f, double v, line *l) {
    if (!has_number(f->values, v))
        standin_bad(x, "%s is %g, and %s %s has %s", f->name, v, f->repository, f->where, f->values);
    append(l, " %s=%.9g", f->name, v);
}

static void check_text(const td_acl_executor *x, const fact *f, const char *text, line *l) {
    check_pointer(x, f, text);
    if (text && !has_word(f->values, text))
        standin_bad(x, "%s is \"%s\", and %s %s has %s", f->name, text, f->repository, f->where, f->values);
    append(l, " %s=%s", f->name, text ? text : "null");
}

static void check_scalar(const td_acl_executor *x, const fact *f, const td_acl_scalar *s, line *l) {
    check_pointer(x, f, s);
    if (s && !s->alive) standin_bad(x, "%s is a null pointer, or was destroyed", f->name);
    append(l, " %s=%s", f->name, s ? name_of(s->dtype) : "null");
}

/* The next argument, by its class. */
static void check_argument(const td_acl_executor *x, const fact *f, va_list *list, line *l) {
    switch (f->what) {
        case INPUT:
        case OUTPUT: check_tensor(x, f, va_arg(*list, const td_acl_tensor *), l); break;
        case INPUT_LIST:
        case OUTPUT_LIST: check_list(x, f, va_arg(*list, const td_acl_tensor_list *), l); break;
        case INTS: check_ints(x, f, va_arg(*list, const td_acl_int_array *), l); break;
        case SCALAR: check_scalar(x, f, va_arg(*list, const td_acl_scalar *), l); break;
        case TEXT: check_text(x, f, va_arg(*list, const char *), l); break;
        case REAL: check_number(x, f, va_arg(*list, double), l); break;
        case LONG: check_number(x, f, (double)va_arg(*list, int64_t), l); break;
        case INT:
        case FLAG: check_number(x, f, (double)va_arg(*list, int), l); break;
        case DTYPE: append(l, " %s=%s", f->name, name_of((td_acl_dtype)va_arg(*list, int))); break;
    }
}

bool standin_check_facts(const td_acl_executor *x, const char *op, va_list *list) {
    line   l = {.n = 0};
    size_t n = 0;
    append(&l, "%s", op);
    for (size_t i = 0; i < N_FACTS; i++) {
        if (strcmp(FACTS[i].op, op)) continue;
        check_argument(x, &FACTS[i], list, &l);
        n++;
    }
    if (!n || va_arg(*list, const char *) != STANDIN_END)
        standin_bad(x, "the table of facts does not have the arguments that the stand-in is given");
    const char *path = getenv("TD_STANDIN_CALLS");
    if (path && *path) write_down(&l);
    return !l.lacks;
}
