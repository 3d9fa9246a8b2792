/*
 * Pictures through their processes: what a loader makes of good files and bad ones, and of processes that lie, hang and die.
 * What a process has of this machine while it looks at a file. Base64 and data URLs.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/files/json_file.h"
#include "image/base64.h"
#include "image/decode.h"
#include "image/image.h"
#include "image/image_fit.h"
#include "image/image_protocol.h"
#include "image/image_worker.h"
#include "tests/td_test.h"

#define FOLDER TD_SOURCE_DIR "/tests/data/images/"
#define PATIENCE_MS 60000

static const char QWEN[] = "{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"patch_size\": 16}";
static const char SMALL[] =
    "{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"patch_size\": 16, \"min_pixels\": 4096, \"max_pixels\": 4096}";

static td_image_rule rule_of(const char *text) {
    td_image_rule rule;
    OK(td_image_rule_parse(text, strlen(text), &rule, NULL));
    return rule;
}

static td_image_loader *loader_with(td_image_options o) {
    td_image_loader *l;
    OK(td_image_loader_open(&o, &l, NULL));
    return l;
}

static td_image_loader *loader_of(const char *program) {
    td_image_options o = td_image_default_options();
    o.program = program;
    o.time_ms = PATIENCE_MS;
    return loader_with(o);
}

static uint8_t *read_picture(const char *name, size_t *n) {
    char  path[300];
    char *bytes;
    snprintf(path, sizeof path, FOLDER "%s", name);
    OK(td_file_read(path, 1 << 20, &bytes, n, NULL));
    return (uint8_t *)bytes;
}

/* The same without a process. */
static void assert_is(const td_image *image, const uint8_t *bytes, size_t n) {
    td_picture p = {0};
    OK(td_picture_decode(bytes, n, 1000000, &p, NULL));
    OK(td_picture_fit(&p, &image->rule, NULL));
    assert_int_equal(image->rows * image->rule.patch, p.height);
    assert_int_equal(image->cols * image->rule.patch, p.width);
    assert_memory_equal(image->rgb, p.rgb, (size_t)p.height * p.width * 3);
    td_picture_free(&p);
}

TEST(a_picture_comes_back) {
    static const char *const NAMES[] = {"photo", "jpeg-cmyk", "webp-animated-alpha", "jpeg-exif6"};
    td_image_loader         *l = loader_of(TD_TANDEM);
    td_image_rule            rule = rule_of(QWEN);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        size_t    n;
        uint8_t  *bytes = read_picture(NAMES[i], &n);
        td_image *image, *again;
        td_error  err = {0};
        if (td_image_load(l, &rule, bytes, n, &image, &err) != TD_OK) fail_msg("%s: %s", NAMES[i], err.text);
        assert_is(image, bytes, n);
        OK(td_image_load(l, &rule, bytes, n, &again, NULL));
        assert_memory_equal(image->hash, again->hash, sizeof image->hash);
        assert_int_equal(td_image_tokens(image), image->rows * image->cols / 4);
        td_image_hold(image);
        td_image_release(image);
        td_image_release(image);
        td_image_release(again);
        free(bytes);
    }
    td_image_loader_close(l);
}

TEST(other_pixels_and_other_grids_have_other_names) {
    td_image_loader *l = loader_of(TD_TANDEM);
    td_image_rule    rules[2] = {rule_of(QWEN), rule_of(SMALL)};
    td_image        *images[3];
    for (size_t i = 0; i < 3; i++) {
        size_t   n;
        uint8_t *bytes = read_picture(i == 1 ? "png-filters" : "photo", &n);
        OK(td_image_load(l, &rules[i == 2], bytes, n, &images[i], NULL));
        free(bytes);
    }
    assert_memory_not_equal(images[0]->hash, images[1]->hash, TD_IMAGE_HASH_BYTES);
    assert_memory_not_equal(images[0]->hash, images[2]->hash, TD_IMAGE_HASH_BYTES);
    for (size_t i = 0; i < 3; i++) td_image_release(images[i]);
    td_image_loader_close(l);
}

static void assert_refused(td_image_loader *l, const char *rule_text, const void *bytes, size_t n, td_status status,
                           const char *says) {
    td_image     *image = NULL;
    td_error      err = {0};
    td_image_rule rule = rule_of(rule_text);
    td_status     s = td_image_load(l, &rule, bytes, n, &image, &err);
    if (s != status || !strstr(err.text, says)) fail_msg("%d: '%s', and not '%s'", s, err.text, says);
    assert_null(image);
}

