#include "npu/ascend/ascend_loader.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"

/* ---- where ------------------------------------------------------------------------------------- */

typedef struct {
    const char *variable; /* whose value the folder begins with; NULL: none */
    const char *path;
} place;

/* "": plain names, which the dynamic linker looks for in LD_LIBRARY_PATH and its own folders. */
static const place PLACES[] = {
    {"ASCEND_HOME_PATH", "/lib64"},
    {"ASCEND_TOOLKIT_HOME", "/lib64"},
    {NULL, ""},
    {NULL, "/usr/local/Ascend/cann/lib64"},
    {NULL, "/usr/local/Ascend/ascend-toolkit/latest/lib64"},
    {"HOME", "/Ascend/cann/lib64"},
    {"HOME", "/Ascend/ascend-toolkit/latest/lib64"},
};
#define N_PLACES (sizeof PLACES / sizeof *PLACES)

/** @return false: its variable is not set, or it is too long. */
static bool folder_of(const place *p, char out[TD_ASCEND_FOLDER_MAX]) {
    const char *value = p->variable ? getenv(p->variable) : "";
    if (!value || (p->variable && !*value)) return false;
    return snprintf(out, TD_ASCEND_FOLDER_MAX, "%s%s", value, p->path) < TD_ASCEND_FOLDER_MAX;
}

/* ---- opening ----------------------------------------------------------------------------------- */

/* The runtime is one of the first two; CANN 9 has both, and parts of each. */
static const char *const RUNTIME[] = {"libacl_rt.so", "libascendcl.so"};
#define N_RUNTIME (sizeof RUNTIME / sizeof *RUNTIME)
#define OPS_NAME "libopapi"

static bool open_library(td_ascend_libraries *l, const char *name) {
    char path[TD_ASCEND_FOLDER_MAX + 256];
    if (l->n_libraries == TD_ASCEND_LIBRARIES_MAX) return false;
    snprintf(path, sizeof path, "%s%s%s", l->folder, *l->folder ? "/" : "", name);
    /* Global: CANN's libraries find each other's symbols that way. */
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!handle) return false;
    char *kept = strdup(name);
    if (!kept) {
        dlclose(handle);
        return false;
    }
    l->libraries[l->n_libraries] = handle;
    l->names[l->n_libraries++] = kept;
    return true;
}

