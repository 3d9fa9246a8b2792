/* The demo model quantised while loading, from the folder of td_quantize, and with only its packed experts: the same logits,
 * bit by bit. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder_files.h"
#include "model/checkpoint/safetensors.h"
#include "model_run.h"
#include "tandem_tools.h"
#include "tests/td_test.h"

#define MODEL "models/tale-v3-14m"
#define N_TOK 24

static char OUT[] = "/tmp/td_quantized_XXXXXX";

static float *logits_of(const char *path, const char *cpu_weight_path, uint32_t subpools, uint32_t *vocab) {
    AT_END(model_run_close) model_run r;
    uint32_t                          ids[N_TOK];
    model_run_open(&r, &WITH(model_run_options, .path = path, .cpu_weight_path = cpu_weight_path, .w8a8 = true,
                             .experts = TD_EXPERT_INT4C, .subpools = subpools, .n_seq = 1, .max_len = 128));
    *vocab = td_model_get_config(r.model)->vocab;
    float *logits = malloc((size_t)N_TOK * *vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < N_TOK; i++) ids[i] = 2 + i * 151 % (*vocab - 2);
    model_run_forward(&r, &(model_piece){.n = N_TOK, .ids = ids}, 1);
    model_run_logits(&r, N_TOK, logits);
    return logits;
}

TEST(folders_give_the_same_logits) {
    td_error            err = {0};
    uint32_t            vocab;
    td_quantize_options o =
        WITH(td_quantize_options, .model_path = TD_SOURCE_DIR "/" MODEL, .output_path = OUT, .quantization = "w8a8_int8",
             .expert_quantization = "int4", .threads = 2, .subpool_count = 1);
    if (td_quantize(&o, &err) != TD_OK) fail_msg("%s", err.text);
    FREED float *want = logits_of(MODEL, NULL, 1, &vocab);
    const struct {
        const char *path, *experts;
        uint32_t    subpools;
    } WAYS[] = {{OUT, NULL, 1}, {MODEL, OUT, 1}, {OUT, OUT, 2}};
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        FREED float *have = logits_of(WAYS[i].path, WAYS[i].experts, WAYS[i].subpools, &vocab);
        assert_memory_equal(have, want, (size_t)N_TOK * vocab * sizeof *have);
    }
}

/* The path of the device's weights that a start kept in the folder. */
static void find_kept(char path[512]) {
    DIR *d = opendir(OUT);
    path[0] = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".tdw")) snprintf(path, 512, "%s/%s", OUT, e->d_name);
    closedir(d);
    assert_true(path[0]);
}

/* The device's weights are kept beside the packed experts by the first start: later ones map them, unless the file is
   damaged, partial or of other weights, and then write it anew. */
TEST(kept_device_weights_give_the_same_logits) {
    char         path[512];
    uint32_t     vocab;
    FREED float *want = logits_of(MODEL, NULL, 1, &vocab);
    find_kept(path); /* of the test before */
    enum { AS_IT_IS, DAMAGED, TRUNCATED, GONE, N_CASES };
    for (int c = 0; c < N_CASES; c++) {
        struct stat before, after;
        assert_int_equal(stat(path, &before), 0);
        if (c == DAMAGED) {
            int fd = open(path, O_WRONLY);
            assert_true(pwrite(fd, "\x55\xaa", 2, before.st_size / 2) == 2);
            close(fd);
        }
        if (c == TRUNCATED) assert_int_equal(truncate(path, before.st_size / 2), 0);
        if (c == GONE) assert_int_equal(unlink(path), 0);
        FREED float *have = logits_of(OUT, NULL, 1, &vocab);
        assert_memory_equal(have, want, (size_t)N_TOK * vocab * sizeof *have);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(after.st_size, before.st_size);
        if (c == AS_IT_IS) assert_int_equal(after.st_ino, before.st_ino); /* not written again */
    }
}

/* Load the quantised folder. @return why it was refused, or "". */
static const char *refusal(void) {
    static td_error err;
    td_pool        *pool;
    td_worker_place place = {.cpu = TD_CPU_ANY};
    td_placed_model placed;
    td_model_spec   spec = td_model_spec_of(OUT, 64);
    OK(td_pool_create(&place, 1, &pool, &err));
    spec.w8a8 = spec.experts_as_stored = true;
    spec.n_pages = 1;
    if (td_placed_model_open(&spec, &(td_model_room){.expert_pool = pool}, NULL, &placed, &err) != TD_OK)
        fail_msg("%s", err.text);
    if (td_model_load(placed.model, 1, &err) == TD_OK) err.text[0] = 0;
    td_placed_model_close(&placed);
    td_pool_destroy(pool);
    return err.text;
}

