#include "image/image_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "image/image_size.h"
#include "image/image_worker.h"

typedef struct {
    pid_t    pid;
    int      socket;
    uint32_t time_ms;
    int64_t  deadline_ms; /* by the monotonic clock */
} process;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- starting and ending ---- */

/* The process sees nothing of this one's environment but where the libraries are: keys may stand there. */
static int spawn(const char *program, int socket, pid_t *pid) {
    char                       libraries[4096] = "";
    char                      *environment[] = {NULL, NULL}, *arguments[] = {"tandem", TD_IMAGE_COMMAND, NULL};
    const char                *path = getenv("LD_LIBRARY_PATH");
    posix_spawn_file_actions_t files;
    posix_spawnattr_t          attributes;
    sigset_t                   none, all;
    if (path && strlen(path) < sizeof libraries - 20) {
        strcat(strcpy(libraries, "LD_LIBRARY_PATH="), path);
        environment[0] = libraries;
    }
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawn_file_actions_init(&files);
    if (rc) return rc;
    rc = posix_spawnattr_init(&attributes);
    if (!rc) {
        rc = posix_spawn_file_actions_adddup2(&files, socket, STDIN_FILENO);
        if (!rc) rc = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        if (!rc) rc = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        if (!rc) rc = posix_spawnattr_setsigmask(&attributes, &none);
        if (!rc) rc = posix_spawnattr_setsigdefault(&attributes, &all);
        if (!rc) rc = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        if (!rc) rc = posix_spawn(pid, program, &files, &attributes, arguments, environment);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

static td_status start(process *p, const char *program, uint32_t time_ms, td_error *err) {
    int ends[2];
    *p = (process){.time_ms = time_ms, .deadline_ms = now_ms() + time_ms};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return td_fail(err, TD_EIO, "no socket for a picture's process: %s", strerror(errno));
    int rc = fcntl(ends[0], F_SETFL, O_NONBLOCK) ? errno : spawn(program, ends[1], &p->pid);
    close(ends[1]);
    p->socket = ends[0];
    if (!rc) return TD_OK;
    close(p->socket);
    return td_fail(err, TD_EIO, "a picture's process cannot be started: %s", strerror(rc));
}

/* It is done, or of no more use. Until waitpid its number belongs to nobody else. */
static void end(process *p) {
    int status = 0;
    close(p->socket);
    kill(p->pid, SIGKILL);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {
    }
}

/* ---- talking ---- */

static td_status gone(td_error *err) {
    td_warn("the process of a picture has ended without an answer");
    return td_fail(err, TD_EFORMAT, "the picture cannot be read: its decoder has failed");
}

static td_status odd(td_error *err, const char *what) {
    td_warn("the process of a picture has given an answer that is none: %s", what);
    return td_fail(err, TD_EFORMAT, "the picture cannot be read: its decoder has failed");
}

/* Wait until the socket takes or has bytes. */
static td_status await(const process *p, short events, td_error *err) {
    for (;;) {
        const int64_t left = p->deadline_ms - now_ms();
        struct pollfd socket = {.fd = p->socket, .events = events};
        const int     n = left > 0 ? poll(&socket, 1, (int)left) : 0;
        if (n > 0) return TD_OK;
        if (n == 0) return td_fail(err, TD_ELIMIT, "the picture takes longer than %u ms to decode", p->time_ms);
        if (errno != EINTR) return td_fail(err, TD_EIO, "a picture's process cannot be waited for: %s", strerror(errno));
    }
}

static td_status send_all(const process *p, const void *from, size_t n, td_error *err) {
    for (const char *at = from; n;) {
        ssize_t put = send(p->socket, at, n, MSG_NOSIGNAL);
        if (put > 0)
            at += put, n -= (size_t)put;
        else if (errno == EAGAIN || errno == EINTR)
            TD_TRY(await(p, POLLOUT, err));
        else
            return gone(err);
    }
    return TD_OK;
}

/* Bytes until n have come, or the other side has closed; *got of them. */
static td_status receive(const process *p, void *to, size_t n, size_t *got, td_error *err) {
    for (*got = 0; *got < n;) {
        ssize_t more = recv(p->socket, (char *)to + *got, n - *got, 0);
        if (more > 0)
            *got += (size_t)more;
        else if (more < 0 && (errno == EAGAIN || errno == EINTR))
            TD_TRY(await(p, POLLIN, err));
        else
            break;
    }
    return TD_OK;
}

static td_status receive_all(const process *p, void *to, size_t n, td_error *err) {
    size_t got;
    TD_TRY(receive(p, to, n, &got, err));
    return got == n ? TD_OK : gone(err);
}

static td_status expect_end(const process *p, td_error *err) {
    char   one;
    size_t got;
    TD_TRY(receive(p, &one, 1, &got, err));
    return got ? odd(err, "more bytes than its picture has") : TD_OK;
}

/* ---- the answer ---- */

/* A sentence that came from outside: its end, and nothing that a terminal or a log would act upon. */
static void clean(char text[TD_ERROR_TEXT_MAX]) {
    text[TD_ERROR_TEXT_MAX - 1] = 0;
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

static td_status check_answer(const td_image_question *q, td_image_answer *a, td_error *err) {
    td_image_size size;
    if (a->magic != TD_IMAGE_ANSWER) return odd(err, "its first bytes");
    clean(a->text);
    if (a->status == TD_EFORMAT || a->status == TD_ENOTSUP || a->status == TD_ELIMIT)
        return a->text[0] ? td_fail(err, (td_status)a->status, "%s", a->text) : odd(err, "it refuses without a sentence");
    if (a->status != TD_OK) return odd(err, "its status");
    if (!a->height || !a->width || a->height > q->pixels_max / a->width ||
        td_image_size_of(&q->rule, a->height, a->width, &size, NULL) != TD_OK || size.canvas_height != a->canvas_height ||
        size.canvas_width != a->canvas_width)
        return odd(err, "the size of its picture");
    return TD_OK;
}

static td_status talk(const process *p, const td_image_question *q, const uint8_t *file, td_picture *out, td_error *err) {
    td_image_answer a;
    TD_TRY(send_all(p, q, sizeof *q, err));
    TD_TRY(send_all(p, file, q->bytes, err));
    TD_TRY(receive_all(p, &a, sizeof a, err));
    TD_TRY(check_answer(q, &a, err));
    TD_TRY(td_picture_room(a.canvas_height, a.canvas_width, 3, TD_IMAGE_CANVAS_MAX, &out->rgb, err));
    out->height = a.canvas_height, out->width = a.canvas_width;
    TD_TRY(receive_all(p, out->rgb, (size_t)out->height * out->width * 3, err));
    return expect_end(p, err);
}

td_status td_image_process_ask(const char *program, uint32_t time_ms, td_image_question *q, const uint8_t *file,
                               td_picture *out, td_error *err) {
    process    p;
    td_picture picture = {0};
    q->magic = TD_IMAGE_QUESTION;
    q->time_s = time_ms / 1000 + 2;
    TD_TRY(start(&p, program, time_ms, err));
    td_status s = talk(&p, q, file, &picture, err);
    end(&p);
    if (s == TD_OK)
        *out = picture;
    else
        td_picture_free(&picture);
    return s;
}
