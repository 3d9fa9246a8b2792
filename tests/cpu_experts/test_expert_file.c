/* Packed expert files: round trips between shard counts and kernels, damage, failing writes, and all ways of reading. */

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "cpu_experts/expert_file.h"
#include "cpu_experts/packed_io.h"
#include "tests/cpu_experts/expert_fixture.h"
#include "tests/td_test.h"

AT_END_OF(end_experts, td_experts, td_experts_destroy)
AT_END_OF(end_pool, td_pool, td_pool_destroy)

#define SEED 2718u
enum { N_EXPERTS = 5, HIDDEN = 200, INTER = 90, N_TOK = 6, TOP_K = 2, N_LAYERS = 2 };

static char dir[] = "/tmp/test_expert_file.XXXXXX";
static char path[sizeof dir + 32];

static bool biased; /* experts of the stores that are opened */

static td_experts *open_wide_store(td_expert_format format, td_pool *pool, uint32_t hidden) {
    td_experts_config c = WITH(td_experts_config, .n_layers = N_LAYERS, .n_experts = N_EXPERTS, .hidden = hidden,
                               .inter = INTER, .top_k = TOP_K, .format = format, .groups = fixture_groups(format),
                               .bias = biased, .act_dtype = TD_DT_F32, .max_tok = N_TOK);
    td_experts       *x;
    OK(td_experts_create(&c, pool, &x, NULL));
    return x;
}

static td_experts *open_store(td_expert_format format, td_pool *pool) {
    return open_wide_store(format, pool, HIDDEN);
}

static void outputs(td_experts *x, uint32_t layer, float *y) {
    AT_END(fixture_tokens_free) fixture_tokens t = fixture_tokens_new(SEED, N_TOK, TOP_K, N_EXPERTS, HIDDEN);
    td_experts_ffn(
        x, layer,
        &(td_ffn_args){
            .n_tok = N_TOK, .top_k = TOP_K, .x = t.x, .ids = t.ids, .weights = t.weights, .n_immediate = TOP_K, .y = y});
}

/* A store of one worker with random weights in layer 1, saved to path; y is what it computes. */
static void save_one(td_expert_format format, uint64_t source_hash, float *y) {
    AT_END(end_pool) td_pool       *pool = fixture_pool(1, 1);
    AT_END(end_experts) td_experts *x = open_store(format, pool);
    td_error                        err = {0};
    assert_int_equal(td_experts_save_file(x, 1, path, source_hash, &err), TD_EINVAL); /* nothing loaded yet */
    OK(td_experts_fill_layer(x, 1, SEED, &err));
    OK(td_experts_save_file(x, 1, path, source_hash, &err));
    outputs(x, 1, y);
}

static unsigned files_in_dir(void) {
    DIR     *d = opendir(dir);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int empty_dir(void **state) {
    (void)state;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(name);
    }
    closedir(d);
    return 0;
}

TEST_WITH(a_layer_survives_the_round_trip, NULL, empty_dir) {
    for (int format = 0; format < TD_EXPERT_FORMATS; format++)
        for (uint32_t shards = 1; shards <= 3; shards++) { /* more than one: repacked */
            biased = (format + shards) % 2;
            float want[N_TOK * HIDDEN], got[N_TOK * HIDDEN];
            empty_dir(NULL);
            save_one((td_expert_format)format, 99, want);
            for (int again = 0; again < 2; again++) { /* the second time from the repacked file */
                AT_END(end_pool) td_pool       *pool = fixture_pool(shards, shards);
                AT_END(end_experts) td_experts *x = open_store((td_expert_format)format, pool);
                td_error                        err = {0};
                for (int copy = 0; copy < 2; copy++) { /* mapped, then read */
                    x->config.copy_files = copy;
                    OK(td_experts_load_file(x, 1, path, 99, &err));
                    assert_int_equal(x->files[1].base != NULL, !copy && (shards == 1 || again));
                    outputs(x, 1, got);
                    assert_memory_equal(got, want, sizeof want);
                }
                assert_int_equal(files_in_dir(), shards == 1 ? 1 : 2);
                OK(td_experts_check_file(&x->config, 1, path, 99, &err));
            }
        }
    biased = false;
}

