/* A folder that `tandem quantize` wrote, from disk to memory, and to the first token: from the page cache, and from the
 * disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/bench_time.h"
#include "core/error.h"
#include "core/memory/mem.h"
#include "cpu_experts/packed_io.h"
#include "engine/model_folder.h"
#include "model/experts_load.h"
#include "model/placed_model.h"

#define PROMPT_TOKENS 8
#define BUFFER_BYTES ((size_t)256 << 20)
#define DISK_BYTES ((size_t)2 << 30)

typedef struct {
    td_bench *b;
    bool      copy; /* read into memory instead of mapping */
    bool      first_token;
    uint64_t  bytes; /* of the weights, after a run */
} load;

static double wall_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static td_status step(td_model *m, td_error *err) {
    uint32_t     token[PROMPT_TOKENS], page = 0, row = PROMPT_TOKENS - 1;
    const float *logits;
    td_step_rows rows;
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++) token[i] = (i * 104729u + 7u) % td_model_get_config(m)->vocab;
    TD_TRY(td_step_rows_open(&rows, PROMPT_TOKENS, 1, TD_KV_PAGE - 1, err));
    td_step_rows_add(&rows, token, 0, PROMPT_TOKENS,
                     &(td_step_sequence){.pages = &page, .n_pages = 1, .state = td_own_state(0, 0)});
    td_status st = td_model_forward(m, &rows, (td_out_rows){.row = &row, .n = 1}, &logits);
    td_step_rows_close(&rows);
    return st == TD_OK ? st : td_fail(err, st, "a step of the model failed: %s", td_model_why(m, st));
}

static td_status run(void *ctx, td_error *err) {
    load           *l = ctx;
    td_placed_model m;
    td_model_spec   spec = td_model_spec_of(l->b->o->model_path, PROMPT_TOKENS);
    td_model_room   room = {.expert_pool = l->b->pool};
    spec.override_json = l->b->o->override_json;
    spec.w8a8 = true;
    spec.experts_as_stored = true;
    spec.experts.copy_files = l->copy;
    spec.n_pages = 1;
    TD_TRY(td_placed_model_open(&spec, &room, NULL, &m, err));
    l->bytes = m.memory.npu_weight_bytes + m.memory.expert_weight_bytes;
    td_status st = td_bench_check_memory(l->b, "the model", td_model_memory_bytes(&m.memory, 1), err);
    if (st == TD_OK) st = td_model_load(m.model, 1, err);
    if (st == TD_OK && l->first_token) st = step(m.model, err);
    td_placed_model_close(&m);
    return st;
}

/* ---- from the page cache ---------------------------------------------------------------------- */

static td_status time_warm(td_bench *b, const char *shape, bool first_token, td_error *err) {
    load          l = {.b = b, .first_token = first_token};
    td_bench_case c = {.kernel = "map, verify", .m = first_token ? PROMPT_TOKENS : 0, .calls = 1, .run = run, .ctx = &l};
    if (!td_bench_wanted(b, shape)) return TD_OK;
    snprintf(c.shape, sizeof c.shape, "%s", shape);
    TD_TRY(run(&l, err)); /* the first start on a folder writes the device's weights */
    c.bytes = (double)l.bytes;
    return td_bench_time(b, &c, err);
}

/* ---- from the disk ----------------------------------------------------------------------------- */

/* Ask the system to forget the folder's files; what another process maps, or what is not written yet, it keeps. */
static td_status drop_cache(const char *folder, td_error *err) {
    DIR *d = opendir(folder);
    if (!d) return td_fail(err, TD_EIO, "%s: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    closedir(d);
    return TD_OK;
}

/* Read up to `most` bytes of a packed file with O_DIRECT, several requests in flight. */
static td_status read_direct(const char *path, void *p, size_t most, size_t *bytes, td_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return td_fail(err, TD_ENOTFOUND, "%s: %s", path, strerror(errno));
    *bytes = ((size_t)st.st_size < most ? (size_t)st.st_size : most) / TD_FILE_BLOCK * TD_FILE_BLOCK;
    return td_packed_read(path, &(packed_span){.bytes = *bytes, .dst = p}, 1, NULL, err);
}

/* Bytes per second over the first packed files: enough of them to outlast what a rented disk lends for a moment. */
static td_status disk_speed(const char *folder, double *out, td_error *err) {
    void    *p;
    size_t   all = 0;
    uint32_t n = 0;
    TD_TRY(td_mem_map(BUFFER_BYTES, TD_NODE_ANY, &p, err));
    memset(p, 1, BUFFER_BYTES);
    td_status st = TD_OK;
    double    begin = wall_s();
    for (size_t bytes; st == TD_OK && all < DISK_BYTES; n++, all += bytes) {
        char path[PATH_MAX];
        bytes = 0;
        td_expert_file_path(path, sizeof path, folder, n);
        if (n && access(path, F_OK) != 0) break; /* a small model */
        st = read_direct(path, p, BUFFER_BYTES, &bytes, err);
    }
    *out = (double)all / (wall_s() - begin);
    td_mem_unmap(p, BUFFER_BYTES);
    return st;
}

static td_status time_cold(td_bench *b, const char *shape, bool copy, td_error *err) {
    double   time[TD_BENCH_ROUNDS_MAX], fraction[TD_BENCH_ROUNDS_MAX], disk;
    uint32_t rounds = b->o->rounds;
    load     l = {.b = b, .copy = copy};
    if (!td_bench_wanted(b, shape)) return TD_OK;
    for (uint32_t r = 0; r < rounds; r++) {
        TD_TRY(drop_cache(b->o->model_path, err));
        TD_TRY(disk_speed(b->o->model_path, &disk, err));
        double begin = wall_s();
        TD_TRY(run(&l, err));
        time[r] = wall_s() - begin;
        fraction[r] = (double)l.bytes / disk / time[r];
    }
    double s = bench_median(time, rounds);
    td_bench_print_disk(b, shape, copy ? "O_DIRECT, verify" : "map, verify", s, 1e-9 * (double)l.bytes / s,
                        bench_median(fraction, rounds));
    return TD_OK;
}

/* Without packed experts, a load would be a quantisation. */
static td_status check_folder(const char *folder, td_error *err) {
    char path[PATH_MAX];
    TD_TRY(td_model_folder_check(folder, true, err));
    td_expert_file_path(path, sizeof path, folder, 0);
    if (access(path, R_OK) == 0) return TD_OK;
    return td_fail(err, TD_ENOTFOUND, "load wants a folder that tandem quantize has written: %s: %s", path, strerror(errno));
}

td_status td_bench_load(td_bench *b, td_error *err) {
    TD_TRY(check_folder(b->o->model_path, err));
    TD_TRY(time_warm(b, "cached, to memory", false, err));
    TD_TRY(time_warm(b, "cached, to the first token", true, err));
    TD_TRY(time_cold(b, "from disk, mapped", false, err));
    return time_cold(b, "from disk, read", true, err);
}
