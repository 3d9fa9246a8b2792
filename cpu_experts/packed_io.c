#include "cpu_experts/packed_io.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <liburing.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file_write.h"

#define IN_FLIGHT 8
#define PIECE_BYTES ((size_t)4 << 20)

/* ---- reading ----------------------------------------------------------------------------------- */

typedef struct {
    const packed_span *spans;
    size_t             n_spans, span, at; /* what has been handed out */
} piece_source;

/* The next piece of at most PIECE_BYTES. */
static bool next_piece(piece_source *s, packed_span *out) {
    while (s->span < s->n_spans && s->at == s->spans[s->span].bytes) {
        s->span++;
        s->at = 0;
    }
    if (s->span == s->n_spans) return false;
    const packed_span *p = &s->spans[s->span];
    size_t             bytes = p->bytes - s->at < PIECE_BYTES ? p->bytes - s->at : PIECE_BYTES;
    *out = (packed_span){.offset = p->offset + s->at, .bytes = bytes, .dst = (char *)p->dst + s->at};
    s->at += bytes;
    return true;
}

static td_status read_failed(td_error *err, const char *path, int error_number) {
    if (error_number == 0) return td_fail(err, TD_EIO, "%s ends too early", path);
    return td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(error_number));
}

/* Of what finish_piece returned. */
static td_status piece_status(int rc, const char *path, td_error *err) {
    return rc ? read_failed(err, path, rc < 0 ? 0 : rc) : TD_OK;
}

