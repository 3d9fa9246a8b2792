/* Packed expert files: save, load (as it is, or repacked for this machine's kernel and shards), check. */
#include "cpu_experts/expert_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/machine/cpu.h"
#include "core/plural.h"
#include "cpu_experts/packed_io.h"
#include "kernels/machine/checksum.h"

typedef union {
    td_packed_header h;
    char             page[TD_FILE_BLOCK];
} header_page;

static uint64_t hash_header(const header_page *p) {
    header_page copy = *p;
    copy.h.header_hash = 0;
    return XXH3_64bits(&copy, sizeof copy);
}

/* ---- header ------------------------------------------------------------------------------------ */

static uint32_t format_word(td_expert_format format, const td_expert_groups *g) {
    if (!td_expert_has_groups(format)) return format;
    return format | (uint32_t)g->size << 8 | (uint32_t)g->scale_dtype << 16 | (uint32_t)g->zero_points << 24;
}

/* @return false: no format has that word. */
static bool numbers_of_word(uint32_t word, td_expert_numbers *out) {
    *out = (td_expert_numbers){.format = (td_expert_format)(word & 0xff)};
    if (td_expert_has_groups(out->format)) {
        out->groups = (td_expert_groups){
            .size = word >> 8 & 0xff, .scale_dtype = (td_dtype)(word >> 16 & 0xff), .zero_points = word >> 24 & 1};
        if (!(out->format == TD_EXPERT_INT4G ? td_int4g_takes : td_fp4g_takes)(&out->groups)) return false;
    }
    if (out->format >= TD_EXPERT_FORMATS || format_word(out->format, &out->groups) != word) return false;
    out->name = td_expert_format_name(out->format, &out->groups);
    return true;
}

static const td_tile_layout *tiles_of(const td_packed_header *h) {
    const td_tile_layout *tiles = td_tile_layout_named((td_product)(h->format & 0xff), h->layout);
    return tiles && tiles->nr == h->nr && tiles->kr == h->kr ? tiles : NULL;
}

/* The layout that a header describes, where it is consistent with itself. */
static td_status layout_of(const td_packed_header *h, const td_experts_config *c, expert_layout *l, const char *path,
                           td_error *err) {
    const td_tile_layout *tiles = tiles_of(h);
    if (!tiles)
        return td_fail(err, TD_ENOTSUP, "%s is packed for kernel %s, which this build does not know; pack the experts anew",
                       path, h->kernel);
    if (h->n_shards == 0 || h->n_shards > TD_POOL_SUBPOOLS_MAX)
        return td_fail(err, TD_EFORMAT, "%s says it has %u shards", path, h->n_shards);
    td_status status = td_expert_layout_init(l, c, tiles, h->n_shards, err);
    if (status != TD_OK) return td_fail_within(err, "%s", path);
    uint64_t total = 0;
    for (uint32_t s = 0; s < h->n_shards; s++) {
        if (h->shard_bytes[s] != l->shard[s].bytes) return td_fail(err, TD_EFORMAT, "%s has a shard of a wrong size", path);
        total += h->shard_bytes[s];
    }
    if (total != h->payload_bytes) return td_fail(err, TD_EFORMAT, "%s has a payload of a wrong size", path);
    return TD_OK;
}

