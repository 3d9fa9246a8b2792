/*
 * What all kernels share: shared memory, vectors, number formats, sums over a block, matrix instructions.
 *
 * DESIGN. Kernels are extern "C", take numbers and pointers only, and read how many rows there are from the device, so that
 * a captured launch serves every step of its bucket. Blocks beyond that return at once. They compile with -fmad=false, and
 * fused multiply-adds are written as such; division and square root are IEEE's. So every float operation outside of
 * td_mma_bf16 has the same bits on every card, and on a CPU that runs these sources (TD_CUDA_EMULATION; the header that
 * defines it is included before). Sums over threads have an order that is fixed by indices. No kernel uses float atomics, or
 * waits for another block of its card; those of cards.cu wait for other cards, one of handover.cu for the host.
 */
#ifndef TD_NPU_CUDA_KERNEL_CUH
#define TD_NPU_CUDA_KERNEL_CUH

#include "npu/cuda/kernels/cuda_shapes.h"

/* No header of the toolkit is at hand when a driver's compiler reads this. */
typedef unsigned short     td_bf16;
typedef unsigned char      td_u8;
typedef signed char        td_i8;
typedef unsigned           td_u32;
typedef unsigned long long td_u64;

#define TD_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
/* So many blocks of a multiprocessor are enough. Without a number the compiler saves registers for more of them, and asks for
 * the next values only when it has used the first. */
#define TD_KERNEL_BLOCKS(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define TD_FN static __device__ __forceinline__
#define TD_METHOD __device__ __forceinline__
#define TD_ALL_LANES 0xffffffffu

#ifndef TD_CUDA_EMULATION

#define TD_SHARED(type, name, count) __shared__ __align__(16) type name[count]
extern __shared__ __align__(16) unsigned char td_dynamic[];
#define TD_SHARED_DYNAMIC(type, name) type *const name = reinterpret_cast<type *>(td_dynamic)
template <class T>
using td_shared = T *;
template <class U, class T>
TD_FN U *td_shared_as(T *p) {
    return reinterpret_cast<U *>(p);
}
/** A vector at an address that is a multiple of its size. */
template <class T>
TD_FN T td_load(const void *p) {
    return *static_cast<const T *>(p);
}
/** The same of 4, 8 or 16 bytes that nothing writes while the kernel runs and that a block reads once: weights. They take no
 * room in the first-level cache, where the rows that they are multiplied with may stay. */
template <class T>
TD_FN T td_load_once(const void *p);
template <>
__device__ __forceinline__ unsigned td_load_once<unsigned>(const void *p) {
    unsigned v;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
template <>
__device__ __forceinline__ uint2 td_load_once<uint2>(const void *p) {
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
template <>
__device__ __forceinline__ uint4 td_load_once<uint4>(const void *p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
/** td_load_once of 16 bytes, asked for where it is written: the compiler moves others behind td_take_turn. */
TD_FN uint4 td_load_ahead(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
template <class T>
TD_FN void td_store(void *p, T v) {
    *static_cast<T *>(p) = v;
}

/** A kernel that TD_CUDA_EARLY (cuda_kernels.h) names may begin while the one before it on its stream still runs, where the
 * card can do that. All of its threads call this before they use memory that other kernels use, and before they return. Then
 * all earlier kernels have ended, and the next one may begin. What no kernel writes, weights, may be read before. */
TD_FN void td_take_turn() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/** A value of which the compiler knows nothing: what a loop makes of it is made there, and waits in no register outside. */
TD_FN td_u32 td_hidden(td_u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

/** A pointer to device memory that was read from there. */
template <class T>
TD_FN T *td_device_pointer(td_u64 address) {
    return reinterpret_cast<T *>(address);
}

/** A word by which kernels of several cards meet, or a kernel and the host. What a thread's kernel, and those before it on
 * its stream, have written can be read by who has read it from the word on. See PTX ISA, "Memory Consistency Model": release
 * and acquire of system scope. */
struct td_signal {
    unsigned word;
};
TD_FN void td_signal_set(td_signal *s, unsigned v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&s->word), "r"(v) : "memory");
}
TD_FN unsigned td_signal_get(const td_signal *s) {
    unsigned v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(&s->word) : "memory");
    return v;
}
/** Set to 0, in no order with anything else: who sets it next has heard of this kernel's end. */
TD_FN void td_signal_silence(td_signal *s) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(&s->word), "r"(0) : "memory");
}
/** Add 1 to a word by which the blocks of a kernel tell what they have done: with a release and an acquire. @return what it
 * was. */
TD_FN unsigned td_count_in_order(unsigned *p) {
    unsigned was;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(was) : "l"(p) : "memory");
    return was;
}

/** Memory of which others use other parts while a kernel runs, or the same ones in an order that signals make: kernels of
 * other cards, copies of other streams. The emulation is told what of it a block uses, by its first thread. */
