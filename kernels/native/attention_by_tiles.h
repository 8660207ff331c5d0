// Query rows over a tile of keys by the processor's own tiles: up to 16 rows that are alone, or 32 at a time. A row's sums
// are what tiles begin with, so they go over all its keys in order.
#pragma once
#include "kv_tile.h"
#include "query_rows.h"
#include "shuffles.h"
#include "tiles.h"

namespace {

#if defined(HAS_TILES)

template <typename Kind> struct ByTiles {
    typedef typename Kind::Element Element;
    KvTile<Kind> &kv;
    QueryRows<Kind> &rows;
    const int64_t dim;
    float *turned; // [64, 16]: scores that have keys for rows

    static size_t size() { return Pieces::size<float>(PANELS_AT_ONCE * LANES * LANES); }

    ByTiles(KvTile<Kind> &kv, QueryRows<Kind> &rows, int64_t dim, Pieces &pieces)
        : kv(kv), rows(rows), dim(dim), turned(pieces.take<float>(PANELS_AT_ONCE * LANES * LANES)) {}

    // Up to 32 rows of the head over a tile that is packed.
    void attend(int64_t row, int64_t count) {
        const int64_t groups = dim / Kind::STEP, panels = dim / LANES, num_panels = kv.num_panels();
        shape_for_pairs(count);
        for (int64_t panel = 0; panel < num_panels; panel += 2)
            tile_pair<false, true>(count, rows.query(row), dim * sizeof(Element), {kv.keys + panel * groups, groups, 1, TILE_ROWS}, dim, rows.scores + panel * LANES, SCORES * sizeof(float));
        rows.weigh(row, count, kv.first_key, num_panels);
        for (int64_t panel = 0; panel < panels; panel += 2)
            tile_pair<true, true>(count, rows.probabilities, PROBABILITIES * sizeof(Element), {kv.values + panel, 1, panels, TILE_ROWS * panels}, num_panels * LANES,
                                  rows.sum(row) + panel * LANES, dim * sizeof(float));
    }

    // All rows of the head, after the tile was packed for them.
    void attend_all() {
        for (int64_t row = 0; row < rows.num_rows; row += MOST_ROWS) attend(row, std::min<int64_t>(MOST_ROWS, rows.num_rows - row));
    }

    // All rows of the head, up to 16: to which no others are to come. Keys are not packed, and values 32 at a time.
    void attend_alone() {
        const int64_t count = rows.num_rows, groups = dim / Kind::STEP, num_panels = kv.num_panels(), width = count <= 4 ? 4 : LANES;
        Words *queries = kv.keys; // [D / 2, 16]
        transpose(reinterpret_cast<const uint32_t *>(rows.query(0)), groups, queries, groups);
        shape_for_keys(count);
        for (int64_t first = 0; first < num_panels; first += PANELS_AT_ONCE) {
            const uint8_t *from[PANELS_AT_ONCE];
            for (int64_t panel = 0; panel < PANELS_AT_ONCE; panel++) { // what is not there gets a score that nobody sees
                const int64_t key = kv.first_key + (first + panel) * LANES;
                from[panel] = reinterpret_cast<const uint8_t *>(kv.is_read(key) ? kv.keys_from(key, panel) : kv.rows);
            }
            tile_keys(from, kv.row_stride(), queries, dim, turned, width, [&] { kv.ahead.fetch(LANES), kv.ahead.turn(); });
            for (int64_t panel = 0; panel < PANELS_AT_ONCE; panel++) turn_back(turned + panel * LANES * width, width, rows.scores + (first + panel) * LANES);
        }
        rows.weigh(0, count, kv.first_key, num_panels);
        shape_for_values(count);
        each_panels(dim / LANES, [&](auto panels, int64_t panel) {
            if constexpr (panels.value > 1)
                tile_values<panels.value>(rows.probabilities, PROBABILITIES * sizeof(Element), num_panels * LANES, rows.sum(0) + panel * LANES, dim * sizeof(float), [&](int64_t from) {
                    for (int64_t half = 0; half < 2; half++) {
                        const int64_t key = kv.first_key + from + half * LANES;
                        Words *to = kv.values + half * LANES / Kind::STEP * panels.value;
                        if (!kv.is_read(key)) {
                            std::memset(to, 0, LANES / Kind::STEP * panels.value * sizeof(Words));
                            continue;
                        }
                        kv.each_group(kv.values_from(key), key, [&](int64_t group, const Element *first, const Element *second) {
                            beside<Kind, panels.value>(first + panel * LANES, second + panel * LANES, to + group * panels.value);
                            kv.ahead.fetch(panels.value);
                        });
                        kv.ahead.turn();
                    }
                    return kv.values;
                });
        });
    }

    // Scores of sixteen keys, `[16, width]`, become one vector of each row.
    static inline void turn_back(const float *from, int64_t width, float *to) {
        if (width == LANES) {
            Words row[LANES];
            transpose(reinterpret_cast<const uint32_t *>(from), LANES, row, LANES);
            for (int r = 0; r < LANES; r++) store(to + r * SCORES, row[r]);
            return;
        }
        const Floats a = load<Floats>(from), b = load<Floats>(from + LANES), c = load<Floats>(from + 2 * LANES), d = load<Floats>(from + 3 * LANES);
        const Ints evens = {0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29}, odds = evens + 2;
        const Ints firsts = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, seconds = firsts + 8;
        const Floats low = __builtin_shuffle(a, b, evens), high = __builtin_shuffle(c, d, evens), low_odd = __builtin_shuffle(a, b, odds), high_odd = __builtin_shuffle(c, d, odds);
        store(to, __builtin_shuffle(low, high, firsts)), store(to + SCORES, __builtin_shuffle(low, high, seconds));
        store(to + 2 * SCORES, __builtin_shuffle(low_odd, high_odd, firsts)), store(to + 3 * SCORES, __builtin_shuffle(low_odd, high_odd, seconds));
    }
};

#else

template <typename Kind> struct ByTiles {
    static size_t size() { return 0; }
    ByTiles(KvTile<Kind> &, QueryRows<Kind> &, int64_t, Pieces &) {}
    void attend_all() {}
    void attend_alone() {}
};

#endif

} // namespace
