/* Tokenizers of byte-level BPE with random merges, for the engine's tests: ids 0 to 3 as the fake model has them. */
#ifndef TD_TESTS_RANDOM_TOKENIZER_H
#define TD_TESTS_RANDOM_TOKENIZER_H

#include "tandem.h"

/** How the vocabulary has the markers of a reasoning. */
typedef enum { MARKERS_IN_PIECES, MARKERS_ADDED, MARKERS_SPECIAL } marker_tokens;

#define RANDOM_TOKENIZER_DIR_MAX 64

/**
 * Write one to a new folder. Its merges are drawn from pairs in `texts`; ">\n" and "k> " are tokens, which no text is
 * encoded to.
 * @param dir         [RANDOM_TOKENIZER_DIR_MAX] receives the folder's path; random_tokenizer_remove.
 * @param open, close the markers.
 */
void random_tokenizer_write(uint64_t seed, const char *const *texts, size_t n_texts, marker_tokens markers, const char *open,
                            const char *close, char *dir);
void random_tokenizer_remove(const char *dir);

#endif
