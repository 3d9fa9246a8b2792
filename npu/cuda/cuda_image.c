#include "npu/cuda/cuda_image.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/log/log.h"
#include "npu/cuda/cuda_nvrtc.h"
#include "npu/cuda/cuda_sources.h"

#define GENERATIONS_MAX 64
#define LOG_BYTES_MAX ((size_t)1 << 20)

/* Fused operations are written out in the kernels (kernel.cuh). */
static const char *const FLAGS[] = {"--std=c++17", "-fmad=false"};
#define N_FLAGS (sizeof FLAGS / sizeof *FLAGS)

/** What is compiled for. */
typedef struct {
    char option[48];
    bool is_ptx;
} target;

static td_status nvrtc_fail(const td_nvrtc_library *l, const char *what, td_nvrtc_status status, td_error *err) {
    return td_fail(err, TD_EDEVICE, "%s of CUDA %d.%d fails in %s: %s", l->path, l->version / 1000, l->version % 1000 / 10,
                   what, l->api.nvrtcGetErrorString(status));
}

/* ---- for which generation ---------------------------------------------------------------------- */

static td_status choose_target(const td_nvrtc_library *l, int capability, target *out, td_error *err) {
    int             known[GENERATIONS_MAX], n = 0, best = 0;
    td_nvrtc_status st = l->api.nvrtcGetNumSupportedArchs(&n);
    if (st == TD_NVRTC_SUCCESS && (n < 1 || n > GENERATIONS_MAX))
        return td_fail(err, TD_ENOTSUP, "%s says that it knows %d generations of cards", l->path, n);
    if (st == TD_NVRTC_SUCCESS) st = l->api.nvrtcGetSupportedArchs(known);
    if (st != TD_NVRTC_SUCCESS) return nvrtc_fail(l, "nvrtcGetSupportedArchs", st, err);
    for (int i = 0; i < n; i++)
        if (known[i] <= capability && known[i] > best) best = known[i];
    if (best < TD_CUDA_CAPABILITY_OLDEST)
        return td_fail(err, TD_ENOTSUP, "%s compiles for none of the generations of cards from 8.0 to %d.%d", l->path,
                       capability / 10, capability % 10);
    out->is_ptx = best != capability;
    snprintf(out->option, sizeof out->option, "--gpu-architecture=%s_%d", out->is_ptx ? "compute" : "sm", best);
    return TD_OK;
}

/** The key goes on with these bytes. */
static void mix(td_cuda_image_key *key, const void *data, size_t bytes) {
    XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, key->low);
    key->low = hash.low64;
    key->high ^= hash.high64;
}

static td_cuda_image_key key_of(const td_nvrtc_library *l, const target *t) {
    td_cuda_image_key key = {0};
    mix(&key, &l->version, sizeof l->version);
    mix(&key, t->option, strlen(t->option));
    for (size_t i = 0; i < N_FLAGS; i++) mix(&key, FLAGS[i], strlen(FLAGS[i]));
    for (size_t i = 0; i < TD_CUDA_SOURCES_N; i++) {
        mix(&key, TD_CUDA_SOURCES[i].name, strlen(TD_CUDA_SOURCES[i].name));
        mix(&key, TD_CUDA_SOURCES[i].text, strlen(TD_CUDA_SOURCES[i].text));
    }
    return key;
}

/* ---- compiling --------------------------------------------------------------------------------- */

/** The first line of the compiler's log that tells of an error, else its first line. */
static void first_error(char *log, char *out, size_t bytes) {
    char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n') at--;
    if (!at) at = log;
    snprintf(out, bytes, "%.*s", (int)strcspn(at, "\n"), at);
}

static td_status compile_fail(const td_nvrtc_library *l, td_nvrtc_program program, const target *t, td_nvrtc_status status,
                              td_error *err) {
    char   line[300] = "";
    size_t bytes = 0;
    char  *log = NULL;
    if (l->api.nvrtcGetProgramLogSize(program, &bytes) == TD_NVRTC_SUCCESS && bytes && bytes <= LOG_BYTES_MAX)
        log = calloc(bytes + 1, 1);
    if (log && l->api.nvrtcGetProgramLog(program, log) == TD_NVRTC_SUCCESS) first_error(log, line, sizeof line);
    free(log);
    if (!*line) return nvrtc_fail(l, "nvrtcCompileProgram", status, err);
    return td_fail(err, TD_EDEVICE, "NVRTC %d.%d does not compile the kernels with %s: %s", l->version / 1000,
                   l->version % 1000 / 10, t->option, line);
}