TEST(bad_files_are_refused_with_a_sentence) {
    td_image_options o = td_image_default_options();
    size_t           n;
    uint8_t         *photo = read_picture("photo", &n);
    o.program = TD_TANDEM, o.time_ms = PATIENCE_MS, o.bytes_max = n;
    td_image_loader *l = loader_with(o);
    assert_refused(l, QWEN, "<svg/>", 6, TD_ENOTSUP, "the picture is an SVG");
    assert_refused(l, QWEN, "", 0, TD_ENOTSUP, "the picture is empty");
    assert_refused(l, QWEN, photo, n / 2, TD_EFORMAT, "the PNG cannot be read: the file ends too soon");
    assert_refused(l, QWEN, photo, n + 1, TD_ELIMIT, "at most");
    td_image_loader_close(l);

    o.pixels_max = 100;
    l = loader_with(o);
    assert_refused(l, QWEN, photo, n, TD_ELIMIT, "97 x 61 pixels; at most 100 are taken");
    td_image_loader_close(l);

    o.pixels_max = 100000, o.bytes_max = 1 << 22, o.memory_bytes = 1 << 16; /* not even the file has room */
    l = loader_with(o);
    uint8_t *zeros = calloc(1, 1 << 22);
    assert_non_null(zeros);
    assert_refused(l, QWEN, zeros, 1 << 22, TD_ELIMIT, "the picture needs more than 0 MiB of memory");
    td_image_loader_close(l);
    free(zeros);
    free(photo);
}

/* A file of 2 KB with 4000 x 4000 pixels. */
static uint8_t *white_png(size_t *n) {
    td_error err = {0};
    char    *bytes;
    if (td_file_read(FOLDER "large-white", 1 << 20, &bytes, n, &err) != TD_OK) fail_msg("%s", err.text);
    return (uint8_t *)bytes;
}

TEST(a_picture_that_needs_too_much_memory_is_refused) {
    td_image_options o = td_image_default_options();
    size_t           n;
    uint8_t         *white = white_png(&n);
    o.program = TD_TANDEM, o.time_ms = PATIENCE_MS, o.memory_bytes = 40 << 20; /* its pixels take 48 MB */
    td_image_loader *l = loader_with(o);
    assert_refused(l, SMALL, white, n, TD_ELIMIT, "the picture needs more than 40 MiB of memory");
    td_image_loader_close(l);
    free(white);
}

TEST(a_picture_that_takes_too_long_is_refused) {
    td_image_options o = td_image_default_options();
    size_t           n;
    uint8_t         *white = white_png(&n);
    o.program = TD_TANDEM, o.time_ms = 1;
    td_image_loader *l = loader_with(o);
    assert_refused(l, SMALL, white, n, TD_ELIMIT, "the picture takes longer than 1 ms to decode");
    td_image_loader_close(l);
    free(white);
}

/* ---- processes that do not keep to the protocol ---- */

static const struct {
    const char *name, *file, *says;
    td_status   status;
} LIES[] = {
    {"it dies", "d", "its decoder has failed", TD_EFORMAT},
    {"another magic", "m", "its decoder has failed", TD_EFORMAT},
    {"a status of the machine", "s", "its decoder has failed", TD_EFORMAT},
    {"no status", "S", "its decoder has failed", TD_EFORMAT},
    {"no sentence", "n", "its decoder has failed", TD_EFORMAT},
    {"another canvas", "c", "its decoder has failed", TD_EFORMAT},
    {"no pixels", "z", "its decoder has failed", TD_EFORMAT},
    {"too many pixels", "p", "its decoder has failed", TD_EFORMAT},
    {"a sentence of line ends, without its own", "t", "????????", TD_EFORMAT},
    {"half an answer", "a", "its decoder has failed", TD_EFORMAT},
    {"a byte too few", "f", "its decoder has failed", TD_EFORMAT},
    {"a byte too many", "x", "its decoder has failed", TD_EFORMAT},
};

