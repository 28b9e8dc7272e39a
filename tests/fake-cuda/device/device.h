// The part of CUDA C++ that CubeCL 0.11's generator uses, for g++. Threads are those of run.cpp. Arithmetic is the CPU's without
// contraction, so a GPU's results differ in the last bits: it fuses multiplications and additions and has an exp of its own.
#pragma once
#include "../thread.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <math.h>
#include <tuple>
#include <type_traits>
#include <utility>

typedef unsigned long long fake_uint64;
typedef long long fake_int64;

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define warpSize 32
#define threadIdx (fake_self->tid)
#define blockIdx (fake_self->bid)
#define blockDim (fake_self->bdim)
#define gridDim (fake_self->gdim)
typedef fake_uint3 uint3;

// ---------------------------------------------------------------------------------------------- threads

inline void __syncthreads() { fake_sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { fake_sync_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline unsigned __activemask() { return fake_active(); }

template <typename T> inline uint64_t fake_bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle of more than 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <typename T> inline T fake_from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T> inline T fake_take(T value, unsigned mask, int from) {
    unsigned lanes;
    const uint64_t *values = fake_exchange(fake_bits(value), mask, &lanes);
    // The value of a lane that takes no part is undefined on a GPU; NaN makes its use visible.
    if (from < 0 || from > 31) return value;
    return lanes >> from & 1 ? fake_from_bits<T>(values[from]) : fake_from_bits<T>(~0ull);
}
template <typename T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    int base = fake_self->lane / width * width;
    return fake_take(value, mask, base + (lane & (width - 1)));
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) { return fake_take(value, mask, (int)fake_self->lane ^ by); }
template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = fake_self->lane;
    return fake_take(value, mask, lane % width < (int)by ? lane : lane - (int)by);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = fake_self->lane;
    return fake_take(value, mask, lane % width + (int)by >= width ? lane : lane + (int)by);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned lanes, votes = 0;
    const uint64_t *values = fake_exchange(predicate != 0, mask, &lanes);
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1 && values[i]) votes |= 1u << i;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// ---------------------------------------------------------------------------------------------- atomics (one thread at a time)

template <typename T, typename U> inline T fake_atomic(T *at, U value) { T old = *at; *at = value; return old; }
template <typename T, typename U> inline T atomicExch(T *at, U value) { return fake_atomic(at, (T)value); }
template <typename T, typename U> inline T atomicAdd(T *at, U value) { return fake_atomic(at, (T)(*at + (T)value)); }
template <typename T, typename U> inline T atomicMin(T *at, U value) { return fake_atomic(at, *at < (T)value ? *at : (T)value); }
template <typename T, typename U> inline T atomicMax(T *at, U value) { return fake_atomic(at, *at > (T)value ? *at : (T)value); }
template <typename T, typename U> inline T atomicAnd(T *at, U value) { return fake_atomic(at, (T)(*at & (T)value)); }
template <typename T, typename U> inline T atomicOr(T *at, U value) { return fake_atomic(at, (T)(*at | (T)value)); }
template <typename T, typename U> inline T atomicXor(T *at, U value) { return fake_atomic(at, (T)(*at ^ (T)value)); }
template <typename T, typename U, typename V> inline T atomicCAS(T *at, U compare, V value) { T old = *at; if (old == (T)compare) *at = (T)value; return old; }

// ---------------------------------------------------------------------------------------------- arithmetic

#define FAKE_MINMAX(T) \
    inline T min(T a, T b) { return a < b ? a : b; } \
    inline T max(T a, T b) { return a > b ? a : b; }
