/* The device's weights in a file. The same bits come back; damaged files and files of other sources are refused. A model
 * gives right answers whether the file is whole, damaged, partial or of another shape. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "model/device_file.h"
#include "npu/host/host_npu.h"
#include "tests/td_test.h"

#define SEED 2024u
enum { N_WEIGHTS = 7 };

static char     dir[] = "/tmp/td_device_file_XXXXXX";
static char     path[sizeof dir + 16];
static td_pool *pool;
static td_npu  *npu;

static void expect(td_status want, const char *says, const char *tag, uint64_t source) {
    td_device_file *f;
    td_error        err = {0};
    td_status       st = td_device_file_open(path, tag, source, pool, &f, &err);
    if (st != want || (says && (!strstr(err.text, says) || !strstr(err.text, path))))
        fail_msg("status %d, '%s', expected '%s'", st, err.text, says);
    td_device_file_close(f);
}

/* One weight of every format and rank. */
static td_npu_weight *new_weight(uint32_t i) {
    static const struct {
        td_weight_format format;
        uint32_t         rank;
        size_t           n, k;
    } SHAPES[N_WEIGHTS] = {{TD_WEIGHT_W8A8, 2, 77, 130},    {TD_WEIGHT_BF16, 2, 33, 50}, {TD_WEIGHT_F32, 1, 1, 300},
                           {TD_WEIGHT_W8A8, 2, 1024, 4096}, {TD_WEIGHT_F32, 2, 40, 24},  {TD_WEIGHT_BF16, 1, 1, 7},
                           {TD_WEIGHT_BF16, 2, 1, 64}};
    size_t         n = SHAPES[i].n * SHAPES[i].k;
    FREED float   *values = malloc(n * sizeof *values);
    td_npu_weight *w;
    for (size_t j = 0; j < n; j++) values[j] = (float)td_rng_uniform(SEED, i, j) - 0.5f;
    td_tensor_view view = {.dtype = TD_DT_F32, .rank = SHAPES[i].rank, .shape = {SHAPES[i].n, SHAPES[i].k}, .data = values};
    if (view.rank == 1) view.shape[0] = SHAPES[i].k;
    OK(npu->ops->weight_create(npu, SHAPES[i].format, &view, &w, NULL));
    return w;
}

static td_npu_weight      *weights[N_WEIGHTS];
static td_npu_packed       packed[N_WEIGHTS];
static td_device_weight_id ids[N_WEIGHTS];
static char                tag[TD_NPU_TAG_BYTES];

static void write_file(void) {
    td_error err = {0};
    if (td_device_file_write(path, tag, 99, pool, ids, packed, N_WEIGHTS, &err) != TD_OK) fail_msg("%s", err.text);
}

TEST(weights_come_back) {
    td_device_file *f;
    td_npu_packed   p, again;
    td_error        err = {0};
    write_file();
    OK(td_device_file_open(path, tag, 99, pool, &f, &err));
    for (uint32_t i = 0; i < N_WEIGHTS; i++) {
        td_npu_weight *w;
        assert_true(td_device_file_find(f, &ids[i], &p));
        assert_int_equal(p.bytes, packed[i].bytes);
        assert_memory_equal(p.data, packed[i].data, p.bytes);
        if (npu->ops->weight_adopt(npu, &p, &w, &err) != TD_OK) fail_msg("%s", err.text);
        npu->ops->weight_export(npu, w, &again);
        assert_ptr_equal(again.data, p.data); /* no copy */
        assert_memory_equal(again.layout, packed[i].layout, sizeof again.layout);
        npu->ops->weight_destroy(npu, w);
    }
    td_device_weight_id other[] = {{0, 1, 10}, {1, 0, 10}, {0, 0, 11}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) assert_false(td_device_file_find(f, &other[i], &p));
    td_device_file_close(f);
}

