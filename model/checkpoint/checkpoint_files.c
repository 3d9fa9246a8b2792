#include "model/checkpoint/checkpoint_files.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/log/log.h"
#include "kernels/machine/checksum.h"
#include "model/arch/quant_config.h"

#define INDEX_BYTES_MAX ((size_t)256 << 20)
#define SHARDS_MAX 4096
#define HASH_SAMPLES 64
#define HASH_SAMPLE_BYTES ((size_t)4096)

const char TD_SOURCE_HASH_KEY[] = "tandem_source_hash";
const char TD_CHECKSUMS_KEY[] = "tandem_checksums";

typedef struct {
    const td_safetensors_entry *entry; /* NULL: free */
    uint32_t                    file;
} name_slot;

struct td_checkpoint_files {
    char            *dir;
    td_safetensors **file; /* [n], in the order of their names */
    size_t           n;
    name_slot       *table; /* [table_mask + 1], open addressing by name */
    size_t           table_mask;
    json_t          *description; /* ModelSlim's; NULL: none */
    json_t          *checksums;   /* of the files by name; NULL: none */
    _Atomic uint64_t hash;        /* 0: not computed yet; relaxed, every thread computes the same */
};

static td_status add_shard(td_checkpoint_files *f, const char *name, td_error *err) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", f->dir, name) >= sizeof path)
        return td_fail(err, TD_EINVAL, "%.200s: the path is too long", f->dir);
    td_safetensors **file = realloc(f->file, (f->n + 1) * sizeof *file);
    if (!file) return td_fail(err, TD_ENOMEM, "%s: out of memory", f->dir);
    f->file = file;
    TD_TRY(td_safetensors_open(path, &f->file[f->n], err));
    f->n++;
    return TD_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of an index, sorted; borrowed from the JSON. */
static td_status shard_names(const json_t *map, const char ***out, size_t *n_out, td_error *err) {
    size_t       n = 0, n_all = json_object_size(map);
    const char **names = malloc((n_all + 1) * sizeof *names);
    const char  *tensor;
    json_t      *v;
    *out = names;
    *n_out = 0;
    if (!names) return td_fail(err, TD_ENOMEM, "no memory for an index of %zu tensors", n_all);
    json_object_foreach((json_t *)map, tensor, v) {
        const char *name = json_string_value(v);
        if (!name || !*name) return td_fail(err, TD_EFORMAT, "weight_map has no file name for '%.200s'", tensor);
        if (strchr(name, '/') || name[0] == '.' || strlen(name) > NAME_MAX)
            return td_fail(
                err, TD_EFORMAT,
                "weight_map names '%.200s' for '%.100s', and only plain file names of the same folder are accepted", name,
                tensor);
        names[n++] = name;
    }
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[*n_out - 1])) names[(*n_out)++] = names[i];
    if (*n_out > SHARDS_MAX)
        return td_fail(err, TD_EFORMAT, "weight_map names %zu files, at most %d are accepted", *n_out, SHARDS_MAX);
    return TD_OK;
}

static td_status open_shards(td_checkpoint_files *f, const char *index_path, const json_t *map, td_error *err) {
    const char **names;
    size_t       n;
    td_status    s = shard_names(map, &names, &n, err);
    if (s != TD_OK) td_fail_within(err, "%s", index_path);
    for (size_t i = 0; s == TD_OK && i < n; i++) {
        s = add_shard(f, names[i], err);
        if (s == TD_ENOTFOUND) td_fail(err, s, "%s: the shard %s is not in the folder", index_path, names[i]);
    }
    free(names);
    return s;
}

/* ---- names ----------------------------------------------------------------------------------- */

static size_t slot_of(const td_checkpoint_files *f, const char *name) {
    size_t at = XXH3_64bits(name, strlen(name)) & f->table_mask;
    while (f->table[at].entry && strcmp(f->table[at].entry->name, name)) at = (at + 1) & f->table_mask;
    return at;
}

static td_status build_table(td_checkpoint_files *f, td_error *err) {
    size_t n = 0, room = 64;
    for (size_t i = 0; i < f->n; i++) n += td_safetensors_count(f->file[i]);
    while (room < 2 * n) room *= 2;
    f->table = calloc(room, sizeof *f->table);
    f->table_mask = room - 1;
    if (!f->table) return td_fail(err, TD_ENOMEM, "%s: no memory for %zu tensor names", f->dir, n);
    for (size_t i = 0; i < f->n; i++)
        for (size_t j = 0; j < td_safetensors_count(f->file[i]); j++) {
            const td_safetensors_entry *e = td_safetensors_at(f->file[i], j);
            name_slot                  *slot = &f->table[slot_of(f, e->name)];
            if (slot->entry)
                return td_fail(err, TD_EFORMAT, "tensor '%.150s' is in %s and in %s", e->name,
                               td_safetensors_path(f->file[slot->file]), td_safetensors_path(f->file[i]));
            *slot = (name_slot){e, (uint32_t)i};
        }
    return TD_OK;
}