/** What was compiled, out of the program. */
static td_status take(const td_nvrtc_library *l, td_nvrtc_program program, const target *t, td_cuda_image *out,
                      td_error *err) {
    const char     *what = t->is_ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN";
    td_nvrtc_status st = (t->is_ptx ? l->api.nvrtcGetPTXSize : l->api.nvrtcGetCUBINSize)(program, &out->bytes);
    if (st != TD_NVRTC_SUCCESS) return nvrtc_fail(l, what, st, err);
    if (!out->bytes || out->bytes > TD_CUDA_IMAGE_BYTES_MAX)
        return td_fail(err, TD_EDEVICE, "%s compiles the kernels to %zu bytes", l->path, out->bytes);
    out->data = calloc(out->bytes + 1, 1);
    if (!out->data) return td_fail(err, TD_ENOMEM, "out of memory for %zu bytes of kernels", out->bytes);
    st = (t->is_ptx ? l->api.nvrtcGetPTX : l->api.nvrtcGetCUBIN)(program, out->data);
    return st == TD_NVRTC_SUCCESS ? TD_OK : nvrtc_fail(l, what, st, err);
}

#define SOURCES_MAX 32

/** One program of all files: each .cu is a header of it, which it includes. */
static td_status create(const td_nvrtc_library *l, td_nvrtc_program *out, td_error *err) {
    const char *text[SOURCES_MAX], *name[SOURCES_MAX];
    char        program[SOURCES_MAX * 64];
    size_t      used = 0;
    for (size_t i = 0; i < TD_CUDA_SOURCES_N && i < SOURCES_MAX; i++) {
        text[i] = TD_CUDA_SOURCES[i].text;
        name[i] = TD_CUDA_SOURCES[i].name;
        if (strcmp(name[i] + strlen(name[i]) - 3, ".cu") == 0)
            used += (size_t)snprintf(program + used, sizeof program - used, "#include \"%s\"\n", name[i]);
    }
    td_nvrtc_status st = l->api.nvrtcCreateProgram(out, program, "tandem_kernels.cu", (int)TD_CUDA_SOURCES_N, text, name);
    return st == TD_NVRTC_SUCCESS ? TD_OK : nvrtc_fail(l, "nvrtcCreateProgram", st, err);
}

