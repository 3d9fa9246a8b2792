/*
 * A stand-in for NVRTC, libnvrtc.so.12: it compiles nothing, holds its caller to the manual, and gives an image that the
 * stand-in of the driver takes.
 *
 * DESIGN. Every rule is from the "NVRTC" manual (docs.nvidia.com/cuda/nvrtc); whoever breaks one ends the process by SIGABRT
 * with one sentence on stderr. It is stricter than the library, which returns a status in these cases. What is not the
 * caller's fault is a status. Of a program it reads the #include lines only: each must name a header that was given, as with
 * the library, which has no files of its own. The image names the kernels that were compiled for the CPU
 * (cuda_standin.h), whatever the source says.
 *
 * Environment: TD_STANDIN_NVRTC (12080: its version), TD_STANDIN_NVRTC_NEWEST (120: the newest generation that it knows),
 * TD_STANDIN_NVRTC_LOG (compiling fails with this log), TD_STANDIN_NVRTC_FAIL=n (the n-th call that can fail does, with
 * NVRTC_ERROR_INTERNAL_ERROR), TD_STANDIN_KERNELS (the library of kernels).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npu/cuda/cuda_nvrtc.h"
#include "tests/standins/cuda/driver/cuda_standin_image.h"
#include "tests/standins/parts/standin_parts.h"

const standin_documents STANDIN_DOCUMENTS = {.name = "nvrtc"};

#define DECLARE(type, function, parameters) STANDIN_EXPORT type function parameters;
TD_NVRTC(DECLARE)
#undef DECLARE

enum { INVALID_INPUT = 3, INTERNAL_ERROR = 11 };

static const int GENERATIONS[] = {75, 80, 86, 87, 89, 90, 100, 103, 120, 121};
#define N_GENERATIONS (sizeof GENERATIONS / sizeof *GENERATIONS)

typedef enum { NEW, COMPILED, FAILED } stage;

struct _nvrtcProgram {
    td_nvrtc_program next; /* of all that there were: one that is destroyed is told from one that was never there */
    char           **texts, **names; /* of the headers, then the program's own */
    int              n_headers;
    bool             alive;
    stage            stage;
    bool             is_ptx;
    char             image[1024], log[1024];
    bool             asked_image, asked_log; /* for their sizes */
};

static _Atomic uint64_t calls_asked;
static td_nvrtc_program programs;
static int              n_alive;

/** Who leaves without giving its programs back is told when the library is closed, or the process ends. */
__attribute__((destructor)) static void check_given_back(void) {
    if (n_alive) standin_refuse("nvrtcDestroyProgram", "%d programs were not destroyed", n_alive);
    while (programs) {
        td_nvrtc_program p = programs;
        programs = p->next;
        free(p);
    }
}

static td_nvrtc_status fails(void) {
    return standin_nth("TD_STANDIN_NVRTC_FAIL", &calls_asked) ? INTERNAL_ERROR : TD_NVRTC_SUCCESS;
}

const char *nvrtcGetErrorString(td_nvrtc_status status) {
    switch (status) {
        case TD_NVRTC_SUCCESS: return "NVRTC_SUCCESS";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case TD_NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
        case INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
        default: return "NVRTC_ERROR unknown";
    }
}

/* ---- what it knows ----------------------------------------------------------------------------- */

td_nvrtc_status nvrtcVersion(int *major, int *minor) {
    int version = (int)standin_setting("TD_STANDIN_NVRTC", 12080);
    if (!major || !minor) return INVALID_INPUT;
    *major = version / 1000;
    *minor = version % 1000 / 10;
    return fails();
}

static int known(void) {
    int n = 0, newest = (int)standin_setting("TD_STANDIN_NVRTC_NEWEST", 120);
    while (n < (int)N_GENERATIONS && GENERATIONS[n] <= newest) n++;
    return n;
}

td_nvrtc_status nvrtcGetNumSupportedArchs(int *n) {
    if (!n) return INVALID_INPUT;
    *n = known();
    return fails();
}

td_nvrtc_status nvrtcGetSupportedArchs(int *out) {
    if (!out) return INVALID_INPUT;
    memcpy(out, GENERATIONS, (size_t)known() * sizeof *out);
    return fails();
}

/* ---- programs ---------------------------------------------------------------------------------- */

static char *copy_of(const char *text, const char *what) {
    if (!text) standin_refuse("nvrtcCreateProgram", "%s is NULL", what);
    return strdup(text);
}

