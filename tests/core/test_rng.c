/* Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors). */

#include "core/math/rng.h"
#include "tests/td_test.h"

TEST(philox_gives_the_published_answers) {
    static const struct {
        uint64_t seed, stream, counter;
        uint32_t want[4];
    } kat[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        uint32_t got[4];
        td_philox(kat[i].seed, kat[i].stream, kat[i].counter, got);
        assert_memory_equal(got, kat[i].want, sizeof got);
    }
}

TEST(uniform_stays_in_range_and_has_the_right_mean) {
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double u = td_rng_uniform(42, 7, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum / 100000 > 0.495 && sum / 100000 < 0.505); /* 5 sigma is 0.0046 */
}