static td_status read_header(const char *path, header_page *p, uint64_t *file_bytes, td_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return td_fail(err, errno == ENOENT ? TD_ENOTFOUND : TD_EIO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    size_t      n = 0;
    int         rc = fstat(fd, &st) ? errno : 0;
    for (ssize_t got = 1; !rc && got && n < sizeof *p;) {
        got = pread(fd, (char *)p + n, sizeof *p - n, (off_t)n);
        if (got > 0) n += (size_t)got;
        if (got < 0 && errno != EINTR) rc = errno;
    }
    close(fd);
    if (rc) return td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(rc));
    if (n < sizeof p->h.magic || memcmp(p->h.magic, TD_PACKED_MAGIC, sizeof p->h.magic))
        return td_fail(err, TD_EFORMAT, "%s is not a packed expert file", path);
    if (n < sizeof *p) return td_fail(err, TD_EFORMAT, "%s is truncated within its header", path);
    if (p->h.version != TD_PACKED_VERSION)
        return td_fail(err, TD_ENOTSUP, "%s has packed format version %u; this build reads %d: pack the experts anew", path,
                       p->h.version, TD_PACKED_VERSION);
    if (hash_header(p) != p->h.header_hash || p->h.header_bytes != sizeof *p)
        return td_fail(err, TD_EFORMAT, "%s is corrupt: the checksum of its header does not match", path);
    p->h.layout[sizeof p->h.layout - 1] = p->h.kernel[sizeof p->h.kernel - 1] = 0;
    *file_bytes = (uint64_t)st.st_size;
    return TD_OK;
}

/* Header and size: everything but the payload's checksums. */
static td_status open_packed(const td_experts_config *c, uint32_t layer, const char *path, uint64_t source_hash,
                             header_page *p, expert_layout *l, td_error *err) {
    uint64_t          file_bytes = 0;
    td_expert_numbers held;
    TD_TRY(read_header(path, p, &file_bytes, err));
    const td_packed_header *h = &p->h;
    if (!numbers_of_word(h->format, &held)) return td_fail(err, TD_ENOTSUP, "%s has weights of an unknown format", path);
    if (h->format != format_word(c->format, &c->groups))
        return td_fail(err, TD_EFORMAT, "%s holds experts in format \"%s\" where \"%s\" is wanted", path, held.name,
                       td_expert_format_name(c->format, &c->groups));
    if (h->n_experts != c->n_experts || h->hidden != c->hidden || h->inter != c->inter)
        return td_fail(err, TD_EFORMAT,
                       "%s holds %u experts of hidden size %u and intermediate size %u; the model has %u of %u and %u", path,
                       h->n_experts, h->hidden, h->inter, c->n_experts, c->hidden, c->inter);
    if (h->flags != (c->bias ? TD_PACKED_BIAS : 0))
        return td_fail(err, TD_EFORMAT, "%s holds experts %s biases; those of the model have %s", path,
                       h->flags == TD_PACKED_BIAS ? "with"
                       : h->flags                 ? "with more than"
                                                  : "without",
                       c->bias ? "some" : "none");
    if (h->layer != c->first_layer + layer)
        return td_fail(err, TD_EFORMAT, "%s holds MoE layer %u where %u is wanted", path, h->layer, c->first_layer + layer);
    if (source_hash && h->source_hash != source_hash)
        return td_fail(err, TD_EFORMAT, "%s was packed from another checkpoint; pack the experts anew", path);
    TD_TRY(layout_of(h, c, l, path, err));
    if (file_bytes != h->header_bytes + h->payload_bytes)
        return td_fail(err, TD_EFORMAT, "%s is truncated: %llu bytes where %llu are expected", path,
                       (unsigned long long)file_bytes, (unsigned long long)(h->header_bytes + h->payload_bytes));
    return TD_OK;
}

td_status td_experts_file_format(const char *path, td_expert_numbers *out, td_error *err) {
    header_page page;
    uint64_t    file_bytes;
    TD_TRY(read_header(path, &page, &file_bytes, err));
    return numbers_of_word(page.h.format, out) ? TD_OK
                                               : td_fail(err, TD_ENOTSUP, "%s has weights of an unknown format", path);
}

td_status td_experts_check_file(const td_experts_config *c, uint32_t layer, const char *path, uint64_t source_hash,
                                td_error *err) {
    header_page   p;
    expert_layout l;
    return open_packed(c, layer, path, source_hash, &p, &l, err);
}

/* ---- checksums --------------------------------------------------------------------------------- */

/* @param hash [n_shards] written */
static td_status hash_shards(td_pool *pool, const void *const *data, const expert_layout *l, uint64_t *hash, td_error *err) {
    td_checksum_span spans[TD_POOL_SUBPOOLS_MAX];
    for (uint32_t s = 0; s < l->n_shards; s++) spans[s] = (td_checksum_span){data[s], l->shard[s].bytes};
    return td_checksums(pool, spans, l->n_shards, hash, err);
}

