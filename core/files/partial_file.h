/* A file that is written under another name and gets its own when it is whole: readers find all of it or nothing. */
#ifndef TD_CORE_FILES_PARTIAL_FILE_H
#define TD_CORE_FILES_PARTIAL_FILE_H

#include <stdio.h>

#include "tandem.h"

typedef struct {
    FILE *f;
    char *path, *partial; /* partial: the other name; NULL: nothing is left to finish */
} td_partial_file;

/** Create the file under its other name. @return TD_EINVAL if `path` exists and is no regular file, TD_EIO, TD_ENOMEM; then
 * nothing is open. */
TD_NODISCARD td_status td_partial_file_create(td_partial_file *file, const char *path, td_error *err);
TD_NODISCARD td_status td_partial_file_write(td_partial_file *file, const void *data, size_t bytes, td_error *err);
/** The file is whole: give it its name. */
TD_NODISCARD td_status td_partial_file_finish(td_partial_file *file, td_error *err);
/** Remove what was not finished. A file that is all zero is fine. */
void td_partial_file_close(td_partial_file *file);

#endif
