#include "core/files/file_write.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory/mem.h"

int td_file_write_at(int fd, const void *data, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return ENOSPC; /* not possible for regular files; never loop on it */
        done += (size_t)n;
    }
    return 0;
}

static bool set_direct(int fd, bool on) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Write whole pages past the cache, until that fails. *done receives how many bytes were written, also with an errno. */
static int write_pages(int fd, const char *data, size_t bytes, uint64_t offset, void *bounce, size_t *done) {
    for (*done = 0; *done < bytes;) {
        size_t      n = bytes - *done < TD_WRITE_BYTES ? bytes - *done : TD_WRITE_BYTES;
        const void *piece = bounce ? memcpy(bounce, data + *done, n) : data + *done;
        ssize_t     written = pwrite(fd, piece, n, (off_t)(offset + *done));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno == EINVAL ? 0 : errno;
        *done += (size_t)written;
        if (written == 0 || (size_t)written % TD_FILE_BLOCK) return 0;
    }
    return 0;
}

int td_file_write_past_cache(int fd, const void *data, size_t bytes, uint64_t offset, void *bounce) {
    const char *at = data;
    size_t      before = (size_t)(td_round_up(offset, TD_FILE_BLOCK) - offset), done = 0;
    if (before > bytes) before = bytes;
    size_t pages = (bytes - before) / TD_FILE_BLOCK * TD_FILE_BLOCK;
    bool   lies_well = (uintptr_t)(at + before) % TD_FILE_BLOCK == 0;
    int    rc = td_file_write_at(fd, at, before, offset);
    if (!rc && pages && (lies_well || bounce) && set_direct(fd, true)) {
        rc = write_pages(fd, at + before, pages, offset + before, lies_well ? NULL : bounce, &done);
        set_direct(fd, false);
    }
    done += before;
    return rc ? rc : td_file_write_at(fd, at + done, bytes - done, offset + done);
}

bool td_same_file(const char *a, const char *b) {
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