static td_status check_index(const td_checkpoint_files *f, const char *index_path, const json_t *map, td_error *err) {
    const char *tensor;
    json_t     *v;
    json_object_foreach((json_t *)map, tensor, v) {
        const name_slot *slot = &f->table[slot_of(f, tensor)];
        const char      *file = slot->entry ? strrchr(td_safetensors_path(f->file[slot->file]), '/') + 1 : NULL;
        if (!file || strcmp(file, json_string_value(v)))
            return td_fail(err, TD_EFORMAT, "%s: tensor '%.150s' should be in %s, but that file does not have it",
                           index_path, tensor, json_string_value(v));
    }
    return TD_OK;
}

/* NULL: no such tensor. */
static const name_slot *find(const td_checkpoint_files *f, const char *name) {
    const name_slot *slot = &f->table[slot_of(f, name)];
    return slot->entry ? slot : NULL;
}

const td_safetensors_entry *td_checkpoint_files_find(const td_checkpoint_files *f, const char *name) {
    const name_slot *slot = find(f, name);
    return slot ? slot->entry : NULL;
}

const td_safetensors *td_checkpoint_files_with(const td_checkpoint_files *f, const char *name) {
    return f->file[find(f, name)->file];
}

bool td_checkpoint_files_have(const td_checkpoint_files *f, const char *prefix) {
    for (size_t i = 0; i <= f->table_mask; i++)
        if (f->table[i].entry && !strncmp(f->table[i].entry->name, prefix, strlen(prefix))) return true;
    return false;
}

/* ---- open, close ----------------------------------------------------------------------------- */

static td_status open_indexed(td_checkpoint_files *f, const char *index_path, td_error *err) {
    json_t *index;
    TD_TRY(td_json_read(index_path, INDEX_BYTES_MAX, &index, err));
    const json_t *map = json_object_get(index, "weight_map");
    td_status     s = TD_OK;
    if (!json_is_object(map) || json_object_size(map) == 0) s = td_fail(err, TD_EFORMAT, "%s has no weight_map", index_path);
    if (s == TD_OK) s = open_shards(f, index_path, map, err);
    if (s == TD_OK) s = build_table(f, err);
    if (s == TD_OK) s = check_index(f, index_path, map, err);
    f->checksums = json_incref(json_object_get(json_object_get(index, "metadata"), TD_CHECKSUMS_KEY));
    json_decref(index);
    return s;
}

static td_status open_folder(td_checkpoint_files *f, td_error *err) {
    char index_path[PATH_MAX], single_path[PATH_MAX];
    if ((size_t)snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", f->dir) >= sizeof index_path)
        return td_fail(err, TD_EINVAL, "%.200s…: the path is too long", f->dir);
    snprintf(single_path, sizeof single_path, "%s/model.safetensors", f->dir);
    if (access(index_path, F_OK) == 0) return open_indexed(f, index_path, err);
    if (access(single_path, F_OK) != 0)
        return td_fail(err, TD_ENOTFOUND, "%s has neither model.safetensors nor model.safetensors.index.json", f->dir);
    TD_TRY(add_shard(f, "model.safetensors", err));
    return build_table(f, err);
}

/* ModelSlim's description of what is quantised, where there is one. */
static td_status read_description(td_checkpoint_files *f, td_error *err) {
    char path[PATH_MAX];
    if (!td_modelslim_description(f->dir, path, sizeof path)) return TD_OK;
    return td_json_read(path, INDEX_BYTES_MAX, &f->description, err);
}

td_status td_checkpoint_files_open(const char *dir, td_checkpoint_files **out, td_error *err) {
    td_checkpoint_files *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f || !(f->dir = strdup(dir))) {
        free(f);
        return td_fail(err, TD_ENOMEM, "%s: out of memory", dir);
    }
    td_status s = open_folder(f, err);
    if (s == TD_OK) s = read_description(f, err);
    if (s != TD_OK) {
        td_checkpoint_files_close(f);
        return s;
    }
    *out = f;
    return TD_OK;
}

void td_checkpoint_files_close(td_checkpoint_files *f) {
    if (!f) return;
    for (size_t i = 0; i < f->n; i++) td_safetensors_close(f->file[i]);
    free(f->file);
    free(f->table);
    json_decref(f->description);
    json_decref(f->checksums);
    free(f->dir);
    free(f);
}

const char *td_checkpoint_files_dir(const td_checkpoint_files *f) {
    return f->dir;
}
size_t td_checkpoint_files_count(const td_checkpoint_files *f) {
    return f->n;
}
const td_safetensors *td_checkpoint_files_at(const td_checkpoint_files *f, size_t index) {
    return f->file[index];
}
const json_t *td_checkpoint_files_description(const td_checkpoint_files *f) {
    return f->description;
}

