/*
 * Experts that pass through the device's memory in a step with many rows of prompts, beside those that are resident: while
 * the device computes a layer, the next layers' experts are on their way. The CPU computes what is neither resident nor
 * streamed.
 *
 * DESIGN. A ring of slots lies behind the slots of the resident experts, and an expert in it is in its layer's row of the
 * table as a resident one is. So blocks and captures are those of resident experts, and only two operations are new in a
 * streamed pass, at each MoE layer:
 *   take   before the router: wait until the layer's uploads have ended, and copy the layer's row of the table to the device
 *   leave  behind the resident experts: the layer's slots may be written again
 * A pass's uploads are a list, layer by layer, and each takes the next slot of the ring. The threads of the uploads,
 * "lanes", take some at a time; each has a stream. Experts are copied from where they lie, where the device takes the store's
 * memory (host_register); else through the lane's pinned buffer, so copies to the buffers and over the link overlap. An
 * upload waits until the layer that had its slot has left. Both waits are bells: the device rings `left`, a lane rings
 * `taken`.
 *
 *   device   take 0 | layer 0, leave 0 | take 1 | layer 1, leave 1 | ...
 *   lanes    0 0 0 0 1 1 1 1 ... 2 2 2 2 (from leave 0 on) ...
 *
 * In two halves the first half takes, and the last half leaves: layer n is taken before layer n - 1 has left. So a layer has
 * half of the ring at most, and no wait is for something behind it.
 *
 * The router marks what its row has, so both tiers see one choice. An upload that fails is not in the row: the CPU computes
 * the expert.
 *
 * Several cards have a ring each, a list, lanes of their own, and a row in which the experts of other cards are
 * TD_SLOT_ELSEWHERE. A pass's uploads are dealt out to them in turn. A layer's rows are complete when its uploads to all
 * cards have ended, so all cards mark the same ids. Where a card fails, the others may wait for rows that will not be
 * complete: td_streamed_break_off.
 */
#ifndef TD_RESIDENCY_STREAMED_EXPERTS_H
#define TD_RESIDENCY_STREAMED_EXPERTS_H

#include "residency/resident_experts.h"
#include "residency/stream_plan.h"

#define TD_STREAM_LANES 3
#define TD_STREAM_LAYERS 2 /* that the ring holds: one that computes, one that comes */

typedef struct td_streamed_experts td_streamed_experts;

/** Pinned memory that td_streamed_open takes, for each card. */
uint64_t td_streamed_pinned_bytes(const td_resident_spec *s);

/**
 * @param r        borrowed; its spec has stream_slots, half of which a layer may have on each card.
 * @param n_layers its first MoE layers are those of a streamed pass.
 * @return TD_ENOMEM, what the device returns.
 */
TD_NODISCARD td_status td_streamed_open(td_resident_experts *r, uint32_t n_layers, td_streamed_experts **out, td_error *err);
void                   td_streamed_close(td_streamed_experts *s); /* no pass may be under way; NULL is fine */

/** Operations of a card's streamed pass; layer as in the expert store, below n_layers. */
TD_NODISCARD td_status td_streamed_enqueue_take(td_streamed_experts *s, uint32_t card, uint32_t layer,
                                                td_npu_stream *stream);
TD_NODISCARD td_status td_streamed_enqueue_leave(td_streamed_experts *s, uint32_t card, uint32_t layer,
                                                 td_npu_stream *stream);

/** How many experts of a layer a pass of n_tok rows is to stream; 0: it is not to be a streamed pass. Before begin_pass,
 * once for each pass; on the thread that launches. */
uint32_t td_streamed_share(td_streamed_experts *s, uint32_t n_tok);

/** Around a pass, behind td_resident_begin_pass and before td_resident_end_pass, on the same thread.
 * @param share as td_streamed_share gave it. end_pass: after the stream was synchronised. @param ok the pass ended well. */
void td_streamed_begin_pass(td_streamed_experts *s, uint32_t share);
void td_streamed_end_pass(td_streamed_experts *s, bool ok);
/** A card of the pass has failed: its uploads end, and no card waits for them. Any thread; also where no pass is streamed. */
void td_streamed_break_off(td_streamed_experts *s);

/**
 * The first speeds, measured while no pass is under way. Passes correct those of link and CPU.
 * td_streamed_measure_upload uploads experts of layer 0 and gives the first card's row of the table [n_experts], which take
 * copies.
 * @param card_row of all cards together, as td_stream_speeds has it
 */
const uint16_t *td_streamed_measure_upload(td_streamed_experts *s);
void            td_streamed_set_speeds(td_streamed_experts *s, double card_row, double cpu_row, double cpu_read);

void td_streamed_report(const td_streamed_experts *s, td_stream_counts *out); /* any thread */
/** Sets streamed_bytes and streamed_ns. */
void td_streamed_report_card(const td_streamed_experts *s, uint32_t card, td_card_stats *out); /* any thread */

#endif