static void close_libraries(td_ascend_libraries *l) {
    while (l->n_libraries > 0) {
        dlclose(l->libraries[--l->n_libraries]);
        free((char *)l->names[l->n_libraries]);
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/** libopapi_*.so of the folder: newer CANNs cut the operations into several files. */
static size_t open_parts(td_ascend_libraries *l) {
    char          *names[TD_ASCEND_LIBRARIES_MAX];
    size_t         n = 0, opened = 0;
    DIR           *d = *l->folder ? opendir(l->folder) : NULL;
    struct dirent *e;
    if (!d) return 0;
    while (n < TD_ASCEND_LIBRARIES_MAX && (e = readdir(d)) != NULL) {
        size_t length = strlen(e->d_name);
        if (strncmp(e->d_name, OPS_NAME "_", sizeof OPS_NAME) || length < 3 || strcmp(e->d_name + length - 3, ".so"))
            continue;
        if ((names[n] = strdup(e->d_name)) != NULL) n++;
    }
    closedir(d);
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        opened += open_library(l, names[i]);
        free(names[i]);
    }
    return opened;
}

/** Add to a text; what does not fit is cut off. */
static void append(char *out, size_t bytes, const char *what) {
    size_t used = strlen(out), n = strlen(what), left = bytes - used - 1;
    if (n > left) n = left;
    memcpy(out + used, what, n);
    out[used + n] = 0;
}

static void join(char *out, size_t bytes, const char *separator, const char *what) {
    if (*out) append(out, bytes, separator);
    append(out, bytes, what);
}

/** The runtime, from the first place that has it; with it the place is chosen. */
static td_status open_runtime(td_ascend_libraries *l, td_error *err) {
    char tried[TD_ERROR_TEXT_MAX / 2] = "", broken[TD_ERROR_TEXT_MAX / 2] = "";
    for (size_t i = 0; i < N_PLACES; i++) {
        if (!folder_of(&PLACES[i], l->folder)) continue;
        for (size_t k = 0; k < N_RUNTIME; k++) {
            if (open_library(l, RUNTIME[k])) continue;
            char path[TD_ASCEND_FOLDER_MAX + 64];
            snprintf(path, sizeof path, "%s/%s", l->folder, RUNTIME[k]);
            const char *why = dlerror();
            if (*l->folder && !access(path, R_OK) && why && !*broken) snprintf(broken, sizeof broken, "%s", why);
        }
        if (l->n_libraries) return TD_OK;
        if (*broken) /* it is there, and something that it needs is not: another place's would be another CANN */
            return td_fail(err, TD_ENOTFOUND, "%s cannot be opened: %s; source CANN's set_env.sh, and install the driver",
                           l->folder, broken);
        join(tried, sizeof tried, ", ", *l->folder ? l->folder : "LD_LIBRARY_PATH");
    }
    l->folder[0] = 0;
    return td_fail(err, TD_ENOTFOUND,
                   "CANN's runtime (%s or %s) was found in none of %s: install CANN, or set ASCEND_HOME_PATH to its folder",
                   RUNTIME[0], RUNTIME[1], tried);
}

/* The folder that the runtime's library was found in, as the dynamic linker names it. @return false: it names none. */
static bool found_in(const td_ascend_libraries *l, char out[TD_ASCEND_FOLDER_MAX]) {
    struct link_map *map = NULL;
    if (dlinfo(l->libraries[0], RTLD_DI_LINKMAP, &map) || !map || strlen(map->l_name) >= TD_ASCEND_FOLDER_MAX) return false;
    strcpy(out, map->l_name);
    char *name = strrchr(out, '/');
    if (name) *name = 0;
    return name != NULL;
}

/* Operations look for their kernels below ASCEND_HOME_PATH, else ASCEND_OPP_PATH, which CANN's set_env.sh sets. Without
 * both, and before the operations are opened, they are pointed to the CANN that the runtime is of. */
static void point_to_kernels(const td_ascend_libraries *l) {
    static const char LIB[] = "/lib64";
    const char       *home = getenv("ASCEND_HOME_PATH"), *opp = getenv("ASCEND_OPP_PATH");
    char              folder[TD_ASCEND_FOLDER_MAX], kernels[TD_ASCEND_FOLDER_MAX + 8];
    if ((home && *home) || (opp && *opp) || !found_in(l, folder)) return;
    size_t n = strlen(folder);
    if (n < sizeof LIB || strcmp(folder + n - sizeof LIB + 1, LIB)) return;
    folder[n - sizeof LIB + 1] = 0;
    snprintf(kernels, sizeof kernels, "%s/opp", folder);
    if (access(kernels, R_OK)) {
        td_warn(
            "ASCEND_HOME_PATH and ASCEND_OPP_PATH are not set, and there is no %s: operations may find no kernels; source "
            "CANN's set_env.sh",
            kernels);
        return;
    }
    setenv("ASCEND_HOME_PATH", folder, 1);
    setenv("ASCEND_OPP_PATH", kernels, 1);
}

static td_status open_rest(td_ascend_libraries *l, td_error *err) {
    const char *where = *l->folder ? l->folder : "LD_LIBRARY_PATH";
    if (!open_library(l, "libnnopbase.so")) {
        const char *why = dlerror();
        return td_fail(err, TD_ENOTFOUND,
                       "%s has CANN's runtime and no libnnopbase.so that opens (%s): is the whole toolkit installed?", where,
                       why ? why : "");
    }
    bool        whole = open_library(l, OPS_NAME ".so");
    char        why[256] = "";
    const char *error = whole ? NULL : dlerror();
    snprintf(why, sizeof why, "%s", error ? error : "");
    size_t parts = open_parts(l);
    if (!whole && !parts)
        return td_fail(err, TD_ENOTFOUND,
                       "%s has CANN's runtime and no " OPS_NAME ".so or " OPS_NAME
                       "_*.so that opens (%s): install the operations of the card's generation",
                       where, why);
    (void)open_library(l, "libhccl.so"); /* one card needs none */
    return TD_OK;
}

/* ---- versions ---------------------------------------------------------------------------------- */

uint32_t td_ascend_cann_number(const char *version) {
    char         *end;
    unsigned long major = strtoul(version, &end, 10);
    if (end == version || *end != '.' || major == 0 || major > 99) return 0;
    const char   *rest = end + 1;
    unsigned long minor = strtoul(rest, &end, 10);
    return end == rest || minor > 99 ? 0 : (uint32_t)(100 * major + minor);
}

static void find_version(td_ascend_libraries *l) {
    char                   package[] = "runtime";
    td_acl_package_version old = {0};
    /* The length that the document asks for, and no terminator promised. */
    char text[TD_ACL_VERSION_CHARS + 1] = "";
    if (l->acl.aclsysGetVersionStr && l->acl.aclsysGetVersionStr(package, text) == TD_ACL_SUCCESS &&
        td_ascend_cann_number(text)) {
        snprintf(l->cann, sizeof l->cann, "%s", text);
    } else if (l->acl.aclsysGetCANNVersion && l->acl.aclsysGetCANNVersion(TD_ACL_PKG_NAME_CANN, &old) == TD_ACL_SUCCESS) {
        snprintf(l->cann, sizeof l->cann, "%.*s", TD_ACL_VERSION_CHARS - 1, old.version);
    }
    l->cann_number = td_ascend_cann_number(l->cann);
}

/* ---- symbols ----------------------------------------------------------------------------------- */

/* POSIX has a function's address come as void *; a copy of the bytes is what ISO C leaves. */
static void find(const td_ascend_libraries *l, const char *symbol, void *function) {
    void *at = NULL;
    for (size_t i = 0; i < l->n_libraries && !at; i++) at = dlsym(l->libraries[i], symbol);
    memcpy(function, &at, sizeof at);
}

typedef struct {
    const char *symbol, *without;
    uint32_t    since;
    size_t      at; /* in td_ascend_libraries */
} wanted;

#define WANTED(name, without, since, document, result, parameters) \
    {#name, without, since, offsetof(td_ascend_libraries, acl.name)},
static const wanted RUNTIME_SYMBOLS[] = {TD_ACL_RUNTIME(WANTED) TD_ACL_META(WANTED)};
static const wanted HCCL_SYMBOLS[] = {TD_ACL_HCCL(WANTED)};
#undef WANTED

static const struct {
    const char     *op;
    td_aclnn_ladder ladder;
    size_t          size_at, run_at;
} OPERATIONS[] = {
#define OPERATION(name, rung, document, ...)                                                   \
    {#name, TD_ACLNN_LADDER_##rung, offsetof(td_ascend_libraries, ops.name##GetWorkspaceSize), \
     offsetof(td_ascend_libraries, ops.name)},
    TD_ACLNN_OPS(OPERATION)
#undef OPERATION
};
#define N_OPERATIONS (sizeof OPERATIONS / sizeof *OPERATIONS)

static const struct {
    const char *without, *purpose;
} LADDERS[TD_ACLNN_LADDER_COUNT] = {
#define LADDER(name, without, purpose) {without, purpose},
    TD_ACLNN_LADDERS(LADDER)
#undef LADDER
};

static bool is_there(const td_ascend_libraries *l, size_t at) {
    void *p;
    memcpy(&p, (const char *)l + at, sizeof p);
    return p != NULL;
}

static const wanted *find_all(td_ascend_libraries *l, const wanted *list, size_t n) {
    const wanted *missing = NULL;
    for (size_t i = 0; i < n; i++) {
        find(l, list[i].symbol, (char *)l + list[i].at);
        if (!is_there(l, list[i].at) && !list[i].without && !missing) missing = &list[i];
    }
    return missing;
}

/* Operations that do what others do together: TD_ASCEND_FUSED=0 leaves them out, for tests and to find a fault on a card. */
static bool is_left_out(td_aclnn_ladder ladder) {
    static const bool FUSED[TD_ACLNN_LADDER_COUNT] = {
        [TD_ACLNN_LADDER_NORM_QUANT] = true,   [TD_ACLNN_LADDER_NORM_CAST] = true,
        [TD_ACLNN_LADDER_SWIGLU_QUANT] = true, [TD_ACLNN_LADDER_GQA_FRONT] = true,
        [TD_ACLNN_LADDER_ROPE_BOTH] = true,    [TD_ACLNN_LADDER_GROUPED_GATE_UP] = true,
        [TD_ACLNN_LADDER_KV_FRONT] = true,     [TD_ACLNN_LADDER_MLA_FRONT] = true,
        [TD_ACLNN_LADDER_ROUTE_CODES] = true,  [TD_ACLNN_LADDER_GROUPED_SWIGLU_QUANT] = true,
    };
    const char *value = getenv("TD_ASCEND_FUSED");
    return value && !strcmp(value, "0") && FUSED[ladder];
}

/* TD_ASCEND_EVENTS=0 takes the CANN for one that lacks what lets lengths be updated beside a step; for the same ends. */
static void leave_out_events(td_ascend_libraries *l) {
    const char *value = getenv("TD_ASCEND_EVENTS");
    if (value && !strcmp(value, "0")) l->acl.aclrtCreateEventWithFlag = NULL;
}

static void find_operations(td_ascend_libraries *l) {
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        char  name[96];
        void *none = NULL;
        snprintf(name, sizeof name, "%sGetWorkspaceSize", OPERATIONS[i].op);
        find(l, name, (char *)l + OPERATIONS[i].size_at);
        find(l, OPERATIONS[i].op, (char *)l + OPERATIONS[i].run_at);
        if (is_there(l, OPERATIONS[i].size_at) && is_there(l, OPERATIONS[i].run_at) && !is_left_out(OPERATIONS[i].ladder))
            continue;
        memcpy((char *)l + OPERATIONS[i].size_at, &none, sizeof none);
        memcpy((char *)l + OPERATIONS[i].run_at, &none, sizeof none);
    }
}

static void find_most(td_ascend_libraries *l) {
#define FIND(name) find(l, #name, &l->ops.name)
    FIND(aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize);
    FIND(aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize);
#undef FIND
}

static bool has_rung(const td_ascend_libraries *l, td_aclnn_ladder ladder) {
    for (size_t i = 0; i < N_OPERATIONS; i++)
        if (OPERATIONS[i].ladder == ladder && is_there(l, OPERATIONS[i].run_at)) return true;
    return false;
}

bool td_ascend_has_experts(const td_ascend_libraries *l) {
    const td_aclnn *o = &l->ops;
    return (o->aclnnMoeInitRoutingV3 || o->aclnnMoeInitRoutingV2) && o->aclnnGroupedMatmulV5 && o->aclnnMoeFinalizeRoutingV2;
}

static void rungs_of(td_aclnn_ladder ladder, char *text, size_t bytes) {
    text[0] = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++)
        if (OPERATIONS[i].ladder == ladder) join(text, bytes, ", ", OPERATIONS[i].op);
}

