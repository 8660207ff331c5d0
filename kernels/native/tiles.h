// Products by tiles of 16 rows, where the processor has them (AMX) and the kernel lets this process use them. A tile takes
// 32 inputs of a row at once and sums those at even and at odd places apart, so its bits differ from those of vectors: what
// may be computed by tiles always is, however few the rows, so that a row is the same in any company.
#pragma once
#include "vectors.h"
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

inline bool tiles_are_on = false; // for the whole process, before its first product

namespace {

constexpr int TILE_ROWS = 16, TILE_INPUTS = 32;

#if defined(__AMX_BF16__)

// Asks the kernel for the tiles' registers, which it hands out to those that ask.
inline bool may_use_tiles() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18; // ARCH_REQ_XCOMP_PERM of <asm/prctl.h>
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

// Whether a product over so many inputs is made by tiles.
template <typename Kind> inline bool goes_by_tiles(int64_t num_inputs) { return Kind::STEP == 2 && tiles_are_on && num_inputs % TILE_INPUTS == 0; }

template <int TILE> inline void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
template <int TILE> inline void load_tile(const void *at, int64_t stride) { asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(TILE) : "memory"); }
template <int TILE> inline void store_tile(void *at, int64_t stride) { asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(stride), "i"(TILE) : "memory"); }
// Adds to SUMS the products of ROWS and WEIGHTS.
template <int SUMS, int ROWS, int WEIGHTS> inline void multiply_tiles() { asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(ROWS), "i"(WEIGHTS)); }

// Tiles 0 and 1 are sums of `first` rows, and 4 these rows; 2, 3 and 5 the same of `second` rows; 6 and 7 are weights.
inline void shape_tiles(int64_t first, int64_t second) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } shape;
    const int64_t rows[] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    for (int tile = 0; tile < 8; tile++) shape.rows[tile] = uint8_t(rows[tile]), shape.row_bytes[tile] = rows[tile] ? 64 : 0;
    asm volatile("ldtilecfg %0" ::"m"(shape));
}

// Where threads are done with them: what is in tiles is saved whenever a thread gives way to another.
inline void release_tiles() {
    if (tiles_are_on) asm volatile("tilerelease");
}

// Products of up to 32 rows, `x_stride` bytes apart, and two panels that lie by turns: `sums` is `[32][2]`.
template <bool HAS_SECOND> inline void tile_pair(const uint8_t *x, int64_t x_stride, const U16 *weights, int64_t num_inputs, F16 *sums) {
    zero_tile<0>(), zero_tile<1>();
    if constexpr (HAS_SECOND) zero_tile<2>(), zero_tile<3>();
    for (int64_t input = 0; input < num_inputs; input += TILE_INPUTS, x += 2 * TILE_INPUTS, weights += TILE_INPUTS) {
        for (int line = 0; line < TILE_INPUTS; line++) __builtin_prefetch(weights + 3 * TILE_INPUTS + line, 0, 2);
        load_tile<4>(x, x_stride), load_tile<6>(weights, 2 * sizeof(U16)), load_tile<7>(weights + 1, 2 * sizeof(U16));
        multiply_tiles<0, 4, 6>(), multiply_tiles<1, 4, 7>();
        if constexpr (HAS_SECOND) load_tile<5>(x + TILE_ROWS * x_stride, x_stride), multiply_tiles<2, 5, 6>(), multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(sums, 2 * sizeof(F16)), store_tile<1>(sums + 1, 2 * sizeof(F16));
    if constexpr (HAS_SECOND) store_tile<2>(sums + 2 * TILE_ROWS, 2 * sizeof(F16)), store_tile<3>(sums + 2 * TILE_ROWS + 1, 2 * sizeof(F16));
}

#else

inline bool may_use_tiles() { return false; }
inline void release_tiles() {}

#endif

} // namespace
