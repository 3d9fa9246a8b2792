/* The fibers under cuda_emulation.h: a block's threads, its barriers, its warps and its shared memory. */
#include "tests/standins/cuda/cuda_emulation.h"

#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <cstdarg>
#include <cstdlib>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define THREADS_MAX 1024
#define STACK_BYTES ((size_t)256 << 10)
#define STATIC_BYTES ((size_t)48 << 10)   /* what a card gives to static arrays */
#define DYNAMIC_BYTES ((size_t)227 << 10) /* sm_90's limit; a device says less where it has less */
#define PLACES_MAX 32

namespace {

enum fiber_state { RUNS, AT_BARRIER, IN_WARP, DONE };

struct copy {
    void       *to;
    const void *from;  /* NULL: zeros */
    size_t      group; /* of its thread's */
};

/* What __builtin_setjmp keeps: of all registers two, so that a switch costs as little as a call. */
typedef void *switch_point[5];

struct fiber {
    td_emulated_thread self;
    fiber_state        state = RUNS;
    bool               started = false; /* its stack stands at a switch; DONE: at the one behind a block */
    const char        *what;            /* it waits at: the file of a barrier, an operation of a warp */
    int                line;
    switch_point       at;
    char              *stack;
    std::vector<copy>  copies; /* under way, in the order of their groups */
    size_t             group;  /* that is open */
    bool               took_turn;
};

struct warp {
    unsigned      arrived, generation;
    const char   *what;
    unsigned char lanes[2][32 * TD_EMULATED_LANE_BYTES]; /* by generation: the last one is still read */
};

struct place {
    const void *key;
    size_t      offset, bytes;
};

/* A machine that runs blocks: one per thread that launches. */
struct machine {
    fiber          fibers[THREADS_MAX];
    warp           warps[THREADS_MAX / 32];
    unsigned       order[THREADS_MAX];
    unsigned       n_threads, waiting; /* at the barrier */
    fiber         *running;
    switch_point   scheduler;
    ucontext_t     entry; /* to enter a stack for the first time */
    char          *stacks;
    unsigned char *statics, *dynamic;
    place          places[PLACES_MAX];
    size_t         n_places, static_used, dynamic_bytes;
    void (*thread)(void *ctx);
    void       *ctx;
    const char *name;
    bool        failed;
    char        mistake[400];
    bool        is_early;
    uint64_t    random;
#if defined(__SANITIZE_ADDRESS__)
    const void *scheduler_stack;
    size_t      scheduler_stack_bytes;
#endif

    machine() {
        stacks = static_cast<char *>(map(THREADS_MAX * STACK_BYTES));
        statics = static_cast<unsigned char *>(map(STATIC_BYTES));
        dynamic = static_cast<unsigned char *>(map(DYNAMIC_BYTES));
        for (size_t i = 0; i < THREADS_MAX; i++) {
            fibers[i].stack = stacks + i * STACK_BYTES;
            mprotect(fibers[i].stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE); /* where a stack that is too deep ends */
        }
    }
    ~machine() {
        munmap(stacks, THREADS_MAX * STACK_BYTES);
        munmap(statics, STATIC_BYTES);
        munmap(dynamic, DYNAMIC_BYTES);
    }
    static void *map(size_t bytes) {
        void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            fprintf(stderr, "cuda emulation: no memory for %zu bytes\n", bytes);
            abort();
        }
        return p;
    }
};

thread_local machine *mine; /* made by a thread's first launch */
struct owner {
    ~owner() { delete mine; }
};
thread_local owner mine_owner;

void *(*reach_fn)(const void *);
void (*exchange_fn)(const void *, size_t, td_cuda_exchange);
#define POLL_NS 20000 /* between two reads of a signal */
uint64_t order_seed;

uint64_t next_random(machine *m) { /* splitmix64 */
    uint64_t z = m->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- switches -------------------------------------------------------------------------------- */

void enter_scheduler_stack(machine *m, void *fake) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    (void)m, (void)fake;
#endif
}

/* A function whose callers know nothing of its body. clang, which only looks at this file, has no such attribute. */
#if defined(__clang__)
#define OPAQUE __attribute__((noinline))
#else
#define OPAQUE __attribute__((noipa))
#endif

/* A function of its own: of a __builtin_longjmp beside the __builtin_setjmp the compiler thinks that nobody comes back. */
[[noreturn]] OPAQUE void leave(void **to) {
    __builtin_longjmp(to, 1);
}

