// Linears over prepacked weights. The threads of a region divide the outputs among them.
//
// Packed weights: stripes of 32 outputs, `[ceil(N / 32), K / STEP, 32, STEP]`, zeros behind the last output: who does
// some stripes reads one stream. A panel is 16 of its outputs, a vector; a gate and its `up` lie in one stripe.
// An output is summed over K in order, whatever rows are beside it: a row's values are the same in any batch.
#pragma once
#include "rows.h"
#include "tiles.h"
#include "vectors.h"
#include <omp.h>

namespace {

constexpr int PANELS = 2;       // of a stripe
constexpr int STRIPE_ROWS = 11; // multiplied at once: registers hold 14 with a stripe beside them, but a prompt takes longer so
constexpr int LINES_AHEAD = 96; // asked for before they are read, however many rows keep the processor's own prefetching waiting

// Calls `finish(row, stripe, sums)` with the sums of a row and a stripe.
template <typename Kind, typename Finish>
void product(const void *x_, const void *packed, int64_t num_rows, int64_t num_inputs, int64_t num_outputs, const Finish &finish) {
    const auto *x = static_cast<const typename Kind::Group *>(x_);
    if (num_rows == 0) return; // for all threads: none waits
    const int64_t num_groups = num_inputs / Kind::STEP, size = PANELS * num_groups;
    const int64_t num_stripes = (num_outputs + PANELS * LANES - 1) / (PANELS * LANES), num_threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t end = num_stripes * (thread + 1) / num_threads;
    const auto *stripes = static_cast<const U16 *>(packed);
    int64_t stripe = num_stripes * thread / num_threads;
    if (goes_by_tiles<Kind>(num_inputs)) {
        // Parts of 32 rows; the last one ends with the last row, and may have some of those before it once more.
        const int64_t at_once = std::min<int64_t>(num_rows, 2 * TILE_ROWS), first = std::min<int64_t>(at_once, TILE_ROWS);
        shape_for_pairs(first, at_once - first);
        F16 sums[2 * TILE_ROWS][PANELS];
        for (; stripe < end; stripe++)
            for (int64_t row = 0, done = 0; done < num_rows; done = row + at_once, row = std::min(done, num_rows - at_once)) {
                const auto *from = reinterpret_cast<const uint8_t *>(x + row * num_groups);
                const auto pair = at_once > first ? tile_pair<true> : tile_pair<false>;
                pair(from, num_inputs * 2, stripes + stripe * size, num_inputs, sums[0]);
                for (int64_t r = 0; r < at_once; r++) finish(row + r, stripe, sums[r]);
            }
    }
    for (; stripe < end; stripe++) {
        const U16 *at = stripes + stripe * size;
        in_parts<STRIPE_ROWS>(num_rows, [&](auto rows, int64_t row) {
            F16 sums[rows.value][PANELS];
            const U16 *ahead = at + LINES_AHEAD;
            tile<Kind, rows.value, PANELS>(x + row * num_groups, num_groups, at, 1, PANELS, num_groups, sums, [&] {
                for (int panel = 0; panel < PANELS; panel++) __builtin_prefetch(ahead++, 0, 2);
            });
            for (int r = 0; r < rows.value; r++) finish(row + r, stripe, sums[r]);
        });
    }
#pragma omp barrier
}

template <typename Kind, typename Out>
void linear(const void *x, const void *packed, const float *bias, void *y_, int64_t num_rows, int64_t num_inputs, int64_t num_outputs) {
    auto *y = static_cast<typename Out::Element *>(y_);
    product<Kind>(x, packed, num_rows, num_inputs, num_outputs, [=](int64_t row, int64_t stripe, const F16 (&sums)[PANELS]) {
        for (int panel = 0; panel < PANELS; panel++) {
            const int64_t at = (stripe * PANELS + panel) * LANES;
            const F16 sum = sums[panel];
            auto *to = y + row * num_outputs + at;
            if (at + LANES <= num_outputs) {
                Out::write(to, bias ? sum + load<F16>(bias + at) : sum);
            } else {
                for (int lane = 0; lane < num_outputs - at; lane++) to[lane] = Out::write_one(sum[lane] + (bias ? bias[at + lane] : 0.0f));
            }
        }
    });
}

// silu(gate) * up of `[T, K]`: the weight's panels are one of gate and one of up by turns, `size` outputs of each.
template <typename Kind>
void gated_linear(const void *x, const void *packed, const float *bias, void *y_, int64_t num_rows, int64_t num_inputs, int64_t size) {
    auto *y = static_cast<typename Kind::Element *>(y_);
    product<Kind>(x, packed, num_rows, num_inputs, 2 * size, [=](int64_t row, int64_t stripe, const F16 (&sums)[PANELS]) {
        const float *own = bias ? bias + stripe * PANELS * LANES : nullptr;
        const F16 gate = Kind::rounded(own ? sums[0] + load<F16>(own) : sums[0]);
        const F16 up = Kind::rounded(own ? sums[1] + load<F16>(own + LANES) : sums[1]);
        Kind::write(y + row * size + stripe * LANES, silu<Kind>(gate) * up);
    });
}

} // namespace
