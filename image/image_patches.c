/* A picture's bytes as numbers, patch by patch. */
#include <assert.h>
#include <string.h>

#include "image/image.h"

/* What each byte is, by channel. */
static void fill_table(const td_image_rule *r, float table[3][256]) {
    for (int c = 0; c < 3; c++) {
        const float mean = r->mean[c] * 255.0f, std = r->std[c] * 255.0f;
        for (int byte = 0; byte < 256; byte++) table[c][byte] = ((float)byte - mean) / std;
    }
}

/* Where patch i of the tower's order lies. */
static void place(const td_image *image, size_t i, size_t *row, size_t *col) {
    const size_t merge = image->rule.sizing == TD_IMAGE_KIMI ? 1 : image->rule.merge;
    const size_t block = i / (merge * merge), within = i % (merge * merge), blocks = image->cols / merge;
    *row = block / blocks * merge + within / merge;
    *col = block % blocks * merge + within % merge;
}

static void write_patch(const td_image *image, const float table[3][256], size_t row, size_t col, float *out) {
    const size_t side = image->rule.patch, area = side * side, width = image->cols * side;
    for (size_t c = 0; c < 3; c++) {
        float *first = out + c * image->rule.frames * area;
        for (size_t y = 0; y < side; y++) {
            const uint8_t *from = image->rgb + ((row * side + y) * width + col * side) * 3 + c;
            for (size_t x = 0; x < side; x++) first[y * side + x] = table[c][from[3 * x]];
        }
        for (size_t t = 1; t < image->rule.frames; t++) memcpy(first + t * area, first, area * sizeof *first);
    }
}

size_t td_image_patch_values(const td_image_rule *r) {
    return (size_t)3 * r->frames * r->patch * r->patch;
}

void td_image_patches(const td_image *image, size_t first, size_t n, float *out) {
    float        table[3][256];
    const size_t values = td_image_patch_values(&image->rule), patches = (size_t)image->rows * image->cols;
    assert(first <= patches && n <= patches - first);
    fill_table(&image->rule, table);
    for (size_t i = 0; i < n; i++) {
        size_t row, col;
        place(image, first + i, &row, &col);
        write_patch(image, table, row, col, out + i * values);
    }
}
