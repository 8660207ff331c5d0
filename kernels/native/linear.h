// Linears over prepacked weights.
//
// Packed weights: panels of 16 outputs, `[ceil(N / 16), K / STEP, 16, STEP]`, zeros behind the last output.
// An output is summed over K in order, whatever rows are beside it: a row's values are the same in any batch.
#pragma once
#include "vectors.h"

namespace {

constexpr int PANELS = 4; // at once: as many streams as a prefetcher follows, 64 outputs of a row side by side

template <typename Kind, typename Out, int ROWS, int COUNT>
inline void rows_of(const typename Kind::Group *x, const U16 *panel, const float *bias, typename Out::Element *y, int64_t num_groups,
                    int64_t num_outputs, int64_t first) {
    F16 sums[ROWS][COUNT];
    tile<Kind, ROWS, COUNT>(x, num_groups, panel, num_groups, 1, num_groups, sums);
    for (int part = 0; part < COUNT; part++) {
        const int64_t at = first + part * LANES;
        const int valid = int(std::min<int64_t>(LANES, num_outputs - at));
        for (int row = 0; row < ROWS; row++) {
            F16 value = sums[row][part];
            if (valid == LANES) {
                if (bias) value += load<F16>(bias + at);
                Out::write(y + row * num_outputs + at, value);
            } else {
                for (int lane = 0; lane < valid; lane++)
                    y[row * num_outputs + at + lane] = Out::write_one(value[lane] + (bias ? bias[at + lane] : 0.0f));
            }
        }
    }
}

template <typename Kind, typename Out, int COUNT>
void panels_of(const typename Kind::Group *x, const U16 *panel, const float *bias, typename Out::Element *y, int64_t num_rows,
               int64_t num_groups, int64_t num_outputs, int64_t first) {
    in_parts(num_rows, [&](auto rows, int64_t row) {
        rows_of<Kind, Out, rows.value, COUNT>(x + row * num_groups, panel, bias, y + row * num_outputs, num_groups, num_outputs, first);
    });
}

template <typename Kind, typename Out>
void linear(const void *x_, const void *packed, const float *bias, void *y_, int64_t num_rows, int64_t num_inputs, int64_t num_outputs) {
    const auto *x = static_cast<const typename Kind::Group *>(x_);
    auto *y = static_cast<typename Out::Element *>(y_);
    const auto *weights = static_cast<const U16 *>(packed);
    const int64_t num_groups = num_inputs / Kind::STEP, num_panels = (num_outputs + LANES - 1) / LANES;
    const int64_t num_tasks = (num_panels + PANELS - 1) / PANELS;
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < num_tasks; task++) {
        const int64_t panel = task * PANELS, first = panel * LANES;
        const U16 *at = weights + panel * num_groups;
        switch (std::min<int64_t>(PANELS, num_panels - panel)) {
        case 1: panels_of<Kind, Out, 1>(x, at, bias, y, num_rows, num_groups, num_outputs, first); break;
        case 2: panels_of<Kind, Out, 2>(x, at, bias, y, num_rows, num_groups, num_outputs, first); break;
        case 3: panels_of<Kind, Out, 3>(x, at, bias, y, num_rows, num_groups, num_outputs, first); break;
        default: panels_of<Kind, Out, 4>(x, at, bias, y, num_rows, num_groups, num_outputs, first); break;
        }
    }
}

} // namespace
