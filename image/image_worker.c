#include "image/image_worker.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "image/decode.h"
#include "image/image_fit.h"
#include "image/image_protocol.h"
#include "image/image_sandbox.h"

#define SOCKET STDIN_FILENO

static bool read_all(void *to, size_t n) {
    for (char *p = to; n;) {
        ssize_t got = read(SOCKET, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got, n -= (size_t)got;
    }
    return true;
}

static bool write_all(const void *from, size_t n) {
    for (const char *p = from; n;) {
        ssize_t put = write(SOCKET, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put, n -= (size_t)put;
    }
    return true;
}

/* The file, or, where there is no memory for it, nothing: it is read and forgotten, so that the answer is waited for. */
static bool read_file(uint8_t *to, uint64_t n) {
    uint8_t part[4096];
    if (to) return read_all(to, n);
    for (; n > sizeof part; n -= sizeof part)
        if (!read_all(part, sizeof part)) return false;
    return read_all(part, n);
}

static bool is_question(const td_image_question *q) {
    return q->magic == TD_IMAGE_QUESTION && q->bytes <= TD_IMAGE_SIZE_MAX && q->pixels_max <= TD_IMAGE_SIZE_MAX &&
           td_image_rule_is_valid(&q->rule);
}

/* Decode and fit; the answer but for its magic. */
static td_status prepare(const td_image_question *q, const uint8_t *file, td_picture *p, td_image_answer *a, td_error *err) {
    TD_TRY(td_picture_decode(file, q->bytes, q->pixels_max, p, err));
    a->height = p->height, a->width = p->width;
    TD_TRY(td_picture_fit(p, &q->rule, err));
    a->canvas_height = p->height, a->canvas_width = p->width;
    return TD_OK;
}

static bool answer(const td_image_question *q, const uint8_t *file) {
    td_image_answer a = {.magic = TD_IMAGE_ANSWER};
    td_picture      p = {0};
    td_error        err = {0};
    td_status       s = file ? prepare(q, file, &p, &a, &err) : TD_ENOMEM;
    if (s == TD_ENOMEM) /* the memory that a picture may take is limited, and this one takes more */
        s = td_fail(&err, TD_ELIMIT, "the picture needs more than %" PRIu64 " MiB of memory", q->memory_bytes >> 20);
    a.status = s;
    memcpy(a.text, err.text, sizeof a.text);
    bool ok = write_all(&a, sizeof a) && (s != TD_OK || write_all(p.rgb, (size_t)p.height * p.width * 3));
    td_picture_free(&p);
    return ok;
}

int td_image_worker_run(void) {
    td_image_question q;
    struct stat       input;
    if (fstat(SOCKET, &input) || !S_ISSOCK(input.st_mode)) {
        fprintf(stderr, "tandem: %s is started by a server, over a socket\n", TD_IMAGE_COMMAND);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (!read_all(&q, sizeof q) || !is_question(&q)) return 2;
    if (!td_image_confine(q.memory_bytes, q.time_s)) return 1;
    uint8_t *file = malloc(q.bytes ? q.bytes : 1);
    bool     ok = read_file(file, q.bytes) && answer(&q, file);
    free(file);
    return ok ? 0 : 1;
}
