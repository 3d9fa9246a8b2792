/*
 * Slots of recurrent states: which are free, which belong to sequences that run, and which are snapshots.
 *
 * DESIGN. A model with recurrent layers (npu/npu.h, TD_STATE_BLOCK) cannot go on behind a cached prefix unless it has the
 * state at the prefix's end. A snapshot is such a state: it belongs to a page of the prefix cache, and is the state behind
 * the page's last token. Nothing is ever copied: the slot that a step has written becomes the snapshot, and the sequence's
 * next state is written to another slot. A snapshot lives as long as its page, or until its slot is needed; then the one
 * that was of use longest ago goes. The idea is Marconi's (arXiv 2411.19379), whose borders are chosen in request_state.h.
 *
 * Slots of open blocks are given one by one to requests that run. Engine thread only; nothing is allocated after open.
 */
#ifndef TD_ENGINE_KV_STATE_SLOTS_H
#define TD_ENGINE_KV_STATE_SLOTS_H

#include "engine/kv/prefix_cache.h"

typedef struct {
    uint32_t  n, n_free, n_pages;
    uint32_t *free_list; /* [n] a stack of free slots */
    uint32_t *refs;      /* [n] owners: its page, requests, a step under way; 0: free */
    uint32_t *page;      /* [n] the page whose snapshot it is; UINT32_MAX: it is none */
    uint64_t *used;      /* [n] of a snapshot: when it was made or found last, in numbers of such events */
    uint32_t *of_page;   /* [n_pages] the page's snapshot, or TD_STATE_NONE */
    uint32_t *open;      /* [n_open] a stack of free slots of open blocks */
    uint32_t  n_open;
    uint64_t  events, evictions; /* since open; evictions: snapshots whose slot was needed */
    uint32_t  n_snapshots;

    td_cache_listener listener; /* of the prefix cache: a page that leaves it takes its snapshot with it */
} td_state_slots;

/** Open and listen to the cache. @param n, n_open slots of states and of open blocks. @param cache borrowed. */
TD_NODISCARD td_status td_state_slots_open(td_state_slots *s, uint32_t n, uint32_t n_open, td_prefix_cache *cache,
                                           td_error *err);
void                   td_state_slots_close(td_state_slots *s); /* one that is not open is fine */

bool td_state_slots_can_take(const td_state_slots *s);
/** Take a slot with one owner; a snapshot that nobody else uses gives way. @return TD_STATE_NONE if there is none. */
uint32_t td_state_slots_take(td_state_slots *s);
void     td_state_slots_share(td_state_slots *s, uint32_t slot); /* one owner more */
void     td_state_slots_drop(td_state_slots *s, uint32_t slot);  /* one owner less; the last one frees it */

/** A cached page's snapshot, which counts as used now; TD_STATE_NONE: it has none. */
uint32_t td_state_slots_find(td_state_slots *s, uint32_t page);
/** How many of a prompt's n cached pages lie before the last snapshot among theirs; 0: there is none. */
uint32_t td_state_slots_before(const td_state_slots *s, const uint32_t *pages, uint32_t n);
/** Make the slot the snapshot of a cached page, which becomes one of its owners. Nothing happens if the page has one. */
void td_state_slots_keep(td_state_slots *s, uint32_t slot, uint32_t page);
/** The page has no snapshot from here on. */
void td_state_slots_forget(td_state_slots *s, uint32_t page);
/** Forget it unless a request uses it. */
void td_state_slots_give_up(td_state_slots *s, uint32_t page);

static inline bool td_state_slots_is_shared(const td_state_slots *s, uint32_t slot) {
    return s->refs[slot] > 1;
}

#endif
