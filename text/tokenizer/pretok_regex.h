/*
 * The regular expressions of tokenizer files, run by PCRE2 with JIT.
 *
 * The files are written for Oniguruma (Ruby syntax) or Rust's regex crates. PCRE2 reads most of that alike, but some of it
 * differently and without a complaint, so a pattern is translated first:
 *   \s \S          Unicode White_Space, spelled out (PCRE2's \s also takes U+180E)
 *   \p{Han}        \p{sc:Han}: the script (PCRE2 10.40 and later take script extensions)
 *   \p{L}          [\p{L}…] with what Unicode 15 and 16 added (PCRE2 10.42 knows 14); not for \P inside a class
 *   [A&&[^B]]      (?:(?![B])[A]) (PCRE2 reads "&&[" as members of the class)
 *   [A[B]]         [AB]
 *   ^ $            at every line
 *   \v \uHHHH {,n} \x0B, \x{HHHH}, {0,n}
 * What has another meaning and no translation (\w \b \h, {n,m}+, posix classes, …) is refused.
 */
#ifndef TD_TEXT_PRETOK_REGEX_H
#define TD_TEXT_PRETOK_REGEX_H

#include "text/tokenizer/tokenizer_scratch.h"

typedef struct td_regex td_regex;

/** Compile a pattern of len bytes. @return TD_ENOTSUP or TD_EFORMAT with a sentence that quotes what cannot be used. */
TD_NODISCARD td_status td_regex_compile(const char *pattern, size_t len, td_regex **out, td_error *err);
void                   td_regex_free(td_regex *re);

/**
 * The first match in s[from, len) that is not empty, at [*start, *end); *start == len when there is none. s is valid UTF-8.
 * Lookarounds see all of s[0, len) and nothing else.
 * @return TD_ENOMEM; TD_ELIMIT or TD_ECANCELLED as scratch->work says. Thread-safe.
 */
TD_NODISCARD td_status td_regex_find(const td_regex *re, td_tokenizer_scratch *scratch, const char *s, size_t len,
                                     size_t from, size_t *start, size_t *end);

/** The translation alone, for tests: a malloc'd, terminated PCRE2 pattern. */
TD_NODISCARD td_status td_regex_translate(const char *pattern, size_t len, char **out, td_error *err);

#endif