td_nvrtc_status nvrtcCreateProgram(td_nvrtc_program *out, const char *source, const char *name, int n_headers,
                                   const char *const *headers, const char *const *names) {
    if (!out) standin_refuse("nvrtcCreateProgram", "there is nowhere to put the program");
    if (n_headers < 0) standin_refuse("nvrtcCreateProgram", "there are %d headers", n_headers);
    if (n_headers && (!headers || !names)) standin_refuse("nvrtcCreateProgram", "%d headers and no list of them", n_headers);
    td_nvrtc_status st = fails();
    if (st != TD_NVRTC_SUCCESS) return st;
    td_nvrtc_program p = calloc(1, sizeof *p);
    *p = (struct _nvrtcProgram){.alive = true, .n_headers = n_headers};
    p->texts = calloc((size_t)n_headers + 1, sizeof *p->texts);
    p->names = calloc((size_t)n_headers + 1, sizeof *p->names);
    for (int i = 0; i < n_headers; i++) {
        p->texts[i] = copy_of(headers[i], "the text of a header");
        p->names[i] = copy_of(names[i], "the name of a header");
        for (int k = 0; k < i; k++)
            if (strcmp(p->names[i], p->names[k]) == 0)
                standin_refuse("nvrtcCreateProgram", "two headers have the name %s", names[i]);
    }
    p->texts[n_headers] = copy_of(source, "the program's text");
    p->names[n_headers] = copy_of(name ? name : "default_program", "the program's name");
    STANDIN_LOCKED;
    p->next = programs;
    programs = p;
    n_alive++;
    *out = p;
    return TD_NVRTC_SUCCESS;
}

static td_nvrtc_program program_of(td_nvrtc_program p, const char *call) {
    if (!p || !p->alive) standin_refuse("nvrtcDestroyProgram", "%s of a program that is none, or is destroyed", call);
    return p;
}

td_nvrtc_status nvrtcDestroyProgram(td_nvrtc_program *program) {
    td_nvrtc_program p = program_of(program ? *program : NULL, "nvrtcDestroyProgram");
    for (int i = 0; i <= p->n_headers; i++) {
        free(p->texts[i]);
        free(p->names[i]);
    }
    free(p->texts);
    free(p->names);
    p->alive = false;
    STANDIN_LOCKED;
    n_alive--;
    return TD_NVRTC_SUCCESS;
}

/* ---- compiling --------------------------------------------------------------------------------- */

/* manual, Supported Compile Options; each with a value behind "=", after one dash or two */
static const char *const OPTIONS[] = {
    "gpu-architecture", "arch", "std",       "fmad",     "ptxas-options", "Xptxas",        "maxrregcount",
    "define-macro",     "ftz",  "prec-sqrt", "prec-div", "use_fast_math", "split-compile", "generate-line-info"};
#define N_OPTIONS (sizeof OPTIONS / sizeof *OPTIONS)

/** The value of an option. @return NULL: it is another one */
static const char *value_of(const char *option, const char *name) {
    const char *at = option + strspn(option, "-");
    size_t      n = strlen(name);
    if (at == option || at - option > 2 || strncmp(at, name, n) != 0 || (at[n] && at[n] != '=')) return NULL;
    return at[n] ? at + n + 1 : at + n;
}

static void take_architecture(td_nvrtc_program p, const char *value) {
    int generation = 0, i = 0, n = known();
    p->is_ptx = sscanf(value, "compute_%d", &generation) == 1;
    if (!p->is_ptx && sscanf(value, "sm_%d", &generation) != 1)
        standin_refuse("manual, Supported Compile Options", "--gpu-architecture is %s", value);
    while (i < n && GENERATIONS[i] != generation) i++;
    if (i == n)
        standin_refuse("nvrtcGetSupportedArchs", "it is to compile for %s, and knows none of that number from %d to %d",
                       value, GENERATIONS[0], GENERATIONS[n - 1]);
    const char *kernels = getenv("TD_STANDIN_KERNELS");
    snprintf(p->image, sizeof p->image, STANDIN_IMAGE "\n%s_%d %d\n%s\n", p->is_ptx ? "compute" : "sm", generation,
             (int)standin_setting("TD_STANDIN_NVRTC", 12080), kernels ? kernels : TD_STANDIN_KERNELS_LIBRARY);
}

static void take_options(td_nvrtc_program p, int n, const char *const *options) {
    for (int i = 0; i < n; i++) {
        size_t k = 0;
        while (k < N_OPTIONS && !value_of(options[i], OPTIONS[k])) k++;
        if (k == N_OPTIONS) standin_refuse("manual, Supported Compile Options", "the option %s is none", options[i]);
        if (k < 2) take_architecture(p, value_of(options[i], OPTIONS[k]));
    }
    if (!*p->image)
        standin_refuse("manual, Supported Compile Options", "no --gpu-architecture: the default is an old generation's PTX");
}

/** Every #include of a text, and of what it includes, is of a header that was given. @return false: the log says which not
 */
