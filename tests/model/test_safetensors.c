/* The reader of safetensors files: good files, and every way in which a file can be wrong. */
#include <unistd.h>

#include "model/checkpoint/safetensors.h"
#include "tests/td_test.h"

/* Length word, header, payload of zeros; returns the size. */
static size_t build(unsigned char *out, const char *header, size_t payload) {
    uint64_t n = strlen(header);
    memcpy(out, &n, 8);
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, payload);
    return 8 + n + payload;
}

TEST(a_good_file) {
    unsigned char   file[1024];
    td_safetensors *f;
    td_error        err = {0};
    size_t          size =
        build(file,
              "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
              "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_"
              "offsets\":[32,40]},"
              "\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[8,8]},\"q\":{\"dtype\":\"F8_E5M2\",\"shape\":[2],"
              "\"data_offsets\":[6,8]}}   ",
              40);
    if (td_safetensors_parse(file, size, "x", &f, &err) != TD_OK) fail_msg("%s", err.text);
    assert_int_equal(td_safetensors_count(f), 5);
    assert_string_equal(td_safetensors_at(f, 0)->name, "a");
    assert_string_equal(td_safetensors_at(f, 1)->name, "q");
    assert_int_equal(td_safetensors_at(f, 1)->dtype, TD_DT_COUNT);
    const td_safetensors_entry *b = td_safetensors_at(f, 3);
    assert_string_equal(b->name, "b");
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0] * 10 + b->shape[1], 23);
    assert_int_equal(b->bytes, 24);
    assert_ptr_equal(b->data, file + size - 40 + 8);
    assert_string_equal(td_safetensors_metadata(f, "format"), "pt");
    assert_null(td_safetensors_metadata(f, "b"));
    td_safetensors_close(f);
}

#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

TEST(defects_are_told) {
    static const struct {
        const char *header, *says;
    } CASES[] = {
        {"{" T("a", "F32", "[4]", "0", "20") "}", "'a' has 20 bytes, its shape and dtype need 16"},
        {"{" T("a", "F32", "[40]", "0", "160") "}", "truncated"},
        {"{" T("a", "F32", "[4]", "16", "0") "}", "not a range"},
        {"{" T("a", "F32", "[4]", "-16", "0") "}", "not a range"},
        {"{" T("a", "F32", "[4]", "0", "9223372036854775807") "}", "truncated"},
        {"{" T("a", "F32", "[4]", "0", "18446744073709551632") "}", "not valid JSON"},
        {"{" T("a", "F32", "[4.0]", "0", "16") "}", "a dimension"},
        {"{" T("a", "F32", "[-4]", "0", "16") "}", "a dimension"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", "overflows"},
        {"{" T("a", "F32", "[4611686018427387904]", "0", "0") "}", "whole number of bytes"},
        {"{" T("a", "F4", "[3]", "0", "1") "}", "whole number of bytes"},
        {"{" T("a", "F32", "[1,1,1,1,1,1]", "0", "4") "}", "6 dimensions"},
        {"{" T("a", "FP32", "[4]", "0", "16") "}", "unknown dtype 'FP32'"},
        {"{" T("a", "F32", "[4]", "0", "16") "," T("b", "F32", "[4]", "12", "28") "}", "'a' and 'b' overlap"},
        {"{" T("a", "F32", "[4]", "0", "16") "," T("b", "F32", "[4]", "0", "16") "}", "overlap"},
        {"{" T("a", "F32", "[4]", "0", "16") "," T("a", "F32", "[4]", "16", "32") "}", "not valid JSON"}, /* a name twice */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", "needs dtype, shape and two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}", "needs dtype"},
        {"{\"a\":{\"dtype\":1,\"shape\":[4],\"data_offsets\":[0,16]}}", "needs dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]}}", "needs dtype"},
        {"{\"a\":[]}", "needs dtype"},
        {"{\"__metadata__\":[]}", "__metadata__"},
        {"{\"__metadata__\":{\"k\":1}}", "__metadata__"},
        {"[]", "object"},
        {"{} {}", "not valid JSON"},
        {"{\"a\"", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        unsigned char   file[1024];
        td_safetensors *f;
        td_error        err = {0};
        size_t          size = build(file, CASES[i].header, 64);
        td_status       s = td_safetensors_parse(file, size, "x.safetensors", &f, &err);
        if (s != TD_EFORMAT || f || !strstr(err.text, CASES[i].says) || strncmp(err.text, "x.safetensors: ", 15))
            fail_msg("%s: status %d, '%s'", CASES[i].header, s, err.text);
    }
}

TEST(header_lengths_are_checked) {
    static const uint64_t LENGTHS[] = {3, 57, 100000000, 100000001, UINT64_MAX, UINT64_MAX - 7, 1ull << 63};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        unsigned char   file[64] = {0};
        td_safetensors *f;
        td_error        err = {0};
        memcpy(file, &LENGTHS[i], 8);
        memcpy(file + 8, "{}", 2);
        assert_int_equal(td_safetensors_parse(file, sizeof file, "x", &f, &err), TD_EFORMAT);
        assert_null(f);
    }
    td_safetensors *f;
    for (size_t n = 0; n < 8; n++) assert_int_equal(td_safetensors_parse("\2\0\0\0\0\0\0\0", n, "x", &f, NULL), TD_EFORMAT);
}

TEST(files) {
    td_safetensors *f;
    td_error        err = {0};
    assert_int_equal(td_safetensors_open("/nonexistent/x.safetensors", &f, &err), TD_ENOTFOUND);
    assert_int_equal(td_safetensors_open("/tmp", &f, &err), TD_EFORMAT);
    char path[] = "/tmp/td_test_XXXXXX";
    int  fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(td_safetensors_open(path, &f, &err), TD_EFORMAT); /* empty */
    unsigned char file[1024];
    size_t        size = build(file, "{" T("a", "F32", "[4]", "0", "16") "}", 16);
    assert_int_equal(write(fd, file, size), (ssize_t)size);
    OK(td_safetensors_open(path, &f, &err));
    OK(td_safetensors_check_size(f, &err));
    assert_int_equal(ftruncate(fd, (off_t)size - 1), 0);
    assert_int_equal(td_safetensors_check_size(f, &err), TD_EIO);
    assert_non_null(strstr(err.text, "shorter"));
    td_safetensors_close(f);
    assert_int_equal(td_safetensors_open(path, &f, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "truncated"));
    close(fd);
    unlink(path);
}
