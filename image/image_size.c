#include "image/image_size.h"

#include <math.h>

#include "core/error.h"

#define ASPECT_MAX 200

/* Sizes while they are computed: whole numbers, which doubles hold exactly far beyond any picture. */
typedef struct {
    double h, w;
} size;

static double at_least(double low, double x) {
    return x < low ? low : x;
}

static double at_most(double high, double x) {
    return x > high ? high : x;
}

/* x in whole blocks. */
static double blocks_over(double x, double f) {
    return ceil(x / f) * f;
}

/* Qwen's rule; frames: how many a picture counts as. */
static td_status fit_area(const td_image_rule *r, size in, double frames, size *out, td_error *err) {
    const double f = (double)r->patch * r->merge, min = (double)r->min, max = (double)r->max;
    if (at_least(in.h, in.w) / at_most(in.h, in.w) > ASPECT_MAX)
        return td_fail(err, TD_ENOTSUP, "one side of the picture is more than %d times the other", ASPECT_MAX);
    *out = (size){rint(in.h / f) * f, rint(in.w / f) * f};
    const double area = frames * out->h * out->w;
    if (area > max) {
        const double b = sqrt(frames * in.h * in.w / max);
        *out = (size){at_least(f, floor(in.h / b / f) * f), at_least(f, floor(in.w / b / f) * f)};
    } else if (area < min) {
        const double b = sqrt(min / (frames * in.h * in.w));
        *out = (size){ceil(in.h * b / f) * f, ceil(in.w * b / f) * f};
    }
    return TD_OK;
}

static td_status fit_glm4v(const td_image_rule *r, size in, size *out, td_error *err) {
    const double f = (double)r->patch * r->merge;
    if (in.h < f || in.w < f) {
        const double s = at_least(f / in.h, f / in.w);
        in = (size){floor(in.h * s), floor(in.w * s)};
    }
    return fit_area(r, in, 2, out, err);
}

/* The largest canvas of the picture's shape, or nearly, that max_area holds. */
static size search_canvas(size in, double f, double max_area) {
    size   best = {f, f};
    double low = 1, high = in.h;
    while (low <= high) {
        const double h = floor((low + high) / 2), w = at_least(1, floor(in.w * h / in.h));
        const size   canvas = {blocks_over(h, f), blocks_over(w, f)};
        if (canvas.h * canvas.w <= max_area) {
            best = canvas;
            low = h + 1;
        } else {
            high = h - 1;
        }
    }
    return best;
}

static void fit_glm5(const td_image_rule *r, size in, size *content, size *canvas) {
    const double f = (double)r->patch * r->merge, min_area = (double)r->min * f * f, max_area = (double)r->max * f * f;
    *canvas = (size){blocks_over(in.h, f), blocks_over(in.w, f)};
    if (canvas->h * canvas->w < min_area) {
        const double s = sqrt(min_area / (in.h * in.w));
        *canvas = (size){blocks_over(at_least(1, ceil(in.h * s)), f), blocks_over(at_least(1, ceil(in.w * s)), f)};
    }
    if (canvas->h * canvas->w > max_area) *canvas = search_canvas(in, f, max_area);
    double s = at_most(canvas->w / in.w, canvas->h / in.h);
    if (in.h * in.w >= min_area) s = at_most(1, s);
    *content = (size){at_least(1, at_most(canvas->h, floor(in.h * s))), at_least(1, at_most(canvas->w, floor(in.w * s)))};
}

static void fit_kimi(const td_image_rule *r, size in, size *content, size *canvas) {
    const double p = r->patch, f = p * r->merge, side = r->side_max * p;
    const double patches = at_least(1, floor(in.h / p)) * at_least(1, floor(in.w / p));
    const double s = at_most(at_most(at_most(1, sqrt((double)r->max / patches)), side / in.h), side / in.w);
    *content = (size){at_most(side, at_least(1, floor(in.h * s))), at_most(side, at_least(1, floor(in.w * s)))};
    *canvas = (size){blocks_over(content->h, f), blocks_over(content->w, f)};
}

td_status td_image_size_of(const td_image_rule *r, uint32_t height, uint32_t width, td_image_size *out, td_error *err) {
    const size in = {height, width};
    size       content = {0}, canvas = {0};
    if (!height || !width) return td_fail(err, TD_EINVAL, "the picture has no pixels");
    switch (r->sizing) {
        case TD_IMAGE_QWEN:
            TD_TRY(fit_area(r, in, 1, &canvas, err));
            content = canvas;
            break;
        case TD_IMAGE_GLM4V:
            TD_TRY(fit_glm4v(r, in, &canvas, err));
            content = canvas;
            break;
        case TD_IMAGE_GLM5: fit_glm5(r, in, &content, &canvas); break;
        case TD_IMAGE_KIMI: fit_kimi(r, in, &content, &canvas); break;
    }
    if (!(canvas.h * canvas.w <= (double)TD_IMAGE_CANVAS_MAX))
        return td_fail(err, TD_ELIMIT, "the picture would be %.0f x %.0f pixels for the model; at most %llu are taken",
                       canvas.w, canvas.h, TD_IMAGE_CANVAS_MAX);
    *out = (td_image_size){(uint32_t)content.h, (uint32_t)content.w, (uint32_t)canvas.h, (uint32_t)canvas.w};
    return TD_OK;
}
