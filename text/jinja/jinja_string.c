/* Python's str operations on UTF-8. */
#include "text/jinja/jinja_string.h"

#include <string.h>
#include <utf8proc.h>

#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_utf8.h"

static bool has_char(const jj_str *chars, uint32_t c) {
    for (size_t at = 0, size; at < chars->n; at += size)
        if (td_jj_utf8_get(chars->p + at, &size) == c) return true;
    return false;
}

jj_value td_jj_strip(jj_state *s, const jj_str *str, const jj_str *chars, int sides) {
    const char *p = str->p, *end = str->p + str->n;
    size_t      size;
    uint64_t    looked_at = 0;
    while ((sides & JJ_STRIP_LEFT) && p < end) {
        uint32_t c = td_jj_utf8_get(p, &size);
        if (chars ? !has_char(chars, c) : !td_jj_is_space(c)) break;
        p += size;
        looked_at++;
    }
    while ((sides & JJ_STRIP_RIGHT) && p < end) {
        uint32_t c = td_jj_utf8_last(p, (size_t)(end - p), &size);
        if (chars ? !has_char(chars, c) : !td_jj_is_space(c)) break;
        end -= size;
        looked_at++;
    }
    td_jj_charge(s, looked_at * ((chars ? chars->n : 0) / 16 + 1) / 4);
    return td_jj_str(s, p, (size_t)(end - p));
}

jj_value td_jj_replace(jj_state *s, const jj_str *str, const jj_str *old, const jj_str *with, int64_t count) {
    jj_buf      b = {0};
    const char *p = str->p, *end = str->p + str->n;
    td_jj_charge(s, str->n / 64);
    if (old->n == 0) { /* between all characters */
        for (; count != 0; count--) {
            td_jj_charge(s, 1);
            td_jj_put(s, &b, with->p, with->n);
            if (p == end) return td_jj_str_buf(s, &b);
            size_t size = td_jj_utf8_size(*p);
            td_jj_put(s, &b, p, size);
            p += size;
        }
    } else {
        for (; count != 0; count--) {
            const char *hit = memmem(p, (size_t)(end - p), old->p, old->n);
            if (!hit) break;
            td_jj_charge(s, 1);
            td_jj_put(s, &b, p, (size_t)(hit - p));
            td_jj_put(s, &b, with->p, with->n);
            p = hit + old->n;
        }
    }
    td_jj_put(s, &b, p, (size_t)(end - p));
    return td_jj_str_buf(s, &b);
}

/* ---- case: utf8proc's one-to-one mappings, and the one expansion that German text meets ---- */

typedef enum { LOWER, UPPER, TITLE } letter_case;

static void put_case(jj_state *s, jj_buf *b, uint32_t c, letter_case to) {
    char utf8[4];
    if (c == 0xdf && to != LOWER) { /* sharp s */
        td_jj_put(s, b, to == UPPER ? "SS" : "Ss", 2);
        return;
    }
    utf8proc_int32_t in = (utf8proc_int32_t)c;
    utf8proc_int32_t out = to == LOWER ? utf8proc_tolower(in) : to == UPPER ? utf8proc_toupper(in) : utf8proc_totitle(in);
    td_jj_put(s, b, utf8, td_jj_utf8_put((uint32_t)out, utf8));
}

static void put_all(jj_state *s, jj_buf *b, const char *p, size_t n, letter_case to) {
    td_jj_charge(s, n / 8);
    for (size_t at = 0, size; at < n; at += size) put_case(s, b, td_jj_utf8_get(p + at, &size), to);
}

jj_value td_jj_upper(jj_state *s, const jj_str *str) {
    jj_buf b = {0};
    put_all(s, &b, str->p, str->n, UPPER);
    return td_jj_str_buf(s, &b);
}

jj_value td_jj_lower(jj_state *s, const jj_str *str) {
    jj_buf b = {0};
    put_all(s, &b, str->p, str->n, LOWER);
    return td_jj_str_buf(s, &b);
}

