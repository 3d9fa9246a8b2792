/*
 * CUDA C++ on the CPU: what lets the sources of npu/cuda/kernels compile as C++17 and run without a card.
 *
 * DESIGN. A launch runs its blocks one after the other on the thread that launches. A block's threads are fibers: each runs
 * until it comes to a barrier or to an operation of its warp, and goes on when all have come. The order in which they run is
 * ascending, or shuffled with a seed (td_cuda_emulated_order), so that a result which depends on it shows. Stricter than a
 * card:
 *   - all threads of a block meet at the same __syncthreads in the source, and none has returned before;
 *   - operations of a warp name all of its lanes, and all lanes come to the same one; blocks are of whole warps;
 *   - shared memory is reached through td_shared, which checks each access; it begins as 0xff, NaN as floats, in each block;
 *   - vectors of 16 bytes are loaded and stored by functions that check the alignment;
 *   - an asynchronous copy arrives when its thread waits for it, as late as a card may be, and must have been waited for.
 * A mistake ends the launch with a sentence. Not found: races between two barriers whose result happens not to depend on the
 * order, and everything that is about time.
 *
 * Source of the semantics: CUDA C++ Programming Guide 13.0, "C++ Language Extensions" (synchronisation, warp shuffles, warp
 * votes), and PTX ISA 9.0, "Warp-level matrix instructions: mma" (fragments).
 */
#ifndef TD_TESTS_CUDA_EMULATION_H
#define TD_TESTS_CUDA_EMULATION_H

#define TD_CUDA_EMULATION 1

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/standins/cuda/cuda_launch.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* ---- threads --------------------------------------------------------------------------------- */

#define TD_EMULATED_LANE_BYTES 64

/** What the running fiber sees of itself. */
struct td_emulated_thread {
    uint3    index, block, block_dim, grid_dim;
    unsigned linear; /* number in its block */
};
extern __thread const td_emulated_thread *td_emulated_self;

#define threadIdx (td_emulated_self->index)
#define blockIdx (td_emulated_self->block)
#define blockDim (td_emulated_self->block_dim)
#define gridDim (td_emulated_self->grid_dim)

/** End the launch with a sentence, printf's way. */
[[noreturn]] void td_emulated_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void td_emulated_barrier(const char *file, int line);
#define __syncthreads() td_emulated_barrier(__FILE__, __LINE__)

/**
 * All lanes of the warp give `bytes` bytes and see what each of them gave: lane i's at i * TD_EMULATED_LANE_BYTES, until
 * this lane's next such operation. what: a constant string, the same from all lanes.
 */
const unsigned char *td_emulated_meet(const char *what, const void *mine, size_t bytes);

inline unsigned td_emulated_lane() {
    return td_emulated_self->linear % 32;
}

inline void td_emulated_full(unsigned mask) {
    if (mask != 0xffffffffu) td_emulated_fail("a warp operation names the lanes %08x, not all", mask);
}

template <class T>
T td_emulated_shuffle(const char *what, unsigned mask, T v, unsigned from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    td_emulated_full(mask);
    const unsigned char *all = td_emulated_meet(what, &v, sizeof v);
    T                    out;
    memcpy(&out, all + (size_t)from * TD_EMULATED_LANE_BYTES, sizeof out);
    return out;
}

