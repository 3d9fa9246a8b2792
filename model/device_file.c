#include "model/device_file.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "cpu_experts/packed_io.h"
#include "kernels/machine/checksum.h"

#define MAGIC "TDDEVICE"
#define VERSION 1

/* The file: header, entries, zeros to a whole page; then the weights, each on whole pages. Little-endian. */
typedef struct {
    char     magic[8];
    uint32_t version, n_entries;
    char     tag[TD_NPU_TAG_BYTES];
    uint64_t source_hash;
    uint64_t header_bytes; /* with the entries, whole pages */
    uint64_t payload_bytes;
    uint64_t header_hash; /* XXH3-64 of the header's bytes with this field 0 */
} file_header;

typedef struct {
    uint32_t role, layer, format, rank;
    uint64_t key, n, k;
    uint32_t layout[TD_NPU_LAYOUT_WORDS];
    uint64_t offset, bytes; /* in the payload */
    uint64_t hash;          /* kernels/machine/checksum.h */
} file_entry;

_Static_assert(sizeof(file_header) == 112 && sizeof(file_entry) == 80, "a file format: change VERSION with it");

struct td_device_file {
    td_file_map        map;
    const file_header *header; /* in the map */
    const file_entry  *entries;
};

static uint64_t hash_header(const void *header_and_entries, size_t bytes) {
    file_header   h = *(const file_header *)header_and_entries;
    XXH3_state_t *state = XXH3_createState();
    if (!state) return 0;
    h.header_hash = 0;
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, &h, sizeof h);
    XXH3_64bits_update(state, (const char *)header_and_entries + sizeof h, bytes - sizeof h);
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash ? hash : 1;
}

static size_t header_bytes_of(size_t n_entries) {
    return td_round_up(sizeof(file_header) + n_entries * sizeof(file_entry), TD_FILE_BLOCK);
}

/* ---- reading --------------------------------------------------------------------------------- */

static td_status check_payload(const td_device_file *f, const char *path, td_pool *pool, td_error *err) {
    size_t            n = f->header->n_entries;
    td_checksum_span *spans = calloc(n + 1, sizeof *spans);
    uint64_t         *hash = calloc(n + 1, sizeof *hash);
    td_status         st = spans && hash ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the checksums of %s", path);
    for (size_t i = 0; st == TD_OK && i < n; i++)
        spans[i] = (td_checksum_span){f->map.base + f->header->header_bytes + f->entries[i].offset, f->entries[i].bytes};
    if (st == TD_OK) st = td_checksums(pool, spans, n, hash, err);
    for (size_t i = 0; st == TD_OK && i < n; i++)
        if (hash[i] != f->entries[i].hash)
            st = td_fail(err, TD_EFORMAT, "%s is corrupt: the checksum of weight %zu does not match", path, i);
    free(spans);
    free(hash);
    return st;
}

static td_status check(td_device_file *f, const char *path, const char *tag, uint64_t source_hash, td_pool *pool,
                       td_error *err) {
    const file_header *h = (const file_header *)f->map.base;
    if (f->map.bytes < sizeof *h || memcmp(h->magic, MAGIC, sizeof h->magic))
        return td_fail(err, TD_EFORMAT, "%s holds no device weights", path);
    if (h->version != VERSION)
        return td_fail(err, TD_EFORMAT, "%s has device format version %u, not %d", path, h->version, VERSION);
    if (h->header_bytes != header_bytes_of(h->n_entries) || h->header_bytes > f->map.bytes ||
        h->payload_bytes != f->map.bytes - h->header_bytes || h->payload_bytes == 0)
        return td_fail(err, TD_EFORMAT, "%s is truncated or damaged", path);
    if (hash_header(h, h->header_bytes) != h->header_hash)
        return td_fail(err, TD_EFORMAT, "%s is corrupt: the checksum of its header does not match", path);
    if (strncmp(h->tag, tag, sizeof h->tag) || h->source_hash != source_hash)
        return td_fail(err, TD_EFORMAT,
                       "%s is of another checkpoint, of files that were changed since, or of another kind of device", path);
    f->header = h;
    f->entries = (const file_entry *)(h + 1);
    for (uint32_t i = 0; i < h->n_entries; i++) {
        const file_entry *e = &f->entries[i];
        if (e->offset % TD_FILE_BLOCK || e->offset > h->payload_bytes || e->bytes > h->payload_bytes - e->offset ||
            e->bytes == 0)
            return td_fail(err, TD_EFORMAT, "%s has a weight beyond its end", path);
    }
    return check_payload(f, path, pool, err);
}

