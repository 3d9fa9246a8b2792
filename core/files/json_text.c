#include "core/files/json_text.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/mem.h"

#define PIECE_BYTES 256 /* bytes of text handed to jansson at a time */

/* Bytes that a parse may still allocate after its text was cut off. A string's buffers were doubled up to twice the text (4
 * len in all). The value and the key made of it take 2 len. Each byte of the last piece may become an empty object or array
 * (below 400 bytes). */
#define RESERVE_BYTES(len) (6 * (len) + 400 * PIECE_BYTES + 4096)

/* The parse or dump that this thread is in. */
typedef struct {
    const char *text; /* [len] of the parse under way */
    size_t      len, at;
    char       *reserve; /* NULL: no parse is under way */
    size_t      reserve_bytes, reserve_used;
    bool        out_of_memory; /* an allocation has failed since the parse or dump began */
} parse;

static _Thread_local parse t_parse;
static pthread_once_t      g_once = PTHREAD_ONCE_INIT;

static void *allocate(size_t bytes) {
    parse *p = &t_parse;
    void  *block = p->reserve && p->out_of_memory ? NULL : malloc(bytes);
    if (block) return block;
    p->out_of_memory = true;
    if (!p->reserve) return NULL;
    size_t rounded = td_round_up(bytes, _Alignof(max_align_t));
    if (rounded < bytes || rounded > p->reserve_bytes - p->reserve_used) return NULL;
    block = p->reserve + p->reserve_used;
    p->reserve_used += rounded;
    return block;
}

static void release(void *block) {
    const parse *p = &t_parse;
    if (p->reserve && (char *)block >= p->reserve && (char *)block < p->reserve + p->reserve_bytes) return;
    free(block);
}

static void install(void) {
    json_set_alloc_funcs(allocate, release);
}

static size_t next_piece(void *to, size_t max, void *arg) {
    parse *p = arg;
    size_t n = p->len - p->at < PIECE_BYTES ? p->len - p->at : PIECE_BYTES;
    if (p->out_of_memory) return 0;
    if (n > max) n = max;
    memcpy(to, p->text + p->at, n);
    p->at += n;
    return n;
}

td_status td_json_load(const char *text, size_t len, size_t flags, json_t **out, json_error_t *why) {
    parse *p = &t_parse;
    size_t reserve_bytes = len < SIZE_MAX / 8 ? RESERVE_BYTES(len) : SIZE_MAX;
    pthread_once(&g_once, install);
    *out = NULL;
    *p = (parse){.text = text, .len = len, .reserve = malloc(reserve_bytes), .reserve_bytes = reserve_bytes};
    bool out_of_memory = !p->reserve;
    if (!out_of_memory) {
        *out = json_load_callback(next_piece, p, flags, why);
        out_of_memory = p->out_of_memory;
        if (out_of_memory) json_decref(*out); /* part of it may lie in the reserve */
    }
    free(p->reserve);
    *p = (parse){0};
    if (!out_of_memory) return *out ? TD_OK : TD_EFORMAT;
    *out = NULL;
    snprintf(why->text, sizeof why->text, "out of memory");
    return TD_ENOMEM;
}

/* Write a finite real with the fewest digits that give it again, with a point or an exponent. @return its length. */
static size_t write_real(char out[40], double v) {
    char text[32], digits[18];
    int  n = 1, exponent, at = 0;
    do snprintf(text, sizeof text, "%.*e", n - 1, v);
    while (strtod(text, NULL) != v && n++ < 17);
    const char *c = text + (text[0] == '-');
    for (int i = 0; i < n; c++)
        if (*c != '.') digits[i++] = *c;
    while (n > 1 && digits[n - 1] == '0') n--;
    exponent = atoi(strchr(text, 'e') + 1);
    if (text[0] == '-') out[at++] = '-';
    bool plain = exponent >= -4 && exponent < 17; /* as %.17g does, so it is never longer */
    if (plain && exponent < 0) at += sprintf(out + at, "0.%0*d", -exponent - 1, 0) - (exponent == -1);
    for (int i = 0; i < n || (plain && i <= exponent); i++) {
        out[at++] = i < n ? digits[i] : '0';
        if (i == (plain ? exponent : 0) && (i + 1 < n || plain)) out[at++] = '.';
    }
    if (out[at - 1] == '.') out[at++] = '0';
    if (!plain) at += sprintf(out + at, "e%d", exponent);
    return (size_t)at;
}

/* Write each real of a JSON text, which has 17 digits, with no more than it needs; it becomes no longer. */
static void shorten_reals(char *text) {
    char *to = text, real[40];
    bool  in_string = false;
    for (const char *at = text; *at;) {
        size_t n = in_string || (*at != '-' && (*at < '0' || *at > '9')) ? 0 : strspn(at, "-+.0123456789eE");
        if (strcspn(at, ".eE") < n) {
            size_t n_real = write_real(real, strtod(at, NULL));
            memcpy(to, real, n_real);
            to += n_real;
            at += n;
            continue;
        }
        if (*at == '"') in_string = !in_string;
        if (*at == '\\') *to++ = *at++; /* an escaped quote does not end the string */
        *to++ = *at++;
    }
    *to = 0;
}

char *td_json_dump(const json_t *root, size_t flags) {
    pthread_once(&g_once, install);
    t_parse.out_of_memory = false;
    bool  digits_given = flags & JSON_REAL_PRECISION(31);
    char *text = json_dumps(root, digits_given ? flags : flags | JSON_REAL_PRECISION(17));
    if (t_parse.out_of_memory) {
        free(text);
        return NULL;
    }
    if (text && !digits_given) shorten_reals(text);
    return text;
}

json_t *td_json_name(const char *name) {
    json_t *v = json_string(name);
    char   *copy = v ? NULL : strdup(name);
    for (char *p = copy; p && *p; p++)
        if (*p & 0x80) *p = '?';
    if (copy) v = json_string(copy);
    free(copy);
    return v;
}
