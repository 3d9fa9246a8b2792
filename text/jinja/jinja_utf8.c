/* UTF-8 and the properties of code points, as Python's str sees them. */
#include "text/jinja/jinja_utf8.h"

#include <utf8proc.h>

bool td_jj_utf8_valid(const char *p, size_t n) {
    const utf8proc_uint8_t *u = (const utf8proc_uint8_t *)p;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        if (u[i] < 0x80) {
            i++;
            continue;
        }
        utf8proc_ssize_t used = utf8proc_iterate(u + i, n - i < 4 ? (utf8proc_ssize_t)(n - i) : 4, &c);
        if (used <= 0) return false;
        i += (size_t)used;
    }
    return true;
}

size_t td_jj_utf8_len(const char *p, size_t n) {
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += ((unsigned char)p[i] & 0xc0) != 0x80;
    return len;
}

size_t td_jj_utf8_offset(const char *p, size_t n, size_t points) {
    size_t at = 0;
    while (at < n && points-- > 0) at += td_jj_utf8_size(p[at]);
    return at;
}

size_t td_jj_utf8_put(uint32_t c, char out[4]) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

uint32_t td_jj_utf8_get(const char *p, size_t *size) {
    utf8proc_int32_t c;
    *size = td_jj_utf8_size(*p);
    utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)*size, &c);
    return (uint32_t)c;
}

uint32_t td_jj_utf8_last(const char *p, size_t n, size_t *size) {
    size_t at = n - 1;
    while (at > 0 && ((unsigned char)p[at] & 0xc0) == 0x80) at--;
    return td_jj_utf8_get(p + at, size);
}

bool td_jj_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool td_jj_is_line_break(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool td_jj_is_printable(uint32_t c) {
    if (c == ' ') return true;
    switch (category(c)) {
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP: return false;
        default: return true;
    }
}

bool td_jj_is_lower(uint32_t c) {
    return utf8proc_islower((utf8proc_int32_t)c);
}
bool td_jj_is_upper(uint32_t c) {
    return utf8proc_isupper((utf8proc_int32_t)c);
}
bool td_jj_is_title(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LT;
}

bool td_jj_is_alpha(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool td_jj_is_decimal(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool td_jj_is_name_char(uint32_t c, bool first) {
    if (c < 0x80) return c == '_' || (c | 0x20) - 'a' < 26 || (!first && c - '0' < 10);
    utf8proc_category_t k = category(c);
    if (td_jj_is_alpha(c) || k == UTF8PROC_CATEGORY_NL) return true;
    return !first && (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ND ||
                      k == UTF8PROC_CATEGORY_PC);
}

int td_jj_digit_value(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9' ? (int)c - '0' : -1;
    if (!td_jj_is_decimal(c)) return -1;
    /* Decimal digits come in runs of ten that start at a zero: count back to the start of the run. The mathematical digits
     * are five runs in a row. */
    if (c >= 0x1d7ce && c <= 0x1d7ff) return (int)((c - 0x1d7ce) % 10);
    uint32_t zero = c;
    while (c - zero < 9 && td_jj_is_decimal(zero - 1)) zero--;
    return (int)(c - zero);
}
