#include "image/decode.h"

#include <string.h>

#include "core/error.h"
#include "image/decode_formats.h"

/* A type of file by its first bytes. Of RIFF, whose length stands between, four more are looked at. */
typedef struct {
    const char *first;
    size_t      n;
    const char *riff;    /* what stands at 8, or NULL */
    const char *name;    /* for sentences */
    td_decoder *decoder; /* NULL: a type that is known and not taken */
} file_type;

static const file_type TYPES[] = {
    {"\xff\xd8\xff", 3, NULL, "a JPEG", td_decode_jpeg},
    {"\x89PNG\r\n\x1a\n", 8, NULL, "a PNG", td_decode_png},
    {"RIFF", 4, "WEBP", "a WebP", td_decode_webp},
    {"GIF8", 4, NULL, "a GIF", NULL},
    {"BM", 2, NULL, "a BMP", NULL},
    {"II*\0", 4, NULL, "a TIFF", NULL},
    {"MM\0*", 4, NULL, "a TIFF", NULL},
    {"%PDF", 4, NULL, "a PDF", NULL},
    {"<", 1, NULL, "an SVG, or another text in XML or HTML", NULL},
    {"\xef\xbb\xbf<", 4, NULL, "an SVG, or another text in XML or HTML", NULL},
    {"\0\0\0\x0cJXL ", 8, NULL, "a JPEG XL", NULL},
    {"\0\0\0\x0cjP  ", 8, NULL, "a JPEG 2000", NULL},
};

static bool is_of_type(const file_type *t, const uint8_t *bytes, size_t n) {
    if (n < t->n || memcmp(bytes, t->first, t->n)) return false;
    return !t->riff || (n >= 12 && !memcmp(bytes + 8, t->riff, 4));
}

/* HEIC and AVIF, as phones write them: a box "ftyp" of any length comes first. */
static bool is_heif(const uint8_t *bytes, size_t n) {
    return n >= 12 && !memcmp(bytes + 4, "ftyp", 4);
}

static td_status find_decoder(const uint8_t *bytes, size_t n, td_decoder **out, td_error *err) {
    const char *name = is_heif(bytes, n) ? "a HEIC, an AVIF or a video" : NULL;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES && !name; i++) {
        if (!is_of_type(&TYPES[i], bytes, n)) continue;
        *out = TYPES[i].decoder;
        if (*out) return TD_OK;
        name = TYPES[i].name;
    }
    if (!n) return td_fail(err, TD_ENOTSUP, "the picture is empty");
    return td_fail(err, TD_ENOTSUP, "the picture is %s; JPEG, PNG and WebP are taken",
                   name ? name : "of no type that is known here");
}

td_status td_picture_decode(const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out, td_error *err) {
    td_decoder *decode;
    td_picture  p = {0};
    uint32_t    orientation = 1;
    TD_TRY(find_decoder(bytes, n, &decode, err));
    td_status s = decode(bytes, n, max_pixels, &p, &orientation, err);
    if (s == TD_OK) s = td_picture_orient(&p, orientation, err);
    if (s == TD_OK)
        *out = p;
    else
        td_picture_free(&p);
    return s;
}
