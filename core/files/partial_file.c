#include "core/files/partial_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

static td_status failed(const char *path, td_error *err) {
    return td_fail(err, TD_EIO, "cannot write %s: %s", path, strerror(errno));
}

static td_status create(td_partial_file *file, const char *path, td_error *err) {
    struct stat s;
    char       *partial;
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return td_fail(err, TD_EINVAL, "cannot write %s: it is not a regular file, and would be replaced", path);
    file->path = strdup(path);
    if (!file->path || asprintf(&partial, "%s.partial", path) < 0)
        return td_fail(err, TD_ENOMEM, "out of memory for %s", path);
    file->f = fopen(partial, "wb");
    td_status st = file->f ? TD_OK : failed(partial, err);
    if (st == TD_OK)
        file->partial = partial;
    else
        free(partial);
    return st;
}

td_status td_partial_file_create(td_partial_file *file, const char *path, td_error *err) {
    *file = (td_partial_file){0};
    td_status st = create(file, path, err);
    if (st != TD_OK) td_partial_file_close(file);
    return st;
}

td_status td_partial_file_write(td_partial_file *file, const void *data, size_t bytes, td_error *err) {
    return fwrite(data, 1, bytes, file->f) == bytes ? TD_OK : failed(file->path, err);
}

td_status td_partial_file_finish(td_partial_file *file, td_error *err) {
    bool  synced = fflush(file->f) == 0 && fsync(fileno(file->f)) == 0;
    FILE *f = file->f;
    file->f = NULL;
    if (fclose(f) != 0 || !synced || rename(file->partial, file->path) != 0) return failed(file->path, err);
    free(file->partial);
    file->partial = NULL;
    return TD_OK;
}

void td_partial_file_close(td_partial_file *file) {
    if (file->f) fclose(file->f);
    if (file->partial) unlink(file->partial);
    free(file->partial);
    free(file->path);
    *file = (td_partial_file){0};
}
