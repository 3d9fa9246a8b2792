#include "scale/kv_page_frame.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC "TDKVPAGE"
#define VERSION 1

typedef struct {
    char        magic[8];
    uint32_t    version, page_tokens;
    uint64_t    page_bytes;
    td_page_key fingerprint, key, parent;
    uint64_t    kv_hash;   /* XXH3-64 of the KV */
    uint64_t    head_hash; /* XXH3-64 of this header with 0 here, and the tokens */
    uint64_t    zero[5];
} header;

_Static_assert(sizeof(header) == 128, "the tokens follow without a gap");

static size_t head_bytes(const td_page_format *f) {
    return (sizeof(header) + f->page_tokens * sizeof(uint32_t) + 63) / 64 * 64;
}

size_t td_kv_page_frame_bytes(const td_page_format *f) {
    return head_bytes(f) + f->page_bytes;
}

void *td_kv_page_frame_kv(const td_page_format *f, void *frame) {
    return (char *)frame + head_bytes(f);
}

/* Hash of all bytes before the KV, with the hash itself taken as 0. The KV has a hash of its own, so every byte of the frame
 * is covered. */
static uint64_t hash_head(const td_page_format *f, header h, const void *frame) {
    h.head_hash = 0;
    return XXH3_64bits_withSeed((const char *)frame + sizeof h, head_bytes(f) - sizeof h, XXH3_64bits(&h, sizeof h));
}

static header header_of(const td_page_format *f, const td_page_name *name) {
    header h = {.version = VERSION,
                .page_tokens = f->page_tokens,
                .page_bytes = f->page_bytes,
                .fingerprint = f->fingerprint,
                .key = name->key,
                .parent = name->parent};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    return h;
}

void td_kv_page_frame_seal(const td_page_format *f, const td_page_name *name, void *frame) {
    header h = header_of(f, name);
    h.kv_hash = XXH3_64bits(td_kv_page_frame_kv(f, frame), f->page_bytes);
    memset(frame, 0, head_bytes(f));
    memcpy((char *)frame + sizeof h, name->tokens, f->page_tokens * sizeof *name->tokens);
    h.head_hash = hash_head(f, h, frame);
    memcpy(frame, &h, sizeof h);
}

const char *td_kv_page_frame_fault(const td_page_format *f, const td_page_name *name, const void *frame, size_t bytes) {
    header h, wanted = header_of(f, name);
    if (bytes != td_kv_page_frame_bytes(f)) return "it has another size";
    memcpy(&h, frame, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) || h.version != VERSION) return "it is no KV page";
    if (h.head_hash != hash_head(f, h, frame)) return "its header is damaged";
    wanted.kv_hash = h.kv_hash;
    wanted.head_hash = h.head_hash;
    if (memcmp(&h, &wanted, sizeof h)) return "it is another page";
    if (memcmp((const char *)frame + sizeof h, name->tokens, f->page_tokens * sizeof *name->tokens))
        return "it has other tokens";
    if (h.kv_hash != XXH3_64bits((const char *)frame + head_bytes(f), f->page_bytes)) return "its KV is damaged";
    return NULL;
}

void td_kv_page_key_text(const td_page_format *f, td_page_key key, char text[TD_KV_PAGE_KEY_MAX]) {
    snprintf(text, TD_KV_PAGE_KEY_MAX, "tandem-kv-%08llx-%016llx%016llx", (unsigned long long)(f->fingerprint.high >> 32),
             (unsigned long long)key.high, (unsigned long long)key.low);
}
