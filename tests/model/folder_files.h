/* Folders that a test makes, fills and breaks. Everything fails the test when it does not work. */
#ifndef TD_TESTS_FOLDER_FILES_H
#define TD_TESTS_FOLDER_FILES_H

#include <stddef.h>

/** Removes the files of a folder, which has no folders in it. @return how many there were. */
size_t empty_folder(const char *folder);

/** The folder too. @return how many files there were; 0 when there is no folder. */
size_t remove_folder(const char *folder);

/** Every case of a program (td_test.h) has this folder, whose template of mkdtemp's becomes its path; it is removed at the
 * end. */
#define IN_FOLDER(folder)                 \
    BEFORE_ALL {                          \
        assert_non_null(mkdtemp(folder)); \
    }                                     \
    AFTER_ALL {                           \
        remove_folder(folder);            \
    }

/** A whole file, malloc'd, with a 0 behind it. */
char *read_file(const char *path, size_t *size);
void  write_file(const char *path, const void *data, size_t size);

/** Some files of `from` to `to`, under the same names; those that are not there are left out. */
void copy_files(const char *from, const char *to, const char *const *names, size_t n);

/** One more tensor, a vector where columns is 0, in a folder's model.safetensors. @param dtype as the format names it. */
void add_tensor(const char *folder, const char *name, const char *dtype, size_t rows, size_t columns, const void *data,
                size_t bytes);

/** The tensor is not to be found any more; its bytes stay. */
void hide_tensor(const char *folder, const char *name);

#endif
