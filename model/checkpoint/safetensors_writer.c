#include "model/checkpoint/safetensors_writer.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file_write.h"
#include "core/files/json_text.h"
#include "core/memory/mem.h"
#include "model/checkpoint/safetensors.h"

#define PAYLOAD_ALIGN 64
#define LARGE_BYTES ((size_t)1 << 20) /* a piece of this size is written past the page cache */

struct td_safetensors_writer {
    char  *path, *part;
    char  *head; /* length word and header */
    size_t head_bytes, file_bytes;
    void  *bounce; /* TD_WRITE_BYTES, from the first large piece on; NULL: none */
    int    fd;     /* -1: not begun or committed */
};

static td_status write_failed(const char *path, td_error *err) {
    if (errno == ENOSPC || errno == EDQUOT)
        return td_fail(err, TD_EIO, "%s: the disk is full; free some space and run again, finished files are kept", path);
    return td_fail(err, TD_EIO, "%s: cannot write: %s", path, strerror(errno));
}

static td_status write_at(int fd, const char *path, const void *data, size_t bytes, size_t at, td_error *err) {
    errno = td_file_write_at(fd, data, bytes, at);
    return errno ? write_failed(path, err) : TD_OK;
}

/* Make the rename durable. That the folder cannot be opened for it is no failure of the file. */
static void sync_folder_of(const char *path) {
    char *dir = strdup(path), *slash = dir ? strrchr(dir, '/') : NULL;
    if (slash) *slash = 0;
    int fd = dir ? open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(dir);
}

/* Offsets: types of 8 bytes, then 4, 2, 1. Returns the payload's size. */
static size_t lay_out(td_safetensors_item *items, size_t n) {
    size_t at = 0;
    for (size_t width = 8; width; width /= 2)
        for (size_t i = 0; i < n; i++) {
            if (td_dtype_bytes(items[i].dtype) != width) continue;
            items[i].bytes = width;
            for (uint32_t d = 0; d < items[i].rank; d++) items[i].bytes *= items[i].shape[d];
            items[i].offset = at;
            at += items[i].bytes;
        }
    return at;
}

static char *header_text(const td_safetensors_item *items, size_t n, const char *key, const char *value) {
    json_t *root = json_pack("{s:{s:s,s:s}}", "__metadata__", "format", "pt", key,
                             value); /* transformers reads no file without a format */
    int     failed = !root;
    for (size_t i = 0; i < n && !failed; i++) {
        const td_safetensors_item *t = &items[i];
        json_t                    *shape = json_array();
        for (uint32_t d = 0; d < t->rank; d++) failed |= json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        failed |=
            json_object_set_new(root, t->name,
                                json_pack("{s:s,s:o,s:[I,I]}", "dtype", td_safetensors_dtype_name(t->dtype), "shape", shape,
                                          "data_offsets", (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes)));
    }
    char *text = failed ? NULL : td_json_dump(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static td_status make_head(td_safetensors_writer *w, const char *text) {
    size_t   len = strlen(text);
    uint64_t padded = td_round_up(sizeof padded + len, PAYLOAD_ALIGN) - sizeof padded, word = htole64(padded);
    w->head_bytes = sizeof word + padded;
    w->head = malloc(w->head_bytes);
    if (!w->head) return TD_ENOMEM;
    memcpy(w->head, &word, sizeof word);
    memcpy(w->head + sizeof word, text, len);
    memset(w->head + sizeof word + len, ' ', padded - len);
    return TD_OK;
}

td_status td_safetensors_writer_create(const char *path, td_safetensors_item *items, size_t n, const char *key,
                                       const char *value, td_safetensors_writer **out, td_error *err) {
    td_safetensors_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return td_fail(err, TD_ENOMEM, "%s: out of memory", path);
    w->fd = -1;
    size_t payload = lay_out(items, n);
    char  *text = header_text(items, n, key, value);
    w->path = strdup(path);
    if (asprintf(&w->part, "%s.part", path) < 0) w->part = NULL;
    bool ok = text && w->path && w->part && make_head(w, text) == TD_OK;
    free(text);
    if (!ok) {
        td_safetensors_writer_destroy(w);
        return td_fail(err, TD_ENOMEM, "%s: out of memory", path);
    }
    w->file_bytes = w->head_bytes + payload;
    *out = w;
    return TD_OK;
}

bool td_safetensors_writer_is_done(const td_safetensors_writer *w) {
    struct stat st;
    int         fd = open(w->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char *head = malloc(w->head_bytes);
    bool  same = head && fstat(fd, &st) == 0 && (uint64_t)st.st_size == w->file_bytes &&
                pread(fd, head, w->head_bytes, 0) == (ssize_t)w->head_bytes && !memcmp(head, w->head, w->head_bytes);
    free(head);
    close(fd);
    return same;
}

td_status td_safetensors_writer_begin(td_safetensors_writer *w, td_error *err) {
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) return write_failed(w->part, err);
    if (ftruncate(w->fd, (off_t)w->file_bytes) != 0) return write_failed(w->part, err);
    return write_at(w->fd, w->part, w->head, w->head_bytes, 0, err);
}

td_status td_safetensors_writer_write(td_safetensors_writer *w, const td_safetensors_item *item, size_t at, const void *data,
                                      size_t bytes, td_error *err) {
    size_t offset = w->head_bytes + item->offset + at;
    if (bytes < LARGE_BYTES) return write_at(w->fd, w->part, data, bytes, offset, err);
    if (!w->bounce) w->bounce = aligned_alloc(TD_FILE_BLOCK, TD_WRITE_BYTES);
    errno = td_file_write_past_cache(w->fd, data, bytes, offset, w->bounce);
    return errno ? write_failed(w->part, err) : TD_OK;
}

td_status td_safetensors_writer_commit(td_safetensors_writer *w, td_error *err) {
    if (fsync(w->fd) != 0) return write_failed(w->part, err);
    int closed = close(w->fd);
    w->fd = -1;
    if (closed != 0 || rename(w->part, w->path) != 0) {
        td_status s = write_failed(w->path, err);
        unlink(w->part);
        return s;
    }
    sync_folder_of(w->path);
    return TD_OK;
}

void td_safetensors_writer_destroy(td_safetensors_writer *w) {
    if (!w) return;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->part);
    }
    free(w->path);
    free(w->part);
    free(w->head);
    free(w->bounce);
    free(w);
}

td_status td_file_write(const char *path, const void *data, size_t bytes, td_error *err) {
    char *part;
    if (asprintf(&part, "%s.part", path) < 0) return td_fail(err, TD_ENOMEM, "%s: out of memory", path);
    td_status s = TD_OK;
    int       fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) s = write_failed(part, err);
    if (s == TD_OK) s = write_at(fd, part, data, bytes, 0, err);
    if (s == TD_OK && fsync(fd) != 0) s = write_failed(part, err);
    if (fd >= 0 && close(fd) != 0 && s == TD_OK) s = write_failed(part, err);
    if (s == TD_OK && rename(part, path) != 0) s = write_failed(path, err);
    if (s == TD_OK)
        sync_folder_of(path);
    else if (fd >= 0)
        unlink(part);
    free(part);
    return s;
}