/* The rest of a piece through the page cache: after a short read, an offset may no longer suit O_DIRECT. */
static int finish_piece(int fd, packed_span p, size_t done) {
    while (done < p.bytes) {
        ssize_t n = pread(fd, (char *)p.dst + done, p.bytes - done, (off_t)(p.offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return -1; /* the end of the file */
        done += (size_t)n;
    }
    return 0;
}

static td_status read_plain(int fd, const char *path, const packed_span *spans, size_t n_spans, td_error *err) {
    piece_source source = {.spans = spans, .n_spans = n_spans};
    packed_span  p;
    while (next_piece(&source, &p)) {
        TD_TRY(piece_status(finish_piece(fd, p, 0), path, err));
    }
    return TD_OK;
}

td_status td_packed_read_piece(int fd, const char *path, packed_span piece, td_error *err) {
    TD_TRY(piece_status(finish_piece(fd, piece, 0), path, err));
    (void)posix_fadvise(fd, (off_t)piece.offset, (off_t)piece.bytes, POSIX_FADV_DONTNEED); /* a hint */
    return TD_OK;
}

/* A completed read: short ones and those that O_DIRECT refuses go on through the page cache. Returns errno, -1 for end of
 * file. */
static int complete_piece(int plain_fd, packed_span p, int result) {
    if (result == -EINVAL || result == -EINTR || result == -EAGAIN) result = 0;
    if (result < 0) return -result;
    return finish_piece(plain_fd, p, (size_t)result);
}

static td_status read_ring(struct io_uring *ring, int direct_fd, int plain_fd, const char *path, const packed_span *spans,
                           size_t n_spans, td_error *err) {
    piece_source source = {.spans = spans, .n_spans = n_spans};
    packed_span  pieces[IN_FLIGHT], p;
    unsigned     free_slots[IN_FLIGHT], n_free = IN_FLIGHT, n_submitted = 0;
    int          failure = 0; /* the first; then only wait for what is in flight, since it writes to the destination */
    for (unsigned i = 0; i < IN_FLIGHT; i++) free_slots[i] = i;
    for (;;) {
        while (!failure && n_free && next_piece(&source, &p)) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(ring); /* never NULL: the ring has IN_FLIGHT entries */
            unsigned             slot = free_slots[--n_free];
            pieces[slot] = p;
            io_uring_prep_read(sqe, direct_fd, p.dst, (unsigned)p.bytes, p.offset);
            io_uring_sqe_set_data(sqe, &pieces[slot]);
        }
        if (!failure && io_uring_sq_ready(ring)) {
            int rc = io_uring_submit(ring);
            if (rc >= 0)
                n_submitted += (unsigned)rc;
            else if (rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
                failure = -rc;
        }
        if (n_submitted == 0 && (failure || n_free == IN_FLIGHT)) break;
        if (n_submitted == 0) continue; /* nothing was taken yet: try again */
        struct io_uring_cqe *cqe;
        int                  rc = io_uring_wait_cqe(ring, &cqe);
        if (rc == -EINTR || rc == -EAGAIN) continue;
        if (rc < 0) return read_failed(err, path, -rc);
        packed_span *done = io_uring_cqe_get_data(cqe);
        int          result = cqe->res;
        io_uring_cqe_seen(ring, cqe);
        n_submitted--;
        free_slots[n_free++] = (unsigned)(done - pieces);
        if (!failure) failure = complete_piece(plain_fd, *done, result);
    }
    return piece_status(failure, path, err);
}

td_status td_packed_read(const char *path, const packed_span *spans, size_t n_spans, const packed_read_options *options,
                         td_error *err) {
    bool no_uring = options && options->no_uring, no_direct = options && options->no_direct;
    int  fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return td_fail(err, errno == ENOENT ? TD_ENOTFOUND : TD_EIO, "cannot open %s: %s", path, strerror(errno));
    struct io_uring ring;
    td_status       status;
    if (no_uring || io_uring_queue_init(IN_FLIGHT, &ring, 0) < 0) {
        status = read_plain(fd, path, spans, n_spans, err);
    } else {
        int direct_fd = no_direct ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        status = read_ring(&ring, direct_fd >= 0 ? direct_fd : fd, fd, path, spans, n_spans, err);
        io_uring_queue_exit(&ring);
        if (direct_fd >= 0) close(direct_fd);
    }
    close(fd);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------- */

/* Open the folder of a path, or with O_TMPFILE a file in it. @return -1 with errno */
static int open_folder_of(const char *path, int flags) {
    char copy[PATH_MAX];
    if ((size_t)snprintf(copy, sizeof copy, "%s", path) < sizeof copy) return open(dirname(copy), flags | O_CLOEXEC, 0644);
    errno = ENAMETOOLONG;
    return -1;
}

static int sync_folder(const char *path) {
    int fd = open_folder_of(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return errno;
    int rc = fsync(fd) ? errno : 0;
    close(fd);
    return rc == EINVAL ? 0 : rc; /* a file system that cannot sync folders */
}

/* Without a name, where the file system has that: a killed process leaves nothing of it. Else under the temporary one. */
static int open_unseen(const char *path, const char *tmp, bool *named) {
    int fd = open_folder_of(path, O_TMPFILE | O_WRONLY);
    *named = fd < 0;
    return *named ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : fd;
}

static int give_name(int fd, const char *name) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    (void)unlink(name); /* a killed process of this number may have left one */
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) ? errno : 0;
}

td_status td_packed_write(const char *path, const packed_part *parts, size_t n_parts, td_error *err) {
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid()) >= sizeof tmp)
        return td_fail(err, TD_EIO, "cannot write %s: %s", path, strerror(ENAMETOOLONG));
    bool named;
    int  fd = open_unseen(path, tmp, &named);
    if (fd < 0) return td_fail(err, TD_EIO, "cannot create %s: %s", tmp, strerror(errno));
    int      rc = 0;
    uint64_t offset = 0;
    for (size_t i = 0; i < n_parts && !rc; offset += parts[i++].bytes)
        rc = td_file_write_past_cache(fd, parts[i].data, parts[i].bytes, offset, NULL);
    if (!rc && fsync(fd)) rc = errno;
    if (!rc && !named) rc = give_name(fd, tmp);
    if (close(fd) && !rc) rc = errno;
    if (!rc && rename(tmp, path)) rc = errno;
    if (rc) {
        unlink(tmp);
        return td_fail(err, TD_EIO, "cannot write %s: %s", path, strerror(rc));
    }
    rc = sync_folder(path);
    if (rc) return td_fail(err, TD_EIO, "cannot sync the folder of %s: %s", path, strerror(rc));
    return TD_OK;
}