/* The first character in one case, the others lower. */
static void put_word(jj_state *s, jj_buf *b, const char *p, size_t n, letter_case first) {
    size_t size;
    if (n == 0) return;
    put_case(s, b, td_jj_utf8_get(p, &size), first);
    put_all(s, b, p + size, n - size, LOWER);
}

jj_value td_jj_capitalize(jj_state *s, const jj_str *str) {
    jj_buf b = {0};
    put_word(s, &b, str->p, str->n, TITLE);
    return td_jj_str_buf(s, &b);
}

static bool cased(uint32_t c) {
    return td_jj_is_lower(c) || td_jj_is_upper(c) || td_jj_is_title(c);
}

jj_value td_jj_title(jj_state *s, const jj_str *str) {
    jj_buf b = {0};
    bool   inside = false;
    td_jj_charge(s, str->n / 8);
    for (size_t at = 0, size; at < str->n; at += size) {
        uint32_t c = td_jj_utf8_get(str->p + at, &size);
        put_case(s, &b, c, inside ? LOWER : TITLE);
        inside = cased(c);
    }
    return td_jj_str_buf(s, &b);
}

static bool between_words(uint32_t c) {
    return td_jj_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
}

jj_value td_jj_title_filter(jj_state *s, const jj_str *str) {
    jj_buf b = {0};
    for (size_t at = 0, end, size; at < str->n; at = end) { /* runs of separators and runs of others take turns */
        bool outside = between_words(td_jj_utf8_get(str->p + at, &size));
        end = at + size;
        while (end < str->n && between_words(td_jj_utf8_get(str->p + end, &size)) == outside) end += size;
        put_word(s, &b, str->p + at, end - at, UPPER);
    }
    return td_jj_str_buf(s, &b);
}

bool td_jj_is_cased(jj_state *s, const jj_str *str, bool upper) {
    bool any = false;
    td_jj_charge(s, str->n / 4);
    for (size_t at = 0, size; at < str->n; at += size) {
        uint32_t c = td_jj_utf8_get(str->p + at, &size);
        if (td_jj_is_title(c) || (upper ? td_jj_is_lower(c) : td_jj_is_upper(c))) return false;
        any |= upper ? td_jj_is_upper(c) : td_jj_is_lower(c);
    }
    return any;
}

/* ---- split and join ---- */

static void add_piece(jj_state *s, jj_list *list, const char *from, const char *to) {
    td_jj_charge(s, 1);
    td_jj_append(s, list, td_jj_str(s, from, (size_t)(to - from)));
}

static void split_at(jj_state *s, jj_list *list, const jj_str *str, const jj_str *sep, int64_t max) {
    const char *p = str->p, *end = str->p + str->n, *hit;
    for (; max != 0 && (hit = memmem(p, (size_t)(end - p), sep->p, sep->n)); max--) {
        add_piece(s, list, p, hit);
        p = hit + sep->n;
    }
    add_piece(s, list, p, end);
}

static const char *find_last(const char *p, const char *end, const jj_str *sep) {
    for (const char *at = end - sep->n; at >= p && (size_t)(end - p) >= sep->n; at--)
        if (!memcmp(at, sep->p, sep->n)) return at;
    return NULL;
}

static void rsplit_at(jj_state *s, jj_list *list, const jj_str *str, const jj_str *sep, int64_t max) {
    const char *p = str->p, *end = str->p + str->n, *hit;
    td_jj_charge(s, str->n * (sep->n / 64 + 1) / 16);
    for (; max != 0 && (hit = find_last(p, end, sep)); max--) {
        add_piece(s, list, hit + sep->n, end);
        end = hit;
    }
    add_piece(s, list, p, end);
}

static const char *skip_space(const char *p, const char *end, bool space) {
    size_t size;
    while (p < end && td_jj_is_space(td_jj_utf8_get(p, &size)) == space) p += size;
    return p;
}

static const char *skip_space_back(const char *p, const char *end, bool space) {
    size_t size;
    while (end > p && td_jj_is_space(td_jj_utf8_last(p, (size_t)(end - p), &size)) == space) end -= size;
    return end;
}

