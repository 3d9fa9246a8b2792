/* Writing past the page cache gives the same bytes as pwrite, wherever they come from and go to, and changes no others. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/files/file_write.h"
#include "core/math/rng.h"
#include "core/memory/mem.h"
#include "tests/td_test.h"

#define FILE_BYTES ((size_t)40 << 20)
#define SEED 7

static char  g_path[] = "td_file_write_XXXXXX"; /* where the test runs: the build folder, on a disk */
static int   g_fd;
static char *g_data, *g_want, *g_have; /* page-aligned; want: what the file should hold */
static void *g_bounce;

BEFORE_ALL {
    g_fd = mkstemp(g_path);
    g_data = aligned_alloc(TD_FILE_BLOCK, FILE_BYTES + TD_FILE_BLOCK);
    g_want = calloc(1, FILE_BYTES);
    g_have = malloc(FILE_BYTES);
    g_bounce = aligned_alloc(TD_FILE_BLOCK, TD_WRITE_BYTES);
    assert_true(g_fd >= 0 && g_data && g_want && g_have && g_bounce && !ftruncate(g_fd, (off_t)FILE_BYTES));
    for (size_t i = 0; i < FILE_BYTES + TD_FILE_BLOCK; i += 8) {
        uint64_t bits = td_rng_u64(SEED, i, 0);
        memcpy(g_data + i, &bits, sizeof bits);
    }
}

AFTER_ALL {
    free(g_data);
    free(g_want);
    free(g_have);
    free(g_bounce);
    assert_int_equal(close(g_fd) | unlink(g_path), 0);
}

static void write_piece(size_t from, size_t bytes, size_t to, void *bounce) {
    memcpy(g_want + to, g_data + from, bytes);
    assert_int_equal(td_file_write_past_cache(g_fd, g_data + from, bytes, to, bounce), 0);
}

static void compare(void) {
    assert_int_equal(pread(g_fd, g_have, FILE_BYTES, 0), FILE_BYTES);
    assert_memory_equal(g_have, g_want, FILE_BYTES);
    assert_int_equal(lseek(g_fd, 0, SEEK_END), FILE_BYTES);
}

TEST(pieces_of_all_kinds) {
    printf("seed %d\n", SEED);
    write_piece(1, FILE_BYTES - 77, 77, g_bounce); /* in several writes */
    compare();
    write_piece(TD_FILE_BLOCK, FILE_BYTES / 2, 2 * TD_FILE_BLOCK, NULL); /* as it lies */
    compare();
    for (uint64_t i = 0; i < 300; i++) { /* neighbours share pages, some of which are in the cache */
        size_t bytes = td_rng_u64(SEED, i, 1) % (5 * TD_FILE_BLOCK), from = td_rng_u64(SEED, i, 2) % TD_FILE_BLOCK,
               to = td_rng_u64(SEED, i, 3) % (40 * TD_FILE_BLOCK);
        write_piece(i % 3 ? from : to % TD_FILE_BLOCK, bytes, to, i % 2 ? g_bounce : NULL);
    }
    compare();
}

TEST(errors_have_their_number) {
    int fd = open(g_path, O_RDONLY);
    assert_int_equal(td_file_write_past_cache(fd, g_data, TD_FILE_BLOCK, 0, NULL), EBADF);
    assert_int_equal(td_file_write_past_cache(fd, g_data, 10, 5, NULL), EBADF);
    close(fd);
    fd = open("/dev/full", O_WRONLY);
    assert_int_equal(td_file_write_past_cache(fd, g_data, 3 * TD_FILE_BLOCK, 5, g_bounce), ENOSPC);
    close(fd);
}
