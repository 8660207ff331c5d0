// Vectors of 16 floats, whatever the processor has: gcc splits them where it must. bf16 products are summed in fp32, by
// the AVX512-BF16 instruction where there is one. Knows no tensor.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint64_t Q8 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef uint16_t H32 __attribute__((vector_size(64)));

constexpr int LANES = 16;

inline F16 splat(float value) { return value - F16{}; }
inline U16 splat(uint32_t value) { return value - U16{}; }
template <typename V> inline V load(const void *at) {
    V value;
    std::memcpy(&value, at, sizeof(V));
    return value;
}
template <typename V> inline void store(void *at, V value) { std::memcpy(at, &value, sizeof(V)); }

inline float from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
inline U16 widened(H16 bits) {
#if defined(__AVX512F__)
    return (U16)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)bits); // gcc makes five instructions of the other
#else
    return __builtin_convertvector(bits, U16);
#endif
}
inline F16 from_bf16(H16 bits) { return (F16)(widened(bits) << 16); }

// Rounds to nearest even, as torch does; NaN stays NaN.
inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7FC0;
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline H16 to_bf16(F16 value) {
#if defined(__AVX512BF16__)
    return (H16)_mm512_cvtneps_pbh((__m512)value);
#else
    const U16 bits = (U16)value;
    const U16 rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const I16 is_nan = value != value;
    return __builtin_convertvector((U16)(is_nan & (I16)splat(0x7FC0u)) | (U16)(~is_nan & (I16)rounded), H16);
#endif
}

// How elements of a type are multiplied: `STEP` of them at a time lie behind one another in a lane.
struct Bf16 {
    typedef uint16_t Element;
    typedef uint32_t Group; // of STEP elements
    static constexpr int STEP = 2;
    static inline F16 dot(F16 sum, U16 left, Group right) { return dot(sum, left, splat(right)); }
    static inline F16 dot(F16 sum, U16 left, U16 right) {
#if defined(__AVX512BF16__)
        return (F16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
#else
        sum += (F16)(left << 16) * (F16)(right << 16);
        return sum + (F16)(left & 0xFFFF0000u) * (F16)(right & 0xFFFF0000u);
#endif
    }
    static inline F16 read(const Element *at) { return from_bf16(load<H16>(at)); }
    static inline void write(Element *at, F16 value) { store(at, to_bf16(value)); }
    static inline void write(Element *at, F16 first, F16 second) {
#if defined(__AVX512BF16__)
        store(at, (H32)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
        write(at, first), write(at + LANES, second);
#endif
    }
    static inline F16 rounded(F16 value) { return from_bf16(to_bf16(value)); }
    static inline float read_one(Element value) { return from_bf16(value); }
    static inline Element write_one(float value) { return to_bf16(value); }
};

struct Fp32 {
    typedef float Element;
    typedef float Group;
    static constexpr int STEP = 1;
    static inline F16 dot(F16 sum, U16 left, Group right) { return sum + (F16)left * splat(right); }
    static inline F16 dot(F16 sum, U16 left, U16 right) { return sum + (F16)left * (F16)right; }
    static inline F16 read(const Element *at) { return load<F16>(at); }
    static inline void write(Element *at, F16 value) { store(at, value); }
    static inline void write(Element *at, F16 first, F16 second) { store(at, first), store(at + LANES, second); }
    static inline F16 rounded(F16 value) { return value; }
    static inline float read_one(Element value) { return value; }
    static inline Element write_one(float value) { return value; }
};

inline F16 larger(F16 left, F16 right) { // the right one where either is NaN
#if defined(__AVX512F__)
    return (F16)_mm512_maskz_max_ps(0xFFFF, (__m512)left, (__m512)right);
#else
    return left > right ? left : right;
#endif
}

// 2^x by its whole part and a polynomial of the rest: relative error 1e-7; 0 far below, NaN where x is.
inline F16 exp2(F16 x) {
#if defined(__AVX512DQ__)
    const F16 f = (F16)_mm512_maskz_reduce_ps(0xFFFF, (__m512)x, 1); // x - floor(x)
    F16 p = splat(1.877576587e-3f);
    p = p * f + splat(8.989340304e-3f);
    p = p * f + splat(5.582631787e-2f);
    p = p * f + splat(2.401536171e-1f);
    p = p * f + splat(6.931530732e-1f);
    p = p * f + splat(0.9999999251f);
    return (F16)_mm512_maskz_scalef_ps(0xFFFF, (__m512)p, (__m512)x); // times 2^floor(x)
#else
    const F16 t = larger(x < splat(127.0f) ? x : splat(127.0f), splat(-126.0f));
    const F16 n = (t + splat(12582912.0f)) - splat(12582912.0f);
    const F16 f = t - n;
    F16 p = splat(1.5353362e-4f);
    p = p * f + splat(1.3398874e-3f);
    p = p * f + splat(9.6184373e-3f);
    p = p * f + splat(5.5503324e-2f);
    p = p * f + splat(2.4022648e-1f);
    p = p * f + splat(6.9314718e-1f);
    p = p * f + splat(1.0f);
    const F16 result = (F16)((I16)p + (__builtin_convertvector(n, I16) << 23));
    return x < splat(-126.0f) ? F16{} : x == x ? result : x;
#endif
}

constexpr float LOG2_E = 1.44269504f;

// 1 / (1 + e^-x); of bf16 to 1e-7, where the processor begins with 14 bits of an inverse.
template <typename Kind> inline F16 sigmoid(F16 x) {
    const F16 power = x * splat(-LOG2_E), sum = splat(1.0f) + exp2(power < splat(126.0f) ? power : splat(126.0f));
#if defined(__AVX512F__)
    if constexpr (Kind::STEP == 2) {
        const F16 inverse = (F16)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)sum);
        return inverse * (splat(2.0f) - sum * inverse);
    }
#endif
    return splat(1.0f) / sum;
}

