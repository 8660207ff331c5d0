// Query rows of a task, head by head: what they ask, what they find in the tile at hand, and what they have summed so far.
// Knows no keys. A row's probabilities are rounded to what is multiplied; its denominator sums them as they were before.
#pragma once
#include "exponential.h"
#include "paged_kv.h"
#include "products.h"
#include "scratch.h"
#include "shuffles.h"

namespace {

constexpr int PANELS_OF_SCORES = 4; // by as many at once their largest is found, which do not wait for one another
constexpr int MOST_ROWS = 32;       // that have scores at once
constexpr int SCORES = TILE_KEYS + 16, PROBABILITIES = TILE_KEYS + 32; // of a row: a power of two would crowd some lines of the first cache

template <typename Kind> struct QueryRows {
    typedef typename Kind::Element Element;
    const int64_t dim, group; // query heads of a KV head
    const float cap, to_cap;  // c log2 e, 0 without one; a product times this is s / c
    const float to_powers;    // a product times this, or a capped score, is the logarithm to base 2 of e^s
    const int64_t window;
    int64_t num_rows = 0, first_position = 0; // of a KV head; where its first row stands
    int64_t first_row = 0;                    // of the KV head at work, among those of all
    Element *q;                               // [rows, D]
    float *sums, *maxima, *denominators;      // [rows, D], [rows] each
    float *scores;                            // [MOST_ROWS, SCORES]
    Element *probabilities;                   // [MOST_ROWS, PROBABILITIES]

    static size_t size(int64_t most_rows, int64_t dim) {
        return Pieces::size<Element>((most_rows + LANES) * dim) + Pieces::size<float>(most_rows * dim) + 2 * Pieces::size<float>(most_rows) +
               Pieces::size<float>(MOST_ROWS * SCORES) + Pieces::size<Element>(MOST_ROWS * PROBABILITIES);
    }

    QueryRows(const Attention &a, int64_t most_rows, Pieces &pieces)
        : dim(a.head_dim), group(a.num_q_heads / a.num_kv_heads), cap(a.softcap * LOG2_E), to_cap(a.softcap ? a.scale / a.softcap : 0),
          to_powers(a.softcap ? 1 : a.scale * LOG2_E), window(a.window) {
        q = pieces.take<Element>((most_rows + LANES) * dim); // tiles turn sixteen, however few there are
        sums = pieces.take<float>(most_rows * dim);
        maxima = pieces.take<float>(most_rows);
        denominators = pieces.take<float>(most_rows);
        scores = pieces.take<float>(MOST_ROWS * SCORES);
        probabilities = pieces.take<Element>(MOST_ROWS * PROBABILITIES);
    }

    const Element *query(int64_t row) const { return q + (first_row + row) * dim; }
    float *sum(int64_t row) const { return sums + (first_row + row) * dim; }

    // Begins row `row` of all.
    void begin(int64_t row, const Element *query) {
        std::memset(sums + row * dim, 0, dim * sizeof(float));
        std::memcpy(q + row * dim, query, dim * sizeof(Element));
        maxima[row] = -std::numeric_limits<float>::infinity();
        denominators[row] = 0;
    }

    // Writes what row `row` of all has found. A sink of score `sink` counts as a key that has no value; not before now,
    // since the largest score of a key, to which probabilities are relative, makes one that is 1, and is not rounded.
    void finish(int64_t row, Element *to, float sink) const {
        const Floats denominator = splat(denominators[row]) + exp2(splat(sink * LOG2_E - maxima[row]));
        each_panels(dim / LANES, [&](auto count, int64_t panel) {
            Floats sum[count.value];
            for (int p = 0; p < count.value; p++) sum[p] = load<Floats>(sums + row * dim + (panel + p) * LANES) / denominator;
            if constexpr (Kind::STEP == 2)
                for (int p = 0; p + 2 <= count.value; p += 2) in_order(sum[p], sum[p + 1]);
            for (int p = 0; p < count.value; p++) Kind::write(to + (panel + p) * LANES, sum[p]);
        });
    }

    // Turns the scores of `count` rows of the head from `row` on, against `num_panels` of keys, into probabilities.
    inline void weigh(int64_t row, int64_t count, int64_t first_key, int64_t num_panels) {
        for (int64_t r = 0; r < count; r++) {
            const int32_t last = int32_t(first_position + (row + r) / group - first_key);
            constexpr int64_t EVERYTHING = std::numeric_limits<int32_t>::min();
            const int32_t first = int32_t(window ? std::max(last - window + 1, EVERYTHING) : EVERYTHING);
            if (cap) cap_scores(scores + r * SCORES, num_panels);
            weigh_row(first_row + row + r, first, last, scores + r * SCORES, num_panels, probabilities + r * PROBABILITIES);
        }
    }

  private:
    // c tanh(s / c) in the place of products: by e^-2|s / c|, which overflows nowhere, and near 0, where that is 1 and
    // little would be left of the difference, by the first terms of the series.
    inline void cap_scores(float *scores, int64_t num_panels) const {
        for (int64_t panel = 0; panel < num_panels; panel++) {
            const Floats x = load<Floats>(scores + panel * LANES) * splat(to_cap), size = x < Floats{} ? -x : x, square = x * x;
            const Floats power = exp2(size * splat(-2 * LOG2_E)), far = (splat(1.0f) - power) / (splat(1.0f) + power);
            const Floats near = x * (splat(1.0f) + square * (splat(-1.0f / 3) + square * (splat(2.0f / 15) - square * splat(17.0f / 315))));
            store(scores + panel * LANES, splat(cap) * (size < splat(0.25f) ? near : x < Floats{} ? -far : far));
        }
    }

    // NaN where one of the scores is, or zero: what it does not see scores minus infinity.
    static float sum_of_nans(const float *scores, int64_t num_panels) {
        Floats sum{};
        for (int64_t panel = 0; panel < num_panels; panel++) {
            const Floats score = load<Floats>(scores + panel * LANES);
            sum += score != score ? score : Floats{};
        }
        return sum_of(sum);
    }

    // Likewise of one row, which sees the keys of the tile from `first` to `last`; what it has summed so far is scaled down
    // where it must be.
    inline void weigh_row(int64_t row, int32_t first, int32_t last, float *scores, int64_t num_panels, Element *probability) {
        const Floats nothing = splat(-std::numeric_limits<float>::infinity());
        Floats most[PANELS_OF_SCORES];
        for (Floats &each : most) each = nothing;
        for (int64_t from = 0; from < num_panels; from += PANELS_OF_SCORES)
            for (int64_t panel = 0; panel < PANELS_OF_SCORES; panel++) {
                const int32_t base = int32_t((from + panel) * LANES);
                Floats score = load<Floats>(scores + base);
                if (base + LANES - 1 > last || base < first) {
                    score = ((RAMP + base <= last) & (RAMP + base >= first)) ? score : nothing;
                    store(scores + base, score);
                }
                most[panel] = larger(score, most[panel]);
            }
        const float before = maxima[row], maximum = std::max(before, max_of(larger(larger(most[0], most[1]), larger(most[2], most[3]))) * to_powers);
        if (maximum == -std::numeric_limits<float>::infinity()) { // it sees nothing here, or nothing but NaN, which no maximum is
            std::memset(probability, 0, num_panels * LANES * sizeof(Element));
            denominators[row] += sum_of_nans(scores, num_panels);
            return;
        }
        Floats total[PANELS_OF_SCORES] = {};
        for (int64_t from = 0; from < num_panels; from += PANELS_OF_SCORES)
            for (int64_t panel = 0; panel < PANELS_OF_SCORES; panel++) {
                const int64_t at = (from + panel) * LANES;
                const Floats value = exp2(load<Floats>(scores + at) * splat(to_powers) - splat(maximum));
                total[panel] += value;
                Kind::write(probability + at, value);
            }
        if (maximum != before) {
            const Floats shrink = exp2(splat(before - maximum));
            float *sum = sums + row * dim;
            denominators[row] *= shrink[0];
            for (int64_t d = 0; d < dim; d += LANES) store(sum + d, load<Floats>(sum + d) * shrink);
            maxima[row] = maximum;
        }
        denominators[row] += sum_of(total[0] + total[1] + (total[2] + total[3]));
    }
};

} // namespace
