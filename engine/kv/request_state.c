#include "engine/kv/request_state.h"

#include <assert.h>

#define NONE TD_STATE_NONE

static bool ends_block(uint32_t begin, uint32_t end) {
    return begin / TD_STATE_BLOCK != end / TD_STATE_BLOCK;
}

/* ---- life -------------------------------------------------------------------------------------- */

void td_request_state_begin(td_request_state *r, td_state_slots *s, const uint32_t *pages, uint32_t n_pages,
                            uint32_t found) {
    assert(r->open == NONE && s->n_open > 0);
    r->open = s->open[--s->n_open];
    r->now = n_pages ? td_state_slots_find(s, pages[n_pages - 1]) : NONE;
    r->after = r->now;
    r->branch = found > n_pages ? found * TD_KV_PAGE : 0;
    r->generated = 0;
    if (r->now != NONE) td_state_slots_share(s, r->now);
}

static void drop_made(td_request_state *r, td_state_slots *s) {
    while (r->n_made) td_state_slots_drop(s, r->made[--r->n_made].slot);
}

void td_request_state_end(td_request_state *r, td_state_slots *s) {
    drop_made(r, s);
    if (r->after != r->now) td_state_slots_drop(s, r->after);
    if (r->now != NONE) td_state_slots_drop(s, r->now);
    if (r->open != NONE) s->open[s->n_open++] = r->open;
    *r = (td_request_state)TD_REQUEST_STATE_IDLE;
}

/* ---- a step ------------------------------------------------------------------------------------ */

/* Whether the state behind the rows so far must stay as it is: it is a snapshot, or other requests stand on what was one. */
static bool is_kept(const td_request_state *r, const td_state_slots *s) {
    return r->after == NONE || td_state_slots_is_shared(s, r->after);
}

bool td_request_state_can_step(const td_request_state *r, const td_state_slots *s, uint32_t begin, uint32_t end) {
    return !ends_block(begin, end) || !is_kept(r, s) || td_state_slots_can_take(s);
}

bool td_request_state_can_draft(const td_state_slots *s, uint32_t pos) {
    return (pos + 1) % TD_STATE_BLOCK || td_state_slots_can_take(s);
}

/* The first border of a page in (begin, end] where a snapshot is wanted, or the last one of them; UINT32_MAX: nowhere. */
static uint32_t next_border(const td_request_state *r, td_snapshot_rule rule, uint32_t begin, uint32_t end, bool the_last) {
    uint32_t retry = (rule.n_prompt - 1) / TD_KV_PAGE * TD_KV_PAGE, prompt = rule.n_prompt / TD_KV_PAGE * TD_KV_PAGE,
             last = end / TD_KV_PAGE * TD_KV_PAGE, border = UINT32_MAX;
    uint32_t wanted[] = {r->branch, retry, prompt, begin >= rule.n_prompt ? last : 0};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (wanted[i] > begin && wanted[i] <= end && wanted[i] <= rule.n_cacheable + rule.drafted &&
            (border == UINT32_MAX || (wanted[i] > border) == the_last))
            border = wanted[i];
    return border;
}

static void make_snapshot(td_request_state *r, td_state_slots *s, uint32_t n_pages) {
    td_state_slots_share(s, r->after);
    r->made[r->n_made].slot = r->after;
    r->made[r->n_made++].n_pages = n_pages;
}

/* Behind the rows the state is in another slot. */
static void move_on(td_request_state *r, td_state_slots *s) {
    uint32_t slot = td_state_slots_take(s);
    assert(slot != NONE); /* td_request_state_can_step has said so */
    if (r->after != r->now) td_state_slots_drop(s, r->after);
    r->after = slot;
}

uint32_t td_request_state_next_part(td_request_state *r, td_state_slots *s, td_snapshot_rule rule, uint32_t begin,
                                    uint32_t end, uint32_t splits, td_sequence_state *slots) {
    uint32_t border = r->n_made < TD_STEP_SNAPSHOTS_MAX ? next_border(r, rule, begin, end, splits < 2) : UINT32_MAX;
    if (border < end && !splits) border = UINT32_MAX;
    slots->in = r->after;
    slots->open = r->open;
    r->awaits = rule.drafted && end % TD_STATE_BLOCK == 0;
    if (ends_block(begin, end) && (is_kept(r, s) || r->awaits)) move_on(r, s);
    slots->out = r->after;
    if (border < end && ends_block(border, end) && !td_state_slots_can_take(s)) border = UINT32_MAX;
    if (border == UINT32_MAX) return end;
    make_snapshot(r, s, border / TD_KV_PAGE);
    return border;
}

void td_request_state_take_back(td_request_state *r, td_state_slots *s) {
    if (!r->awaits) return;
    drop_made(r, s);
    td_state_slots_drop(s, r->after);
    r->after = r->now;
    r->awaits = false;
}

void td_request_state_commit(td_request_state *r, td_state_slots *s, td_snapshot_rule rule, const uint32_t *pages,
                             uint32_t n_published) {
    r->awaits = false;
    for (uint32_t i = 0; i < r->n_made; i++) {
        uint32_t n = r->made[i].n_pages;
        if (n > n_published) continue;
        td_state_slots_keep(s, r->made[i].slot, pages[n - 1]);
        if (n * TD_KV_PAGE < rule.n_prompt) continue;
        if (r->generated) td_state_slots_give_up(s, pages[r->generated - 1]);
        r->generated = n;
    }
    drop_made(r, s);
    if (r->after == r->now) return;
    if (r->now != NONE) td_state_slots_drop(s, r->now);
    r->now = r->after;
}
