#include "image/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define WEIGHT_BITS 22 /* 32, less the 8 of a byte, less 2: a sum of weights can go beyond 1 and below 0 */
#define SUPPORT 2.0    /* beyond it the kernel is 0 */

/* The weights of an axis. */
typedef struct {
    uint32_t  taps;    /* room for the weights of one output */
    uint32_t *first;   /* [out], the first pixel of each */
    uint32_t *n;       /* [out], how many pixels */
    int32_t  *weights; /* [out, taps], times 2^WEIGHT_BITS */
} axis;

static double kernel(double x) {
    if (x < 0.0) x = -x;
    if (x < 1.0) return ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * -0.5;
    return 0.0;
}

static void free_axis(axis *a) {
    free(a->first);
    free(a->n);
    free(a->weights);
}

/* The weights of output x; exact: room for them before they are rounded. */
static void weigh(axis *a, uint32_t in, double scale, uint32_t x, double *exact) {
    const double   g = scale < 1.0 ? 1.0 : scale, support = SUPPORT * g, centre = (x + 0.5) * scale;
    const double   below = centre - support + 0.5, above = centre + support + 0.5;
    const uint32_t first = below < 0 ? 0 : (uint32_t)below;
    const uint32_t end = above > in ? in : (uint32_t)above;
    double         sum = 0;
    for (uint32_t i = 0; i < end - first; i++) {
        exact[i] = kernel((i + first - centre + 0.5) * (1.0 / g));
        sum += exact[i];
    }
    int32_t *w = a->weights + (size_t)x * a->taps;
    for (uint32_t i = 0; i < end - first; i++) {
        double scaled = (sum != 0.0 ? exact[i] / sum : exact[i]) * (1 << WEIGHT_BITS);
        w[i] = (int32_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
    a->first[x] = first;
    a->n[x] = end - first;
}

static td_status make_axis(axis *a, uint32_t in, uint32_t out, td_error *err) {
    const double scale = (double)in / out;
    a->taps = (uint32_t)ceil(SUPPORT * (scale < 1.0 ? 1.0 : scale)) * 2 + 1;
    a->first = malloc(out * sizeof *a->first);
    a->n = malloc(out * sizeof *a->n);
    a->weights = malloc((size_t)out * a->taps * sizeof *a->weights);
    double   *exact = malloc(a->taps * sizeof *exact);
    td_status s =
        a->first && a->n && a->weights && exact ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for resizing the picture");
    for (uint32_t x = 0; x < out && s == TD_OK; x++) weigh(a, in, scale, x, exact);
    free(exact);
    return s;
}

static uint8_t rounded(int32_t sum) {
    int32_t value = sum >> WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void resize_rows(const axis *a, const td_picture *from, td_picture *to) {
    for (size_t y = 0; y < to->height; y++) {
        const uint8_t *row = from->rgb + y * from->width * 3;
        uint8_t       *out = to->rgb + y * to->width * 3;
        for (size_t x = 0; x < to->width; x++, out += 3) {
            const int32_t *w = a->weights + x * a->taps;
            const uint8_t *p = row + (size_t)a->first[x] * 3;
            int32_t        sum[3] = {1 << (WEIGHT_BITS - 1), 1 << (WEIGHT_BITS - 1), 1 << (WEIGHT_BITS - 1)};
            for (uint32_t i = 0; i < a->n[x]; i++, p += 3)
                for (int c = 0; c < 3; c++) sum[c] += w[i] * p[c];
            for (int c = 0; c < 3; c++) out[c] = rounded(sum[c]);
        }
    }
}

/* Whole rows at a time: sums [3 * width]. */
static void resize_columns(const axis *a, const td_picture *from, td_picture *to, int32_t *sums) {
    const size_t row_bytes = (size_t)to->width * 3;
    for (size_t y = 0; y < to->height; y++) {
        const int32_t *w = a->weights + y * a->taps;
        for (size_t b = 0; b < row_bytes; b++) sums[b] = 1 << (WEIGHT_BITS - 1);
        for (uint32_t i = 0; i < a->n[y]; i++) {
            const uint8_t *row = from->rgb + (a->first[y] + (size_t)i) * row_bytes;
            for (size_t b = 0; b < row_bytes; b++) sums[b] += w[i] * row[b];
        }
        for (size_t b = 0; b < row_bytes; b++) to->rgb[y * row_bytes + b] = rounded(sums[b]);
    }
}

/* Resize one axis: the other keeps its length. */
static td_status resize_axis(td_picture *p, uint32_t height, uint32_t width, td_error *err) {
    const bool along_rows = width != p->width;
    axis       a = {0};
    td_picture to = {.height = height, .width = width};
    td_status  s = make_axis(&a, along_rows ? p->width : p->height, along_rows ? width : height, err);
    to.rgb = malloc((size_t)height * width * 3);
    int32_t *sums = malloc((size_t)width * 3 * sizeof *sums);
    if (s == TD_OK && (!to.rgb || !sums)) s = td_fail(err, TD_ENOMEM, "out of memory for resizing the picture");
    if (s == TD_OK) {
        if (along_rows)
            resize_rows(&a, p, &to);
        else
            resize_columns(&a, p, &to, sums);
        td_picture swap = *p;
        *p = to;
        to = swap;
    }
    free(sums);
    free_axis(&a);
    td_picture_free(&to);
    return s;
}

td_status td_picture_resize(td_picture *p, uint32_t height, uint32_t width, td_error *err) {
    if (width != p->width) TD_TRY(resize_axis(p, p->height, width, err));
    if (height != p->height) TD_TRY(resize_axis(p, height, p->width, err));
    return TD_OK;
}
