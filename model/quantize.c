/*
 * td_quantize: a checkpoint -> a folder that loads without quantising.
 *
 *   tandem_quantize.json      what is being written: source hash and options; written first, compared when a run is continued
 *   model-….safetensors       every tensor but the routed experts'; with w8a8_int8 the linears as I8 with X.weight_scale [n, 1] F32
 *   experts-….tdx             packed routed experts, one file per MoE layer
 *   tokenizer files, generation_config.json   copied
 *   config.json               with quantization_config; written last, so a folder that is not complete is no model folder
 *
 * With load_dummy there is only a config.json, and the weights are made up: a folder of that size and shape, for trying out a machine.
 *
 * Rows are quantised by the functions that quantise on load, and rows are stored in the source's order, so both ways give the same bits.
 * Every file has its final name only when it is whole and on disk; what is there under a final name and fits is kept.
 */
#include "model/experts_load.h"
#include "model/quantize.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/json_text.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread_plan.h"
#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint_internal.h"
#include "model/json_file.h"
#include "model/safetensors_writer.h"
#include "quant/weight_quant.h"

#define SHARD_BYTES   ((size_t)4 << 30)
#define BLOCK_BYTES   ((size_t)64 << 20) /* codes quantised before they are written */
#define SLICE_BYTES   ((size_t)1 << 20)  /* input per item of the pool */
#define SMALL_FILE_MAX ((size_t)256 << 20)
#define MARKER        "tandem_quantize.json"
#define DUMMY_SOURCE_HASH UINT64_C(0x64756d6d79) /* "dummy": its weights depend on the shape alone, which is compared anyway */

/* One tensor of the checkpoint on its way to a shard. */
typedef struct {
    td_safetensors_entry in; /* of dummy weights: without data, which is made up when the tensor is written */
    td_role              role;
    uint32_t             layer;
    bool                 int8;
    uint32_t             shard;
    size_t               item;       /* in items */
    size_t               scale_item; /* int8 only */
} job;

typedef struct {
    const td_quantize_options *o;
    td_error                  *err;
    td_model_config            config;
    td_checkpoint             *source;
    bool                       w8a8;
    const td_expert_numbers   *experts;
    uint64_t                   hash; /* of the source */
    char                       hash_text[17];
    int                        lock_fd; /* -1: none */
    td_pool                   *pool;
    uint32_t                   n_subpools;
    job                       *jobs; /* shard by shard */
    size_t                     n_jobs;
    td_safetensors_item       *items;
    size_t                     n_items;
    uint32_t                   n_shards;
    uint64_t                   done_bytes, total_bytes;
} quantizer;

static void progress(quantizer *q, uint64_t bytes, const char *what) {
    q->done_bytes += bytes;
    if (q->o->progress) q->o->progress(q->o->user, q->done_bytes, q->total_bytes, what);
}

/* ---- the output folder ----------------------------------------------------------------------- */

static td_status out_path(const quantizer *q, char path[PATH_MAX], const char *name) {
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", q->o->output_path, name) < PATH_MAX) return TD_OK;
    return td_fail(q->err, TD_EINVAL, "the output path is too long");
}

static bool is_ours(const char *name) {
    size_t n = strlen(name);
    bool   part = n > 5 && !strcmp(name + n - 5, ".part"), shard = !strncmp(name, "model", 5) && strstr(name, ".safetensors");
    return part || shard || !strncmp(name, "experts-", 8) || !strncmp(name, "device-", 7) || !strcmp(name, MARKER) || !strcmp(name, "config.json");
}

/* What a killed run leaves: our ….part, the expert store's ….tdx.tmp.PID, and a server's ….tdw.tmp.PID. */
static bool is_temporary(const char *name) {
    size_t n = strlen(name);
    return (n > 5 && !strcmp(name + n - 5, ".part")) || (!strncmp(name, "experts-", 8) && strstr(name, ".tdx.tmp.")) ||
           (!strncmp(name, "device-", 7) && strstr(name, ".tdw.tmp."));
}

