// Linears over prepacked weights. The threads of a region divide the outputs among them.
//
// Packed weights: panels of 16 outputs, `[ceil(N / 16), K / STEP, 16, STEP]`, zeros behind the last output.
// An output is summed over K in order, whatever rows are beside it: a row's values are the same in any batch.
#pragma once
#include "rows.h"
#include "vectors.h"

namespace {

constexpr int PANELS = 4; // at once: as many streams as a prefetcher follows, 64 outputs of a row side by side

// What becomes of a tile's sums: `finish(row, panel, sums)` for rows and panels of the whole product.
template <typename Kind, int COUNT, typename Finish>
inline void panels_of(const typename Kind::Group *x, const U16 *panel, int64_t num_rows, int64_t num_groups, const Finish &finish) {
    in_parts(num_rows, [&](auto rows, int64_t row) {
        F16 sums[rows.value][COUNT];
        tile<Kind, rows.value, COUNT>(x + row * num_groups, num_groups, panel, num_groups, 1, num_groups, sums);
        for (int r = 0; r < rows.value; r++) finish(row + r, sums[r]);
    });
}

// Calls `finish(row, first_panel, sums)` with the sums of up to PANELS panels of a row.
template <typename Kind, typename Finish>
void product(const void *x_, const void *packed, int64_t num_rows, int64_t num_inputs, int64_t num_panels, const Finish &finish) {
    const auto *x = static_cast<const typename Kind::Group *>(x_);
    const auto *weights = static_cast<const U16 *>(packed);
    const int64_t num_groups = num_inputs / Kind::STEP, num_tasks = (num_panels + PANELS - 1) / PANELS;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < num_tasks; task++) {
        const int64_t panel = task * PANELS;
        const U16 *at = weights + panel * num_groups;
        const auto each = [&](int64_t row, const auto &sums) { finish(row, panel, sums); };
        switch (std::min<int64_t>(PANELS, num_panels - panel)) {
        case 1: panels_of<Kind, 1>(x, at, num_rows, num_groups, each); break;
        case 2: panels_of<Kind, 2>(x, at, num_rows, num_groups, each); break;
        case 3: panels_of<Kind, 3>(x, at, num_rows, num_groups, each); break;
        default: panels_of<Kind, PANELS>(x, at, num_rows, num_groups, each); break;
        }
    }
}

template <typename Kind, typename Out>
void linear(const void *x, const void *packed, const float *bias, void *y_, int64_t num_rows, int64_t num_inputs, int64_t num_outputs) {
    auto *y = static_cast<typename Out::Element *>(y_);
    product<Kind>(x, packed, num_rows, num_inputs, (num_outputs + LANES - 1) / LANES, [=](int64_t row, int64_t panel, const auto &sums) {
        for (const F16 &sum : sums) {
            const int64_t at = panel++ * LANES;
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
    product<Kind>(x, packed, num_rows, num_inputs, 2 * size / LANES, [=](int64_t row, int64_t panel, const auto &sums) {
        constexpr int count = sizeof(sums) / sizeof(F16);
        for (int pair = 0; pair + 1 < count; pair += 2, panel += 2) {
            const float *own = bias ? bias + panel * LANES : nullptr;
            const F16 gate = Kind::rounded(own ? sums[pair] + load<F16>(own) : sums[pair]);
            const F16 up = Kind::rounded(own ? sums[pair + 1] + load<F16>(own + LANES) : sums[pair + 1]);
            Kind::write(y + row * size + panel / 2 * LANES, silu<Kind>(gate) * up);
        }
    });
}

} // namespace
