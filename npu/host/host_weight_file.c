/* Weights of the host device that were laid out by an earlier process, and are now somebody's mapped file. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "npu/host/host_device.h"

#define FLOAT_LAYOUTS 1 /* counts up when ROWS, PANELS or HEADS mean something else */

enum { WORD_LAYOUT, WORD_HEADS, WORD_NOPE, WORD_GROUPS /* size, scale type, zeros: a byte each */ };

/* *hash: what a packer makes of a sample, with what came before. @return false: out of memory. */
static bool hash_tile(const td_tile_layout *tiles, const td_gemm_groups *groups, uint64_t *hash) {
    enum { K = 256, MOST = TD_GEMM_NR_MAX * K };
    uint8_t codes[MOST], zero[MOST / 16];
    float   scale[MOST / 16], factor[TD_GEMM_NR_MAX];
    size_t  bytes = td_tile_bytes(tiles, K, groups);
    void   *tile = aligned_alloc(TD_CACHE_LINE, bytes);
    if (!tile) return false;
    for (size_t i = 0; i < MOST; i++) codes[i] = i * 7 % 16;
    for (size_t i = 0; i < MOST / 16; i++) scale[i] = ldexpf(1, (int)(i % 13) - 6), zero[i] = i % 16;
    for (size_t i = 0; i < TD_GEMM_NR_MAX; i++) factor[i] = (float)i;
    td_tile_pack(tiles, tile, &(td_gemm_weights){.rows = codes, .scale = scale, .zero = zero, .factor = factor}, K, groups);
    *hash = XXH3_64bits_withSeed(tile, bytes, *hash);
    free(tile);
    return true;
}

/* A sample for each way in which tiles are laid out: int8, int4 with zeros and without, both pairs of fp4. The layouts are
 * whatever the kernels' packers make of samples, so a new packer cannot be mistaken for an old one. */
void td_host_weight_tag(td_npu *npu, char tag[TD_NPU_TAG_BYTES]) {
    static const struct {
        td_product     product;
        td_gemm_groups groups;
    } SAMPLES[] = {{TD_PRODUCT_INT8C, {0}},
                   {TD_PRODUCT_INT4G, {.size = 32, .scale_dtype = TD_DT_BF16, .zero_points = true}},
                   {TD_PRODUCT_INT4G, {.size = 32, .scale_dtype = TD_DT_BF16}},
                   {TD_PRODUCT_FP4G, {.size = 16, .scale_dtype = TD_DT_F8_E4M3}},
                   {TD_PRODUCT_FP4G, {.size = 32, .scale_dtype = TD_DT_F8_E8M0}}};
    uint64_t hash = 0;
    tag[0] = 0;
    for (size_t i = 0; i < sizeof SAMPLES / sizeof *SAMPLES; i++)
        if (!hash_tile(((td_host_npu *)npu)->kernels->product[SAMPLES[i].product]->tiles, &SAMPLES[i].groups, &hash)) return;
    snprintf(tag, TD_NPU_TAG_BYTES, "host-%016" PRIx64 "-%u-%u-%u", hash, FLOAT_LAYOUTS, TD_HOST_NR_BF16, TD_HOST_NR_F32);
}

void td_host_weight_export(td_npu *d, const td_npu_weight *w, td_npu_packed *out) {
    (void)d;
    *out = (td_npu_packed){.format = w->shape.format,
                           .rank = w->shape.rank,
                           .n = w->shape.n,
                           .k = w->shape.k,
                           .data = w->data,
                           .bytes = w->bytes,
                           .layout = {[WORD_LAYOUT] = w->layout,
                                      [WORD_HEADS] = w->heads,
                                      [WORD_NOPE] = w->nope,
                                      [WORD_GROUPS] = w->groups.size | (uint32_t)w->groups.scale_dtype << 8 |
                                                      (uint32_t)w->groups.zero_points << 16}};
}

static td_gemm_groups groups_of(uint32_t word) {
    return (td_gemm_groups){.size = word & 0xff, .scale_dtype = (td_dtype)(word >> 8 & 0xff), .zero_points = word >> 16 & 1};
}

static bool is_consistent(td_npu *npu, const td_npu_packed *p, const td_npu_weight *w) {
    if ((uintptr_t)p->data % TD_CACHE_LINE || p->rank < 1 || p->rank > 2 || (p->rank == 1 && p->n != 1)) return false;
    if (!p->n || !p->k || p->n > TD_WEIGHT_SIDE_MAX || p->k > TD_WEIGHT_SIDE_MAX) return false;
    if (p->format == TD_WEIGHT_INT4G || p->format == TD_WEIGHT_FP4G)
        return w->layout == TD_HOST_PANELS && (p->format == TD_WEIGHT_INT4G ? td_int4g_takes : td_fp4g_takes)(&w->groups) &&
               p->bytes == td_host_tiles_bytes((td_host_npu *)npu, p->format, p->n, p->k, &w->groups);
    size_t bytes = td_host_weight_bytes(npu, p->format, 0, p->n, p->k);
    if (p->format == TD_WEIGHT_W8A8) return w->layout == TD_HOST_PANELS && p->k <= TD_INT8C_K_MAX && p->bytes == bytes;
    if (w->layout == TD_HOST_PANELS && p->n == 1) /* a mapping of its own: to_panels */
        bytes = td_host_nr((td_host_npu *)npu, w) * p->k * (p->format == TD_WEIGHT_F32 ? sizeof(float) : sizeof(td_bf16));
    if (w->layout == TD_HOST_HEADS && (!w->heads || p->n % w->heads || w->nope >= p->n / w->heads)) return false;
    if (w->layout == TD_HOST_TAPS && p->format != TD_WEIGHT_F32) return false;
    return p->bytes == bytes;
}

td_status td_host_weight_adopt(td_npu *npu, const td_npu_packed *p, td_npu_weight **out, td_error *err) {
    *out = NULL;
    if (p->format >= TD_WEIGHT_FORMATS || p->layout[WORD_LAYOUT] > TD_HOST_TAPS)
        return td_fail(err, TD_EINVAL, "a kept weight has an unknown format");
    td_npu_weight *w = calloc(1, sizeof *w);
    if (!w) return td_fail(err, TD_ENOMEM, "out of memory for a weight");
    *w = (td_npu_weight){.shape = {p->format, p->rank, p->n, p->k},
                         .layout = (td_host_layout)p->layout[WORD_LAYOUT],
                         .heads = p->layout[WORD_HEADS],
                         .nope = p->layout[WORD_NOPE],
                         .data = (void *)p->data,
                         .bytes = p->bytes,
                         .adopted = true};
    if (p->format == TD_WEIGHT_INT4G || p->format == TD_WEIGHT_FP4G) w->groups = groups_of(p->layout[WORD_GROUPS]);
    if (!is_consistent(npu, p, w)) {
        free(w);
        return td_fail(err, TD_EINVAL, "a kept weight of %zu x %zu has %zu bytes that do not fit its layout", p->n, p->k,
                       p->bytes);
    }
    *out = w;
    return TD_OK;
}