/* Counts the files, and removes those that `which` (may be NULL) picks. */
static td_status scan_output(const quantizer *q, bool (*which)(const char *name), size_t *n_files) {
    char path[PATH_MAX];
    DIR *dir = opendir(q->o->output_path);
    if (!dir) return td_fail(q->err, TD_EIO, "%s: %s", q->o->output_path, strerror(errno));
    *n_files = 0;
    td_status s = TD_OK;
    for (struct dirent *e; s == TD_OK && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        ++*n_files;
        if (!which || !which(e->d_name)) continue;
        s = out_path(q, path, e->d_name);
        if (s == TD_OK && unlink(path) != 0) s = td_fail(q->err, TD_EIO, "%s: cannot remove: %s", path, strerror(errno));
    }
    closedir(dir);
    return s;
}

static char *marker_text(const quantizer *q) {
    json_t *o = json_pack("{s:s,s:s,s:s,s:i}", "source_hash", q->hash_text, "quantization", q->o->quantization, "expert_quantization",
                          q->o->expert_quantization, "subpool_count", (int)q->n_subpools);
    char *text = o ? td_json_dump(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return text;
}

/* One run at a time: a lock on the marker, gone with the process. */
static td_status lock_output(quantizer *q, const char *marker) {
    q->lock_fd = open(marker, O_RDONLY | O_CLOEXEC);
    if (q->lock_fd >= 0 && flock(q->lock_fd, LOCK_EX | LOCK_NB) == 0) return TD_OK;
    return td_fail(q->err, errno == EWOULDBLOCK ? TD_EBUSY : TD_EIO, "%s: %s", q->o->output_path,
                   errno == EWOULDBLOCK ? "another 'tandem quantize' is writing this folder" : strerror(errno));
}

/* A new or empty folder gets the marker; one with the same marker is continued; another run's is emptied with force; anything else is left alone. */
static td_status claim_output(quantizer *q) {
    char      path[PATH_MAX], real_in[PATH_MAX], real_out[PATH_MAX];
    char     *have = NULL, *want = marker_text(q);
    size_t    have_len, n_files;
    td_status s = want ? out_path(q, path, MARKER) : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK && mkdir(q->o->output_path, 0755) != 0 && errno != EEXIST)
        s = td_fail(q->err, TD_EIO, "%s: cannot create the folder: %s", q->o->output_path, strerror(errno));
    if (s == TD_OK && realpath(q->o->model_path, real_in) && realpath(q->o->output_path, real_out) && !strcmp(real_in, real_out))
        s = td_fail(q->err, TD_EINVAL, "%s: the output is the model folder itself; choose another", q->o->output_path);
    if (s == TD_OK) s = scan_output(q, NULL, &n_files);
    if (s == TD_OK && n_files) {
        s = td_file_read(path, 1 << 16, &have, &have_len, q->err);
        if (s == TD_ENOTFOUND)
            s = td_fail(q->err, TD_EINVAL, "%s is not empty and was not written by 'tandem quantize'; choose another folder", q->o->output_path);
        else if (s == TD_OK && strcmp(have, want)) {
            if (q->o->force)
                s = scan_output(q, is_ours, &n_files);
            else
                s = td_fail(q->err, TD_EINVAL, "%s holds the output of another model or of other options; choose another folder or use --force",
                            q->o->output_path);
        }
    }
    if (s == TD_OK && (!have || strcmp(have, want))) s = td_file_write(path, want, strlen(want), q->err);
    if (s == TD_OK) s = lock_output(q, path);
    if (s == TD_OK) s = scan_output(q, is_temporary, &n_files);
    free(have);
    free(want);
    return s;
}

/* ---- the device tier's tensors --------------------------------------------------------------- */

static bool is_expert_role(td_role role) { return role == TD_ROLE_EXPERT_GATE || role == TD_ROLE_EXPERT_UP || role == TD_ROLE_EXPERT_DOWN; }