/* A file in every kernel's layout, those of instructions that this processor lacks too, is read by the best kernel. */
TEST_WITH(other_kernels_files_are_repacked, NULL, empty_dir) {
    for (int format = 0; format < TD_EXPERT_FORMATS; format++) {
        biased = format != TD_EXPERT_INT4C;
        float                           want[N_TOK * HIDDEN], got[N_TOK * HIDDEN];
        AT_END(end_pool) td_pool       *pool = fixture_pool(1, 1);
        AT_END(end_experts) td_experts *x = open_store((td_expert_format)format, pool);
        AT_END(end_experts)
        td_experts *packer =
            open_wide_store((td_expert_format)format, pool, HIDDEN + 128); /* its mappings have room for every padding */
        OK(td_experts_fill_layer(x, 0, SEED, NULL));
        outputs(x, 0, want);
        const size_t room = packer->layout.shard[0].bytes;
        packer->config.hidden = HIDDEN;
        for (const td_kernels *const *t = td_kernels_all; *t; t++) {
            const td_gemm_kernel *other = (*t)->product[format];
            empty_dir(NULL);
            packer->kernel = other; /* to pack, not to multiply */
            OK(td_expert_layout_init(&packer->layout, &packer->config, other->tiles, 1, NULL));
            assert_true(packer->layout.shard[0].bytes <= room);
            OK(td_experts_fill_layer(packer, 0, SEED, NULL));
            OK(td_experts_save_file(packer, 0, path, 5, NULL));
            assert_int_equal(td_experts_load_file(x, 1, path, 5, NULL), TD_EFORMAT); /* it is layer 0 */
            OK(td_experts_load_file(x, 0, path, 5, NULL));
            outputs(x, 0, got);
            assert_memory_equal(got, want, sizeof want);
        }
    }
    biased = false;
}

/* What a mapped layer holds can be replaced: by weights of its own, by another file, and by nothing when that one is
 * damaged. */
TEST_WITH(a_mapped_layer_can_be_filled_anew, NULL, empty_dir) {
    float       want[N_TOK * HIDDEN], mapped[N_TOK * HIDDEN], got[N_TOK * HIDDEN];
    td_pool    *pool = fixture_pool(1, 1);
    td_experts *x = open_store(TD_EXPERT_INT4C, pool);
    struct stat st;
    OK(td_experts_fill_layer(x, 1, SEED + 1, NULL));
    outputs(x, 1, want);
    save_one(TD_EXPERT_INT4C, 0, mapped);
    OK(td_experts_load_file(x, 1, path, 0, NULL));
    assert_non_null(x->files[1].base);
    outputs(x, 1, got);
    assert_memory_equal(got, mapped, sizeof mapped);
    OK(td_experts_fill_layer(x, 1, SEED + 1, NULL));
    assert_null(x->files[1].base);
    outputs(x, 1, got);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(stat(path, &st), 0);
    int fd = open(path, O_WRONLY);
    assert_true(pwrite(fd, "\x55\xaa\x55", 3, st.st_size / 2) == 3);
    close(fd);
    assert_int_equal(td_experts_load_file(x, 1, path, 0, NULL), TD_EFORMAT);
    assert_false(x->loaded[1]);
    assert_null(x->files[1].base);
    td_experts_destroy(x);
    td_pool_destroy(pool);
}

