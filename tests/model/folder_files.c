#include "folder_files.h"
#include "tests/td_test.h"

#include <dirent.h>
#include <unistd.h>

#include <jansson.h>

#define PATH_BYTES 1024

static const char MODEL_FILE[] = "model.safetensors";

size_t empty_folder(const char *folder) {
    size_t n = 0;
    DIR   *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
            assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
            n++;
        }
    closedir(d);
    return n;
}

size_t remove_folder(const char *folder) {
    if (access(folder, F_OK) != 0) return 0;
    size_t n = empty_folder(folder);
    assert_int_equal(rmdir(folder), 0);
    return n;
}

char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, f), *size);
    data[*size] = 0;
    fclose(f);
    return data;
}

void write_file(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static const char *path_of(char path[PATH_BYTES], const char *folder, const char *name) {
    assert_in_range(snprintf(path, PATH_BYTES, "%s/%s", folder, name), 1, PATH_BYTES - 1);
    return path;
}

void copy_files(const char *from, const char *to, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char   path[PATH_BYTES];
        size_t size;
        if (access(path_of(path, from, names[i]), F_OK) != 0) continue;
        FREED char *data = read_file(path, &size);
        write_file(path_of(path, to, names[i]), data, size);
    }
}

/* The header of a folder's model.safetensors, and the payload behind it. */
typedef struct {
    char   *file; /* owns the payload */
    json_t *header;
    char   *payload;
    size_t  payload_bytes;
} model_file;

static model_file read_model(const char *folder) {
    char       path[PATH_BYTES];
    size_t     size;
    uint64_t   length;
    model_file m = {.file = read_file(path_of(path, folder, MODEL_FILE), &size)};
    memcpy(&length, m.file, sizeof length);
    m.header = json_loadb(m.file + sizeof length, length, 0, NULL);
    assert_non_null(m.header);
    m.payload = m.file + sizeof length + length;
    m.payload_bytes = size - sizeof length - length;
    return m;
}

/* With more behind the payload; frees what read_model made. */
static void write_model(const char *folder, model_file m, const void *more, size_t bytes) {
    char path[PATH_BYTES], *text = json_dumps(m.header, JSON_COMPACT);
    assert_non_null(text);
    uint64_t length = (strlen(text) + 7) / 8 * 8;
    size_t   size = sizeof length + length + m.payload_bytes + bytes;
    char    *data = malloc(size), *at = data + sizeof length;
    assert_non_null(data);
    memcpy(data, &length, sizeof length);
    memset(at, ' ', length);
    memcpy(at, text, strlen(text));
    memcpy(at + length, m.payload, m.payload_bytes);
    memcpy(at + length + m.payload_bytes, more, bytes);
    write_file(path_of(path, folder, MODEL_FILE), data, size);
    free(data);
    free(text);
    json_decref(m.header);
    free(m.file);
}

void add_tensor(const char *folder, const char *name, const char *dtype, size_t rows, size_t columns, const void *data,
                size_t bytes) {
    model_file m = read_model(folder);
    json_int_t begin = (json_int_t)m.payload_bytes, end = begin + (json_int_t)bytes;
    json_t *shape = columns ? json_pack("[I,I]", (json_int_t)rows, (json_int_t)columns) : json_pack("[I]", (json_int_t)rows);
    assert_int_equal(
        json_object_set_new(m.header, name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", begin, end)),
        0);
    write_model(folder, m, data, bytes);
}

void hide_tensor(const char *folder, const char *name) {
    model_file m = read_model(folder);
    if (json_object_del(m.header, name) != 0) fail_msg("%s has no tensor %s", folder, name);
    write_model(folder, m, "", 0);
}