/* The stored tensor of a role at a layer; *has is false where there is none of its own. out->name lives as long as spec or the source. */
static td_status stored_tensor(quantizer *q, td_role role, uint32_t layer, td_tensor_spec *spec, td_safetensors_entry *out, bool *has) {
    const td_safetensors_entry *stored;
    *has = false;
    if (is_expert_role(role) || (role == TD_ROLE_LM_HEAD && q->config.tie_embeddings)) return TD_OK;
    if (!td_tensor_spec_get(&q->config, role, layer, 0, spec)) return TD_OK;
    if (td_checkpoint_is_dummy(q->source)) {
        size_t elements = spec->shape[0] * (spec->rank > 1 ? spec->shape[1] : 1);
        *out = (td_safetensors_entry){.name = spec->name, .dtype = spec->rank > 1 ? TD_DT_BF16 : TD_DT_F32, .rank = spec->rank};
        out->bytes = elements * td_dtype_bytes(out->dtype);
        memcpy(out->shape, spec->shape, sizeof spec->shape);
    } else {
        if (spec->fallback != TD_ROLE_COUNT && !td_checkpoint_find(q->source, spec->name)) return TD_OK;
        TD_TRY(td_checkpoint_get_stored(q->source, &q->config, spec, &stored, q->err));
        *out = *stored;
    }
    *has = true;
    return TD_OK;
}

static void add_item(quantizer *q, const char *name, td_dtype dtype, uint32_t rank, const size_t *shape) {
    td_safetensors_item *t = &q->items[q->n_items++];
    *t = (td_safetensors_item){.dtype = dtype, .rank = rank};
    snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->shape, shape, rank * sizeof *shape);
}

static td_status add_job(quantizer *q, td_role role, uint32_t layer, size_t *shard_bytes) {
    td_tensor_spec       spec;
    td_safetensors_entry entry;
    bool                 has;
    TD_TRY(stored_tensor(q, role, layer, &spec, &entry, &has));
    if (!has) return TD_OK;
    job *j = &q->jobs[q->n_jobs++];
    *j = (job){.in = entry, .role = role, .layer = layer, .int8 = q->w8a8 && spec.format == TD_WEIGHT_W8A8, .item = q->n_items};
    td_safetensors_entry *in = &j->in;
    size_t elements = in->shape[0] * (in->rank > 1 ? in->shape[1] : 1), bytes = j->int8 ? elements + 4 * in->shape[0] : in->bytes;
    if (*shard_bytes && *shard_bytes + bytes > SHARD_BYTES) {
        q->n_shards++;
        *shard_bytes = 0;
    }
    *shard_bytes += bytes;
    j->shard = q->n_shards - 1;
    add_item(q, in->name, j->int8 ? TD_DT_I8 : in->dtype, in->rank, in->shape);
    in->name = q->items[j->item].name;
    if (j->int8) {
        char name[sizeof spec.name + 8];
        snprintf(name, sizeof name, "%s_scale", spec.name);
        j->scale_item = q->n_items;
        add_item(q, name, TD_DT_F32, 2, (const size_t[]){in->shape[0], 1});
    }
    q->total_bytes += in->bytes;
    return TD_OK;
}

/* Layer by layer, so that a shard holds neighbours. */
static td_status plan_shards(quantizer *q) {
    uint32_t n_layers = q->config.n_layers + q->config.n_mtp_layers, n_one, n_experts;
    size_t   shard_bytes = 0, most = (size_t)TD_ROLE_COUNT * (n_layers + 1);
    q->jobs = calloc(most, sizeof *q->jobs);
    q->items = calloc(2 * most, sizeof *q->items);
    q->n_shards = 1;
    if (!q->jobs || !q->items) return td_fail(q->err, TD_ENOMEM, "out of memory");
    for (uint32_t pass = 0; pass <= n_layers; pass++) /* pass 0: the roles of the whole model */
        for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
            td_role_extent(&q->config, role, &n_one, &n_experts);
            bool whole_model = role <= TD_ROLE_FINAL_NORM;
            if (whole_model == (pass == 0)) TD_TRY(add_job(q, role, pass ? pass - 1 : 0, &shard_bytes));
        }
    return TD_OK;
}