/* The path of the last file of weights in the folder. */
static void find_weights(char path[512]) {
    char           last[256] = "";
    DIR           *d = opendir(OUT);
    struct dirent *e;
    while ((e = readdir(d)))
        if (!strncmp(e->d_name, "model-0", 7) && strcmp(e->d_name, last) > 0) snprintf(last, sizeof last, "%s", e->d_name);
    closedir(d);
    snprintf(path, 512, "%s/%s", OUT, last);
}

/* The folder's index with checksums, or as an earlier version wrote it. */
static void set_checksums(bool has) {
    char   index[512];
    size_t len;
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", OUT);
    FREED char *text = read_file(index, &len);
    char       *key = strstr(text, has ? "others_checksums" : "tandem_checksums");
    assert_non_null(key);
    memcpy(key, has ? "tandem" : "others", 6);
    write_file(index, text, len);
}

/* Zeros in a file of weights are refused, though the device's weights that were made of it lie beside it. The index of an
   earlier version has no checksums. */
TEST(damaged_weights_are_refused) {
    static char was[65536], zeros[sizeof was];
    char        path[512], expected[700];
    struct stat st;
    find_weights(path);
    assert_string_equal(refusal(), "");
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0 && (size_t)st.st_size > 2 * sizeof was);
    off_t at = st.st_size / 2;
    assert_true(pread(fd, was, sizeof was, at) == (ssize_t)sizeof was);
    assert_true(pwrite(fd, zeros, sizeof zeros, at) == (ssize_t)sizeof zeros);
    snprintf(
        expected, sizeof expected,
        "%s is corrupt: its checksum does not match; copy it again, or remove it and run the same 'tandem quantize' again",
        path);
    for (int i = 0; i < 2; i++) assert_string_equal(refusal(), expected);
    assert_true(pwrite(fd, was, sizeof was, at) == (ssize_t)sizeof was);
    close(fd);

    set_checksums(false);
    assert_string_equal(refusal(), "");
    set_checksums(true);
    assert_string_equal(refusal(), "");
}

/* Puts a file of the same size in the place of the first file of weights, with the halves of the last norm
   exchanged. */
static void replace_weights(void) {
    char            path[512], other[520];
    size_t          size;
    td_error        err = {0};
    td_safetensors *f;
    size_t          i = 0;
    snprintf(path, sizeof path, "%s/model-00001-of-00008.safetensors", OUT);
    snprintf(other, sizeof other, "%s.new", path);
    FREED char *file = read_file(path, &size);
    if (td_safetensors_parse(file, size, path, &f, &err) != TD_OK) fail_msg("%s", err.text);
    while (strcmp(td_safetensors_at(f, i)->name, "model.norm.weight") != 0) i++;
    const td_safetensors_entry *norm = td_safetensors_at(f, i);
    size_t                      half = norm->bytes / 2;
    FREED char                 *first = malloc(half);
    char                       *data = file + ((const char *)norm->data - file);
    memcpy(first, data, half);
    memmove(data, data + half, half);
    memcpy(data + half, first, half);
    td_safetensors_close(f);
    write_file(other, file, size);
    assert_int_equal(rename(other, path), 0);
}

/* Without checksums, weights that were replaced are told by their file's size, time and inode: the device's weights that
   were made of the old ones are not served. */
TEST(replaced_weights_are_served) {
    uint32_t vocab;
    set_checksums(false);
    FREED float *old = logits_of(OUT, NULL, 1, &vocab);
    size_t       bytes = (size_t)N_TOK * vocab * sizeof *old;
    char         kept[512];
    find_kept(kept);
    replace_weights();
    FREED float *have = logits_of(OUT, NULL, 1, &vocab);
    assert_int_equal(unlink(kept), 0);
    FREED float *want = logits_of(OUT, NULL, 1, &vocab);
    assert_memory_equal(have, want, bytes);
    assert_memory_not_equal(have, old, bytes);
    replace_weights(); /* the old ones again */
    FREED float *again = logits_of(OUT, NULL, 1, &vocab);
    assert_memory_equal(again, old, bytes);
    set_checksums(true);
}

IN_FOLDER(OUT)