struct td_exchange {
    uint4 words;
};
TD_FN void td_exchange_used(const td_exchange *, size_t, bool) {}

/** Where something is in shared memory, as instructions for such memory take it. The compiler knows nothing of it, so it is
 * computed once, and what is added as a constant becomes a part of the instruction. */
template <class T>
struct td_place {
    unsigned           at;
    TD_METHOD td_place operator+(unsigned n) const { return {at + n * static_cast<unsigned>(sizeof(T))}; }
};
template <class T>
TD_FN td_place<T> td_place_of(T *p) {
    return {td_hidden(static_cast<unsigned>(__cvta_generic_to_shared(p)))};
}
/** A vector at a multiple of its size. */
template <class V, class T>
TD_FN V td_load(td_place<T> p);
template <>
__device__ __forceinline__ unsigned td_load<unsigned>(td_place<float> p) {
    unsigned v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(p.at) : "memory");
    return v;
}
template <>
__device__ __forceinline__ uint4 td_load<uint4>(td_place<float> p) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(p.at)
                 : "memory");
    return v;
}
template <class T>
TD_FN void td_store(td_place<T> p, unsigned v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(p.at), "r"(v) : "memory");
}
template <class T>
TD_FN void td_store(td_place<T> p, uint2 v) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(p.at), "r"(v.x), "r"(v.y) : "memory");
}
template <class T>
TD_FN void td_store(td_place<T> p, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(p.at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/** Start a copy of 16 bytes from device to shared memory, of zeros where it is not wanted; from is then not read. */
template <class T>
TD_FN void td_async_16(td_place<T> to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.at), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
TD_FN void td_async_16(void *to, const void *from, bool wanted) {
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
TD_FN void td_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/** Until all but the last N groups of this thread have arrived. */
template <int N>
TD_FN void td_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/** exp(x) to a relative error of about 2^-22 for x from -20 to 0, for weights that are rounded to bf16; exactly 1 for 0, and 0
 * for -inf. By the card's instruction for powers of two: cards of other generations may have other bits. */
TD_FN float td_exp_near(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
}

/* d[16, 8] += a[16, k] b[k, 8]. Lane l has group g = l / 4 and place t = l % 4 (PTX ISA, "Matrix fragments for mma"):
 *   a, bytes: word 0 row g, k 4t..4t+3; word 1 row g + 8; words 2, 3 the same rows, k + 16 (k = 32 only)
 *   b, bytes: word 0 column g, k 4t..4t+3; word 1 k + 16 (k = 32 only)
 *   bf16:     a words (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with its neighbour in k; b words (2t, g),
 *             (2t + 8, g)
 *   d:        0, 1 row g, columns 2t, 2t + 1; 2, 3 row g + 8 */
TD_FN void td_mma_s8_k32(int d[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TD_FN void td_mma_s8_k16(int d[4], const unsigned a[2], const unsigned b[1]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
TD_FN void td_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/** Word j of lane l: elements (g, 2t) and (g, 2t + 1) of the 8 x 8 matrix j. Its rows begin at the addresses that lanes 8j to
 * 8j + 7 give, 16-byte aligned. */
TD_FN void td_load_matrices(unsigned w[4], td_place<td_bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(row.at)
                 : "memory");
}
TD_FN void td_load_matrices(unsigned w[4], const td_bf16 *row) {
    td_load_matrices(w, td_place<td_bf16>{static_cast<unsigned>(__cvta_generic_to_shared(row))});
}
/** The same of elements (2t, g) and (2t + 1, g). That is what td_mma_bf16 wants as b of a matrix that lies with k as rows. */
TD_FN void td_load_matrices_transposed(unsigned w[4], td_place<td_bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(row.at)
                 : "memory");
}
TD_FN void td_load_matrices_transposed(unsigned w[4], const td_bf16 *row) {
    td_load_matrices_transposed(w, td_place<td_bf16>{static_cast<unsigned>(__cvta_generic_to_shared(row))});
}

#endif

/* ---- numbers --------------------------------------------------------------------------------- */

TD_FN float td_infinity() {
    return __uint_as_float(0x7f800000u);
}
TD_FN float td_nan() {
    return __uint_as_float(0x7fc00000u);
}
TD_FN float td_from_bf16(td_bf16 v) {
    return __uint_as_float(static_cast<unsigned>(v) << 16);
}
/** Round to nearest even; a NaN stays one, with bits of its own on a card. */
#ifndef TD_CUDA_EMULATION
TD_FN td_bf16 td_to_bf16(float f) {
    td_bf16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(f));
    return out;
}
TD_FN unsigned td_bf16_pair(float low, float high) {
    unsigned out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
#else
TD_FN td_bf16 td_to_bf16(float f) {
    unsigned bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<td_bf16>(bits >> 16 | 0x40u);
    return static_cast<td_bf16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
TD_FN unsigned td_bf16_pair(float low, float high) {
    return static_cast<unsigned>(td_to_bf16(low)) | static_cast<unsigned>(td_to_bf16(high)) << 16;
}
#endif

TD_FN float td_get(const float *p, size_t i) {
    return p[i];
}
TD_FN float td_get(const td_bf16 *p, size_t i) {
    return td_from_bf16(p[i]);
}
TD_FN void td_put(float *p, size_t i, float v) {
    p[i] = v;
}
TD_FN void td_put(td_bf16 *p, size_t i, float v) {
    p[i] = td_to_bf16(v);
}

/**
 * exp by 2^n * p(r), r = x - n ln 2 (Cody and Waite, two constants), p the degree-6 polynomial of Cephes expf: relative
 * error below 2e-7; the host's kernels compute the same bits (kernels/vec/vec_exp.inc). Below -87.33 the result is 0,
 * above 88.02 that of 88.02; NaN stays NaN.
 */
TD_FN float td_exp(float x) {
    float at = x < -87.33f ? -87.33f : x;
    at = at > 88.02f ? 88.02f : at;
    float shifted = fmaf(at, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, at));
    float p = fmaf(r, 1.9875691500e-4f, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    return x < -87.33f ? 0.0f : p * __uint_as_float((__float_as_uint(shifted) + 127u) << 23);
}
TD_FN float td_silu(float x) {
    return x / (1.0f + td_exp(-x));
}

/** What becomes of a gate and an up value (kernels/glu.h, p in full). A NaN stays one. */
struct td_glu {
    float alpha, limit, up_add;
};
TD_FN float td_gated(const td_glu &p, float gate, float up) {
    const float g = gate > p.limit ? p.limit : gate, below = up > p.limit ? p.limit : up;
    return g / (1.0f + td_exp(-(g * p.alpha))) * ((below < -p.limit ? -p.limit : below) + p.up_add);
}

/* ---- sums and maxima over a block ------------------------------------------------------------ */

TD_FN float td_warp_sum(float v) {
    for (int bits = 16; bits; bits >>= 1) v = v + __shfl_xor_sync(TD_ALL_LANES, v, bits);
    return v;
}
TD_FN float td_warp_max(float v) {
    for (int bits = 16; bits; bits >>= 1) {
        float other = __shfl_xor_sync(TD_ALL_LANES, v, bits);
        v = other > v ? other : v;
    }
    return v;
}

/** The sum over all threads, in an order of their numbers; each gets it. part: one float a warp, free again after. */
TD_FN float td_block_sum(float v, td_shared<float> part) {
    const unsigned lane = threadIdx.x % 32;
    v = td_warp_sum(v);
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = td_warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f);
    __syncthreads();
    return v;
}

/** The largest of all threads' words; each gets it. */
TD_FN unsigned td_block_max(unsigned v, td_shared<unsigned> part) {
    const unsigned lane = threadIdx.x % 32;
    v = __reduce_max_sync(TD_ALL_LANES, v);
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = __reduce_max_sync(TD_ALL_LANES, lane < blockDim.x / 32 ? part[lane] : 0u);
    __syncthreads();
    return v;
}

/** The largest of all threads' values; each gets it. NaN is not looked at. */
TD_FN float td_block_largest(float v, td_shared<float> part) {
    const unsigned lane = threadIdx.x % 32;
    v = td_warp_max(v);
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = td_warp_max(lane < blockDim.x / 32 ? part[lane] : -td_infinity());
    __syncthreads();
    return v;
}

/* ---- quantisation ---------------------------------------------------------------------------- */

/** Set *scale from the bits of a row's largest magnitude; 1 / scale, or 0 for a row whose codes are all 0 (npu.h, int8
 * rule). */
TD_FN float td_inverse_scale(unsigned amax_bits, float *scale) {
    float amax = __uint_as_float(amax_bits);
    if (amax_bits >= 0x7f800000u) {
        *scale = td_nan();
        return 0;
    }
    float s = amax / 127.0f, inverse = 1.0f / s;
    if (amax == 0 || inverse == td_infinity()) {
        *scale = 1;
        return 0;
    }
    *scale = s;
    return inverse;
}
TD_FN unsigned td_magnitude(float f) {
    return __float_as_uint(f) & 0x7fffffffu;
}
/** The codes of four values; inverse 0 gives 0, whatever they are. A product is at most 127, so its nearest integer is what is
 * left of it beside 2^23 + 2^22, in the lowest byte. */
TD_FN unsigned td_codes(const float x[4], float inverse) {
    unsigned code[4];
#pragma unroll
    for (int i = 0; i < 4; i++) code[i] = __float_as_uint(x[i] * inverse + 12582912.0f);
    const unsigned low = __byte_perm(code[0], code[1], 0x0040), high = __byte_perm(code[2], code[3], 0x0040);
    return inverse == 0 ? 0u : __byte_perm(low, high, 0x5410);
}

#endif
