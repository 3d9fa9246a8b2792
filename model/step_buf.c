#include "model/step_buf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"

#define POWERS_UP_TO \
    256 /* above, buckets are an eighth of a power of two apart: a copy of half-empty buckets would be long */

/* ---- buckets --------------------------------------------------------------------------------- */

static uint32_t next_size(uint32_t n) {
    if (n < POWERS_UP_TO) return n * 2;
    uint32_t power = POWERS_UP_TO;
    while (power <= n / 2) power *= 2;
    return n + power / 8;
}

static uint32_t count_buckets(uint32_t max_tok) {
    uint32_t n = 1;
    for (uint32_t size = 1; size < max_tok; size = next_size(size)) n++;
    return n;
}

uint32_t td_step_bucket_rows(uint32_t n, uint32_t max_tok) {
    uint32_t size = 1;
    while (size < n) size = next_size(size);
    return size < max_tok ? size : max_tok;
}

uint32_t td_step_spare_rows(uint32_t max_tok) {
    uint32_t most = 0;
    for (uint32_t size = 1, smallest = 1; smallest <= max_tok; smallest = size + 1, size = next_size(size)) {
        uint32_t spare = (size < max_tok ? size : max_tok) - smallest;
        if (spare > most) most = spare;
    }
    return most;
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* Where the next array begins. */
typedef struct {
    char  *host, *dev; /* NULL while sizes are counted */
    size_t at;
} cursor;

static void place(cursor *c, size_t bytes, void *host_member, void *dev_member) {
    if (c->host) {
        *(const void **)host_member = c->host + c->at;
        *(const void **)dev_member = c->dev + c->at;
    }
    c->at += td_round_up(bytes, TD_CACHE_LINE);
}

#define PLACE(member, n) place(c, (n) * sizeof *s->host.member, &s->host.member, &s->dev.member)

/* What a half has for itself; its rows are the whole step's. */
static void place_sequences(cursor *c, const td_step_shape *shape, td_step *s) {
    PLACE(counts, 1);
    PLACE(seq_start, (size_t)s->max_seq + 1);
    PLACE(kv_len, s->max_seq);
    PLACE(absorbed, s->max_seq);
    PLACE(block_table, (size_t)s->max_seq * s->block_stride);
    if (shape->windows) PLACE(window_table, (size_t)s->max_seq * s->block_stride);
    if (!shape->recurrent) return;
    PLACE(state_in, s->max_seq);
    PLACE(state_out, s->max_seq);
    PLACE(state_open, s->max_seq);
}

static void place_rows(cursor *c, const td_step_shape *shape, td_step *s) {
    PLACE(token, s->max_tok);
    PLACE(pos, s->max_tok);
    PLACE(slot, s->max_tok);
    if (shape->windows) PLACE(window_slot, s->max_tok);
    if (shape->rope_axes) PLACE(rope_pos, 3 * (size_t)s->max_tok);
    if (shape->images) PLACE(image_row, s->max_tok);
    PLACE(out_row, s->max_out);
}

static td_step_arrays rows_from(td_step_arrays own, const td_step_arrays *whole, uint32_t first) {
    own.token = whole->token + first;
    own.pos = whole->pos + first;
    own.slot = whole->slot + first;
    own.window_slot = whole->window_slot ? whole->window_slot + first : NULL;
    own.rope_pos = whole->rope_pos ? whole->rope_pos + 3 * (size_t)first : NULL;
    own.image_row = whole->image_row ? whole->image_row + first : NULL;
    return own;
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* @param smallest step of the bucket. @param host, dev NULL: only bucket->bytes is of use. */
static void lay_out(td_step_bucket *b, const td_step_shape *shape, uint32_t smallest, char *host, char *dev) {
    cursor   c = {.host = host, .dev = dev};
    uint32_t stride = shape->max_seq_tokens / TD_KV_PAGE + 1, first = td_first_half(b->max_tok);
    bool     halves = smallest >= TD_HALVES && shape->splits && shape->splits(shape->user, smallest);
    b->n_halves = halves ? TD_HALVES : 1;
    b->whole = (td_step){.max_tok = b->max_tok,
                         .max_seq = least(shape->max_seq, b->max_tok),
                         .max_out = least(shape->max_out, b->max_tok),
                         .first_row = shape->first_row,
                         .block_stride = stride};
    place_sequences(&c, shape, &b->whole);
    place_rows(&c, shape, &b->whole);
    for (uint32_t h = 0; halves && h < TD_HALVES; h++) {
        td_step *s = &b->half[h];
        *s = b->whole;
        s->max_out = 0;
        s->first_row = shape->first_row + h * first;
        s->max_tok = h ? b->max_tok - first : first;
        s->max_seq = least(shape->max_seq, s->max_tok);
        place_sequences(&c, shape, s);
        if (!host) continue;
        s->host = rows_from(s->host, &b->whole.host, h * first);
        s->dev = rows_from(s->dev, &b->whole.dev, h * first);
    }
    b->bytes = c.at;
}

/* Every bucket in turn; with memory they are laid out, without they are measured. @return the largest one's bytes. */
static size_t lay_out_all(const td_step_shape *shape, td_step_bucket *buckets, char *host, char *dev) {
    size_t   most = 0;
    uint32_t smallest = 1, i = 0;
    for (uint32_t size = 1;; size = next_size(size), i++) {
        td_step_bucket measured, *b = buckets ? &buckets[i] : &measured;
        *b = (td_step_bucket){.max_tok = least(size, shape->max_tok)};
        lay_out(b, shape, smallest, host, dev);
        if (b->bytes > most) most = b->bytes;
        if (size >= shape->max_tok) return most;
        smallest = size + 1;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t td_step_buf_bytes(const td_step_shape *shape) {
    return td_round_up(lay_out_all(shape, NULL, NULL, NULL), td_page_bytes());
}

td_status td_step_buf_open(td_step_buf *b, const td_step_shape *shape, td_npu *npu, td_error *err) {
    td_npu_caps caps;
    npu->ops->caps(npu, &caps);
    *b = (td_step_buf){.npu = npu,
                       .unified = caps.unified_memory,
                       .max_seq = shape->max_seq,
                       .max_out = shape->max_out,
                       .block_stride = shape->max_seq_tokens / TD_KV_PAGE + 1,
                       .n = count_buckets(shape->max_tok),
                       .bytes = td_step_buf_bytes(shape)};
    b->buckets = calloc(b->n, sizeof *b->buckets);
    if (!b->buckets) return td_fail(err, TD_ENOMEM, "out of memory for the buckets of a step");
    TD_TRY(npu->ops->host_alloc(npu, b->bytes, (void **)&b->host, err));
    if (b->unified)
        b->dev = b->host;
    else
        TD_TRY(npu->ops->alloc(npu, b->bytes, (void **)&b->dev, err));
    lay_out_all(shape, b->buckets, b->host, b->dev);
    return TD_OK;
}

void td_step_buf_close(td_step_buf *b) {
    if (b->dev && b->dev != b->host) b->npu->ops->free(b->npu, b->dev, b->bytes);
    if (b->host) b->npu->ops->host_free(b->npu, b->host, b->bytes);
    free(b->buckets);
    *b = (td_step_buf){0};
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The arrays are ours to write. */
#define WRITABLE(type, pointer) ((type *)(uintptr_t)(pointer))

/* Sequence n of the step is sequence q of the rows, without the first `cut` of its rows. */
static void fill_state(const td_step *s, uint32_t n, const td_step_rows *rows, uint32_t q, uint32_t cut) {
    uint32_t first = rows->kv_len[q] - (rows->seq_start[q + 1] - rows->seq_start[q]);
    bool     block_ended = first / TD_STATE_BLOCK != (first + cut) / TD_STATE_BLOCK;
    WRITABLE(uint32_t, s->host.state_in)[n] = block_ended ? rows->state_out[q] : rows->state_in[q];
    WRITABLE(uint32_t, s->host.state_out)[n] = rows->state_out[q];
    WRITABLE(uint32_t, s->host.state_open)[n] = rows->state_open[q];
}

/* The pages of sequence n of the step, those of sequence q of the rows, as far as n_keys go. */
static void fill_tables(const td_step *s, uint32_t n, const td_step_rows *rows, uint32_t q, uint32_t n_keys) {
    const size_t bytes = td_div_up(n_keys, TD_KV_PAGE) * sizeof(uint32_t), to = (size_t)n * s->block_stride,
                 from = (size_t)q * rows->block_stride;
    memcpy(WRITABLE(uint32_t, s->host.block_table) + to, rows->block_table + from, bytes);
    if (s->host.window_table) memcpy(WRITABLE(uint32_t, s->host.window_table) + to, rows->window_table + from, bytes);
}

/* Features lie in the rows of their buffer as the step's rows do in theirs: from its first row on, one behind the other. */
static void fill_image_rows(const td_step *s, const td_step_rows *rows) {
    uint32_t *to = WRITABLE(uint32_t, s->host.image_row);
    for (uint32_t i = 0; i < rows->n_tok; i++)
        to[i] = rows->image_row[i] == TD_NO_IMAGE ? TD_NO_IMAGE : s->first_row + rows->image_row[i];
}

/* The sequences that have rows in [begin, end), cut to them. @return how many there are. */
static uint32_t fill_sequences(const td_step *s, const td_step_rows *rows, uint32_t begin, uint32_t end) {
    uint32_t *seq_start = WRITABLE(uint32_t, s->host.seq_start), *kv_len = WRITABLE(uint32_t, s->host.kv_len);
    uint32_t  n = 0;
    uint8_t  *absorbed = WRITABLE(uint8_t, s->host.absorbed);
    for (uint32_t q = 0; q < rows->n_seq; q++) {
        uint32_t first = rows->seq_start[q], last = rows->seq_start[q + 1], cut = last > end ? last - end : 0;
        if (first >= end || last <= begin) continue;
        assert(td_div_up(rows->kv_len[q], TD_KV_PAGE) <= s->block_stride);
        seq_start[n] = first > begin ? first - begin : 0;
        kv_len[n] = rows->kv_len[q] - cut;
        absorbed[n] = rows->absorbed[q];
        if (s->host.state_in) fill_state(s, n, rows, q, first < begin ? begin - first : 0);
        fill_tables(s, n++, rows, q, rows->kv_len[q] - cut);
    }
    seq_start[n] = end - begin;
    return n;
}

static void fill_part(const td_step *s, const td_step_rows *rows, uint32_t begin, uint32_t end, uint32_t n_out) {
    td_step_counts *counts = WRITABLE(td_step_counts, s->host.counts);
    *counts = (td_step_counts){.n_tok = end - begin, .n_seq = fill_sequences(s, rows, begin, end), .n_out = n_out};
}

static const td_step_bucket *bucket_of(const td_step_buf *b, uint32_t n_tok) {
    const td_step_bucket *bucket = b->buckets;
    assert(n_tok >= 1 && n_tok <= b->buckets[b->n - 1].max_tok);
    while (bucket->max_tok < n_tok) bucket++;
    return bucket;
}

const td_step_bucket *td_step_buf_count(td_step_buf *b, uint32_t n_tok) {
    const td_step_bucket *bucket = bucket_of(b, n_tok);
    *WRITABLE(td_step_counts, bucket->whole.host.counts) = (td_step_counts){.n_tok = n_tok};
    return bucket;
}

const td_step_bucket *td_step_buf_fill(td_step_buf *b, const td_step_rows *rows, const uint32_t *token,
                                       const uint32_t *out_row, uint32_t n_out) {
    const uint32_t n = rows->n_tok;
    assert(rows->n_seq <= b->max_seq && n_out <= b->max_out && n_out <= n);
    const td_step_bucket *bucket = bucket_of(b, n);
    const td_step        *s = &bucket->whole;
    memcpy(WRITABLE(uint32_t, s->host.token), token ? token : rows->token, n * sizeof *rows->token);
    memcpy(WRITABLE(uint32_t, s->host.pos), rows->pos, n * sizeof *rows->pos);
    memcpy(WRITABLE(uint32_t, s->host.slot), rows->slot, n * sizeof *rows->slot);
    if (s->host.window_slot) memcpy(WRITABLE(uint32_t, s->host.window_slot), rows->window_slot, n * sizeof *rows->slot);
    if (s->host.rope_pos) memcpy(WRITABLE(uint32_t, s->host.rope_pos), rows->rope_pos, 3 * n * sizeof *rows->rope_pos);
    assert(s->host.image_row || !rows->n_images);
    if (s->host.image_row) fill_image_rows(s, rows);
    if (n_out) memcpy(WRITABLE(uint32_t, s->host.out_row), out_row, n_out * sizeof *out_row);
    fill_part(s, rows, 0, n, n_out);
    for (uint32_t h = 0; h < bucket->n_halves && bucket->n_halves > 1; h++) {
        uint32_t first = bucket->half[h].first_row - s->first_row;
        fill_part(&bucket->half[h], rows, first, h ? n : least(n, first + bucket->half[h].max_tok), 0);
    }
    return bucket;
}

void td_step_buf_set_kind(td_step_buf *b, const td_step_bucket *bucket, td_step_kind kind) {
    td_step_bucket *own = &b->buckets[bucket - b->buckets];
    own->whole.kind = kind;
    for (uint32_t h = 0; h < TD_HALVES; h++)
        own->half[h].kind = kind; /* a half has a part of the sequences, or of one's rows */
}

td_status td_step_buf_enqueue_upload(const td_step_buf *b, const td_step_bucket *bucket, td_npu_stream *s) {
    return b->unified ? TD_OK : b->npu->ops->copy(b->npu, s, b->dev, b->host, bucket->bytes, TD_COPY_H2D);
}
