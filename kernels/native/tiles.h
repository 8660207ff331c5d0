// Products by tiles of 16 rows, where the processor has them (AMX) and the kernel lets this process use them. A tile takes
// 32 inputs of a row at once and sums those at even and at odd places apart, so its bits differ from those of vectors: what
// may be computed by tiles always is, however few the rows, so that a row is the same in any company.
#pragma once
#include "vectors.h"
#include <initializer_list>
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" bool tiles_are_on; // each library's own: an inline one would be all libraries' of a process

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

// Says how many rows each of the eight tiles has, 0 for none; all are 64 bytes wide.
inline void shape_tiles(std::initializer_list<int64_t> rows) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } shape;
    int tile = 0;
    for (const int64_t count : rows) shape.rows[tile] = uint8_t(count), shape.row_bytes[tile++] = count ? 64 : 0;
    asm volatile("ldtilecfg %0" ::"m"(shape));
}

// Where threads are done with them: what is in tiles is saved whenever a thread gives way to another.
inline void release_tiles() {
    if (tiles_are_on) asm volatile("tilerelease");
}

// For products of up to 32 rows and two panels: sums of the first 16 rows, of the others, these rows, and weights.
inline void shape_for_pairs(int64_t first, int64_t second) { shape_tiles({first, first, second, second, first, second, TILE_ROWS, TILE_ROWS}); }

// Products of rows, `x_stride` bytes apart, and two panels that lie by turns: `sums` is `[32][2]`.
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

// For products of up to 16 rows and four panels: four sums, the rows, and weights.
inline void shape_for_rows(int64_t rows) { shape_tiles({rows, rows, rows, rows, rows, TILE_ROWS, TILE_ROWS, TILE_ROWS}); }

// Products of rows and `COUNT` panels, whose groups lie `group_stride` vectors apart and they `panel_stride`; of `sums`,
// `sums_stride` bytes apart, a row has them side by side.
template <int COUNT>
inline void tile_rows(const void *x, int64_t x_stride, const U16 *weights, int64_t panel_stride, int64_t group_stride, int64_t num_inputs, void *sums_, int64_t sums_stride) {
    const auto each_panel = [](const auto &each) {
        each(std::integral_constant<int, 0>());
        if constexpr (COUNT > 1) each(std::integral_constant<int, 1>());
        if constexpr (COUNT > 2) each(std::integral_constant<int, 2>()), each(std::integral_constant<int, 3>());
    };
    const auto *row = static_cast<const uint8_t *>(x);
    auto *sums = static_cast<uint8_t *>(sums_);
    each_panel([](auto panel) { zero_tile<panel.value>(); });
    for (int64_t input = 0; input < num_inputs; input += TILE_INPUTS, row += 2 * TILE_INPUTS, weights += TILE_INPUTS / 2 * group_stride) {
        load_tile<4>(row, x_stride);
        each_panel([&](auto panel) {
            load_tile<5 + panel.value % 3>(weights + panel.value * panel_stride, group_stride * sizeof(U16));
            multiply_tiles<panel.value, 4, 5 + panel.value % 3>();
        });
    }
    each_panel([&](auto panel) { store_tile<panel.value>(sums + panel.value * sizeof(F16), sums_stride); });
}

#else

inline bool may_use_tiles() { return false; }
inline void release_tiles() {}
template <typename Kind> constexpr bool goes_by_tiles(int64_t) { return false; }
inline void shape_for_pairs(int64_t, int64_t) {}
inline void shape_for_rows(int64_t) {}
template <bool HAS_SECOND> inline void tile_pair(const uint8_t *, int64_t, const U16 *, int64_t, F16 *) {}
template <int COUNT> inline void tile_rows(const void *, int64_t, const U16 *, int64_t, int64_t, int64_t, void *, int64_t) {}

#endif

} // namespace