/* From a fiber to the scheduler, until it is chosen again. */
__attribute__((noinline)) void yield(machine *m, fiber *f) {
    void *fake = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake, m->scheduler_stack, m->scheduler_stack_bytes);
#endif
    if (__builtin_setjmp(f->at) == 0) leave(m->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &m->scheduler_stack, &m->scheduler_stack_bytes);
#endif
    (void)fake;
}

/* A fiber lives through blocks and launches: its stack is entered once, and again where a launch was ended within a block. */
void fiber_main() {
    machine *m = mine;
    fiber   *f = m->running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &m->scheduler_stack, &m->scheduler_stack_bytes);
#endif
    for (;;) {
        m->thread(m->ctx);
        if (!f->copies.empty()) td_emulated_fail("thread %u returns without having waited for its copies", f->self.linear);
        if (m->is_early && !f->took_turn)
            td_emulated_fail("thread %u returns without having taken its turn: the kernel before may still run",
                             f->self.linear);
        f->state = DONE;
        yield(m, f);
    }
}

/* Enter a fiber's stack, or go on in it. */
[[noreturn]] OPAQUE void go_on(machine *m, fiber *f) {
    if (f->started) leave(f->at);
    f->started = true;
    getcontext(&m->entry);
    m->entry.uc_stack.ss_sp = f->stack;
    m->entry.uc_stack.ss_size = STACK_BYTES;
    m->entry.uc_link = nullptr;
    makecontext(&m->entry, fiber_main, 0);
    setcontext(&m->entry);
    abort();
}

/* Run a fiber until it yields. */
__attribute__((noinline)) void resume(machine *m, fiber *f) {
    void *fake = nullptr;
    m->running = f;
    td_emulated_self = &f->self;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
    if (__builtin_setjmp(m->scheduler) == 0) go_on(m, f);
    enter_scheduler_stack(m, fake);
    td_emulated_self = nullptr;
}

void tell(machine *m, const char *format, va_list args) {
    if (m->failed) return;
    m->failed = true;
    int n = snprintf(m->mistake, sizeof m->mistake, "kernel %s: ", m->name);
    vsnprintf(m->mistake + n, sizeof m->mistake - (size_t)n, format, args);
}

__attribute__((format(printf, 2, 3))) void refuse(machine *m, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tell(m, format, args);
    va_end(args);
}

/* ---- a block --------------------------------------------------------------------------------- */

/* Nobody can go on: say who waits for whom. */
void tell_deadlock(machine *m) {
    fiber *waits = nullptr, *other = nullptr;
    for (unsigned i = 0; i < m->n_threads; i++) {
        fiber *f = &m->fibers[i];
        if (f->state != DONE && !waits) waits = f;
        if (f->state == DONE || (waits && (f->what != waits->what || f->line != waits->line))) other = f;
    }
    char where[160] = "has returned";
    if (other && other->state != DONE) snprintf(where, sizeof where, "is at %s:%d", other->what, other->line);
    refuse(m, "thread %u of block (%u, %u, %u) waits at %s:%d, and thread %u %s", waits->self.linear, waits->self.block.x,
           waits->self.block.y, waits->self.block.z, waits->what, waits->line, other ? other->self.linear : 0, where);
}

/* Let all go on who stand at the barrier, if these are all. */
bool open_barrier(machine *m) {
    if (m->waiting != m->n_threads) return false;
    for (unsigned i = 0; i < m->n_threads; i++) {
        fiber *f = &m->fibers[i];
        if (f->what != m->fibers[0].what || f->line != m->fibers[0].line) {
            refuse(m, "thread 0 is at the barrier %s:%d, thread %u at %s:%d", m->fibers[0].what, m->fibers[0].line,
                   f->self.linear, f->what, f->line);
            return false;
        }
        f->state = RUNS;
    }
    m->waiting = 0;
    return true;
}

void shuffle_order(machine *m) {
    for (unsigned i = m->n_threads; order_seed && i > 1; i--) {
        unsigned j = (unsigned)(next_random(m) % i), swap = m->order[i - 1];
        m->order[i - 1] = m->order[j];
        m->order[j] = swap;
    }
}

