#include "core/machine/machine_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

/* The text of a small file of the kernel's, terminated; false, with errno, when it cannot be read. */
static bool read_text(const char *folder, const char *name, char *to, size_t max) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return false;
    ssize_t n = -1;
    int     fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    do n = read(fd, to, max - 1);
    while (n < 0 && errno == EINTR);
    int e = errno;
    close(fd);
    errno = e;
    to[n < 0 ? 0 : n] = 0;
    return n >= 0;
}

/* "max" and a missing file are UINT64_MAX. */
static uint64_t read_number(const char *folder, const char *name) {
    char text[64], *end;
    if (!read_text(folder, name, text, sizeof text)) return UINT64_MAX;
    uint64_t v = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : v;
}

/* The number behind a key; 0 where it is missing. */
static uint64_t number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- cgroups ----------------------------------------------------------------------------------- */

#define V2_MOUNT "/sys/fs/cgroup" /* of version 1: a folder below it for each controller */

/* The folder of a cgroup; ctx is the visitor's. */
typedef void (*cgroup_fn)(void *ctx, const char *folder, int version);

/* The cgroup at a path below a mount, and all above it. */
static void visit_path(const char *root, const char *controller, int version, const char *path, size_t length, cgroup_fn fn,
                       void *ctx) {
    for (;;) {
        char folder[PATH_MAX];
        bool v1 = version == 1;
        if ((size_t)snprintf(folder, sizeof folder, "%s" V2_MOUNT "%s%s%.*s", root, v1 ? "/" : "", v1 ? controller : "",
                             (int)length, path) < sizeof folder)
            fn(ctx, folder, version);
        if (length == 0) return;
        do length--;
        while (length && path[length] != '/');
    }
}

/* Whether a name is one of those between commas. */
static bool lists(const char *names, size_t length, const char *name) {
    for (size_t at = 0, end; at < length; at = end + 1) {
        for (end = at; end < length && names[end] != ',';) end++;
        if (end - at == strlen(name) && !memcmp(names + at, name, end - at)) return true;
    }
    return false;
}

/*
 * Visit all cgroups that limit a controller for this process; some are visited more than once. The mount is always visited,
 * since in a container it may be the container's own cgroup. Lines of the file are number:controllers:path; for version 2
 * the controllers are empty.
 */
static void visit_cgroups(const char *root, const char *controller, cgroup_fn fn, void *ctx) {
    char text[8192];
    visit_path(root, controller, 2, "", 0, fn, ctx);
    visit_path(root, controller, 1, "", 0, fn, ctx);
    if (!read_text(root, "proc/self/cgroup", text, sizeof text)) return;
    for (char *line = text, *end; *line; line = end + (*end != 0)) {
        end = line + strcspn(line, "\n");
        char *names = memchr(line, ':', (size_t)(end - line)),
             *path = names ? memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;
        if (!path) continue;
        int version = path == names + 1 ? 2 : lists(names + 1, (size_t)(path - names - 1), controller) ? 1 : 0;
        if (version) visit_path(root, controller, version, path + 1, (size_t)(end - path - 1), fn, ctx);
    }
}

/* ---- memory ------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t bytes, available_bytes;
} memory;

/* Take a cgroup's memory limit. Pages of files do not count as used: those of a model served before are still among them. */
static void take_memory(void *ctx, const char *folder, int version) {
    static const struct {
        const char *limit, *used, *cache[2]; /* cache: keys of memory.stat */
    } FILES[] = {
        [1] = {"memory.limit_in_bytes", "memory.usage_in_bytes", {"\ntotal_active_file ", "\ntotal_inactive_file "}},
        [2] = {"memory.max", "memory.current", {"\nactive_file ", "\ninactive_file "}}};
    char     stat[8192];
    memory  *m = ctx;
    uint64_t limit = read_number(folder, FILES[version].limit), used = read_number(folder, FILES[version].used), cache = 0;
    if (limit == UINT64_MAX) return;
    m->bytes = least(m->bytes, limit);
    if (used == UINT64_MAX) used = 0;
    if (read_text(folder, "memory.stat", stat, sizeof stat))
        for (size_t i = 0; i < 2; i++) cache += number_after(stat, FILES[version].cache[i]);
    uint64_t held = used > cache ? used - cache : 0;
    m->available_bytes = least(m->available_bytes, held < limit ? limit - held : 0);
}

td_status td_machine_memory(const char *root, uint64_t *bytes, uint64_t *available_bytes, td_error *err) {
    char text[4096]; /* what is wanted stands in the first lines */
    if (!read_text(root, "proc/meminfo", text, sizeof text))
        return td_fail(err, TD_EIO, "cannot read /proc/meminfo: %s", strerror(errno));
    memory m = {number_after(text, "MemTotal:") << 10, number_after(text, "MemAvailable:") << 10};
    if (!m.bytes || !m.available_bytes) return td_fail(err, TD_EIO, "/proc/meminfo does not tell how much memory there is");
    visit_cgroups(root, "memory", take_memory, &m);
    *bytes = m.bytes;
    *available_bytes = m.available_bytes;
    return TD_OK;
}

/* ---- processor time ---------------------------------------------------------------------------- */

/* Take a cgroup's limit of processor time: quota and period, "200000 100000" or "max 100000". Version 1 has them in two
 * files, with -1 for no limit. */
static void take_cpu_time(void *ctx, const char *folder, int version) {
    char    text[64], period_text[64], *end;
    double *cores = ctx;
    if (!read_text(folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text)) return;
    if (version == 1 && !read_text(folder, "cpu.cfs_period_us", period_text, sizeof period_text)) return;
    long long time = strtoll(text, &end, 10), period = strtoll(version == 2 ? end : period_text, NULL, 10);
    if (time > 0 && period > 0) *cores = fmin(*cores, (double)time / (double)period);
}

double td_machine_cpu_time(const char *root) {
    double cores = INFINITY;
    visit_cgroups(root, "cpu", take_cpu_time, &cores);
    return cores;
}
