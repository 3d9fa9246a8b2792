/* The kernels' way from their sources to a card, with stand-ins for NVRTC and for the driver. Compiled kernels are kept in a
 * file, which is used only when it is whole. Everything that can be wrong with a compiler is reported in a sentence. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/standins/refusal.h"

#include "npu/cuda/cuda_image.h"
#include "npu/cuda/cuda_kernels.h"
#include "npu/cuda/cuda_nvrtc.h"
#include "npu/cuda/cuda_sources.h"
#include "tests/standins/cuda/cuda_driver_rig.h"
#include "tests/standins/cuda/driver/cuda_standin_image.h"

#define DRIVER 12080
#define LOG "kernel.cu(7): warning: odd\nkernel.cu(9): error: it is wrong\nkernel.cu(9): error: and again\n"

static char folder[64]; /* of kept images, new for every test */

static int new_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/td_cuda_image_XXXXXX");
    if (!mkdtemp(folder)) return 1;
    setenv("TD_CUDA_CACHE", folder, 1);
    setenv("TD_NVRTC", TD_CUDA_STANDIN, 1);
    return 0;
}

static int n_files(char last[256]) {
    DIR           *d = opendir(folder);
    struct dirent *e;
    int            n = 0;
    while (d && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.') {
            snprintf(last, 256, "%s", e->d_name);
            n++;
        }
    if (d) closedir(d);
    return n;
}

static int remove_folder(void **state) {
    static const char *const SET[] = {"TD_STANDIN_NVRTC",        "TD_STANDIN_NVRTC_LOG", "TD_STANDIN_NVRTC_FAIL",
                                      "TD_STANDIN_NVRTC_NEWEST", "TD_CUDA_CACHE",        "TD_NVRTC"};
    char                     name[256], path[400];
    (void)state;
    while (n_files(name)) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (remove(path) != 0) return 1;
    }
    for (size_t i = 0; i < sizeof SET / sizeof *SET; i++) unsetenv(SET[i]);
    return rmdir(folder);
}

/** Compiling is a mistake from now on, so that what succeeds was kept. */
static void no_compiler(bool yes) {
    if (yes)
        setenv("TD_STANDIN_NVRTC_LOG", LOG, 1);
    else
        unsetenv("TD_STANDIN_NVRTC_LOG");
}

static void gets(int capability, const char *image) {
    td_cuda_image got;
    td_error      err = {0};
    if (td_cuda_image_get(&got, capability, DRIVER, &err) != TD_OK) fail_msg("%s", err.text);
    assert_int_equal(got.version, 12080);
    assert_int_equal(strncmp(got.data, image, strlen(image)), 0);
    assert_int_equal(((char *)got.data)[got.bytes], 0);
    td_cuda_image_free(&got);
    assert_null(got.data);
}

static void get_fails(int capability, int driver, td_status status, const char *sentence) {
    td_cuda_image got;
    td_error      err = {0};
    assert_int_equal(td_cuda_image_get(&got, capability, driver, &err), status);
    assert_null(got.data);
    if (!strstr(err.text, sentence)) fail_msg("%s", err.text);
}

/* ---- kept -------------------------------------------------------------------------------------- */

/** The key is all that an image is made from: another generation, or another compiler, has another image. */
TEST_WITH(kept, new_folder, remove_folder) {
    char name[256];
    gets(90, STANDIN_IMAGE "\nsm_90 12080\n");
    assert_int_equal(n_files(name), 1);
    assert_int_equal(strncmp(name, "cuda-sm_90-", 11), 0);
    no_compiler(true);
    gets(90, STANDIN_IMAGE "\nsm_90 12080\n");
    get_fails(86, DRIVER, TD_EDEVICE, "does not compile");
    setenv("TD_STANDIN_NVRTC", "12040", 1);
    get_fails(90, DRIVER, TD_EDEVICE, "does not compile");
    setenv("TD_STANDIN_NVRTC", "12080", 1);
    no_compiler(false);
    gets(86, STANDIN_IMAGE "\nsm_86 12080\n");
    assert_int_equal(n_files(name), 2);
}

