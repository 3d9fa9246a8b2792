/*
 * A prefix cache that several hosts share. It keeps KV pages in Mooncake Store, a distributed memory (docs/scaling.md).
 *
 * DESIGN. The engine exchanges pages with page buffers, and one thread exchanges them with the store. Page buffers have one
 * size, are allocated once, and are registered with the store, which sends from them and receives into them. Half of them
 * are for sending, half for receiving. The engine's calls (td_page_store) hold a lock for moments and never wait for the
 * store; the thread's calls may take long. When no buffer is free, a page is not sent, or a lookup pauses.
 *
 * The thread serves lookups first: it asks which of the pages are there, up to the first that is not, and fetches them a few
 * at a time. The engine gets pages in order and checked (kv_page_frame.h). A page that fails its check is removed from the
 * store, counted, and ends the lookup. A lookup that the engine ends while the thread works on it is freed when the thread's
 * call returns.
 *
 * When the store fails, it counts as down: nothing is sent or looked up, and the thread tries again after one second, then
 * two, up to half a minute. The log has one line when it goes down and one when it is up again. While a call takes longer
 * than a prompt may wait, no lookup begins.
 */
#ifndef TD_SCALE_KV_STORE_H
#define TD_SCALE_KV_STORE_H

#include "tandem.h"

#define TD_KV_STORE_TEXT_MAX 256

typedef struct {
    char     library[TD_KV_STORE_TEXT_MAX];               /* file of Mooncake Store's library with the C interface */
    char     master_server_address[TD_KV_STORE_TEXT_MAX]; /* "HOST:PORT" */
    char     local_hostname[TD_KV_STORE_TEXT_MAX];        /* name or address at which other hosts reach this one */
    char     listen_address[TD_KV_STORE_TEXT_MAX]; /* the address of this host to listen on; 0.0.0.0 or ::, all of them */
    char     metadata_server[TD_KV_STORE_TEXT_MAX];
    char     protocol[TD_KV_STORE_TEXT_MAX];
    char     device_name[TD_KV_STORE_TEXT_MAX];
    uint64_t global_segment_size; /* bytes of this host's memory that the store may use */
    uint64_t local_buffer_size;   /* bytes that the library keeps for itself */
    uint64_t page_buffer_size;    /* bytes of page buffers */
    uint32_t max_wait_ms;         /* longest that a prompt waits for its pages */
} td_kv_store_config;

/** Read --kv-store-config's file. @return TD_EIO, TD_EINVAL with a sentence that names the member. */
TD_NODISCARD td_status td_kv_store_config_read(const char *path, td_kv_store_config *out, td_error *err);

typedef struct td_kv_store td_kv_store;

/** Load the library. The store itself is contacted when an engine opens it. @param c copied. @return TD_ENOTFOUND,
 * TD_ENOMEM. */
TD_NODISCARD td_status td_kv_store_open(const td_kv_store_config *c, td_kv_store **out, td_error *err);

/** The page store for one engine. Valid as long as the store. */
const td_page_store *td_kv_store_pages(td_kv_store *k);

/** Call it after the engine was closed. NULL is allowed. */
void td_kv_store_close(td_kv_store *k);

#endif
