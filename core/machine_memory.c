#include "core/machine_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

/* A version of cgroups: where it is mounted, and its files. In a container the mount may be the container's own cgroup, whatever the process is told. */
typedef struct {
    const char *mount, *limit, *used;
    const char *cache[2]; /* keys of memory.stat: pages of files, a model served before still among them */
} hierarchy;

static const hierarchy V2 = {"/sys/fs/cgroup", "memory.max", "memory.current", {"\nactive_file ", "\ninactive_file "}};
static const hierarchy V1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", {"\ntotal_active_file ", "\ntotal_inactive_file "}};

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

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void take_limit(const hierarchy *h, const char *folder, uint64_t *bytes, uint64_t *available_bytes) {
    char     stat[8192];
    uint64_t limit = read_number(folder, h->limit), used = read_number(folder, h->used), cache = 0;
    if (limit == UINT64_MAX) return;
    *bytes = least(*bytes, limit);
    if (used == UINT64_MAX) used = 0;
    if (read_text(folder, "memory.stat", stat, sizeof stat))
        for (size_t i = 0; i < 2; i++) cache += number_after(stat, h->cache[i]);
    uint64_t held = used > cache ? used - cache : 0;
    *available_bytes = least(*available_bytes, held < limit ? limit - held : 0);
}

/* The cgroup at a path below the mount, and all above it. */
static void take_limits(const hierarchy *h, const char *root, const char *path, size_t length, uint64_t *bytes, uint64_t *available_bytes) {
    for (;;) {
        char folder[PATH_MAX];
        if ((size_t)snprintf(folder, sizeof folder, "%s%s%.*s", root, h->mount, (int)length, path) < sizeof folder)
            take_limit(h, folder, bytes, available_bytes);
        if (length == 0) return;
        do length--;
        while (length && path[length] != '/');
    }
}

/* Whether "memory" is one of the names between commas. */
static bool lists_memory(const char *names, size_t length) {
    static const char NAME[] = "memory";
    for (size_t at = 0, end; at < length; at = end + 1) {
        for (end = at; end < length && names[end] != ',';) end++;
        if (end - at == sizeof NAME - 1 && !memcmp(names + at, NAME, sizeof NAME - 1)) return true;
    }
    return false;
}

/* Lines are number:controllers:path, of version 2 without controllers. */
static void take_cgroups(const char *root, uint64_t *bytes, uint64_t *available_bytes) {
    char text[8192];
    take_limits(&V2, root, "", 0, bytes, available_bytes); /* where the process is told of no cgroup */
    take_limits(&V1, root, "", 0, bytes, available_bytes);
    if (!read_text(root, "proc/self/cgroup", text, sizeof text)) return;
    for (char *line = text, *end; *line; line = end + (*end != 0)) {
        end = line + strcspn(line, "\n");
        char *names = memchr(line, ':', (size_t)(end - line)), *path = names ? memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;
        if (!path) continue;
        const hierarchy *h = path == names + 1 ? &V2 : lists_memory(names + 1, (size_t)(path - names - 1)) ? &V1 : NULL;
        if (h) take_limits(h, root, path + 1, (size_t)(end - path - 1), bytes, available_bytes);
    }
}

td_status td_machine_memory(const char *root, uint64_t *bytes, uint64_t *available_bytes, td_error *err) {
    char text[4096]; /* what is wanted stands in the first lines */
    if (!read_text(root, "proc/meminfo", text, sizeof text)) return td_fail(err, TD_EIO, "cannot read /proc/meminfo: %s", strerror(errno));
    *bytes = number_after(text, "MemTotal:") << 10;
    *available_bytes = number_after(text, "MemAvailable:") << 10;
    if (!*bytes || !*available_bytes) return td_fail(err, TD_EIO, "/proc/meminfo does not tell how much memory there is");
    take_cgroups(root, bytes, available_bytes);
    return TD_OK;
}