static td_status compile(const td_nvrtc_library *l, const target *t, td_cuda_image *out, td_error *err) {
    const char      *options[N_FLAGS + 1] = {t->option};
    td_nvrtc_program program;
    struct timespec  begin, end;
    memcpy(options + 1, FLAGS, sizeof FLAGS);
    td_info("compiling the kernels for the card (%s) with %s; this is done once and takes up to a minute", t->option,
            l->path);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    TD_TRY(create(l, &program, err));
    td_nvrtc_status said = l->api.nvrtcCompileProgram(program, N_FLAGS + 1, options);
    td_status       st = said == TD_NVRTC_SUCCESS ? take(l, program, t, out, err) : compile_fail(l, program, t, said, err);
    (void)l->api.nvrtcDestroyProgram(&program);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (st == TD_OK)
        td_info("compiled the kernels in %.1f s: %zu KiB",
                (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9, out->bytes >> 10);
    return st;
}

/* ---- kept, or compiled ------------------------------------------------------------------------- */

/** @return false: there is none, and why is said where that is not to be expected */
static bool read_kept(td_cuda_image *out, td_cuda_image_key key) {
    td_error  why = {0};
    td_status st = td_cuda_image_read(out->path, key, &out->data, &out->bytes, &why);
    if (st == TD_OK) td_info("kernels for the card: %s", out->path);
    if (st != TD_OK && st != TD_ENOTFOUND) td_warn("compiled kernels are made again: %s", why.text);
    return st == TD_OK;
}

static td_status get(const td_nvrtc_library *l, int capability, td_cuda_image *out, td_error *err) {
    target   t;
    td_error why = {0};
    TD_TRY(choose_target(l, capability, &t, err));
    if (t.is_ptx)
        td_warn(
            "%s does not know cards of compute capability %d.%d: the driver translates the kernels (%s), and a newer NVRTC "
            "may make faster ones",
            l->path, capability / 10, capability % 10, t.option);
    td_cuda_image_key key = key_of(l, &t);
    bool              kept = td_cuda_image_path(out->path, capability, key, &why) == TD_OK;
    if (kept && read_kept(out, key)) return TD_OK;
    TD_TRY(compile(l, &t, out, err));
    if (kept) kept = td_cuda_image_write(out->path, key, out->data, out->bytes, &why) == TD_OK;
    if (kept) return TD_OK;
    td_warn("compiled kernels are not kept, so the next start compiles them again: %s", why.text);
    out->path[0] = 0;
    return TD_OK;
}

/** Whether the build has compiled them for this card, and the driver takes what its nvcc makes. Who names an NVRTC wants
 * that one. */
static bool is_ahead(int capability, int driver_version) {
    const char *named = getenv("TD_NVRTC");
    bool        known = false;
    for (size_t i = 0; i < TD_CUDA_AHEAD_MAX; i++) known |= TD_CUDA_AHEAD.generations[i] == capability;
    return TD_CUDA_AHEAD.data && known && TD_CUDA_AHEAD.version / 1000 <= driver_version / 1000 && !(named && *named);
}

static td_status copy_ahead(td_cuda_image *out, td_error *err) {
    out->bytes = (size_t)(TD_CUDA_AHEAD.end - TD_CUDA_AHEAD.data);
    out->version = TD_CUDA_AHEAD.version;
    out->data = malloc(out->bytes);
    if (!out->data) return td_fail(err, TD_ENOMEM, "out of memory for %zu bytes of kernels", out->bytes);
    memcpy(out->data, TD_CUDA_AHEAD.data, out->bytes);
    td_info("kernels for the card: those that the build has compiled, %zu KiB", out->bytes >> 10);
    return TD_OK;
}

td_status td_cuda_image_get(td_cuda_image *out, int capability, int driver_version, td_error *err) {
    td_nvrtc_library l;
    *out = (td_cuda_image){0};
    if (capability < TD_CUDA_CAPABILITY_OLDEST)
        return td_fail(err, TD_ENOTSUP,
                       "the card has compute capability %d.%d and is too old: 8.0 (A100, RTX 30) or later is needed",
                       capability / 10, capability % 10);
    if (is_ahead(capability, driver_version)) return copy_ahead(out, err);
    TD_TRY(td_nvrtc_load(&l, driver_version, err));
    out->version = l.version;
    td_status st = get(&l, capability, out, err);
    td_nvrtc_unload(&l);
    if (st != TD_OK) td_cuda_image_free(out);
    return st;
}

void td_cuda_image_free(td_cuda_image *image) {
    free(image->data);
    *image = (td_cuda_image){0};
}

/* ---- loading ----------------------------------------------------------------------------------- */

static td_status load(const td_cuda *cu, const td_cuda_image *image, int driver, td_cu_module *out, td_error *err) {
    char         what[TD_CUDA_IMAGE_PATH_MAX + 64] = "the driver does not take the compiled kernels";
    td_cu_status st = cu->cuModuleLoadData(out, image->data);
    if (st == TD_CUDA_SUCCESS) return TD_OK;
    bool refused = st == TD_CUDA_ERROR_INVALID_IMAGE || st == TD_CUDA_ERROR_NO_BINARY_FOR_GPU ||
                   st == TD_CUDA_ERROR_INVALID_PTX || st == TD_CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (refused && image->version > driver)
        return td_fail(err, TD_ENOTSUP,
                       "the driver serves CUDA %d.%d and does not take kernels that NVRTC %d.%d has compiled: update the "
                       "driver, or set TD_NVRTC to the folder of an older NVRTC",
                       driver / 1000, driver % 1000 / 10, image->version / 1000, image->version % 1000 / 10);
    if (refused && *image->path) snprintf(what, sizeof what, "the driver does not take the kernels of %s", image->path);
    return td_cuda_fail(cu, err, what, st);
}

td_status td_cuda_module_load(const td_cuda *cu, td_cu_device card, td_cu_module *out, td_error *err) {
    td_cuda_image image;
    int           major = 0, minor = 0, driver = 0;
    td_cu_status  said = cu->cuDriverGetVersion(&driver);
    *out = NULL;
    if (said == TD_CUDA_SUCCESS)
        said = cu->cuDeviceGetAttribute(&major, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, card);
    if (said == TD_CUDA_SUCCESS)
        said = cu->cuDeviceGetAttribute(&minor, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, card);
    if (said != TD_CUDA_SUCCESS) return td_cuda_fail(cu, err, "the driver does not tell the card's generation", said);
    TD_TRY(td_cuda_image_get(&image, 10 * major + minor, driver, err));
    td_status st = load(cu, &image, driver, out, err);
    td_cuda_image_free(&image);
    return st;
}
