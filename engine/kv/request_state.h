/*
 * Where a request's recurrent state is, and at which borders of pages a snapshot of it is made (state_slots.h).
 *
 * DESIGN. A request that runs owns one slot: `now`, the state at the last border of a block before its computed tokens. A
 * step that goes beyond such a border writes the next state in place, unless `now` is a snapshot. A snapshot is made
 *   - at the last page of a prompt that ends before the prompt, which a retry and the next turn of a chat begin with,
 *   - at the prompt's end, if a page ends there, and at the last page of what is generated, for the next turn; each takes the
 *     place of the one before,
 *   - where the prompt of another request goes its own way, for those that come after.
 * To make one within a step, the step takes the request's rows as two parts, before and behind the border.
 *
 * A state is written in place, so a step that fails cannot simply run again: its requests begin again from their pages
 * (td_scheduler_retract_step). A request whose step ends a block needs a slot to write to. If there is none, because other
 * requests stand on snapshots, it waits for the next step; the first in order of service always gets one.
 *
 * A draft is the last row of its request in a step. In the middle of a block nothing of it lasts: the next row at its place
 * is written over its own. Where it ends a block, the step writes another slot than `now`, and the work of the step counts
 * only once the draft is accepted. A rejected one leaves `now` as it was (td_request_state_take_back).
 */
#ifndef TD_ENGINE_KV_REQUEST_STATE_H
#define TD_ENGINE_KV_REQUEST_STATE_H

#include "engine/kv/state_slots.h"
#include "model/step_rows.h"

#define TD_STEP_SNAPSHOTS_MAX 3 /* of a request, in one step */

typedef struct {
    uint32_t now;   /* a slot; TD_STATE_NONE: nothing is computed, or no block is full yet */
    uint32_t open;  /* slot of the open block; TD_STATE_NONE: the request does not run */
    uint32_t after; /* `now` behind the step under way */
    struct {
        uint32_t slot, n_pages;    /* a reference, and how many of the request's pages lie before it */
    } made[TD_STEP_SNAPSHOTS_MAX]; /* [n_made] by the step under way */
    uint32_t n_made;
    bool     awaits;    /* a draft ends a block in the step: whether it is accepted decides what becomes of the work */
    uint32_t branch;    /* tokens that another prompt has in common with this one: a snapshot is wanted there; or 0 */
    uint32_t generated; /* pages before the newest snapshot of generated tokens; or 0 */
} td_request_state;

#define TD_REQUEST_STATE_IDLE \
    { .now = TD_STATE_NONE, .open = TD_STATE_NONE, .after = TD_STATE_NONE }

/**
 * Take an open block, and the snapshot at the end of the first n_pages of a prompt, which is there (td_state_slots_before).
 * @param pages [n_pages] from the cache. @param found so many of the prompt's pages the cache has: if more than n_pages, the
 * prompt branches off behind them.
 */
void td_request_state_begin(td_request_state *r, td_state_slots *s, const uint32_t *pages, uint32_t n_pages, uint32_t found);

/** Give up everything, the work of a step under way included. */
void td_request_state_end(td_request_state *r, td_state_slots *s);

/** Whether a step with the tokens begin .. end - 1 finds the slot that it needs. */
bool td_request_state_can_step(const td_request_state *r, const td_state_slots *s, uint32_t begin, uint32_t end);

/** Whether the step may have a draft at position pos, too: if that ends a block, there must be a slot for the state then. */
bool td_request_state_can_draft(const td_state_slots *s, uint32_t pos);

/** What the snapshots of a request depend on. */
typedef struct {
    uint32_t n_prompt;
    uint32_t n_cacheable; /* tokens that pages are published of; 0: none are */
    bool     drafted;     /* the request's last row in the step is a draft */
} td_snapshot_rule;

/**
 * The first part of the rows begin .. end - 1 in a step. Call it for the rest until there is none, after
 * td_request_state_can_step.
 * @param splits the step has room for so many parts more: if for one, the last border is of most use, that of the prompt's
 * end. @param slots receives the part's. @return the end of the part.
 */
uint32_t td_request_state_next_part(td_request_state *r, td_state_slots *s, td_snapshot_rule rule, uint32_t begin,
                                    uint32_t end, uint32_t splits, td_sequence_state *slots);

/** The awaited draft was rejected: the state is what it was before the step. Nothing happens if none was awaited. */
void td_request_state_take_back(td_request_state *r, td_state_slots *s);

/** The step has succeeded, and an awaited draft was accepted. @param pages of the request, of which the first n_published
 * are in the cache. */
void td_request_state_commit(td_request_state *r, td_state_slots *s, td_snapshot_rule rule, const uint32_t *pages,
                             uint32_t n_published);

#endif
