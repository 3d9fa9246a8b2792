/* The output folder: its lock, the marker that says what is written there, and what a killed run left. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/files/json_text.h"
#include "quantize/quantizer.h"

#define MARKER "tandem_quantize.json"
#define CONFIG "config.json"

/* Whether a file of the output folder is removed before a new run: all that an earlier run may have left, because another
 * model's template or end tokens would be taken for this one's. The marker stays, and is replaced afterwards. */
static bool is_ours(const char *name) {
    size_t n = strlen(name);
    bool part = n > 5 && !strcmp(name + n - 5, ".part"), shard = !strncmp(name, "model", 5) && strstr(name, ".safetensors");
    return part || shard || td_is_small_file(name) || !strcmp(name, "calibration.json") ||
           !strncmp(name, "calibration-", 12) || !strncmp(name, "experts-", 8) || !strncmp(name, "device-", 7) ||
           !strcmp(name, CONFIG);
}

/* What a killed run leaves: our ….part, the expert store's ….tdx.tmp.PID, and a server's ….tdw.tmp.PID. */
static bool is_temporary(const char *name) {
    size_t n = strlen(name);
    return (n > 5 && !strcmp(name + n - 5, ".part")) || (!strncmp(name, "experts-", 8) && strstr(name, ".tdx.tmp.")) ||
           (!strncmp(name, "device-", 7) && strstr(name, ".tdw.tmp."));
}

/* Counts the files, and removes those that `which` (may be NULL) picks. */
static td_status scan_output(const td_quantizer *q, bool (*which)(const char *name), size_t *n_files) {
    char path[PATH_MAX];
    DIR *dir = opendir(q->o->output_path);
    if (!dir) return td_fail(q->err, TD_EIO, "%s: %s", q->o->output_path, strerror(errno));
    *n_files = 0;
    td_status s = TD_OK;
    for (struct dirent *e; s == TD_OK && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (!strcmp(e->d_name, MARKER ".part"))
            continue; /* of a run that was killed at its very start: it is written again */
        ++*n_files;
        if (!which || !which(e->d_name)) continue;
        s = td_output_path(q, path, e->d_name);
        if (s == TD_OK && unlink(path) != 0) s = td_fail(q->err, TD_EIO, "%s: cannot remove: %s", path, strerror(errno));
    }
    closedir(dir);
    return s;
}

/* Remove first what makes it a model folder, so that a run that is killed meanwhile leaves no model folder, but a marker. */
static td_status empty_output(const td_quantizer *q) {
    char   path[PATH_MAX];
    size_t n_files;
    TD_TRY(td_output_path(q, path, CONFIG));
    if (unlink(path) != 0 && errno != ENOENT) return td_fail(q->err, TD_EIO, "%s: cannot remove: %s", path, strerror(errno));
    return scan_output(q, is_ours, &n_files);
}

static char *marker_text(const td_quantizer *q) {
    json_t *o = json_pack("{s:s,s:s,s:s,s:i}", "source_hash", q->hash_text, "quantization", q->o->quantization,
                          "expert_quantization", q->experts->name, "subpool_count", (int)q->n_subpools);
    int     failed = q->method == TD_ROUND_NEAREST && !q->text.n_windows
                         ? 0
                         : json_object_set_new(o, "method", json_string(td_quantizer_method(q)));
    if (q->compressed_tensors) failed |= json_object_set_new(o, "output_format", json_string("compressed-tensors"));
    if (q->text.n_windows) { /* the tokens, as they are cut, and what the layers are run with */
        char hash[17];
        snprintf(hash, sizeof hash, "%016" PRIx64, q->text.hash);
        failed |= json_object_set_new(o, "calibration_hash", json_string(hash));
        snprintf(hash, sizeof hash, "%016" PRIx64, q->config_hash);
        failed |= json_object_set_new(o, "config_hash", json_string(hash));
    }
    char *text = o && !failed ? td_json_dump(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return text;
}

/* One run at a time: a lock on the folder, gone with the process. Before anything in it is looked at: what is there may be
 * another run's that goes on. */
static td_status lock_output(td_quantizer *q) {
    q->lock_fd = open(q->o->output_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (q->lock_fd >= 0 && flock(q->lock_fd, LOCK_EX | LOCK_NB) == 0) return TD_OK;
    return td_fail(q->err, errno == EWOULDBLOCK ? TD_EBUSY : TD_EIO, "%s: %s", q->o->output_path,
                   errno == EWOULDBLOCK ? "another 'tandem quantize' is writing this folder" : strerror(errno));
}

td_status td_output_claim(td_quantizer *q) {
    char      path[PATH_MAX], real_in[PATH_MAX], real_out[PATH_MAX];
    char     *have = NULL, *want = marker_text(q);
    size_t    have_len, n_files;
    td_status s = want ? td_output_path(q, path, MARKER) : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK && mkdir(q->o->output_path, 0755) != 0 && errno != EEXIST)
        s = td_fail(q->err, TD_EIO, "%s: cannot create the folder: %s", q->o->output_path, strerror(errno));
    if (s == TD_OK && realpath(q->o->model_path, real_in) && realpath(q->o->output_path, real_out) &&
        !strcmp(real_in, real_out))
        s = td_fail(q->err, TD_EINVAL, "%s: the output is the model folder itself; choose another", q->o->output_path);
    if (s == TD_OK) s = lock_output(q);
    if (s == TD_OK) s = scan_output(q, NULL, &n_files);
    if (s == TD_OK && n_files) {
        s = td_file_read(path, 1 << 16, &have, &have_len, q->err);
        if (s == TD_ENOTFOUND)
            s = td_fail(q->err, TD_EINVAL, "%s is not empty and was not written by 'tandem quantize'; choose another folder",
                        q->o->output_path);
        else if (s == TD_OK && strcmp(have, want)) {
            if (q->o->force)
                s = empty_output(q);
            else
                s = td_fail(q->err, TD_EINVAL,
                            "%s holds the output of another model or of other options; choose another folder or use --force",
                            q->o->output_path);
        }
    }
    if (s == TD_OK && (!have || strcmp(have, want))) s = td_file_write(path, want, strlen(want), q->err);
    if (s == TD_OK) s = scan_output(q, is_temporary, &n_files);
    free(have);
    free(want);
    return s;
}
