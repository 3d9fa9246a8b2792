/*
 * One safetensors file, mapped read-only.
 *
 * Layout (format documented at huggingface/safetensors): u64 little-endian header length, the header as a JSON object
 * {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {text: text}}, then the payload; offsets count
 * from its first byte.
 *
 * Everything is checked at open: lengths against the file's size (fstat), every tensor's bytes against its shape and dtype,
 * no two tensors overlapping (gaps are accepted, the writer may align). A mapping cannot be protected from a file that
 * another process truncates later: reading such a page raises SIGBUS. Model folders must not change while they are loaded;
 * td_safetensors_check_size, called before a tensor is read, turns all but a race of that kind into a sentence.
 */
#ifndef TD_MODEL_CHECKPOINT_SAFETENSORS_H
#define TD_MODEL_CHECKPOINT_SAFETENSORS_H

#include "core/dtype.h"
#include "core/memory/mem.h"
#include "core/threads/pool.h"
#include "tandem.h"

#define TD_SAFETENSORS_HEADER_MAX ((size_t)100 * 1000 * 1000) /* the limit of the reference implementation */

typedef struct {
    const char *name;       /* owned by the file */
    const char *dtype_name; /* "BF16"; static */
    td_dtype    dtype;      /* TD_DT_COUNT: one of the format's types that this engine does not read */
    uint32_t    rank;
    size_t      shape[TD_RANK_MAX];
    const void *data; /* in the mapping; any alignment */
    size_t      bytes;
} td_safetensors_entry;

const char *td_safetensors_dtype_name(td_dtype dtype); /* "BF16" */

typedef struct td_safetensors td_safetensors;

/** Map and check a file. Sentences begin with the path. @return TD_ENOTFOUND, TD_EIO, TD_ENOMEM, TD_EFORMAT. */
TD_NODISCARD td_status td_safetensors_open(const char *path, td_safetensors **out, td_error *err);

/** The same over bytes in memory, borrowed until close; name stands for the path. */
TD_NODISCARD td_status td_safetensors_parse(const void *data, size_t size, const char *name, td_safetensors **out,
                                            td_error *err);

void td_safetensors_close(td_safetensors *f);

/** Tensors in ascending order of their data. */
size_t                      td_safetensors_count(const td_safetensors *f);
const td_safetensors_entry *td_safetensors_at(const td_safetensors *f, size_t index);
const char                 *td_safetensors_path(const td_safetensors *f);

/** A value of "__metadata__", or NULL. Owned by f. */
const char *td_safetensors_metadata(const td_safetensors *f, const char *key);

/** The header's bytes with its length word, and the whole file, for hashing. */
const void *td_safetensors_bytes(const td_safetensors *f, size_t *header_bytes, size_t *file_bytes);

/** The checksum of all its bytes (kernels/machine/checksum.h), never 0, by all threads of the pool, whose worker 0 the
 * caller is; NULL: by the caller alone. @return TD_ENOMEM. */
TD_NODISCARD td_status td_safetensors_checksum(const td_safetensors *f, td_pool *pool, uint64_t *out, td_error *err);

/** A hash of seed and of what tells the file from one that was changed or put in its place: size, time of change, inode. */
uint64_t td_safetensors_stamp(const td_safetensors *f, uint64_t seed);

/** Let the file's pages go from this process's memory (they stay in the system's cache); they come back when they are
 * touched. */
void td_safetensors_release_pages(const td_safetensors *f);
/** The same for the pages that lie wholly in a piece of the file. @return false: `at` is not in this file. Thread-safe. */
bool td_safetensors_release(const td_safetensors *f, const void *at, size_t bytes);

/**
 * Read bytes of the file that are needed once, without filling the system's cache, whose fresh pages cost more than the
 * disk on some machines. Bytes that are in the cache, or cannot be read past it, are returned where they lie; others are
 * read into buffer with O_DIRECT.
 * @param buffer aligned to TD_FILE_BLOCK, with room for bytes and TD_FETCH_SLACK more. @return NULL: `at` is not in this
 * file. Thread-safe.
 */
#define TD_FETCH_SLACK (2 * TD_FILE_BLOCK)
const void *td_safetensors_fetch(const td_safetensors *f, const void *at, size_t bytes, void *buffer);

/** TD_EIO when the file has become shorter since open. */
TD_NODISCARD td_status td_safetensors_check_size(const td_safetensors *f, td_error *err);

#endif