static void shard_name(const quantizer *q, uint32_t shard, char *name, size_t size) {
    if (q->n_shards == 1)
        snprintf(name, size, "model.safetensors");
    else
        snprintf(name, size, "model-%05u-of-%05u.safetensors", shard + 1, q->n_shards);
}

/* A block of rows being quantised: item i of the pool does rows i * rows_per_item and following. */
typedef struct {
    td_dtype    dtype;
    const char *in;
    size_t      n, k, rows_per_item;
    int8_t     *codes;
    float      *scales;
    atomic_bool not_finite; /* relaxed: read after the run */
} block;

static void quantize_rows(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    block *b = ctx;
    size_t first = item * b->rows_per_item, n = b->n - first < b->rows_per_item ? b->n - first : b->rows_per_item;
    if (!td_quantize_weight_i8(b->dtype, b->in + first * b->k * td_dtype_bytes(b->dtype), n, b->k, b->codes + first * b->k, b->k,
                               b->scales + first))
        atomic_store_explicit(&b->not_finite, true, memory_order_relaxed);
}

static td_status write_int8(quantizer *q, td_safetensors_writer *w, const job *j, int8_t *codes, float *scales, char *aligned) {
    size_t n = j->in.shape[0], k = j->in.shape[1], row_bytes = k * td_dtype_bytes(j->in.dtype), step = BLOCK_BYTES / row_bytes;
    if (step == 0) step = 1;
    for (size_t row = 0; row < n; row += step) {
        size_t      rows = n - row < step ? n - row : step;
        const char *in = (const char *)j->in.data + row * row_bytes;
        if ((uintptr_t)in % td_dtype_bytes(j->in.dtype)) in = memcpy(aligned, in, rows * row_bytes);
        block  b = {.dtype = j->in.dtype, .in = in, .n = rows, .k = k, .codes = codes, .scales = scales};
        b.rows_per_item = SLICE_BYTES / row_bytes ? SLICE_BYTES / row_bytes : 1;
        td_pool_run(q->pool, quantize_rows, &b, (uint32_t)((rows + b.rows_per_item - 1) / b.rows_per_item));
        if (atomic_load_explicit(&b.not_finite, memory_order_relaxed))
            return td_fail(q->err, TD_EFORMAT, "%s: tensor %s holds an infinity or a NaN", q->o->model_path, j->in.name);
        TD_TRY(td_safetensors_writer_write(w, &q->items[j->item], row * k, codes, rows * k, q->err));
        TD_TRY(td_safetensors_writer_write(w, &q->items[j->scale_item], row * sizeof *scales, scales, rows * sizeof *scales, q->err));
        progress(q, rows * row_bytes, j->in.name);
    }
    return TD_OK;
}

static td_status write_tensor(quantizer *q, td_safetensors_writer *w, const job *j, int8_t *codes, float *scales, char *aligned) {
    if (j->int8) return write_int8(q, w, j, codes, scales, aligned);
    TD_TRY(td_safetensors_writer_write(w, &q->items[j->item], 0, j->in.data, j->in.bytes, q->err));
    progress(q, j->in.bytes, j->in.name);
    return TD_OK;
}

static td_status write_made_up_tensor(quantizer *q, td_safetensors_writer *w, job j, int8_t *codes, float *scales, char *aligned) {
    td_scratch     scratch = {0};
    td_tensor_view made;
    td_status      s = td_checkpoint_get(q->source, &q->config, j.role, j.layer, 0, &scratch, &made, q->err);
    if (s == TD_OK) {
        assert(made.dtype == j.in.dtype);
        j.in.data = made.data;
        s = write_tensor(q, w, &j, codes, scales, aligned);
    }
    td_scratch_reset(&scratch);
    return s;
}

static td_status write_shard(quantizer *q, td_safetensors_writer *w, const job *jobs, size_t n_jobs, int8_t *codes, float *scales, char *aligned) {
    TD_TRY(td_safetensors_writer_begin(w, q->err));
    for (size_t i = 0; i < n_jobs; i++)
        TD_TRY(jobs[i].in.data ? write_tensor(q, w, &jobs[i], codes, scales, aligned) : write_made_up_tensor(q, w, jobs[i], codes, scales, aligned));
    return td_safetensors_writer_commit(w, q->err);
}

