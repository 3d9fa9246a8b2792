#include "npu/cuda/cuda_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    const char *variable; /* whose value the folder begins with; NULL: none */
    const char *path;     /* may have patterns of glob() */
    bool        of_wheel; /* it ends with the folders of CUDA 12's wheel */
} place;

#define WHEELS "python3*/*-packages/nvidia"

/* "": plain names, which the dynamic linker looks for in LD_LIBRARY_PATH and its own folders. Wheels of CUDA 12 have a
 * folder for each library, those of CUDA 13 share one. */
static const place PLACES[] = {
    {NULL, "", false},
    {"CUDA_HOME", "/lib64", false},
    {"CUDA_PATH", "/lib64", false},
    {NULL, "/usr/local/cuda/lib64", false},
    {NULL, "/usr/local/cuda-*/lib64", false},
    {NULL, "/opt/cuda/lib64", false},
    {"VIRTUAL_ENV", "/lib/" WHEELS, true},
    {"VIRTUAL_ENV", "/lib/" WHEELS "/cu13/lib", false},
    {"CONDA_PREFIX", "/lib", false},
    {"CONDA_PREFIX", "/lib/" WHEELS, true},
    {"HOME", "/.local/lib/" WHEELS, true},
    {"HOME", "/.local/lib/" WHEELS "/cu13/lib", false},
    {NULL, "/usr/local/lib/" WHEELS, true},
    {NULL, "/usr/local/lib/" WHEELS "/cu13/lib", false},
};
#define N_PLACES (sizeof PLACES / sizeof *PLACES)

typedef struct {
    const td_cuda_library_name *name;
    int                         oldest, newest;
} wish;

const char *td_cuda_library_given(const td_cuda_library_name *name) {
    const char *given = getenv(name->variable);
    return given && *given ? given : NULL;
}

int td_cuda_library_newest(int driver_version) {
    int major = driver_version / 1000;
    return major < TD_CUDA_MAJOR_NEWEST ? major : TD_CUDA_MAJOR_NEWEST;
}

static bool open_in(td_cuda_library *l, const char *folder, const wish *w) {
    for (l->major = w->newest; l->major >= w->oldest; l->major--) {
        const char *slash = *folder ? "/" : "";
        if (snprintf(l->path, sizeof l->path, "%s%s%s.%d", folder, slash, w->name->file, l->major) >= (int)sizeof l->path)
            continue;
        if (*folder && access(l->path, F_OK) != 0) continue;
        l->library = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
        if (l->library) return true;
        if (*folder && !*l->broken) snprintf(l->broken, sizeof l->broken, "%s", dlerror());
    }
    return false;
}

static bool open_at(td_cuda_library *l, const place *p, const wish *w) {
    char        pattern[TD_CUDA_LIBRARY_PATH_MAX];
    const char *value = p->variable ? getenv(p->variable) : "";
    glob_t      found;
    bool        opened = false;
    if (!value || (p->variable && !*value)) return false;
    if (snprintf(pattern, sizeof pattern, "%s%s%s%s%s", value, p->path, p->of_wheel ? "/" : "",
                 p->of_wheel ? w->name->wheel : "", p->of_wheel ? "/lib" : "") >= (int)sizeof pattern)
        return false;
    if (!*pattern) return open_in(l, "", w);
    if (glob(pattern, 0, NULL, &found) != 0) return false;
    for (size_t i = found.gl_pathc; i > 0 && !opened; i--) opened = open_in(l, found.gl_pathv[i - 1], w); /* newest first */
    globfree(&found);
    return opened;
}

bool td_cuda_library_open(const td_cuda_library_name *name, int oldest, int newest, td_cuda_library *out) {
    const wish w = {name, oldest, newest};
    *out = (td_cuda_library){0};
    if (td_cuda_library_given(name)) return open_at(out, &(place){name->variable, "", false}, &w);
    for (size_t i = 0; i < N_PLACES; i++)
        if (open_at(out, &PLACES[i], &w)) return true;
    return false;
}
