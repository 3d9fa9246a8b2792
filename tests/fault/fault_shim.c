/*
 * A library to preload (LD_PRELOAD) that makes calls of a program fail: allocations, memory maps, reads, starts of threads,
 * io_uring; and delays one: the main thread's taking a listening socket out of an epoll set. What fails and when stands in a
 * control file. The test maps that file too (fault.py), and so can change it while the program runs. The file also shows how
 * often each call was made and made to fail.
 *
 * TD_FAULT_CONTROL names the file. Counting begins in this library's constructor, after those of the program's libraries.
 * With TD_FAULT_TRACE=1 each failure is shown on standard error with who called. TD_FAULT_SITES names a file that gets 8
 * bytes for every allocation counted: a hash of who called, so that a test can try each place of the program once.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the control file: one of these for each point, in this order; written by the test but for seen and injected ---- */

enum { POINT_ALLOC, POINT_MAP, POINT_READ, POINT_THREAD, POINT_THREAD_DIES, POINT_URING, POINT_UNLISTEN, N_POINTS };
#define SITE_FRAMES 8                                /* the innermost, this library's two among them */
enum { READ_SHORT, READ_EINTR, READ_EIO, READ_END }; /* how a read fails */

typedef struct {
    _Atomic uint64_t seen, injected;
    _Atomic uint64_t first, every; /* the first-th call fails, and with every each every-th after it; 0: none */
    _Atomic uint64_t one_in, seed; /* one in so many, drawn from the seed; 0: none */
    _Atomic uint64_t how;          /* how a read fails; how many ms a listening socket is delayed */
    uint64_t         unused;
} point;

_Static_assert(sizeof(point) == 64, "fault.py knows the layout");

static point *g_points; /* NULL: nothing is counted yet */
static bool   g_trace;
static int    g_sites = -1;

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static _Thread_local bool t_inside; /* a call that is made in here is not counted */

static void note_site(void) {
    void    *at[SITE_FRAMES] = {0};
    uint64_t hash = 0;
    t_inside = true;
    int n = backtrace(at, SITE_FRAMES);
    for (int i = 2; i < n; i++) hash = mix(hash ^ (uintptr_t)at[i]);
    if (write(g_sites, &hash, sizeof hash) != sizeof hash) abort();
    t_inside = false;
}

static bool fails(int which) {
    if (!g_points || t_inside) return false;
    if (g_sites >= 0 && which == POINT_ALLOC) note_site();
    point   *p = &g_points[which];
    uint64_t n = ++p->seen, first = p->first, every = p->every, one_in = p->one_in;
    bool     hit = (first && (n == first || (every && n > first && (n - first) % every == 0))) ||
               (one_in && mix(p->seed ^ (n << 8)) % one_in == 0);
    if (!hit) return false;
    p->injected++;
    if (g_trace) {
        void *at[24];
        t_inside = true;
        backtrace_symbols_fd(at, backtrace(at, 24), STDERR_FILENO);
        t_inside = false;
    }
    return true;
}

/* ---- who calls: the program itself? ---- */

static int first_object(struct dl_phdr_info *info, size_t size, void *base) {
    (void)size;
    *(uintptr_t *)base = info->dlpi_addr;
    return 1;
}

static bool from_program(const void *caller) {
    static uintptr_t base;
    Dl_info          info;
    if (!base) dl_iterate_phdr(first_object, &base);
    return dladdr(caller, &info) && (uintptr_t)info.dli_fbase == base;
}

/* ---- the functions behind ---- */

static void *next(const char *name) {
    void *f = dlsym(RTLD_NEXT, name);
    if (!f) abort();
    return f;
}

/* dlsym may allocate before malloc is known: from here, never to be freed. */
static char   g_early[1 << 16];
static size_t g_early_used;

static void *early(size_t bytes) {
    size_t at = (g_early_used + 63) & ~(size_t)63;
    if (bytes > sizeof g_early || at > sizeof g_early - bytes) abort();
    g_early_used = at + bytes;
    return g_early + at;
}

static bool is_early(const void *p) {
    return (const char *)p >= g_early && (const char *)p < g_early + sizeof g_early;
}

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    void (*free)(void *);
} g_next;

static bool resolve(void) {
    static bool resolving;
    if (g_next.free) return true;
    if (resolving) return false;
    resolving = true;
    g_next.malloc = (void *(*)(size_t))next("malloc");
    g_next.calloc = (void *(*)(size_t, size_t))next("calloc");
    g_next.realloc = (void *(*)(void *, size_t))next("realloc");
    g_next.aligned_alloc = (void *(*)(size_t, size_t))next("aligned_alloc");
    g_next.posix_memalign = (int (*)(void **, size_t, size_t))next("posix_memalign");
    g_next.free = (void (*)(void *))next("free");
    return true;
}

static void __attribute__((constructor)) begin(void) {
    const char *path = getenv("TD_FAULT_CONTROL");
    void       *here[1];
    if (!path) return;
    g_trace = getenv("TD_FAULT_TRACE") != NULL;
    backtrace(here, 1); /* loads what it needs now */
    int   fd = open(path, O_RDWR | O_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, N_POINTS * sizeof(point), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) abort();
    close(fd);
    if (getenv("TD_FAULT_SITES")) g_sites = open(getenv("TD_FAULT_SITES"), O_WRONLY | O_APPEND | O_CLOEXEC);
    g_points = p;
}

