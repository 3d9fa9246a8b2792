/*
 * The frame of a KV page, which is its form in a store: a header, the page's tokens, its KV. Little-endian.
 *
 * A frame that comes from the store may be anything: others can write there, and memory and networks fail. It is accepted
 * only if its checksums are right and its names and tokens are those that were asked for.
 */
#ifndef TD_SCALE_KV_PAGE_FRAME_H
#define TD_SCALE_KV_PAGE_FRAME_H

#include "tandem.h"

#define TD_KV_PAGE_KEY_MAX 64 /* bytes of a key's text with the NUL */

/** Size of a page's frame in bytes. */
size_t td_kv_page_frame_bytes(const td_page_format *f);

/** The KV within a frame: page_bytes of the format. Aligned as the frame is, up to 64 bytes. */
void *td_kv_page_frame_kv(const td_page_format *f, void *frame);

/** Write everything before the KV. The KV must be in the frame already, because it is hashed. */
void td_kv_page_frame_seal(const td_page_format *f, const td_page_name *name, void *frame);

/** Check a frame of `bytes` that came for a page. @return NULL if it is good, otherwise what is wrong: the end of a
 * sentence, static. */
const char *td_kv_page_frame_fault(const td_page_format *f, const td_page_name *name, const void *frame, size_t bytes);

/** Write the key of a page in the store: "tandem-kv-", the beginning of the fingerprint, then the page's key. */
void td_kv_page_key_text(const td_page_format *f, td_page_key key, char text[TD_KV_PAGE_KEY_MAX]);

#endif
