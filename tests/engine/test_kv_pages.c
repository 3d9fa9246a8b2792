/* KV pages: each is free or owned, a shared page survives until its last owner drops it, and a random history neither loses
 * nor doubles a page. */

#include "core/math/rng.h"
#include "engine/kv/kv_pages.h"
#include "tests/td_test.h"

#define PAGES 97
#define SEED 20240611u

TEST(all_or_nothing) {
    AT_END(td_kv_pages_close) td_kv_pages p;
    uint32_t                              a[8];
    OK(td_kv_pages_open(&p, 8, NULL));
    assert_true(td_kv_pages_take(&p, a, 6));
    assert_int_equal(td_kv_pages_used(&p), 6);
    assert_false(td_kv_pages_take(&p, a, 3));
    assert_int_equal(td_kv_pages_used(&p), 6);
    uint32_t first = a[0], again;
    td_kv_pages_drop(&p, first);
    assert_true(td_kv_pages_take(&p, &again, 1));
    assert_int_equal(again, first); /* last freed, first taken */
}

TEST(shared_page_lives_until_last_drop) {
    AT_END(td_kv_pages_close) td_kv_pages p;
    uint32_t                              a;
    OK(td_kv_pages_open(&p, 1, NULL));
    assert_true(td_kv_pages_take(&p, &a, 1));
    td_kv_pages_share(&p, a);
    td_kv_pages_drop(&p, a);
    assert_int_equal(td_kv_pages_used(&p), 1);
    td_kv_pages_drop(&p, a);
    assert_int_equal(td_kv_pages_used(&p), 0);
}

TEST(random_history) {
    print_message("seed %u\n", SEED);
    AT_END(td_kv_pages_close) td_kv_pages p;
    uint32_t                              owners[PAGES] = {0}, used = 0;
    OK(td_kv_pages_open(&p, PAGES, NULL));
    for (uint64_t step = 0; step < 20000; step++) {
        uint64_t r = td_rng_u64(SEED, 0, step);
        uint32_t page = (uint32_t)(r >> 8) % PAGES, got[4], n = 1 + (uint32_t)(r >> 40) % 4;
        if (r % 3 == 0) {
            bool ok = td_kv_pages_take(&p, got, n);
            assert_int_equal(ok, used + n <= PAGES);
            for (uint32_t i = 0; ok && i < n; i++) {
                assert_int_equal(owners[got[i]], 0);
                owners[got[i]] = 1;
                used++;
            }
        } else if (owners[page] && r % 3 == 1 && owners[page] < 5) {
            td_kv_pages_share(&p, page);
            owners[page]++;
        } else if (owners[page]) {
            td_kv_pages_drop(&p, page);
            used -= --owners[page] == 0;
        }
        assert_int_equal(td_kv_pages_used(&p), used);
    }
}