TEST_WITH(a_stale_repacked_file_is_not_used, NULL, empty_dir) {
    float want[N_TOK * HIDDEN], got[N_TOK * HIDDEN];
    save_one(TD_EXPERT_INT4C, 0, want);
    AT_END(end_pool) td_pool *pool = fixture_pool(2, 2);
    td_experts               *x = open_store(TD_EXPERT_INT4C, pool);
    OK(td_experts_load_file(x, 1, path, 0, NULL)); /* leaves a repacked file */
    OK(td_experts_fill_layer(x, 0, SEED + 1, NULL));
    AT_END(end_pool) td_pool       *one = fixture_pool(1, 1); /* the original changes */
    AT_END(end_experts) td_experts *y = open_store(TD_EXPERT_INT4C, one);
    OK(td_experts_fill_layer(y, 1, SEED + 5, NULL));
    OK(td_experts_save_file(y, 1, path, 0, NULL));
    outputs(y, 1, want);
    OK(td_experts_load_file(x, 1, path, 0, NULL));
    outputs(x, 1, got);
    assert_memory_equal(got, want, sizeof want);
    td_experts_destroy(x);
}

static void overwrite(off_t at, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY);
    assert_true(pwrite(fd, bytes, n, at) == (ssize_t)n);
    close(fd);
}

static void expect_refusal(td_experts *x, uint64_t hash, bool check_sees_it, td_status status, const char *words) {
    td_error err = {0};
    assert_int_equal(td_experts_load_file(x, 1, path, hash, &err), status);
    if (!strstr(err.text, words) || !strstr(err.text, path)) {
        print_error("%s\n", err.text);
        fail();
    }
    assert_int_equal(td_experts_check_file(&x->config, 1, path, hash, NULL), check_sees_it ? status : TD_OK);
}

TEST_WITH(damage_is_refused_in_one_sentence, NULL, empty_dir) {
    float       y[N_TOK * HIDDEN];
    td_pool    *pools[3] = {fixture_pool(1, 1), fixture_pool(2, 2), fixture_pool(1, 1)}; /* mapping, repacking, reading */
    struct stat st;
    for (int p = 0; p < 3; p++) {
        td_experts *x = open_store(TD_EXPERT_INT4C, pools[p]), *b = open_store(TD_EXPERT_BF16, pools[p]);
        x->config.copy_files = p == 2;
        unlink(path);
        expect_refusal(x, 0, true, TD_ENOTFOUND, "cannot open");
        save_one(TD_EXPERT_INT4C, 7, y);
        expect_refusal(x, 8, true, TD_EFORMAT, "another checkpoint");
        expect_refusal(b, 7, true, TD_EFORMAT, "\"int4\" where \"none\"");
        x->config.bias = true;
        expect_refusal(x, 7, true, TD_EFORMAT, "without biases");
        x->config.bias = false;
        biased = true;
        save_one(TD_EXPERT_INT4C, 7, y);
        biased = false;
        expect_refusal(x, 7, true, TD_EFORMAT, "with biases");
        save_one(TD_EXPERT_INT4C, 7, y);
        stat(path, &st);
        overwrite(st.st_size / 2, "\x55\xaa\x55", 3);
        expect_refusal(x, 7, false, TD_EFORMAT, "checksum of shard");
        assert_int_equal(truncate(path, st.st_size - 1), 0);
        expect_refusal(x, 7, true, TD_EFORMAT, "truncated");
        assert_int_equal(truncate(path, 1000), 0);
        expect_refusal(x, 7, true, TD_EFORMAT, "truncated within its header");
        assert_int_equal(truncate(path, 3), 0);
        expect_refusal(x, 7, true, TD_EFORMAT, "not a packed expert file");
        for (size_t at = 8; at < sizeof(td_packed_header); at += 13) { /* any byte of the header */
            save_one(TD_EXPERT_INT4C, 7, y);
            char byte;
            int  fd = open(path, O_RDONLY);
            assert_true(pread(fd, &byte, 1, (off_t)at) == 1);
            close(fd);
            byte ^= 0x10;
            overwrite((off_t)at, &byte, 1);
            td_error err = {0};
            assert_int_not_equal(td_experts_load_file(x, 1, path, 7, &err), TD_OK);
            assert_non_null(strstr(err.text, path));
        }
        td_experts_config other = x->config;
        save_one(TD_EXPERT_INT4C, 7, y);
        other.inter = INTER + 1;
        td_error err = {0};
        assert_int_equal(td_experts_check_file(&other, 1, path, 7, &err), TD_EFORMAT);
        assert_non_null(strstr(err.text, "intermediate size 90"));
        td_experts_destroy(x);
        td_experts_destroy(b);
        td_pool_destroy(pools[p]);
    }
}