template <class T>
T __shfl_sync(unsigned mask, T v, int from) {
    return td_emulated_shuffle("__shfl_sync", mask, v, (unsigned)from % 32);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits) {
    return td_emulated_shuffle("__shfl_xor_sync", mask, v, (td_emulated_lane() ^ (unsigned)bits) % 32);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by) {
    unsigned from = td_emulated_lane() + by;
    return td_emulated_shuffle("__shfl_down_sync", mask, v, from < 32 ? from : td_emulated_lane());
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    td_emulated_full(mask);
    td_emulated_meet("__syncwarp", nullptr, 0);
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
    td_emulated_full(mask);
    const unsigned char *all = td_emulated_meet("__ballot_sync", &yes, sizeof yes);
    unsigned             out = 0;
    for (unsigned i = 0; i < 32; i++) {
        int v;
        memcpy(&v, all + (size_t)i * TD_EMULATED_LANE_BYTES, sizeof v);
        if (v) out |= 1u << i;
    }
    return out;
}
/* Of all lanes' words: the largest, and the sum. */
template <class F>
unsigned td_emulated_reduce(const char *what, unsigned mask, unsigned v, const F &with) {
    td_emulated_full(mask);
    const unsigned char *all = td_emulated_meet(what, &v, sizeof v);
    unsigned             out = 0;
    for (unsigned i = 0; i < 32; i++) {
        unsigned other;
        memcpy(&other, all + (size_t)i * TD_EMULATED_LANE_BYTES, sizeof other);
        out = with(out, other);
    }
    return out;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
    return td_emulated_reduce("__reduce_max_sync", mask, v, [](unsigned a, unsigned b) { return a < b ? b : a; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
    return td_emulated_reduce("__reduce_add_sync", mask, v, [](unsigned a, unsigned b) { return a + b; });
}

/* ---- memory ---------------------------------------------------------------------------------- */

/** A pointer into shared memory that knows the array it points into. */
template <class T>
class td_shared {
   public:
    td_shared(T *p, T *begin, T *end) : at_(p), begin_(begin), end_(end) {}
    T &operator[](size_t i) const {
        check(at_ + i, 1);
        return at_[i];
    }
    T        &operator*() const { return (*this)[0]; }
    td_shared operator+(size_t n) const { return td_shared(at_ + n, begin_, end_); }
    T        *span(size_t n) const { /* n elements from here on, checked */
        check(at_, n);
        return at_;
    }
    template <class U>
    td_shared<U> as() const {
        return td_shared<U>(reinterpret_cast<U *>(at_), reinterpret_cast<U *>(begin_), reinterpret_cast<U *>(end_));
    }

   private:
    void check(T *p, size_t n) const {
        if (p < begin_ || p > end_ || n > (size_t)(end_ - p))
            td_emulated_fail("shared memory: element %td of an array of %td, by thread %u of block (%u, %u, %u)", p - begin_,
                             end_ - begin_, td_emulated_self->linear, blockIdx.x, blockIdx.y, blockIdx.z);
    }
    T *at_, *begin_, *end_;
};

/** The static array of this place in the source, the same for all threads of a block; and the launch's dynamic memory. */
void *td_emulated_static_shared(const void *place, size_t bytes);
void *td_emulated_dynamic_shared(size_t *bytes);

template <class T>
td_shared<T> td_emulated_array(const void *place, size_t n) {
    T *p = static_cast<T *>(td_emulated_static_shared(place, n * sizeof(T)));
    return td_shared<T>(p, p, p + n);
}
template <class T>
td_shared<T> td_emulated_dynamic() {
    size_t bytes;
    T     *p = static_cast<T *>(td_emulated_dynamic_shared(&bytes));
    return td_shared<T>(p, p, p + bytes / sizeof(T));
}
#define TD_SHARED(type, name, count)    \
    static const char name##_place = 0; \
    td_shared<type>   name = td_emulated_array<type>(&name##_place, count)
#define TD_SHARED_DYNAMIC(type, name) td_shared<type> name = td_emulated_dynamic<type>()
template <class U, class T>
td_shared<U> td_shared_as(td_shared<T> p) {
    return p.template as<U>();
}

template <class T>
const T *td_emulated_aligned(const void *p) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T))
        td_emulated_fail("%zu bytes at %p, which is not aligned, by thread %u", sizeof(T), p, td_emulated_self->linear);
    return static_cast<const T *>(p);
}
template <class T>
T td_load(const void *p) {
    T v;
    memcpy(&v, td_emulated_aligned<T>(p), sizeof v);
    return v;
}
template <class T>
T td_load_once(const void *p) {
    return td_load<T>(p);
}
inline uint4 td_load_ahead(const void *p) {
    return td_load<uint4>(p);
}
template <class T>
void td_store(void *p, T v) {
    memcpy(const_cast<T *>(td_emulated_aligned<T>(p)), &v, sizeof v);
}
template <class V, class T>
V td_load(td_shared<T> p) {
    return td_load<V>(p.span(sizeof(V) / sizeof(T)));
}
template <class V, class T>
void td_store(td_shared<T> p, V v) {
    td_store<V>(p.span(sizeof(V) / sizeof(T)), v);
}
template <class T>
using td_place = td_shared<T>;
template <class T>
td_place<T> td_place_of(td_shared<T> p) {
    return p;
}
/** Copies of 16 bytes arrive when this thread waits for their group, and not before; from null: zeros. */
void td_emulated_copy_later(void *to, const void *from);
void td_emulated_close_group();
void td_emulated_wait_groups(size_t but); /* for all but the last of so many */
template <class T>
void td_async_16(td_shared<T> to, const void *from, bool wanted) {
    td_emulated_copy_later(const_cast<uint4 *>(td_emulated_aligned<uint4>(to.span(16 / sizeof(T)))),
                           wanted ? td_emulated_aligned<uint4>(from) : nullptr);
}
inline void td_async_commit() {
    td_emulated_close_group();
}
template <int N>
void td_async_wait() {
    td_emulated_wait_groups(N);
}

