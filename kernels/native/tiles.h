// Products by tiles of 16 rows, where the processor has them (AMX) and the kernel lets this process use them. A tile takes
// 32 inputs of a row at once and sums those at even and at odd places apart, so its bits differ from those of vectors: what
// may be computed by tiles always is, however few the rows, so that a row is the same in any company.
#pragma once
#include "products.h"
#include <initializer_list>
#if defined(HAS_TILES)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" bool tiles_are_on; // each library's own: an inline one would be all libraries' of a process

namespace {

constexpr int TILE_ROWS = 16, TILE_INPUTS = 32;

// Two panels of weights, side by side in what comes of them: where a step of 32 inputs of either lies.
struct Pair {
    const Words *at;           // [16, ...] of the first panel
    int64_t second, row, step; // vectors: from it to the other panel, from one of its rows to the next, and to the next step
};

#if defined(HAS_TILES)

// Asks the kernel for the tiles' registers, which it hands out to those that ask.
inline bool may_use_tiles() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18; // ARCH_REQ_XCOMP_PERM of <asm/prctl.h>
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

// Whether a product over so many inputs is made by tiles.
template <typename Kind> inline bool goes_by_tiles(int64_t num_inputs) { return Kind::STEP == 2 && tiles_are_on && num_inputs % TILE_INPUTS == 0; }

template <int TILE> inline void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
template <int TILE> inline void load_tile(const void *at, int64_t stride) { asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(TILE) : "memory"); }
// Likewise, past the first cache.
template <int TILE> inline void stream_tile(const void *at, int64_t stride) { asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(TILE) : "memory"); }
template <int TILE> inline void store_tile(void *at, int64_t stride) { asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(stride), "i"(TILE) : "memory"); }
// Adds to SUMS the products of ROWS and WEIGHTS.
template <int SUMS, int ROWS, int WEIGHTS> inline void multiply_tiles() { asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(ROWS), "i"(WEIGHTS)); }

// How many rows a tile has, 0 for none, and how many bytes each of them.
struct TileShape {
    int64_t rows, row_bytes;
    TileShape(int64_t rows, int64_t row_bytes = 64) : rows(rows), row_bytes(row_bytes) {}
};

// Says how large each of the eight tiles is.
inline void shape_tiles(std::initializer_list<TileShape> tiles) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } shape;
    int tile = 0;
    for (const TileShape &each : tiles) shape.rows[tile] = uint8_t(each.rows), shape.row_bytes[tile++] = uint16_t(each.rows ? each.row_bytes : 0);
    asm volatile("ldtilecfg %0" ::"m"(shape));
}

// Where threads are done with them: what is in tiles is saved whenever a thread gives way to another.
inline void release_tiles() {
    if (tiles_are_on) asm volatile("tilerelease");
}

// For products of up to 32 rows and two panels: sums of the first 16 rows, of the others, these rows, and weights.
inline void shape_for_pairs(int64_t num_rows) {
    const int64_t first = std::min<int64_t>(num_rows, TILE_ROWS), second = num_rows - first;
    shape_tiles({first, first, second, second, first, second, TILE_ROWS, TILE_ROWS});
}

// In the first cache, or past it.
template <bool STAYS, int TILE> inline void load_tile(const void *at, int64_t stride) { STAYS ? load_tile<TILE>(at, stride) : stream_tile<TILE>(at, stride); }

// Does `tile_pair` for more than 16 rows, or for fewer.
template <bool HAS_SECOND, bool ADDS, bool ROWS_STAY, typename Meanwhile>
inline void tile_rows(const void *rows, int64_t x_stride, const Pair &pair, int64_t num_inputs, void *sums_, int64_t sums_stride, const Meanwhile &meanwhile) {
    const auto *x = static_cast<const uint8_t *>(rows);
    auto *sums = static_cast<uint8_t *>(sums_), *others = sums + TILE_ROWS * sums_stride;
    if constexpr (ADDS) {
        load_tile<0>(sums, sums_stride), load_tile<1>(sums + sizeof(Floats), sums_stride);
        if constexpr (HAS_SECOND) load_tile<2>(others, sums_stride), load_tile<3>(others + sizeof(Floats), sums_stride);
    } else {
        zero_tile<0>(), zero_tile<1>();
        if constexpr (HAS_SECOND) zero_tile<2>(), zero_tile<3>();
    }
    const Words *weights = pair.at;
    const int64_t second = pair.second, row_bytes = pair.row * sizeof(Words), step = pair.step;
    for (int64_t input = 0; input < num_inputs; input += TILE_INPUTS, x += 2 * TILE_INPUTS, weights += step) {
        load_tile<ROWS_STAY, 4>(x, x_stride);
        if constexpr (HAS_SECOND) load_tile<ROWS_STAY, 5>(x + TILE_ROWS * x_stride, x_stride);
        load_tile<!ROWS_STAY, 6>(weights, row_bytes), load_tile<!ROWS_STAY, 7>(weights + second, row_bytes);
        multiply_tiles<0, 4, 6>(), multiply_tiles<1, 4, 7>();
        if constexpr (HAS_SECOND) multiply_tiles<2, 5, 6>(), multiply_tiles<3, 5, 7>();
        meanwhile();
    }
    store_tile<0>(sums, sums_stride), store_tile<1>(sums + sizeof(Floats), sums_stride);
    if constexpr (HAS_SECOND) store_tile<2>(others, sums_stride), store_tile<3>(others + sizeof(Floats), sums_stride);
}