TEST_WITH(words_of_no_format_are_refused, NULL, empty_dir) {
    enum { ZEROS = 1 << 24 };
    static const uint32_t           WORDS[] = {TD_EXPERT_FORMATS,
                                               TD_EXPERT_INT4C | 32 << 8,
                                               TD_EXPERT_INT4G | 48 << 8 | TD_DT_BF16 << 16,
                                               TD_EXPERT_INT4G | 32 << 8 | TD_DT_F8_E8M0 << 16,
                                               TD_EXPERT_INT4G | 32 << 8 | TD_DT_BF16 << 16 | 2 * ZEROS,
                                               TD_EXPERT_FP4G | 16 << 8 | TD_DT_F8_E8M0 << 16,
                                               TD_EXPERT_FP4G | 32 << 8 | TD_DT_F8_E4M3 << 16,
                                               TD_EXPERT_FP4G | 32 << 8 | TD_DT_F8_E8M0 << 16 | ZEROS};
    float                           y[N_TOK * HIDDEN];
    AT_END(end_pool) td_pool       *pool = fixture_pool(1, 1);
    AT_END(end_experts) td_experts *x = open_store(TD_EXPERT_FP4G, pool);
    td_expert_numbers               n;
    save_one(TD_EXPERT_FP4G, 7, y);
    OK(td_experts_file_format(path, &n, NULL));
    assert_string_equal(n.name, "nvfp4");
    assert_true(n.format == TD_EXPERT_FP4G && n.groups.size == 16 && n.groups.scale_dtype == TD_DT_F8_E4M3 &&
                !n.groups.zero_points);
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        _Alignas(8) char  page[4096];
        td_packed_header *h = (td_packed_header *)page;
        td_error          err = {0};
        int               fd = open(path, O_RDONLY);
        assert_true(pread(fd, page, sizeof page, 0) == sizeof page);
        close(fd);
        h->format = WORDS[i];
        h->header_hash = 0;
        h->header_hash = XXH3_64bits(page, sizeof page);
        overwrite(0, page, sizeof page);
        assert_int_equal(td_experts_file_format(path, &n, &err), TD_ENOTSUP);
        expect_refusal(x, 7, true, TD_ENOTSUP, "unknown format");
    }
}

static bool takes_memory(const td_experts *x, uint32_t layer, uint32_t expert) {
    const size_t  page = td_page_bytes();
    unsigned char there = 0, parts[16]; /* an emulator with pages of 64 KiB writes a byte for each 4 KiB */
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        const size_t bytes = x->layout.shard[s].expert.bytes;
        char        *from = (char *)expert_shard_data(x, layer, s) + expert * bytes;
        char        *first = (char *)td_round_up((uintptr_t)from, page);
        for (; first + page <= from + bytes && !there; first += page) {
            assert_int_equal(mincore(first, page, parts), 0);
            there = parts[0] & 1;
        }
    }
    return there;
}

/* Not if pages are longer than an expert of this test, as 64 KiB are. */
static bool has_whole_page(const td_experts *x, uint32_t layer, uint32_t expert) {
    const uintptr_t page = td_page_bytes();
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        const size_t    bytes = x->layout.shard[s].expert.bytes;
        const uintptr_t from = (uintptr_t)expert_shard_data(x, layer, s) + expert * bytes;
        if (td_round_up(from, page) + page <= from + bytes) return true;
    }
    return false;
}

