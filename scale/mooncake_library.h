/*
 * The functions of Mooncake Store's C interface that the KV store uses. They come from a shared library, which is loaded
 * when the KV store is switched on. They are declared as in mooncake-store/include/store_c.h of Mooncake 0.3.13. The
 * configuration of replicas, whose layout has changed between versions, is always NULL here: one replica.
 */
#ifndef TD_SCALE_MOONCAKE_LIBRARY_H
#define TD_SCALE_MOONCAKE_LIBRARY_H

#include "tandem.h"

/* Values that calls return, from Mooncake's types.h. */
enum {
    TD_MOONCAKE_OK = 0,
    TD_MOONCAKE_NO_ROOM = -200,    /* NO_AVAILABLE_HANDLE: no host has memory for the page */
    TD_MOONCAKE_BAD_SIZE = -600,   /* INVALID_PARAMS: get_into's buffer is smaller than the value */
    TD_MOONCAKE_NOT_FOUND = -704,  /* OBJECT_NOT_FOUND */
    TD_MOONCAKE_RPC_FAILED = -900, /* RPC_FAIL: the master cannot be reached, or does not answer */
};

typedef struct {
    void *(*create)(void);
    void (*destroy)(void *store);
    int (*setup)(void *store, const char *local_hostname, const char *metadata_server, uint64_t global_segment_size,
                 uint64_t local_buffer_size, const char *protocol, const char *device_name, const char *master_server_addr);
    int (*register_buffer)(void *store, void *buffer, size_t size);
    int (*unregister_buffer)(void *store, void *buffer);
    int (*batch_put_from)(void *store, const char **keys, void **buffers, const size_t *sizes, size_t count,
                          const void *replicate_config, int *results);
    int (*batch_get_into)(void *store, const char **keys, void **buffers, const size_t *sizes, size_t count,
                          int64_t *results);                                           /* results: bytes, or an error */
    int (*batch_is_exist)(void *store, const char **keys, size_t count, int *results); /* results: 1, 0, or an error */
    int (*is_exist)(void *store, const char *key);
    int (*remove)(void *store, const char *key, int force);
} td_mooncake;

/**
 * Load the library. It stays loaded as long as the process lives.
 * @param path a file, or a name that the loader looks for.
 * @return TD_ENOTFOUND with a sentence.
 */
TD_NODISCARD td_status td_mooncake_load(td_mooncake *m, const char *path, td_error *err);

#endif
