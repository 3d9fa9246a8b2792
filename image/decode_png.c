/* PNG by libpng's functions for rows; those of png_image have had more faults. */
#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "image/decode_formats.h"
#include "image/exif.h"

#define SIGNATURE_BYTES 8
#define CHUNK_BYTES_MAX (8 << 20) /* what libpng may allocate for a chunk; those that are kept are small */

typedef struct {
    png_structp    png;
    png_infop      info;
    png_bytepp     rows;
    const uint8_t *at, *end;
    char           message[128];
} decoder;

static PNG_NORETURN void fail(png_structp png, png_const_charp message) {
    decoder *d = png_get_error_ptr(png);
    strncpy(d->message, message, sizeof d->message - 1);
    png_longjmp(png, 1);
}

/* Of damage in chunks that the pixels do not need. */
static void ignore(png_structp png, png_const_charp message) {
    (void)png, (void)message;
}

static void read_bytes(png_structp png, png_bytep to, size_t n) {
    decoder *d = png_get_io_ptr(png);
    if ((size_t)(d->end - d->at) < n) png_error(png, "the file ends too soon");
    memcpy(to, d->at, n);
    d->at += n;
}

static uint32_t big_endian(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The chunk eXIf may stand before the pixels or behind them. */
static uint32_t orientation_of(const uint8_t *bytes, size_t n) {
    for (size_t at = SIGNATURE_BYTES; at + 12 <= n;) { /* length, type, data, checksum */
        const size_t length = big_endian(bytes + at);
        if (length > n - at - 12) break;
        if (!memcmp(bytes + at + 4, "eXIf", 4)) return td_exif_orientation(bytes + at + 8, length);
        at += 12 + length;
    }
    return 1;
}

/* Rows of RGB, or of RGBA where some pixel may be transparent, of 8 bits a channel. */
static uint32_t ask_for_bytes(decoder *d) {
    const bool has_alpha =
        png_get_color_type(d->png, d->info) & PNG_COLOR_MASK_ALPHA || png_get_valid(d->png, d->info, PNG_INFO_tRNS);
    png_set_expand(d->png);
    png_set_strip_16(d->png);
    png_set_gray_to_rgb(d->png);
    png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    return has_alpha ? 4 : 3;
}

/* Everything that may jump. */
static td_status decode(decoder *d, uint64_t max_pixels, td_picture *out, td_error *err) {
    png_set_read_fn(d->png, d, read_bytes);
    png_set_user_limits(d->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* td_picture_room has the limit */
    png_set_chunk_malloc_max(d->png, CHUNK_BYTES_MAX);
    /* Texts, profiles and what else is packed or of no use here is passed over; tRNS is not among them. */
    png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(d->png, d->info);
    const uint32_t height = png_get_image_height(d->png, d->info), width = png_get_image_width(d->png, d->info);
    const uint32_t channels = ask_for_bytes(d);
    TD_TRY(td_picture_room(height, width, channels, max_pixels, &out->rgb, err));
    out->height = height, out->width = width;
    if (png_get_rowbytes(d->png, d->info) != (size_t)width * channels) png_error(d->png, "its rows have another length");
    d->rows = png_malloc(d->png, height * sizeof *d->rows);
    for (uint32_t y = 0; y < height; y++) d->rows[y] = out->rgb + (size_t)y * width * channels;
    png_read_image(d->png, d->rows);
    png_read_end(d->png, NULL);
    if (channels == 4) td_picture_over_white(out->rgb, (size_t)height * width);
    return TD_OK;
}

td_status td_decode_png(const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out, uint32_t *orientation,
                        td_error *err) {
    decoder   d = {.at = bytes, .end = bytes + n};
    td_status s;
    d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d, fail, ignore);
    d.info = d.png ? png_create_info_struct(d.png) : NULL;
    if (!d.info)
        s = td_fail(err, TD_ENOMEM, "out of memory for the PNG");
    else if (setjmp(png_jmpbuf(d.png)))
        s = td_fail(err, TD_EFORMAT, "the PNG cannot be read: %s", d.message);
    else
        s = decode(&d, max_pixels, out, err);
    if (d.png) png_free(d.png, d.rows);
    png_destroy_read_struct(&d.png, &d.info, NULL);
    *orientation = orientation_of(bytes, n);
    return s;
}