td_status td_device_file_open(const char *path, const char *tag, uint64_t source_hash, td_pool *pool, td_device_file **out,
                              td_error *err) {
    td_device_file *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return td_fail(err, TD_ENOMEM, "out of memory for %s", path);
    td_status st = td_file_map_open(&f->map, path, err);
    if (st == TD_OK) st = check(f, path, tag, source_hash, pool, err);
    if (st != TD_OK) {
        td_device_file_close(f);
        return st;
    }
    *out = f;
    return TD_OK;
}

void td_device_file_close(td_device_file *f) {
    if (!f) return;
    td_file_map_close(&f->map);
    free(f);
}

bool td_device_file_find(const td_device_file *f, const td_device_weight_id *id, td_npu_packed *out) {
    for (uint32_t i = 0; i < f->header->n_entries; i++) {
        const file_entry *e = &f->entries[i];
        if (e->role != id->role || e->layer != id->layer || e->key != id->key) continue;
        *out = (td_npu_packed){.format = (td_weight_format)e->format,
                               .rank = e->rank,
                               .n = e->n,
                               .k = e->k,
                               .data = f->map.base + f->header->header_bytes + e->offset,
                               .bytes = e->bytes};
        memcpy(out->layout, e->layout, sizeof out->layout);
        return true;
    }
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* @param h room for header and entries, zeroed @param hash [n] */
static void fill_header(file_header *h, const char *tag, uint64_t source_hash, const td_device_weight_id *ids,
                        const td_npu_packed *weights, const uint64_t *hash, size_t n) {
    file_entry *entries = (file_entry *)(h + 1);
    uint64_t    at = 0;
    for (size_t i = 0; i < n; i++) {
        const td_npu_packed *w = &weights[i];
        entries[i] = (file_entry){.role = ids[i].role,
                                  .layer = ids[i].layer,
                                  .key = ids[i].key,
                                  .format = (uint32_t)w->format,
                                  .rank = w->rank,
                                  .n = w->n,
                                  .k = w->k,
                                  .offset = at,
                                  .bytes = w->bytes,
                                  .hash = hash[i]};
        memcpy(entries[i].layout, w->layout, sizeof entries[i].layout);
        at += td_round_up(w->bytes, TD_FILE_BLOCK);
    }
    *h = (file_header){.version = VERSION,
                       .n_entries = (uint32_t)n,
                       .source_hash = source_hash,
                       .header_bytes = header_bytes_of(n),
                       .payload_bytes = at};
    memcpy(h->magic, MAGIC, sizeof h->magic);
    memcpy(h->tag, tag, strnlen(tag, sizeof h->tag));
    h->header_hash = hash_header(h, h->header_bytes);
}

td_status td_device_file_write(const char *path, const char *tag, uint64_t source_hash, td_pool *pool,
                               const td_device_weight_id *ids, const td_npu_packed *weights, size_t n, td_error *err) {
    static const char zeros[TD_FILE_BLOCK];
    file_header      *h = aligned_alloc(TD_FILE_BLOCK, header_bytes_of(n));
    packed_part      *parts = calloc(1 + 2 * n, sizeof *parts),
                *next = parts; /* the header; of each weight its bytes and what fills its last page */
    td_checksum_span *spans = calloc(n + 1, sizeof *spans);
    uint64_t         *hash = calloc(n + 1, sizeof *hash);
    td_status         st = h && parts && spans && hash ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for %s", path);
    for (size_t i = 0; st == TD_OK && i < n; i++) spans[i] = (td_checksum_span){weights[i].data, weights[i].bytes};
    if (st == TD_OK) st = td_checksums(pool, spans, n, hash, err);
    if (st == TD_OK) {
        memset(h, 0, header_bytes_of(n));
        fill_header(h, tag, source_hash, ids, weights, hash, n);
        *next++ = (packed_part){h, h->header_bytes};
        for (size_t i = 0; i < n; i++) {
            *next++ = (packed_part){weights[i].data, weights[i].bytes};
            *next++ = (packed_part){zeros, td_round_up(weights[i].bytes, TD_FILE_BLOCK) - weights[i].bytes};
        }
        st = td_packed_write(path, parts, (size_t)(next - parts), err);
    }
    free(h);
    free(parts);
    free(spans);
    free(hash);
    return st;
}