/* ---- allocations ---- */

void *malloc(size_t bytes) {
    if (!resolve()) return early(bytes);
    if (fails(POINT_ALLOC)) return errno = ENOMEM, NULL;
    return g_next.malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    if (!resolve()) return early(n * bytes);
    if (fails(POINT_ALLOC)) return errno = ENOMEM, NULL;
    return g_next.calloc(n, bytes);
}

void *realloc(void *p, size_t bytes) {
    if (!resolve() || is_early(p)) {
        void *q = early(bytes);
        if (p) memcpy(q, p, bytes); /* within g_early: more than was there is harmless */
        return q;
    }
    if (fails(POINT_ALLOC)) return errno = ENOMEM, NULL;
    return g_next.realloc(p, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    resolve();
    if (fails(POINT_ALLOC)) return errno = ENOMEM, NULL;
    return g_next.aligned_alloc(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    resolve();
    if (fails(POINT_ALLOC)) return ENOMEM;
    return g_next.posix_memalign(out, alignment, bytes);
}

void free(void *p) {
    if (resolve() && !is_early(p)) g_next.free(p);
}

/* Anonymous memory that the program itself maps; the allocator's maps and those of libraries are not counted. */
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) real = (void *(*)(void *, size_t, int, int, int, off_t))next("mmap");
    if (flags & MAP_ANONYMOUS && g_points && from_program(__builtin_return_address(0)) && fails(POINT_MAP))
        return errno = ENOMEM, MAP_FAILED;
    return real(at, bytes, protection, flags, fd, offset);
}

/* ---- reads of regular files ---- */

/* @return whether to answer *n (with errno) instead of reading; *bytes may have become less. */
static bool read_fails(int fd, size_t *bytes, ssize_t *n) {
    struct stat st;
    if (!g_points || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || !fails(POINT_READ)) return false;
    *n = -1;
    switch (atomic_load(&g_points[POINT_READ].how)) {
        case READ_SHORT: *bytes = (*bytes + 1) / 2; return false;
        case READ_EINTR: errno = EINTR; return true;
        case READ_EIO: errno = EIO; return true;
        default: *n = 0; return true;
    }
}

ssize_t read(int fd, void *to, size_t bytes) {
    static ssize_t (*real)(int, void *, size_t);
    ssize_t n;
    if (!real) real = (ssize_t(*)(int, void *, size_t))next("read");
    return read_fails(fd, &bytes, &n) ? n : real(fd, to, bytes);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    ssize_t n;
    if (!real) real = (ssize_t(*)(int, void *, size_t, off_t))next("pread");
    return read_fails(fd, &bytes, &n) ? n : real(fd, to, bytes, offset);
}

/* ---- threads ---- */

static void *dies(void *arg) {
    (void)arg;
    return NULL;
}

int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))next("pthread_create");
    if (fails(POINT_THREAD)) return EAGAIN;
    if (g_points && from_program(__builtin_return_address(0)) && fails(POINT_THREAD_DIES)) run = dies;
    return real(out, attr, run, arg);
}

/* ---- epoll: the main thread, which stops the server, takes a listening socket out late ---- */

int epoll_ctl(int epoll_fd, int what, int fd, struct epoll_event *event) {
    static int (*real)(int, int, int, struct epoll_event *);
    int       listens = 0;
    socklen_t size = sizeof listens;
    if (!real) real = (int (*)(int, int, int, struct epoll_event *))next("epoll_ctl");
    if (what == EPOLL_CTL_DEL && gettid() == getpid() && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
        listens && fails(POINT_UNLISTEN))
        usleep((useconds_t)g_points[POINT_UNLISTEN].how * 1000);
    return real(epoll_fd, what, fd, event);
}

/* ---- hwloc 2.9 does not check its own allocations: while it looks at the machine, none is counted ---- */

struct hwloc_topology;
int  hwloc_topology_init(struct hwloc_topology **topology);
int  hwloc_topology_load(struct hwloc_topology *topology);
void hwloc_topology_destroy(struct hwloc_topology *topology);

int hwloc_topology_init(struct hwloc_topology **topology) {
    t_inside = true;
    int rc = ((int (*)(struct hwloc_topology **))next("hwloc_topology_init"))(topology);
    t_inside = false;
    return rc;
}

int hwloc_topology_load(struct hwloc_topology *topology) {
    t_inside = true;
    int rc = ((int (*)(struct hwloc_topology *))next("hwloc_topology_load"))(topology);
    t_inside = false;
    return rc;
}

void hwloc_topology_destroy(struct hwloc_topology *topology) {
    t_inside = true;
    ((void (*)(struct hwloc_topology *))next("hwloc_topology_destroy"))(topology);
    t_inside = false;
}

/* ---- io_uring ---- */

struct io_uring;
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags) {
    static int (*real)(unsigned, struct io_uring *, unsigned);
    if (!real) real = (int (*)(unsigned, struct io_uring *, unsigned))next("io_uring_queue_init");
    return fails(POINT_URING) ? -ENOSYS : real(entries, ring, flags);
}
