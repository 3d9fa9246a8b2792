/*
 * The routed experts that lie in a device's memory: their slots, the table that says which expert lies in which, and the
 * uploads that change it while a model decodes.
 *
 * DESIGN. Every MoE layer has n_slots slots, and the table has a row [n_experts] u16 for it, in pinned memory and on the
 * device. A pass copies the table to the device first, in stream order. So a captured pass reads the table of its own
 * launch. The host changes the pinned table between passes alone, when nothing is under way that reads it:
 *   begin_pass   uploads that have ended enter the table; the policy's swaps begin: the expert that goes leaves the table, and its
 *                slot is free at once, as no pass is under way
 *   the pass     reads slots that are in the table; the uploads' thread writes slots that are not
 *   end_pass     the policy is told what the pass chose
 * So there are no events between streams: an upload has ended when its stream was synchronised, on the host, before the
 * launch.
 *
 *   absent --swap--> loading --copied, next begin_pass--> resident --swap of another--> absent
 *
 * With `drop`, host memory has only what is not resident. A swap then has more steps, each of which the uploads' thread does
 * between two begin_passes:
 *   read   the expert that goes, from its file, while its slot is still used; then it leaves the table
 *   copy   the one that comes, to the slot; then it enters the table
 *   drop   the memory of that one
 * Where the file cannot be read, or has other bytes, the expert that should go stays on the device for good.
 *
 * Uploads go one after another through a pinned buffer of an expert's size. At most TD_UPLOADS_OPEN swaps are open, and they
 * may take TD_UPLOADS_SHARE of the time. While slots are empty, more may be open: as many as TD_FILLS_SHARE of the time of
 * the pass before suffices for. So what one chunk of a prompt chose is resident for the chunk after the next.
 *
 * Several cards share a layer's slots: slot number s is one of card s % n_cards. Each card has a table of its own, in which
 * the experts of other cards are TD_SLOT_ELSEWHERE. So all routers mark the same ids, and each card computes its own
 * experts.
 */
#ifndef TD_RESIDENCY_RESIDENT_EXPERTS_H
#define TD_RESIDENCY_RESIDENT_EXPERTS_H

#include "cpu_experts/cpu_experts.h"
#include "npu/npu.h"
#include "residency/residency_policy.h"

#define TD_UPLOADS_OPEN 4
#define TD_UPLOADS_SHARE 0.25
#define TD_FILLS_OPEN 256
#define TD_FILLS_SHARE 0.5

typedef struct {
    td_npu          *npus[TD_CARDS_MAX]; /* borrowed, as what follows */
    uint32_t         n_cards;
    td_experts      *experts; /* uploads read it: a layer is loaded before td_resident_fill or the first pass */
    td_packed_expert packed;
    uint32_t         n_layers, n_experts, top_k;
    uint32_t         n_slots; /* of a layer, top_k .. n_experts; of all cards together, a multiple of their number */
    uint32_t stream_slots;    /* of streamed experts (streamed_experts.h), on each card, behind the slots of all layers */
    uint32_t max_tok;         /* rows of a pass */
    uint32_t aside_row;       /* from this one on they are those of passes in pieces; max_tok: there are none */
    uint64_t chaos_seed;      /* random swaps, for tests of determinism; 0: the policy's */
    bool     drop;            /* what is resident leaves host memory (td_experts_drop): td_resident_fill comes first */
} td_resident_spec;

typedef struct td_resident_experts td_resident_experts;

/** What td_resident_open takes of a card's memory: of each of its slots, for all layers; those of streamed experts; the
 * table. And of pinned memory, for each card. */
uint64_t td_resident_slot_bytes(const td_resident_spec *s);
uint64_t td_resident_stream_bytes(const td_resident_spec *s);
uint64_t td_resident_table_bytes(const td_resident_spec *s);
uint64_t td_resident_pinned_bytes(const td_resident_spec *s);
/** With drop: host memory that a slot of each layer saves, and what swaps and the load of a layer take beside it. */
uint64_t td_resident_saved_bytes(const td_resident_spec *s);
uint64_t td_resident_doubled_bytes(const td_resident_spec *s);

/** No expert is resident. @param s copied. @return TD_ENOMEM, TD_EINVAL for n_slots out of range, TD_ENOTSUP for more slots
 * than the table can number, what the device returns. */
TD_NODISCARD td_status td_resident_open(const td_resident_spec *s, td_resident_experts **out, td_error *err);
/** Waits for the upload that is under way. No pass may be. NULL is fine. */
void td_resident_close(td_resident_experts *r);

/** With drop, when a layer was loaded and no pass has been: its first experts fill the slots and leave host memory.
 * @return what the device returns. */
TD_NODISCARD td_status td_resident_fill(td_resident_experts *r, uint32_t layer, td_error *err);

const td_resident_spec *td_resident_get_spec(const td_resident_experts *r);

/** A card's memory of a layer: [n_slots / n_cards, packed.bytes], and the table's row. The slots of streamed experts are
 * behind those of the last layer. */
void           *td_resident_slots(const td_resident_experts *r, uint32_t card, uint32_t layer);
const uint16_t *td_resident_slot_of(const td_resident_experts *r, uint32_t card, uint32_t layer);

/** From begin_pass on, for the thread that launches: where the pass finds the layer's experts [n_experts], as in a card's
 * table; and how much an expert was used of late, in uses. */
const uint16_t *td_resident_placement(const td_resident_experts *r, uint32_t card, uint32_t layer);
float           td_resident_uses(const td_resident_experts *r, uint32_t layer, uint32_t expert);

/** The first operation of a card's pass: its table to the device. Nothing with unified memory. */
TD_NODISCARD td_status td_resident_enqueue_table(td_resident_experts *r, uint32_t card, td_npu_stream *s);

/** Before a pass is launched, and after its stream was synchronised; on the thread that launches.
 * @param first_row the step's: 0, or aside_row. */
void td_resident_begin_pass(td_resident_experts *r, uint32_t first_row);
/** @param step the whole step's; NULL: the pass failed, and is not counted. */
void td_resident_end_pass(td_resident_experts *r, const td_step *step);

/**
 * Of a pass in pieces, in the place of begin_pass for all pieces but the first: whole passes may have come between. The
 * table may have changed, so each piece begins with td_resident_enqueue_table. In layers that are held it has not.
 */
void td_resident_go_on(td_resident_experts *r);
/** A pass is left in a layer between its router and the end of its experts: the marks of its ids hold good as long as the
 * layer is held. @param layer [n] that are held from now on, and no others. */
void td_resident_hold(td_resident_experts *r, const uint32_t *layer, uint32_t n);

/** What the routers chose for rows first_row .. first_row + n_tok - 1; called for each layer and half of a pass, by any
 * thread, between begin_pass and end_pass, for half 1 last. @param ids [n_tok, top_k], read during the call only. */
void td_resident_chosen(td_resident_experts *r, uint32_t layer, uint32_t first_row, uint32_t n_tok, const uint16_t *ids);

/** While a stream of a card is captured, nobody may synchronise another: uploads rest between these. One card at a time. */
void td_resident_pause(td_resident_experts *r);
void td_resident_resume(td_resident_experts *r);

uint32_t td_resident_count(const td_resident_experts *r); /* that are resident, of all layers; any thread */
void     td_resident_report(const td_resident_experts *r, td_residency_counts *out); /* any thread */

#endif
