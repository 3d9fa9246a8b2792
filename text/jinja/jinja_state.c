/* Memory, limits and errors of the template code. */
#include "text/jinja/jinja_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define CHUNK_BYTES ((size_t)64 << 10)

struct jj_chunk {
    jj_chunk *older;
    size_t    bytes;
    _Alignas(16) char data[];
};

void td_jj_arena_free(jj_arena *arena) {
    for (jj_chunk *c = arena->chunks, *older; c; c = older) {
        older = c->older;
        free(c);
    }
    *arena = (jj_arena){0};
}

_Noreturn static void leave(jj_state *s, td_status status) {
    s->status = status;
    longjmp(s->fail, 1);
}

/* A td_error holds one line, so line breaks of the template's own messages become spaces. */
static void one_line(td_error *err) {
    if (!err) return;
    for (char *p = err->text; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
}

void td_jj_fail(jj_state *s, td_status status, const char *fmt, ...) {
    char    text[TD_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (s->line)
        td_fail(s->err, status, "chat template, line %u: %s", (unsigned)s->line, text);
    else
        td_fail(s->err, status, "chat template: %s", text);
    one_line(s->err);
    leave(s, status);
}

void td_jj_raise(jj_state *s, const char *text, size_t len) {
    td_fail(s->err, TD_EINVAL, "%.*s", (int)(len < TD_ERROR_TEXT_MAX ? len : TD_ERROR_TEXT_MAX), text);
    one_line(s->err);
    leave(s, TD_EINVAL);
}

void td_jj_charge(jj_state *s, uint64_t steps) {
    if (steps > s->steps_left)
        td_jj_fail(s, TD_EINVAL, "the template does more work than is allowed for this request: %" PRIu64 " steps",
                   s->steps);
    s->steps_left -= steps;
}

void td_jj_allow(jj_state *s, uint64_t steps, size_t text_bytes) {
    s->steps = s->steps_left = steps;
    s->text_bytes = text_bytes;
}

void td_jj_check_text(jj_state *s, size_t n) {
    if (n > s->text_bytes)
        td_jj_fail(s, TD_EINVAL, "the template makes a longer text than is allowed for this request: %zu MiB",
                   s->text_bytes >> 20);
}

void td_jj_enter(jj_state *s) {
    if (s->depth >= JJ_EVAL_DEPTH_MAX) td_jj_fail(s, TD_EINVAL, "nested deeper than %u levels", JJ_EVAL_DEPTH_MAX);
    s->depth++;
}

void td_jj_leave(jj_state *s) {
    s->depth--;
}

_Noreturn static void fail_memory(jj_state *s) {
    td_jj_fail(s, TD_ENOMEM, "the template needs more memory than is allowed: %zu MiB", JJ_ARENA_BYTES_MAX >> 20);
}

void *td_jj_alloc(jj_state *s, size_t n) {
    jj_arena *a = &s->arena;
    if (n > JJ_ARENA_BYTES_MAX) fail_memory(s);
    td_jj_charge(s, n / 64);
    n = (n + 15) & ~(size_t)15;
    if (n > (size_t)(a->end - a->next)) {
        size_t    bytes = n > CHUNK_BYTES / 4 ? n : CHUNK_BYTES;
        jj_chunk *c = NULL;
        if (a->bytes + bytes <= JJ_ARENA_BYTES_MAX) c = malloc(sizeof *c + bytes);
        if (!c) fail_memory(s);
        c->bytes = bytes;
        a->bytes += bytes;
        if (n > CHUNK_BYTES / 4 && a->chunks) { /* a large object does not waste the rest of the newest chunk */
            c->older = a->chunks->older;
            a->chunks->older = c;
            return c->data;
        }
        c->older = a->chunks;
        a->chunks = c;
        a->next = c->data;
        a->end = c->data + bytes;
    }
    void *p = a->next;
    a->next += n;
    return p;
}

void *td_jj_calloc(jj_state *s, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) fail_memory(s);
    void *p = td_jj_alloc(s, bytes);
    memset(p, 0, bytes);
    return p;
}

void *td_jj_grow(jj_state *s, void *array, size_t n, size_t *cap, size_t item_bytes) {
    if (n < *cap) return array;
    size_t room = *cap ? *cap * 2 : 4, bytes;
    if (__builtin_mul_overflow(room, item_bytes, &bytes)) fail_memory(s);
    void *moved = td_jj_alloc(s, bytes);
    if (n) memcpy(moved, array, n * item_bytes);
    *cap = room;
    return moved;
}

void td_jj_put(jj_state *s, jj_buf *b, const char *p, size_t n) {
    td_jj_check_text(s, b->n + n);
    if (b->n + n > b->cap) {
        size_t room = b->cap * 2 > b->n + n ? b->cap * 2 : b->n + n + 32;
        char  *moved = td_jj_alloc(s, room);
        if (b->n) memcpy(moved, b->p, b->n);
        b->p = moved;
        b->cap = room;
    }
    td_jj_charge(s, n / 64);
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

void td_jj_puts(jj_state *s, jj_buf *b, const char *text) {
    td_jj_put(s, b, text, strlen(text));
}

void td_jj_printf(jj_state *s, jj_buf *b, const char *fmt, ...) {
    char    text[256];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n > 0) td_jj_put(s, b, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}
