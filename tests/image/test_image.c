/*
 * Pictures without a worker: decoding, resizing, sizes and patches against what Pillow and transformers made of them
 * (tests/data/images), rules that are refused, and files that are damaged.
 */
#include <jansson.h>

#include "core/files/json_file.h"
#include "image/decode.h"
#include "image/exif.h"
#include "image/image.h"
#include "image/image_fit.h"
#include "image/image_size.h"
#include "image/resize.h"
#include "image/sha256.h"
#include "tests/td_test.h"

#define FOLDER TD_SOURCE_DIR "/tests/data/images/"
#define BYTES_MAX (1 << 20)
#define PIXELS_MAX 1000000

typedef struct {
    uint8_t *bytes;
    size_t   n;
} file;

static file read_file(const char *name) {
    char path[300];
    file f;
    snprintf(path, sizeof path, FOLDER "%s", name);
    OK(td_file_read(path, BYTES_MAX, (char **)&f.bytes, &f.n, NULL));
    return f;
}

static json_t *read_manifest(void) {
    json_t *m;
    OK(td_json_read(FOLDER "manifest.json", BYTES_MAX, &m, NULL));
    return m;
}

static td_picture decoded(const char *name) {
    td_picture p = {0};
    td_error   err = {0};
    file       f = read_file(name);
    if (td_picture_decode(f.bytes, f.n, PIXELS_MAX, &p, &err) != TD_OK) fail_msg("%s: %s", name, err.text);
    free(f.bytes);
    return p;
}

