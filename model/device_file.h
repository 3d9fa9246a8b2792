/*
 * The device tier's weights as they lie in the device's memory, in one file that a later start maps instead of converting.
 *
 * The first start on a folder of packed experts writes the file beside them, when every weight has the layout that its
 * blocks want. Its name and header carry the device's tag (kind and layouts) and the checkpoint's identity, and each weight
 * has a key of what it was made from. A file that does not fit, or is damaged, is not used: the weights are converted
 * again, and the file is written anew.
 */
#ifndef TD_MODEL_DEVICE_FILE_H
#define TD_MODEL_DEVICE_FILE_H

#include "core/threads/pool.h"
#include "npu/npu.h"

typedef struct td_device_file td_device_file;

/** The id of a weight: its role and layer, and a hash of what it was made from. */
typedef struct {
    uint32_t role, layer;
    uint64_t key;
} td_device_weight_id;

/**
 * Map a file and compare every byte with its checksum, by all threads of the pool (the caller is worker 0).
 * @return TD_ENOTFOUND, TD_EIO, TD_EFORMAT (damaged, or of another device, layout or checkpoint), TD_ENOMEM; the sentence
 * names the file.
 */
TD_NODISCARD td_status td_device_file_open(const char *path, const char *tag, uint64_t source_hash, td_pool *pool,
                                           td_device_file **out, td_error *err);
void                   td_device_file_close(td_device_file *f); /* after the weights over it are destroyed; NULL is fine */

/** Find a weight; its bytes live until close. @return false: the file has none of that id. */
bool td_device_file_find(const td_device_file *f, const td_device_weight_id *id, td_npu_packed *out);

/** Write a file whole: temporary name, sync, rename. @return TD_EIO, TD_ENOMEM. */
TD_NODISCARD td_status td_device_file_write(const char *path, const char *tag, uint64_t source_hash, td_pool *pool,
                                            const td_device_weight_id *ids, const td_npu_packed *weights, size_t n,
                                            td_error *err);

#endif
