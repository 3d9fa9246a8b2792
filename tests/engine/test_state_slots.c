/* Slots of recurrent states: who owns them, which snapshots give way, and what becomes of them with their pages. */
#include "core/math/rng.h"
#include "engine/kv/request_state.h"
#include "tests/td_test.h"

#define PAGES 8
#define SLOTS 4
#define OPEN 2

typedef struct {
    td_kv_pages     pages;
    td_prefix_cache cache;
    td_state_slots  slots;
} rig;

static void open_rig(rig *r, uint32_t n_slots) {
    OK(td_kv_pages_open(&r->pages, PAGES, NULL));
    OK(td_prefix_cache_open(&r->cache, &r->pages, true, NULL));
    OK(td_state_slots_open(&r->slots, n_slots, OPEN, &r->cache, NULL));
}

/* Every slot is free in the end, as every snapshot goes with the cache. */
static void close_rig(rig *r) {
    td_prefix_cache_flush(&r->cache);
    assert_int_equal(r->slots.n_snapshots, 0);
    assert_int_equal(r->slots.n_free, r->slots.n);
    assert_int_equal(r->slots.n_open, OPEN);
    td_state_slots_close(&r->slots);
    td_prefix_cache_close(&r->cache);
    td_kv_pages_close(&r->pages);
}

/* A cached path of n pages that nobody holds, with tokens of its own. */
static void cache_path(rig *r, uint32_t first_token, uint32_t n, uint32_t *pages) {
    uint32_t tokens[PAGES * TD_KV_PAGE];
    for (uint32_t i = 0; i < n * TD_KV_PAGE; i++) tokens[i] = first_token + i;
    assert_true(td_prefix_cache_take(&r->cache, pages, n));
    td_prefix_cache_publish(&r->cache, tokens, 0, n, pages);
    for (uint32_t i = n; i-- > 0;) td_prefix_cache_drop(&r->cache, pages[i]);
}

static void keep_new(rig *r, uint32_t page) {
    uint32_t slot = td_state_slots_take(&r->slots);
    td_state_slots_keep(&r->slots, slot, page);
    td_state_slots_drop(&r->slots, slot);
}

TEST(the_least_useful_snapshot_gives_way) {
    AT_END(close_rig) rig r;
    uint32_t              pages[4];
    open_rig(&r, 3);
    cache_path(&r, 0, 4, pages);
    for (int i = 0; i < 3; i++) keep_new(&r, pages[i]);
    uint32_t slot = td_state_slots_find(&r.slots, pages[0]); /* of use: the second is now the oldest */
    td_state_slots_share(&r.slots, slot);                    /* and a request stands on it */
    keep_new(&r, pages[3]);
    assert_int_equal(td_state_slots_find(&r.slots, pages[1]), TD_STATE_NONE);
    assert_true(td_state_slots_find(&r.slots, pages[2]) != TD_STATE_NONE);
    assert_int_equal(r.slots.evictions, 1);
    uint32_t a = td_state_slots_take(&r.slots), b = td_state_slots_take(&r.slots);
    assert_true(a != slot && b != slot);
    assert_false(td_state_slots_can_take(&r.slots)); /* the one that is left is in use */
    assert_int_equal(td_state_slots_take(&r.slots), TD_STATE_NONE);
    td_state_slots_drop(&r.slots, slot);
    assert_true(td_state_slots_can_take(&r.slots));
    td_state_slots_drop(&r.slots, a);
    td_state_slots_drop(&r.slots, b);
}

TEST(a_page_that_leaves_takes_its_snapshot) {
    AT_END(close_rig) rig r;
    uint32_t              pages[2], taken[PAGES];
    open_rig(&r, SLOTS);
    cache_path(&r, 0, 2, pages);
    keep_new(&r, pages[1]);
    uint32_t slot = td_state_slots_find(&r.slots, pages[1]);
    td_state_slots_share(&r.slots, slot);
    td_state_slots_share(&r.slots, slot);
    assert_true(td_prefix_cache_take(&r.cache, taken, PAGES)); /* evicts both */
    assert_int_equal(r.slots.n_snapshots, 0);
    assert_true(td_state_slots_is_shared(&r.slots, slot)); /* two requests stand on it: neither may write it */
    td_state_slots_drop(&r.slots, slot);
    assert_false(td_state_slots_is_shared(&r.slots, slot));
    td_state_slots_drop(&r.slots, slot);
    for (uint32_t i = PAGES; i-- > 0;) td_prefix_cache_drop(&r.cache, taken[i]);
}

static uint32_t next_part(td_request_state *r, rig *g, td_snapshot_rule rule, uint32_t begin, uint32_t end,
                          td_sequence_state *s) {
    return td_request_state_next_part(r, &g->slots, rule, begin, end, TD_STEP_SNAPSHOTS_MAX, s);
}

