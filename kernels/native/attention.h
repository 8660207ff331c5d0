// Paged attention: flash attention on the blocks of a pool, one kernel for decodes and chunks alike.
//
// Keys and values of a tile are packed as weights are, and both products are tiles of a linear. The G query heads of a
// KV head are rows like others, so K and V are read once for them. A row's sums begin at the tile's multiple and go over
// its keys in order: its result does not depend on how many rows are computed with it, nor on who else is in the batch.
#pragma once
#include "paged_kv.h"
#include "tiles.h"
#include <atomic>
#include <omp.h>
#include <vector>

namespace {

constexpr int TILE_QUERIES = 64; // positions of a task
constexpr int PANELS_AT_ONCE = 4;
constexpr int GROUPS_AT_ONCE = 8; // of what is multiplied before more is fetched
constexpr int MAX_ROWS = 6; // of a tile: with four panels beside them, all that registers hold
constexpr int MOST_ROWS = 2 * TILE_ROWS; // that are at work at once, by tiles
constexpr int SCORES = TILE_KEYS + 16, PROBABILITIES = TILE_KEYS + 32; // of a row: a power of two would crowd some lines of the first cache

// Does a task, tile by tile of keys, head by head.
template <typename Kind> struct Worker {
    typedef typename Kind::Element Element;
    typedef typename Kind::Group Group;
    const Attention &a;
    const bool by_tiles = goes_by_tiles<Kind>(a.head_dim);
    Place place{};
    Ahead ahead;
    int64_t first_row = 0; // of the head at work, in what has a row for each of all heads
    int64_t first_seen, num_keys; // keys that any of the positions sees: from, and up to
    U16 *keys;                    // [TILE_KEYS / 16, D / STEP] of 16 lanes
    U16 *values;                  // [TILE_KEYS / STEP, D / 16] of 16 lanes
    float *scores;                // [MOST_ROWS, SCORES]
    Element *probabilities;       // [MOST_ROWS, PROBABILITIES]
    float *turned;                // [64, 16]: scores that have keys for rows
    Element *rows;                // [64, D]: keys or values that lay in the pool as something else
    const Element *nothing;       // [D]: zeros
    float *shares;                // [MAX_ROWS, D]: what a tile adds to the sums
    float *sums, *maxima, *denominators; // [rows, D], [rows] each
    Element *q;                   // [rows, D]

    static size_t size(int64_t num_rows, int64_t dim) {
        const size_t elements = (2 * TILE_KEYS + PANELS_AT_ONCE * LANES + 1 + num_rows + LANES) * dim + MOST_ROWS * PROBABILITIES;
        return elements * sizeof(Element) + (MOST_ROWS * SCORES + PANELS_AT_ONCE * LANES * LANES + MAX_ROWS * dim + num_rows * (dim + 2)) * sizeof(float) + 10 * 64;
    }

    Worker(const Attention &attention, uint8_t *memory, int64_t num_rows) : a(attention), ahead{attention} {
        const auto take = [&](size_t bytes) { return std::exchange(memory, memory + (bytes + 63) / 64 * 64); };
        keys = reinterpret_cast<U16 *>(take(TILE_KEYS * a.head_dim * sizeof(Element)));
        values = reinterpret_cast<U16 *>(take(TILE_KEYS * a.head_dim * sizeof(Element)));
        scores = reinterpret_cast<float *>(take(MOST_ROWS * SCORES * sizeof(float)));
        probabilities = reinterpret_cast<Element *>(take(MOST_ROWS * PROBABILITIES * sizeof(Element)));
        turned = reinterpret_cast<float *>(take(PANELS_AT_ONCE * LANES * LANES * sizeof(float)));
        q = reinterpret_cast<Element *>(take((num_rows + LANES) * a.head_dim * sizeof(Element))); // all sixteen are turned
        rows = reinterpret_cast<Element *>(take(PANELS_AT_ONCE * LANES * a.head_dim * sizeof(Element)));
        nothing = reinterpret_cast<Element *>(std::memset(take(a.head_dim * sizeof(Element)), 0, a.head_dim * sizeof(Element)));
        shares = reinterpret_cast<float *>(take(MAX_ROWS * a.head_dim * sizeof(float)));
        sums = reinterpret_cast<float *>(take(num_rows * (a.head_dim + 2) * sizeof(float)));
        maxima = sums + num_rows * a.head_dim;
        denominators = maxima + num_rows;
    }

    // Sixteen keys or values from `key` on, as they are computed with; until the same of `keep` is asked for again.
    const Element *rows_from(int64_t key, int64_t offset, int64_t keep = 0) {
        const uint8_t *from = place.key(key) + offset;
        if (is_plain<Kind>(a.stored)) return reinterpret_cast<const Element *>(from);
        Element *to = rows + keep * LANES * a.head_dim;
        for (int64_t row = 0; row < LANES; row++, from += a.slot_stride) decode<Kind>(a.stored, from, to + row * a.head_dim, a.head_dim);
        return to;
    }

    // Calls `each(group, first, second)` with the values of STEP keys at a time of sixteen from `key` on: of one, both
    // are the same. A slot without a token may hold anything, NaN too: it must not meet a zero probability.
    template <typename Each> inline void each_group(const Element *from, int64_t key, int64_t end, const Each &each) {
        const int64_t dim = a.head_dim;
        const bool is_whole = key >= first_seen && key + LANES <= end;
        const auto row_of = [&](int64_t row) { return key + row >= first_seen && key + row < end ? from + row * dim : nothing; };
        for (int64_t row = 0, last = Kind::STEP - 1; row < LANES; row += Kind::STEP, last += Kind::STEP)
            if (is_whole) each(row / Kind::STEP, from + row * dim, from + last * dim);
            else each(row / Kind::STEP, row_of(row), row_of(last));
    }

    // Panels of values of STEP keys; by twos as `interleave` has them.
    template <int COUNT> static inline void beside(const Element *first, const Element *second, U16 *to) {
        if constexpr (Kind::STEP == 1) {
            for (int panel = 0; panel < COUNT; panel++) to[panel] = load<U16>(first + panel * LANES);
        } else if constexpr (COUNT == 1) {
            to[0] = widened(load<H16>(first)) | widened(load<H16>(second)) << 16;
        } else {
            for (int panel = 0; panel < COUNT; panel += 2) interleave(first + panel * LANES, second + panel * LANES, to + panel);
        }
    }

    // Calls `each(std::integral_constant<int, count>, panel)` for the panels of a value, as many at once as there may be.
    template <typename Each> inline void each_panels(const Each &each) const {
        const int64_t panels = a.head_dim / LANES;
        int64_t panel = 0;
        for (; panel + 4 <= panels; panel += 4) each(std::integral_constant<int, 4>(), panel);
        for (; panel + 2 <= panels; panel += 2) each(std::integral_constant<int, 2>(), panel);
        for (; panel < panels; panel++) each(std::integral_constant<int, 1>(), panel);
    }

    // Packs the keys, or the values, of whole panels from `first_key` on; those from `end` on are nothing. Of the lines to
    // be asked for meanwhile, `SHARE` for each sixteen are asked for while keys are packed, the others when they are used.
    template <bool ARE_KEYS, int SHARE = LANES> void pack(int64_t first_key, int64_t end, U16 *to) {
        const int64_t panels = a.head_dim / LANES;
        const int64_t size = ARE_KEYS ? a.head_dim / Kind::STEP : LANES / Kind::STEP * panels; // of a panel of keys
        const int64_t whole = PANELS_AT_ONCE * LANES;
        for (int64_t key = first_key; key < first_key + (end - first_key + whole - 1) / whole * whole; key += LANES, to += size) {
            if (key >= end || key + LANES <= first_seen) {
                std::memset(to, 0, size * sizeof(U16));
                continue;
            }
            const Element *from = rows_from(key, ARE_KEYS ? 0 : a.value_offset);
            if constexpr (ARE_KEYS)
                for (int64_t column = 0; column < size; column += LANES) {
                    transpose(reinterpret_cast<const uint32_t *>(from) + column, size, to + column, std::min<int64_t>(LANES, size - column));
                    ahead.fetch(SHARE);
                }
            else
                each_group(from, key, end, [&](int64_t group, const Element *first, const Element *second) {
                    each_panels([&](auto count, int64_t panel) { beside<count.value>(first + panel * LANES, second + panel * LANES, to + group * panels + panel); });
                    ahead.fetch(panels);
                });
            ahead.turn();
        }
    }

    // Where the first of a row's keys in a tile may be, and the last.
    struct Seen {
        int32_t first, last;
    };
    Seen seen(int64_t row, int64_t group, int64_t first_position, int64_t first_key) const {
        const int32_t last = int32_t(first_position + row / group - first_key);
        return {a.window ? last - int32_t(a.window) + 1 : std::numeric_limits<int32_t>::min(), last};
    }

    // Turn a row's scores into probabilities beside what it has seen so far, which is scaled down where it must be.
    inline void probable(int64_t row, const Seen &seen, float *scores, int64_t num_sub, Element *probability) {
        const I16 ramp = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const F16 nothing = splat(-std::numeric_limits<float>::infinity());
        F16 most[PANELS_AT_ONCE]; // by fours, which do not wait for one another
        for (F16 &each : most) each = nothing;
        for (int64_t sub = 0; sub < num_sub; sub += PANELS_AT_ONCE)
            for (int64_t panel = 0; panel < PANELS_AT_ONCE; panel++) {
                const int32_t base = int32_t((sub + panel) * LANES);
                F16 score = load<F16>(scores + base);
                if (base + LANES - 1 > seen.last || base < seen.first) {
                    score = ((ramp + base <= seen.last) & (ramp + base >= seen.first)) ? score : nothing;
                    store(scores + base, score);
                }
                most[panel] = larger(score, most[panel]);
            }
        const float to_powers = a.scale * LOG2_E, before = maxima[row], maximum = std::max(before, max_of(larger(larger(most[0], most[1]), larger(most[2], most[3]))) * to_powers);
        if (maximum == -std::numeric_limits<float>::infinity()) { // it sees nothing here
            std::memset(probability, 0, num_sub * LANES * sizeof(Element));
            return;
        }
        F16 total[PANELS_AT_ONCE] = {};
        for (int64_t sub = 0; sub < num_sub; sub += PANELS_AT_ONCE)
            for (int64_t panel = 0; panel < PANELS_AT_ONCE; panel++) {
                const int64_t at = (sub + panel) * LANES;
                const F16 value = exp2(load<F16>(scores + at) * splat(to_powers) - splat(maximum));
                total[panel] += value;
                Kind::write(probability + at, value);
            }
        if (maximum != before) {
            const F16 shrink = exp2(splat(before - maximum));
            float *sum = sums + row * a.head_dim;
            denominators[row] *= shrink[0];
            for (int64_t d = 0; d < a.head_dim; d += LANES) store(sum + d, load<F16>(sum + d) * shrink);
            maxima[row] = maximum;
        }
        denominators[row] += sum_of(total[0] + total[1] + (total[2] + total[3]));
    }

    // Adds to the rows' shares what `add(count, panel, sums)` adds to the sums of `count` panels, `[ROWS][count]`.
    template <int ROWS, typename Add> inline void add_shares(const Add &add) {
        each_panels([&](auto count, int64_t panel) {
            F16 part[ROWS][count.value];
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < count.value; p++) part[r][p] = load<F16>(shares + r * a.head_dim + (panel + p) * LANES);
            add(count, panel, part);
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < count.value; p++) store(shares + r * a.head_dim + (panel + p) * LANES, part[r][p]);
        });
    }

    // Adds the rows' share of all values of a tile, which are packed.
    template <int ROWS> void add_packed(int64_t num_groups) {
        add_shares<ROWS>([&](auto count, int64_t panel, auto &part) {
            add_tile<Kind, ROWS, count.value>(reinterpret_cast<const Group *>(probabilities), PROBABILITIES / Kind::STEP, values + panel, 1, a.head_dim / LANES, num_groups, part);
        });
    }

    // Likewise of sixteen values as they lie in the pool: no other rows will ask for them.
    template <int ROWS> void add_values(int64_t first_key, int64_t key, int64_t end) {
        const Element *from = rows_from(key, a.value_offset);
        const Group *probability = reinterpret_cast<const Group *>(probabilities + (key - first_key));
        add_shares<ROWS>([&](auto count, int64_t panel, auto &part) {
            each_group(from, key, end, [&](int64_t group, const Element *first, const Element *second) {
                U16 packed[count.value];
                beside<count.value>(first + panel * LANES, second + panel * LANES, packed);
                add_tile<Kind, ROWS, count.value>(probability + group, PROBABILITIES / Kind::STEP, packed, 1, 0, 1, part);
                ahead.fetch(count.value);
            });
        });
        ahead.turn();
    }

    // `ROWS` rows from `row` on over the tile; row r stands at position first_position + r / group. `IS_ALONE` says that
    // no other rows are to come: then nothing is packed yet, and what is being multiplied stays in the first cache.
    template <int ROWS, bool IS_ALONE> void attend(int64_t row, int64_t group, int64_t first_position, int64_t first_key, int64_t end) {
        const int64_t groups = a.head_dim / Kind::STEP;
        const int64_t at_once = PANELS_AT_ONCE * LANES, num_sub = (end - first_key + at_once - 1) / at_once * PANELS_AT_ONCE;
        const auto end_of = [&](int64_t sub) { return std::min<int64_t>(end, first_key + sub * LANES + at_once); };
        for (int64_t sub = 0; sub < num_sub; sub += PANELS_AT_ONCE) {
            if constexpr (IS_ALONE) pack<true, LANES / 2>(first_key + sub * LANES, end_of(sub), keys);
            F16 part[ROWS][PANELS_AT_ONCE];
            for (auto &row_part : part)
                for (auto &sum : row_part) sum = F16{};
            const U16 *packed = IS_ALONE ? keys : keys + sub * groups;
            const auto *query = reinterpret_cast<const Group *>(q + (first_row + row) * a.head_dim);
            for (int64_t group = 0; group < groups; group += GROUPS_AT_ONCE) {
                add_tile<Kind, ROWS, PANELS_AT_ONCE>(query + group, groups, packed + group, groups, 1, std::min<int64_t>(GROUPS_AT_ONCE, groups - group), part);
                if constexpr (IS_ALONE) ahead.fetch(PANELS_AT_ONCE * GROUPS_AT_ONCE / 2), ahead.turn();
            }
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < PANELS_AT_ONCE; p++) store(scores + r * SCORES + (sub + p) * LANES, part[r][p]);
        }
        for (int r = 0; r < ROWS; r++)
            probable(first_row + row + r, seen(row + r, group, first_position, first_key), scores + r * SCORES, num_sub, probabilities + r * PROBABILITIES);
        std::memset(shares, 0, ROWS * a.head_dim * sizeof(float));
        if constexpr (IS_ALONE) {
            for (int64_t key = std::max(first_key, first_seen / LANES * LANES); key < end; key += LANES) add_values<ROWS>(first_key, key, end);
        } else {
            add_packed<ROWS>(num_sub * LANES / Kind::STEP);
        }
        float *sum = sums + (first_row + row) * a.head_dim;
        for (int64_t at = 0; at < ROWS * a.head_dim; at += LANES) store(sum + at, load<F16>(sum + at) + load<F16>(shares + at));
    }

    // Up to 32 rows over a tile that is packed, by tiles.
    void attend_by_tiles(int64_t row, int64_t count, int64_t group, int64_t first_position, int64_t first_key, int64_t end) {
        const int64_t groups = a.head_dim / Kind::STEP, panels = a.head_dim / LANES, at_once = PANELS_AT_ONCE * LANES;
        const int64_t num_sub = (end - first_key + at_once - 1) / at_once * PANELS_AT_ONCE;
        shape_for_pairs(count);
        const Element *query = q + (first_row + row) * a.head_dim;
        for (int64_t sub = 0; sub < num_sub; sub += 2)
            tile_pair<false, true>(count, query, a.head_dim * sizeof(Element), {keys + sub * groups, groups, 1, TILE_ROWS}, a.head_dim, scores + sub * LANES, SCORES * sizeof(float));
        for (int64_t r = 0; r < count; r++)
            probable(first_row + row + r, seen(row + r, group, first_position, first_key), scores + r * SCORES, num_sub, probabilities + r * PROBABILITIES);
        float *sum = sums + (first_row + row) * a.head_dim;
        for (int64_t panel = 0; panel < panels; panel += 2)
            tile_pair<true, true>(count, probabilities, PROBABILITIES * sizeof(Element), {values + panel, 1, panels, TILE_ROWS * panels}, num_sub * LANES, sum + panel * LANES, a.head_dim * sizeof(float));
    }

    // Up to 16 rows, to which no others are to come: keys are not packed, and values 32 at a time.
    void attend_alone_by_tiles(int64_t count, int64_t group, int64_t first_position, int64_t first_key, int64_t end) {
        const int64_t groups = a.head_dim / Kind::STEP, at_once = PANELS_AT_ONCE * LANES;
        const int64_t num_sub = (end - first_key + at_once - 1) / at_once * PANELS_AT_ONCE, width = count <= 4 ? 4 : LANES;
        const bool are_plain = is_plain<Kind>(a.stored);
        U16 *queries = keys; // [D / 2, 16]
        transpose(reinterpret_cast<const uint32_t *>(q + first_row * a.head_dim), groups, queries, groups);
        shape_for_keys(count);
        for (int64_t sub = 0; sub < num_sub; sub += PANELS_AT_ONCE) {
            const uint8_t *from[PANELS_AT_ONCE];
            for (int64_t panel = 0; panel < PANELS_AT_ONCE; panel++) {
                const int64_t key = first_key + (sub + panel) * LANES;
                const bool is_there = key < end && key + LANES > first_seen; // what is not gets a score that nobody sees
                from[panel] = reinterpret_cast<const uint8_t *>(is_there ? rows_from(key, 0, panel) : rows);
            }
            tile_keys(from, are_plain ? a.slot_stride : a.head_dim * sizeof(Element), queries, a.head_dim, turned, width, [&] { ahead.fetch(LANES), ahead.turn(); });
            for (int64_t panel = 0; panel < PANELS_AT_ONCE; panel++) turn_back(turned + panel * LANES * width, width, scores + (sub + panel) * LANES);
        }
        for (int64_t r = 0; r < count; r++)
            probable(first_row + r, seen(r, group, first_position, first_key), scores + r * SCORES, num_sub, probabilities + r * PROBABILITIES);
        shape_for_values(count);
        each_panels([&](auto panels, int64_t panel) {
            if constexpr (panels.value > 1)
                tile_values<panels.value>(probabilities, PROBABILITIES * sizeof(Element), num_sub * LANES, sums + first_row * a.head_dim + panel * LANES, a.head_dim * sizeof(float), [&](int64_t from) {
                    for (int64_t half = 0; half < 2; half++) {
                        const int64_t key = first_key + from + half * LANES;
                        U16 *to = values + half * LANES / Kind::STEP * panels.value;
                        if (key >= end || key + LANES <= first_seen) {
                            std::memset(to, 0, LANES / Kind::STEP * panels.value * sizeof(U16));
                            continue;
                        }
                        each_group(rows_from(key, a.value_offset), key, end, [&](int64_t each, const Element *first, const Element *second) {
                            beside<panels.value>(first + panel * LANES, second + panel * LANES, to + each * panels.value);
                            ahead.fetch(panels.value);
                        });
                        ahead.turn();
                    }
                    return values;
                });
        });
    }

    // Scores of sixteen keys, `[16, width]`, become one vector of each row.
    static inline void turn_back(const float *from, int64_t width, float *to) {
        if (width == LANES) {
            U16 row[LANES];
            transpose(reinterpret_cast<const uint32_t *>(from), LANES, row, LANES);
            for (int r = 0; r < LANES; r++) store(to + r * SCORES, row[r]);
            return;
        }
        const F16 a = load<F16>(from), b = load<F16>(from + LANES), c = load<F16>(from + 2 * LANES), d = load<F16>(from + 3 * LANES);
        const I16 evens = {0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29}, odds = evens + 2;
        const I16 firsts = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, seconds = firsts + 8;
        const F16 low = __builtin_shuffle(a, b, evens), high = __builtin_shuffle(c, d, evens), low_odd = __builtin_shuffle(a, b, odds), high_odd = __builtin_shuffle(c, d, odds);
        store(to, __builtin_shuffle(low, high, firsts)), store(to + SCORES, __builtin_shuffle(low, high, seconds));
        store(to + 2 * SCORES, __builtin_shuffle(low_odd, high_odd, firsts)), store(to + 3 * SCORES, __builtin_shuffle(low_odd, high_odd, seconds));
    }

    // How many rows may have a tile to themselves.
    static int64_t most_alone(bool by_tiles) { return by_tiles ? TILE_ROWS : MAX_ROWS; }

    // `next` is what this thread goes on with, if it is known.
    void run(const Task &task, const Task *next) {
        const int64_t dim = a.head_dim, group = a.num_q_heads / a.num_kv_heads, num_rows = (task.end_query - task.first_query) * group;
        const int64_t first_position = task.first_position(a);
        num_keys = task.num_keys(a), first_seen = task.first_seen(a);
        ahead.follow(task, next, dim * sizeof(Element));
        const auto each_row = [&](const auto &visit) { // its place among ours, and among all
            for (int64_t head = task.first_head; head < task.end_head; head++)
                for (int64_t row = 0; row < num_rows; row++)
                    visit((head - task.first_head) * num_rows + row,
                          ((a.starts[task.sequence] + task.first_query + row / group) * a.num_q_heads + head * group + row % group) * dim);
        };
        each_row([&](int64_t row, int64_t at) {
            std::memset(sums + row * dim, 0, dim * sizeof(float));
            std::memcpy(q + row * dim, static_cast<const Element *>(a.q) + at, dim * sizeof(Element));
            maxima[row] = -std::numeric_limits<float>::infinity();
            denominators[row] = 0;
        });
        for (int64_t first_key = first_seen / TILE_KEYS * TILE_KEYS; first_key < num_keys; first_key += TILE_KEYS) {
            const int64_t end = std::min<int64_t>(num_keys, first_key + TILE_KEYS);
            for (int64_t head = task.first_head; head < task.end_head; head++) {
                place = {&a, a.table + task.sequence * a.table_width, head};
                first_row = (head - task.first_head) * num_rows;
                if (by_tiles && num_rows <= most_alone(true)) {
                    attend_alone_by_tiles(num_rows, group, first_position, first_key, end);
                } else if (num_rows > MAX_ROWS) {
                    pack<true>(first_key, end, keys);
                    pack<false>(first_key, end, values);
                    if (by_tiles)
                        for (int64_t row = 0; row < num_rows; row += MOST_ROWS) attend_by_tiles(row, std::min<int64_t>(MOST_ROWS, num_rows - row), group, first_position, first_key, end);
                    else in_parts<MAX_ROWS>(num_rows, [&](auto rows, int64_t row) { attend<rows.value, false>(row, group, first_position, first_key, end); });
                } else {
                    in_parts<MAX_ROWS>(num_rows, [&](auto rows, int64_t row) { attend<rows.value, true>(row, group, first_position, first_key, end); });
                }
            }
        }
        each_row([&](int64_t row, int64_t at) {
            const F16 denominator = splat(denominators[row]);
            auto *to = static_cast<Element *>(a.out) + at;
            each_panels([&](auto count, int64_t panel) {
                F16 sum[count.value];
                for (int p = 0; p < count.value; p++) sum[p] = load<F16>(sums + row * dim + (panel + p) * LANES) / denominator;
                if constexpr (Kind::STEP == 2)
                    for (int p = 0; p + 2 <= count.value; p += 2) in_order(sum[p], sum[p + 1]);
                for (int p = 0; p < count.value; p++) Kind::write(to + (panel + p) * LANES, sum[p]);
            });
        });
    }
};

