/*
 * A vision encoder of random weights, on the host: whole pictures. Its products have weights of 16 bits and rows of f32. So
 * rows stand against the peak of float multiply-adds, of f32 or of bf16, whichever is larger here: on many processors with
 * vdpbf16ps that is f32's. Attention's products, of integers of 16 bits, are counted with the others.
 */
#include <math.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/bench_time.h"
#include "core/error.h"
#include "engine/model_folder.h"
#include "model/arch/config_file.h"
#include "model/vision.h"
#include "npu/host/host_npu.h"

static const struct {
    const char *shape;
    uint32_t    pixels; /* of a side */
} PICTURES[] = {{"picture of 256 x 256", 256}, {"picture of 512 x 512", 512}, {"picture of 1024 x 1024", 1024}};
#define N_PICTURES (sizeof PICTURES / sizeof *PICTURES)

typedef struct {
    td_model_config config;
    td_npu         *npu;
    td_vision      *encoder;
    td_roofline    *roofline;
    float          *pixels, *features;
} encoding;

static uint32_t patches_of(const encoding *e, size_t i) {
    const uint32_t side = PICTURES[i].pixels / e->config.vision.patch / TD_VISION_MERGE * TD_VISION_MERGE;
    return side * side;
}

static double float_ops(const encoding *e) {
    td_npu_report r;
    e->npu->ops->report(e->npu, &r);
    return (double)r.work.f32_ops;
}

static td_status encode(const encoding *e, uint32_t n, td_error *err) {
    const uint32_t side = (uint32_t)lround(sqrt(n));
    td_piece       piece = {.budget_s = INFINITY, .part_s = INFINITY};
    TD_TRY(td_vision_start(e->encoder, e->pixels, side, side, e->features, err));
    while (!piece.ended) TD_TRY(td_vision_run(e->encoder, &piece, err));
    return TD_OK;
}

static td_status open_encoding(encoding *e, const td_bench *b, uint32_t max_patches, td_error *err) {
    const td_vision_config  *v = &e->config.vision;
    const td_host_npu_config host = {.pool = b->pool};
    const td_npu_config      config = {.act_dtype = TD_DT_BF16, .host = &host};
    const size_t             features = (1 + (size_t)v->n_taps) * max_patches / 4 * e->config.hidden;
    td_vision_memory         m;
    TD_TRY(td_npu_open("host", &config, &e->npu, err));
    td_vision_measure(e->npu, TD_DT_BF16, &e->config, max_patches, &m);
    TD_TRY(td_bench_check_memory(b, "the encoder", m.weight_bytes + m.device_bytes + m.scratch_bytes + m.host_bytes, err));
    TD_TRY(td_vision_open(e->npu, TD_DT_BF16, &e->config, NULL, max_patches, &e->encoder, err));
    e->pixels = calloc((size_t)max_patches * td_vision_patch_values(v), sizeof *e->pixels);
    e->features = malloc(features * sizeof *e->features);
    if (!e->pixels || !e->features) return td_fail(err, TD_ENOMEM, "out of memory for a picture");
    for (size_t i = 0; i < (size_t)max_patches * td_vision_patch_values(v); i++) e->pixels[i] = (float)(i % 255) / 128 - 1;
    return td_roofline_open(b->pool, TD_ROOFLINE_BLOCK, &e->roofline, err);
}

static void close_encoding(encoding *e) {
    td_roofline_close(e->roofline);
    td_vision_close(e->encoder);
    if (e->npu) e->npu->ops->close(e->npu);
    free(e->pixels);
    free(e->features);
}

static td_status time_picture(td_bench *b, const encoding *e, size_t i, td_error *err) {
    const uint32_t n = patches_of(e, i), rounds = b->o->rounds;
    double         time_s[TD_BENCH_ROUNDS_MAX], f32[TD_BENCH_ROUNDS_MAX], bf16[TD_BENCH_ROUNDS_MAX], ops = 0;
    for (uint32_t r = 0; r < rounds; r++) {
        f32[r] = td_roofline_f32(e->roofline);
        bf16[r] = td_roofline_bf16(e->roofline);
        const double before = float_ops(e), begin_s = td_roofline_now_s(b->pool);
        TD_TRY(encode(e, n, err));
        time_s[r] = td_roofline_now_s(b->pool) - begin_s;
        ops = float_ops(e) - before;
    }
    const double of_f32 = bench_median(f32, rounds), of_bf16 = bench_median(bf16, rounds);
    const bool   is_bf16 = of_bf16 > of_f32;
    td_bench_print_floats(b, PICTURES[i].shape, n, is_bf16 ? "bf16" : "f32", bench_median(time_s, rounds), ops,
                          is_bf16 ? of_bf16 : of_f32);
    return TD_OK;
}

td_status td_bench_vision(td_bench *b, td_error *err) {
    encoding e = {0};
    uint32_t max_patches = 0;
    TD_TRY(td_model_folder_check(b->o->model_path, false, err));
    TD_TRY(td_model_config_read(b->o->model_path, b->o->override_json, &e.config, err));
    if (!e.config.vision.depth)
        return td_fail(err, TD_ENOTSUP, "%s has no vision encoder that is served%s%s", e.config.arch_name,
                       e.config.vision.why_not[0] ? ": " : "", e.config.vision.why_not);
    for (size_t i = 0; i < N_PICTURES; i++)
        if (td_bench_wanted(b, PICTURES[i].shape) && patches_of(&e, i) > max_patches) max_patches = patches_of(&e, i);
    if (!max_patches) return td_fail(err, TD_EINVAL, "no row is left to measure");
    td_status st = open_encoding(&e, b, max_patches, err);
    for (size_t i = 0; i < N_PICTURES && st == TD_OK; i++)
        if (td_bench_wanted(b, PICTURES[i].shape)) st = time_picture(b, &e, i, err);
    close_encoding(&e);
    return st;
}
