// Elements of rows in another order, as products want them: by pairs of rows, or by columns.
#pragma once
#include "vectors.h"

namespace {

typedef uint16_t TwiceHalves __attribute__((vector_size(4 * LANES))); // what a register holds of them
#if defined(__AVX512F__)
typedef uint64_t Q8 __attribute__((vector_size(64)));
constexpr TwiceHalves FIRST_HALVES = {0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59};
#else
typedef uint32_t W4 __attribute__((vector_size(16)));
#if defined(__AVX__)
constexpr TwiceHalves FIRST_HALVES = {0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27};
#else
constexpr TwiceHalves FIRST_HALVES = {0, 8, 1, 9, 2, 10, 3, 11};
#endif
#endif

// Two rows of two vectors of bf16, element by element behind one another: but of each 8 the first half in one vector, the
// second in the other, as processors do it at little cost. `in_order` has sums over such vectors as the rows have their
// elements.
inline void interleave(const uint16_t *first, const uint16_t *second, Words *to) {
    const TwiceHalves left = load<TwiceHalves>(first), right = load<TwiceHalves>(second);
    to[0] = (Words)__builtin_shuffle(left, right, FIRST_HALVES), to[1] = (Words)__builtin_shuffle(left, right, FIRST_HALVES + 4);
}
#if defined(__AVX512F__)
constexpr Ints FIRST_IN_ORDER = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
constexpr Ints SECOND_IN_ORDER = FIRST_IN_ORDER + 8;
#elif defined(__AVX__)
constexpr Ints FIRST_IN_ORDER = {0, 1, 2, 3, 8, 9, 10, 11}, SECOND_IN_ORDER = FIRST_IN_ORDER + 4;
#else
constexpr Ints FIRST_IN_ORDER = {0, 1, 2, 3}, SECOND_IN_ORDER = FIRST_IN_ORDER + 4;
#endif
inline void in_order(Floats &first, Floats &second) {
    const Floats left = first, right = second;
    first = __builtin_shuffle(left, right, FIRST_IN_ORDER), second = __builtin_shuffle(left, right, SECOND_IN_ORDER);
}

// Columns of as many rows of 32-bit pieces as vectors have lanes become vectors: `[LANES, n]` at `stride` -> `[n, LANES]`.
// First within the quarters of vectors, which any of a processor's units for vectors can do, then whole quarters.
inline void transpose(const uint32_t *from, int64_t stride, Words *to, int64_t count) {
#if defined(__AVX512F__)
    int64_t column = 0;
    for (; column + LANES <= count; column += LANES) {
        Words quarters[4][4]; // [rows 4 i to 4 i + 3][j], whose quarter b has column 4 b + j
        for (int i = 0; i < 4; i++) {
            const uint32_t *at = from + 4 * i * stride + column;
            const Words a = load<Words>(at), b = load<Words>(at + stride), c = load<Words>(at + 2 * stride), d = load<Words>(at + 3 * stride);
            const Words low{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29}, high{2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
            const Words first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(c, d, low);
            const Words third = __builtin_shuffle(a, b, high), fourth = __builtin_shuffle(c, d, high);
            const Q8 even{0, 8, 2, 10, 4, 12, 6, 14}, odd{1, 9, 3, 11, 5, 13, 7, 15};
            quarters[i][0] = (Words)__builtin_shuffle((Q8)first, (Q8)second, even);
            quarters[i][1] = (Words)__builtin_shuffle((Q8)first, (Q8)second, odd);
            quarters[i][2] = (Words)__builtin_shuffle((Q8)third, (Q8)fourth, even);
            quarters[i][3] = (Words)__builtin_shuffle((Q8)third, (Q8)fourth, odd);
        }
        for (int j = 0; j < 4; j++) {
            const Words low{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, high{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
            const Words first = __builtin_shuffle(quarters[0][j], quarters[1][j], low), second = __builtin_shuffle(quarters[2][j], quarters[3][j], low);
            const Words third = __builtin_shuffle(quarters[0][j], quarters[1][j], high), fourth = __builtin_shuffle(quarters[2][j], quarters[3][j], high);
            const Words even{0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, odd{4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
            to[column + j] = __builtin_shuffle(first, second, even);
            to[column + j + 4] = __builtin_shuffle(first, second, odd);
            to[column + j + 8] = __builtin_shuffle(third, fourth, even);
            to[column + j + 12] = __builtin_shuffle(third, fourth, odd);
        }
    }
    for (; column < count; column++)
        for (int row = 0; row < LANES; row++) to[column][row] = from[row * stride + column];
#else
    for (int64_t column = 0; column < count; column += 4) // there are whole fours
        for (int quarter = 0; quarter < LANES / 4; quarter++) { // four rows become a quarter of each of four vectors
            const uint32_t *at = from + 4 * quarter * stride + column;
            const W4 a = load<W4>(at), b = load<W4>(at + stride), c = load<W4>(at + 2 * stride), d = load<W4>(at + 3 * stride);
            const W4 low{0, 4, 1, 5}, high{2, 6, 3, 7}, even{0, 1, 4, 5}, odd{2, 3, 6, 7};
            const W4 first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(c, d, low);
            const W4 third = __builtin_shuffle(a, b, high), fourth = __builtin_shuffle(c, d, high);
            const W4 columns[4] = {__builtin_shuffle(first, second, even), __builtin_shuffle(first, second, odd),
                                   __builtin_shuffle(third, fourth, even), __builtin_shuffle(third, fourth, odd)};
            for (int j = 0; j < 4; j++) store(reinterpret_cast<W4 *>(to + column + j) + quarter, columns[j]);
        }
#endif
}

} // namespace