static void hex_of(const void *bytes, size_t n, char out[65]) {
    td_sha256 s;
    uint8_t   hash[TD_SHA256_BYTES];
    td_sha256_begin(&s);
    td_sha256_add(&s, bytes, n);
    td_sha256_end(&s, hash);
    for (size_t i = 0; i < sizeof hash; i++) snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

static void assert_hash(const char *what, const void *bytes, size_t n, const json_t *want) {
    char hex[65];
    hex_of(bytes, n, hex);
    if (strcmp(hex, json_string_value(want))) fail_msg("%s is not what it was made to be", what);
}

static uint32_t number(const json_t *from, const char *key) {
    return (uint32_t)json_integer_value(json_object_get(from, key));
}

TEST(hashes_of_the_standard) { /* FIPS 180-4's examples, and a million of 'a' */
    char         hex[65];
    const size_t million = 1000000;
    char        *a = malloc(million);
    memset(a, 'a', million);
    hex_of("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hex_of("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    hex_of(a, million, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    for (size_t part = 1; part < 130; part++) { /* in parts of any size */
        td_sha256 s;
        uint8_t   whole[TD_SHA256_BYTES], parts[TD_SHA256_BYTES];
        td_sha256_begin(&s);
        td_sha256_add(&s, a, 1000);
        td_sha256_end(&s, whole);
        td_sha256_begin(&s);
        for (size_t at = 0; at < 1000; at += part) td_sha256_add(&s, a + at, part < 1000 - at ? part : 1000 - at);
        td_sha256_end(&s, parts);
        assert_memory_equal(whole, parts, sizeof whole);
    }
    free(a);
}

TEST(files_are_decoded_as_by_pillow) {
    json_t *m = read_manifest(), *f;
    size_t  i;
    json_array_foreach(json_object_get(m, "files"), i, f) {
        const char *name = json_string_value(json_object_get(f, "name"));
        td_picture  p = decoded(name);
        if (p.height != number(f, "height") || p.width != number(f, "width"))
            fail_msg("%s is %u x %u", name, p.width, p.height);
        assert_hash(name, p.rgb, (size_t)p.height * p.width * 3, json_object_get(f, "rgb"));
        td_picture_free(&p);
    }
    assert_true(i > 60);
    json_decref(m);
}

TEST(pictures_are_resized_as_by_pillow) {
    json_t *m = read_manifest(), *r;
    size_t  i;
    json_array_foreach(json_object_get(m, "resizes"), i, r) {
        const uint32_t height = (uint32_t)json_integer_value(json_array_get(r, 0)),
                       width = (uint32_t)json_integer_value(json_array_get(r, 1));
        char what[40];
        snprintf(what, sizeof what, "%u x %u", width, height);
        td_picture p = decoded("photo");
        OK(td_picture_resize(&p, height, width, NULL));
        assert_true(p.height == height && p.width == width);
        assert_hash(what, p.rgb, (size_t)height * width * 3, json_array_get(r, 2));
        td_picture_free(&p);
    }
    assert_true(i > 8);
    json_decref(m);
}

/* ---- rules ---- */

static td_image_rule rule_of(const json_t *r) {
    td_image_rule rule;
    td_error      err = {0};
    const char   *text = json_string_value(json_object_get(r, "text"));
    if (td_image_rule_parse(text, strlen(text), &rule, &err) != TD_OK) fail_msg("%s", err.text);
    return rule;
}

static void check_size(const char *name, const td_image_rule *rule, const json_t *row) {
    const uint32_t height = (uint32_t)json_integer_value(json_array_get(row, 0)),
                   width = (uint32_t)json_integer_value(json_array_get(row, 1));
    const json_t *want = json_array_get(row, 2);
    td_image_size got = {0};
    td_error      err = {0};
    td_status     s = td_image_size_of(rule, height, width, &got, &err);
    if (json_is_null(want)) {
        assert_int_equal(s, TD_ENOTSUP);
        assert_string_equal(err.text, "one side of the picture is more than 200 times the other");
        return;
    }
    if (s != TD_OK) fail_msg("%s, %u x %u: %s", name, width, height, err.text);
    const uint32_t is[4] = {got.content_height, got.content_width, got.canvas_height, got.canvas_width};
    for (size_t i = 0; i < 4; i++)
        if (is[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s, %u x %u: size %zu is %u and not %d", name, width, height, i, is[i],
                     (int)json_integer_value(json_array_get(want, i)));
}

TEST(sizes_are_those_of_transformers) {
    json_t *m = read_manifest(), *r, *row;
    size_t  i, j;
    json_array_foreach(json_object_get(m, "rules"), i, r) {
        td_image_rule rule = rule_of(r);
        json_array_foreach(json_object_get(r, "sizes"), j, row)
            check_size(json_string_value(json_object_get(r, "name")), &rule, row);
        assert_true(j > 70);
    }
    assert_true(i >= 10);
    json_decref(m);
}

/* The picture as the tower's image, without a worker: its canvas, and a grid. */
static td_image image_of(const char *name, const td_image_rule *rule) {
    td_picture p = decoded(name);
    OK(td_picture_fit(&p, rule, NULL));
    assert_true(p.height % (rule->patch * rule->merge) == 0 && p.width % (rule->patch * rule->merge) == 0);
    return (td_image){.rule = *rule, .rows = p.height / rule->patch, .cols = p.width / rule->patch, .rgb = p.rgb};
}

TEST(patches_are_those_of_transformers) {
    json_t *m = read_manifest(), *r;
    size_t  i;
    json_array_foreach(json_object_get(m, "rules"), i, r) {
        const char   *name = json_string_value(json_object_get(r, "name"));
        td_image_rule rule = rule_of(r);
        td_image      image = image_of("photo", &rule);
        if (image.rows != number(r, "rows") || image.cols != number(r, "cols"))
            fail_msg("%s: %u x %u", name, image.rows, image.cols);
        const size_t n = (size_t)image.rows * image.cols, values = td_image_patch_values(&rule);
        float       *patches = malloc(n * values * sizeof *patches);
        assert_non_null(patches);
        td_image_patches(&image, 0, n, patches);
        assert_hash(name, patches, n * values * sizeof *patches, json_object_get(r, "values"));

        float *some = malloc(3 * values * sizeof *some); /* a part of them is that part */
        assert_non_null(some);
        td_image_patches(&image, n - 3, 3, some);
        assert_memory_equal(some, patches + (n - 3) * values, 3 * values * sizeof *some);
        free(some);
        free(patches);
        free(image.rgb);
    }
    json_decref(m);
}

#define QWEN "{\"image_processor_type\": \"Qwen2VLImageProcessor\""
#define KIMI "{\"media_proc_cfg\": {\"patch_size\": 14"

static const struct {
    const char *name, *text, *says; /* says: what stands in the sentence */
} REFUSED[] = {
    {"no JSON", "{", "line 1"},
    {"nothing", "{}", "neither image_processor_type nor media_proc_cfg"},
    {"another processor", "{\"image_processor_type\": \"CLIPImageProcessor\"}", "CLIPImageProcessor"},
    {"a name that goes on", "{\"image_processor_type\": \"Qwen2VLImageProcessorFaster\"}", "Qwen2VLImageProcessorFaster"},
    {"type is no text", "{\"image_processor_type\": 5}", "neither"},
    {"no resizing", QWEN ", \"do_resize\": false}", "do_resize is not true"},
    {"resizing is no truth", QWEN ", \"do_resize\": 1}", "do_resize is not true"},
    {"a crop", QWEN ", \"do_center_crop\": true}", "do_center_crop is not false"},
    {"bilinear", QWEN ", \"resample\": 2}", "resample is not 3"},
    {"another scale", QWEN ", \"rescale_factor\": 0.5}", "rescale_factor"},
    {"merge", QWEN ", \"merge_size\": 4}", "merge_size is not 2"},
    {"time", QWEN ", \"temporal_patch_size\": 1}", "temporal_patch_size is not 2"},
    {"two means", QWEN ", \"image_mean\": [0.5, 0.5]}", "image_mean"},
    {"a mean of text", QWEN ", \"image_mean\": [0.5, 0.5, \"\"]}", "image_mean"},
    {"std 0", QWEN ", \"image_std\": [0.5, 0, 0.5]}", "beyond"},
    {"patch 0", QWEN ", \"patch_size\": 0}", "beyond"},
    {"patch 65", QWEN ", \"patch_size\": 65}", "beyond"},
    {"patch of 33 bits", QWEN ", \"patch_size\": 8589934606}", "patch_size"},
    {"a negative patch", QWEN ", \"patch_size\": -14}", "patch_size is no whole number"},
    {"a size of one edge", QWEN ", \"size\": {\"shortest_edge\": 5}}", "longest_edge"},
    {"limits that cross", QWEN ", \"size\": {\"shortest_edge\": 9000, \"longest_edge\": 8000}}", "beyond"},
    {"no lower limit", QWEN ", \"size\": {\"shortest_edge\": 0, \"longest_edge\": 9}}", "beyond"},
    {"an area beyond all", QWEN ", \"max_pixels\": 67108865}", "beyond"},
    {"fixed tokens", KIMI ", \"fixed_output_tokens\": 64}}", "fixed_output_tokens"},
    {"two sides", "{\"image_processor_type\": \"Kimi_K25ImageProcessor\", \"size\": {\"max_height\": 5, \"max_width\": 6}}",
     "max_height"},
    {"patches beyond all", KIMI ", \"in_patch_limit\": 400000}}", "beyond"},
    {"expanded patches", "{\"image_processor_type\": \"Glm5NextImageProcessor\", \"patch_expand_factor\": 2}",
     "patch_expand_factor"},
};

static void is_refused(void **state) {
    const typeof(*REFUSED) *row = *state;
    td_image_rule           rule;
    td_error                err = {0};
    td_status               s = td_image_rule_parse(row->text, strlen(row->text), &rule, &err);
    assert_true(s == TD_EFORMAT || s == TD_ENOTSUP);
    assert_int_equal(err.status, s);
    if (!strstr(err.text, row->says)) fail_msg("%s", err.text);
}
TEST_ROWS(is_refused, REFUSED)

/* ---- files that are not what they should be ---- */

static void assert_refused(const void *bytes, size_t n, uint64_t max_pixels, td_status status, const char *says) {
    td_picture p = {0};
    td_error   err = {0};
    uint8_t   *copy = malloc(n ? n : 1); /* of its own size: what is read beyond it is seen */
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    assert_int_equal(td_picture_decode(copy, n, max_pixels, &p, &err), status);
    assert_null(p.rgb);
    if (!strstr(err.text, says)) fail_msg("'%s' does not say '%s'", err.text, says);
    free(copy);
}

static const struct {
    const char *name, *bytes, *says;
} OTHERS[] = {
    {"nothing", "", "empty"},
    {"text", "a picture", "of no type that is known here"},
    {"SVG", "<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "an SVG"},
    {"XML", "<?xml version=\"1.0\"?><svg/>", "an SVG"},
    {"GIF", "GIF89a and more", "a GIF"},
    {"BMP", "BM and more", "a BMP"},
    {"HEIC", "----ftypheic", "a HEIC"},
    {"PDF", "%PDF-1.7", "a PDF"},
    {"RIFF", "RIFF----WAVEfmt ", "of no type"},
    {"half a signature", "\x89PNG", "of no type"},
};

static void is_of_no_type(void **state) {
    const typeof(*OTHERS) *row = *state;
    assert_refused(row->bytes, strlen(row->bytes), PIXELS_MAX, TD_ENOTSUP, row->says);
}
TEST_ROWS(is_of_no_type, OTHERS)

TEST(every_truncated_file_is_refused) {
    static const char *const NAMES[] = {
        "jpeg-420",   "jpeg-420-progressive", "jpeg-cmyk",          "png-rgb8", "png-palette4-trns-interlaced",
        "webp-lossy", "webp-lossless-alpha",  "webp-animated-alpha"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const bool is_animated = strstr(NAMES[i], "animated"); /* what follows the first frame may be missing */
        file       f = read_file(NAMES[i]);
        for (size_t n = 0; n < (is_animated ? f.n / 2 : f.n); n++) {
            td_picture p = {0};
            td_error   err = {0};
            uint8_t   *part = malloc(n ? n : 1);
            memcpy(part, f.bytes, n);
            td_status s = td_picture_decode(part, n, PIXELS_MAX, &p, &err);
            if (s == TD_OK) fail_msg("%s: %zu of %zu bytes are taken", NAMES[i], n, f.n);
            assert_true(err.text[0] && !p.rgb);
            free(part);
        }
        free(f.bytes);
    }
}

/* Big-endian, as JPEG and PNG have numbers. */
static void put(uint8_t *to, size_t bytes, uint32_t value) {
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

/* Where a JPEG's frame header has its height. */
static size_t jpeg_height_at(const file *f) {
    for (size_t i = 0; i + 9 < f->n; i++)
        if (f->bytes[i] == 0xff && (f->bytes[i + 1] == 0xc0 || f->bytes[i + 1] == 0xc2)) return i + 5;
    fail_msg("no frame header");
    return 0;
}

TEST(a_large_picture_is_refused_before_anything_is_allocated) {
    file f = read_file("png-rgb8");
    put(f.bytes + 16, 4, 100000), put(f.bytes + 20, 4, 100000);
    put(f.bytes + 29, 4, 0x27309c9f); /* the checksum of that header */
    assert_refused(f.bytes, f.n, 100000000, TD_ELIMIT, "100000 x 100000 pixels");
    free(f.bytes);

    f = read_file("jpeg-420");
    size_t at = jpeg_height_at(&f);
    put(f.bytes + at, 2, 65000), put(f.bytes + at + 2, 2, 65000);
    assert_refused(f.bytes, f.n, 100000000, TD_ELIMIT, "65000 x 65000 pixels");
    put(f.bytes + at, 2, 0);
    assert_refused(f.bytes, f.n, 100000000, TD_EFORMAT, "JPEG");
    free(f.bytes);

    static const char *const NAMES[] = {"jpeg-420", "png-rgb8", "webp-lossy", "webp-animated-alpha"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        td_picture p = {0};
        f = read_file(NAMES[i]);
        assert_refused(f.bytes, f.n, 13 * 19 - 1, TD_ELIMIT, "at most 246");
        OK(td_picture_decode(f.bytes, f.n, 13 * 19, &p, NULL));
        td_picture_free(&p);
        free(f.bytes);
    }
}

TEST(a_progressive_file_without_end_is_refused) { /* the last scan 200 times */
    file   f = read_file("jpeg-420-progressive");
    size_t scan = f.n - 2;
    while (f.bytes[scan] != 0xff || f.bytes[scan + 1] != 0xda) scan--;
    const size_t length = f.n - 2 - scan, n = f.n + 200 * length;
    uint8_t     *all = malloc(n);
    assert_non_null(all);
    memcpy(all, f.bytes, f.n - 2);
    for (size_t i = 0; i < 200; i++) memcpy(all + f.n - 2 + i * length, f.bytes + scan, length);
    memcpy(all + n - 2, f.bytes + f.n - 2, 2);
    td_picture p = {0};
    td_error   err = {0};
    assert_int_equal(td_picture_decode(all, n, PIXELS_MAX, &p, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "JPEG"));
    free(all);
    free(f.bytes);
}

TEST(damaged_orientations_are_none) {
    static const uint8_t GOOD[] = "II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
    uint8_t              e[sizeof GOOD];
    assert_int_equal(td_exif_orientation(GOOD, sizeof GOOD), 6);
    for (size_t n = 0; n < sizeof GOOD - 1; n++) {
        uint8_t *part = malloc(n ? n : 1);
        memcpy(part, GOOD, n);
        assert_int_equal(td_exif_orientation(part, n), n < 22 ? 1 : 6);
        free(part);
    }
    memcpy(e, GOOD, sizeof e), e[4] = e[5] = e[6] = e[7] = 0xff; /* the directory lies beyond the end */
    assert_int_equal(td_exif_orientation(e, sizeof e), 1);
    memcpy(e, GOOD, sizeof e), e[18] = 9;
    assert_int_equal(td_exif_orientation(e, sizeof e), 1);
    memcpy(e, GOOD, sizeof e), e[8] = e[9] = 0xff, e[10] = 0; /* more entries than there are */
    assert_int_equal(td_exif_orientation(e, sizeof e), 1);
}
