/* The processor's features under a mask, and the errors about masks that do not fit. Each case runs in a process of its own,
 * because the features are found once per process. */
#include <sys/wait.h>
#include <unistd.h>

#include "core/machine/cpu.h"
#include "tests/td_test.h"

typedef struct {
    uint32_t features;
    char     said[1024]; /* the log */
} answer;

static answer ask(const char *mask) {
    answer a = {0};
    int    features[2], said[2], status;
    assert_int_equal(pipe(features) | pipe(said), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(said[1], STDERR_FILENO);
        if (mask)
            setenv("TD_CPU_MASK", mask, 1);
        else
            unsetenv("TD_CPU_MASK");
        uint32_t f = td_cpu_features();
        _exit(write(features[1], &f, sizeof f) != (ssize_t)sizeof f);
    }
    close(features[1]);
    close(said[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read(features[0], &a.features, sizeof a.features), sizeof a.features);
    ssize_t n = read(said[0], a.said, sizeof a.said - 1);
    assert_true(n >= 0);
    close(features[0]);
    close(said[0]);
    return a;
}

TEST(a_mask_leaves_its_tier_and_those_below) {
    answer all = ask(NULL);
    assert_string_equal(all.said, "");
    print_message("this processor: %s\n", td_cpu_tier_name(all.features));
    assert_string_equal(td_cpu_tiers[0].name, "scalar");
    for (const td_cpu_tier *t = td_cpu_tiers; t->name; t++) {
        answer a = ask(t->name);
        assert_int_equal(a.features, all.features & t->kept);
        if (t->own & ~all.features) {
            char want[128];
            snprintf(want, sizeof want,
                     "TD_CPU_MASK=%s: this processor has no such instructions; %s is the best it has up to there", t->name,
                     td_cpu_tier_name(a.features));
            assert_non_null(strstr(a.said, want));
        } else {
            assert_string_equal(a.said, "");
            assert_string_equal(td_cpu_tier_name(a.features), t->name);
        }
    }
}

TEST(a_mask_that_is_no_tier_changes_nothing) {
    static const char *const MASKS[] = {"avx3", "scalar ", "sve9000"};
    answer                   all = ask(NULL);
    for (size_t i = 0; i < sizeof MASKS / sizeof *MASKS; i++) {
        answer a = ask(MASKS[i]);
        assert_int_equal(a.features, all.features);
        assert_non_null(strstr(a.said, "is not a tier of this build (scalar"));
    }
    assert_string_equal(ask("").said, "");
}