static td_experts *open_droppable(td_expert_format format, td_pool *pool) {
    td_experts *x = open_store(format, pool);
    x->config.droppable = true;
    OK(td_experts_load_file(x, 1, path, 99, NULL));
    assert_null(x->files[1].base);
    return x;
}

/* From a file that is loaded as it is, and from one that is repacked; the file's name may be gone. */
TEST_WITH(dropped_experts_come_back_as_they_were, NULL, empty_dir) {
    for (int format = 0; format < TD_EXPERT_FORMATS; format++)
        for (uint32_t shards = 1; shards <= 2; shards++) {
            float want[N_TOK * HIDDEN], got[N_TOK * HIDDEN];
            biased = format % 2;
            empty_dir(NULL);
            save_one((td_expert_format)format, 99, want);
            AT_END(end_pool) td_pool       *pool = fixture_pool(shards, shards);
            AT_END(end_experts) td_experts *x = open_droppable((td_expert_format)format, pool);
            td_packed_expert                packed;
            OK(td_experts_packed(&x->config, shards, &packed, NULL));
            assert_in_range(td_packed_drop_bytes(&packed), td_page_bytes() > 4096 ? 0 : 1, packed.bytes);
            empty_dir(NULL);
            for (int again = 0; again < 2; again++) {
                for (uint32_t e = 0; e < N_EXPERTS; e += 2) {
                    assert_int_equal(takes_memory(x, 1, e), has_whole_page(x, 1, e));
                    td_experts_drop(x, 1, e);
                    td_experts_drop(x, 1, e); /* once is enough */
                    assert_false(takes_memory(x, 1, e));
                    if (e + 1 < N_EXPERTS) assert_int_equal(takes_memory(x, 1, e + 1), has_whole_page(x, 1, e + 1));
                }
                for (uint32_t e = 0; e < N_EXPERTS; e++) OK(td_experts_read_again(x, 1, e, NULL));
                outputs(x, 1, got);
                assert_memory_equal(got, want, sizeof want);
            }
            assert_int_equal(td_experts_save_file(x, 1, path, 99, NULL), TD_EINVAL); /* some may not be there */
        }
    biased = false;
}

TEST_WITH(an_expert_whose_file_has_changed_stays_dropped, NULL, empty_dir) {
    float                     y[N_TOK * HIDDEN];
    td_error                  err = {0};
    struct stat               st;
    AT_END(end_pool) td_pool *pool = fixture_pool(1, 1);
    save_one(TD_EXPERT_INT4C, 99, y);
    AT_END(end_experts) td_experts *x = open_droppable(TD_EXPERT_INT4C, pool);
    const size_t                    bytes = x->layout.shard[0].expert.bytes;
    for (uint32_t e = 1; e < N_EXPERTS; e++) td_experts_drop(x, 1, e);
    overwrite((off_t)(TD_FILE_BLOCK + 2 * bytes - 1), "\x55", 1);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, (off_t)(TD_FILE_BLOCK + 4 * bytes - 1)), 0);
    assert_int_equal(td_experts_read_again(x, 1, 1, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "was changed: expert 1 is not what it was"));
    OK(td_experts_read_again(x, 1, 2, &err));
    assert_int_equal(td_experts_read_again(x, 1, 3, &err), TD_EIO);
    assert_non_null(strstr(err.text, "ends too early"));
    assert_false(takes_memory(x, 1, 1) || takes_memory(x, 1, 3));
    assert_int_equal(takes_memory(x, 1, 2), has_whole_page(x, 1, 2));
}

