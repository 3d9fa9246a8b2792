/*
 * Writes one safetensors file whose tensors' sizes are known beforehand, in pieces and in any order.
 *
 * The file grows under a temporary name ("….part") and gets its own when it is complete and on disk, so a file with the
 * final name is always whole. The layout depends only on the items, so a finished file can be recognised. Payloads have no
 * gaps (the reference reader refuses them): wide types come first and the header is padded, which aligns every tensor to
 * its type.
 */
#ifndef TD_MODEL_CHECKPOINT_SAFETENSORS_WRITER_H
#define TD_MODEL_CHECKPOINT_SAFETENSORS_WRITER_H

#include "core/dtype.h"
#include "tandem.h"

typedef struct {
    char     name[176];
    td_dtype dtype; /* F32, BF16, F16, I8, I32 or I64 */
    uint32_t rank;
    size_t   shape[TD_RANK_MAX];
    size_t   bytes;  /* filled by create */
    size_t   offset; /* in the payload; filled by create */
} td_safetensors_item;

typedef struct td_safetensors_writer td_safetensors_writer;

/**
 * Lay a file out. Nothing is written yet.
 * @param items [n], the caller's; bytes and offset are filled.
 * @param key, value  one entry of "__metadata__".
 */
TD_NODISCARD td_status td_safetensors_writer_create(const char *path, td_safetensors_item *items, size_t n, const char *key,
                                                    const char *value, td_safetensors_writer **out, td_error *err);

/** Whether a file of this very header and size is there under the final name. */
bool td_safetensors_writer_is_done(const td_safetensors_writer *w);

/** Create the temporary file with the header; write a piece; make the file durable and give it its name. TD_EIO with a
 * sentence. */
TD_NODISCARD td_status td_safetensors_writer_begin(td_safetensors_writer *w, td_error *err);
TD_NODISCARD td_status td_safetensors_writer_write(td_safetensors_writer *w, const td_safetensors_item *item, size_t at,
                                                   const void *data, size_t bytes, td_error *err);
TD_NODISCARD td_status td_safetensors_writer_commit(td_safetensors_writer *w, td_error *err);

/** A file that was not committed is removed. NULL is fine. */
void td_safetensors_writer_destroy(td_safetensors_writer *w);

/** Write a small file whole: temporary name, sync, rename. */
TD_NODISCARD td_status td_file_write(const char *path, const void *data, size_t bytes, td_error *err);

#endif
