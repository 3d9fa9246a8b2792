/*
 * The loader of CANN's libraries with the stand-in's libraries, all of them and with one missing. Every case runs in a
 * process of its own, on a folder of links.
 */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "npu/ascend/ascend_loader.h"
#include "tests/standins/refusal.h"

#define FILES_MAX 6

typedef struct {
    const char *name;
    const char *files[FILES_MAX]; /* of TD_ASCEND_STANDIN, linked into lib64; "text" is a file of text instead */
    const char *cann;             /* TD_STANDIN_CANN */
    td_status   status;
    const char *sentences[4]; /* parts of what is said: by the error, or of what is missing */
} loading;

#define RUNTIME "lib64/libascendcl.so"
#define BASE "lib64/libnnopbase.so"
#define OPS "lib64/libopapi.so"
#define HCCL "lib64/libhccl.so"

static const loading CASES[] = {
    {"all there", {RUNTIME, BASE, OPS, HCCL}, "9.0.0", TD_OK, {""}},
    {"CANN 8.1", {RUNTIME, BASE, OPS, HCCL}, "8.1.RC1", TD_OK, {""}},
    {"without HCCL", {RUNTIME, BASE, OPS}, "8.2.RC1", TD_OK, {"no HCCL: one card only"}},
    {"operations in parts",
     {RUNTIME, BASE, "parts/libopapi_nn.so", "parts/libopapi_transformer.so", HCCL},
     "9.1.0",
     TD_OK,
     {""}},
    {"no value to wait for",
     {"no_value/libascendcl.so", BASE, OPS, HCCL},
     "8.3.RC1",
     TD_OK,
     {"no aclrtValueWait: a doorbell has no value", "no aclsysGetVersionStr: the version is asked"}},
    {"nothing",
     {NULL},
     "9.0.0",
     TD_ENOTFOUND,
     {"libacl_rt.so or libascendcl.so", "found in none of", "set ASCEND_HOME_PATH"}},
    {"a runtime that is none",
     {"text/libascendcl.so"},
     "9.0.0",
     TD_ENOTFOUND,
     {"lib64 cannot be opened", "libascendcl.so", "source CANN's set_env.sh"}},
    {"no base", {RUNTIME, OPS}, "9.0.0", TD_ENOTFOUND, {"no libnnopbase.so that opens"}},
    {"no operations",
     {RUNTIME, BASE},
     "9.0.0",
     TD_ENOTFOUND,
     {"no libopapi.so or libopapi_*.so that opens", "install the operations"}},
    {"half of the operations",
     {RUNTIME, BASE, "parts/libopapi_nn.so"},
     "9.0.0",
     TD_ENOTSUP,
     {"has no operation for", "libopapi_nn.so"}},
    {"no captures",
     {"no_capture/libascendcl.so", BASE, OPS, HCCL},
     "8.1.RC1",
     TD_ENOTSUP,
     {"CANN 8.1.RC1 in",
      "has no aclmdlRICaptureBegin (looked for in libascendcl.so, libnnopbase.so, libopapi.so, libhccl.so)",
      "CANN 8.1 has it"}},
    {"no attention",
     {RUNTIME, BASE, "no_attention/libopapi.so"},
     "9.0.0",
     TD_ENOTSUP,
     {"no operation for attention over pages", "none of aclnnFusedInferAttentionScoreV4, aclnnFusedInferAttentionScoreV3"}},
    {"too old",
     {RUNTIME, BASE, OPS, HCCL},
     "8.0.RC3",
     TD_ENOTSUP,
     {"CANN 8.0.RC3 in", "is too old: 8.1 or later is needed"}},
    {"too old, and its symbols are missing, too",
     {"no_capture/libascendcl.so", BASE, OPS, HCCL},
     "7.3.0",
     TD_ENOTSUP,
     {"CANN 7.3.0", "too old"}},
};

static char home[64]; /* a new folder */

static void make_home(const loading *c) {
    char lib[128];
    strcpy(home, "/tmp/td_ascend_XXXXXX");
    assert_non_null(mkdtemp(home));
    snprintf(lib, sizeof lib, "%s/lib64", home);
    assert_int_equal(mkdir(lib, 0755), 0);
    for (size_t i = 0; i < FILES_MAX && c->files[i]; i++) {
        char from[1024], to[512];
        snprintf(from, sizeof from, "%s/%s", TD_ASCEND_STANDIN, c->files[i]);
        snprintf(to, sizeof to, "%s/%s", lib, strrchr(c->files[i], '/') + 1);
        if (strncmp(c->files[i], "text/", 5)) {
            assert_int_equal(symlink(from, to), 0);
        } else {
            FILE *f = fopen(to, "w");
            fputs("no library\n", f);
            fclose(f);
        }
    }
}

