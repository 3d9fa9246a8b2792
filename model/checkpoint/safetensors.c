#include "model/checkpoint/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/memory/mem.h"
#include "kernels/machine/checksum.h"

struct td_safetensors {
    char                 *path;
    int                   fd;     /* -1: bytes in memory */
    bool                  direct; /* fd reads past the system's cache */
    const unsigned char  *data;
    size_t                size, header_bytes; /* header_bytes: the length word included */
    json_t               *header;             /* owns the names */
    td_safetensors_entry *entries;
    size_t                n_entries;
};

/* Every type of the format; a size in bits, since F4 and F6 share bytes. */
static const struct {
    char     name[12];
    uint8_t  bits;
    td_dtype dtype;
} DTYPES[] = {
    {"F32", 32, TD_DT_F32},      {"BF16", 16, TD_DT_BF16},      {"F16", 16, TD_DT_F16},   {"I8", 8, TD_DT_I8},
    {"U8", 8, TD_DT_U8},         {"I32", 32, TD_DT_I32},        {"I64", 64, TD_DT_I64},   {"F8_E4M3", 8, TD_DT_F8_E4M3},
    {"F8_E5M2", 8, TD_DT_COUNT}, {"F8_E8M0", 8, TD_DT_F8_E8M0}, {"F4", 4, TD_DT_COUNT},   {"F6_E2M3", 6, TD_DT_COUNT},
    {"F6_E3M2", 6, TD_DT_COUNT}, {"BOOL", 8, TD_DT_COUNT},      {"I16", 16, TD_DT_COUNT}, {"U16", 16, TD_DT_COUNT},
    {"U32", 32, TD_DT_COUNT},    {"U64", 64, TD_DT_COUNT},      {"F64", 64, TD_DT_COUNT}, {"C64", 64, TD_DT_COUNT},
};

const char *td_safetensors_dtype_name(td_dtype dtype) {
    size_t i = 0;
    while (DTYPES[i].dtype != dtype) i++;
    return DTYPES[i].name;
}

/* A non-negative integer that fits size_t; false for anything else. */
static bool to_size(const json_t *v, size_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (size_t)json_integer_value(v);
    return true;
}

