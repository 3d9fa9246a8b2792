/* str.format: fields by position or name, with .attributes and [items] after them, !s and !r; no format specifications. */
#include "text/jinja/jinja_format.h"

#include <string.h>

#include "text/jinja/jinja_access.h"
#include "text/jinja/jinja_text.h"

typedef struct {
    jj_state      *s;
    const jj_args *args;
    size_t         next; /* of the fields without a number */
    bool           automatic, manual;
} formatter;

/* A field's digits as an index; false: it is a name. */
static bool as_index(const char *p, size_t n, size_t *index) {
    *index = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9' || *index > SIZE_MAX / 10 - 10) return false;
        *index = *index * 10 + (size_t)(p[i] - '0');
    }
    return n > 0;
}

static jj_value positional(formatter *f, size_t index) {
    if (index >= f->args->n)
        td_jj_fail(f->s, TD_EINVAL, "Replacement index %zu out of range for positional args tuple", index);
    return f->args->at[index];
}

static jj_value argument(formatter *f, const char *name, size_t n) {
    size_t index;
    bool   numbered = as_index(name, n, &index);
    f->automatic = f->automatic || n == 0;
    f->manual = f->manual || numbered;
    if (f->automatic && f->manual)
        td_jj_fail(f->s, TD_EINVAL, "format: fields with numbers and fields without do not go together");
    if (n == 0) return positional(f, f->next++);
    if (numbered) return positional(f, index);
    const jj_str key = {name, n, 0};
    for (size_t i = 0; i < f->args->n_kw; i++)
        if (td_jj_str_equal(f->args->kw[i].key.u.s, &key)) return f->args->kw[i].value;
    td_jj_fail(f->s, TD_EINVAL, "format: there is no argument '%.*s'", (int)(n < 100 ? n : 100), name);
}

/* The value of a field without its conversion: an argument, and the path into it. */
static jj_value look_up(formatter *f, const char *p, size_t n) {
    size_t at = 0, index;
    while (at < n && p[at] != '.' && p[at] != '[') at++;
    jj_value v = argument(f, p, at);
    while (at < n) {
        bool        item = p[at] == '[';
        size_t      from = ++at;
        const char *end = item ? memchr(p + from, ']', n - from) : NULL;
        if (item && !end) td_jj_fail(f->s, TD_EINVAL, "format: expected ']' in a field");
        while (!item && at < n && p[at] != '.' && p[at] != '[') at++;
        if (item) at = (size_t)(end - p);
        if (at == from) td_jj_fail(f->s, TD_EINVAL, "format: an empty attribute in a field");
        jj_value key = td_jj_str(f->s, p + from, at - from);
        if (item && as_index(p + from, at - from, &index)) key = jj_int((int64_t)index);
        v = item ? td_jj_getitem(f->s, v, &key) : td_jj_getattr(f->s, v, key.u.s);
        at += item;
        if (item && at < n && p[at] != '.' && p[at] != '[')
            td_jj_fail(f->s, TD_EINVAL, "format: only '.' or '[' may follow ']'");
    }
    return v;
}

static void write_field(formatter *f, jj_buf *out, const char *p, size_t n) {
    const char *spec = memchr(p, ':', n), *conversion = memchr(p, '!', spec ? (size_t)(spec - p) : n);
    const char *end = conversion ? conversion : spec ? spec : p + n;
    if (memchr(p, '{', n)) td_jj_fail(f->s, TD_ENOTSUP, "format: fields within fields are not supported");
    if (spec && spec + 1 < p + n)
        td_jj_fail(f->s, TD_ENOTSUP, "format: the specification '%.*s' is not supported",
                   (int)(p + n - spec < 40 ? p + n - spec : 40), spec);
    size_t n_conversion = conversion ? (size_t)((spec ? spec : p + n) - conversion) : 0;
    if (conversion && (n_conversion != 2 || (conversion[1] != 's' && conversion[1] != 'r')))
        td_jj_fail(f->s, TD_ENOTSUP, "format: the conversions are !s and !r");
    jj_value v = look_up(f, p, (size_t)(end - p));
    if (conversion && conversion[1] == 'r')
        td_jj_write_repr(f->s, out, &v);
    else
        td_jj_write(f->s, out, &v);
}

jj_value td_jj_format(jj_state *s, const jj_str *str, const jj_args *args) {
    formatter   f = {.s = s, .args = args};
    jj_buf      out = {0};
    const char *p = str->p, *end = p + str->n;
    td_jj_charge(s, str->n / 16);
    while (p < end) {
        const char *from = p;
        while (p < end && *p != '{' && *p != '}') p++;
        td_jj_put(s, &out, from, (size_t)(p - from));
        if (p == end) break;
        if (p + 1 < end && p[1] == *p) { /* a brace that was written twice */
            td_jj_put(s, &out, p, 1);
            p += 2;
            continue;
        }
        if (*p == '}') td_jj_fail(s, TD_EINVAL, "Single '}' encountered in format string");
        const char *close = memchr(p, '}', (size_t)(end - p));
        if (!close)
            td_jj_fail(s, TD_EINVAL,
                       p + 1 == end ? "Single '{' encountered in format string" : "expected '}' before end of string");
        write_field(&f, &out, p + 1, (size_t)(close - p - 1));
        p = close + 1;
    }
    return td_jj_str_buf(s, &out);
}