static int open_kept(int flags) {
    char name[256], path[400];
    assert_int_equal(n_files(name), 1);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, flags);
    assert_true(fd >= 0);
    return fd;
}
static void damage_image(void) {
    int fd = open_kept(O_RDWR);
    assert_int_equal(pwrite(fd, "X", 1, lseek(fd, 0, SEEK_END) - 1), 1);
    close(fd);
}
static void damage_checksum(void) {
    int fd = open_kept(O_RDWR);
    assert_int_equal(pwrite(fd, "\1\2\3\4\5\6\7\10", 8, 32), 8);
    close(fd);
}
static void another_key(void) {
    int fd = open_kept(O_RDWR);
    assert_int_equal(pwrite(fd, "XX", 2, 9), 2);
    close(fd);
}
static void cut_off(void) {
    int fd = open_kept(O_RDWR);
    assert_int_equal(ftruncate(fd, lseek(fd, 0, SEEK_END) - 1), 0);
    close(fd);
}
static void longer(void) {
    int fd = open_kept(O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "X", 1), 1);
    close(fd);
}
static void empty(void) {
    int fd = open_kept(O_RDWR);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
}
static void huge(void) {
    int fd = open_kept(O_RDWR);
    assert_int_equal(pwrite(fd, "\377\377\377\377\377\377\377\377", 8, 24), 8);
    close(fd);
}
static void others_can_write(void) {
    int fd = open_kept(O_RDONLY);
    assert_int_equal(fchmod(fd, 0660), 0);
    close(fd);
}
static void a_link(void) {
    char name[256], path[400], to[400];
    assert_int_equal(n_files(name), 1);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(to, sizeof to, "%s/elsewhere", folder);
    assert_int_equal(rename(path, to), 0);
    assert_int_equal(symlink(to, path), 0);
}
static void a_pipe(void) {
    char name[256], path[400];
    assert_int_equal(n_files(name), 1);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void get_again(const void *what) {
    AT_END(td_cuda_image_free) td_cuda_image got;
    (void)what;
    if (td_cuda_image_get(&got, 90, DRIVER, NULL) != TD_OK) _exit(7);
}

/** What is wrong with a kept file is said, and the file is made again. */
TEST_WITH(damaged, new_folder, remove_folder) {
    static void (*const WAYS[])(void) = {damage_image, damage_checksum,  another_key, cut_off, longer, empty,
                                         huge,         others_can_write, a_link,      a_pipe};
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        gets(90, STANDIN_IMAGE);
        WAYS[i]();
        no_compiler(true);
        get_fails(90, DRIVER, TD_EDEVICE, "does not compile");
        no_compiler(false);
        refusal_check(get_again, NULL, 0, "compiled kernels are made again: ", folder);
        no_compiler(true);
        gets(90, STANDIN_IMAGE);
        no_compiler(false);
        remove_folder(state);
        new_folder(state);
    }
}

/** Where nothing can be kept it is compiled every time, and said. */
TEST_WITH(nowhere, new_folder, remove_folder) {
    setenv("TD_CUDA_CACHE", "/proc/none", 1);
    refusal_check(get_again, NULL, 0, "are not kept, so the next start compiles them again: the folder /proc/none", "");
    setenv("TD_CUDA_CACHE", "relative", 1);
    setenv("XDG_CACHE_HOME", folder, 1);
    refusal_check(get_again, NULL, 0, "compiled the kernels in", "");
    no_compiler(true);
    gets(90, STANDIN_IMAGE); /* in the standard's folder */
    char path[400], name[256], below[128];
    snprintf(below, sizeof below, "%s/tandem", folder);
    snprintf(path, sizeof path, "%s", folder);
    strcpy(folder, below);
    assert_int_equal(n_files(name), 1);
    assert_int_equal(remove_folder(state), 0);
    strcpy(folder, path);
    unsetenv("XDG_CACHE_HOME");
}

/** Processes that find nothing kept all compile, and one of their files stays. */
TEST_WITH(at_once, new_folder, remove_folder) {
    char  name[256];
    pid_t child[4];
    for (int i = 0; i < 4; i++)
        if ((child[i] = fork()) == 0) {
            td_cuda_image got;
            td_status     st = td_cuda_image_get(&got, 90, DRIVER, NULL);
            _exit(st == TD_OK && strncmp(got.data, STANDIN_IMAGE, strlen(STANDIN_IMAGE)) == 0 ? 0 : 7);
        }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(n_files(name), 1);
    no_compiler(true);
    gets(90, STANDIN_IMAGE);
}