inline int atomicAdd(int *p, int v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
inline unsigned atomicAdd(unsigned *p, unsigned v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
inline int atomicMax(int *p, int v) {
    int old = *p;
    if (v > old) *p = v;
    return old;
}

/** A word by which kernels of several cards meet, or a kernel and the host: set with a release of system scope, read with an acquire. Reading waits a
 * little, so that a thread that polls does not keep the others from running. */
struct td_signal {
    unsigned word;
};
void        td_signal_set(td_signal *s, unsigned v);
unsigned    td_signal_get(const td_signal *s);
inline void td_signal_silence(td_signal *s) {
    __atomic_store_n(&s->word, 0, __ATOMIC_RELAXED);
}
inline unsigned td_count_in_order(unsigned *p) {
    return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL);
}

/** Memory of which others use other parts, or all of it in an order that signals make, while a kernel runs. */
struct td_exchange {
    uint4 words;
};
void td_exchange_used(const td_exchange *p, size_t n, bool is_written);

/** Of a launch that is early every thread comes here before it returns. What it reads before is not seen. */
void td_take_turn();

inline unsigned td_hidden(unsigned v) {
    return v;
}
inline int __clz(int v) {
    return v ? __builtin_clz((unsigned)v) : 32;
}
inline int __ffs(int v) {
    return __builtin_ffs(v);
}
inline int __popc(unsigned v) {
    return __builtin_popcount(v);
}

void *td_emulated_pointer(void *device); /* through the reach */
template <class T>
T *td_device_pointer(unsigned long long address) {
    return address ? static_cast<T *>(td_emulated_pointer(reinterpret_cast<void *>(address))) : nullptr;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}
inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
inline int __float2int_rn(float f) {
    return (int)rintf(f);
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)((unsigned)a >> 8 * i) * (int)(signed char)((unsigned)b >> 8 * i);
    return c;
}
/* Four bytes each, without carries between them. */
inline unsigned __vsub4(unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (((a >> 8 * i) - (b >> 8 * i)) & 255u) << 8 * i;
    return out;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    unsigned char b[8];
    unsigned      out = 0;
    memcpy(b, &x, 4), memcpy(b + 4, &y, 4);
    for (int i = 0; i < 4; i++) out |= (unsigned)b[s >> 4 * i & 7] << 8 * i;
    return out;
}

/** The card's instruction is less exact. */
inline float td_exp_near(float x) {
    return exp2f(x * 1.44269504f);
}

/* ---- matrix instructions --------------------------------------------------------------------- */

