/* The sources in the program, compiled by NVIDIA's own NVRTC as a start on a card does it: for one generation, and what is
 * kept is what was compiled. scripts/cuda_nvrtc.sh fetches NVRTC; skipped where it cannot. */
#include <unistd.h>

#include "npu/cuda/cuda_image.h"
#include "tests/td_test.h"

#define SKIPPED 77
#define DRIVER 12080

static char folder[] = "/tmp/td_cuda_nvrtc_XXXXXX";

/** The folder of libnvrtc.so.12, for TD_NVRTC. */
static bool fetch(void) {
    char  path[1024] = "";
    FILE *f = popen(TD_SOURCE_DIR "/scripts/cuda_nvrtc.sh", "r");
    bool  read = f && fgets(path, sizeof path, f);
    char *slash = strrchr(path, '/');
    if (!f || pclose(f) != 0 || !read || !slash) return false;
    *slash = 0;
    return setenv("TD_NVRTC", path, 1) == 0;
}

static bool has(const td_cuda_image *image, const char *name) {
    return memmem(image->data, image->bytes, name, strlen(name)) != NULL;
}

TEST(compiled_and_kept) {
    AT_END(td_cuda_image_free) td_cuda_image first, again;
    td_error                                 err = {0};
    if (td_cuda_image_get(&first, 86, DRIVER, &err) != TD_OK) fail_msg("%s", err.text);
    assert_memory_equal(first.data, "\177ELF", 4);
    assert_true(has(&first, "td_embed") && has(&first, "td_gqa_decode_128") && has(&first, "td_top_parts"));
    if (td_cuda_image_get(&again, 86, DRIVER, &err) != TD_OK) fail_msg("%s", err.text);
    assert_int_equal(again.bytes, first.bytes);
    assert_memory_equal(again.data, first.data, first.bytes);
    assert_int_equal(remove(again.path), 0);
}

int main(void) {
    if (!fetch()) {
        printf("skipped: scripts/cuda_nvrtc.sh cannot fetch NVRTC\n");
        return SKIPPED;
    }
    if (!mkdtemp(folder) || setenv("TD_CUDA_CACHE", folder, 1) != 0) return 1;
    int failed = tests_run();
    return rmdir(folder) != 0 || failed;
}
