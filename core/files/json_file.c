#include "core/files/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/json_text.h"

td_status td_json_parse(const char *text, size_t len, json_t **out, td_error *err) {
    json_error_t why;
    td_status    st = td_json_load(text, len, JSON_REJECT_DUPLICATES, out, &why);
    if (st == TD_ENOMEM) return td_fail(err, st, "out of memory for its JSON");
    if (st != TD_OK) return td_fail(err, st, "not valid JSON (line %d: %s)", why.line, why.text);
    if (json_is_object(*out)) return TD_OK;
    json_decref(*out);
    *out = NULL;
    return td_fail(err, TD_EFORMAT, "a JSON object is expected");
}

static td_status read_fd(int fd, const char *path, size_t max_bytes, char **out, size_t *len, td_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return td_fail(err, TD_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return td_fail(err, TD_EFORMAT, "%s is not a regular file", path);
    if ((uint64_t)st.st_size > max_bytes)
        return td_fail(err, TD_EFORMAT, "%s has %lld bytes, at most %zu are accepted", path, (long long)st.st_size,
                       max_bytes);
    size_t size = (size_t)st.st_size, got = 0;
    char  *text = malloc(size + 1);
    if (!text) return td_fail(err, TD_ENOMEM, "%s: no memory for %zu bytes", path, size);
    while (got < size) {
        ssize_t n = read(fd, text + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            free(text);
            return td_fail(err, TD_EIO, "%s: %s", path, n < 0 ? strerror(errno) : "became shorter while it was read");
        }
        got += (size_t)n;
    }
    text[size] = 0;
    *out = text;
    *len = size;
    return TD_OK;
}

td_status td_file_read(const char *path, size_t max_bytes, char **out, size_t *len, td_error *err) {
    *out = NULL;
    *len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO's opening would wait */
    if (fd < 0)
        return td_fail(err, errno == ENOENT || errno == ENOTDIR ? TD_ENOTFOUND : TD_EIO, "%s: %s", path, strerror(errno));
    td_status s = read_fd(fd, path, max_bytes, out, len, err);
    close(fd);
    return s;
}

td_status td_json_read(const char *path, size_t max_bytes, json_t **out, td_error *err) {
    char  *text;
    size_t len;
    *out = NULL;
    TD_TRY(td_file_read(path, max_bytes, &text, &len, err));
    td_status s = td_json_parse(text, len, out, err);
    free(text);
    if (s != TD_OK) td_fail_within(err, "%s", path);
    return s;
}
