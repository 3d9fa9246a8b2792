/*
 * A batch of KV events as SGLang's subscribers read it (python/sglang/srt/disaggregation/kv_events.py: msgspec's array form,
 * in MessagePack):
 *   [time in s, [event...], rank 0]
 *   ["AllBlocksCleared"]
 *   ["BlockRemoved", [hash...], medium]
 *   ["BlockStored", [hash], parent's hash or nil, [token...], block size, nil, medium]
 * A hash is 64 bits, as a signed integer.
 */
#ifndef TD_SCALE_KV_EVENT_MESSAGE_H
#define TD_SCALE_KV_EVENT_MESSAGE_H

#include "scale/kv_page_table.h"

/** The most bytes that td_kv_event_message_write needs. */
size_t td_kv_event_message_max(uint32_t page_tokens);

/** @param change may be empty. @param out [td_kv_event_message_max]. @return bytes written. */
size_t td_kv_event_message_write(uint8_t *out, const td_kv_change *change, uint32_t page_tokens, double time_s);

#endif