static bool check_includes(td_nvrtc_program p, int which, bool *seen) {
    if (seen[which]) return true;
    seen[which] = true;
    int line = 1;
    for (const char *at = p->texts[which]; at; at = strchr(at, '\n')) {
        char name[256];
        int  i = 0;
        if (*at == '\n') at++, line++;
        if (sscanf(at, "#include \"%255[^\"]\"", name) != 1 && sscanf(at, "#include <%255[^>]>", name) != 1) continue;
        while (i < p->n_headers && strcmp(p->names[i], name) != 0) i++;
        if (i < p->n_headers && check_includes(p, i, seen)) continue;
        if (i == p->n_headers)
            snprintf(p->log, sizeof p->log, "%s(%d): catastrophic error: cannot open source file \"%s\"\n", p->names[which],
                     line, name);
        return false;
    }
    return true;
}

td_nvrtc_status nvrtcCompileProgram(td_nvrtc_program program, int n_options, const char *const *options) {
    td_nvrtc_program p = program_of(program, "nvrtcCompileProgram");
    const char      *wanted = getenv("TD_STANDIN_NVRTC_LOG");
    if (p->stage != NEW) standin_refuse("nvrtcCompileProgram", "a program is compiled a second time");
    if (n_options < 0 || (n_options && !options)) standin_refuse("nvrtcCompileProgram", "%d options", n_options);
    take_options(p, n_options, options);
    td_nvrtc_status st = fails();
    bool           *seen = calloc((size_t)p->n_headers + 1, sizeof *seen);
    bool            good = check_includes(p, p->n_headers, seen);
    free(seen);
    if (wanted) snprintf(p->log, sizeof p->log, "%s", wanted);
    p->stage = st == TD_NVRTC_SUCCESS && good && !wanted ? COMPILED : FAILED;
    return st != TD_NVRTC_SUCCESS ? st : p->stage == FAILED ? TD_NVRTC_ERROR_COMPILATION : TD_NVRTC_SUCCESS;
}

/* ---- results ----------------------------------------------------------------------------------- */

static td_nvrtc_program compiled(td_nvrtc_program program, const char *call) {
    td_nvrtc_program p = program_of(program, call);
    if (p->stage == NEW) standin_refuse(call, "%s before nvrtcCompileProgram", call);
    if (p->stage == FAILED) standin_refuse(call, "%s of a program that was not compiled without errors", call);
    return p;
}

static td_nvrtc_status image_size(td_nvrtc_program program, bool is_ptx, const char *call, size_t *bytes) {
    td_nvrtc_program p = compiled(program, call);
    if (!bytes) standin_refuse(call, "there is nowhere to put the size");
    /* A cubin is an image that ends where it ends, PTX a text with its 0. */
    *bytes = p->is_ptx && !is_ptx ? 0 : strlen(p->image) + is_ptx;
    p->asked_image = true;
    return fails();
}

static td_nvrtc_status image(td_nvrtc_program program, bool is_ptx, const char *call, char *out) {
    td_nvrtc_program p = compiled(program, call);
    if (!p->asked_image) standin_refuse(call, "%s before its size was asked for", call);
    if (p->is_ptx && !is_ptx) standin_refuse(call, "%s of a program that was compiled for a virtual architecture", call);
    if (!out) standin_refuse(call, "there is nowhere to put the image");
    memcpy(out, p->image, strlen(p->image) + is_ptx);
    return fails();
}

td_nvrtc_status nvrtcGetCUBINSize(td_nvrtc_program program, size_t *bytes) {
    return image_size(program, false, __func__, bytes);
}
td_nvrtc_status nvrtcGetCUBIN(td_nvrtc_program program, char *out) {
    return image(program, false, __func__, out);
}
td_nvrtc_status nvrtcGetPTXSize(td_nvrtc_program program, size_t *bytes) {
    return image_size(program, true, __func__, bytes);
}
td_nvrtc_status nvrtcGetPTX(td_nvrtc_program program, char *out) {
    return image(program, true, __func__, out);
}

td_nvrtc_status nvrtcGetProgramLogSize(td_nvrtc_program program, size_t *bytes) {
    td_nvrtc_program p = program_of(program, __func__);
    if (p->stage == NEW) standin_refuse(__func__, "%s before nvrtcCompileProgram", __func__);
    if (!bytes) standin_refuse(__func__, "there is nowhere to put the size");
    *bytes = strlen(p->log) + 1;
    p->asked_log = true;
    return fails();
}

td_nvrtc_status nvrtcGetProgramLog(td_nvrtc_program program, char *out) {
    td_nvrtc_program p = program_of(program, __func__);
    if (!p->asked_log) standin_refuse(__func__, "%s before its size was asked for", __func__);
    memcpy(out, p->log, strlen(p->log) + 1);
    return fails();
}