/* What was repacked must lie in a file too: here a folder has its name. */
TEST_WITH(experts_without_a_file_of_their_layout_cannot_be_dropped, NULL, empty_dir) {
    float                     y[N_TOK * HIDDEN];
    char                      sibling[PATH_MAX];
    td_error                  err = {0};
    AT_END(end_pool) td_pool *pool = fixture_pool(2, 2);
    save_one(TD_EXPERT_INT4C, 99, y);
    AT_END(end_experts) td_experts *x = open_store(TD_EXPERT_INT4C, pool);
    x->config.droppable = true;
    snprintf(sibling, sizeof sibling, "%s.%s-2", path, x->kernel->tiles->name);
    assert_int_equal(mkdir(sibling, 0700), 0);
    assert_int_equal(td_experts_load_file(x, 1, path, 99, &err), TD_EIO);
    assert_non_null(strstr(err.text, "experts that leave memory need a file packed for this machine: cannot write"));
    assert_int_equal(rmdir(sibling), 0);
}

TEST_WITH(a_write_that_does_not_fit_is_an_error_and_leaves_nothing, NULL, empty_dir) {
    AT_END(end_pool) td_pool       *pool = fixture_pool(1, 1);
    AT_END(end_experts) td_experts *x = open_store(TD_EXPERT_INT4C, pool);
    td_error                        err = {0};
    struct rlimit                   old, limit;
    empty_dir(NULL);
    OK(td_experts_fill_layer(x, 1, SEED, NULL));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 10000; /* a short write within the first shard, then EFBIG */
    setrlimit(RLIMIT_FSIZE, &limit);
    td_status status = td_experts_save_file(x, 1, path, 0, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, TD_EIO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(files_in_dir(), 0);
    assert_int_equal(td_experts_save_file(x, 1, "/nonexistent/folder/file.tdx", 0, &err), TD_EIO);
    assert_int_equal(td_packed_write("/dev/full/x", NULL, 0, &err), TD_EIO);
}

TEST_WITH(a_killed_write_leaves_nothing, NULL, empty_dir) {
    static const char data[1 << 20];
    int               fd = open(dir, O_TMPFILE | O_WRONLY, 0644), status;
    if (fd < 0) skip(); /* every file of this file system has a name */
    close(fd);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 10000, .rlim_max = 10000});
        signal(SIGXFSZ, SIG_DFL); /* it comes in the middle of the write */
        _exit(td_packed_write(path, &(packed_part){data, sizeof data}, 1, NULL) == TD_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    assert_int_equal(files_in_dir(), 0);
}

TEST_WITH(every_way_of_reading_gives_the_bytes, NULL, empty_dir) {
    size_t      page = 4096, bytes = 37 * ((size_t)1 << 20) + 3 * page;
    FREED char *data = aligned_alloc(page, bytes), *got = aligned_alloc(page, bytes);
    td_error    err = {0};
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v = i * 0x9e3779b97f4a7c15u;
        memcpy(data + i, &v, 8);
    }
    OK(td_packed_write(path, &(packed_part){data, bytes}, 1, &err));
    for (int way = 0; way < 4; way++) {
        packed_read_options o = {.no_uring = way & 1, .no_direct = way & 2};
        packed_span spans[3] = {{0, 5 * page, got}, {5 * page, 0, got}, {5 * page, bytes - 5 * page, got + 5 * page}};
        memset(got, 0, bytes);
        OK(td_packed_read(path, spans, 3, &o, &err));
        assert_memory_equal(got, data, bytes);
        packed_span beyond = {page, bytes, got};
        assert_int_equal(td_packed_read(path, &beyond, 1, &o, &err), TD_EIO);
        assert_non_null(strstr(err.text, "ends too early"));
    }
    packed_span one = {0, page, got};
    assert_int_equal(td_packed_read(dir, &one, 1, NULL, &err), TD_EIO); /* a folder */
}

int main(void) {
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/experts-00001.tdx", dir);
    printf("seed %u\n", SEED);
    int rc = tests_run();
    rmdir(dir);
    return rc;
}
