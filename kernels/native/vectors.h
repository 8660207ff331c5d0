// Vectors of 16 floats, whatever the processor has: gcc splits them where it must. Knows no tensor.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__AVX2__)
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

inline U16 widened(H16 bits) {
#if defined(__AVX512F__)
    return (U16)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)bits); // gcc makes five instructions of the other
#else
    return __builtin_convertvector(bits, U16);
#endif
}

inline F16 larger(F16 left, F16 right) { // the right one where either is NaN
#if defined(__AVX512F__)
    return (F16)_mm512_maskz_max_ps(0xFFFF, (__m512)left, (__m512)right);
#else
    return left > right ? left : right;
#endif
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

} // namespace
