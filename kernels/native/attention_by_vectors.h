// Query rows over a tile of keys by vectors: up to six rows at a time, whose sums stay in registers. A row's share of a
// tile is summed alone, from zero and over its keys in order, and then added.
#pragma once
#include "kv_tile.h"
#include "products.h"
#include "query_rows.h"

namespace {

constexpr int MAX_ROWS = 6;       // at a time: their sums over four panels are what 32 registers hold
constexpr int GROUPS_AT_ONCE = 8; // of what is multiplied before more is fetched

template <typename Kind> struct ByVectors {
    typedef typename Kind::Element Element;
    typedef typename Kind::Factor Factor;
    KvTile<Kind> &kv;
    QueryRows<Kind> &rows;
    const int64_t dim;
    const int64_t query_factors, probability_factors; // of a row
    float *shares;                                    // [MAX_ROWS, D]: what a tile adds to the sums
    float *widened;                                   // [MAX_ROWS, D] of queries, and then [MAX_ROWS, PROBABILITIES]

    static size_t size(int64_t dim) { return Pieces::size<float>(MAX_ROWS * dim) + Pieces::size<float>(ARE_WIDENED<Kind> ? MAX_ROWS * std::max<int64_t>(dim, PROBABILITIES) : 0); }

    ByVectors(KvTile<Kind> &kv, QueryRows<Kind> &rows, int64_t dim, Pieces &pieces)
        : kv(kv), rows(rows), dim(dim), query_factors(dim / Kind::STEP * Kind::FACTORS), probability_factors(PROBABILITIES / Kind::STEP * Kind::FACTORS),
          shares(pieces.take<float>(MAX_ROWS * dim)), widened(pieces.take<float>(ARE_WIDENED<Kind> ? MAX_ROWS * std::max<int64_t>(dim, PROBABILITIES) : 0)) {}

    // Adds to the rows' shares what `add(count, panel, sums)` adds to the sums of `count` panels, `[ROWS][count]`.
    template <int ROWS, typename Add> inline void add_shares(const Add &add) {
        each_panels<MOST_PANELS<ROWS>>(dim / LANES, [&](auto count, int64_t panel) {
            Floats part[ROWS][count.value];
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < count.value; p++) part[r][p] = load<Floats>(shares + r * dim + (panel + p) * LANES);
            add(count, panel, part);
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < count.value; p++) store(shares + r * dim + (panel + p) * LANES, part[r][p]);
        });
    }

    // Adds the rows' share of all values of a tile, which are packed.
    template <int ROWS> void add_packed(const Factor *probability) {
        add_shares<ROWS>([&](auto count, int64_t panel, auto &part) {
            add_tile<Kind, ROWS, count.value>(probability, probability_factors, kv.values + panel, 1, dim / LANES, kv.num_panels() * LANES / Kind::STEP, part);
        });
    }

    // Likewise of a panel's values as they lie in the pool: no other rows will ask for them.
    template <int ROWS> void add_values(const Factor *probability, int64_t key) {
        const Element *from = kv.values_from(key);
        probability += (key - kv.first_key) / Kind::STEP * Kind::FACTORS;
        add_shares<ROWS>([&](auto count, int64_t panel, auto &part) {
            kv.each_group(from, key, [&](int64_t group, const Element *first, const Element *second) __attribute__((always_inline)) {
                Words packed[count.value];
                beside<Kind, count.value>(first + panel * LANES, second + panel * LANES, packed);
                add_tile<Kind, ROWS, count.value>(probability + group * Kind::FACTORS, probability_factors, packed, 1, 0, 1, part);
                kv.ahead.fetch(lines_of(count.value));
            });
        });
        kv.ahead.turn();
    }

    // The rows' probabilities of so many keys, `probability_factors` apart.
    template <int ROWS> const Factor *probabilities(int64_t num_keys) {
        for (int r = 1; r < ROWS; r++) factors_of<Kind>(rows.probabilities + r * PROBABILITIES, num_keys, widened + r * PROBABILITIES);
        return factors_of<Kind>(rows.probabilities, num_keys, widened);
    }

    // `ROWS` rows of the head from `row` on over the tile. `IS_ALONE` says that no other rows are to come: then nothing is
    // packed yet, and what is being multiplied stays in the first cache.
    template <int ROWS, bool IS_ALONE> void attend(int64_t row) {
        const int64_t groups = dim / Kind::STEP, num_panels = kv.num_panels();
        const Factor *query = factors_of<Kind>(rows.query(row), ROWS * dim, widened);
        for (int64_t panel = 0; panel < num_panels; panel += PANELS_AT_ONCE) {
            if constexpr (IS_ALONE) kv.pack_some_keys(panel);
            const Words *packed = IS_ALONE ? kv.keys : kv.keys + panel * groups;
            Floats part[ROWS][PANELS_AT_ONCE];
            for (auto &row_part : part)
                for (auto &sum : row_part) sum = Floats{};
            for (int64_t group = 0; group < groups; group += GROUPS_AT_ONCE) {
                add_tile<Kind, ROWS, PANELS_AT_ONCE>(query + group * Kind::FACTORS, query_factors, packed + group, groups, 1, std::min<int64_t>(GROUPS_AT_ONCE, groups - group), part);
                if constexpr (IS_ALONE) kv.ahead.fetch(lines_of(PANELS_AT_ONCE * GROUPS_AT_ONCE) / 2), kv.ahead.turn();
            }
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < PANELS_AT_ONCE; p++) store(rows.scores + r * SCORES + (panel + p) * LANES, part[r][p]);
        }
        rows.weigh(row, ROWS, kv.first_key, num_panels);
        const Factor *probability = probabilities<ROWS>(num_panels * LANES);
        std::memset(shares, 0, ROWS * dim * sizeof(float));
        if constexpr (IS_ALONE) {
            for (int64_t key = kv.first_read(); key < kv.end; key += LANES) add_values<ROWS>(probability, key);
        } else {
            add_packed<ROWS>(probability);
        }
        float *sums = rows.sum(row);
        for (int64_t at = 0; at < ROWS * dim; at += LANES) store(sums + at, load<Floats>(sums + at) + load<Floats>(shares + at));
    }

    // All rows of the head, as no others are to come, or after the tile was packed for them.
    template <bool ARE_ALONE> void attend_all() {
        in_parts<MAX_ROWS>(rows.num_rows, [&](auto count, int64_t row) { attend<count.value, ARE_ALONE>(row); });
    }
};

} // namespace