static td_status check_shards(td_pool *pool, const char *path, const td_packed_header *h, const expert_layout *l,
                              const void *const *data, td_error *err) {
    uint64_t hash[TD_POOL_SUBPOOLS_MAX];
    TD_TRY(hash_shards(pool, data, l, hash, err));
    for (uint32_t s = 0; s < l->n_shards; s++)
        if (hash[s] != h->shard_hash[s])
            return td_fail(err, TD_EFORMAT, "%s is corrupt: the checksum of shard %u does not match", path, s);
    return TD_OK;
}

/* ---- save -------------------------------------------------------------------------------------- */

static const void *const *layer_shards(const td_experts *x, uint32_t layer) {
    return (const void *const *)x->shard_data + (size_t)layer * x->layout.n_shards;
}

/* @param pool for the checksums; NULL: none */
static td_status save_layer(const td_experts *x, td_pool *pool, uint32_t layer, const char *path, uint64_t source_hash,
                            uint64_t repacked_from, td_error *err) {
    const expert_layout *l = &x->layout;
    const void *const   *data = layer_shards(x, layer);
    uint64_t             hash[TD_POOL_SUBPOOLS_MAX];
    TD_TRY(hash_shards(pool, data, l, hash, err));

    _Alignas(TD_FILE_BLOCK) header_page p = {.h = {.version = TD_PACKED_VERSION,
                                                   .header_bytes = sizeof p,
                                                   .format = format_word(x->config.format, &x->config.groups),
                                                   .layer = x->config.first_layer + layer,
                                                   .n_experts = x->config.n_experts,
                                                   .hidden = x->config.hidden,
                                                   .inter = x->config.inter,
                                                   .nr = x->kernel->tiles->nr,
                                                   .kr = x->kernel->tiles->kr,
                                                   .n_shards = l->n_shards,
                                                   .flags = l->sizes.bias ? TD_PACKED_BIAS : 0,
                                                   .source_hash = source_hash,
                                                   .repacked_from = repacked_from,
                                                   .payload_bytes = l->layer_bytes}};
    packed_part                         parts[1 + TD_POOL_SUBPOOLS_MAX] = {{&p, sizeof p}};
    memcpy(p.h.magic, TD_PACKED_MAGIC, sizeof p.h.magic);
    snprintf(p.h.layout, sizeof p.h.layout, "%s", x->kernel->tiles->name);
    snprintf(p.h.kernel, sizeof p.h.kernel, "%s", x->kernel->name);
    for (uint32_t s = 0; s < l->n_shards; s++) {
        p.h.shard_bytes[s] = l->shard[s].bytes;
        p.h.shard_hash[s] = hash[s];
        parts[1 + s] = (packed_part){data[s], l->shard[s].bytes};
    }
    p.h.header_hash = hash_header(&p);
    return td_packed_write(path, parts, 1 + l->n_shards, err);
}

td_status td_experts_save_file(const td_experts *x, uint32_t layer, const char *path, uint64_t source_hash, td_error *err) {
    if (layer >= x->config.n_layers || !x->loaded[layer] || x->origin[layer].expert)
        return td_fail(err, TD_EINVAL, "MoE layer %u has no weights to save", x->config.first_layer + layer);
    return save_layer(x, NULL, layer, path, source_hash, 0, err);
}

/* ---- load -------------------------------------------------------------------------------------- */

/* Read the shards of a file to where dst says and verify them. */
static td_status read_shards(td_pool *pool, const char *path, const td_packed_header *h, const expert_layout *l,
                             void *const *dst, td_error *err) {
    packed_span spans[TD_POOL_SUBPOOLS_MAX];
    uint64_t    at = h->header_bytes;
    for (uint32_t s = 0; s < l->n_shards; s++) {
        spans[s] = (packed_span){.offset = at, .bytes = l->shard[s].bytes, .dst = dst[s]};
        at += l->shard[s].bytes;
    }
    TD_TRY(td_packed_read(path, spans, l->n_shards, NULL, err));
    return check_shards(pool, path, h, l, (const void *const *)dst, err);
}