static void is_caught(void **state) {
    const typeof(*LIES) *row = *state;
    td_image_loader     *l = loader_of(TD_BAD_WORKER);
    td_image            *image;
    td_image_rule        rule = rule_of(SMALL);
    assert_refused(l, SMALL, row->file, 1, row->status, row->says);
    OK(td_image_load(l, &rule, (const uint8_t *)"o", 1, &image, NULL)); /* the next one is none the worse */
    td_image_release(image);
    td_image_loader_close(l);
}
TEST_ROWS(is_caught, LIES)

TEST(a_process_that_hangs_is_ended) { /* before it answers, behind its picture, and while the file is sent */
    td_image_options o = td_image_default_options();
    const size_t     large = 8 << 20; /* more than a socket holds */
    uint8_t         *file = calloc(1, large);
    assert_non_null(file);
    o.program = TD_BAD_WORKER, o.time_ms = 100;
    td_image_loader *l = loader_with(o);
    assert_refused(l, SMALL, "h", 1, TD_ELIMIT, "longer than 100 ms");
    assert_refused(l, SMALL, "l", 1, TD_ELIMIT, "longer than 100 ms");
    file[0] = 'h';
    assert_refused(l, SMALL, file, large, TD_ELIMIT, "longer than 100 ms");
    file[0] = 'd';
    assert_refused(l, SMALL, file, large, TD_EFORMAT, "its decoder has failed");
    td_image_loader_close(l);
    free(file);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* none is left, not even as a zombie */
    assert_int_equal(errno, ECHILD);
}

TEST(a_process_that_closes_and_stays_is_ended) {
    td_image_loader *l = loader_of(TD_BAD_WORKER);
    td_image_rule    rule = rule_of(SMALL);
    td_image        *image;
    OK(td_image_load(l, &rule, (const uint8_t *)"e", 1, &image, NULL));
    td_image_release(image);
    td_image_loader_close(l);
}

TEST(a_program_that_is_not_there_is_told) {
    td_image_loader *l = loader_of("/nonexistent/tandem");
    assert_refused(l, SMALL, "o", 1, TD_EIO, "cannot be started");
    td_image_loader_close(l);
}

static void nap(void) {
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* A child of this process, of whichever thread; 0: there is none. */
static pid_t any_child(void) {
    DIR  *tasks = opendir("/proc/self/task");
    pid_t child = 0;
    assert_non_null(tasks);
    for (struct dirent *e; !child && (e = readdir(tasks));) {
        char  path[300];
        FILE *f;
        snprintf(path, sizeof path, "/proc/self/task/%s/children", e->d_name);
        if (e->d_name[0] == '.' || !(f = fopen(path, "r"))) continue;
        if (fscanf(f, "%d", &child) != 1) child = 0;
        fclose(f);
    }
    closedir(tasks);
    return child;
}

typedef struct {
    td_image_loader *loader;
    td_status        status;
    td_error         err;
} hanging;

static void *load_hanging(void *user) {
    hanging      *h = user;
    td_image     *image;
    td_image_rule rule = rule_of(SMALL);
    h->status = td_image_load(h->loader, &rule, (const uint8_t *)"h", 1, &image, &h->err);
    return NULL;
}

TEST(a_process_that_is_killed_costs_its_picture) {
    hanging       h = {.loader = loader_of(TD_BAD_WORKER)};
    pthread_t     thread;
    td_image     *image;
    td_image_rule rule = rule_of(SMALL);
    pid_t         child;
    assert_int_equal(pthread_create(&thread, NULL, load_hanging, &h), 0);
    while (!(child = any_child())) nap();
    kill(child, SIGKILL);
    pthread_join(thread, NULL);
    assert_int_equal(h.status, TD_EFORMAT);
    assert_non_null(strstr(h.err.text, "its decoder has failed"));
    OK(td_image_load(h.loader, &rule, (const uint8_t *)"o", 1, &image, NULL));
    td_image_release(image);
    td_image_loader_close(h.loader);
}

/* ---- many at a time ---- */

#define THREADS 6

typedef struct {
    td_image_loader *loader;
    const uint8_t   *bytes;
    size_t           n;
} shared;

static void *load_some(void *user) {
    const shared *s = user;
    td_image_rule rule = rule_of(SMALL);
    for (int i = 0; i < 3; i++) {
        td_image *image;
        if (td_image_load(s->loader, &rule, s->bytes, s->n, &image, NULL) != TD_OK) return (void *)s;
        td_image_release(image);
    }
    return NULL;
}

TEST(threads_share_a_loader) {
    td_image_options o = td_image_default_options();
    pthread_t        threads[THREADS];
    shared           s;
    o.program = TD_TANDEM, o.time_ms = PATIENCE_MS, o.workers = 2;
    s.loader = loader_with(o);
    s.bytes = read_picture("photo", &s.n);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, load_some, &s), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    free((void *)s.bytes);
    td_image_loader_close(s.loader);
}

