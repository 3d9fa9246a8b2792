/*
 * Time of token masks. usage: bench_grammar TOKENIZER_DIR ROUNDS GRAMMAR...
 *
 * A grammar is a file NAME.schema, NAME.regex or NAME.ebnf; beside it, NAME.txt has a text of its language. Each round
 * compiles the grammar and goes through the text token by token, as the tokenizer cuts it, and computes the mask before each
 * token. It prints two rows of CSV. In "new" nothing is known of the grammar in any round; in "used" another request has
 * used the grammar before. A row has the microseconds of CPU time per mask, and the means of the trie nodes and of the
 * stacks that a mask looked at. Then it has the milliseconds before the first mask (td_grammar_place_open), without
 * compiling.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tandem.h"
#include "text/grammar/grammar.h"

typedef struct {
    const char *name;
    double     *us; /* [room] */
    size_t      n, room;
    uint64_t    work;
    double      open_us; /* of all rounds */
} measured;

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "bench_grammar: %s: %s\n", what, why);
    exit(1);
}

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) fail(path, "cannot be read");
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*len + 1);
    if (!text || fread(text, 1, *len, f) != *len) fail(path, "cannot be read");
    fclose(f);
    return text;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *grammar, measured *m, size_t rounds) {
    qsort(m->us, m->n, sizeof *m->us, by_value);
    double sum = 0;
    for (size_t i = 0; i < m->n; i++) sum += m->us[i];
    printf("%s,%s,%zu,%.1f,%.1f,%.1f,%.1f,%.0f,%.1f\n", grammar, m->name, m->n, m->us[m->n / 2], m->us[m->n * 99 / 100],
           m->us[m->n - 1], sum / (double)m->n, (double)m->work / (double)m->n, m->open_us / 1e3 / (double)rounds);
}

static void add(measured *m, double us, uint64_t work) {
    if (m->n == m->room) {
        m->room = m->room ? 2 * m->room : 1024;
        m->us = realloc(m->us, m->room * sizeof *m->us);
        if (!m->us) fail("times", "out of memory");
    }
    m->us[m->n++] = us;
    m->work += work;
}

/* Masks along the text. */
static void follow(td_grammar *g, td_vocab_trie *trie, const td_tokenizer *tok, const uint32_t *ids, size_t n, measured *m) {
    td_grammar_place *p;
    td_error          err = {0};
    double            begin = cpu_us();
    if (td_grammar_place_open(g, trie, &p, &err) != TD_OK) fail("a place", err.text);
    m->open_us += cpu_us() - begin;
    for (size_t i = 0; i < n; i++) {
        uint32_t   *mask;
        size_t      len;
        bool        special;
        double      start = cpu_us();
        td_status   st = td_grammar_place_mask(p, &mask);
        double      us = cpu_us() - start;
        const char *bytes = td_tokenizer_token(tok, ids[i], &len, &special);
        add(m, us, td_grammar_place_work(p));
        bool allowed = st == TD_OK && mask[ids[i] / 32] >> ids[i] % 32 & 1;
        if (!allowed || td_grammar_place_advance(p, bytes, len) != TD_OK) {
            fprintf(stderr, "bench_grammar: token %zu ('%.*s') is not of the grammar\n", i, (int)len, bytes);
            exit(1);
        }
    }
    td_grammar_place_close(p);
}

static td_grammar_kind kind_of(const char *path) {
    const char *end = strrchr(path, '.');
    if (end && strcmp(end, ".schema") == 0) return TD_GRAMMAR_JSON_SCHEMA;
    if (end && strcmp(end, ".regex") == 0) return TD_GRAMMAR_REGEX;
    if (end && strcmp(end, ".ebnf") == 0) return TD_GRAMMAR_EBNF;
    fail(path, "the name ends with none of .schema, .regex and .ebnf");
    return TD_GRAMMAR_REGEX;
}

static void measure(const char *path, size_t rounds, td_vocab_trie *trie, const td_tokenizer *tok) {
    char            text_path[4096];
    size_t          source_len, text_len, n;
    td_grammar_kind kind = kind_of(path);
    int             stem = (int)(strrchr(path, '.') - path);
    const char     *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (snprintf(text_path, sizeof text_path, "%.*s.txt", stem, path) >= (int)sizeof text_path) fail(path, "too long");
    char     *source = read_file(path, &source_len), *text = read_file(text_path, &text_len);
    uint32_t *ids;
    td_error  err = {0};
    measured  fresh = {.name = "new"}, used = {.name = "used"};
    if (td_tokenizer_encode(tok, text, text_len, false, false, &ids, &n) != TD_OK || n == 0) fail(text_path, "no tokens");
    for (size_t i = 0; i < rounds; i++) {
        td_grammar *g;
        if (td_grammar_compile(kind, source, source_len, &g, &err) != TD_OK) fail(path, err.text);
        follow(g, trie, tok, ids, n, &fresh);
        follow(g, trie, tok, ids, n, &used);
        td_grammar_release(g);
    }
    report(name, &fresh, rounds);
    report(name, &used, rounds);
    free(fresh.us);
    free(used.us);
    free(ids);
    free(source);
    free(text);
}

int main(int argc, char **argv) {
    size_t rounds = argc > 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (rounds == 0 || rounds > 1000) {
        fprintf(stderr, "usage: bench_grammar TOKENIZER_DIR ROUNDS GRAMMAR...\n");
        return 2;
    }
    td_tokenizer  *tok;
    td_vocab_trie *trie;
    td_error       err = {0};
    if (td_tokenizer_open(argv[1], &tok, &err) != TD_OK) fail(argv[1], err.text);
    double start = cpu_us();
    if (td_vocab_trie_make(tok, (uint32_t)td_tokenizer_vocab_size(tok), &trie) != TD_OK) fail("the trie", "out of memory");
    double         trie_ms = (cpu_us() - start) / 1e3;
    const td_trie *all = &trie->parts[TD_TRIE_SHORT], *longer = &trie->parts[TD_TRIE_LONG];
    printf("# tandem " TD_VERSION ", 1 thread, %u tokens in tries of %u nodes made in %.0f ms\n",
           all->n_tokens + longer->n_tokens, all->n_nodes + longer->n_nodes, trie_ms);
    printf("grammar,state,masks,us_median,us_p99,us_longest,us_mean,work_mean,open_ms\n");
    for (int i = 3; i < argc; i++) measure(argv[i], rounds, trie, tok);
    td_vocab_trie_release(trie);
    td_tokenizer_close(tok);
    return 0;
}
