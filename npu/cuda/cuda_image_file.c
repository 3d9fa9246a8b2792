#include "npu/cuda/cuda_image_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/files/file_write.h"

static const char MAGIC[8] = "TDCUDA1";

typedef struct {
    char              magic[8];
    td_cuda_image_key key;
    uint64_t          bytes; /* of the image, which follows */
    uint64_t          hash;  /* XXH3-64 of it */
} header;

/* ---- where ------------------------------------------------------------------------------------- */

static const struct {
    const char *variable, *path;
} FOLDERS[] = {{"TD_CUDA_CACHE", ""}, {"XDG_CACHE_HOME", "/tandem"}, {"HOME", "/.cache/tandem"}};

/** The folder and those above it that are missing. The standard wants them to be the user's alone. */
static int make_folder(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        int rc = mkdir(path, 0700);
        *slash = '/';
        if (rc != 0 && errno != EEXIST && access(path, F_OK) != 0) return errno;
    }
    return mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
}

td_status td_cuda_image_path(char out[TD_CUDA_IMAGE_PATH_MAX], int capability, td_cuda_image_key key, td_error *err) {
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        const char *value = getenv(FOLDERS[i].variable);
        if (!value || *value != '/') continue; /* "XDG Base Directory Specification": a relative path is ignored */
        int n = snprintf(out, TD_CUDA_IMAGE_PATH_MAX, "%s%s", value, FOLDERS[i].path), rc = ENAMETOOLONG;
        if (n < TD_CUDA_IMAGE_PATH_MAX - 64) rc = make_folder(out);
        if (rc) return td_fail(err, TD_EIO, "the folder %.300s cannot be made: %s", out, strerror(rc));
        snprintf(out + n, (size_t)(TD_CUDA_IMAGE_PATH_MAX - n), "/cuda-sm_%d-%016" PRIx64 "%016" PRIx64, capability,
                 key.high, key.low);
        return TD_OK;
    }
    return td_fail(err, TD_EIO, "there is no folder for them: set XDG_CACHE_HOME or HOME");
}

/* ---- reading ----------------------------------------------------------------------------------- */

static bool read_all(int fd, void *out, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, (char *)out + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/** Whoever can write the file decides what runs on the card. */
static bool is_ours(const struct stat *s) {
    return (s->st_uid == geteuid() || s->st_uid == 0) && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

static td_status read_open(int fd, const char *path, td_cuda_image_key key, void **data, size_t *bytes, td_error *err) {
    struct stat s;
    header      h;
    if (fstat(fd, &s) != 0) return td_fail(err, TD_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode) || !is_ours(&s))
        return td_fail(err, TD_EFORMAT, "%s is no file that only this user can write", path);
    if (!read_all(fd, &h, sizeof h) || memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || memcmp(&h.key, &key, sizeof key) != 0)
        return td_fail(err, TD_EFORMAT, "%s does not begin as it should", path);
    if (!h.bytes || h.bytes > TD_CUDA_IMAGE_BYTES_MAX || (uint64_t)s.st_size != sizeof h + h.bytes)
        return td_fail(err, TD_EFORMAT, "%s is cut off: it has %lld bytes", path, (long long)s.st_size);
    char *image = malloc(h.bytes + 1);
    if (!image) return td_fail(err, TD_ENOMEM, "out of memory for the kernels of %s", path);
    image[h.bytes] = 0;
    if (!read_all(fd, image, h.bytes) || XXH3_64bits(image, h.bytes) != h.hash) {
        free(image);
        return td_fail(err, TD_EFORMAT, "%s does not have its checksum", path);
    }
    *data = image;
    *bytes = h.bytes;
    return TD_OK;
}

td_status td_cuda_image_read(const char *path, td_cuda_image_key key, void **data, size_t *bytes, td_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *data = NULL;
    *bytes = 0;
    if (fd < 0 && errno == ENOENT) return td_fail(err, TD_ENOTFOUND, "%s is not there", path);
    if (fd < 0) return td_fail(err, errno == ELOOP ? TD_EFORMAT : TD_EIO, "%s cannot be read: %s", path, strerror(errno));
    td_status st = read_open(fd, path, key, data, bytes, err);
    close(fd);
    return st;
}

/* ---- writing ----------------------------------------------------------------------------------- */

td_status td_cuda_image_write(const char *path, td_cuda_image_key key, const void *data, size_t bytes, td_error *err) {
    char   part[TD_CUDA_IMAGE_PATH_MAX + 8];
    header h = {.key = key, .bytes = bytes, .hash = XXH3_64bits(data, bytes)};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    snprintf(part, sizeof part, "%s.XXXXXX", path);
    int fd = mkstemp(part), rc = fd < 0 ? errno : 0;
    if (fd < 0) return td_fail(err, TD_EIO, "%s cannot be written: %s", part, strerror(rc));
    rc = td_file_write_at(fd, &h, sizeof h, 0);
    if (!rc) rc = td_file_write_at(fd, data, bytes, sizeof h);
    if (close(fd) != 0 && !rc) rc = errno;
    if (!rc && rename(part, path) != 0) rc = errno;
    if (!rc) return TD_OK;
    unlink(part);
    return td_fail(err, TD_EIO, "%s cannot be written: %s", path, strerror(rc));
}