static td_status parse_entry(td_safetensors *f, const char *name, const json_t *info, td_safetensors_entry *e,
                             td_error *err) {
    const char   *dtype = json_string_value(json_object_get(info, "dtype"));
    const json_t *shape = json_object_get(info, "shape"), *offsets = json_object_get(info, "data_offsets");
    if (!dtype || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return td_fail(err, TD_EFORMAT, "tensor '%.200s' needs dtype, shape and two data_offsets", name);

    size_t type = 0;
    while (type < sizeof DTYPES / sizeof *DTYPES && strcmp(dtype, DTYPES[type].name)) type++;
    if (type == sizeof DTYPES / sizeof *DTYPES)
        return td_fail(err, TD_EFORMAT, "tensor '%.200s' has the unknown dtype '%.40s'", name, dtype);
    if (json_array_size(shape) > TD_RANK_MAX)
        return td_fail(err, TD_EFORMAT, "tensor '%.200s' has %zu dimensions, at most %d are supported", name,
                       json_array_size(shape), TD_RANK_MAX);
    *e = (td_safetensors_entry){.name = name, .dtype_name = DTYPES[type].name, .dtype = DTYPES[type].dtype};
    e->rank = (uint32_t)json_array_size(shape);
    size_t elements = 1, bits;
    for (uint32_t i = 0; i < e->rank; i++) {
        if (!to_size(json_array_get(shape, i), &e->shape[i]))
            return td_fail(err, TD_EFORMAT, "tensor '%.200s' has a dimension that is not a size", name);
        if (!td_mul_size(elements, e->shape[i], &elements))
            return td_fail(err, TD_EFORMAT, "tensor '%.200s' has a shape whose product overflows", name);
    }
    if (!td_mul_size(elements, DTYPES[type].bits, &bits) || bits % 8)
        return td_fail(err, TD_EFORMAT, "tensor '%.200s' has a shape that is not a whole number of bytes", name);

    size_t begin, end, payload = f->size - f->header_bytes;
    if (!to_size(json_array_get(offsets, 0), &begin) || !to_size(json_array_get(offsets, 1), &end) || begin > end)
        return td_fail(err, TD_EFORMAT, "tensor '%.200s' has data_offsets that are not a range", name);
    if (end > payload)
        return td_fail(
            err, TD_EFORMAT,
            "tensor '%.200s' ends at byte %zu of the payload, but the file has only %zu: it is truncated or damaged", name,
            end, payload);
    if (end - begin != bits / 8)
        return td_fail(err, TD_EFORMAT, "tensor '%.200s' has %zu bytes, its shape and dtype need %zu", name, end - begin,
                       bits / 8);
    e->data = f->data + f->header_bytes + begin;
    e->bytes = end - begin;
    return TD_OK;
}

static int by_data(const void *a, const void *b) {
    const td_safetensors_entry *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* an empty tensor before the one that begins there */
}

static td_status check_metadata(const json_t *metadata, td_error *err) {
    const char *key;
    json_t     *v;
    if (!json_is_object(metadata)) return td_fail(err, TD_EFORMAT, "__metadata__ is not an object");
    json_object_foreach((json_t *)metadata, key, v) {
        if (!json_is_string(v)) return td_fail(err, TD_EFORMAT, "__metadata__ has '%.100s', which is not a string", key);
    }
    return TD_OK;
}

static td_status parse_header(td_safetensors *f, td_error *err) {
    uint64_t length;
    if (f->size < sizeof length) return td_fail(err, TD_EFORMAT, "%zu bytes are too few for a safetensors file", f->size);
    memcpy(&length, f->data, sizeof length);
    length = le64toh(length);
    if (length > TD_SAFETENSORS_HEADER_MAX)
        return td_fail(err, TD_EFORMAT,
                       "the header has %" PRIu64 " bytes, at most %zu are accepted; is this a safetensors file?", length,
                       TD_SAFETENSORS_HEADER_MAX);
    if (length > f->size - sizeof length)
        return td_fail(err, TD_EFORMAT,
                       "the header has %" PRIu64 " bytes, but the file only %zu: it is truncated or damaged", length,
                       f->size);
    f->header_bytes = sizeof length + (size_t)length;
    if (td_json_parse((const char *)f->data + sizeof length, (size_t)length, &f->header, err) != TD_OK)
        return td_fail_within(err, "the header");

    f->entries = calloc(json_object_size(f->header) + 1, sizeof *f->entries);
    if (!f->entries) return td_fail(err, TD_ENOMEM, "no memory for %zu tensors", json_object_size(f->header));
    const char *name;
    json_t     *info;
    json_object_foreach(f->header, name, info) {
        if (!strcmp(name, "__metadata__"))
            TD_TRY(check_metadata(info, err));
        else
            TD_TRY(parse_entry(f, name, info, &f->entries[f->n_entries++], err));
    }
    qsort(f->entries, f->n_entries, sizeof *f->entries, by_data);
    for (size_t i = 1; i < f->n_entries; i++) {
        const td_safetensors_entry *a = &f->entries[i - 1], *b = &f->entries[i];
        if ((const char *)a->data + a->bytes > (const char *)b->data)
            return td_fail(err, TD_EFORMAT, "tensors '%.150s' and '%.150s' overlap", a->name, b->name);
    }
    return TD_OK;
}

static td_safetensors *new_file(const char *path) {
    td_safetensors *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->fd = -1;
    f->path = strdup(path);
    if (f->path) return f;
    free(f);
    return NULL;
}

static td_status map_file(td_safetensors *f, td_error *err) {
    struct stat st;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO's opening would wait */
    if (f->fd < 0) return td_fail(err, errno == ENOENT ? TD_ENOTFOUND : TD_EIO, "%s", strerror(errno));
    if (fstat(f->fd, &st) != 0) return td_fail(err, TD_EIO, "%s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return td_fail(err, TD_EFORMAT, "not a regular file");
    if (st.st_size == 0) return td_fail(err, TD_EFORMAT, "the file is empty");
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, f->fd, 0);
    if (p == MAP_FAILED) return td_fail(err, TD_EIO, "cannot map the file: %s", strerror(errno));
    f->data = p;
    f->size = (size_t)st.st_size;
    madvise(p, f->size, MADV_SEQUENTIAL); /* weights are read once, front to back; failures cost speed only */
    madvise(p, f->size, MADV_HUGEPAGE);
    f->direct = fcntl(f->fd, F_SETFL, O_DIRECT) == 0; /* the mapping is not affected */
    return TD_OK;
}

td_status td_safetensors_open(const char *path, td_safetensors **out, td_error *err) {
    td_safetensors *f = new_file(path);
    *out = NULL;
    if (!f) return td_fail(err, TD_ENOMEM, "%s: out of memory", path);
    td_status s = map_file(f, err);
    if (s == TD_OK) s = parse_header(f, err);
    if (s != TD_OK) {
        td_fail_within(err, "%s", path);
        td_safetensors_close(f);
        return s;
    }
    *out = f;
    return TD_OK;
}

td_status td_safetensors_parse(const void *data, size_t size, const char *name, td_safetensors **out, td_error *err) {
    td_safetensors *f = new_file(name);
    *out = NULL;
    if (!f) return td_fail(err, TD_ENOMEM, "%s: out of memory", name);
    f->data = data;
    f->size = size;
    td_status s = parse_header(f, err);
    if (s != TD_OK) {
        td_fail_within(err, "%s", name);
        td_safetensors_close(f);
        return s;
    }
    *out = f;
    return TD_OK;
}

void td_safetensors_close(td_safetensors *f) {
    if (!f) return;
    if (f->fd >= 0) {
        if (f->data) munmap((void *)f->data, f->size);
        close(f->fd);
    }
    json_decref(f->header);
    free(f->entries);
    free(f->path);
    free(f);
}

size_t td_safetensors_count(const td_safetensors *f) {
    return f->n_entries;
}
const td_safetensors_entry *td_safetensors_at(const td_safetensors *f, size_t index) {
    return &f->entries[index];
}
const char *td_safetensors_path(const td_safetensors *f) {
    return f->path;
}

const char *td_safetensors_metadata(const td_safetensors *f, const char *key) {
    return json_string_value(json_object_get(json_object_get(f->header, "__metadata__"), key));
}

const void *td_safetensors_bytes(const td_safetensors *f, size_t *header_bytes, size_t *file_bytes) {
    *header_bytes = f->header_bytes;
    *file_bytes = f->size;
    return f->data;
}

td_status td_safetensors_checksum(const td_safetensors *f, td_pool *pool, uint64_t *out, td_error *err) {
    td_checksum_span whole = {f->data, f->size};
    TD_TRY(td_checksums(pool, &whole, 1, out, err));
    td_safetensors_release_pages(f);
    if (!*out) *out = 1;
    return TD_OK;
}

uint64_t td_safetensors_stamp(const td_safetensors *f, uint64_t seed) {
    struct stat st;
    if (f->fd < 0 || fstat(f->fd, &st) != 0) return seed;
    const uint64_t stamp[] = {(uint64_t)st.st_size, (uint64_t)st.st_ino, (uint64_t)st.st_mtim.tv_sec,
                              (uint64_t)st.st_mtim.tv_nsec};
    return XXH3_64bits_withSeed(stamp, sizeof stamp, seed);
}

void td_safetensors_release_pages(const td_safetensors *f) {
    if (f->fd >= 0) madvise((void *)f->data, f->size, MADV_DONTNEED); /* a failure costs memory only */
}

bool td_safetensors_release(const td_safetensors *f, const void *at, size_t bytes) {
    const char *p = at, *base = (const char *)f->data;
    if (p < base || p + bytes > base + f->size) return false;
    size_t page = td_page_bytes(), first = td_round_up((size_t)(p - base), page),
           end = (size_t)(p - base + bytes) / page * page;
    if (f->fd >= 0 && first < end) madvise((void *)(base + first), end - first, MADV_DONTNEED);
    return true;
}

#define PAGES_SEEN 1024 /* looked up at a time */

/* Whether most of a mapping's pages from `first` to `end` are in the system's cache. For a file of another user the system
 * always says that they are. */
static bool is_cached(const char *base, size_t first, size_t end) {
    unsigned char seen[PAGES_SEEN];
    const size_t  page = td_page_bytes();
    const char   *from = base + first / page * page;
    size_t        pages = td_div_up(end - first / page * page, page), cached = 0;
    for (size_t at = 0, n; at < pages; at += n) {
        n = pages - at < PAGES_SEEN ? pages - at : PAGES_SEEN;
        if (mincore((void *)(from + at * page), n * page, seen) != 0) return true;
        for (size_t i = 0; i < n; i++) cached += seen[i] & 1;
    }
    return cached >= pages - pages / 8;
}

const void *td_safetensors_fetch(const td_safetensors *f, const void *at, size_t bytes, void *buffer) {
    const char *p = at, *base = (const char *)f->data;
    if (p < base || p + bytes > base + f->size) return NULL;
    if (!f->direct) return at;
    size_t begin = (size_t)(p - base), first = begin / TD_FILE_BLOCK * TD_FILE_BLOCK,
           last = td_round_up(begin + bytes, TD_FILE_BLOCK), done = 0;
    if (is_cached(base, begin, begin + bytes)) return at;
    while (first + done < begin + bytes) {
        ssize_t n = pread(f->fd, (char *)buffer + done, last - first - done, (off_t)(first + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || (n % (ssize_t)TD_FILE_BLOCK && first + done + (size_t)n < begin + bytes)) return at;
        done += (size_t)n;
    }
    return (char *)buffer + (begin - first);
}

td_status td_safetensors_check_size(const td_safetensors *f, td_error *err) {
    struct stat st;
    if (f->fd < 0) return TD_OK;
    if (fstat(f->fd, &st) != 0) return td_fail(err, TD_EIO, "%s: %s", f->path, strerror(errno));
    if ((uint64_t)st.st_size < f->size)
        return td_fail(err, TD_EIO, "%s: the file has become shorter since it was opened, %lld bytes instead of %zu",
                       f->path, (long long)st.st_size, f->size);
    return TD_OK;
}
