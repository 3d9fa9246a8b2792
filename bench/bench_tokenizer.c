/*
 * Encoding speed on one core. usage: bench_tokenizer TOKENIZER_DIR TEXT_FILE [ROUNDS]
 *
 * warm: the thread's word cache is full of the text's words. cold: each round runs on a new thread, whose cache is empty.
 * lines: as warm, one call a line. Medians of CPU time; one row of CSV each.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tandem.h"

/* Of this thread on its core: other load on the machine counts only as far as it shares caches and execution units. */
static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct {
    const td_tokenizer *tok;
    const char         *text;
    size_t              len;
    bool                by_line;
    double              seconds;
    size_t              n_ids;
} job;

static void *encode(void *arg) {
    job   *j = arg;
    double start = cpu_s();
    j->n_ids = 0;
    for (size_t at = 0; at < j->len;) {
        const char *newline = j->by_line ? memchr(j->text + at, '\n', j->len - at) : NULL;
        size_t      n = newline ? (size_t)(newline - (j->text + at)) + 1 : j->len - at;
        uint32_t   *ids;
        size_t      n_ids;
        if (td_tokenizer_encode(j->tok, j->text + at, n, true, false, &ids, &n_ids) != TD_OK) exit(1);
        free(ids);
        j->n_ids += n_ids;
        at += n;
    }
    j->seconds = cpu_s() - start;
    return NULL;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, const job *j, double *seconds, size_t rounds) {
    qsort(seconds, rounds, sizeof *seconds, by_value);
    double median = seconds[rounds / 2];
    printf("%s,%zu,%zu,%.2f,%.2f,%.2f\n", name, j->len, j->n_ids, (double)j->len / median / 1e6,
           (double)j->len / seconds[0] / 1e6, (double)j->n_ids / median / 1e6);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER_DIR TEXT_FILE [ROUNDS]\n");
        return 2;
    }
    size_t rounds = argc > 3 ? strtoul(argv[3], NULL, 10) : 11;
    FILE  *f = fopen(argv[2], "rb");
    if (!f || rounds == 0 || rounds > 1000) return 2;
    fseek(f, 0, SEEK_END);
    size_t len = (size_t)ftell(f);
    rewind(f);
    char   *text = malloc(len + 1);
    double *seconds = malloc(rounds * sizeof *seconds);
    if (!text || !seconds || fread(text, 1, len, f) != len) return 1;
    fclose(f);

    td_tokenizer *tok;
    td_error      err = {0};
    double        start = cpu_s();
    if (td_tokenizer_open(argv[1], &tok, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("# tandem " TD_VERSION ", 1 thread, load %.3f s, %zu rounds\n", cpu_s() - start, rounds);
    printf("case,bytes,ids,MB_per_s_median,MB_per_s_best,Mids_per_s_median\n");
    job j = {.tok = tok, .text = text, .len = len};
    for (size_t i = 0; i < rounds; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, encode, &j) != 0) return 1;
        pthread_join(thread, NULL);
        seconds[i] = j.seconds;
    }
    report("cold", &j, seconds, rounds);
    for (int lines = 0; lines < 2; lines++) {
        j.by_line = lines;
        encode(&j);
        for (size_t i = 0; i < rounds; i++) {
            encode(&j);
            seconds[i] = j.seconds;
        }
        report(lines ? "lines" : "warm", &j, seconds, rounds);
    }
    td_tokenizer_close(tok);
    free(text);
    free(seconds);
    return 0;
}
