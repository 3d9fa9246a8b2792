/*
 * A KV page as it lies in a store: a header, the page's tokens, its KV. Little-endian.
 *
 * Whoever can write to the store may have put anything there under a key, and memory and networks fail: what comes is taken
 * only if it is whole and says of itself, token by token, that it is what was asked for.
 */
#ifndef TD_SCALE_KV_PAGE_FRAME_H
#define TD_SCALE_KV_PAGE_FRAME_H

#include "tandem.h"

#define TD_KV_PAGE_KEY_MAX 64 /* bytes of a key's text with the NUL */

/** Bytes of a page's frame. */
size_t td_kv_page_frame_bytes(const td_page_format *f);

/** Where the KV of a frame lies: page_bytes, aligned as the frame is, up to 64 bytes. */
void *td_kv_page_frame_kv(const td_page_format *f, void *frame);

/** Fill in what is before the KV, which is there. */
void td_kv_page_frame_seal(const td_page_format *f, const td_page_name *name, void *frame);

/** What is wrong with [bytes] that came for a page: a sentence's end, static; NULL: nothing. */
const char *td_kv_page_frame_fault(const td_page_format *f, const td_page_name *name, const void *frame, size_t bytes);

/** "tandem-kv-…": the key of a page in the store: the beginning of the fingerprint, then the page's. */
void td_kv_page_key_text(const td_page_format *f, td_page_key key, char text[TD_KV_PAGE_KEY_MAX]);

#endif
