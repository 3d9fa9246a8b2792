/* The files of a checkpoint: folder, index, shards, lookup by name, identity. */
#include "model/checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "model/checkpoint_internal.h"
#include "model/json_file.h"

#define INDEX_BYTES_MAX ((size_t)256 << 20)
#define SHARDS_MAX 4096
#define HASH_SAMPLES 64
#define HASH_SAMPLE_BYTES ((size_t)4096)

const char TD_SOURCE_HASH_KEY[] = "tandem_source_hash";

static td_status add_shard(td_checkpoint *c, const char *name, td_error *err) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", c->dir, name) >= sizeof path)
        return td_fail(err, TD_EINVAL, "%.200s: the path is too long", c->dir);
    td_safetensors **files = realloc(c->files, (c->n_files + 1) * sizeof *files);
    if (!files) return td_fail(err, TD_ENOMEM, "%s: out of memory", c->dir);
    c->files = files;
    TD_TRY(td_safetensors_open(path, &c->files[c->n_files], err));
    c->n_files++;
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

static td_status open_shards(td_checkpoint *c, const char *index_path, const json_t *map, td_error *err) {
    const char **names;
    size_t       n;
    td_status    s = shard_names(map, &names, &n, err);
    if (s != TD_OK) td_fail_within(err, "%s", index_path);
    for (size_t i = 0; s == TD_OK && i < n; i++) {
        s = add_shard(c, names[i], err);
        if (s == TD_ENOTFOUND) td_fail(err, s, "%s: the shard %s is not in the folder", index_path, names[i]);
    }
    free(names);
    return s;
}

/* ---- names ----------------------------------------------------------------------------------- */

static size_t slot_of(const td_checkpoint *c, const char *name) {
    size_t at = XXH3_64bits(name, strlen(name)) & c->table_mask;
    while (c->table[at].entry && strcmp(c->table[at].entry->name, name)) at = (at + 1) & c->table_mask;
    return at;
}

static td_status build_table(td_checkpoint *c, td_error *err) {
    size_t n = 0, room = 64;
    for (size_t i = 0; i < c->n_files; i++) n += td_safetensors_count(c->files[i]);
    while (room < 2 * n) room *= 2;
    c->table = calloc(room, sizeof *c->table);
    c->table_mask = room - 1;
    if (!c->table) return td_fail(err, TD_ENOMEM, "%s: no memory for %zu tensor names", c->dir, n);
    for (size_t i = 0; i < c->n_files; i++)
        for (size_t j = 0; j < td_safetensors_count(c->files[i]); j++) {
            const td_safetensors_entry *e = td_safetensors_at(c->files[i], j);
            name_slot                  *slot = &c->table[slot_of(c, e->name)];
            if (slot->entry)
                return td_fail(err, TD_EFORMAT, "tensor '%.150s' is in %s and in %s", e->name,
                               td_safetensors_path(c->files[slot->file]), td_safetensors_path(c->files[i]));
            *slot = (name_slot){e, (uint32_t)i};
        }
    return TD_OK;
}

static td_status check_index(const td_checkpoint *c, const char *index_path, const json_t *map, td_error *err) {
    const char *tensor;
    json_t     *v;
    json_object_foreach((json_t *)map, tensor, v) {
        const name_slot *slot = &c->table[slot_of(c, tensor)];
        const char      *file = slot->entry ? strrchr(td_safetensors_path(c->files[slot->file]), '/') + 1 : NULL;
        if (!file || strcmp(file, json_string_value(v)))
            return td_fail(err, TD_EFORMAT, "%s: tensor '%.150s' should be in %s, but that file does not have it",
                           index_path, tensor, json_string_value(v));
    }
    return TD_OK;
}

const name_slot *td_checkpoint_slot(const td_checkpoint *c, const char *name) {
    const name_slot *slot = c->table ? &c->table[slot_of(c, name)] : NULL;
    return slot && slot->entry ? slot : NULL;
}

const td_safetensors_entry *td_checkpoint_find(const td_checkpoint *c, const char *name) {
    const name_slot *slot = td_checkpoint_slot(c, name);
    return slot ? slot->entry : NULL;
}

/* ---- open, close ----------------------------------------------------------------------------- */

static td_status open_indexed(td_checkpoint *c, const char *index_path, td_error *err) {
    json_t *index;
    TD_TRY(td_json_read(index_path, INDEX_BYTES_MAX, &index, err));
    const json_t *map = json_object_get(index, "weight_map");
    td_status     s = TD_OK;
    if (!json_is_object(map) || json_object_size(map) == 0) s = td_fail(err, TD_EFORMAT, "%s has no weight_map", index_path);
    if (s == TD_OK) s = open_shards(c, index_path, map, err);
    if (s == TD_OK) s = build_table(c, err);
    if (s == TD_OK) s = check_index(c, index_path, map, err);
    json_decref(index);
    return s;
}

