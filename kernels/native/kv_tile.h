// A tile of keys of one KV head, and their values, as products read them: where they lie, or packed as weights are.
// Nothing is read that no row sees, but the panel around it: a slot without a token may hold anything, NaN too.
#pragma once
#include "ahead.h"
#include "products.h"
#include "scratch.h"
#include "shuffles.h"

namespace {

constexpr int PANELS_AT_ONCE = 4;

// Panels of values of STEP keys; by twos as `interleave` has them.
template <typename Kind, int COUNT> inline void beside(const typename Kind::Element *first, const typename Kind::Element *second, Words *to) {
    if constexpr (Kind::STEP == 1) {
        for (int panel = 0; panel < COUNT; panel++) to[panel] = load<Words>(first + panel * LANES);
    } else if constexpr (COUNT == 1) {
        to[0] = widened(load<Halves>(first)) | widened(load<Halves>(second)) << 16;
    } else {
        for (int panel = 0; panel < COUNT; panel += 2) interleave(first + panel * LANES, second + panel * LANES, to + panel);
    }
}

template <typename Kind> struct KvTile {
    typedef typename Kind::Element Element;
    const Attention &a;
    Place place{};
    Ahead ahead;
    int64_t first_seen = 0;         // no row of the task sees a key before
    int64_t first_key = 0, end = 0; // its first key, and behind its last
    Words *keys;                    // [TILE_KEYS / LANES, D / STEP]
    Words *values;                  // [TILE_KEYS / STEP, D / LANES]
    Element *rows;                  // [PANELS_AT_ONCE LANES, D]: keys or values that lay in the pool as something else
    const Element *nothing;         // [D]: zeros

    static size_t size(int64_t dim) {
        return 2 * Pieces::size<Element>(TILE_KEYS * dim) + Pieces::size<Element>(PANELS_AT_ONCE * LANES * dim) + Pieces::size<Element>(dim);
    }

    KvTile(const Attention &attention, Pieces &pieces) : a(attention), ahead{attention} {
        keys = reinterpret_cast<Words *>(pieces.take<Element>(TILE_KEYS * a.head_dim));
        values = reinterpret_cast<Words *>(pieces.take<Element>(TILE_KEYS * a.head_dim));
        rows = pieces.take<Element>(PANELS_AT_ONCE * LANES * a.head_dim);
        Element *zeros = pieces.take<Element>(a.head_dim);
        std::fill_n(zeros, a.head_dim, Element{});
        nothing = zeros;
    }

    // Its panels of keys, and what is behind its last to make so many as are multiplied at once.
    int64_t num_panels() const {
        const int64_t at_once = PANELS_AT_ONCE * LANES;
        return (end - first_key + at_once - 1) / at_once * PANELS_AT_ONCE;
    }

    // Where the first panel begins of which a row sees any.
    int64_t first_read() const { return std::max(first_key, first_seen / LANES * LANES); }

    // Whether a row sees any of the panel from `key` on.
    bool is_read(int64_t key) const { return key < end && key + LANES > first_seen; }

    // A panel's keys or values from `key` on, as they are computed with, `row_stride` bytes apart; until the same of `keep`
    // is asked for again.
    const Element *keys_from(int64_t key, int64_t keep = 0) { return rows_at(place.key(key), keep); }
    const Element *values_from(int64_t key) { return rows_at(place.key(key) + a.value_offset, 0); }
    int64_t row_stride() const { return is_plain<Kind>(a.stored) ? a.slot_stride : a.head_dim * sizeof(Element); }

    // Calls `each(group, first, second)` with the values of STEP keys at a time of a panel from `key` on: of one, both are
    // the same. What no row sees must not meet a zero probability.
    template <typename Each> inline void each_group(const Element *from, int64_t key, const Each &each) {
        const int64_t dim = a.head_dim;
        const bool is_whole = key >= first_seen && key + LANES <= end;
        const auto row_of = [&](int64_t row) { return is_whole || (key + row >= first_seen && key + row < end) ? from + row * dim : nothing; };
        for (int64_t row = 0; row < LANES; row += Kind::STEP) each(row / Kind::STEP, row_of(row), row_of(row + Kind::STEP - 1));
    }

    // Packs all for many rows.
    void pack() {
        pack_panels<true>(first_key, end, keys);
        pack_panels<false>(first_key, end, values);
    }

    // Packs the keys of as many panels as are multiplied at once, from one of the tile's on, to the beginning of `keys`.
    // Half of the lines to be asked for are asked for meanwhile, the others when they are multiplied.
    void pack_some_keys(int64_t panel) {
        const int64_t key = first_key + panel * LANES;
        pack_panels<true, true>(key, std::min<int64_t>(end, key + PANELS_AT_ONCE * LANES), keys);
    }

  private:
    const Element *rows_at(const uint8_t *from, int64_t keep) {
        if (is_plain<Kind>(a.stored)) return reinterpret_cast<const Element *>(from);
        Element *to = rows + keep * LANES * a.head_dim;
        for (int64_t row = 0; row < LANES; row++, from += a.slot_stride) decode<Kind>(a.stored, from, to + row * a.head_dim, a.head_dim);
        return to;
    }

    // Packs the keys, or the values, of as many panels as `until` needs from `key` on; those from `until` on are nothing.
    // As many lines as are read are asked for meanwhile, or half of them.
    template <bool ARE_KEYS, bool IS_SHARED = false> void pack_panels(int64_t key, int64_t until, Words *to) {
        const int64_t panels = a.head_dim / LANES;
        const int64_t size = ARE_KEYS ? a.head_dim / Kind::STEP : LANES / Kind::STEP * panels; // of a panel
        const int64_t whole = PANELS_AT_ONCE * LANES, behind = key + (until - key + whole - 1) / whole * whole;
        for (; key < behind; key += LANES, to += size) {
            if (!is_read(key)) {
                std::memset(to, 0, size * sizeof(Words));
                continue;
            }
            if constexpr (ARE_KEYS) {
                const Element *from = keys_from(key);
                for (int64_t column = 0; column < size; column += LANES) {
                    transpose(reinterpret_cast<const uint32_t *>(from) + column, size, to + column, std::min<int64_t>(LANES, size - column));
                    ahead.fetch(lines_of(IS_SHARED ? LANES / 2 : LANES));
                }
            } else {
                each_group(values_from(key), key, [&](int64_t group, const Element *first, const Element *second) {
                    each_panels(panels, [&](auto count, int64_t panel) {
                        beside<Kind, count.value>(first + panel * LANES, second + panel * LANES, to + group * panels + panel);
                    });
                    ahead.fetch(lines_of(panels));
                });
            }
            ahead.turn();
        }
    }
};

} // namespace
