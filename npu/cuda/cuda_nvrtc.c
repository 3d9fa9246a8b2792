#include "npu/cuda/cuda_nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

/* ---- where ------------------------------------------------------------------------------------- */

typedef struct {
    const char *variable; /* whose value the folder begins with; NULL: none */
    const char *path;     /* may have patterns of glob() */
} place;

#define WHEELS "python3*/*-packages/nvidia"

/* "": plain names, which the dynamic linker looks for in LD_LIBRARY_PATH and its own folders. Wheels of CUDA 12 have a
 * folder for each library, those of CUDA 13 share one. */
static const place PLACES[] = {
    {NULL, ""},
    {"CUDA_HOME", "/lib64"},
    {"CUDA_PATH", "/lib64"},
    {NULL, "/usr/local/cuda/lib64"},
    {NULL, "/usr/local/cuda-*/lib64"},
    {NULL, "/opt/cuda/lib64"},
    {"VIRTUAL_ENV", "/lib/" WHEELS "/cuda_nvrtc/lib"},
    {"VIRTUAL_ENV", "/lib/" WHEELS "/cu13/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"CONDA_PREFIX", "/lib/" WHEELS "/cuda_nvrtc/lib"},
    {"HOME", "/.local/lib/" WHEELS "/cuda_nvrtc/lib"},
    {"HOME", "/.local/lib/" WHEELS "/cu13/lib"},
    {NULL, "/usr/local/lib/" WHEELS "/cuda_nvrtc/lib"},
    {NULL, "/usr/local/lib/" WHEELS "/cu13/lib"},
};
#define N_PLACES (sizeof PLACES / sizeof *PLACES)
static const place GIVEN = {"TD_NVRTC", ""};

typedef struct {
    int  oldest, newest; /* major versions to look for */
    char broken[256];    /* why a library that is there did not open */
} search;

/** The builtins lie beside the library, which opens them by their name: they are found once they are open. */
static void *open_builtins(const char *folder, int major) {
    char   pattern[TD_NVRTC_PATH_MAX];
    glob_t found;
    void  *library = NULL;
    if (snprintf(pattern, sizeof pattern, "%s/libnvrtc-builtins.so.%d*", folder, major) >= (int)sizeof pattern) return NULL;
    if (glob(pattern, 0, NULL, &found) != 0) return NULL;
    library = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

static bool open_in(td_nvrtc_library *l, const char *folder, search *s) {
    for (int major = s->newest; major >= s->oldest; major--) {
        const char *slash = *folder ? "/" : "";
        if (snprintf(l->path, sizeof l->path, "%s%slibnvrtc.so.%d", folder, slash, major) >= (int)sizeof l->path) continue;
        if (*folder && access(l->path, F_OK) != 0) continue;
        if (*folder) l->builtins = open_builtins(folder, major);
        l->library = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
        if (l->library) return true;
        if (*folder && !*s->broken) snprintf(s->broken, sizeof s->broken, "%s", dlerror());
        if (l->builtins) dlclose(l->builtins);
        l->builtins = NULL;
    }
    return false;
}

static bool open_at(td_nvrtc_library *l, const place *p, search *s) {
    char        pattern[TD_NVRTC_PATH_MAX];
    const char *value = p->variable ? getenv(p->variable) : "";
    glob_t      found;
    bool        opened = false;
    if (!value || (p->variable && !*value)) return false;
    if (snprintf(pattern, sizeof pattern, "%s%s", value, p->path) >= (int)sizeof pattern) return false;
    if (!*pattern) return open_in(l, "", s);
    if (glob(pattern, 0, NULL, &found) != 0) return false;
    for (size_t i = found.gl_pathc; i > 0 && !opened; i--) opened = open_in(l, found.gl_pathv[i - 1], s); /* newest first */
    globfree(&found);
    return opened;
}

static bool open_somewhere(td_nvrtc_library *l, search *s) {
    const char *given = getenv(GIVEN.variable);
    if (given && *given) return open_at(l, &GIVEN, s);
    for (size_t i = 0; i < N_PLACES; i++)
        if (open_at(l, &PLACES[i], s)) return true;
    return false;
}

/* ---- opening ----------------------------------------------------------------------------------- */

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

static td_status not_found(td_nvrtc_library *l, const search *s, int driver_version, td_error *err) {
    const char *given = getenv(GIVEN.variable), *where = given && *given ? given : NULL;
    int         major = s->newest;
    search      newer = {major + 1, TD_NVRTC_MAJOR_NEWEST, ""};
    char        package[64];
    /* The wheels' names: CUDA's version is part of them up to 12. */
    snprintf(package, sizeof package, major < 13 ? "nvidia-cuda-nvrtc-cu%d" : "\"nvidia-cuda-nvrtc==%d.*\"", major);
    if (*s->broken) return td_fail(err, TD_ENOTFOUND, "NVRTC is there and does not open: %s", s->broken);
    if (open_somewhere(l, &newer))
        return td_fail(
            err, TD_ENOTFOUND,
            "%s is too new for the driver, which serves CUDA %d.%d and takes no kernels of a newer major version: "
            "update the driver, or pip install %s",
            l->path, driver_version / 1000, driver_version % 1000 / 10, package);
    return td_fail(err, TD_ENOTFOUND,
                   "NVRTC, which compiles the kernels for the card, was not found in %s: pip install %s, or set TD_NVRTC to "
                   "the folder of libnvrtc.so.%d",
                   where ? where : "the system's folders, a toolkit in /usr/local/cuda or a Python environment", package,
                   major);
}

td_status td_nvrtc_load(td_nvrtc_library *out, int driver_version, td_error *err) {
    int    most = driver_version / 1000;
    search s = {TD_NVRTC_MAJOR_OLDEST, most < TD_NVRTC_MAJOR_NEWEST ? most : TD_NVRTC_MAJOR_NEWEST, ""};
    *out = (td_nvrtc_library){0};
    td_status st = open_somewhere(out, &s) ? find_all(out, err) : not_found(out, &s, driver_version, err);
    if (st != TD_OK) td_nvrtc_unload(out);
    return st;
}

void td_nvrtc_unload(td_nvrtc_library *l) {
    if (l->library) dlclose(l->library);
    if (l->builtins) dlclose(l->builtins);
    *l = (td_nvrtc_library){0};
}
