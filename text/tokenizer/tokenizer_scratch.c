/* Per-thread memory of the tokenizer. */
#include "text/tokenizer/tokenizer_scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define JIT_STACK_START_BYTES ((size_t)32 << 10)
#define JIT_STACK_MAX_BYTES ((size_t)8 << 20) /* reserved, touched only by patterns that backtrack over long runs */
#define MATCH_HEAP_MAX_KIB (512u << 10)       /* of the interpreter, which takes over when that stack is full */

/* How often the program for a window may go through a repeat for one start of a match: words take about ten. */
#define WINDOW_MATCHES_MAX 64

static __thread td_tokenizer_scratch *mine;
static pthread_key_t                  on_exit_key;
static pthread_once_t                 once = PTHREAD_ONCE_INIT;
static bool                           key_made;

static void scratch_free(void *p) {
    td_tokenizer_scratch *s = p;
    if (!s) return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->windowed);
    pcre2_match_context_free(s->counted);
    pcre2_jit_stack_free(s->jit_stack);
    free(s);
    mine = NULL;
}

static int on_step(pcre2_callout_block *b, void *work) {
    return td_encode_work_step(work, b->current_position) == TD_OK ? 0 : PCRE2_ERROR_CALLOUT;
}

/* The main thread never runs key destructors. */
static void main_thread_exit(void) {
    scratch_free(mine);
}

static void make_key(void) {
    key_made = pthread_key_create(&on_exit_key, scratch_free) == 0 && atexit(main_thread_exit) == 0;
}

td_tokenizer_scratch *td_tokenizer_scratch_get(void) {
    if (mine) return mine;
    pthread_once(&once, make_key);
    if (!key_made) return NULL;
    td_tokenizer_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->match = pcre2_match_data_create(1, NULL);
    s->windowed = pcre2_match_context_create(NULL);
    s->counted = pcre2_match_context_create(NULL);
    s->jit_stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (!s->match || !s->windowed || !s->counted || !s->jit_stack || pthread_setspecific(on_exit_key, s) != 0) {
        scratch_free(s);
        return NULL;
    }
    pcre2_jit_stack_assign(s->windowed, NULL, s->jit_stack);
    pcre2_jit_stack_assign(s->counted, NULL, s->jit_stack);
    pcre2_set_match_limit(s->windowed, WINDOW_MATCHES_MAX);
    pcre2_set_match_limit(s->counted, UINT32_MAX); /* its steps are counted instead, over all matches */
    pcre2_set_heap_limit(s->counted, MATCH_HEAP_MAX_KIB);
    pcre2_set_callout(s->counted, on_step, &s->work);
    return mine = s;
}

td_status td_tokenizer_scratch_word(td_tokenizer_scratch *s, uint64_t owner, const td_bpe *bpe, const char *word, size_t len,
                                    td_ids *out) {
    if (len == 0) return TD_OK;
    if (len > TD_WORD_BYTES_MAX) return td_bpe_word(bpe, word, len, out);
    if (s->cache_owner != owner) {
        memset(s->cache, 0, sizeof s->cache);
        s->cache_owner = owner;
    }
    uint64_t bytes[2] = {0, 0};
    memcpy(bytes, word, len);
    uint64_t        h = ((bytes[0] ^ len) * 0x9E3779B97F4A7C15u ^ bytes[1]) * 0xC2B2AE3D27D4EB4Fu;
    td_cached_word *c = &s->cache[h >> (64 - TD_WORD_CACHE_BITS)];
    if (c->len == len && c->bytes[0] == bytes[0] && c->bytes[1] == bytes[1]) {
        td_status st = td_ids_reserve(out, TD_WORD_IDS_MAX);
        if (st != TD_OK) return st;
        memcpy(out->v + out->n, c->ids, sizeof c->ids);
        out->n += c->n_ids;
        return TD_OK;
    }
    size_t    before = out->n;
    td_status st = td_bpe_word(bpe, word, len, out);
    if (st != TD_OK || out->n - before > TD_WORD_IDS_MAX) return st;
    *c = (td_cached_word){.bytes = {bytes[0], bytes[1]}, .len = (uint8_t)len, .n_ids = (uint8_t)(out->n - before)};
    memcpy(c->ids, out->v + before, (out->n - before) * sizeof *c->ids);
    return TD_OK;
}
