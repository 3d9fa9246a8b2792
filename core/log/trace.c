#include "core/log/trace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"

#define BUFFER_BYTES 65536
#define EVENT_BYTES_MAX 512 /* two keys and a name of TEXT_MAX, five numbers of 20 digits, and what is between them */
#define TEXT_MAX 64         /* longer names are cut */

#define FILE_END "\n]\n"

typedef struct buffer {
    struct buffer  *next;    /* guarded by list_lock */
    pthread_mutex_t lock;    /* guards what follows; taken before file_lock */
    uint32_t        session; /* the trace whose events it holds */
    uint32_t        tid;
    size_t          used;
    char            text[BUFFER_BYTES];
} buffer;

atomic_bool td_trace_enabled;

/* The number of this trace; start writes it before td_trace_enabled. */
static uint32_t session;
static uint64_t start_ns;
static pid_t    pid;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before any buffer's */
static buffer         *buffers;

static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static int             fd = -1;
static uint64_t        file_bytes, file_bytes_max;
static bool            given_up; /* the file takes no more */

static _Thread_local buffer *mine;
static pthread_key_t         key; /* its destructor lets a thread's buffer go */
static pthread_once_t        key_once = PTHREAD_ONCE_INIT;
static bool                  has_key;

uint64_t td_trace_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec + 1;
}

/* ---- the file, under file_lock --------------------------------------------------------------- */

static void give_up(const char *why) {
    atomic_store_explicit(&td_trace_enabled, false, memory_order_release);
    if (!given_up) td_warn("the trace ends here: %s", why);
    given_up = true;
}

static void write_file(const char *text, size_t n) {
    if (given_up || fd < 0) return;
    if (n + strlen(FILE_END) > file_bytes_max - file_bytes) {
        give_up("its file has reached its size limit");
        return;
    }
    for (size_t done = 0; done < n;) {
        ssize_t m = write(fd, text + done, n - done);
        if (m < 0 && errno == EINTR) continue;
        if (m <= 0) {
            give_up(m < 0 ? strerror(errno) : "its file takes no more bytes");
            /* Without half an event at its end the file still loads. */
            if (ftruncate(fd, (off_t)file_bytes)) return;
            return;
        }
        done += (size_t)m;
    }
    file_bytes += n;
}

/* ---- text ------------------------------------------------------------------------------------ */

static char *put(char *at, const char *text) {
    size_t n = strlen(text);
    memcpy(at, text, n);
    return at + n;
}

/* Put a name. Names of threads come from anywhere, so characters that JSON would have to escape become '_'. */
static char *put_name(char *at, const char *name) {
    for (size_t i = 0; name[i] && i < TEXT_MAX; i++) {
        unsigned char c = (unsigned char)name[i];
        *at++ = c < 0x20 || c > 0x7e || c == '"' || c == '\\' ? '_' : (char)c;
    }
    return at;
}

static char *put_number(char *at, uint64_t v) {
    char   digits[20];
    size_t n = 0;
    do digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    while (n) *at++ = digits[--n];
    return at;
}

/* Microseconds with three decimals. */
static char *put_us(char *at, uint64_t ns) {
    at = put_number(at, ns / 1000);
    *at++ = '.';
    *at++ = (char)('0' + ns / 100 % 10);
    *at++ = (char)('0' + ns / 10 % 10);
    *at++ = (char)('0' + ns % 10);
    return at;
}

/* A metadata event: "process_name" or "thread_name". */
static char *put_meta(char *at, const char *kind, uint32_t tid, const char *name) {
    at = put(at, "{\"ph\":\"M\",\"name\":\"");
    at = put(at, kind);
    at = put(at, "\",\"pid\":");
    at = put_number(at, (uint64_t)pid);
    at = put(at, ",\"tid\":");
    at = put_number(at, tid);
    at = put(at, ",\"args\":{\"name\":\"");
    at = put_name(at, name);
    return put(at, "\"}}");
}