static void remove_home(void) {
    char           path[512];
    struct dirent *e;
    snprintf(path, sizeof path, "%s/lib64", home);
    DIR *d = opendir(path);
    while ((e = readdir(d)) != NULL) {
        char file[800];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.') unlink(file);
    }
    closedir(d);
    rmdir(path);
    rmdir(home);
}

/* Where nothing of CANN is installed: else "nothing" would find it. */
static bool is_installed(void) {
    return !access("/usr/local/Ascend/cann/lib64", F_OK) || !access("/usr/local/Ascend/ascend-toolkit/latest/lib64", F_OK);
}

static void load_alone(const void *what) {
    const loading             *c = what;
    static td_ascend_libraries l;
    td_error                   err = {0};
    char                       missing[4096] = "";
    setenv("ASCEND_HOME_PATH", home, 1);
    unsetenv("ASCEND_TOOLKIT_HOME");
    unsetenv("LD_LIBRARY_PATH");
    setenv("HOME", "/nowhere", 1);
    setenv("TD_STANDIN_CANN", c->cann, 1);
    td_status   st = td_ascend_load(&l, &err);
    size_t      n = td_ascend_missing(&l, missing, sizeof missing);
    const char *said = st == TD_OK ? missing : err.text;
    int         code = 0;
    if (st != c->status) code = 2;
    for (size_t i = 0; i < 4 && c->sentences[i]; i++)
        if (!strstr(said, c->sentences[i])) code = 3;
    if (st == TD_OK && !c->sentences[0][0] && n) code = 4;
    if (st == TD_OK && (!l.acl.aclInit || l.acl.aclInit(NULL) != TD_ACL_SUCCESS || !l.ops.aclnnRmsNorm ||
                        strcmp(l.cann, c->cann) || l.cann_number != td_ascend_cann_number(c->cann)))
        code = 5;
    if (st != TD_OK && (l.n_libraries || l.acl.aclInit || !err.text[0])) code = 6;
    if (code) fprintf(stderr, "%s: case %d: %s\n", c->name, code, said);
    _exit(code);
}

static void check_loading(void **state) {
    const loading *c = *state;
    if (!c->files[0] && is_installed()) skip();
    make_home(c);
    refusal_check(load_alone, c, 0, "", "");
    remove_home();
}
TEST_ROWS(check_loading, CASES)

/* Which environment the operations find, where CANN's set_env.sh was not read: of a CANN with kernels, and of one without. */
static void load_without_environment(const void *kernels) {
    static td_ascend_libraries l;
    td_error                   err = {0};
    char                       opp[128];
    const char                *found[2];
    setenv("ASCEND_TOOLKIT_HOME", home, 1);
    unsetenv("ASCEND_HOME_PATH");
    unsetenv("ASCEND_OPP_PATH");
    snprintf(opp, sizeof opp, "%s/opp", home);
    if (td_ascend_load(&l, &err) != TD_OK) _exit(1);
    found[0] = getenv("ASCEND_HOME_PATH");
    found[1] = getenv("ASCEND_OPP_PATH");
    if (!*(const bool *)kernels) _exit(found[0] || found[1] ? 2 : 0);
    _exit(found[0] && found[1] && !strcmp(found[0], home) && !strcmp(found[1], opp) ? 0 : 3);
}

TEST(kernels) {
    char opp[128];
    make_home(&CASES[0]);
    snprintf(opp, sizeof opp, "%s/opp", home);
    refusal_check(load_without_environment, &(bool){false}, 0, "ASCEND_OPP_PATH are not set, and there is no ", "");
    assert_int_equal(mkdir(opp, 0755), 0);
    refusal_check(load_without_environment, &(bool){true}, 0, "", "");
    rmdir(opp);
    remove_home();
}

TEST(versions) {
    assert_int_equal(td_ascend_cann_number("8.1.RC1"), 801);
    assert_int_equal(td_ascend_cann_number("8.2.RC1.alpha003"), 802);
    assert_int_equal(td_ascend_cann_number("9.0.0-beta.1"), 900);
    assert_int_equal(td_ascend_cann_number("10.12"), 1012);
    const char *none[] = {"", "9", "9.", "x.1", "-1.2", "9.x", "0.1", "123.4", "8.100"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) assert_int_equal(td_ascend_cann_number(none[i]), 0);
}
