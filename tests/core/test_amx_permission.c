/*
 * A processor with AMX whose kernel or hypervisor refuses the tile registers, and one whose kernel gives them. The answers
 * of CPUID are made up. The system call is answered by a seccomp filter (linux/seccomp.h) in a process of its own, so the
 * test runs on any machine.
 */
#include <sys/wait.h>
#include <unistd.h>

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "core/machine/cpu.h"
#include "core/machine/cpu_x86_64.h"
#include "kernels/kernels.h"
#include "tests/td_test.h"

#define PASSED 0
#define NO_FILTER 77

/* Every arch_prctl of this process returns -number from now on; 0: success, without anything being done. */
static bool answer_arch_prctl(uint32_t number) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | number),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* Every bit of a Xeon of the 4th generation that the features are about. */
static td_cpuid sapphire_rapids(void) {
    return WITH(td_cpuid, .ecx1 = UINT32_MAX, .ebx7 = UINT32_MAX, .ecx7 = UINT32_MAX, .edx7 = UINT32_MAX,
                .eax7_1 = UINT32_MAX, .xcr0 = 0x602e7);
}

/* The features that a process gets whose arch_prctl answers so, and what it says. */
static uint32_t features_when(uint32_t number, const td_cpuid *id, char said[1024]) {
    int      features[2], log[2], status;
    uint32_t f = 0;
    assert_int_equal(pipe(features) | pipe(log), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(log[1], STDERR_FILENO);
        if (!answer_arch_prctl(number)) _exit(NO_FILTER);
        f = td_cpuid_features(id);
        _exit(write(features[1], &f, sizeof f) == (ssize_t)sizeof f ? PASSED : 1);
    }
    close(features[1]);
    close(log[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_FILTER) skip(); /* no seccomp in this kernel */
    assert_int_equal(status, PASSED);
    assert_int_equal(read(features[0], &f, sizeof f), sizeof f);
    ssize_t n = read(log[0], said, 1023);
    assert_true(n >= 0);
    said[n] = 0;
    close(features[0]);
    close(log[0]);
    return f;
}

TEST(a_refusal_leaves_the_next_set_and_says_so) {
    static const struct {
        uint32_t    number;
        const char *why;
    } REFUSALS[] = {{EPERM, "Operation not permitted"}, {ENOSYS, "Function not implemented"}, {EINVAL, "Invalid argument"}};
    const td_cpuid id = sapphire_rapids();
    char           said[1024];
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        const uint32_t f = features_when(REFUSALS[i].number, &id, said);
        assert_false(f & TD_CPU_AMXINT8);
        assert_string_equal(td_cpu_tier_name(f), "avx512vnni");
        assert_string_equal(td_kernels_for(f)->name, "avx512vnni");
        assert_non_null(strstr(said, "this processor has AMX, but the system does not give its tile registers"));
        assert_non_null(strstr(said, REFUSALS[i].why));
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    }
}

TEST(tiles_that_are_given_are_used) {
    const td_cpuid id = sapphire_rapids();
    char           said[1024];
    const uint32_t f = features_when(0, &id, said);
    assert_true(f & TD_CPU_AMXINT8);
    assert_string_equal(said, "");
    assert_string_equal(td_kernels_for(f)->name, "amx");
}

/* A system that saves no tiles, and a processor without their int8 products, are not asked: nothing is said. */
TEST(without_amx_nothing_is_asked) {
    td_cpuid id[3] = {sapphire_rapids(), sapphire_rapids(), sapphire_rapids()};
    char     said[1024];
    id[0].xcr0 = 0xe7;
    id[1].edx7 &= ~(1u << 25);
    id[2].edx7 &= ~(1u << 24);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(td_cpu_tier_name(features_when(EPERM, &id[i], said)), "avx512vnni");
        assert_string_equal(said, "");
    }
}
