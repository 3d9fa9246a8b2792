#include "image/image_sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/machine/cpu.h"

static bool limit(int resource, uint64_t most) {
    return !setrlimit(resource, &(struct rlimit){most, most});
}

#ifndef TD_IMAGE_UNCONFINED

/* The address space of this process; 0 where it cannot be read. */
static uint64_t address_space(void) {
    char    text[64];
    int     fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool limit_memory(uint64_t bytes) {
    const uint64_t now = address_space();
    return now && limit(RLIMIT_AS, now + bytes);
}

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), RETURN(SECCOMP_RET_ALLOW)

/* False where the kernel, or the emulator in its place, has no filters; the other limits hold there all the same. */
static bool filter_calls(void) {
    const uint32_t     here = td_cpu_audit_arch();
    struct sock_filter program[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, here, 1, 0), /* numbers of another architecture are other calls */
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        ALLOW(SYS_read),
        ALLOW(SYS_write),
        ALLOW(SYS_munmap),
        ALLOW(SYS_mremap),
        ALLOW(SYS_madvise),
        ALLOW(SYS_brk),
        ALLOW(SYS_futex),
        ALLOW(SYS_clock_gettime),
        ALLOW(SYS_rt_sigreturn),
        ALLOW(SYS_exit),
        ALLOW(SYS_exit_group),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        LOAD(args[2]), /* the lower half: both architectures that have a number here are little-endian */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0),
        RETURN(SECCOMP_RET_ALLOW),
        RETURN(SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return here && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

#else

static bool limit_memory(uint64_t bytes) {
    (void)bytes;
    return true;
}

static bool filter_calls(void) {
    return true;
}

#endif

bool td_image_confine(uint64_t memory_bytes, uint32_t time_s) {
    bool is_limited = limit_memory(memory_bytes) && limit(RLIMIT_CPU, time_s) && limit(RLIMIT_CORE, 0) &&
                      limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_NPROC, 0);
    closefrom(3);
    is_limited = is_limited && limit(RLIMIT_NOFILE, 0) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (is_limited) (void)filter_calls();
    return is_limited;
}