static void split_words(jj_state *s, jj_list *list, const jj_str *str, int64_t max) {
    const char *end = str->p + str->n, *p = skip_space(str->p, end, true);
    for (; p < end && max != 0; max--) {
        const char *stop = skip_space(p, end, false);
        add_piece(s, list, p, stop);
        p = skip_space(stop, end, true);
    }
    if (p < end) add_piece(s, list, p, end); /* the rest keeps its white space at the end */
}

static void rsplit_words(jj_state *s, jj_list *list, const jj_str *str, int64_t max) {
    const char *p = str->p, *end = skip_space_back(p, p + str->n, true);
    for (; end > p && max != 0; max--) {
        const char *start = skip_space_back(p, end, false);
        add_piece(s, list, start, end);
        end = skip_space_back(p, start, true);
    }
    if (end > p) add_piece(s, list, p, end);
}

static void reverse(jj_list *list) {
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        jj_value t = list->at[i];
        list->at[i] = list->at[--j];
        list->at[j] = t;
    }
}

jj_value td_jj_split(jj_state *s, const jj_str *str, const jj_str *sep, int64_t max, bool from_right) {
    jj_value list = td_jj_list(s, JJ_LIST);
    if (sep && !sep->n) td_jj_fail(s, TD_EINVAL, "empty separator");
    td_jj_charge(s, str->n / 64);
    if (from_right) {
        if (sep)
            rsplit_at(s, list.u.list, str, sep, max);
        else
            rsplit_words(s, list.u.list, str, max);
        reverse(list.u.list);
    } else if (sep) {
        split_at(s, list.u.list, str, sep, max);
    } else {
        split_words(s, list.u.list, str, max);
    }
    return list;
}

jj_value td_jj_splitlines(jj_state *s, const jj_str *str, bool keep_ends) {
    jj_value    list = td_jj_list(s, JJ_LIST);
    const char *end = str->p + str->n, *line = str->p;
    size_t      size;
    td_jj_charge(s, str->n / 16);
    for (const char *p = line; p < end; p += size) {
        if (!td_jj_is_line_break(td_jj_utf8_get(p, &size))) continue;
        const char *next = p + size;
        if (*p == '\r' && next < end && *next == '\n') next++;
        add_piece(s, list.u.list, line, keep_ends ? next : p);
        line = next;
        size = (size_t)(next - p);
    }
    if (line < end) add_piece(s, list.u.list, line, end);
    return list;
}

jj_value td_jj_join(jj_state *s, const jj_str *sep, jj_value items, bool convert) {
    jj_buf    b = {0};
    jj_value  v;
    jj_cursor c = td_jj_begin(s, items);
    for (size_t k = 0; td_jj_next(s, &c, &v); k++) {
        if (k) td_jj_put(s, &b, sep->p, sep->n);
        if (!convert && v.kind != JJ_STR)
            td_jj_fail(s, TD_EINVAL, "sequence item %zu: expected str instance, %s found", k, td_jj_type(&v));
        td_jj_write(s, &b, &v);
    }
    return td_jj_str_buf(s, &b);
}

static void put_blanks(jj_state *s, jj_buf *b, int64_t n) {
    static const char BLANKS[] = "                                                                ";
    for (int64_t some; n > 0; n -= some) {
        some = n < (int64_t)sizeof BLANKS - 1 ? n : (int64_t)sizeof BLANKS - 1;
        td_jj_charge(s, 1);
        td_jj_put(s, b, BLANKS, (size_t)some);
    }
}

jj_value td_jj_center(jj_state *s, const jj_str *str, int64_t width) {
    jj_buf b = {0};
    td_jj_charge(s, str->n / 64);
    int64_t blanks = width - (int64_t)td_jj_utf8_len(str->p, str->n);
    if (blanks < 0 || width < 0) blanks = 0;
    int64_t left = blanks / 2 + (blanks & width & 1);
    put_blanks(s, &b, left);
    td_jj_put(s, &b, str->p, str->n);
    put_blanks(s, &b, blanks - left);
    return td_jj_str_buf(s, &b);
}
