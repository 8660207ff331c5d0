// Elements of rows in another order, as products want them: by pairs of rows, or by columns.
#pragma once
#include "vectors.h"

namespace {

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

} // namespace