static const char *version_of(const td_ascend_libraries *l) {
    return *l->cann ? l->cann : "of an unknown version";
}

static td_status find_symbols(td_ascend_libraries *l, td_error *err) {
    char        files[256] = "";
    const char *where = *l->folder ? l->folder : "LD_LIBRARY_PATH";
    for (size_t i = 0; i < l->n_libraries; i++) join(files, sizeof files, ", ", l->names[i]);
    const wanted *missing = find_all(l, RUNTIME_SYMBOLS, sizeof RUNTIME_SYMBOLS / sizeof *RUNTIME_SYMBOLS);
    find_version(l);
    if (l->cann_number && l->cann_number < TD_ASCEND_CANN_OLDEST)
        return td_fail(err, TD_ENOTSUP, "CANN %s in %s is too old: 8.1 or later is needed", l->cann, where);
    if (missing) {
        char since[48] = "";
        if (missing->since) snprintf(since, sizeof since, "; CANN %u.%u has it", missing->since / 100, missing->since % 100);
        return td_fail(err, TD_ENOTSUP, "CANN %s in %s has no %s (looked for in %s)%s", version_of(l), where,
                       missing->symbol, files, since);
    }
    leave_out_events(l);
    find_operations(l);
    find_most(l);
    for (int i = 0; i < TD_ACLNN_LADDER_COUNT; i++) {
        char rungs[160];
        if (LADDERS[i].without || has_rung(l, (td_aclnn_ladder)i)) continue;
        rungs_of((td_aclnn_ladder)i, rungs, sizeof rungs);
        return td_fail(err, TD_ENOTSUP, "CANN %s in %s has no operation for %s: none of %s (looked for in %s)",
                       version_of(l), where, LADDERS[i].purpose, rungs, files);
    }
    l->has_hccl = !find_all(l, HCCL_SYMBOLS, sizeof HCCL_SYMBOLS / sizeof *HCCL_SYMBOLS);
    return TD_OK;
}

