// Linears over prepacked weights. A team divides the outputs.
//
// An output is summed over K in order, whatever rows are beside it: a row's values are the same in any batch.
#pragma once
#include "coded.h"
#include "low_rank.h"
#include "products.h"
#include "rows.h"
#include "team.h"
#include "scratch.h"
#include "tiles.h"

namespace {

// Rows multiplied at once: 32 registers of 16 lanes hold 14 with a stripe beside them, but a prompt takes longer so. Each of
// these was the fastest where it was measured; 16 registers hold 6 with half a stripe.
template <typename Kind> constexpr int STRIPE_ROWS = !ARE_WIDENED<Kind> ? 11 : REGISTERS > 16 ? 12 : 6;
constexpr int64_t WIDENED_BYTES = 2 << 20; // of rows at once, about: they stay in the second cache
constexpr int TILE_INPUTS_AT_ONCE = 576; // 36 KiB of a stripe
constexpr int TILE_ROWS_AT_ONCE = 512;   // in the second cache, with the weights

// Parts of 32 rows; the last one ends with the last row, and may have some of those before it once more. Several of them go
// over a part of the inputs at a time, so that its weights stay in the first cache. Calls `finish` as `product` does, for
// the rows before while the next ones are multiplied: that is another unit of the processor.
template <typename Kind, typename Finish>
void product_by_tiles(const typename Kind::Element *x, const Words *stripes, int64_t num_rows, int64_t num_inputs, int64_t stripe, int64_t end, const Finish &finish) {
    const int64_t num_groups = num_inputs / Kind::STEP, at_once = std::min<int64_t>(num_rows, 2 * TILE_ROWS), num_parts = (num_rows + at_once - 1) / at_once;
    const int64_t inputs_at_once = num_parts == 1 ? num_inputs : std::min<int64_t>(num_inputs, TILE_INPUTS_AT_ONCE);
    // Where inputs come in parts, sums of all parts of the rows are kept; else of two, which leaves the first cache to the
    // weights: one waits to be finished while the next is multiplied.
    const bool inputs_are_whole = inputs_at_once == num_inputs;
    const int64_t num_kept = inputs_are_whole ? 2 : std::max<int64_t>(num_parts, 2);
    static_assert(TILE_INPUTS_AT_ONCE / TILE_INPUTS * 2 >= 2 * TILE_ROWS, "a part is finished within the next one, two rows a step");
    auto *sums = reinterpret_cast<Floats(*)[PANELS]>(scratch(num_kept * at_once * sizeof(Floats[PANELS])));
    struct Waiting {
        int64_t row = 0, stripe = 0, done = 0, count = 0;
        const Floats (*sums)[PANELS] = nullptr;
    } waiting;
    const auto finish_some = [&](int64_t most) __attribute__((always_inline)) {
        for (; most > 0 && waiting.done < waiting.count; most--, waiting.done++) finish(waiting.row + waiting.done, waiting.stripe, waiting.sums[waiting.done]);
    };
    shape_for_pairs(at_once);
    int64_t num_multiplied = 0;
    for (; stripe < end; stripe++)
        for (int64_t input = 0; input < num_inputs; input += inputs_at_once) {
            const int64_t count = std::min(inputs_at_once, num_inputs - input);
            const Words *weights = stripes + (stripe * num_groups + input / Kind::STEP) * PANELS;
            for (int64_t part = 0; part < num_parts; part++) {
                const int64_t row = std::min(part * at_once, num_rows - at_once);
                auto *to = sums + (inputs_are_whole ? num_multiplied++ % 2 : part) * at_once;
                // What comes after these weights is asked for while rows go over them; of few rows, three steps ahead.
                const int64_t lines = (TILE_INPUTS + num_parts - 1) / num_parts;
                const Words *ahead = num_parts == 1 ? weights + 3 * TILE_INPUTS : weights + count / Kind::STEP * PANELS + part * lines * (count / TILE_INPUTS);
                const auto meanwhile = [&] {
                    for (int64_t line = 0; line < lines; line++) __builtin_prefetch(ahead++, 0, 2);
                    finish_some(2);
                };
                const Pair pair{weights, 1, PANELS, TILE_INPUTS / Kind::STEP * PANELS};
                const auto *from = x + row * num_inputs + input;
                const auto multiply = num_parts == 1 ? tile_pair<false, true, decltype(meanwhile)>
                                      : input       ? tile_pair<true, false, decltype(meanwhile)>
                                                    : tile_pair<false, false, decltype(meanwhile)>;
                multiply(at_once, from, num_inputs * 2, pair, count, to, sizeof(Floats[PANELS]), meanwhile);
                if (input + count < num_inputs) continue;
                finish_some(at_once);
                waiting = {row, stripe, 0, at_once, to};
            }
        }
    finish_some(2 * TILE_ROWS);
}

// Rows that go over the weights at once by vectors: all, or of those to be widened no more than there is place for.
template <typename Kind> inline int64_t vector_rows(int64_t num_rows, int64_t num_inputs) {
    return ARE_WIDENED<Kind> ? std::min(num_rows, std::max<int64_t>(WIDENED_BYTES / int64_t(sizeof(float)) / num_inputs, 4 * STRIPE_ROWS<Kind>)) : num_rows;
}

// Of so many rows. Calls `finish` as `product` does. A function of its own: where it is made part of a long one, gcc may keep
// the sums in memory and not in registers, and a product then takes nearly twice as long.
template <typename Kind, typename Finish>
__attribute__((noinline)) void product_by_vectors(const typename Kind::Element *x, const Words *stripes, int64_t num_rows, int64_t num_inputs, int64_t stripe, int64_t end, const Finish &finish) {
    const int64_t num_groups = num_inputs / Kind::STEP, num_factors = num_groups * Kind::FACTORS, size = PANELS * num_groups;
    auto *room = reinterpret_cast<float *>(scratch(ARE_WIDENED<Kind> ? num_rows * num_inputs * sizeof(float) : 0));
    const auto *factors = factors_of<Kind>(x, num_rows * num_inputs, room);
    for (; stripe < end; stripe++) {
        const Words *at = stripes + stripe * size;
        int64_t part = 0;
        in_parts<STRIPE_ROWS<Kind>>(num_rows, [&](auto rows, int64_t row) {
            Floats sums[rows.value][PANELS];
            tile<Kind, rows.value, PANELS>(factors + row * num_factors, num_factors, at, 1, PANELS, num_groups, sums, StripesAhead(at, size, part++, num_parts_of(num_rows, STRIPE_ROWS<Kind>)));
            for (int r = 0; r < rows.value; r++) finish(row + r, stripe, sums[r]);
        });
    }
}

// Calls `finish(row, stripe, sums)` with the sums of a row and a stripe.
template <typename Kind, typename Finish>
void product(const void *x_, const void *packed, int64_t num_rows, int64_t num_inputs, int64_t num_outputs, const Team &team, const Finish &finish) {
    const auto *x = static_cast<const typename Kind::Element *>(x_);
    const auto *stripes = static_cast<const Words *>(packed);
    if (num_rows == 0) return; // for all threads: none waits
    const int64_t num_stripes = (num_outputs + STRIPE - 1) / STRIPE, first = team.first(num_stripes), end = team.end(num_stripes);
    const bool by_tiles = goes_by_tiles<Kind>(num_inputs);
    const int64_t at_once = by_tiles ? TILE_ROWS_AT_ONCE : vector_rows<Kind>(num_rows, num_inputs);
    for (int64_t row = 0; row < num_rows && first < end; row += at_once) {
        const auto finish_ours = [&](int64_t r, int64_t stripe, const Floats (&sums)[PANELS]) __attribute__((always_inline)) { finish(row + r, stripe, sums); };
        const int64_t count = std::min(at_once, num_rows - row);
        if (by_tiles) product_by_tiles<Kind>(x + row * num_inputs, stripes, count, num_inputs, first, end, finish_ours);
        else product_by_vectors<Kind>(x + row * num_inputs, stripes, count, num_inputs, first, end, finish_ours);
    }
    team.meet();
}

// Likewise, whatever the weights are kept as. `room` is what `coded_product` needs.
template <typename Kind, typename Finish>
void product(const void *x, const Matrix &weight, void *room, int64_t num_rows, int64_t num_inputs, int64_t num_outputs, const Team &team, const Finish &finish) {
    if (weight.scales) coded_product<Kind>(x, weight, room, num_rows, num_inputs, num_outputs, team, finish);
    else product<Kind>(x, weight.packed, num_rows, num_inputs, num_outputs, team, finish);
}

template <typename Kind, typename Out>
void linear(const void *x, const Matrix &weight, const float *bias, void *room, void *y_, int64_t num_rows, int64_t num_inputs, int64_t num_outputs, const Team &team, const Added &added = {}) {
    auto *y = static_cast<typename Out::Element *>(y_);
    product<Kind>(x, weight, room, num_rows, num_inputs, num_outputs, team, [=](int64_t row, int64_t stripe, const Floats (&found)[PANELS]) __attribute__((always_inline)) {
        Floats sums[PANELS];
        std::copy(found, found + PANELS, sums);
        added.template to<Kind>(row, stripe, sums);
        const int64_t first = stripe * STRIPE, count = std::min<int64_t>(STRIPE, num_outputs - first);
        auto *to = y + row * num_outputs + first;
        const float *own = bias ? bias + first : nullptr;
        const auto sum = [&](int panel) { return own ? sums[panel] + load<Floats>(own + panel * LANES) : sums[panel]; };
        if (count == STRIPE) {
            for (int panel = 0; panel < PANELS; panel += 2) Out::write(to + panel * LANES, sum(panel), sum(panel + 1));
            return;
        }
        for (int64_t at = 0; at < count; at++) to[at] = Out::write_one(sums[at / LANES][at % LANES] + (own ? own[at] : 0.0f));
    });
}

// silu(gate) * up of `[T, K]`: half of a stripe is of gate, half of up, `size` outputs of each.
template <typename Kind>
void gated_linear(const void *x, const Matrix &weight, const float *bias, void *room, void *y_, int64_t num_rows, int64_t num_inputs, int64_t size, const Team &team, const Added &added = {}) {
    auto *y = static_cast<typename Kind::Element *>(y_);
    product<Kind>(x, weight, room, num_rows, num_inputs, 2 * size, team, [=](int64_t row, int64_t stripe, const Floats (&found)[PANELS]) __attribute__((always_inline)) {
        Floats sums[PANELS];
        std::copy(found, found + PANELS, sums);
        added.template to<Kind>(row, stripe, sums);
        const float *own = bias ? bias + stripe * STRIPE : nullptr;
        const auto sum = [&](int panel) { return Kind::rounded(own ? sums[panel] + load<Floats>(own + panel * LANES) : sums[panel]); };
        for (int panel = 0; panel < PANELS / 2; panel++)
            Kind::write(y + row * size + stripe * (STRIPE / 2) + panel * LANES, silu<Kind>(sum(panel)) * sum(PANELS / 2 + panel));
    });
}

} // namespace
