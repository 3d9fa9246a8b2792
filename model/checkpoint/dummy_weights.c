#include "model/checkpoint/dummy_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/math/rng.h"
#include "core/math/small_float.h"

/* An odd length (a prime), so that rows, whose lengths are even, do not repeat; 1 MiB, so that it stays in a core's cache.
 */
#define VALUES ((size_t)524287)
#define DEVIATION 0.02

struct td_dummy_weights {
    uint64_t seed;
    td_bf16  values[VALUES]; /* random; every tensor is a stretch of it, repeated */
};

td_status td_dummy_weights_open(uint64_t seed, td_dummy_weights **out, td_error *err) {
    td_dummy_weights *d = malloc(sizeof *d);
    *out = d;
    if (!d) return td_fail(err, TD_ENOMEM, "no memory for dummy weights");
    d->seed = seed;
    double span = DEVIATION * sqrt(12.0); /* a uniform variable of width w has the deviation w / sqrt(12) */
    for (size_t i = 0; i < VALUES; i++) d->values[i] = td_f32_to_bf16((float)((td_rng_uniform(seed, 0, i) - 0.5) * span));
    return TD_OK;
}

void td_dummy_weights_close(td_dummy_weights *d) {
    free(d);
}

static td_status make_vector(const td_tensor_spec *spec, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    float *p = td_scratch_take(scratch, spec->shape[0] * sizeof *p, err);
    if (!p) return TD_ENOMEM;
    for (size_t i = 0; i < spec->shape[0]; i++) p[i] = spec->filling == TD_FILLING_ONES;
    *out = (td_tensor_view){.dtype = TD_DT_F32, .rank = 1, .shape = {spec->shape[0]}, .data = p};
    return TD_OK;
}

/* A row's experts follow one another, from another one in each row. */
static td_status make_experts(const td_tensor_spec *spec, td_scratch *scratch, td_tensor_view *out, td_error *err) {
    const size_t k = spec->shape[1];
    float       *p = td_scratch_take(scratch, spec->shape[0] * k * sizeof *p, err);
    if (!p) return TD_ENOMEM;
    for (size_t i = 0; i < spec->shape[0] * k; i++) p[i] = (float)((i / k * (k + 1) + i % k) % spec->n_experts);
    *out = (td_tensor_view){.dtype = TD_DT_F32, .rank = 2, .shape = {spec->shape[0], k}, .data = p};
    return TD_OK;
}

td_status td_dummy_weights_make(const td_dummy_weights *d, const td_tensor_spec *spec, td_scratch *scratch,
                                td_tensor_view *out, td_error *err) {
    if (spec->filling == TD_FILLING_EXPERTS) return make_experts(spec, scratch, out, err);
    if (spec->filling != TD_FILLING_RANDOM) return make_vector(spec, scratch, out, err);
    size_t   n = spec->shape[0] * (spec->rank > 1 ? spec->shape[1] : 1);
    td_bf16 *p = td_scratch_take(scratch, n * sizeof *p, err);
    if (!p) return TD_ENOMEM;
    size_t at = XXH3_64bits_withSeed(spec->name, strlen(spec->name), d->seed) % VALUES;
    for (size_t done = 0; done < n;) {
        size_t part = VALUES - at < n - done ? VALUES - at : n - done;
        memcpy(p + done, d->values + at, part * sizeof *p);
        done += part;
        at = 0;
    }
    *out = (td_tensor_view){.dtype = TD_DT_BF16, .rank = spec->rank, .shape = {spec->shape[0], spec->shape[1]}, .data = p};
    return TD_OK;
}
