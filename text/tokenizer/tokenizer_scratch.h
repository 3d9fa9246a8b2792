/*
 * What encoding keeps per thread: PCRE2's match data and JIT stack, a count of the work, and a bounded cache of words.
 *
 * One block per thread, made on first use and freed when the thread ends; no locks. The cache belongs to the tokenizer that
 * used it last (by serial number, since an address may be reused) and is emptied when another one comes.
 */
#ifndef TD_TEXT_TOKENIZER_SCRATCH_H
#define TD_TEXT_TOKENIZER_SCRATCH_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/encode_work.h"

#define TD_WORD_CACHE_BITS 14 /* 16384 words x 40 bytes: English text has a few thousand distinct words per megabyte */
#define TD_WORD_BYTES_MAX 16  /* longer words are not cached */
#define TD_WORD_IDS_MAX 4     /* nor those of more ids */

typedef struct {
    uint64_t bytes[TD_WORD_BYTES_MAX / 8]; /* the word, zero-padded */
    uint8_t  len;                          /* 0: unused */
    uint8_t  n_ids;
    uint32_t ids[TD_WORD_IDS_MAX];
} td_cached_word;

typedef struct {
    pcre2_match_data    *match;
    pcre2_match_context *windowed, *counted; /* of the two programs of a regex: pretok_regex.c */
    pcre2_jit_stack     *jit_stack;
    td_encode_work       work;        /* on the text that is being encoded */
    uint64_t             cache_owner; /* serial of the tokenizer whose words are cached; 0: nobody's */
    td_cached_word       cache[1 << TD_WORD_CACHE_BITS];
} td_tokenizer_scratch;

/** This thread's block, or NULL when memory ran out. */
td_tokenizer_scratch *td_tokenizer_scratch_get(void);

/** td_bpe_word through the cache. owner: the tokenizer's serial number, not 0. */
TD_NODISCARD td_status td_tokenizer_scratch_word(td_tokenizer_scratch *s, uint64_t owner, const td_bpe *bpe,
                                                 const char *word, size_t len, td_ids *out);

#endif