// The threads of a region take tasks by turns: `taken` counts them, from 0, for all of them.
template <typename Kind> void attention(const Attention &a, std::atomic<int64_t> &taken) {
    const int64_t group = a.num_q_heads / a.num_kv_heads;
    const bool are_many = a.num_sequences >= 4 * omp_get_num_threads();
    std::vector<Task> tasks;
    int64_t num_rows = 0; // of the largest
    for (int64_t sequence = 0; sequence < a.num_sequences; sequence++) {
        const int64_t length = a.lengths[sequence];
        // All heads by one thread where that leaves enough for the others, and their rows are few.
        const int64_t num_heads = are_many && length * group <= Worker<Kind>::most_alone(goes_by_tiles<Kind>(a.head_dim)) ? a.num_kv_heads : 1;
        for (int64_t first = 0; first < length; first += TILE_QUERIES)
            for (int64_t head = 0; head < a.num_kv_heads; head += num_heads)
                tasks.push_back({sequence, first, std::min<int64_t>(first + TILE_QUERIES, length), head, head + num_heads});
        num_rows = std::max(num_rows, std::min<int64_t>(length, TILE_QUERIES) * group * num_heads);
    }
    // What comes next is taken before it is begun, so that its keys are there by then.
    const auto take = [&] {
        const int64_t task = taken++;
        return task < int64_t(tasks.size()) ? &tasks[task] : nullptr;
    };
    Worker<Kind> worker(a, scratch(Worker<Kind>::size(num_rows, a.head_dim)), num_rows);
    for (const Task *task = take(), *next; task; task = next) {
        next = take();
        worker.run(*task, next);
    }
#pragma omp barrier
}

} // namespace