inline float max_of(F16 x) {
    x = larger(x, __builtin_shuffle(x, I16{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
    x = larger(x, __builtin_shuffle(x, I16{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
    x = larger(x, __builtin_shuffle(x, I16{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
    return std::max(x[0], x[1]);
}
inline float sum_of(F16 x) {
    x += __builtin_shuffle(x, I16{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    x += __builtin_shuffle(x, I16{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    x += __builtin_shuffle(x, I16{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    return x[0] + x[1];
}

// Two rows of 32 bf16, element by element behind one another: but of each 8 the first half in one vector, the second in
// the other, as processors do it at little cost. `in_order` has sums over such vectors as the rows have their elements.
inline void interleave(const uint16_t *first, const uint16_t *second, U16 *to) {
    const H32 left = load<H32>(first), right = load<H32>(second);
    to[0] = (U16)__builtin_shuffle(left, right, H32{0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43,
                                                    16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59});
    to[1] = (U16)__builtin_shuffle(left, right, H32{4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47,
                                                    20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63});
}
inline void in_order(F16 &first, F16 &second) {
    const F16 left = first, right = second;
    first = __builtin_shuffle(left, right, I16{0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23});
    second = __builtin_shuffle(left, right, I16{8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31});
}

// Columns of 16 rows of 32-bit pieces become vectors: `[16, n]` at `stride` -> `[n, 16]`. First within the quarters of
// vectors, which any of a processor's units for vectors can do, then whole quarters.
inline void transpose(const uint32_t *from, int64_t stride, U16 *to, int64_t count) {
    int64_t column = 0;
    for (; column + LANES <= count; column += LANES) {
        U16 quarters[4][4]; // [rows 4 i to 4 i + 3][j], whose quarter b has column 4 b + j
        for (int i = 0; i < 4; i++) {
            const uint32_t *at = from + 4 * i * stride + column;
            const U16 a = load<U16>(at), b = load<U16>(at + stride), c = load<U16>(at + 2 * stride), d = load<U16>(at + 3 * stride);
            const U16 low{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29}, high{2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
            const U16 first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(c, d, low);
            const U16 third = __builtin_shuffle(a, b, high), fourth = __builtin_shuffle(c, d, high);
            const Q8 even{0, 8, 2, 10, 4, 12, 6, 14}, odd{1, 9, 3, 11, 5, 13, 7, 15};
            quarters[i][0] = (U16)__builtin_shuffle((Q8)first, (Q8)second, even);
            quarters[i][1] = (U16)__builtin_shuffle((Q8)first, (Q8)second, odd);
            quarters[i][2] = (U16)__builtin_shuffle((Q8)third, (Q8)fourth, even);
            quarters[i][3] = (U16)__builtin_shuffle((Q8)third, (Q8)fourth, odd);
        }
        for (int j = 0; j < 4; j++) {
            const U16 low{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, high{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
            const U16 first = __builtin_shuffle(quarters[0][j], quarters[1][j], low), second = __builtin_shuffle(quarters[2][j], quarters[3][j], low);
            const U16 third = __builtin_shuffle(quarters[0][j], quarters[1][j], high), fourth = __builtin_shuffle(quarters[2][j], quarters[3][j], high);
            const U16 even{0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, odd{4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
            to[column + j] = __builtin_shuffle(first, second, even);
            to[column + j + 4] = __builtin_shuffle(first, second, odd);
            to[column + j + 8] = __builtin_shuffle(third, fourth, even);
            to[column + j + 12] = __builtin_shuffle(third, fourth, odd);
        }
    }
    for (; column < count; column++)
        for (int row = 0; row < LANES; row++) to[column][row] = from[row * stride + column];
}

// Memory of a thread, kept from call to call: fresh pages would cost more than what is computed in them.
inline uint8_t *scratch(size_t size) {
    struct Held {
        uint8_t *memory = nullptr;
        size_t size = 0;
        ~Held() { std::free(memory); }
    };
    static thread_local Held held;
    if (held.size < size) {
        std::free(held.memory);
        held.memory = static_cast<uint8_t *>(std::aligned_alloc(64, (size + 63) / 64 * 64));
        held.size = size;
    }
    return held.memory;
}

// Calls `each(std::integral_constant<int, count>)` for a count from 1 to MOST.
template <int MOST, typename Each> inline void with_constant(int64_t count, const Each &each) {
    if constexpr (MOST > 1)
        if (count < MOST) return with_constant<MOST - 1>(count, each);
    each(std::integral_constant<int, MOST>());
}

// Calls `each(std::integral_constant<int, ROWS>, row)` for parts of at most MOST rows, as equal as they can be.
template <int MOST, typename Each> inline void in_parts(int64_t num_rows, const Each &each) {
    int64_t row = 0;
    for (int64_t left = (num_rows + MOST - 1) / MOST; left > 0; left--) {
        const int64_t count = (num_rows - row + left - 1) / left;
        with_constant<MOST>(count, [&](auto rows) { each(rows, row); });
        row += count;
    }
}

struct Nothing {
    inline void operator()() const {}
};

// Adds to `sums` the products of `ROWS` rows, `x_stride` groups apart, and `COUNT` panels. A panel's groups lie
// `group_stride` vectors apart, panels `panel_stride`. Each sum goes over the groups in order; `meanwhile` is done once
// for each group.
template <typename Kind, int ROWS, int COUNT, typename Meanwhile = Nothing>
inline void add_tile(const typename Kind::Group *x, int64_t x_stride, const U16 *panel, int64_t panel_stride, int64_t group_stride,
                     int64_t num_groups, F16 (&sums)[ROWS][COUNT], Meanwhile &&meanwhile = {}) {
    for (int64_t group = 0; group < num_groups; group++) {
        meanwhile();
        U16 weights[COUNT];
        for (int part = 0; part < COUNT; part++) weights[part] = panel[part * panel_stride + group * group_stride];
        for (int row = 0; row < ROWS; row++)
            for (int part = 0; part < COUNT; part++)
                sums[row][part] = Kind::dot(sums[row][part], weights[part], x[row * x_stride + group]);
    }
}

// Likewise, from zero.
template <typename Kind, int ROWS, int COUNT, typename Meanwhile = Nothing>
inline void tile(const typename Kind::Group *x, int64_t x_stride, const U16 *panel, int64_t panel_stride, int64_t group_stride,
                 int64_t num_groups, F16 (&sums)[ROWS][COUNT], Meanwhile &&meanwhile = {}) {
    for (int row = 0; row < ROWS; row++)
        for (int part = 0; part < COUNT; part++) sums[row][part] = F16{};
    add_tile<Kind, ROWS, COUNT>(x, x_stride, panel, panel_stride, group_stride, num_groups, sums, meanwhile);
}

} // namespace