FAKE_MINMAX(int)
FAKE_MINMAX(unsigned)
FAKE_MINMAX(long)
FAKE_MINMAX(unsigned long)
FAKE_MINMAX(long long)
FAKE_MINMAX(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
inline double rhypot(double a, double b) { return 1.0 / ::hypot(a, b); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(unsigned x) { return __builtin_ffs(x); }
inline int __ffsll(unsigned long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
inline unsigned __cvta_generic_to_shared(const void *at) { return (unsigned)((const char *)at - fake_self->shared); }

// ---------------------------------------------------------------------------------------------- barriers and bulk copies

/// Copies a box of a tensor to shared memory, at once. Elements outside of the tensor are 0 or NaN.
inline void fake_bulk_copy(void *to, const void *encoded, std::initializer_list<int> first) {
    FakeTensorMap map;
    memcpy(&map, encoded, sizeof map);
    const int *corner = first.begin();
    size_t count = 1, start = (char *)to - fake_self->shared;
    for (int d = 0; d < map.rank; d++) count *= map.box[d];
    for (size_t i = 0; i < count; i++) {
        size_t rest = i, at = start + i * map.element;
        const char *from = map.address;
        bool inside = true;
        for (int d = 0; d < map.rank; d++) {
            long position = corner[d] + (long)(rest % map.box[d]);
            rest /= map.box[d];
            inside &= position >= 0 && position < (long)map.sizes[d];
            from += position * (long)map.strides[d];
        }
        // Swizzled over 32, 64 or 128 bytes, the bits 7 to 9 of an address change which 16 bytes of the span it is.
        at ^= (at >> 7 & ((1 << map.swizzle) - 1)) << 4;
        if (inside) memcpy(fake_self->shared + at, from, map.element);
        else memset(fake_self->shared + at, map.fills_nan ? 0xFF : 0, map.element);
    }
}

namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
/// Copies are made when they are issued, so a phase ends with its last arrival.
template <thread_scope> struct barrier {
    typedef uint32_t arrival_token;
    uint16_t expected, pending;
    uint32_t phase;
    arrival_token arrive(int count = 1) {
        arrival_token token = phase;
        if (!(pending -= count)) pending = expected, phase++;
        return token;
    }
    void wait(arrival_token token) const { fake_wait(&phase, ~0u, token); }
    void wait_parity(bool parity) const { fake_wait(&phase, 1, parity); }
    void arrive_and_wait() { wait(arrive()); }
};
template <thread_scope S> void init(barrier<S> *it, int expected) { it->expected = it->pending = expected, it->phase = 0; }
namespace device {
template <thread_scope S> uint32_t barrier_arrive_tx(barrier<S> &it, int count, int) { return it.arrive(count); }
template <thread_scope S> uint64_t *barrier_native_handle(barrier<S> &it) { return (uint64_t *)&it; }
namespace experimental {
inline void fence_proxy_async_shared_cta() {}
template <typename B> void cp_async_bulk_tensor_1d_global_to_shared(void *to, const void *map, int a, B &) { fake_bulk_copy(to, map, {a}); }
template <typename B> void cp_async_bulk_tensor_2d_global_to_shared(void *to, const void *map, int a, int b, B &) { fake_bulk_copy(to, map, {a, b}); }
template <typename B> void cp_async_bulk_tensor_3d_global_to_shared(void *to, const void *map, int a, int b, int c, B &) {
    fake_bulk_copy(to, map, {a, b, c});
}
template <typename B> void cp_async_bulk_tensor_4d_global_to_shared(void *to, const void *map, int a, int b, int c, int d, B &) {
    fake_bulk_copy(to, map, {a, b, c, d});
}
template <typename B> void cp_async_bulk_tensor_5d_global_to_shared(void *to, const void *map, int a, int b, int c, int d, int e, B &) {
    fake_bulk_copy(to, map, {a, b, c, d, e});
}
} // namespace experimental
} // namespace device
} // namespace cuda

// ---------------------------------------------------------------------------------------------- half and bfloat16

inline float fake_half_to_float(uint16_t bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}
inline uint16_t fake_float_to_half(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
inline float fake_bfloat_to_float(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
inline uint16_t fake_float_to_bfloat(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if (value != value) return 0x7FFF;
    wide += 0x7FFF + (wide >> 16 & 1); // to nearest, ties to even
    return wide >> 16;
}

#define FAKE_NARROW(NAME, WIDEN, NARROW) \
    struct NAME { \
        uint16_t bits; \
        NAME() = default; \
        template <typename T, typename = typename std::enable_if<std::is_arithmetic<T>::value>::type> NAME(T value) : bits(NARROW((float)value)) {} \
        operator float() const { return WIDEN(bits); } \
    }; \
    inline NAME fake_make_##NAME(float value) { NAME made; made.bits = NARROW(value); return made; }
FAKE_NARROW(__half, fake_half_to_float, fake_float_to_half)
FAKE_NARROW(__nv_bfloat16, fake_bfloat_to_float, fake_float_to_bfloat)
template <typename T> struct fake_is_narrow { static const bool value = std::is_same<T, __half>::value || std::is_same<T, __nv_bfloat16>::value; };

// Arithmetic of two narrow numbers is rounded after every operation.
#define FAKE_OPERATOR(NAME, OP) inline NAME operator OP(NAME a, NAME b) { return NAME((float)a OP (float)b); }
#define FAKE_COMPARISON(NAME, OP) inline bool operator OP(NAME a, NAME b) { return (float)a OP (float)b; }
#define FAKE_FUNCTION(NAME, F, BY) inline NAME F(NAME x) { return NAME(BY((float)x)); }
#define FAKE_NARROW_MATH(NAME) \
    FAKE_OPERATOR(NAME, +) FAKE_OPERATOR(NAME, -) FAKE_OPERATOR(NAME, *) FAKE_OPERATOR(NAME, /) \
    FAKE_COMPARISON(NAME, ==) FAKE_COMPARISON(NAME, !=) FAKE_COMPARISON(NAME, <) FAKE_COMPARISON(NAME, <=) FAKE_COMPARISON(NAME, >) FAKE_COMPARISON(NAME, >=) \
    inline NAME operator-(NAME x) { x.bits ^= 0x8000; return x; } \
    inline NAME &operator+=(NAME &a, NAME b) { return a = a + b; } \
    inline NAME &operator*=(NAME &a, NAME b) { return a = a * b; } \
    FAKE_FUNCTION(NAME, hexp, expf) FAKE_FUNCTION(NAME, hlog, logf) FAKE_FUNCTION(NAME, hsin, sinf) FAKE_FUNCTION(NAME, hcos, cosf) \
    FAKE_FUNCTION(NAME, htanh, tanhf) FAKE_FUNCTION(NAME, hsqrt, sqrtf) FAKE_FUNCTION(NAME, hrsqrt, rsqrtf) FAKE_FUNCTION(NAME, hceil, ceilf) \
    FAKE_FUNCTION(NAME, hfloor, floorf) FAKE_FUNCTION(NAME, htrunc, truncf) FAKE_FUNCTION(NAME, hrint, rintf) FAKE_FUNCTION(NAME, hrcp, 1.0f /) \
    inline NAME __habs(NAME x) { x.bits &= 0x7FFF; return x; } \
    inline NAME __hmax(NAME a, NAME b) { return NAME(fmaxf(a, b)); } \
    inline NAME __hmin(NAME a, NAME b) { return NAME(fminf(a, b)); } \
    inline NAME __hmax_nan(NAME a, NAME b) { return a != a ? a : b != b ? b : __hmax(a, b); } \
    inline NAME __hmin_nan(NAME a, NAME b) { return a != a ? a : b != b ? b : __hmin(a, b); } \
    inline NAME __hfma(NAME a, NAME b, NAME c) { return NAME(fmaf(a, b, c)); } \
    inline bool __hisnan(NAME x) { return x != x; } \
    inline int __hisinf(NAME x) { return isinf((float)x); }
FAKE_NARROW_MATH(__half)
FAKE_NARROW_MATH(__nv_bfloat16)

template <typename N> struct alignas(4) fake_pair {
    N x, y;
    fake_pair() = default;
    fake_pair(N a, N b) : x(a), y(b) {}
    explicit fake_pair(float both) : x(both), y(both) {}
};
typedef fake_pair<__half> __half2;
typedef fake_pair<__nv_bfloat16> __nv_bfloat162;
#define FAKE_PAIR_OPERATOR(OP) template <typename N> inline fake_pair<N> operator OP(fake_pair<N> a, fake_pair<N> b) { return {a.x OP b.x, a.y OP b.y}; }
FAKE_PAIR_OPERATOR(+) FAKE_PAIR_OPERATOR(-) FAKE_PAIR_OPERATOR(*) FAKE_PAIR_OPERATOR(/)
template <typename N> inline fake_pair<N> operator-(fake_pair<N> a) { return {-a.x, -a.y}; }
#define FAKE_PAIR_FUNCTION(F, BY) template <typename N> inline fake_pair<N> F(fake_pair<N> x) { return {BY(x.x), BY(x.y)}; }
FAKE_PAIR_FUNCTION(h2exp, hexp) FAKE_PAIR_FUNCTION(h2log, hlog) FAKE_PAIR_FUNCTION(h2sin, hsin) FAKE_PAIR_FUNCTION(h2cos, hcos)
FAKE_PAIR_FUNCTION(h2tanh, htanh) FAKE_PAIR_FUNCTION(h2sqrt, hsqrt) FAKE_PAIR_FUNCTION(h2rsqrt, hrsqrt) FAKE_PAIR_FUNCTION(h2ceil, hceil)
FAKE_PAIR_FUNCTION(h2floor, hfloor) FAKE_PAIR_FUNCTION(h2trunc, htrunc) FAKE_PAIR_FUNCTION(h2rint, hrint) FAKE_PAIR_FUNCTION(__habs2, __habs)
template <typename N> inline fake_pair<N> __hmax2(fake_pair<N> a, fake_pair<N> b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
template <typename N> inline fake_pair<N> __hmin2(fake_pair<N> a, fake_pair<N> b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
template <typename N> inline fake_pair<N> __hmax2_nan(fake_pair<N> a, fake_pair<N> b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }
template <typename N> inline fake_pair<N> __hmin2_nan(fake_pair<N> a, fake_pair<N> b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }
template <typename N> inline fake_pair<N> __hfma2(fake_pair<N> a, fake_pair<N> b, fake_pair<N> c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

// ---------------------------------------------------------------------------------------------- matrix units (mma.h)

namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32 {}; }
inline float __float_to_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value == value) bits += 0xFFF + (bits >> 13 & 1);
    bits &= ~0x1FFFu;
    memcpy(&value, &bits, 4);
    return value;
}
template <typename T> struct fake_storage { typedef T type; };
template <> struct fake_storage<precision::tf32> { typedef float type; };
template <typename USE, int M, int N, int K> struct fake_shape { static const int rows = M, columns = N; };
template <int M, int N, int K> struct fake_shape<matrix_a, M, N, K> { static const int rows = M, columns = K; };
template <int M, int N, int K> struct fake_shape<matrix_b, M, N, K> { static const int rows = K, columns = N; };
/// The first thread of the warp holds the whole matrix, loads, multiplies and stores it. Element-wise changes, which all threads make,
/// are the same in each of them, so nothing has to be exchanged.
template <typename USE, int M, int N, int K, typename T, typename LAYOUT = void> struct fragment {
    typedef typename fake_storage<T>::type element_type;
    static const int rows = fake_shape<USE, M, N, K>::rows, columns = fake_shape<USE, M, N, K>::columns;
    static const int num_elements = rows * columns;
    element_type x[num_elements];
};
inline bool fake_leads() { return fake_self->lane == 0; }
template <typename F, typename V> inline void fill_fragment(F &f, V value) {
    for (int i = 0; i < F::num_elements; i++) f.x[i] = value;
}
template <typename F, typename T> inline void fake_load(F &f, const T *from, unsigned stride, bool by_row) {
    fake_sync_warp(~0u);
    if (fake_leads())
        for (int r = 0; r < F::rows; r++)
            for (int c = 0; c < F::columns; c++) f.x[r * F::columns + c] = from[by_row ? r * stride + c : c * stride + r];
    fake_sync_warp(~0u);
}
template <typename USE, int M, int N, int K, typename T, typename P> inline void load_matrix_sync(fragment<USE, M, N, K, T, row_major> &f, const P *from, unsigned stride) { fake_load(f, from, stride, true); }
template <typename USE, int M, int N, int K, typename T, typename P> inline void load_matrix_sync(fragment<USE, M, N, K, T, col_major> &f, const P *from, unsigned stride) { fake_load(f, from, stride, false); }
template <int M, int N, int K, typename T, typename P> inline void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const P *from, unsigned stride, layout_t layout) { fake_load(f, from, stride, layout == mem_row_major); }
template <int M, int N, int K, typename T, typename P> inline void store_matrix_sync(P *to, const fragment<accumulator, M, N, K, T> &f, unsigned stride, layout_t layout) {
    fake_sync_warp(~0u);
    if (fake_leads())
        for (int r = 0; r < M; r++)
            for (int c = 0; c < N; c++) to[layout == mem_row_major ? r * stride + c : c * stride + r] = f.x[r * N + c];
    fake_sync_warp(~0u);
}
template <int M, int N, int K, typename T, typename C, typename LA, typename LB, typename D>
inline void mma_sync(fragment<accumulator, M, N, K, D> &d, const fragment<matrix_a, M, N, K, T, LA> &a, const fragment<matrix_b, M, N, K, T, LB> &b, const fragment<accumulator, M, N, K, C> &c) {
    if (fake_leads()) {
        float sums[M * N];
        for (int i = 0; i < M * N; i++) sums[i] = (float)c.x[i];
        auto factor = [](auto value) { return std::is_same<T, precision::tf32>::value ? __float_to_tf32((float)value) : (float)value; };
        for (int i = 0; i < M; i++)
            for (int k = 0; k < K; k++) {
                float by = factor(a.x[i * K + k]);
                for (int j = 0; j < N; j++) sums[i * N + j] += by * factor(b.x[k * N + j]);
            }
        for (int i = 0; i < M * N; i++) d.x[i] = sums[i];
    }
}
} // namespace wmma
} // namespace nvcuda

// ---------------------------------------------------------------------------------------------- entry of a kernel

template <typename... A, size_t... I> inline void fake_call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel((*(typename std::remove_const<A>::type *)arguments[I])...);
}
template <typename... A> inline void fake_invoke(void (*kernel)(A...), void **arguments) { fake_call(kernel, arguments, std::index_sequence_for<A...>()); }
/// The sizes of a kernel's parameters, with a 0 behind them. The array is local to a library: a variable of a template would be one for
/// all libraries (STB_GNU_UNIQUE), and kernels with different structs of one name have one type.
template <typename... A> constexpr std::array<int, sizeof...(A) + 1> fake_sizes_of(void (*)(A...)) { return {(int)sizeof(A)..., 0}; }
#define FAKE_ENTRY(KERNEL) \
    static constexpr auto fake_sizes_ = fake_sizes_of(&KERNEL); \
    extern "C" void fake_entry(void **arguments) { fake_invoke(&KERNEL, arguments); } \
    extern "C" int fake_parameters() { return fake_sizes_.size() - 1; } \
    extern "C" const int *fake_sizes() { return fake_sizes_.data(); }
