/*
 * What the template code shares while it compiles or renders: memory, limits and the way out on an error.
 *
 * Everything that a compilation or a rendering makes lives in one arena and is freed with it. So a failing path has nothing
 * to clean up: td_jj_fail leaves by longjmp to the only setjmp of that compilation or rendering, in chat_template.c.
 * Between setjmp and longjmp no code may hold a resource that the arena does not own.
 */
#ifndef TD_TEXT_JINJA_STATE_H
#define TD_TEXT_JINJA_STATE_H

#include <setjmp.h>

#include "tandem.h"

#define JJ_SOURCE_BYTES_MAX ((size_t)4 << 20)  /* of a template */
#define JJ_ARENA_BYTES_MAX ((size_t)512 << 20) /* of one compilation or rendering */
#define JJ_TEXT_BYTES_MAX ((size_t)64 << 20)   /* of one string and of the rendered text */
#define JJ_STEPS_MAX ((uint64_t)20 << 20)      /* nodes visited, items passed, 64-byte pieces of text made or searched */
/* A rendering has so much whatever its request, and so much more a byte of it, up to the above. */
#define JJ_TEXT_BYTES_LEAST ((size_t)4 << 20)
#define JJ_TEXT_BYTES_EACH 16
#define JJ_STEPS_LEAST ((uint64_t)2 << 20)
#define JJ_STEPS_EACH 64
#define JJ_PARSE_DEPTH_MAX 150u   /* nested brackets, operators and blocks in a template */
#define JJ_EVAL_DEPTH_MAX 1000u   /* nested nodes, macro calls and containers while rendering */
#define JJ_JSON_DEPTH_MAX 200u    /* nested containers in a request */
#define JJ_RANGE_ITEMS_MAX 100000 /* jinja2.sandbox.MAX_RANGE */

typedef struct jj_chunk jj_chunk;

typedef struct {
    jj_chunk *chunks;
    char     *next, *end; /* free part of the newest chunk */
    size_t    bytes;      /* held by all chunks */
} jj_arena;

void td_jj_arena_free(jj_arena *arena);

typedef struct jj_state {
    jj_arena                     arena;
    jmp_buf                      fail;
    td_error                    *err; /* may be NULL */
    td_status                    status;
    uint64_t                     steps, steps_left; /* in all, and of these */
    size_t                       text_bytes;        /* of one string at most */
    size_t                       given_bytes;       /* of the request's strings, and 16 for each value */
    uint32_t                     depth;
    uint32_t                     line; /* of the statement or token at hand, for messages; 0: none */
    const struct jj_environment *env;  /* what names mean (jinja_environment.h) */
} jj_state;

/** n bytes, 16-byte aligned, not cleared. Fails with TD_ENOMEM at the limit. */
void *td_jj_alloc(jj_state *s, size_t n);
/** n zeroed objects of a size. */
void *td_jj_calloc(jj_state *s, size_t n, size_t size);

/** Room for one more item in an array of *cap items: doubles it when n == *cap. Returns the array, moved or not. */
void *td_jj_grow(jj_state *s, void *array, size_t n, size_t *cap, size_t item_bytes);

/** Leave with an error "line N: sentence" (without the line where s->line is 0). */
_Noreturn void td_jj_fail(jj_state *s, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);
/** Leave with this sentence alone: the template's own words. */
_Noreturn void td_jj_raise(jj_state *s, const char *text, size_t len);

void td_jj_allow(jj_state *s, uint64_t steps, size_t text_bytes); /* set the limits of work and text */
void td_jj_charge(jj_state *s, uint64_t steps);                   /* fails when the steps are spent */
void td_jj_check_text(jj_state *s, size_t n);                     /* fails for a text of more bytes than are allowed */
void td_jj_enter(jj_state *s);                                    /* one level deeper; fails at JJ_EVAL_DEPTH_MAX */
void td_jj_leave(jj_state *s);

/* A growing piece of text. Zero-initialise. */
typedef struct {
    char  *p;
    size_t n, cap;
} jj_buf;

void td_jj_put(jj_state *s, jj_buf *b, const char *p, size_t n);
void td_jj_puts(jj_state *s, jj_buf *b, const char *text);
void td_jj_printf(jj_state *s, jj_buf *b, const char *fmt, ...) TD_PRINTF(3, 4); /* at most 255 bytes */

#endif