static char *put_label(char *at, uint32_t tid, const td_trace_label *l) {
    static const char *const tiers[] = {"device", "cpu", "bridge", "engine", "http"};
    at = put(at, ",\"cat\":\"");
    at = put(at, tiers[l->tier]);
    at = put(at, "\",\"name\":\"");
    at = put_name(at, l->name);
    at = put(at, "\",\"pid\":");
    at = put_number(at, (uint64_t)pid);
    at = put(at, ",\"tid\":");
    at = put_number(at, tid);
    const char *before = ",\"args\":{\"";
    for (int i = 0; i < 2; i++) {
        if (!l->key[i]) continue;
        at = put(at, before);
        at = put_name(at, l->key[i]);
        at = put(at, "\":");
        at = put_number(at, l->value[i]);
        before = ",\"";
    }
    return l->key[0] || l->key[1] ? put(at, "}") : at;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* The buffer's lock is held. */
static void flush(buffer *b) {
    pthread_mutex_lock(&file_lock);
    if (b->session == session) write_file(b->text, b->used);
    pthread_mutex_unlock(&file_lock);
    b->used = 0;
}

static void let_go(void *arg) {
    buffer *b = arg;
    mine = NULL;
    pthread_mutex_lock(&list_lock);
    buffer **at = &buffers;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    pthread_mutex_lock(&b->lock);
    flush(b);
    pthread_mutex_unlock(&b->lock);
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void make_key(void) {
    has_key = pthread_key_create(&key, let_go) == 0;
}

/* This thread's buffer; NULL: there is no memory for one, and tracing ends. */
static buffer *my_buffer(void) {
    if (mine) return mine;
    pthread_once(&key_once, make_key);
    buffer *b = has_key ? malloc(sizeof *b) : NULL;
    if (b && pthread_setspecific(key, b)) {
        free(b);
        b = NULL;
    }
    if (!b) {
        pthread_mutex_lock(&file_lock);
        give_up("out of memory for a thread's events");
        pthread_mutex_unlock(&file_lock);
        return NULL;
    }
    pthread_mutex_init(&b->lock, NULL);
    b->session = 0;
    b->used = 0;
    b->tid = (uint32_t)gettid();
    pthread_mutex_lock(&list_lock);
    b->next = buffers;
    buffers = b;
    pthread_mutex_unlock(&list_lock);
    return mine = b;
}

/* The first event of a thread in this trace says what the thread is called. */
static void join_session(buffer *b) {
    char name[16] = "";
    b->session = session;
    b->used = 0;
    pthread_getname_np(pthread_self(), name, sizeof name);
    char *at = put(b->text, ",\n");
    b->used = (size_t)(put_meta(at, "thread_name", b->tid, name) - b->text);
}

/* Lock this thread's buffer, ready for an event. NULL (and nothing is locked) when nothing is traced any more. */
static buffer *open_event(void) {
    buffer *b = my_buffer();
    if (!b) return NULL;
    pthread_mutex_lock(&b->lock);
    if (!atomic_load_explicit(&td_trace_enabled, memory_order_acquire)) {
        pthread_mutex_unlock(&b->lock);
        return NULL;
    }
    if (b->session != session) join_session(b);
    if (b->used + EVENT_BYTES_MAX > BUFFER_BYTES) flush(b);
    return b;
}

static void close_event(buffer *b, char *end) {
    end = put(end, "}");
    b->used = (size_t)(end - b->text);
    assert(b->used <= BUFFER_BYTES);
    pthread_mutex_unlock(&b->lock);
}

/* ",\n{"ph":"?","ts":123.456": what every event begins with. A time before the trace becomes its start. */
static char *begin_event(buffer *b, const char *phase, uint64_t at_ns) {
    char *at = put(b->text + b->used, ",\n{\"ph\":\"");
    at = put(at, phase);
    at = put(at, "\",\"ts\":");
    return put_us(at, at_ns > start_ns ? at_ns - start_ns : 0);
}

void td_trace_write_span(uint64_t begin, uint64_t end, const td_trace_label *l) {
    buffer *b = open_event();
    if (!b) return;
    if (begin < start_ns) begin = start_ns;
    char *at = begin_event(b, "X", begin);
    at = put(at, ",\"dur\":");
    at = put_us(at, end > begin ? end - begin : 0);
    close_event(b, put_label(at, b->tid, l));
}

void td_trace_write_instant(const td_trace_label *l) {
    uint64_t now = td_trace_now();
    buffer  *b = open_event();
    if (!b) return;
    char *at = begin_event(b, "i", now);
    at = put(at, ",\"s\":\"t\""); /* it belongs to its thread */
    close_event(b, put_label(at, b->tid, l));
}

void td_trace_write_async(bool begins, uint64_t id, const td_trace_label *l) {
    uint64_t now = td_trace_now();
    buffer  *b = open_event();
    if (!b) return;
    char *at = begin_event(b, begins ? "b" : "e", now);
    at = put(at, ",\"id\":");
    at = put_number(at, id);
    close_event(b, put_label(at, b->tid, l));
}

/* ---- start and stop -------------------------------------------------------------------------- */

td_status td_trace_start(const char *path, uint64_t max_bytes, td_error *err) {
    char  head[EVENT_BYTES_MAX];
    char *at = put(head, "[\n");
    pthread_mutex_lock(&file_lock);
    td_status st = TD_OK;
    if (fd >= 0) {
        st = td_fail(err, TD_EINVAL, "a trace is under way");
    } else {
        /* O_APPEND: what is written after a torn write was cut off goes behind what is left. */
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0) st = td_fail(err, TD_EIO, "the trace file %s cannot be written: %s", path, strerror(errno));
    }
    if (st == TD_OK) {
        session++;
        start_ns = td_trace_now();
        pid = getpid();
        file_bytes = 0;
        file_bytes_max = max_bytes;
        given_up = false;
        at = put_meta(at, "process_name", (uint32_t)pid, "tandem");
        write_file(head, (size_t)(at - head));
        if (given_up) {
            st = td_fail(err, TD_EIO, "the trace file %s takes no bytes", path);
            close(fd);
            fd = -1;
        }
    }
    pthread_mutex_unlock(&file_lock);
    if (st == TD_OK) atomic_store_explicit(&td_trace_enabled, true, memory_order_release);
    return st;
}

void td_trace_stop(void) {
    atomic_store_explicit(&td_trace_enabled, false, memory_order_release);
    pthread_mutex_lock(&list_lock);
    for (buffer *b = buffers; b; b = b->next) {
        pthread_mutex_lock(&b->lock);
        flush(b);
        pthread_mutex_unlock(&b->lock);
    }
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_lock(&file_lock);
    if (fd >= 0) {
        ssize_t n = write(fd, FILE_END, strlen(FILE_END)); /* a file without its end loads too */
        if (close(fd) || n < 0) td_warn("the end of the trace could not be written: %s", strerror(errno));
        fd = -1;
    }
    pthread_mutex_unlock(&file_lock);
}
