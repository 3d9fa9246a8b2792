#include "scale/kv_event_message.h"

#include <assert.h>
#include <string.h>

/* The memory in which pages lie, by the name that routers use: pages there can be used without being fetched. */
#define MEDIUM "GPU"

/* ---- MessagePack (github.com/msgpack/msgpack, spec.md) ---- */

static uint8_t *put_big_endian(uint8_t *p, uint8_t tag, uint64_t v, int bytes) {
    *p++ = tag;
    for (int i = bytes - 1; i >= 0; i--) *p++ = (uint8_t)(v >> (8 * i));
    return p;
}

static uint8_t *put_array(uint8_t *p, uint32_t n) {
    if (n < 16) return put_big_endian(p, (uint8_t)(0x90 | n), 0, 0);
    return n < 1 << 16 ? put_big_endian(p, 0xdc, n, 2) : put_big_endian(p, 0xdd, n, 4);
}

static uint8_t *put_uint32(uint8_t *p, uint32_t v) {
    if (v < 128) return put_big_endian(p, (uint8_t)v, 0, 0);
    return v < 1 << 16 ? put_big_endian(p, 0xcd, v, 2) : put_big_endian(p, 0xce, v, 4);
}

static uint8_t *put_int64(uint8_t *p, uint64_t bits) {
    return put_big_endian(p, 0xd3, bits, 8);
}

static uint8_t *put_text(uint8_t *p, const char *text) {
    size_t n = strlen(text);
    assert(n < 32);
    p = put_big_endian(p, (uint8_t)(0xa0 | n), 0, 0);
    memcpy(p, text, n);
    return p + n;
}

static uint8_t *put_nil(uint8_t *p) {
    return put_big_endian(p, 0xc0, 0, 0);
}

static uint8_t *put_double(uint8_t *p, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return put_big_endian(p, 0xcb, bits, 8);
}

/* ---- events ---- */

size_t td_kv_event_message_max(uint32_t page_tokens) {
    enum { BATCH = 1 + 9 + 5 + 1, CLEARED = 32, REMOVED = 64, STORED = 64 };
    return BATCH + CLEARED + TD_KV_CHANGE_PAGES * ((size_t)REMOVED + STORED + 5 * (size_t)page_tokens);
}

static uint8_t *put_removed(uint8_t *p, const td_kv_change *c) {
    p = put_array(p, 3);
    p = put_text(p, "BlockRemoved");
    p = put_array(p, c->n_removed);
    for (uint32_t i = 0; i < c->n_removed; i++) p = put_int64(p, c->removed[i]);
    return put_text(p, MEDIUM);
}

static uint8_t *put_stored(uint8_t *p, const td_kv_stored *s, const uint32_t *tokens, uint32_t n) {
    p = put_array(p, 7);
    p = put_text(p, "BlockStored");
    p = put_int64(put_array(p, 1), s->hash);
    p = s->has_parent ? put_int64(p, s->parent_hash) : put_nil(p);
    p = put_array(p, n);
    for (uint32_t i = 0; i < n; i++) p = put_uint32(p, tokens[i]);
    p = put_uint32(p, n);
    p = put_nil(p); /* id of a LoRA adapter: none */
    return put_text(p, MEDIUM);
}

size_t td_kv_event_message_write(uint8_t *out, const td_kv_change *c, uint32_t page_tokens, double time_s) {
    uint8_t *p = put_array(out, 3);
    p = put_double(p, time_s);
    p = put_array(p, (uint32_t)c->cleared + (c->n_removed > 0) + c->n_stored);
    if (c->cleared) p = put_text(put_array(p, 1), "AllBlocksCleared");
    if (c->n_removed) p = put_removed(p, c);
    for (uint32_t i = 0; i < c->n_stored; i++)
        p = put_stored(p, &c->stored[i], c->tokens + (size_t)i * page_tokens, page_tokens);
    p = put_uint32(p, 0); /* the data-parallel rank */
    assert((size_t)(p - out) <= td_kv_event_message_max(page_tokens));
    return (size_t)(p - out);
}