static td_status write_shards(quantizer *q) {
    size_t widest = 1; /* a block is BLOCK_BYTES of input, or one row where that is more */
    for (size_t i = 0; i < q->n_jobs; i++)
        if (q->jobs[i].int8 && q->jobs[i].in.shape[1] > widest) widest = q->jobs[i].in.shape[1];
    size_t    bytes = BLOCK_BYTES > widest * sizeof(float) ? BLOCK_BYTES : widest * sizeof(float);
    int8_t   *codes = malloc(bytes);
    float    *scales = malloc(BLOCK_BYTES * sizeof *scales / 2); /* rows of one 2-byte value at the least */
    char     *aligned = malloc(bytes);
    td_status s = codes && scales && aligned ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
    for (size_t first = 0, last; s == TD_OK && first < q->n_jobs; first = last) {
        for (last = first; last < q->n_jobs && q->jobs[last].shard == q->jobs[first].shard;) last++;
        size_t                 item = q->jobs[first].item, end = last < q->n_jobs ? q->jobs[last].item : q->n_items;
        char                   name[64], path[PATH_MAX];
        td_safetensors_writer *w = NULL;
        shard_name(q, q->jobs[first].shard, name, sizeof name);
        s = out_path(q, path, name);
        if (s == TD_OK) s = td_safetensors_writer_create(path, q->items + item, end - item, TD_SOURCE_HASH_KEY, q->hash_text, &w, q->err);
        if (s == TD_OK && td_safetensors_writer_is_done(w))
            for (size_t i = first; i < last; i++) progress(q, q->jobs[i].in.bytes, name);
        else if (s == TD_OK)
            s = write_shard(q, w, q->jobs + first, last - first, codes, scales, aligned);
        td_safetensors_writer_destroy(w);
    }
    free(codes);
    free(scales);
    free(aligned);
    return s;
}

static td_status write_index(quantizer *q) {
    char path[PATH_MAX], name[64];
    if (q->n_shards == 1) return TD_OK;
    json_t *map = json_object();
    int     failed = !map;
    uint64_t total = 0;
    for (size_t i = 0; i < q->n_jobs && !failed; i++) {
        const job *j = &q->jobs[i];
        shard_name(q, j->shard, name, sizeof name);
        failed |= json_object_set_new(map, q->items[j->item].name, json_string(name));
        total += q->items[j->item].bytes;
        if (j->int8) {
            failed |= json_object_set_new(map, q->items[j->scale_item].name, json_string(name));
            total += q->items[j->scale_item].bytes;
        }
    }
    json_t   *index = failed ? NULL : json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char     *text = index ? td_json_dump(index, JSON_INDENT(1)) : NULL;
    td_status s = text ? out_path(q, path, "model.safetensors.index.json") : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK) s = td_file_write(path, text, strlen(text), q->err);
    free(text);
    json_decref(index);
    json_decref(map);
    return s;
}

/* ---- the experts ----------------------------------------------------------------------------- */

static uint64_t expert_bytes(const quantizer *q, uint32_t layer) {
    td_tensor_spec spec;
    uint64_t       bytes = 0;
    for (uint32_t i = 0; i < q->config.n_experts; i++)
        for (td_role role = TD_ROLE_EXPERT_GATE; role <= TD_ROLE_EXPERT_DOWN; role++)
            if (td_tensor_spec_get(&q->config, role, layer, i, &spec))
                bytes += td_checkpoint_is_dummy(q->source) ? spec.shape[0] * spec.shape[1] * sizeof(td_bf16)
                                                           : td_checkpoint_find(q->source, spec.name)->bytes;
    return bytes;
}

