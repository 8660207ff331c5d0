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

// Joins all lanes, in halves, by an operation in whose order nothing lies; each lane has what comes of it.
template <typename V, typename Join> inline V reduced(V x, const Join &join) {
    x = join(x, __builtin_shuffle(x, I16{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
    x = join(x, __builtin_shuffle(x, I16{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
    x = join(x, __builtin_shuffle(x, I16{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
    return join(x, __builtin_shuffle(x, I16{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
}
inline float max_of(F16 x) { return reduced(x, larger)[0]; }
inline float sum_of(F16 x) {
    return reduced(x, [](F16 left, F16 right) { return left + right; })[0];
}

} // namespace
