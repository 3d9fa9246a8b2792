/*
 * A stand-in for libmooncake_store.so: the C interface of Mooncake Store 0.3.13 (mooncake-store/include/store_c.h) over a
 * folder, which all processes that name it as their master share. Stricter than the real one: a buffer that was not
 * registered, a client that is used before it is set up, or that is destroyed with buffers registered, ends the process. It
 * listens on two ports, of every address as far as it knows, as the real one does.
 *
 * FOLDER/faults says what goes wrong, as "name=value ..." that is read at every call:
 *   down=1      the master does not answer: calls fail (RPC_FAIL)
 *   delay_ms=N  every call takes so long
 *   hold=1      no call ends as long as this stands there: a link that drops packets
 *   seed=N      of what follows, in percent of the pages that are fetched, or sent:
 *     lose      the page is gone
 *     flip      it comes with a wrong bit
 *     short     it comes cut
 *     long      it is longer than asked for
 *     swap      it is another one
 *     fail      its owner cannot be reached
 *     refuse    nobody has room for it
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PATH_BYTES 600
#define BUFFERS_MAX 8

enum { NO_ROOM = -200, BAD_PARAMS = -600, NOT_FOUND = -704, TRANSFER_FAILED = -800, RPC_FAILED = -900 };

typedef struct {
    char   folder[256]; /* "": not set up */
    char  *buffer[BUFFERS_MAX];
    size_t bytes[BUFFERS_MAX];
    int    handshake, data; /* sockets */
} client;

typedef struct {
    unsigned down, delay_ms, hold, seed, lose, flip, cut, more, swap, fail, refuse;
} faults;

_Noreturn static void __attribute__((format(printf, 1, 2))) broken(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("fake mooncake: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

/* ---- faults ---- */

static unsigned value_of(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? (unsigned)strtoul(at + strlen(name), NULL, 10) : 0;
}

static faults read_faults(const char *folder) {
    char   path[PATH_BYTES], text[400] = {0};
    faults f = {0};
    snprintf(path, sizeof path, "%s/faults", folder);
    FILE *file = fopen(path, "r");
    if (!file) return f;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    return (faults){.down = value_of(text, "down="),
                    .delay_ms = value_of(text, "delay_ms="),
                    .hold = value_of(text, "hold="),
                    .seed = value_of(text, "seed="),
                    .lose = value_of(text, "lose="),
                    .flip = value_of(text, "flip="),
                    .cut = value_of(text, "short="),
                    .more = value_of(text, "long="),
                    .swap = value_of(text, "swap="),
                    .fail = value_of(text, "fail="),
                    .refuse = value_of(text, "refuse=")};
}

static bool drawn(const faults *f, unsigned percent) {
    static _Atomic uint64_t n;
    if (!percent) return false;
    uint64_t x = (f->seed + 1) * 0x9e3779b97f4a7c15u + atomic_fetch_add(&n, 1) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % 100 < percent;
}

/* The beginning of every call. */
static faults begin(const client *c) {
    if (!c || !c->folder[0]) broken("a client is used that is not set up");
    faults f = read_faults(c->folder);
    while (f.hold) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        f = read_faults(c->folder);
    }
    if (f.delay_ms) nanosleep(&(struct timespec){f.delay_ms / 1000, (long)(f.delay_ms % 1000) * 1000000}, NULL);
    return f;
}

/* ---- objects ---- */

static void path_of(const client *c, const char *key, char path[PATH_BYTES]) {
    if (!key || !*key || strlen(key) > 200 || strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(key))
        broken("the key '%s'", key ? key : "(null)");
    snprintf(path, PATH_BYTES, "%s/objects/%s", c->folder, key);
}

static void check_buffer(const client *c, const void *at, size_t bytes) {
    for (int i = 0; i < BUFFERS_MAX; i++)
        if (c->buffer[i] && (const char *)at >= c->buffer[i] && (const char *)at + bytes <= c->buffer[i] + c->bytes[i])
            return;
    broken("%p, %zu bytes, is not registered", at, bytes);
}

static int exists(const client *c, const char *key) {
    char path[PATH_BYTES];
    path_of(c, key, path);
    return access(path, F_OK) == 0;
}

static int put_one(const client *c, const faults *f, const char *key, const void *data, size_t bytes) {
    static atomic_uint n;
    char               path[PATH_BYTES], part[PATH_BYTES];
    check_buffer(c, data, bytes);
    path_of(c, key, path);
    if (access(path, F_OK) == 0) return 0; /* as the real one: what is there stays */
    if (drawn(f, f->refuse)) return NO_ROOM;
    snprintf(part, sizeof part, "%s/part-%d-%u", c->folder, (int)getpid(), atomic_fetch_add(&n, 1));
    FILE *file = fopen(part, "w");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) || rename(part, path))
        broken("%s: %s", path, strerror(errno));
    return 0;
}

/* Any object but that one. @return whether there is one. */
static bool another(const client *c, char path[PATH_BYTES]) {
    char folder[PATH_BYTES], own[PATH_BYTES];
    snprintf(own, sizeof own, "%s", path);
    snprintf(folder, sizeof folder, "%s/objects", c->folder);
    DIR *d = opendir(folder);
    if (!d) return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, PATH_BYTES, "%.300s/%.250s", folder, e->d_name);
        found = strcmp(path, own) != 0;
    }
    closedir(d);
    return found;
}