/* ---- sentences --------------------------------------------------------------------------------- */

TEST_WITH(sentences, new_folder, remove_folder) {
    char path[128];
    no_compiler(true);
    get_fails(90, DRIVER, TD_EDEVICE,
              "NVRTC 12.8 does not compile the kernels with --gpu-architecture=sm_90: kernel.cu(9): error: it is wrong");
    no_compiler(false);
    get_fails(75, DRIVER, TD_ENOTSUP, "the card has compute capability 7.5 and is too old: 8.0");
    setenv("TD_STANDIN_NVRTC_NEWEST", "75", 1);
    get_fails(90, DRIVER, TD_ENOTSUP, "compiles for none of the generations of cards from 8.0 to 9.0");
    unsetenv("TD_STANDIN_NVRTC_NEWEST");
    setenv("TD_NVRTC", TD_CUDA_STANDIN "/no_log", 1);
    get_fails(90, DRIVER, TD_ENOTSUP, "no_log/libnvrtc.so.12 has no nvrtcGetProgramLog: it is no NVRTC");
    setenv("TD_NVRTC", folder, 1);
    get_fails(90, DRIVER, TD_ENOTFOUND, "was not found in /tmp/td_cuda_image_");
    get_fails(90, DRIVER, TD_ENOTFOUND,
              "pip install nvidia-cuda-nvrtc-cu12, or set TD_NVRTC to the folder of libnvrtc.so.12");
    get_fails(90, 13000, TD_ENOTFOUND, "pip install \"nvidia-cuda-nvrtc==13.*\", or set TD_NVRTC to the folder of");
    snprintf(path, sizeof path, "%s/libnvrtc.so.13", folder);
    assert_int_equal(symlink(TD_CUDA_STANDIN "/libnvrtc.so.12", path), 0);
    get_fails(90, DRIVER, TD_ENOTFOUND, "libnvrtc.so.13 is too new for the driver, which serves CUDA 12.8");
    td_cuda_image got;
    OK(td_cuda_image_get(&got, 90, 13000, NULL)); /* a driver of that version takes it */
    td_cuda_image_free(&got);
    snprintf(path, sizeof path, "%s/libnvrtc.so.12", folder);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "text", 4), 4);
    close(fd);
    get_fails(90, DRIVER, TD_ENOTFOUND, "NVRTC is there and does not open: ");
}

/** Of a generation that the compiler does not know the driver gets PTX of the one before. */
TEST_WITH(newer_card, new_folder, remove_folder) {
    setenv("TD_STANDIN_NVRTC_NEWEST", "89", 1);
    gets(90, STANDIN_IMAGE "\ncompute_89 12080\n");
    no_compiler(true);
    gets(90, STANDIN_IMAGE "\ncompute_89 12080\n");
    setenv("TD_STANDIN_NVRTC_NEWEST", "90", 1);
    get_fails(90, DRIVER, TD_EDEVICE, "does not compile"); /* that is another image */
}

/** Every call that can fail does once: a sentence, and nothing is left behind (the stand-in counts its programs). */
TEST_WITH(faults, new_folder, remove_folder) {
    int n = 1;
    for (;; n++) {
        td_cuda_image got;
        td_error      err = {0};
        char          text[16];
        snprintf(text, sizeof text, "%d", n);
        setenv("TD_STANDIN_NVRTC_FAIL", text, 1);
        td_status st = td_cuda_image_get(&got, 90, DRIVER, &err);
        td_cuda_image_free(&got);
        if (st == TD_OK) break;
        if (!strstr(err.text, "NVRTC_ERROR_INTERNAL_ERROR")) fail_msg("call %d: %s", n, err.text);
    }
    assert_int_equal(n, 8); /* version, two of the generations, create, compile, two of the cubin */
}

/* ---- into a card ------------------------------------------------------------------------------- */