/* ---- the whole --------------------------------------------------------------------------------- */

td_status td_ascend_load(td_ascend_libraries *out, td_error *err) {
    *out = (td_ascend_libraries){0};
    td_status st = open_runtime(out, err);
    if (st == TD_OK) point_to_kernels(out);
    if (st == TD_OK) st = open_rest(out, err);
    if (st == TD_OK) st = find_symbols(out, err);
    if (st != TD_OK) {
        close_libraries(out);
        *out = (td_ascend_libraries){0};
        return st;
    }
    if (out->cann_number > TD_ASCEND_CANN_NEWEST)
        td_warn("CANN %s is newer than any whose documents this backend was written from (up to 9.x)", out->cann);
    return TD_OK;
}

size_t td_ascend_missing(const td_ascend_libraries *l, char *text, size_t text_bytes) {
    size_t n = 0;
    char   line[256];
    if (text_bytes) text[0] = 0;
    for (size_t i = 0; i < sizeof RUNTIME_SYMBOLS / sizeof *RUNTIME_SYMBOLS; i++) {
        if (is_there(l, RUNTIME_SYMBOLS[i].at)) continue;
        snprintf(line, sizeof line, "no %s: %s", RUNTIME_SYMBOLS[i].symbol, RUNTIME_SYMBOLS[i].without);
        join(text, text_bytes, "\n", line);
        n++;
    }
    for (int i = 0; i < TD_ACLNN_LADDER_COUNT; i++) {
        if (has_rung(l, (td_aclnn_ladder)i)) continue;
        snprintf(line, sizeof line, "no operation for %s: %s", LADDERS[i].purpose, LADDERS[i].without);
        join(text, text_bytes, "\n", line);
        n++;
    }
    if (!l->has_hccl) {
        join(text, text_bytes, "\n", "no HCCL: one card only");
        n++;
    }
    return n;
}
