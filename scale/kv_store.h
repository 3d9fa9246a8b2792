/*
 * A prefix cache that several hosts share: KV pages in Mooncake Store, a distributed memory of others (docs/scaling.md).
 *
 * DESIGN. The engine talks to page buffers, and one thread to the store. Page buffers are allocated once, of one size, and
 * registered with the store, which sends from them and receives into them; half of them are for pages on their way out, half
 * for pages on their way in. The engine's calls (td_page_store) take a lock for moments and never wait for the store; the
 * thread's calls may take as long as they like. When no buffer is free a page is not sent, or a lookup pauses.
 *
 * The thread serves lookups first: it asks which of the pages are there, up to the first that is not, and fetches them a few
 * at a time. Pages come to the engine in order, checked (kv_page_frame.h); a page that fails its check is removed from the
 * store, counted, and ends the lookup. A lookup that the engine has ended while the thread was at it is cleared away when
 * the thread comes back.
 *
 * When the store fails, it is down: nothing is sent or looked up, and the thread tries again after one second, then two, up
 * to half a minute. The log has one line when it goes down and one when it is back. While a call takes longer than a prompt
 * may wait, no lookup begins.
 */
#ifndef TD_SCALE_KV_STORE_H
#define TD_SCALE_KV_STORE_H

#include "tandem.h"

#define TD_KV_STORE_TEXT_MAX 256

typedef struct {
    char     library[TD_KV_STORE_TEXT_MAX];               /* of Mooncake Store, with its C interface */
    char     master_server_address[TD_KV_STORE_TEXT_MAX]; /* "HOST:PORT" */
    char     local_hostname[TD_KV_STORE_TEXT_MAX];        /* where the others reach this host */
    char     listen_address[TD_KV_STORE_TEXT_MAX];        /* of this host; 0.0.0.0 or ::, all of them */
    char     metadata_server[TD_KV_STORE_TEXT_MAX];
    char     protocol[TD_KV_STORE_TEXT_MAX];
    char     device_name[TD_KV_STORE_TEXT_MAX];
    uint64_t global_segment_size; /* bytes of this host that the store may use */
    uint64_t local_buffer_size;   /* bytes that the library keeps for itself */
    uint64_t page_buffer_size;    /* bytes of page buffers */
    uint32_t max_wait_ms;         /* a prompt waits for its pages */
} td_kv_store_config;

/** Read --kv-store-config's file. @return TD_EIO, TD_EINVAL with a sentence that names the member. */
TD_NODISCARD td_status td_kv_store_config_read(const char *path, td_kv_store_config *out, td_error *err);

typedef struct td_kv_store td_kv_store;

/** Load the library; the store is reached for when an engine opens it. @param c copied. @return TD_ENOTFOUND, TD_ENOMEM. */
TD_NODISCARD td_status td_kv_store_open(const td_kv_store_config *c, td_kv_store **out, td_error *err);

/** For one engine; lives as long as the store. */
const td_page_store *td_kv_store_pages(td_kv_store *k);

/** After the engine was closed. NULL is fine. */
void td_kv_store_close(td_kv_store *k);

#endif