typedef struct {
    const expert_layout  *layout;
    td_expert_format      format;
    const td_tile_layout *tiles;
    void                 *shard[TD_POOL_SUBPOOLS_MAX];
} file_source;

/* Rows of a file that was packed for another kernel or number of shards: unpack the tiles that hold them. */
static bool rows_of_file(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                         const td_gemm_weights *out, void *tmp, uint32_t worker) {
    (void)worker;
    const file_source *src = ctx;
    td_expert_format   format = src->format;
    size_t nr = src->tiles->nr, file_k = expert_matrix_k(src->layout, m), cols = expert_matrix_cols(src->layout, m),
           element = td_gemm_element((td_product)format), n_scales = 1, file_scales = 1, unpacked = SIZE_MAX;
    td_gemm_weights tile_weights = td_expert_tile_weights(src->layout, tmp);
    if (td_expert_has_groups(format)) {
        n_scales = k / src->layout->groups.size;
        file_scales = file_k / src->layout->groups.size;
    }
    size_t scales = n_scales < file_scales ? n_scales : file_scales; /* beyond: padding of both */
    for (size_t r = 0; r < n; r++) {
        size_t tile = (row + r) / nr, in_tile = (row + r) % nr;
        if (tile != unpacked) {
            uint32_t s;
            size_t   at = td_expert_tile_offset(src->layout, expert, m, tile, &s);
            td_tile_unpack(src->tiles, (const char *)src->shard[s] + at, &tile_weights, file_k, &src->layout->groups);
            unpacked = tile;
        }
        char *codes = (char *)out->rows + r * k * element;
        memcpy(codes, (const char *)tile_weights.rows + in_tile * file_k * element, cols * element);
        memset(codes + cols * element, 0, (k - cols) * element);
        memset(out->scale + r * n_scales, 0, n_scales * sizeof *out->scale);
        memcpy(out->scale + r * n_scales, tile_weights.scale + in_tile * file_scales, scales * sizeof *out->scale);
        memcpy(out->zero + r * n_scales, tile_weights.zero + in_tile * file_scales, scales);
        out->factor[r] = tile_weights.factor[in_tile];
    }
    return true;
}

static bool bias_of_file(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, float *out) {
    const file_source   *src = ctx;
    const expert_layout *l = src->layout;
    for (size_t r = row; r < row + n; r++, out++) {
        uint32_t s;
        size_t   at = td_expert_bias_offset(l, expert, m, r / l->sizes.nr, &s) + r % l->sizes.nr * sizeof *out;
        memcpy(out, (const char *)src->shard[s] + at, sizeof *out);
    }
    return true;
}

static td_status load_repacked(td_experts *x, uint32_t layer, const char *path, const td_packed_header *h,
                               const expert_layout *l, td_error *err) {
    file_source src = {.layout = l, .format = x->config.format, .tiles = tiles_of(h)};
    td_status   status = TD_OK;
    for (uint32_t s = 0; s < l->n_shards && status == TD_OK; s++)
        status = td_mem_map(l->shard[s].bytes, TD_NODE_ANY, &src.shard[s], err);
    if (status == TD_OK) status = read_shards(x->pool, path, h, l, src.shard, err);
    if (status == TD_OK) status = td_expert_pack_layer(x, layer, rows_of_file, bias_of_file, &src, err);
    for (uint32_t s = 0; s < l->n_shards; s++) td_mem_unmap(src.shard[s], l->shard[s].bytes);
    return status;
}

static bool is_native(const td_experts *x, const td_packed_header *h) {
    return h->n_shards == x->layout.n_shards && !strcmp(h->layout, x->kernel->tiles->name);
}