/* One MoE layer through a store of its own. The store maps memory for every layer, but only what is loaded takes any: one packed layer. */
static td_status pack_layer(quantizer *q, const td_experts_config *shape, uint32_t layer, uint32_t index, td_expert_weights *e) {
    char        path[PATH_MAX], what[32];
    td_scratch  scratch = {0};
    td_experts *store = NULL;
    td_status   s = TD_OK;
    td_expert_file_path(path, sizeof path, q->o->output_path, index);
    snprintf(what, sizeof what, "experts of layer %u", layer);
    if (td_experts_check_file(shape, index, path, q->hash, NULL) != TD_OK) {
        bool dummy = td_checkpoint_is_dummy(q->source);
        if (!dummy) s = td_checkpoint_get_experts(q->source, &q->config, layer, &scratch, e, q->err);
        if (s == TD_OK) s = td_experts_create(shape, q->pool, &store, q->err);
        if (s == TD_OK) s = dummy ? td_experts_fill_layer(store, index, index, q->err) : td_experts_load_layer(store, index, e, q->err);
        if (s != TD_OK && store) td_fail_within(q->err, "%s, %s", q->o->model_path, what);
        if (s == TD_OK) s = td_experts_save_file(store, index, path, q->hash, q->err);
        td_experts_destroy(store);
        td_scratch_reset(&scratch);
    }
    if (s == TD_OK) progress(q, expert_bytes(q, layer), what);
    return s;
}

static td_status pack_experts(quantizer *q) {
    const td_model_config *c = &q->config;
    td_experts_config      shape = {.n_layers = td_model_config_moe_layers(c), .n_experts = c->n_experts, .hidden = c->hidden,
                                    .inter = c->moe_inter, .top_k = c->top_k, .format = q->experts->format, .groups = q->experts->groups, .act_dtype = TD_DT_BF16, .max_tok = 1};
    td_expert_weights     *e = calloc(c->n_experts, sizeof *e);
    td_status              s = e ? TD_OK : td_fail(q->err, TD_ENOMEM, "out of memory");
    uint32_t               index = 0;
    for (uint32_t layer = 0; s == TD_OK && layer < c->n_layers + c->n_mtp_layers; layer++)
        if (c->is_moe[layer]) s = pack_layer(q, &shape, layer, index++, e);
    free(e);
    return s;
}

/* ---- the small files ------------------------------------------------------------------------- */

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static td_status copy_small_files(quantizer *q) {
    static const char *const NAMES[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "tiktoken.model",
                                        "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
                                        "chat_template.json", "LICENSE", "README.md"};
    char from[PATH_MAX], to[PATH_MAX];
    if (!is_folder(q->o->model_path)) return TD_OK; /* a config.json alone, with dummy weights */
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char  *data;
        size_t len;
        if ((size_t)snprintf(from, sizeof from, "%s/%s", q->o->model_path, NAMES[i]) >= sizeof from)
            return td_fail(q->err, TD_EINVAL, "the model path is too long");
        TD_TRY(out_path(q, to, NAMES[i]));
        td_status s = td_file_read(from, SMALL_FILE_MAX, &data, &len, q->err);
        if (s == TD_ENOTFOUND) continue;
        if (s == TD_OK) s = td_file_write(to, data, len, q->err);
        free(data);
        if (s != TD_OK) return s;
    }
    return TD_OK;
}

/* compressed-tensors' description of int8 weights per channel and dynamic int8 activations per token. */
static json_t *quantization_config(void) {
    return json_pack("{s:s,s:s,s:s,s:{s:{s:[s],s:{s:i,s:s,s:b,s:s,s:b},s:{s:i,s:s,s:b,s:s,s:b}}},s:[s,s,s]}",
                     "quant_method", "compressed-tensors", "format", "int-quantized", "quantization_status", "compressed",
                     "config_groups", "group_0", "targets", "Linear",
                     "weights", "num_bits", 8, "type", "int", "symmetric", 1, "strategy", "channel", "dynamic", 0,
                     "input_activations", "num_bits", 8, "type", "int", "symmetric", 1, "strategy", "token", "dynamic", 1,
                     "ignore", "re:.*kv_b_proj$", "re:.*mlp\\.gate$", "re:.*shared_expert_gate$");
}