TEST(what_does_not_fit_is_refused) {
    struct stat st;
    unlink(path);
    expect(TD_ENOTFOUND, "cannot open", tag, 99);
    write_file();
    expect(TD_OK, NULL, tag, 99);
    expect(TD_EFORMAT, "another", tag, 98);
    expect(TD_EFORMAT, "another", "host-0", 99);
    stat(path, &st);
    for (off_t at = 0; at < 4096; at += 5) { /* any byte of the header page */
        write_file();
        int  fd = open(path, O_RDWR);
        char byte;
        assert_true(pread(fd, &byte, 1, at) == 1);
        byte ^= 0x10;
        assert_true(pwrite(fd, &byte, 1, at) == 1);
        close(fd);
        expect(TD_EFORMAT, "", tag, 99);
    }
    for (int i = 0; i < 40; i++) { /* a byte of a weight, or of what fills its last page */
        write_file();
        off_t at = 4096 + (off_t)(td_rng_uniform(SEED, 77, (uint64_t)i) * (double)(st.st_size - 4096));
        bool  in_weight = false;
        for (uint32_t w = 0; w < N_WEIGHTS; w++) {
            off_t begin = 4096;
            for (uint32_t b = 0; b < w; b++) begin += (off_t)((packed[b].bytes + 4095) / 4096 * 4096);
            in_weight |= at >= begin && at < begin + (off_t)packed[w].bytes;
        }
        int  fd = open(path, O_RDWR);
        char byte;
        assert_true(pread(fd, &byte, 1, at) == 1);
        byte ^= 0x40;
        assert_true(pwrite(fd, &byte, 1, at) == 1);
        close(fd);
        expect(in_weight ? TD_EFORMAT : TD_OK, in_weight ? "checksum" : NULL, tag, 99);
    }
    for (off_t size = 0; size < st.st_size; size += 1 + st.st_size / 23) {
        write_file();
        assert_int_equal(truncate(path, size), 0);
        expect(TD_EFORMAT, "", tag, 99);
    }
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(TD_EFORMAT, "regular", tag, 99);
    rmdir(path);
}

/* The checksum says that the bytes are what was written; the device still looks at what it adopts. */
TEST(a_device_refuses_what_it_did_not_make) {
    for (uint32_t i = 0; i < N_WEIGHTS; i++)
        for (int change = 0; change < 9; change++) {
            td_npu_packed  p = packed[i];
            td_npu_weight *w;
            switch (change) {
                case 0: p.bytes += 4096; break;
                case 1: p.bytes -= 1; break;
                case 2: p.format = (td_weight_format)17; break;
                case 3: p.layout[0] = 99; break;
                case 4: p.rank = 3; break;
                case 5: p.n = 0; break;
                case 6: p.k = (size_t)1 << 40; break;
                case 7: p.data = (const char *)p.data + 4; break;
                default:
                    p.layout[0] = 2;
                    p.layout[1] = 0;
                    break; /* heads, but none */
            }
            assert_int_equal(npu->ops->weight_adopt(npu, &p, &w, NULL), TD_EINVAL);
            assert_null(w);
        }
}

/* A lent weight whose next block wants another layout is copied first: the file's bytes stay as they are. */
TEST(a_lent_weight_is_copied_before_it_changes) {
    td_device_file *f;
    td_npu_packed   p, own;
    td_npu_weight  *w;
    td_npu_block   *block;
    FREED float    *in = calloc(8, 50 * sizeof *in), *out = calloc(8, 33 * sizeof *out);
    write_file();
    OK(td_device_file_open(path, tag, 99, pool, &f, NULL));
    assert_true(td_device_file_find(f, &ids[1], &p));
    OK(npu->ops->weight_adopt(npu, &p, &w, NULL));
    td_block_desc desc = {.kind = TD_BLOCK_LINEAR, .max_tok = 8, .linear = {.n = 33, .k = 50, .w = w, .in = in, .out = out}};
    td_error      err = {0};
    if (npu->ops->block_create(npu, &desc, &block, &err) != TD_OK) fail_msg("%s", err.text);
    npu->ops->weight_export(npu, w, &own);
    assert_ptr_not_equal(own.data, p.data);
    assert_memory_equal(p.data, packed[1].data, p.bytes);
    npu->ops->block_destroy(npu, block);
    npu->ops->weight_destroy(npu, w);
    td_device_file_close(f);
}

BEFORE_ALL {
    printf("seed %u\n", SEED);
    td_worker_place places[2] = {{.cpu = TD_CPU_ANY, .node = UINT32_MAX}, {.cpu = TD_CPU_ANY, .node = UINT32_MAX}};
    assert_non_null(mkdtemp(dir));
    OK(td_pool_create(places, 2, &pool, NULL));
    snprintf(path, sizeof path, "%s/weights.tdw", dir);
    td_npu_config c = {.act_dtype = TD_DT_F32, .host = &(td_host_npu_config){.pool = pool}};
    OK(td_npu_open("host", &c, &npu, NULL));
    npu->ops->weight_tag(npu, tag);
    for (uint32_t i = 0; i < N_WEIGHTS; i++) {
        weights[i] = new_weight(i);
        npu->ops->weight_export(npu, weights[i], &packed[i]);
        ids[i] = (td_device_weight_id){.role = i % 3, .layer = i / 3, .key = 10 + i};
    }
    assert_true(tag[0]);
}

AFTER_ALL {
    for (uint32_t i = 0; i < N_WEIGHTS; i++) npu->ops->weight_destroy(npu, weights[i]);
    npu->ops->close(npu);
    td_pool_destroy(pool);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}
