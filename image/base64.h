/* Base64 (RFC 4648, section 4). */
#ifndef TD_IMAGE_BASE64_H
#define TD_IMAGE_BASE64_H

#include "tandem.h"

/**
 * Decode a text, with its padding or without.
 * @param text      len characters of the alphabet; no line ends.
 * @param bytes_max the most that may come out.
 * @param out       malloc'd; the caller's. Untouched unless TD_OK.
 * @return TD_EFORMAT for another character, or a length that no bytes have; TD_ELIMIT, and then nothing was allocated;
 *         TD_ENOMEM. Thread-safe.
 */
TD_NODISCARD td_status td_base64_decode(const char *text, size_t len, uint64_t bytes_max, uint8_t **out, size_t *n,
                                        td_error *err);

#endif