/* The page cache puts pages where it likes, so shards that belong to a node are copied there. */
static bool can_map(const td_experts *x) {
    for (uint32_t s = 0; s < x->layout.n_shards; s++)
        if (td_mem_places(td_pool_node(x->pool, s))) return false;
    return !x->config.copy_files && !x->config.droppable;
}

/* The layer is what the file holds: its shards lie one after the other behind the header. */
static td_status map_shards(td_experts *x, uint32_t layer, const char *path, const td_packed_header *h, td_error *err) {
    void      **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    td_file_map map;
    TD_TRY(td_file_map_open(&map, path, err));
    td_expert_layer_release(x, layer);
    x->files[layer] = map;
    const char *at = map.base + h->header_bytes;
    for (uint32_t s = 0; s < x->layout.n_shards; at += x->layout.shard[s++].bytes) shards[s] = (void *)at;
    td_status status = map.bytes == h->header_bytes + h->payload_bytes
                           ? check_shards(x->pool, path, h, &x->layout, (const void *const *)shards, err)
                           : td_fail(err, TD_EFORMAT, "%s has changed its size while it was opened", path);
    if (status != TD_OK) td_expert_layer_release(x, layer);
    return status;
}

static td_status copy_shards(td_experts *x, uint32_t layer, const char *path, const td_packed_header *h, td_error *err) {
    TD_TRY(td_expert_layer_memory(x, layer, err));
    return read_shards(x->pool, path, h, &x->layout, x->shard_data + (size_t)layer * x->layout.n_shards, err);
}

static td_status load_native(td_experts *x, uint32_t layer, const char *path, const td_packed_header *h, td_error *err) {
    td_status status = TD_EIO;
    td_error  why = {0};
    if (can_map(x)) {
        status = map_shards(x, layer, path, h, &why);
        if (status == TD_EIO)
            td_warn("%s; it is read into memory", why.text);
        else if (status != TD_OK)
            return td_fail(err, status, "%s", why.text);
    }
    if (status == TD_EIO) TD_TRY(copy_shards(x, layer, path, h, err));
    if (x->config.droppable) TD_TRY(td_expert_origin_open(x, layer, path, err));
    x->loaded[layer] = true;
    td_expert_report_placement(x, layer);
    return TD_OK;
}

td_status td_experts_load_file(td_experts *x, uint32_t layer, const char *path, uint64_t source_hash, td_error *err) {
    header_page   p;
    expert_layout l;
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    TD_TRY(open_packed(&x->config, layer, path, source_hash, &p, &l, err));
    if (is_native(x, &p.h)) return load_native(x, layer, path, &p.h, err);

    char          sibling[PATH_MAX]; /* repacked by an earlier run from this very file? */
    header_page   sp;
    expert_layout sl;
    bool named = (size_t)snprintf(sibling, sizeof sibling, "%s.%s-%u", path, x->kernel->tiles->name, x->layout.n_shards) <
                 sizeof sibling;
    if (named && open_packed(&x->config, layer, sibling, 0, &sp, &sl, NULL) == TD_OK && is_native(x, &sp.h) &&
        sp.h.repacked_from == p.h.header_hash && load_native(x, layer, sibling, &sp.h, NULL) == TD_OK)
        return TD_OK;

    td_info("%s is packed as %s in %u shard%s; repacking as %s in %u", path, p.h.layout, p.h.n_shards,
            td_plural(p.h.n_shards), x->kernel->tiles->name, x->layout.n_shards);
    TD_TRY(load_repacked(x, layer, path, &p.h, &l, err));
    td_error  write_error = {.text = "its path is too long"};
    td_status saved =
        named ? save_layer(x, x->pool, layer, sibling, p.h.source_hash, p.h.header_hash, &write_error) : TD_EIO;
    if (x->config.droppable)
        return saved == TD_OK ? td_expert_origin_open(x, layer, sibling, err)
                              : td_fail(err, saved, "experts that leave memory need a file packed for this machine: %s",
                                        write_error.text);
    if (saved != TD_OK) td_warn("the repacked experts are not kept: %s", write_error.text);
    return TD_OK;
}