static td_status write_config(quantizer *q) {
    char    path[PATH_MAX];
    json_t *config;
    bool folder = !td_checkpoint_is_dummy(q->source) || is_folder(q->o->model_path);
    if ((size_t)snprintf(path, sizeof path, folder ? "%s/config.json" : "%s", q->o->model_path) >= sizeof path)
        return td_fail(q->err, TD_EINVAL, "the model path is too long");
    TD_TRY(td_json_read(path, SMALL_FILE_MAX, &config, q->err));
    int       failed = q->w8a8 ? json_object_set_new(config, "quantization_config", quantization_config()) : 0;
    char     *text = failed ? NULL : td_json_dump(config, JSON_INDENT(2));
    td_status s = text ? out_path(q, path, "config.json") : td_fail(q->err, TD_ENOMEM, "out of memory");
    if (s == TD_OK) s = td_file_write(path, text, strlen(text), q->err);
    free(text);
    json_decref(config);
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static td_status check_options(quantizer *q) {
    const td_quantize_options *o = q->o;
    if (!o->model_path || !o->output_path) return td_fail(q->err, TD_EINVAL, "a model path and an output path are needed");
    q->w8a8 = !strcmp(o->quantization, "w8a8_int8");
    if (!q->w8a8 && strcmp(o->quantization, "none"))
        return td_fail(q->err, TD_EINVAL, "quantization is '%.40s', expected w8a8_int8 or none", o->quantization);
    q->experts = td_expert_numbers_find(o->expert_quantization);
    if (!q->experts || q->experts->format == TD_EXPERT_BF16)
        return td_fail(q->err, TD_EINVAL, "expert_quantization is '%.40s', expected int4, int8, int4-g32, int4-g64 or int4-g128", o->expert_quantization);
    return TD_OK;
}

static td_status open_source(quantizer *q) {
    TD_TRY(td_model_config_read(q->o->model_path, NULL, &q->config, q->err));
    if (q->config.is_w8a8) return td_fail(q->err, TD_EINVAL, "%s is quantised to int8 already", q->o->model_path);
    TD_TRY(q->o->load_dummy ? td_checkpoint_open_dummy(0, &q->source, q->err) : td_checkpoint_open(q->o->model_path, &q->source, q->err));
    td_checkpoint_drop_missing_mtp(q->source, &q->config);
    TD_TRY(td_checkpoint_check_all(q->source, &q->config, true, q->err));
    q->hash = q->o->load_dummy ? DUMMY_SOURCE_HASH : td_checkpoint_source_hash(q->source);
    snprintf(q->hash_text, sizeof q->hash_text, "%016" PRIx64, q->hash);
    return TD_OK;
}

static td_status start_pool(quantizer *q) {
    td_thread_plan *plan = malloc(sizeof *plan);
    td_machine      machine;
    if (!plan) return td_fail(q->err, TD_ENOMEM, "out of memory");
    td_status s = td_topology_plan(q->o->threads, q->o->subpool_count, 0, plan, &machine, q->err);
    if (s == TD_OK) {
        q->n_subpools = plan->n_subpools;
        s = td_pool_create(plan->experts, plan->n_experts, &q->pool, q->err);
    }
    free(plan);
    return s;
}

static td_status run(quantizer *q) {
    TD_TRY(check_options(q));
    TD_TRY(open_source(q));
    TD_TRY(start_pool(q));
    TD_TRY(claim_output(q));
    TD_TRY(plan_shards(q));
    for (uint32_t layer = 0; layer < q->config.n_layers + q->config.n_mtp_layers; layer++) q->total_bytes += expert_bytes(q, layer);
    progress(q, 0, "starting");
    TD_TRY(write_shards(q));
    TD_TRY(write_index(q));
    TD_TRY(pack_experts(q));
    TD_TRY(copy_small_files(q));
    return write_config(q);
}

td_status td_quantize(const td_quantize_options *o, td_error *err) {
    quantizer q = {.o = o, .err = err, .lock_fd = -1};
    td_status s = run(&q);
    if (q.lock_fd >= 0) close(q.lock_fd);
    td_pool_destroy(q.pool);
    td_checkpoint_close(q.source);
    free(q.jobs);
    free(q.items);
    return s;
}
