#include "engine/model_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

#define USE_ORIGINAL "give the folder of the original model (config.json, tokenizer and *.safetensors)"

/* OWNER/NAME, as Hugging Face and ModelScope name models. */
static bool is_hub_name(const char *path) {
    const char *slash = strchr(path, '/');
    if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') || *path == '.') return false;
    for (const char *c = path; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("/._-", *c)) return false;
    return true;
}

static bool is_gguf_name(const char *name) {
    size_t n = strlen(name);
    return n > 5 && !strcmp(name + n - 5, ".gguf");
}

static bool is_gguf_file(const char *path) {
    char  magic[4] = "";
    FILE *f = fopen(path, "rb");
    if (!f) return is_gguf_name(path);
    bool begins = fread(magic, 1, sizeof magic, f) == sizeof magic && !memcmp(magic, "GGUF", sizeof magic);
    fclose(f);
    return begins || is_gguf_name(path);
}

static bool has_gguf(const char *folder) {
    bool found = false;
    DIR *d = opendir(folder);
    if (!d) return false;
    for (struct dirent *e; !found && (e = readdir(d));) found = is_gguf_name(e->d_name);
    closedir(d);
    return found;
}

static bool has(const char *folder, const char *name) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && access(path, F_OK) == 0;
}

static td_status fail_missing(const char *path, td_error *err) {
    if (!is_hub_name(path)) return td_fail(err, TD_ENOTFOUND, "%s: there is no such folder", path);
    return td_fail(
        err, TD_ENOTFOUND,
        "%s: there is no such folder, and nothing is downloaded by itself. If it is a model's name on a hub, fetch "
        "it first: 'hf download %s --local-dir FOLDER' or 'modelscope download --model %s --local_dir FOLDER'",
        path, path, path);
}

td_status td_model_folder_check(const char *path, bool weights, td_error *err) {
    struct stat st;
    if (stat(path, &st) != 0)
        return errno == ENOENT ? fail_missing(path, err) : td_fail(err, TD_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        if (S_ISREG(st.st_mode) && is_gguf_file(path))
            return td_fail(err, TD_ENOTSUP, "%s is a GGUF file, which is not supported: " USE_ORIGINAL, path);
        if (weights || !S_ISREG(st.st_mode)) return td_fail(err, TD_EINVAL, "%s is not a folder: " USE_ORIGINAL, path);
        return TD_OK;
    }
    if (has(path, "config.json")) return TD_OK;
    if (has_gguf(path)) return td_fail(err, TD_ENOTSUP, "%s has GGUF files, which are not supported: " USE_ORIGINAL, path);
    if (has(path, "snapshots"))
        return td_fail(err, TD_ENOTFOUND,
                       "%s has no config.json; it is a hub's cache: give one of the folders in %s/snapshots", path, path);
    return td_fail(err, TD_ENOTFOUND, "%s has no config.json, so it is not a model's folder: " USE_ORIGINAL, path);
}