static int64_t get_one(const client *c, const faults *f, const char *key, char *to, size_t room) {
    char path[PATH_BYTES];
    check_buffer(c, to, room);
    path_of(c, key, path);
    if (drawn(f, f->lose)) return NOT_FOUND;
    if (drawn(f, f->fail)) return TRANSFER_FAILED;
    if (drawn(f, f->more)) return BAD_PARAMS;
    if (drawn(f, f->swap) && !another(c, path)) return NOT_FOUND;
    FILE *file = fopen(path, "r");
    if (!file) return NOT_FOUND;
    size_t n = fread(to, 1, room, file);
    bool   larger = fgetc(file) != EOF;
    fclose(file);
    if (larger) return BAD_PARAMS;
    if (n && drawn(f, f->flip)) to[(f->seed * 7919u + n / 3) % n] ^= 0x10;
    if (drawn(f, f->cut)) n /= 2;
    return (int64_t)n;
}

static int listen_everywhere(int family) {
    struct sockaddr_in  v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    int                 fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), no = 0;
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (family == AF_INET6 ? bind(fd, (struct sockaddr *)&v6, sizeof v6) : bind(fd, (struct sockaddr *)&v4, sizeof v4))
        broken("bind: %s", strerror(errno));
    if (listen(fd, 1)) broken("listen: %s", strerror(errno));
    return fd;
}

/* ---- store_c.h ---- */

EXPORT void *mooncake_store_create(void) {
    return calloc(1, sizeof(client));
}

EXPORT void mooncake_store_destroy(void *store) {
    client *c = store;
    for (int i = 0; i < BUFFERS_MAX; i++)
        if (c->buffer[i]) broken("a client is destroyed with a buffer registered");
    if (c->folder[0]) close(c->handshake);
    if (c->folder[0]) close(c->data);
    free(c);
}

EXPORT int mooncake_store_setup(void *store, const char *local_hostname, const char *metadata_server,
                                uint64_t global_segment_size, uint64_t local_buffer_size, const char *protocol,
                                const char *device_name, const char *master_server_addr) {
    client *c = store;
    char    path[PATH_BYTES];
    (void)global_segment_size;
    if (!c || c->folder[0]) broken("a client is set up twice, or none");
    if (!local_hostname || !*local_hostname || !metadata_server || !local_buffer_size || !device_name) broken("setup");
    if (strcmp(protocol, "tcp") != 0) return BAD_PARAMS;
    faults f = read_faults(master_server_addr);
    if (f.down) return -1;
    c->handshake = listen_everywhere(AF_INET);
    c->data = listen_everywhere(AF_INET6);
    snprintf(path, sizeof path, "%s/objects", master_server_addr);
    if (mkdir(path, 0777) && errno != EEXIST) return -1;
    snprintf(c->folder, sizeof c->folder, "%s", master_server_addr);
    return 0;
}

EXPORT int mooncake_store_register_buffer(void *store, void *buffer, size_t size) {
    client *c = store;
    begin(c);
    for (int i = 0; i < BUFFERS_MAX; i++) {
        if (c->buffer[i]) continue;
        c->buffer[i] = buffer;
        c->bytes[i] = size;
        return 0;
    }
    return -1;
}

EXPORT int mooncake_store_unregister_buffer(void *store, void *buffer) {
    client *c = store;
    for (int i = 0; i < BUFFERS_MAX; i++) {
        if (c->buffer[i] != buffer) continue;
        c->buffer[i] = NULL;
        return 0;
    }
    broken("%p is unregistered, and was not registered", buffer);
}

EXPORT int mooncake_store_batch_put_from(void *store, const char **keys, void **buffers, const size_t *sizes, size_t count,
                                         const void *config, int *results) {
    faults f = begin(store);
    if (!count || config) broken("a put of nothing, or with a configuration");
    for (size_t i = 0; i < count; i++) results[i] = f.down ? RPC_FAILED : put_one(store, &f, keys[i], buffers[i], sizes[i]);
    return 0;
}

EXPORT int mooncake_store_batch_get_into(void *store, const char **keys, void **buffers, const size_t *sizes, size_t count,
                                         int64_t *results) {
    faults f = begin(store);
    if (!count) broken("a get of nothing");
    for (size_t i = 0; i < count; i++) results[i] = f.down ? RPC_FAILED : get_one(store, &f, keys[i], buffers[i], sizes[i]);
    return 0;
}

EXPORT int mooncake_store_batch_is_exist(void *store, const char **keys, size_t count, int *results) {
    faults f = begin(store);
    if (!count) broken("a question for nothing");
    for (size_t i = 0; i < count; i++) results[i] = f.down ? RPC_FAILED : exists(store, keys[i]);
    return 0;
}

EXPORT int mooncake_store_is_exist(void *store, const char *key) {
    faults f = begin(store);
    return f.down ? RPC_FAILED : exists(store, key);
}

EXPORT int mooncake_store_remove(void *store, const char *key, int force) {
    faults f = begin(store);
    char   path[PATH_BYTES];
    path_of(store, key, path);
    if (f.down) return RPC_FAILED;
    if (!force) broken("a page that was just read has a lease: it goes by force");
    return unlink(path) ? NOT_FOUND : 0;
}