static void load(const void *what) {
    AT_END(driver_close) driver_rig r;
    td_cu_module                    m;
    td_cu_kernel                    k;
    td_error                        err = {0};
    setenv("TD_STANDIN_KERNELS", TD_CUDA_STANDIN "/libstandin_kernels.so", 1);
    setenv("TD_STANDIN_NVRTC_NEWEST", what ? "89" : "90", 1);
    driver_open(&r);
    if (what) setenv("TD_STANDIN_CUDA", what, 1);
    td_status st = td_cuda_module_load(r.cu, 0, &m, &err);
    if (st != TD_OK) fprintf(stderr, "load: %s\n", err.text);
    if (st == TD_OK) {
        TRY(r.cu->cuModuleGetFunction(&k, m, "add"));
        TRY(r.cu->cuModuleUnload(m));
    }
}

TEST_WITH(loaded, new_folder, remove_folder) {
    refusal_check(load, NULL, 0, "compiled the kernels in", "");
    refusal_check(load, NULL, 0, "info  kernels for the card: ", folder);
    refusal_check(load, "12080", 0, "the driver translates the kernels (--gpu-architecture=compute_89)", "");
    refusal_check(
        load, "12020", 0,
        "load: the driver serves CUDA 12.2 and does not take kernels that NVRTC 12.8 has compiled: update the driver", "");
}

#ifdef TD_CUDA_EMULATED /* the kernels are there for the CPU */
static void open_kernels(const void *what) {
    driver_rig      r;
    td_cuda_kernels k;
    td_error        err = {0};
    driver_open(&r);
    td_status st = td_cuda_kernels_open(r.cu, 0, &k, &err);
    if (st != TD_OK) fprintf(stderr, "%s\n", err.text);
    if (st != TD_OK || !k.at[TD_CUDA_KERNEL_COUNT - 1]) _exit(7);
    td_cuda_kernels_close(r.cu, &k);
    driver_close(&r);
    (void)what;
}
#endif

/** Every kernel that the device launches is in what is compiled. */
TEST_WITH(all_kernels, new_folder, remove_folder) {
#ifdef TD_CUDA_EMULATED
    refusal_check(open_kernels, NULL, 0, "compiled the kernels in", "");
#else
    skip();
#endif
}

/* ---- who misuses NVRTC is told ----------------------------------------------------------------- */

static td_nvrtc_program program_of(const td_nvrtc *n, const char *source) {
    td_nvrtc_program p;
    if (n->nvrtcCreateProgram(&p, source, NULL, 0, NULL, NULL) != TD_NVRTC_SUCCESS) _exit(9);
    return p;
}
static const char *const OPTIONS[] = {"--gpu-architecture=sm_90", "-fmad=false", "--gpu-architecture=sm_42", "--fast-maths",
                                      "--gpu-architecture=compute_90"};
static char              out[4096];
static size_t            bytes;

static void no_source(const td_nvrtc *n, td_nvrtc_program p) {
    (void)p;
    (void)program_of(n, NULL);
}
static void headers_without_a_list(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCreateProgram(&p, "", NULL, 1, NULL, NULL);
}
static void same_header_twice(const td_nvrtc *n, td_nvrtc_program p) {
    const char *const both[] = {"a.h", "a.h"};
    (void)n->nvrtcCreateProgram(&p, "", NULL, 2, both, both);
}
static void destroyed_twice(const td_nvrtc *n, td_nvrtc_program p) {
    td_nvrtc_program q = p;
    (void)n->nvrtcDestroyProgram(&p);
    (void)n->nvrtcDestroyProgram(&q);
}
static void compiled_when_destroyed(const td_nvrtc *n, td_nvrtc_program p) {
    td_nvrtc_program q = p;
    (void)n->nvrtcDestroyProgram(&p);
    (void)n->nvrtcCompileProgram(q, 1, OPTIONS);
}
static void not_destroyed(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n;
    (void)p;
    exit(0);
}
static void compiled_twice(const td_nvrtc *n, td_nvrtc_program p) {
    for (int i = 0; i < 2; i++) (void)n->nvrtcCompileProgram(p, 2, OPTIONS);
}
static void no_architecture(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCompileProgram(p, 1, OPTIONS + 1);
}
static void unknown_architecture(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCompileProgram(p, 1, OPTIONS + 2);
}
static void unknown_option(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCompileProgram(p, 1, OPTIONS + 3);
}
static void size_before_compiling(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcGetCUBINSize(p, &bytes);
}
static void log_before_compiling(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcGetProgramLogSize(p, &bytes);
}
static void cubin_before_its_size(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCompileProgram(p, 1, OPTIONS);
    (void)n->nvrtcGetCUBIN(p, out);
}
static void log_before_its_size(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCompileProgram(p, 1, OPTIONS);
    (void)n->nvrtcGetProgramLog(p, out);
}
static void cubin_of_ptx(const td_nvrtc *n, td_nvrtc_program p) {
    (void)n->nvrtcCompileProgram(p, 1, OPTIONS + 4);
    (void)n->nvrtcGetCUBINSize(p, &bytes);
    if (bytes) _exit(9);
    (void)n->nvrtcGetCUBIN(p, out);
}
static void cubin_of_an_error(const td_nvrtc *n, td_nvrtc_program p) {
    p = program_of(n, "int x;\n#include \"none.h\"\n");
    if (n->nvrtcCompileProgram(p, 1, OPTIONS) != TD_NVRTC_ERROR_COMPILATION) _exit(9);
    (void)n->nvrtcGetProgramLogSize(p, &bytes);
    (void)n->nvrtcGetProgramLog(p, out);
    if (!strstr(out, "default_program(2): catastrophic error: cannot open source file \"none.h\"")) _exit(9);
    (void)n->nvrtcGetCUBINSize(p, &bytes);
}