/*
 * d[16, 8] += a[16, k] b[k, 8]. Lane l has group g = l / 4 and place t = l % 4:
 *   a, bytes:  word 0 row g, k 4t..4t+3; word 1 row g + 8; words 2, 3 the same rows, k + 16 (k = 32 only)
 *   b, bytes:  word 0 column g, k 4t..4t+3; word 1 k + 16 (k = 32 only)
 *   d:         0, 1 row g, columns 2t, 2t + 1; 2, 3 row g + 8
 * and for bf16, k = 16, with two elements a word: a words 0..3: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); b words
 * (2t, g), (2t + 8, g).
 */
template <int WORDS>
struct td_emulated_fragments {
    unsigned a[WORDS], b[WORDS / 2];
};
/* What a lane's four results are made of: by place, its two rows and its two columns. */
template <int WORDS>
struct td_emulated_operands {
    td_emulated_fragments<WORDS> rows[4], columns[4][2];
    td_emulated_operands(const char *what, const unsigned *a, const unsigned *b) {
        td_emulated_fragments<WORDS> mine;
        memcpy(mine.a, a, sizeof mine.a), memcpy(mine.b, b, sizeof mine.b);
        const unsigned char *all = td_emulated_meet(what, &mine, sizeof mine);
        const size_t         g = td_emulated_lane() / 4, t = td_emulated_lane() % 4;
        for (size_t place = 0; place < 4; place++) {
            memcpy(&rows[place], all + (g * 4 + place) * TD_EMULATED_LANE_BYTES, sizeof mine);
            for (size_t i = 0; i < 2; i++)
                memcpy(&columns[place][i], all + ((2 * t + i) * 4 + place) * TD_EMULATED_LANE_BYTES, sizeof mine);
        }
    }
};

template <int WORDS>
void td_emulated_mma_s8(const char *what, int d[4], const unsigned *a, const unsigned *b) {
    const td_emulated_operands<WORDS> of(what, a, b);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned place = 0; place < 4; place++)
            for (unsigned half = 0; half < WORDS / 2; half++)
                d[i] = __dp4a((int)of.rows[place].a[half * 2 + i / 2], (int)of.columns[place][i % 2].b[half], d[i]);
}
inline void td_mma_s8_k32(int d[4], const unsigned a[4], const unsigned b[2]) {
    td_emulated_mma_s8<4>("mma.m16n8k32.s8", d, a, b);
}
inline void td_mma_s8_k16(int d[4], const unsigned a[2], const unsigned b[1]) {
    td_emulated_mma_s8<2>("mma.m16n8k16.s8", d, a, b);
}
/** The card's sums of one instruction have an order and roundings of their own; here they are in the order of k, in f32. */
inline void td_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
    const td_emulated_operands<4> of("mma.m16n8k16.bf16", a, b);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 16; k++) {
            const unsigned x = of.rows[k % 8 / 2].a[k / 8 * 2 + i / 2], y = of.columns[k % 8 / 2][i % 2].b[k / 8];
            d[i] = fmaf(__uint_as_float(k % 2 ? x & 0xffff0000u : x << 16),
                        __uint_as_float(k % 2 ? y & 0xffff0000u : y << 16), d[i]);
        }
}

/** ldmatrix.m8n8.x4: of lane l the element pairs (g, 2t), (g, 2t + 1) of four matrices, whose rows the lanes point to;
 * transposed (2t, g), (2t + 1, g). */
inline void td_emulated_matrices(const char *what, unsigned w[4], td_shared<uint16_t> row, bool transposed) {
    const uint16_t      *mine = (td_emulated_aligned<uint4>(row.span(8)), row.span(8));
    const unsigned char *all = td_emulated_meet(what, &mine, sizeof mine);
    const unsigned       g = td_emulated_lane() / 4, t = td_emulated_lane() % 4;
    for (unsigned j = 0; j < 4; j++) {
        unsigned pair[2];
        for (unsigned i = 0; i < 2; i++) {
            const uint16_t *from;
            const unsigned  of_row = transposed ? t * 2 + i : g;
            memcpy(&from, all + (size_t)(j * 8 + of_row) * TD_EMULATED_LANE_BYTES, sizeof from);
            pair[i] = from[transposed ? g : t * 2 + i];
        }
        w[j] = pair[0] | pair[1] << 16;
    }
}
inline void td_load_matrices(unsigned w[4], td_shared<uint16_t> row) {
    td_emulated_matrices("ldmatrix", w, row, false);
}
inline void td_load_matrices_transposed(unsigned w[4], td_shared<uint16_t> row) {
    td_emulated_matrices("ldmatrix.trans", w, row, true);
}

