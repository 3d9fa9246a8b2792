/* UTF-8 of template strings. Every function but td_jj_utf8_valid takes valid UTF-8 only. */
#ifndef TD_TEXT_JINJA_UTF8_H
#define TD_TEXT_JINJA_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool   td_jj_utf8_valid(const char *p, size_t n);
size_t td_jj_utf8_len(const char *p, size_t n);                   /* code points */
size_t td_jj_utf8_offset(const char *p, size_t n, size_t points); /* bytes of the first points, at most n */
size_t td_jj_utf8_put(uint32_t c, char out[4]);                   /* bytes written */

/** Decode the code point at p; *size receives its bytes. */
uint32_t td_jj_utf8_get(const char *p, size_t *size);
/** Decode the last code point of p[0, n), n > 0. */
uint32_t td_jj_utf8_last(const char *p, size_t n, size_t *size);

static inline size_t td_jj_utf8_size(char lead) { /* bytes of the code point that starts with lead */
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Python's str predicates of one code point. */
bool td_jj_is_space(uint32_t c);
bool td_jj_is_printable(uint32_t c);
bool td_jj_is_line_break(uint32_t c);
bool td_jj_is_lower(uint32_t c);
bool td_jj_is_upper(uint32_t c);
bool td_jj_is_title(uint32_t c);
bool td_jj_is_alpha(uint32_t c);
bool td_jj_is_decimal(uint32_t c);               /* category Nd */
bool td_jj_is_name_char(uint32_t c, bool first); /* of an identifier */
int  td_jj_digit_value(uint32_t c);              /* of a decimal digit, else -1 */

#endif
