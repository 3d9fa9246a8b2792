#include "npu/cuda/cuda_nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

static const td_cuda_library_name NAME = {"libnvrtc.so", "cuda_nvrtc", "TD_NVRTC"};

/** The builtins lie beside the library, which opens them by their name: they are found once they are open. */
static void *open_builtins(const td_cuda_library *l) {
    char   pattern[TD_CUDA_LIBRARY_PATH_MAX];
    glob_t found;
    void  *library = NULL;
    int    folder = (int)(strrchr(l->path, '/') ? strrchr(l->path, '/') - l->path : 0);
    if (!folder) return NULL;
    if (snprintf(pattern, sizeof pattern, "%.*s/libnvrtc-builtins.so.%d*", folder, l->path, l->major) >= (int)sizeof pattern)
        return NULL;
    if (glob(pattern, 0, NULL, &found) != 0) return NULL;
    library = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

static const struct {
    const char *symbol;
    size_t      at; /* in td_nvrtc */
} WANTED[] = {
#define WANT(type, function, parameters) {#function, offsetof(td_nvrtc, function)},
    TD_NVRTC(WANT)
#undef WANT
};
#define N_WANTED (sizeof WANTED / sizeof *WANTED)

static td_status find_all(td_nvrtc_library *l, td_error *err) {
    int major = 0, minor = 0;
    for (size_t i = 0; i < N_WANTED; i++) {
        void *at = dlsym(l->library, WANTED[i].symbol);
        if (!at) return td_fail(err, TD_ENOTSUP, "%s has no %s: it is no NVRTC", l->path, WANTED[i].symbol);
        memcpy((char *)&l->api + WANTED[i].at, &at, sizeof at); /* what POSIX leaves for functions */
    }
    td_nvrtc_status st = l->api.nvrtcVersion(&major, &minor);
    if (st != TD_NVRTC_SUCCESS)
        return td_fail(err, TD_ENOTSUP, "%s does not tell its version: %s", l->path, l->api.nvrtcGetErrorString(st));
    l->version = 1000 * major + 10 * minor;
    return TD_OK;
}

static td_status not_found(const td_cuda_library *l, int newest, int driver_version, td_error *err) {
    const char     *given = td_cuda_library_given(&NAME);
    td_cuda_library newer;
    char            package[64];
    /* The wheels' names: CUDA's version is part of them up to 12. */
    snprintf(package, sizeof package, newest < 13 ? "nvidia-cuda-nvrtc-cu%d" : "\"nvidia-cuda-nvrtc==%d.*\"", newest);
    if (*l->broken) return td_fail(err, TD_ENOTFOUND, "NVRTC is there and does not open: %s", l->broken);
    if (td_cuda_library_open(&NAME, newest + 1, TD_CUDA_MAJOR_NEWEST, &newer)) {
        dlclose(newer.library);
        return td_fail(
            err, TD_ENOTFOUND,
            "%s is too new for the driver, which serves CUDA %d.%d and takes no kernels of a newer major version: "
            "update the driver, or pip install %s",
            newer.path, driver_version / 1000, driver_version % 1000 / 10, package);
    }
    return td_fail(err, TD_ENOTFOUND,
                   "NVRTC, which compiles the kernels for the card, was not found in %s: pip install %s, or set TD_NVRTC to "
                   "the folder of libnvrtc.so.%d",
                   given ? given : "the system's folders, a toolkit in /usr/local/cuda or a Python environment", package,
                   newest);
}

td_status td_nvrtc_load(td_nvrtc_library *out, int driver_version, td_error *err) {
    int             newest = td_cuda_library_newest(driver_version);
    td_cuda_library found;
    *out = (td_nvrtc_library){0};
    if (!td_cuda_library_open(&NAME, TD_CUDA_MAJOR_OLDEST, newest, &found))
        return not_found(&found, newest, driver_version, err);
    memcpy(out->path, found.path, sizeof out->path);
    out->library = found.library;
    out->builtins = open_builtins(&found);
    td_status st = find_all(out, err);
    if (st != TD_OK) td_nvrtc_unload(out);
    return st;
}

void td_nvrtc_unload(td_nvrtc_library *l) {
    if (l->library) dlclose(l->library);
    if (l->builtins) dlclose(l->builtins);
    *l = (td_nvrtc_library){0};
}
