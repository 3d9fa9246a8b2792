/* Memory and processor time of the machine and of its cgroups, of both versions. The test writes the files that these are
 * read from. */
#include <math.h>
#include <sys/stat.h>

#include "core/machine/machine_limits.h"
#include "tests/td_test.h"

#define MIB ((uint64_t)1 << 20)
#define MEMINFO "MemTotal:       16384000 kB\nMemFree:          100000 kB\nMemAvailable:    8192000 kB\n"

static char root[] = "/tmp/test_machine_limits_XXXXXX";

/* Write a file below the root, with the folders that it needs. */
static void put(const char *path, const char *text) {
    char at[512];
    snprintf(at, sizeof at, "%s/%s", root, path);
    for (char *p = at + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        (void)mkdir(at, 0755); /* it may be there */
    }
    FILE *f = fopen(at, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static int empty_root(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s && mkdir %s", root, root);
    return system(command);
}

static int remove_root(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void assert_memory(uint64_t mib, uint64_t available_mib) {
    uint64_t bytes, available;
    td_error err = {0};
    OK(td_machine_memory(root, &bytes, &available, &err));
    assert_int_equal(bytes / MIB, mib);
    assert_int_equal(available / MIB, available_mib);
}

TEST_WITH(without_cgroups_the_machine_counts, empty_root, NULL) {
    put("proc/meminfo", MEMINFO);
    assert_memory(16000, 8000);
    put("proc/self/cgroup", "0::/system.slice/tandem.service\n");
    put("sys/fs/cgroup/system.slice/tandem.service/memory.max", "max\n");
    assert_memory(16000, 8000);
}

TEST_WITH(a_limit_of_the_own_cgroup_counts, empty_root, NULL) {
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/system.slice/tandem.service\n");
    put("sys/fs/cgroup/system.slice/tandem.service/memory.max", "4194304000\n"); /* 4000 MiB */
    put("sys/fs/cgroup/system.slice/tandem.service/memory.current", "1048576000\n");
    assert_memory(4000, 3000);
    put("sys/fs/cgroup/system.slice/tandem.service/memory.stat",
        "anon 1\nfile 629145600\ninactive_file 419430400\nactive_file 104857600\n"); /* 500 MiB of cache */
    assert_memory(4000, 3500);
}

TEST_WITH(a_limit_above_counts, empty_root, NULL) {
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/a/b/c\n");
    put("sys/fs/cgroup/a/memory.max", "2097152000\n");
    put("sys/fs/cgroup/a/memory.current", "1048576000\n");
    put("sys/fs/cgroup/a/b/memory.max", "4194304000\n");
    put("sys/fs/cgroup/a/b/c/memory.max", "max\n");
    assert_memory(2000, 1000);
    put("sys/fs/cgroup/a/b/memory.current", "4194304000\n"); /* larger, and full */
    assert_memory(2000, 0);
}

/* The mount of a container is its own cgroup, whose path on the host it may be told. */
TEST_WITH(a_limit_of_the_mount_counts, empty_root, NULL) {
    put("proc/meminfo", MEMINFO);
    put("sys/fs/cgroup/memory.max", "4194304000\n");
    assert_memory(4000, 4000);
    put("proc/self/cgroup", "0::/docker/0123\n");
    assert_memory(4000, 4000);
}

TEST_WITH(version_1_counts, empty_root, NULL) {
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/jobs/7\n4:nomemory:/jobs\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "4194304000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "3145728000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.stat",
        "cache 1\ninactive_file 1\nactive_file 1\ntotal_inactive_file 524288000\ntotal_active_file 524288000\n");
    assert_memory(4000, 2000);
}

TEST_WITH(strange_files_are_left_out, empty_root, NULL) {
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "\n:\n::\n0:\n0::nothing\n0::/a:b//c");
    put("sys/fs/cgroup/memory.max", "much\n");
    put("sys/fs/cgroup/a:b/memory.max", "1048576000");
    assert_memory(1000, 1000);
    uint64_t bytes, available;
    td_error err = {0};
    put("proc/meminfo", "MemTotal: 0 kB\n");
    assert_int_equal(td_machine_memory(root, &bytes, &available, &err), TD_EIO);
    assert_string_equal(err.text, "/proc/meminfo does not tell how much memory there is");
}

TEST_WITH(processor_time_is_counted_in_cores, empty_root, NULL) {
    assert_true(td_machine_cpu_time(root) == INFINITY);
    put("proc/self/cgroup", "3:cpu,cpuacct:/jobs/7\n0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
    assert_true(td_machine_cpu_time(root) == INFINITY);
    put("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "350000\n");
    assert_float_equal(td_machine_cpu_time(root), 3.5, 1e-9);
    put("sys/fs/cgroup/a/cpu.max", "200000 100000\n");
    assert_float_equal(td_machine_cpu_time(root), 2, 1e-9);
    put("sys/fs/cgroup/a/b/cpu.max", "much 0");
    put("sys/fs/cgroup/cpu.max", "50000 0");
    assert_float_equal(td_machine_cpu_time(root), 2, 1e-9);
}

BEFORE_ALL {
    assert_non_null(mkdtemp(root));
}
AFTER_ALL {
    remove_root(NULL);
}
