#include "kernels/machine/checksum.h"

#include <stdlib.h>

#include "core/error.h"
#include "kernels/kernels.h"

#define PIECE_BYTES ((size_t)2 << 20)

typedef uint64_t (*hash_fn)(const void *data, size_t bytes);

typedef struct {
    const td_checksum_span *piece; /* [n_pieces of all spans] */
    uint64_t               *hash;  /* the same */
    hash_fn                 fn;
} piece_job;

static void hash_piece(void *ctx, uint32_t item, const td_worker *w) {
    piece_job *job = ctx;
    (void)w;
    job->hash[item] = job->fn(job->piece[item].data, job->piece[item].bytes);
}

static size_t n_pieces(const td_checksum_span *s) {
    return (s->bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

td_status td_checksums(td_pool *pool, const td_checksum_span *spans, size_t n, uint64_t *hash, td_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += n_pieces(&spans[i]);
    td_checksum_span *pieces = calloc(total, sizeof *pieces), *next = pieces;
    uint64_t         *hashes = calloc(total, sizeof *hashes);
    td_status         st = pieces && hashes ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for checksums");
    if (st == TD_OK) {
        piece_job job = {.piece = pieces, .hash = hashes, .fn = td_kernels_here()->checksum};
        for (size_t i = 0; i < n; i++)
            for (size_t at = 0, left; (left = spans[i].bytes - at); at += next++->bytes)
                *next = (td_checksum_span){(const char *)spans[i].data + at, left < PIECE_BYTES ? left : PIECE_BYTES};
        if (pool)
            td_pool_run(pool, hash_piece, &job, (uint32_t)total);
        else
            for (size_t i = 0; i < total; i++) hash_piece(&job, (uint32_t)i, NULL);
        for (size_t i = 0, at = 0; i < n; at += n_pieces(&spans[i++]))
            hash[i] = job.fn(hashes + at, n_pieces(&spans[i]) * sizeof *hashes);
    }
    free(pieces);
    free(hashes);
    return st;
}