/* With a seed three of four warps are held back in each round, so that some are far ahead of others, as on a card. */
void run_block(machine *m, uint3 block) {
    m->n_places = m->static_used = 0;
    m->waiting = 0;
    memset(m->dynamic, 0xff, m->dynamic_bytes);
    for (unsigned i = 0; i < m->n_threads; i++) {
        m->fibers[i].state = RUNS;
        m->fibers[i].self.block = block;
        m->fibers[i].copies.clear();
        m->fibers[i].group = 0;
        m->fibers[i].took_turn = false;
        m->order[i] = i;
    }
    for (unsigned i = 0; i < m->n_threads / 32; i++) m->warps[i].arrived = 0;
    for (unsigned done = 0; done < m->n_threads;) {
        bool moved = false, left = false; /* left: somebody could have run */
        shuffle_order(m);
        const uint32_t held = order_seed ? (uint32_t)(next_random(m) | next_random(m)) : 0;
        done = 0;
        for (unsigned i = 0; i < m->n_threads && !m->failed; i++) {
            fiber *f = &m->fibers[m->order[i]];
            if (f->state == RUNS && held >> m->order[i] / 32 & 1) {
                left = true;
            } else if (f->state == RUNS) {
                resume(m, f);
                moved = true;
            }
            done += f->state == DONE;
        }
        if (m->failed) return;
        moved |= open_barrier(m);
        if (m->failed) return;
        if (!moved && !left && done < m->n_threads) {
            tell_deadlock(m);
            return;
        }
    }
}

bool takes(machine *m, const td_cuda_launch *l, unsigned max_threads) {
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    if (threads == 0 || threads > THREADS_MAX || threads > max_threads || threads % 32)
        refuse(m, "blocks of %u x %u x %u threads: it takes whole warps, up to %u threads", l->block[0], l->block[1],
               l->block[2], max_threads);
    else if (!l->grid[0] || !l->grid[1] || !l->grid[2] || l->grid[0] > 0x7fffffffu || l->grid[1] > 65535 ||
             l->grid[2] > 65535)
        refuse(m, "a grid of %u x %u x %u blocks", l->grid[0], l->grid[1], l->grid[2]);
    else if (l->shared_bytes > DYNAMIC_BYTES)
        refuse(m, "%zu bytes of dynamic shared memory, of %zu", l->shared_bytes, DYNAMIC_BYTES);
    return !m->failed;
}

uint64_t greatest_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

}  // namespace

__thread const td_emulated_thread *td_emulated_self;

void td_emulated_run(const char *name, const td_cuda_launch *l, unsigned max_threads, void (*thread)(void *ctx), void *ctx) {
    (void)&mine_owner;
    if (!mine) mine = new machine();
    machine *m = mine;
    m->name = name;
    m->failed = false;
    m->thread = thread;
    m->ctx = ctx;
    if (!takes(m, l, max_threads)) return;
    m->n_threads = l->block[0] * l->block[1] * l->block[2];
    m->dynamic_bytes = l->shared_bytes;
    m->is_early = l->is_early;
    m->random = order_seed;
    for (unsigned i = 0; i < m->n_threads; i++) {
        fiber *f = &m->fibers[i];
        if (f->state != DONE) f->started = false;
        f->self = {.index = {i % l->block[0], i / l->block[0] % l->block[1], i / l->block[0] / l->block[1]},
                   .block = {},
                   .block_dim = {l->block[0], l->block[1], l->block[2]},
                   .grid_dim = {l->grid[0], l->grid[1], l->grid[2]},
                   .linear = i};
    }
    uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], first = 0, step = 1;
    if (order_seed) {
        first = next_random(m) % blocks;
        do step = next_random(m) % blocks + 1;
        while (greatest_divisor(step, blocks) != 1);
    }
    for (uint64_t i = 0; i < blocks && !m->failed; i++) {
        uint64_t b = (first + (unsigned __int128)i * step) % blocks;
        run_block(m, {(unsigned)(b % l->grid[0]), (unsigned)(b / l->grid[0] % l->grid[1]),
                      (unsigned)(b / l->grid[0] / l->grid[1])});
    }
}

const char *td_cuda_emulated_mistake(void) {
    return mine && mine->failed ? mine->mistake : nullptr;
}

void td_cuda_emulated_reach(void *(*reach)(const void *device)) {
    reach_fn = reach;
}

