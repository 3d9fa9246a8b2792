/*
 * Fuzz target: any bytes of any length that come from a KV store, for a page with a fixed name. Only the very frame that was
 * sealed for that name is accepted, and nothing is read beyond the bytes. If the first byte is 0, the rest is the frame.
 * Otherwise the rest is laid over a good frame, from the offset in the next two bytes on.
 */
#include <stdlib.h>
#include <string.h>

#include "scale/kv_page_frame.h"

#define PAGE_TOKENS 4
#define PAGE_BYTES 96

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint32_t TOKENS[PAGE_TOKENS] = {3, 1, 4, 1};
    const td_page_format  f = {.page_tokens = PAGE_TOKENS, .page_bytes = PAGE_BYTES, .fingerprint = {1, 2}};
    const td_page_name    name = {.key = {5, 6}, .parent = {7, 8}, .tokens = TOKENS};
    size_t                bytes = td_kv_page_frame_bytes(&f);
    char                 *good = calloc(1, bytes), *got;
    if (!good || size < 3) {
        free(good);
        return 0;
    }
    td_kv_page_frame_seal(&f, &name, good);
    size_t n = data[0] ? bytes : size - 3, at = data[0] ? (data[1] | (size_t)data[2] << 8) % bytes : 0;
    got = malloc(n ? n : 1); /* of its own size: what is read beyond it is seen */
    if (!got) abort();
    if (data[0]) memcpy(got, good, bytes);
    size_t room = n - at, part = size - 3 < room ? size - 3 : room;
    if (part) memcpy(got + at, data + 3, part);
    bool same = n == bytes && !memcmp(got, good, bytes);
    if (same != !td_kv_page_frame_fault(&f, &name, got, n)) abort();
    free(got);
    free(good);
    return 0;
}