/* A prompt of 270 tokens in steps of 100, then an answer. */
TEST(states_of_a_request) {
    AT_END(close_rig) rig g;
    td_request_state      r = TD_REQUEST_STATE_IDLE;
    td_sequence_state     s;
    td_snapshot_rule      rule = {.n_prompt = 270, .n_cacheable = 1000};
    uint32_t              pages[4];
    open_rig(&g, SLOTS);
    cache_path(&g, 0, 4, pages);
    td_request_state_begin(&r, &g.slots, pages, 0, 0);
    const uint32_t few = TD_STATE_BLOCK - 4; /* no block ends */
    assert_int_equal(next_part(&r, &g, rule, 0, few, &s), few);
    assert_true(s.in == TD_STATE_NONE && s.out == TD_STATE_NONE && s.open < OPEN);
    td_request_state_commit(&r, &g.slots, rule, pages, 0);
    assert_int_equal(next_part(&r, &g, rule, few, 200, &s), 200);
    uint32_t own = s.out;
    assert_true(s.in == TD_STATE_NONE && own < SLOTS);
    td_request_state_commit(&r, &g.slots, rule, pages, 0);
    assert_int_equal(next_part(&r, &g, rule, 200, 270, &s), 256); /* the prompt's last page is full there */
    assert_true(s.in == own && s.out == own);                     /* in place */
    assert_int_equal(next_part(&r, &g, rule, 256, 270, &s), 270);
    assert_true(s.in == own && s.out == own);
    td_request_state_commit(&r, &g.slots, rule, pages, 2);
    assert_int_equal(td_state_slots_find(&g.slots, pages[1]), own);
    for (uint32_t at = 270; at < 384; at++) { /* the answer leaves the snapshot as it is */
        assert_true(td_request_state_can_step(&r, &g.slots, at, at + 1));
        assert_int_equal(next_part(&r, &g, rule, at, at + 1, &s), at + 1);
        assert_true((s.in != s.out) == (s.in == own && (at + 1) % TD_STATE_BLOCK == 0));
        td_request_state_commit(&r, &g.slots, rule, pages, 3);
    }
    assert_true(td_state_slots_find(&g.slots, pages[2]) == r.now && r.now != own);
    td_request_state_end(&r, &g.slots);
    assert_int_equal(g.slots.n_snapshots, 2);
}

/* A prompt that ends where a page does: a retry begins before its last page, and the next turn behind it. */
TEST(a_prompt_of_whole_pages) {
    AT_END(close_rig) rig g;
    td_request_state      r = TD_REQUEST_STATE_IDLE;
    td_sequence_state     s;
    td_snapshot_rule      rule = {.n_prompt = 256, .n_cacheable = 1000};
    uint32_t              pages[3];
    open_rig(&g, SLOTS);
    cache_path(&g, 0, 3, pages);
    td_request_state_begin(&r, &g.slots, pages, 0, 0);
    assert_int_equal(next_part(&r, &g, rule, 0, 256, &s), 128);
    assert_int_equal(next_part(&r, &g, rule, 128, 256, &s), 256);
    td_request_state_commit(&r, &g.slots, rule, pages, 2);
    assert_true(td_state_slots_find(&g.slots, pages[0]) != TD_STATE_NONE);
    assert_int_equal(td_state_slots_find(&g.slots, pages[1]), r.now);
    for (uint32_t at = 256; at < 384; at += TD_STATE_BLOCK) { /* and from there on the answer's are of use */
        assert_int_equal(next_part(&r, &g, rule, at, at + TD_STATE_BLOCK, &s), at + TD_STATE_BLOCK);
        td_request_state_commit(&r, &g.slots, rule, pages, (at + TD_STATE_BLOCK) / TD_KV_PAGE);
    }
    assert_int_equal(td_state_slots_find(&g.slots, pages[1]), TD_STATE_NONE);
    assert_int_equal(td_state_slots_find(&g.slots, pages[2]), r.now);
    td_request_state_end(&r, &g.slots);
}

/* With room for one part more, the end of the prompt goes before the place where another prompt went its own way. */
TEST(room_for_one_part_more) {
    static const uint32_t ENDS[] = {300, 256, 128}; /* of the first part, with room for so many more */
    AT_END(close_rig) rig g;
    td_sequence_state     s;
    td_snapshot_rule      rule = {.n_prompt = 300, .n_cacheable = 300};
    uint32_t              pages[2];
    open_rig(&g, SLOTS);
    cache_path(&g, 0, 2, pages);
    for (uint32_t splits = 0; splits < 3; splits++) {
        td_request_state r = TD_REQUEST_STATE_IDLE;
        td_request_state_begin(&r, &g.slots, pages, 0, 1); /* a branch behind the first page */
        assert_int_equal(td_request_state_next_part(&r, &g.slots, rule, 0, 300, splits, &s), ENDS[splits]);
        td_request_state_end(&r, &g.slots);
    }
}

