/*
 * Three forms that tests are written in.
 *
 *   FREED float *x = malloc(bytes);                     memory of malloc, freed where its block ends
 *   AT_END(close_pair) pair p = open_pair();            close_pair(&p) is called there
 *   run(&WITH(td_ffn_args, .n_tok = 3, .top_k = 2));    named arguments: a struct whose other fields are zero
 *
 * What a block opened first ends last. A case that fails leaves its blocks at once, and nothing is called.
 */
#ifndef TD_TESTS_FORMS_H
#define TD_TESTS_FORMS_H

#include <stdlib.h>
#include <string.h>

/** end(&variable) is called where the variable's block ends, also by a return out of it. */
#define AT_END(end) __attribute__((cleanup(end)))

/** name(type **), for AT_END of a pointer whose function is end(type *). NULL: nothing is called. */
#define AT_END_OF(name, type, end)             \
    static inline void name(type **variable) { \
        if (*variable) end(*variable);         \
    }

static inline void free_at_end(void *variable) { /* of any pointer type */
    void *p;
    memcpy(&p, variable, sizeof p);
    free(p);
}
#define FREED AT_END(free_at_end)

#define WITH(type, ...) \
    (type) {            \
        __VA_ARGS__     \
    }

#endif