/* ---- launches -------------------------------------------------------------------------------- */

/** Run thread(ctx) in every thread of the launch. */
void td_emulated_run(const char *name, const td_cuda_launch *l, unsigned max_threads, void (*thread)(void *ctx), void *ctx);
template <class... A>
struct td_emulated_call {
    void (*kernel)(A...);
    std::tuple<A...> args;
    static void      thread(void *ctx) {
             auto *c = static_cast<td_emulated_call *>(ctx);
             std::apply(c->kernel, c->args);
    }
};
template <class T>
T td_emulated_arg(const void *at) {
    static_assert(std::is_arithmetic_v<T> || std::is_pointer_v<T>, "kernels take numbers and pointers");
    T v;
    memcpy(&v, at, sizeof v);
    if constexpr (std::is_pointer_v<T>) v = (T)td_emulated_pointer((void *)v);
    return v;
}
template <class... A, size_t... I>
void td_emulated_launch(const char *name, void (*kernel)(A...), unsigned max_threads, const td_cuda_launch *l, void **args,
                        std::index_sequence<I...>) {
    td_emulated_call<A...> c = {kernel, std::tuple<A...>{td_emulated_arg<A>(args[I])...}};
    td_emulated_run(name, l, max_threads, td_emulated_call<A...>::thread, &c);
}
template <class... A>
void td_emulated_launch(const char *name, void (*kernel)(A...), unsigned max_threads, const td_cuda_launch *l, void **args) {
    td_emulated_launch(name, kernel, max_threads, l, args, std::index_sequence_for<A...>{});
}
/** Which arguments point to what is not const. */
template <class... A>
constexpr uint32_t td_emulated_written() {
    uint32_t mask = 0, bit = 1;
    ((mask |= std::is_pointer_v<A> && !std::is_const_v<std::remove_pointer_t<A>> ? bit : 0, bit <<= 1), ...);
    return mask;
}
/** Which arguments point to signals and exchanges. */
template <class P>
constexpr bool td_emulated_is_exchange() {
    using T = std::remove_const_t<std::remove_pointer_t<P>>;
    return std::is_same_v<T, td_signal> || std::is_same_v<T, td_exchange>;
}
template <class... A>
constexpr uint32_t td_emulated_exchanges() {
    uint32_t mask = 0, bit = 1;
    ((mask |= td_emulated_is_exchange<A>() ? bit : 0, bit <<= 1), ...);
    return mask;
}
template <class... A>
constexpr td_cuda_kernel td_emulated_record(const char *name, void (*)(A...), td_cuda_launch_fn f, unsigned max_threads) {
    static_assert(sizeof...(A) <= TD_CUDA_ARGS_MAX, "too many arguments");
    return td_cuda_kernel{
        name, f, sizeof...(A), {sizeof(A)...}, max_threads, td_emulated_written<A...>(), td_emulated_exchanges<A...>()};
}

/** Make a kernel one that a driver finds. */
#define TD_CUDA_EXPORT(kernel, threads)                                                                                      \
    extern "C" __attribute__((visibility("default"))) void td_cuda_emulated_##kernel(const td_cuda_launch *l, void **args);  \
    void                                                   td_cuda_emulated_##kernel(const td_cuda_launch *l, void **args) { \
                                                          td_emulated_launch(#kernel, kernel, threads, l, args);             \
    }                                                                                                                        \
    extern "C" __attribute__((visibility("default"))) const td_cuda_kernel td_cuda_kernel_##kernel;                          \
    const td_cuda_kernel td_cuda_kernel_##kernel = td_emulated_record(#kernel, kernel, td_cuda_emulated_##kernel, threads);

#endif
