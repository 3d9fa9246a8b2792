#include "image/base64.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* 6 bits; 64 and more for what is not of the alphabet. */
static uint32_t value_of(char c) {
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char       *at = c ? strchr(ALPHABET, c) : NULL;
    return at ? (uint32_t)(at - ALPHABET) : 64;
}

static void fill_values(uint8_t values[256]) {
    for (int c = 0; c < 256; c++) values[c] = (uint8_t)value_of((char)c);
}

/* Four characters, or the two or three of the end: 18 to 24 bits, from the top. 1 << 24 and more: a character is wrong. */
static uint32_t read_group(const char *text, size_t len, const uint8_t values[256]) {
    uint32_t group = 0;
    for (size_t i = 0; i < 4; i++) {
        const uint32_t v = i < len ? values[(uint8_t)text[i]] : 0;
        if (v >= 64) return 1 << 24;
        group |= v << (18 - 6 * i);
    }
    return group;
}

/* Without the padding, which is either all there or not at all. */
static size_t length_without_padding(const char *text, size_t len) {
    if (len % 4) return len;
    for (int i = 0; i < 2 && len && text[len - 1] == '='; i++) len--;
    return len;
}

td_status td_base64_decode(const char *text, size_t len, uint64_t bytes_max, uint8_t **out, size_t *n, td_error *err) {
    uint8_t values[256];
    len = length_without_padding(text, len);
    const size_t bytes = len / 4 * 3 + len % 4 * 3 / 4;
    if (len % 4 == 1) return td_fail(err, TD_EFORMAT, "the base64 text has a length that no bytes have");
    if (bytes > bytes_max)
        return td_fail(err, TD_ELIMIT, "the picture's file has %zu bytes; at most %" PRIu64 " are taken", bytes, bytes_max);
    uint8_t *to = malloc(bytes + 3);
    if (!to) return td_fail(err, TD_ENOMEM, "out of memory for the picture's file");
    fill_values(values);
    for (size_t i = 0, at = 0; i < len; i += 4, at += 3) {
        const uint32_t group = read_group(text + i, len - i < 4 ? len - i : 4, values);
        if (group >> 24) {
            free(to);
            return td_fail(err, TD_EFORMAT, "the base64 text has a character that is none of base64, behind the first %zu",
                           i);
        }
        to[at] = (uint8_t)(group >> 16), to[at + 1] = (uint8_t)(group >> 8), to[at + 2] = (uint8_t)group;
    }
    *out = to, *n = bytes;
    return TD_OK;
}