static td_status open_folder(td_checkpoint *c, td_error *err) {
    char index_path[PATH_MAX], single_path[PATH_MAX];
    if ((size_t)snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", c->dir) >= sizeof index_path)
        return td_fail(err, TD_EINVAL, "%.200s…: the path is too long", c->dir);
    snprintf(single_path, sizeof single_path, "%s/model.safetensors", c->dir);
    if (access(index_path, F_OK) == 0) return open_indexed(c, index_path, err);
    if (access(single_path, F_OK) != 0)
        return td_fail(err, TD_ENOTFOUND, "%s has neither model.safetensors nor model.safetensors.index.json", c->dir);
    TD_TRY(add_shard(c, "model.safetensors", err));
    return build_table(c, err);
}

/* ModelSlim's description of what is quantised, where there is one. */
static td_status read_description(td_checkpoint *c, td_error *err) {
    char path[PATH_MAX];
    return td_modelslim_description(c->dir, path, sizeof path) ? td_json_read(path, INDEX_BYTES_MAX, &c->modelslim, err)
                                                               : TD_OK;
}

td_status td_checkpoint_open(const char *dir, td_checkpoint **out, td_error *err) {
    td_checkpoint *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->dir = strdup(dir))) {
        free(c);
        return td_fail(err, TD_ENOMEM, "%s: out of memory", dir);
    }
    td_status s = open_folder(c, err);
    if (s == TD_OK) s = read_description(c, err);
    if (s != TD_OK) {
        td_checkpoint_close(c);
        return s;
    }
    *out = c;
    return TD_OK;
}

void td_checkpoint_close(td_checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n_files; i++) td_safetensors_close(c->files[i]);
    free(c->files);
    free(c->table);
    free(c->dummy_values);
    json_decref(c->modelslim);
    td_hadamard_close(&c->rotation);
    free(c->dir);
    free(c);
}

td_status td_checkpoint_rotate(td_checkpoint *c, const td_model_config *config, td_error *err) {
    TD_TRY(td_rotation_open(&c->rotation, config, err));
    atomic_store_explicit(&c->source_hash, 0, memory_order_relaxed);
    return TD_OK;
}

void td_checkpoint_replace(td_checkpoint *c, uint32_t layer, const td_tensor_view *weights) {
    c->replaced = weights;
    c->replaced_layer = layer;
}

bool td_checkpoint_is_rotated(const td_checkpoint *c) {
    return c->rotation.k != 0;
}
bool td_checkpoint_is_dummy(const td_checkpoint *c) {
    return c->dummy_values != NULL;
}
const char *td_checkpoint_dir(const td_checkpoint *c) {
    return c->dir;
}
size_t td_checkpoint_files(const td_checkpoint *c) {
    return c->n_files;
}
const td_safetensors *td_checkpoint_file(const td_checkpoint *c, size_t index) {
    return c->files[index];
}

void td_checkpoint_release_pages(const td_checkpoint *c) {
    for (size_t i = 0; i < c->n_files; i++) td_safetensors_release_pages(c->files[i]);
}

void td_checkpoint_release(const td_checkpoint *c, const void *at, size_t bytes) {
    for (size_t i = 0; i < c->n_files && !td_safetensors_release(c->files[i], at, bytes); i++) continue;
}

const void *td_checkpoint_fetch(const td_checkpoint *c, const void *at, size_t bytes, void *buffer) {
    for (size_t i = 0; i < c->n_files; i++) {
        const void *found = td_safetensors_fetch(c->files[i], at, bytes, buffer);
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

static uint64_t compute_source_hash(const td_checkpoint *c) {
    const char *carried = c->n_files ? td_safetensors_metadata(c->files[0], TD_SOURCE_HASH_KEY) : NULL;
    if (carried) {
        char    *end;
        uint64_t h = strtoull(carried, &end, 16);
        if (h && !*end) return h;
    }
    uint64_t h = 0;
    for (size_t i = 0; i < c->n_files; i++) h = hash_file(c->files[i], h);
    return h ? h : 1;
}

uint64_t td_checkpoint_source_hash(const td_checkpoint *c) {
    if (td_checkpoint_is_dummy(c)) return 0;
    uint64_t h = atomic_load_explicit(&c->source_hash, memory_order_relaxed);
    if (h) return h;
    h = compute_source_hash(c);
    if (c->rotation.k) h = XXH3_64bits_withSeed("rotated", 7, h);
    atomic_store_explicit(&((td_checkpoint *)c)->source_hash, h,
                          memory_order_relaxed); /* a cache: nothing else sees it change */
    return h;
}
