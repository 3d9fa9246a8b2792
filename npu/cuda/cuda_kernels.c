#include "npu/cuda/cuda_kernels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "npu/cuda/cuda_image.h"

#define IMAGE_BYTES_MAX ((size_t)256 << 20)
#define IMAGE_VARIABLE "TD_CUDA_KERNELS"

const td_cuda_kernel_facts TD_CUDA_KERNEL_FACTS[TD_CUDA_KERNEL_COUNT] = {
#define FACTS(id, name, args, threads) [TD_CUDA_KERNEL_##id] = {#name, args, threads},
    TD_CUDA_KERNELS(FACTS)
#undef FACTS
};

const bool TD_CUDA_KERNEL_IS_EARLY[TD_CUDA_KERNEL_COUNT] = {
#define EARLY(id) [TD_CUDA_KERNEL_##id] = true,
    TD_CUDA_EARLY(EARLY)
#undef EARLY
};

/* A file's bytes and a 0 behind them: an image of text ends there. Its size may change while it is read. */
static td_status read_image(const char *path, char **out, td_error *err) {
    struct stat facts;
    *out = NULL;
    FILE *f = fopen(path, "rb");
    if (!f) return td_fail(err, TD_ENOTFOUND, IMAGE_VARIABLE ": %s: %s", path, strerror(errno));
    td_status st = TD_OK;
    if (fstat(fileno(f), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size < 1 ||
        (size_t)facts.st_size > IMAGE_BYTES_MAX)
        st = td_fail(err, TD_ENOTFOUND, IMAGE_VARIABLE ": %s is no file of 1 byte to %zu MiB", path, IMAGE_BYTES_MAX >> 20);
    size_t bytes = st == TD_OK ? (size_t)facts.st_size : 0;
    char  *image = st == TD_OK ? malloc(bytes + 1) : NULL;
    if (st == TD_OK && !image) st = td_fail(err, TD_ENOMEM, "out of memory for the kernels of %s", path);
    if (st == TD_OK && fread(image, 1, bytes, f) != bytes)
        st = td_fail(err, TD_ENOTFOUND, IMAGE_VARIABLE ": %s cannot be read to its end", path);
    fclose(f);
    if (st != TD_OK) {
        free(image);
        return st;
    }
    image[bytes] = 0;
    *out = image;
    return TD_OK;
}

/* A file that was compiled ahead of time, where one is named; else the program's own sources. */
static td_status load(const td_cuda *cu, td_cu_device card, td_cuda_kernels *out, td_error *err) {
    const char *path = getenv(IMAGE_VARIABLE);
    char       *image, what[512];
    if (!path || !*path) return td_cuda_module_load(cu, card, &out->module, err);
    TD_TRY(read_image(path, &image, err));
    td_cu_status said = cu->cuModuleLoadData(&out->module, image);
    free(image);
    if (said == TD_CUDA_SUCCESS) return TD_OK;
    out->module = NULL;
    snprintf(what, sizeof what, "the card does not take the kernels of %.400s", path);
    return td_cuda_fail(cu, err, what, said);
}

td_status td_cuda_kernels_open(const td_cuda *cu, td_cu_device card, td_cuda_kernels *out, td_error *err) {
    *out = (td_cuda_kernels){0};
    td_status st = load(cu, card, out, err);
    for (size_t i = 0; i < TD_CUDA_KERNEL_COUNT && st == TD_OK; i++) {
        char         what[96];
        td_cu_status said = cu->cuModuleGetFunction(&out->at[i], out->module, TD_CUDA_KERNEL_FACTS[i].name);
        snprintf(what, sizeof what, "the card's kernels have no %s", TD_CUDA_KERNEL_FACTS[i].name);
        if (said != TD_CUDA_SUCCESS) st = td_cuda_fail(cu, err, what, said);
    }
    if (st != TD_OK) td_cuda_kernels_close(cu, out);
    return st;
}

void td_cuda_kernels_close(const td_cuda *cu, td_cuda_kernels *k) {
    if (k->module) (void)cu->cuModuleUnload(k->module);
    *k = (td_cuda_kernels){0};
}