typedef struct {
    const char *name;
    void (*act)(const td_nvrtc *n, td_nvrtc_program p);
    const char *sentence;
} rule;

#define BREAKS(act, sentence) \
    { #act, act, sentence }
static const rule RULES[] = {
    BREAKS(no_source, "the program's text is NULL"),
    BREAKS(headers_without_a_list, "1 headers and no list of them"),
    BREAKS(same_header_twice, "two headers have the name a.h"),
    BREAKS(destroyed_twice, "nvrtcDestroyProgram of a program that is none, or is destroyed"),
    BREAKS(compiled_when_destroyed, "nvrtcCompileProgram of a program that is none, or is destroyed"),
    BREAKS(not_destroyed, "1 programs were not destroyed"),
    BREAKS(compiled_twice, "a program is compiled a second time"),
    BREAKS(no_architecture, "no --gpu-architecture"),
    BREAKS(unknown_architecture, "to compile for sm_42, and knows none of that number"),
    BREAKS(unknown_option, "the option --fast-maths is none"),
    BREAKS(size_before_compiling, "nvrtcGetCUBINSize before nvrtcCompileProgram"),
    BREAKS(log_before_compiling, "nvrtcGetProgramLogSize before nvrtcCompileProgram"),
    BREAKS(cubin_before_its_size, "nvrtcGetCUBIN before its size was asked for"),
    BREAKS(log_before_its_size, "nvrtcGetProgramLog before its size was asked for"),
    BREAKS(cubin_of_ptx, "that was compiled for a virtual architecture"),
    BREAKS(cubin_of_an_error, "of a program that was not compiled without errors"),
};

static void break_rule(const void *what) {
    td_nvrtc_library l;
    td_error         err = {0};
    if (td_nvrtc_load(&l, DRIVER, &err) != TD_OK) _exit(8);
    ((const rule *)what)->act(&l.api, program_of(&l.api, ""));
}

TEST_WITH(rules, new_folder, remove_folder) {
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++)
        refusal_check(break_rule, &RULES[i], SIGABRT, RULES[i].sentence, "nvrtc stand-in: ");
}

/** The sources in the program are those of the folder: all of them, to the last byte. */
TEST(sources) {
    DIR           *d = opendir(TD_SOURCE_DIR "/npu/cuda/kernels");
    struct dirent *e;
    size_t         n = 0;
    assert_non_null(d);
    while ((e = readdir(d)) != NULL) n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, TD_CUDA_SOURCES_N);
    for (size_t i = 0; i < n; i++) {
        char path[512], *text = malloc(1 << 20);
        snprintf(path, sizeof path, "%s/%s", TD_SOURCE_DIR, TD_CUDA_SOURCES[i].name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        size_t length = fread(text, 1, 1 << 20, f);
        fclose(f);
        assert_int_equal(length, strlen(TD_CUDA_SOURCES[i].text));
        assert_memory_equal(text, TD_CUDA_SOURCES[i].text, length);
        free(text);
    }
}
