/* JPEG by libjpeg-turbo: its defaults (exact integer DCT, smooth upsampling) give Pillow's bytes. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "core/error.h"
#include "image/decode_formats.h"
#include "image/exif.h"

#define SCANS_MAX 100 /* of a progressive file, whose every scan goes over all pixels; encoders write some ten */
#define APP1 (JPEG_APP0 + 1)

typedef struct {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr         errors;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       failed;
    char                          message[JMSG_LENGTH_MAX];
} decoder;

static void fail(j_common_ptr cinfo) {
    decoder *d = cinfo->client_data;
    cinfo->err->format_message(cinfo, d->message);
    longjmp(d->failed, 1);
}

/* A warning tells of damage over which the library would go on with grey. Bytes between two markers harm nothing: some
 * cameras write them. Level 0 and above are traces. */
static void warn(j_common_ptr cinfo, int level) {
    if (level < 0 && cinfo->err->msg_code != JWRN_EXTRANEOUS_DATA) fail(cinfo);
}

static void count_scans(j_common_ptr cinfo) {
    decoder *d = cinfo->client_data;
    if (((j_decompress_ptr)cinfo)->input_scan_number <= SCANS_MAX) return;
    snprintf(d->message, sizeof d->message, "it has more than %d scans", SCANS_MAX);
    longjmp(d->failed, 1);
}

static uint32_t orientation_of(const struct jpeg_decompress_struct *cinfo) {
    for (jpeg_saved_marker_ptr m = cinfo->marker_list; m; m = m->next)
        if (m->marker == APP1 && m->data_length > 6 && !memcmp(m->data, "Exif\0\0", 6))
            return td_exif_orientation(m->data, m->data_length);
    return 1;
}

/* Rows of four bytes as files of Adobe's programs have them: inverted. White less a colour, darkened by black, is Pillow's
 * conversion to RGB. */
static void cmyk_to_rgb(const uint8_t *row, size_t width, uint8_t *to) {
    for (size_t x = 0; x < width; x++, row += 4, to += 3) {
        uint32_t light = row[3]; /* 255 - black */
        for (int c = 0; c < 3; c++) {
            uint32_t product = (255u - row[c]) * light + 128;
            uint32_t ink = ((product >> 8) + product) >> 8; /* Pillow's MULDIV255: product / 255, rounded */
            to[c] = (uint8_t)(light > ink ? light - ink : 0);
        }
    }
}

/* Everything that may jump to d->failed. */
static td_status decode(decoder *d, const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out,
                        uint32_t *orientation, td_error *err) {
    struct jpeg_decompress_struct *c = &d->cinfo;
    jpeg_create_decompress(c);
    c->progress = &d->progress;
    c->mem->max_memory_to_use = (long)(8 * max_pixels + (64 << 20)); /* two bytes a coefficient, of four components */
    jpeg_save_markers(c, APP1, 0xffff);
    jpeg_mem_src(c, bytes, n);
    jpeg_read_header(c, TRUE);
    *orientation = orientation_of(c);

    const bool is_cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    c->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    TD_TRY(td_picture_room(c->image_height, c->image_width, 3, max_pixels, &out->rgb, err));
    out->height = c->image_height, out->width = c->image_width;

    jpeg_start_decompress(c);
    const size_t row_bytes = (size_t)c->output_width * (is_cmyk ? 4 : 3);
    JSAMPARRAY   rows = c->mem->alloc_sarray((j_common_ptr)c, JPOOL_IMAGE, (JDIMENSION)row_bytes, 1);
    while (c->output_scanline < c->output_height) {
        uint8_t *to = out->rgb + (size_t)c->output_scanline * out->width * 3;
        jpeg_read_scanlines(c, rows, 1);
        if (is_cmyk)
            cmyk_to_rgb(rows[0], out->width, to);
        else
            memcpy(to, rows[0], row_bytes);
    }
    jpeg_finish_decompress(c);
    return TD_OK;
}

td_status td_decode_jpeg(const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out, uint32_t *orientation,
                         td_error *err) {
    decoder   d = {.progress.progress_monitor = count_scans};
    td_status s;
    d.cinfo.err = jpeg_std_error(&d.errors);
    d.cinfo.client_data = &d;
    d.errors.error_exit = fail;
    d.errors.emit_message = warn;
    if (setjmp(d.failed))
        s = td_fail(err, d.errors.msg_code == JERR_OUT_OF_MEMORY ? TD_ENOMEM : TD_EFORMAT, "the JPEG cannot be read: %s",
                    d.message);
    else
        s = decode(&d, bytes, n, max_pixels, out, orientation, err);
    jpeg_destroy_decompress(&d.cinfo);
    return s;
}
