/*
 * What a picture becomes, for tests in Python: "HEIGHT WIDTH\n" and the bytes of its pixels on standard output.
 *   image_probe decode FILE | resize FILE HEIGHT WIDTH | fit FILE RULE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/json_file.h"
#include "image/decode.h"
#include "image/image_fit.h"
#include "image/resize.h"

#define BYTES_MAX (64 << 20)
#define PIXELS_MAX 100000000

static td_status read_picture(const char *path, td_picture *p, td_error *err) {
    char     *bytes;
    size_t    n;
    td_status s = td_file_read(path, BYTES_MAX, &bytes, &n, err);
    if (s != TD_OK) return s;
    s = td_picture_decode((uint8_t *)bytes, n, PIXELS_MAX, p, err);
    free(bytes);
    return s;
}

static td_status fit(td_picture *p, const char *path, td_error *err) {
    td_image_rule rule;
    char         *text;
    size_t        n;
    td_status     s = td_file_read(path, BYTES_MAX, &text, &n, err);
    if (s != TD_OK) return s;
    s = td_image_rule_parse(text, n, &rule, err);
    free(text);
    return s == TD_OK ? td_picture_fit(p, &rule, err) : s;
}

int main(int argc, char **argv) {
    td_picture p = {0};
    td_error   err = {0};
    if (argc < 3) return 2;
    td_status s = read_picture(argv[2], &p, &err);
    if (s == TD_OK && !strcmp(argv[1], "resize") && argc == 5)
        s = td_picture_resize(&p, (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), &err);
    if (s == TD_OK && !strcmp(argv[1], "fit") && argc == 4) s = fit(&p, argv[3], &err);
    if (s == TD_OK) {
        printf("%u %u\n", p.height, p.width);
        fwrite(p.rgb, 3, (size_t)p.height * p.width, stdout);
    } else {
        fprintf(stderr, "%s\n", err.text);
    }
    td_picture_free(&p);
    return s != TD_OK;
}
