/*
 * The files of a checkpoint: the tensors of a model folder by name.
 *
 * The folder holds model.safetensors, or model.safetensors.index.json and its shards. Open reads only headers; the bytes of
 * a tensor are read when they are touched. Read-only after open; all functions may be called from several threads. NULL,
 * where it is accepted, is a checkpoint without files.
 */
#ifndef TD_MODEL_CHECKPOINT_CHECKPOINT_FILES_H
#define TD_MODEL_CHECKPOINT_CHECKPOINT_FILES_H

#include "core/threads/pool.h"
#include "model/checkpoint/safetensors.h"

typedef struct td_checkpoint_files td_checkpoint_files;

extern const char TD_SOURCE_HASH_KEY[]; /* in __metadata__ of what td_quantize writes */
extern const char TD_CHECKSUMS_KEY[];   /* in its index's metadata: an object of file names and checksums as hexadecimal */

/**
 * Open a folder: map every shard, check every header, and the index against them.
 * @return TD_ENOTFOUND (no folder, no weights in it, a shard that the index names), TD_EFORMAT, TD_EIO, TD_ENOMEM; err
 * names the file.
 */
TD_NODISCARD td_status td_checkpoint_files_open(const char *dir, td_checkpoint_files **out, td_error *err);
void                   td_checkpoint_files_close(td_checkpoint_files *f); /* NULL is fine */

const char *td_checkpoint_files_dir(const td_checkpoint_files *f);

/** How many files there are, and each of them, in the order of their names. */
size_t                td_checkpoint_files_count(const td_checkpoint_files *f);
const td_safetensors *td_checkpoint_files_at(const td_checkpoint_files *f, size_t index);

/** The tensor of that exact name, or NULL. */
const td_safetensors_entry *td_checkpoint_files_find(const td_checkpoint_files *f, const char *name);

/** The file that a tensor is in. @param name of a tensor that is there. */
const td_safetensors *td_checkpoint_files_with(const td_checkpoint_files *f, const char *name);

/** Whether any tensor's name begins with prefix. */
bool td_checkpoint_files_have(const td_checkpoint_files *f, const char *prefix);

/** ModelSlim's quant_model_description.json; NULL: there is none. */
const struct json_t *td_checkpoint_files_description(const td_checkpoint_files *f);

/**
 * Identity of the weights, never 0: XXH3 over every shard (in the order of their names): its header, its size, and 64
 * samples of 4 KiB at fixed places of the payload. Renaming, copying and touching files do not change it; config.json does
 * not either. A folder that td_quantize wrote carries the hash of its source, and that is what this gives.
 */
uint64_t td_checkpoint_files_hash(const td_checkpoint_files *f);

/** What tells the files as they lie there from others, changed or replaced ones: the hash, and each one's size, time of
 * change and inode. Another for a copy of the folder. */
uint64_t td_checkpoint_files_stamp(const td_checkpoint_files *f);

/** Told of bytes that were compared; with 0 before the first ones. */
typedef void (*td_checked_fn)(void *user, uint64_t bytes, uint64_t total_bytes);

/**
 * Compare every byte of a folder that td_quantize wrote with its checksums, by all threads of the pool. A folder of an
 * earlier version has none, which is a warning. Nothing is done for other folders.
 * @param pool the caller is its worker 0. @return TD_EFORMAT: the sentence names the file and what to do; TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_files_check(const td_checkpoint_files *f, td_pool *pool, td_checked_fn on_checked,
                                                 void *user, td_error *err);

/** Let pages that were read go from this process's memory: of all files, or of a view alone, which need not lie in a file.
 * Views stay valid, and are read again when they are touched. NULL is fine. */
void td_checkpoint_files_release_all(const td_checkpoint_files *f);
void td_checkpoint_files_release(const td_checkpoint_files *f, const void *at, size_t bytes);

/** td_safetensors_fetch from the file that `at` lies in; returns `at` if it lies in none. NULL is fine. */
const void *td_checkpoint_files_fetch(const td_checkpoint_files *f, const void *at, size_t bytes, void *buffer);

#endif
