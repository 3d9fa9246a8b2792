/* A file that is written under another name, and gets its own when it is whole: who reads the name finds all of it or nothing. */
#ifndef TD_CORE_FILES_PARTIAL_FILE_H
#define TD_CORE_FILES_PARTIAL_FILE_H

#include <stdio.h>

#include "tandem.h"

typedef struct {
    FILE *f;
    char *path, *partial; /* partial: the other name; NULL: there is no such file */
} td_partial_file;

/** @return TD_EINVAL when the name is there and no regular file, TD_EIO, TD_ENOMEM; then the file is closed. */
TD_NODISCARD td_status td_partial_file_create(td_partial_file *file, const char *path, td_error *err);
TD_NODISCARD td_status td_partial_file_write(td_partial_file *file, const void *data, size_t bytes, td_error *err);
/** It is whole: give it its name. */
TD_NODISCARD td_status td_partial_file_finish(td_partial_file *file, td_error *err);
/** Removes what was not finished. One that is all 0 is fine. */
void td_partial_file_close(td_partial_file *file);

#endif