TEST(limits_out_of_range_are_refused) {
    const td_image_options good = td_image_default_options();
    td_image_options       bad[6];
    td_image_loader       *l = NULL;
    for (size_t i = 0; i < 6; i++) bad[i] = good;
    bad[0].workers = 0, bad[1].workers = TD_IMAGE_WORKERS_MAX + 1, bad[2].bytes_max = 0;
    bad[3].pixels_max = TD_IMAGE_SIZE_MAX + 1, bad[4].memory_bytes = 0, bad[5].time_ms = 0;
    for (size_t i = 0; i < 6; i++) assert_int_equal(td_image_loader_open(&bad[i], &l, NULL), TD_EINVAL);
    assert_null(l);
}

/* ---- the process itself ---- */

typedef struct {
    pid_t pid;
    int   socket;
} process;

static process started(void) {
    process                    p;
    int                        ends[2];
    char                      *arguments[] = {"tandem", TD_IMAGE_COMMAND, NULL}, *environment[] = {NULL};
    posix_spawn_file_actions_t files;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 9); /* a descriptor that its server has left open */
    assert_int_equal(posix_spawn(&p.pid, TD_TANDEM, &files, NULL, arguments, environment), 0);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    p.socket = ends[0];
    return p;
}

static int ended(process *p) {
    int status;
    close(p->socket);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void send_to(const process *p, const void *bytes, size_t n) {
    assert_int_equal(send(p->socket, bytes, n, MSG_NOSIGNAL), n);
}

static td_image_question question(uint64_t bytes) {
    return (td_image_question){TD_IMAGE_QUESTION, 5, 64 << 20, 1000000, bytes, rule_of(SMALL)};
}

/* A file of the process's in /proc, as a text. */
static void proc_text(const process *p, const char *name, char *text, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", p->pid, name);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, room - 1);
    assert_true(n >= 0);
    text[n] = 0;
    close(fd);
}

static void assert_limit(const char *limits, const char *name, const char *value) {
    const char *line = strstr(limits, name);
    char        got[32];
    assert_non_null(line);
    assert_int_equal(sscanf(line + strlen(name), "%31s", got), 1);
    if (value ? strcmp(got, value) : !strcmp(got, "unlimited")) fail_msg("%s: %s", name, got);
}

TEST(a_process_has_given_up_everything_before_it_sees_the_file) {
    process           p = started();
    td_image_question q = question(10);
    char              text[8192], path[64];
    send_to(&p, &q, sizeof q);
    do { /* the filter is the last thing that it sets up */
        nap();
        proc_text(&p, "status", text, sizeof text);
    } while (!strstr(text, "Seccomp:\t2"));
    assert_non_null(strstr(text, "NoNewPrivs:\t1"));
    proc_text(&p, "limits", text, sizeof text);
    assert_limit(text, "Max open files", "0");
    assert_limit(text, "Max processes", "0");
    assert_limit(text, "Max file size", "0");
    assert_limit(text, "Max core file size", "0");
    assert_limit(text, "Max cpu time", "5");
    assert_limit(text, "Max address space", NULL);
    for (int fd = 3; fd < 20; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", p.pid, fd);
        assert_int_equal(access(path, F_OK), -1);
    }
    td_image_answer a;
    send_to(&p, "no picture", 10);
    assert_int_equal(recv(p.socket, &a, sizeof a, MSG_WAITALL), sizeof a);
    assert_int_equal(a.magic, TD_IMAGE_ANSWER);
    assert_int_equal(a.status, TD_ENOTSUP);
    assert_int_equal(ended(&p), 0);
}

TEST(questions_that_are_none_are_not_answered) {
    td_image_question q[4] = {question(1), question(1), question(TD_IMAGE_SIZE_MAX + 1), question(1)};
    q[0].magic++, q[1].rule.patch = 0, q[3].pixels_max = TD_IMAGE_SIZE_MAX + 1;
    for (size_t i = 0; i < 4; i++) {
        process p = started();
        char    one;
        send_to(&p, &q[i], sizeof q[i]);
        assert_int_equal(recv(p.socket, &one, 1, 0), 0);
        assert_int_equal(ended(&p), 2);
    }
    process p = started(); /* half a question */
    send_to(&p, &q[0], 10);
    assert_int_equal(ended(&p), 2);
    p = started(); /* half a file */
    q[0] = question(10);
    send_to(&p, &q[0], sizeof q[0]);
    send_to(&p, "half", 4);
    assert_int_equal(ended(&p), 1);
}

TEST(it_is_not_for_people) {
    assert_int_equal(WEXITSTATUS(system(TD_TANDEM " " TD_IMAGE_COMMAND " </dev/null 2>/dev/null")), 2);
}

/* ---- texts ---- */

static void encode(const uint8_t *bytes, size_t n, char *to) {
    static const char A[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t g = (uint32_t)bytes[i] << 16 | (i + 1 < n ? bytes[i + 1] : 0u) << 8 | (i + 2 < n ? bytes[i + 2] : 0u);
        *to++ = A[g >> 18], *to++ = A[g >> 12 & 63];
        *to++ = i + 1 < n ? A[g >> 6 & 63] : '=', *to++ = i + 2 < n ? A[g & 63] : '=';
    }
    *to = 0;
}

TEST(base64_of_every_length) {
    uint8_t bytes[64], *got;
    char    text[100];
    size_t  n;
    for (size_t len = 0; len <= sizeof bytes; len++) {
        for (size_t i = 0; i < len; i++) bytes[i] = (uint8_t)(37 * i + 101 * len + 255 * (i % 3));
        encode(bytes, len, text);
        for (int padded = 0; padded < 2; padded++) {
            size_t   chars = padded ? strlen(text) : strcspn(text, "=");
            char    *own = malloc(chars ? chars : 1);
            td_error err = {0};
            memcpy(own, text, chars);
            if (td_base64_decode(own, chars, len, &got, &n, &err) != TD_OK) fail_msg("%zu: %s", len, err.text);
            assert_int_equal(n, len);
            assert_memory_equal(got, bytes, len);
            free(got);
            free(own);
            if (len) assert_int_equal(td_base64_decode(text, chars, len - 1, &got, &n, NULL), TD_ELIMIT);
        }
    }
    static const char *const BAD[] = {
        "A", "AAAAA", "AA=A", "=AAA", "A===", "====", "AAA ", "AA\nA", "A-_A", "AAA\xc3", "AAA=AAAA"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        td_error err = {0};
        assert_int_equal(td_base64_decode(BAD[i], strlen(BAD[i]), 100, &got, &n, &err), TD_EFORMAT);
        assert_non_null(strstr(err.text, "the base64 text"));
    }
}

TEST(data_urls) {
    td_image_loader         *l = loader_of(TD_TANDEM);
    td_image_rule            rule = rule_of(SMALL);
    size_t                   n;
    uint8_t                 *bytes = read_picture("jpeg-420", &n);
    static const char *const BEFORE[] = {"", "data:image/jpeg;base64,", "DATA:;BASE64,",
                                         "data:text/plain;charset=utf-8;base64,"};
    char                    *text = malloc(2 * n + 100);
    for (size_t i = 0; i < sizeof BEFORE / sizeof *BEFORE; i++) {
        td_image *image;
        encode(bytes, n, stpcpy(text, BEFORE[i]));
        OK(td_image_load_text(l, &rule, text, strlen(text), &image, NULL));
        assert_is(image, bytes, n);
        td_image_release(image);
    }
    static const struct {
        const char *text, *says;
    } BAD[] = {{"https://example.org/a.png", "not by another URL"},
               {"file:///etc/passwd", "not by another URL"},
               {"data:image/png;base64", "no comma"},
               {"data:image/png,abcd", "not in base64"},
               {"data:,", "not in base64"},
               {"data:;base64,", "the picture is empty"},
               {"", "the picture is empty"},
               {"data:image/png;base64,A B", "a character that is none"}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        td_image *image;
        td_error  err = {0};
        assert_int_not_equal(td_image_load_text(l, &rule, BAD[i].text, strlen(BAD[i].text), &image, &err), TD_OK);
        if (!strstr(err.text, BAD[i].says)) fail_msg("%s: %s", BAD[i].text, err.text);
    }
    free(text);
    free(bytes);
    td_image_loader_close(l);
}
