// Vectors, of as many floats as a register of the processor has: 16, 8 or 4. Knows no tensor.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Registers of whole tiles (AMX), beside vectors of 16: no processor has the ones without the others, but a host may hide these.
#if defined(__AMX_BF16__) && defined(__AVX512F__)
#define HAS_TILES 1
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

#if defined(__AVX512F__)
constexpr Ints RAMP = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX__)
constexpr Ints RAMP = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Ints RAMP = {0, 1, 2, 3};
#endif

inline Floats splat(float value) { return value - Floats{}; }
inline Words splat(uint32_t value) { return value - Words{}; }
template <typename V> inline V load(const void *at) {
    V value;
    std::memcpy(&value, at, sizeof(V));
    return value;
}
template <typename V> inline void store(void *at, V value) { std::memcpy(at, &value, sizeof(V)); }

inline Words widened(Halves bits) {
#if defined(__AVX512F__)
    return (Words)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)bits); // gcc makes five instructions of the other
#else
    return __builtin_convertvector(bits, Words);
#endif
}

inline Floats larger(Floats left, Floats right) { // the right one where either is NaN
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_max_ps(0xFFFF, (__m512)left, (__m512)right);
#else
    return left > right ? left : right;
#endif
}

// Joins all lanes, in halves, by an operation in whose order nothing lies; each lane has what comes of it.
template <typename V, typename Join, int HALF = LANES / 2> inline V reduced(V x, const Join &join) {
    x = join(x, __builtin_shuffle(x, RAMP ^ HALF));
    if constexpr (HALF > 1) return reduced<V, Join, HALF / 2>(x, join);
    else return x;
}
inline float max_of(Floats x) { return reduced(x, larger)[0]; }
inline float sum_of(Floats x) {
    return reduced(x, [](Floats left, Floats right) { return left + right; })[0];
}

} // namespace