void td_checkpoint_files_release_all(const td_checkpoint_files *f) {
    for (size_t i = 0; f && i < f->n; i++) td_safetensors_release_pages(f->file[i]);
}

void td_checkpoint_files_release(const td_checkpoint_files *f, const void *at, size_t bytes) {
    for (size_t i = 0; f && i < f->n && !td_safetensors_release(f->file[i], at, bytes); i++) continue;
}

const void *td_checkpoint_files_fetch(const td_checkpoint_files *f, const void *at, size_t bytes, void *buffer) {
    for (size_t i = 0; f && i < f->n; i++) {
        const void *found = td_safetensors_fetch(f->file[i], at, bytes, buffer);
        if (found) return found;
    }
    return at;
}

/* ---- identity -------------------------------------------------------------------------------- */

static uint64_t hash_file(const td_safetensors *f, uint64_t seed) {
    size_t               header_bytes, file_bytes;
    const unsigned char *p = td_safetensors_bytes(f, &header_bytes, &file_bytes);
    uint64_t             h = XXH3_64bits_withSeed(p, header_bytes, seed);
    h = XXH3_64bits_withSeed(&file_bytes, sizeof file_bytes, h);
    size_t payload = file_bytes - header_bytes;
    if (payload <= HASH_SAMPLES * HASH_SAMPLE_BYTES) return XXH3_64bits_withSeed(p + header_bytes, payload, h);
    size_t step = (payload - HASH_SAMPLE_BYTES) / (HASH_SAMPLES - 1);
    for (size_t i = 0; i < HASH_SAMPLES; i++) h = XXH3_64bits_withSeed(p + header_bytes + i * step, HASH_SAMPLE_BYTES, h);
    return h;
}

/* A hash in 16 hexadecimal digits; 0: it is none. */
static uint64_t read_hash(const char *text) {
    char    *end;
    uint64_t h = text ? strtoull(text, &end, 16) : 0;
    return text && !*end ? h : 0;
}

/* The hash of the source that td_quantize made the folder of; 0: it did not. */
static uint64_t carried_hash(const td_checkpoint_files *f) {
    return f->n ? read_hash(td_safetensors_metadata(f->file[0], TD_SOURCE_HASH_KEY)) : 0;
}

static uint64_t compute_hash(const td_checkpoint_files *f) {
    uint64_t carried = carried_hash(f);
    if (carried) return carried;
    uint64_t h = 0;
    for (size_t i = 0; i < f->n; i++) h = hash_file(f->file[i], h);
    return h ? h : 1;
}

uint64_t td_checkpoint_files_hash(const td_checkpoint_files *f) {
    uint64_t h = atomic_load_explicit(&f->hash, memory_order_relaxed);
    if (h) return h;
    h = compute_hash(f);
    atomic_store_explicit(&((td_checkpoint_files *)f)->hash, h,
                          memory_order_relaxed); /* a cache: nothing else sees it change */
    return h;
}

uint64_t td_checkpoint_files_stamp(const td_checkpoint_files *f) {
    uint64_t h = td_checkpoint_files_hash(f);
    for (size_t i = 0; i < f->n; i++) h = td_safetensors_stamp(f->file[i], h);
    return h;
}

/* ---- checksums ------------------------------------------------------------------------------- */

static td_status check_file(const td_checkpoint_files *f, const td_safetensors *file, td_pool *pool, td_error *err) {
    const char *path = td_safetensors_path(file);
    uint64_t    want = read_hash(json_string_value(json_object_get(f->checksums, strrchr(path, '/') + 1))), have;
    if (!want) return td_fail(err, TD_EFORMAT, "%s has no checksum in model.safetensors.index.json, which is damaged", path);
    TD_TRY(td_safetensors_checksum(file, pool, &have, err));
    if (have == want) return TD_OK;
    return td_fail(err, TD_EFORMAT,
                   "%s is corrupt: its checksum does not match; copy it again, or remove it and run the same 'tandem "
                   "quantize' again",
                   path);
}

td_status td_checkpoint_files_check(const td_checkpoint_files *f, td_pool *pool, td_checked_fn on_checked, void *user,
                                    td_error *err) {
    uint64_t total = 0;
    size_t   header_bytes, bytes;
    if (!f || !carried_hash(f)) return TD_OK;
    if (!f->checksums) {
        td_warn(
            "%s was quantised before its safetensors files had checksums: they are not checked; the same 'tandem quantize' "
            "again adds them",
            f->dir);
        return TD_OK;
    }
    for (size_t i = 0; i < f->n; i++) {
        td_safetensors_bytes(f->file[i], &header_bytes, &bytes);
        total += bytes;
    }
    on_checked(user, 0, total);
    for (size_t i = 0; i < f->n; i++) {
        TD_TRY(check_file(f, f->file[i], pool, err));
        td_safetensors_bytes(f->file[i], &header_bytes, &bytes);
        on_checked(user, bytes, total);
    }
    return TD_OK;
}