void td_cuda_emulated_exchanges(void (*tell)(const void *at, size_t bytes, td_cuda_exchange what)) {
    exchange_fn = tell;
}

void td_cuda_emulated_order(uint64_t seed) {
    order_seed = seed;
}

void td_signal_set(td_signal *s, unsigned v) {
    if (exchange_fn) exchange_fn(s, sizeof *s, TD_CUDA_SIGNAL_SET);
    __atomic_store_n(&s->word, v, __ATOMIC_RELEASE);
}

unsigned td_signal_get(const td_signal *s) {
    const unsigned v = __atomic_load_n(&s->word, __ATOMIC_ACQUIRE);
    if (v && exchange_fn) exchange_fn(s, sizeof *s, TD_CUDA_SIGNAL_READ);
    const struct timespec nap = {0, POLL_NS};
    nanosleep(&nap, nullptr);
    return v;
}

void td_exchange_used(const td_exchange *p, size_t n, bool is_written) {
    if (exchange_fn) exchange_fn(p, n * sizeof *p, is_written ? TD_CUDA_EXCHANGE_WRITTEN : TD_CUDA_EXCHANGE_READ);
}

void *td_emulated_pointer(void *device) {
    return device && reach_fn ? reach_fn(device) : device;
}

/* ---- what a fiber calls ---------------------------------------------------------------------- */

void td_emulated_fail(const char *format, ...) {
    machine *m = mine;
    va_list  args;
    va_start(args, format);
    tell(m, format, args);
    va_end(args);
    yield(m, m->running); /* the scheduler ends the launch */
    abort();
}

void td_take_turn() {
    mine->running->took_turn = true;
}

void td_emulated_barrier(const char *file, int line) {
    machine *m = mine;
    fiber   *f = m->running;
    f->state = AT_BARRIER;
    f->what = file;
    f->line = line;
    m->waiting++;
    yield(m, f);
}

const unsigned char *td_emulated_meet(const char *what, const void *given, size_t bytes) {
    machine *m = mine;
    fiber   *f = m->running;
    unsigned first = f->self.linear / 32 * 32, lane = f->self.linear % 32;
    warp    *w = &m->warps[first / 32];
    if (bytes > TD_EMULATED_LANE_BYTES) td_emulated_fail("%s of %zu bytes", what, bytes);
    if (w->arrived && w->what != what && strcmp(w->what, what) != 0)
        td_emulated_fail("lane %u of warp %u comes to %s, where other lanes are at %s", lane, first / 32, what, w->what);
    unsigned char *lanes = w->lanes[w->generation % 2];
    if (bytes) memcpy(lanes + lane * TD_EMULATED_LANE_BYTES, given, bytes);
    w->what = what;
    w->arrived |= 1u << lane;
    if (w->arrived == 0xffffffffu) {
        w->arrived = 0;
        w->generation++;
        for (unsigned i = 0; i < 32; i++) m->fibers[first + i].state = RUNS;
        return lanes;
    }
    f->state = IN_WARP;
    f->what = what;
    f->line = 0;
    yield(m, f);
    return lanes;
}

void *td_emulated_static_shared(const void *key, size_t bytes) {
    machine *m = mine;
    for (size_t i = 0; i < m->n_places; i++)
        if (m->places[i].key == key) return m->statics + m->places[i].offset;
    size_t at = (m->static_used + 15) / 16 * 16;
    if (m->n_places == PLACES_MAX || bytes > STATIC_BYTES || at > STATIC_BYTES - bytes)
        td_emulated_fail("static shared arrays of more than %zu bytes", STATIC_BYTES);
    m->places[m->n_places++] = {key, at, bytes};
    m->static_used = at + bytes;
    memset(m->statics + at, 0xff, bytes);
    return m->statics + at;
}

void *td_emulated_dynamic_shared(size_t *bytes) {
    *bytes = mine->dynamic_bytes;
    return mine->dynamic;
}

void td_emulated_copy_later(void *to, const void *from) {
    fiber *f = mine->running;
    f->copies.push_back({to, from, f->group});
}

void td_emulated_close_group() {
    mine->running->group++;
}

void td_emulated_wait_groups(size_t but) {
    fiber *f = mine->running;
    size_t done = 0;
    for (; done < f->copies.size() && f->copies[done].group + but < f->group; done++) {
        const copy &c = f->copies[done];
        if (c.from)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + (ptrdiff_t)done);
}
