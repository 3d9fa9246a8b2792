#include "eval/logprob_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "eval/logit_rows.h"

#define MAGIC "TDLOGPRB"
#define VERSION 1
#define VOCAB_MAX (1u << 24)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little endian");
_Static_assert(sizeof(td_logprob_header) == 56, "no padding");

typedef struct {
    float    target, range;
    uint16_t code[];
} file_row;

static size_t row_bytes(uint32_t vocab) {
    return sizeof(file_row) + (size_t)vocab * sizeof(uint16_t);
}

static td_logprob_header header_for(const td_scored_text *t, uint32_t vocab) {
    td_logprob_header h = {.version = VERSION,
                           .vocab = vocab,
                           .window = t->protocol.window,
                           .stride = t->protocol.stride,
                           .limit = t->protocol.limit,
                           .text_hash = t->hash,
                           .n_rows = t->n_scored,
                           .n_windows = t->n_windows};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    return h;
}

static td_status set_up(td_logprob_file *file, const char *path, uint32_t vocab, td_error *err) {
    file->vocab = vocab;
    file->row = malloc(row_bytes(vocab));
    return file->row ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for %s", path);
}

/* ---- writing --------------------------------------------------------------------------------- */

static td_status create(td_logprob_file *file, const char *path, const td_scored_text *t, uint32_t vocab, td_error *err) {
    td_logprob_header h = header_for(t, vocab);
    TD_TRY(set_up(file, path, vocab, err));
    TD_TRY(td_partial_file_create(&file->written, path, err));
    return td_partial_file_write(&file->written, &h, sizeof h, err);
}

td_status td_logprob_file_create(td_logprob_file *file, const char *path, const td_scored_text *t, uint32_t vocab,
                                 td_error *err) {
    *file = (td_logprob_file){0};
    td_status st = create(file, path, t, vocab, err);
    if (st != TD_OK) td_logprob_file_close(file);
    return st;
}

td_status td_logprob_file_write(td_logprob_file *file, const float *logits, double lse, uint32_t target, td_error *err) {
    file_row *row = (file_row *)file->row;
    row->target = (float)(logits[target] - lse);
    td_logprobs_encode(logits, lse, file->vocab, &row->range, row->code);
    return td_partial_file_write(&file->written, row, row_bytes(file->vocab), err);
}

td_status td_logprob_file_finish(td_logprob_file *file, td_error *err) {
    return td_partial_file_finish(&file->written, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

static td_status check_header(const td_logprob_header *h, const td_scored_text *t, const char *path, td_error *err) {
    td_logprob_header want = header_for(t, h->vocab);
    if (memcmp(h->magic, MAGIC, sizeof h->magic))
        return td_fail(err, TD_EFORMAT, "%s is not a file of log-probabilities", path);
    if (h->version != VERSION)
        return td_fail(err, TD_EFORMAT, "%s has version %u of the format, this program reads %d", path, h->version, VERSION);
    if (h->vocab == 0 || h->vocab > VOCAB_MAX)
        return td_fail(err, TD_EFORMAT, "%s is damaged: a vocabulary of %u", path, h->vocab);
    if (h->window != want.window || h->stride != want.stride || h->limit != want.limit)
        return td_fail(err, TD_EINVAL, "%s was made with window %u, stride %u and limit %llu: use the same", path, h->window,
                       h->stride, (unsigned long long)h->limit);
    if (h->text_hash != want.text_hash)
        return td_fail(err, TD_EINVAL, "%s was made from another text, or with another tokenizer", path);
    if (memcmp(h, &want, sizeof want)) return td_fail(err, TD_EFORMAT, "%s is damaged: its header contradicts itself", path);
    return TD_OK;
}

static td_status open_file(td_logprob_file *file, const char *path, const td_scored_text *t, td_error *err) {
    td_logprob_header h;
    struct stat       s;
    size_t            rows, size;
    if (!(file->f = fopen(path, "rb"))) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    if (fread(&h, sizeof h, 1, file->f) != 1)
        return td_fail(err, TD_EFORMAT, "%s is not a file of log-probabilities: it is too short", path);
    TD_TRY(check_header(&h, t, path, err));
    bool fits =
        !__builtin_mul_overflow(h.n_rows, row_bytes(h.vocab), &rows) && !__builtin_add_overflow(rows, sizeof h, &size);
    if (!fits || fstat(fileno(file->f), &s) != 0 || (uint64_t)s.st_size != size)
        return td_fail(err, TD_EFORMAT, "%s is damaged: it should have %zu bytes", path, fits ? size : SIZE_MAX);
    file->path = strdup(path);
    if (!file->path) return td_fail(err, TD_ENOMEM, "out of memory for %s", path);
    return set_up(file, path, h.vocab, err);
}

td_status td_logprob_file_open(td_logprob_file *file, const char *path, const td_scored_text *t, td_error *err) {
    *file = (td_logprob_file){0};
    td_status st = open_file(file, path, t, err);
    if (st != TD_OK) td_logprob_file_close(file);
    return st;
}

td_status td_logprob_file_read(td_logprob_file *file, float *logprobs, float *target_logprob, td_error *err) {
    file_row *row = (file_row *)file->row;
    if (fread(row, row_bytes(file->vocab), 1, file->f) != 1)
        return td_fail(err, TD_EIO, "%s cannot be read any more", file->path);
    if (!(row->target <= 1e-3f && isfinite(row->target)) || !(row->range >= 0 && row->range <= TD_CODE_RANGE_MAX))
        return td_fail(err, TD_EFORMAT, "%s is damaged: a row is not one of log-probabilities", file->path);
    td_logprobs_decode(row->range, row->code, file->vocab, logprobs);
    *target_logprob = row->target;
    return TD_OK;
}

void td_logprob_file_close(td_logprob_file *file) {
    if (file->f) fclose(file->f);
    td_partial_file_close(&file->written);
    free(file->path);
    free(file->row);
    *file = (td_logprob_file){0};
}