/* A draft that ends a block: the step writes another slot, which becomes the state, and a snapshot, once it is accepted. */
TEST(a_draft_at_the_end_of_a_block) {
    AT_END(close_rig) rig g;
    td_request_state      r = TD_REQUEST_STATE_IDLE;
    td_sequence_state     s;
    td_snapshot_rule      rule = {.n_prompt = 200, .n_cacheable = 255};
    uint32_t              pages[2];
    open_rig(&g, SLOTS);
    cache_path(&g, 0, 2, pages);
    td_request_state_begin(&r, &g.slots, pages, 0, 0);
    assert_int_equal(next_part(&r, &g, rule, 0, 254, &s), 128); /* behind the prompt's last full page */
    assert_int_equal(next_part(&r, &g, rule, 128, 254, &s), 254);
    td_request_state_commit(&r, &g.slots, rule, pages, 1);
    uint32_t now = r.now, n_free = g.slots.n_free;
    rule.drafted = true;
    for (int accepted = 0; accepted < 2; accepted++) {
        assert_true(td_request_state_can_draft(&g.slots, 255));
        assert_int_equal(next_part(&r, &g, rule, 254, 256, &s), 256);
        assert_true(s.in == now && s.out != now && r.awaits);
        if (accepted) {
            td_request_state_commit(&r, &g.slots, rule, pages, 2);
            assert_true(r.now == s.out && td_state_slots_find(&g.slots, pages[1]) == r.now);
        } else {
            td_request_state_take_back(&r, &g.slots);
            assert_int_equal(r.now, now);
        }
        assert_true(r.after == r.now && !r.awaits && g.slots.n_free == n_free);
    }
    assert_int_equal(next_part(&r, &g, rule, 287, 289, &s), 289); /* the token ends the block, and the draft does not */
    assert_true(s.in == r.now && !r.awaits);
    td_request_state_end(&r, &g.slots);
    while (g.slots.n_free) td_state_slots_take(&g.slots);
    assert_true(td_request_state_can_draft(&g.slots, 254)); /* ends no block */
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (g.slots.page[slot] == UINT32_MAX) td_state_slots_drop(&g.slots, slot);
}

/* What a step that failed has taken comes back. */
TEST(a_step_that_fails_leaves_nothing) {
    AT_END(close_rig) rig g;
    td_request_state      r = TD_REQUEST_STATE_IDLE;
    td_sequence_state     s;
    td_snapshot_rule      rule = {.n_prompt = 300, .n_cacheable = 300};
    uint32_t              pages[4];
    open_rig(&g, SLOTS);
    cache_path(&g, 0, 4, pages);
    keep_new(&g, pages[0]);
    assert_int_equal(td_state_slots_before(&g.slots, pages, 2), 1);
    td_request_state_begin(&r, &g.slots, pages, 1, 2); /* the second page has no snapshot: a branch */
    uint32_t border = next_part(&r, &g, rule, 128, 299, &s);
    assert_int_equal(border, 256);
    assert_true(s.in == td_state_slots_find(&g.slots, pages[0]) && s.out != s.in);
    uint32_t first = s.out;
    assert_int_equal(next_part(&r, &g, rule, border, 384, &s), 384);
    assert_true(s.in == first && s.out != first);
    td_request_state_end(&r, &g.slots);
    assert_int_equal(g.slots.n_free, SLOTS - 1);
    assert_int_equal(td_state_slots_find(&g.slots, pages[1]), TD_STATE_NONE);
}

/* Without a second slot a snapshot is left out, and one that a request stands on makes it wait. */
TEST(short_of_slots) {
    AT_END(close_rig) rig g;
    td_request_state      r = TD_REQUEST_STATE_IDLE, other = TD_REQUEST_STATE_IDLE;
    td_sequence_state     s;
    td_snapshot_rule      rule = {.n_prompt = 270, .n_cacheable = 270};
    uint32_t              pages[4];
    open_rig(&g, 2);
    cache_path(&g, 0, 4, pages);
    keep_new(&g, pages[0]);
    td_request_state_begin(&other, &g.slots, pages, 1, 1);
    td_request_state_begin(&r, &g.slots, pages, 0, 0);
    assert_true(td_request_state_can_step(&r, &g.slots, 0, 270));
    assert_int_equal(next_part(&r, &g, rule, 0, 270, &s), 256); /* what follows ends no block */
    td_request_state_end(&r, &g.slots);
    td_request_state_begin(&r, &g.slots, pages, 0, 0);
    assert_int_equal(next_part(&r, &g, rule, 0, 330, &s), 330);
    assert_false(td_request_state_can_step(&other, &g.slots, 128, 200));
    assert_true(td_request_state_can_step(&other, &g.slots, 128, 128 + TD_STATE_BLOCK - 1));
    td_request_state_end(&r, &g.slots);
    assert_true(td_request_state_can_step(&other, &g.slots, 128, 200));
    td_request_state_end(&other, &g.slots);
}