// Products of up to 32 rows, `x_stride` bytes apart, and two panels over `num_inputs`; to `sums`, `sums_stride` bytes apart,
// they are added, or they are all that is there. `meanwhile` is done at each step. Either the rows stay in the first cache
// and the panels go past it, or the other way round.
template <bool ADDS, bool ROWS_STAY, typename Meanwhile = Nothing>
inline void tile_pair(int64_t num_rows, const void *rows, int64_t x_stride, const Pair &pair, int64_t num_inputs, void *sums, int64_t sums_stride, const Meanwhile &meanwhile = {}) {
    if (num_rows > TILE_ROWS) tile_rows<true, ADDS, ROWS_STAY>(rows, x_stride, pair, num_inputs, sums, sums_stride, meanwhile);
    else tile_rows<false, ADDS, ROWS_STAY>(rows, x_stride, pair, num_inputs, sums, sums_stride, meanwhile);
}

// Scores of up to 16 queries against 64 keys, sixteen of which lie at each of `keys`, `key_stride` bytes apart. The keys are
// the rows here, so that they need not be packed, and a score has the bits that it has where queries are; these are
// `[D / 2, 16]` groups. To `[64]` rows `width` floats apart; `meanwhile` is done for each 16 lines that are read.
inline void shape_for_keys(int64_t num_queries) {
    const TileShape scores(TILE_ROWS, 4 * num_queries), queries = scores;
    shape_tiles({scores, scores, scores, scores, TILE_ROWS, TILE_ROWS, queries, queries});
}
template <typename Meanwhile>
inline void tile_keys(const uint8_t *const (&keys)[4], int64_t key_stride, const Words *queries, int64_t num_inputs, float *to, int64_t width, const Meanwhile &meanwhile) {
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    for (int64_t input = 0; input < num_inputs; input += TILE_INPUTS, queries += TILE_INPUTS / 2) {
        load_tile<6>(queries, sizeof(Words));
        load_tile<4>(keys[0] + 2 * input, key_stride), multiply_tiles<0, 4, 6>(), meanwhile();
        load_tile<5>(keys[1] + 2 * input, key_stride), multiply_tiles<1, 5, 6>(), meanwhile();
        load_tile<4>(keys[2] + 2 * input, key_stride), multiply_tiles<2, 4, 6>(), meanwhile();
        load_tile<5>(keys[3] + 2 * input, key_stride), multiply_tiles<3, 5, 6>(), meanwhile();
    }
    const int64_t stride = width * sizeof(float);
    store_tile<0>(to, stride), store_tile<1>(to + TILE_ROWS * width, stride), store_tile<2>(to + 2 * TILE_ROWS * width, stride), store_tile<3>(to + 3 * TILE_ROWS * width, stride);
}

// Adds to sums of up to 16 rows, `stride` bytes apart and of `COUNT` panels, probabilities times values: `pack` makes 32
// keys' values `[16, COUNT]` groups each time.
inline void shape_for_values(int64_t num_rows) { shape_tiles({num_rows, num_rows, num_rows, num_rows, num_rows, TILE_ROWS, TILE_ROWS, TILE_ROWS}); }
template <int COUNT, typename Pack>
inline void tile_values(const void *probabilities, int64_t probability_stride, int64_t num_keys, void *sums_, int64_t stride, const Pack &pack) {
    const auto *row = static_cast<const uint8_t *>(probabilities);
    auto *sums = static_cast<uint8_t *>(sums_);
    const auto each_panel = [](const auto &each) {
        each(std::integral_constant<int, 0>()), each(std::integral_constant<int, 1>());
        if constexpr (COUNT > 2) each(std::integral_constant<int, 2>()), each(std::integral_constant<int, 3>());
    };
    each_panel([&](auto panel) { load_tile<panel.value>(sums + panel.value * sizeof(Floats), stride); });
    for (int64_t key = 0; key < num_keys; key += TILE_INPUTS, row += 2 * TILE_INPUTS) {
        const Words *values = pack(key);
        load_tile<4>(row, probability_stride);
        each_panel([&](auto panel) {
            load_tile<5 + panel.value % 3>(values + panel.value, COUNT * sizeof(Words));
            multiply_tiles<panel.value, 4, 5 + panel.value % 3>();
        });
    }
    each_panel([&](auto panel) { store_tile<panel.value>(sums + panel.value * sizeof(Floats), stride); });
}

#else

inline bool may_use_tiles() { return false; }
inline void release_tiles() {}
template <typename Kind> constexpr bool goes_by_tiles(int64_t) { return false; }
inline void shape_for_pairs(int64_t) {}
template <bool ADDS, bool ROWS_STAY, typename Meanwhile = Nothing>
inline void tile_pair(int64_t, const void *, int64_t, const Pair &, int64_t, void *, int64_t, const Meanwhile & = {}) {}
inline void shape_for_keys(int64_t) {}
template <typename Meanwhile>
inline void tile_keys(const uint8_t *const (&)[4], int64_t, const Words *, int64_t, float *, int64_t, const Meanwhile &) {}
inline void shape_for_values(int64_t) {}
template <int COUNT, typename Pack> inline void tile_values(const void *, int64_t, int64_t, void *, int64_t, const Pack &) {}

#endif

} // namespace
