#include "core/math/blas.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/machine/cpu.h"

#define LIBRARY "libopenblas.so.0"

/* The name of OpenBLAS's kernels for what the CPU can do. By itself OpenBLAS chooses by model number, and takes the plainest
 * kernels for a CPU that is younger than itself. */
static const char *kernels_name(void) {
    uint32_t features = td_cpu_features();
    return features & TD_CPU_AVX512 ? "SkylakeX" : features & TD_CPU_AVX2 ? "Haswell" : NULL;
}

td_status td_blas_open(td_blas *b, td_error *err) {
    void (*set_threads)(int);
    /* OpenBLAS reads both when it is loaded. With one thread it starts none of its own. */
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    if (kernels_name()) setenv("OPENBLAS_CORETYPE", kernels_name(), 0);
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return td_fail(err, TD_ENOTFOUND, "calibration needs OpenBLAS, which cannot be loaded (Debian: libopenblas0): %s",
                       dlerror());
    const struct {
        const char *name;
        void       *slot; /* a function pointer; POSIX: as wide as the void * of dlsym */
    } wanted[] = {{"cblas_sgemm", &b->sgemm},
                  {"cblas_ssyrk", &b->ssyrk},
                  {"spotrf_", &b->spotrf},
                  {"openblas_set_num_threads", &set_threads}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *f = dlsym(lib, wanted[i].name);
        if (!f)
            return td_fail(err, TD_ENOTFOUND, "calibration needs OpenBLAS, but the installed " LIBRARY " has no %s",
                           wanted[i].name);
        *(void **)wanted[i].slot = f;
    }
    set_threads(1);
    return TD_OK;
}
