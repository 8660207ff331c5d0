// Paged attention: flash attention on the blocks of a pool, one kernel for decodes and chunks alike.
//
// Keys and values of a tile are packed as weights are, and both products are tiles of a linear. The G query heads of a
// KV head are rows like others, so K and V are read once for them. A row's sums begin at the tile's multiple and go over
// its keys in order: its result does not depend on how many rows are computed with it, nor on who else is in the batch.
#pragma once
#include "stored.h"
#include <omp.h>

namespace {

constexpr int TILE_KEYS = 256;   // packed at once, from multiples on
constexpr int TILE_QUERIES = 64; // positions of a task
constexpr int PANELS_AT_ONCE = 4;
constexpr int LINES_AT_ONCE = 24; // of K, and as many of V: what a core can wait for without standing still

struct Attention {
    const void *q;   // [T, Hq, D]
    const void *kv;  // the pool, at the layer
    void *out;       // [T, Hq, D]
    const int64_t *table, *starts, *lengths, *kv_lengths; // [S, M], and [S] each
    int64_t num_sequences, table_width, block_size, num_q_heads, num_kv_heads, head_dim, window;
    int64_t block_stride, value_offset, head_stride, slot_stride, stored; // in bytes; how the pool keeps numbers
    float scale;
};

// Keys and values of one KV head of one sequence.
struct Place {
    const Attention *a;
    const int64_t *table;
    int64_t head;

    const uint8_t *key(int64_t key) const {
        return static_cast<const uint8_t *>(a->kv) + table[key / a->block_size] * a->block_stride + head * a->head_stride + key % a->block_size * a->slot_stride;
    }
};

// Has keys and values at hand before they are read, some lines at a time between what is computed meanwhile: blocks lie
// anywhere, and no other prefetcher knows which is next.
struct Ahead {
    Place place{};
    int64_t at = 0, end = 0; // keys
    int64_t line = 0;        // bytes

    void aim(const Place &next, int64_t first_key, int64_t end_key) { place = next, at = first_key, end = end_key, line = 0; }

    inline void fetch() {
        for (int count = 0; count < LINES_AT_ONCE && at < end; count++) {
            const uint8_t *k = place.key(at) + line;
            __builtin_prefetch(k);
            __builtin_prefetch(k + place.a->value_offset);
            line += 64;
            if (line >= LANES * place.a->slot_stride) at += LANES, line = 0;
        }
    }
};

// One KV head of one sequence, for some of its positions.
template <typename Kind> struct Worker {
    typedef typename Kind::Element Element;
    typedef typename Kind::Group Group;
    const Attention &a;
    Place place;
    Ahead ahead;
    int64_t first_seen, num_keys; // keys that any of the positions sees: from, and up to
    U16 *keys;                    // [TILE_KEYS / 16, D / STEP] of 16 lanes
    U16 *values;                  // [TILE_KEYS / STEP, D / 16] of 16 lanes
    Element *probabilities;       // [MAX_ROWS, TILE_KEYS]
    Element *rows;                // [2, 16, D]: keys and values that lay in the pool as something else
    float *sums, *maxima, *denominators; // [rows, D], [rows] each
    Element *q;                   // [rows, D]

    static size_t size(int64_t num_rows, int64_t dim) {
        return ((2 * TILE_KEYS + 2 * LANES + num_rows) * dim + MAX_ROWS * TILE_KEYS) * sizeof(Element) + num_rows * (dim + 2) * sizeof(float) + 6 * 64;
    }

    Worker(const Attention &attention, uint8_t *memory, int64_t num_rows) : a(attention) {
        const auto take = [&](size_t bytes) { return std::exchange(memory, memory + (bytes + 63) / 64 * 64); };
        keys = reinterpret_cast<U16 *>(take(TILE_KEYS * a.head_dim * sizeof(Element)));
        values = reinterpret_cast<U16 *>(take(TILE_KEYS * a.head_dim * sizeof(Element)));
        probabilities = reinterpret_cast<Element *>(take(MAX_ROWS * TILE_KEYS * sizeof(Element)));
        q = reinterpret_cast<Element *>(take(num_rows * a.head_dim * sizeof(Element)));
        rows = reinterpret_cast<Element *>(take(2 * LANES * a.head_dim * sizeof(Element)));
        sums = reinterpret_cast<float *>(take(num_rows * (a.head_dim + 2) * sizeof(float)));
        maxima = sums + num_rows * a.head_dim;
        denominators = maxima + num_rows;
    }

    // A slot without a token may hold anything, NaN too: it must not meet a zero probability.
    void pack_values(const Element *from, int64_t key, int64_t end, U16 *to) const {
        const int64_t dim = a.head_dim, panels = dim / LANES;
        alignas(64) static const Element nothing[2 * LANES] = {};
        const bool is_whole = key >= first_seen && key + LANES <= end;
        for (int64_t row = 0; row < LANES; row += Kind::STEP, to += panels) {
            const Element *rows[Kind::STEP];
            int64_t steps[Kind::STEP];
            for (int part = 0; part < Kind::STEP; part++) {
                const bool is_token = is_whole || (key + row + part >= first_seen && key + row + part < end);
                rows[part] = is_token ? from + (row + part) * dim : nothing;
                steps[part] = is_token ? LANES : 0;
            }
            int64_t panel = 0;
            if constexpr (Kind::STEP == 2) {
                for (; panel + 2 <= panels; panel += 2) interleave(rows[0] + panel * steps[0], rows[1] + panel * steps[1], to + panel);
                for (; panel < panels; panel++)
                    to[panel] = __builtin_convertvector(load<H16>(rows[0] + panel * steps[0]), U16) | __builtin_convertvector(load<H16>(rows[1] + panel * steps[1]), U16) << 16;
            } else {
                for (; panel < panels; panel++) to[panel] = load<U16>(rows[0] + panel * steps[0]);
            }
        }
    }

    void pack(int64_t first_key, int64_t end) {
        const int64_t groups = a.head_dim / Kind::STEP, vectors = LANES / Kind::STEP * (a.head_dim / LANES);
        const int64_t whole = PANELS_AT_ONCE * LANES;
        for (int64_t key = first_key; key < first_key + (end - first_key + whole - 1) / whole * whole; key += LANES) {
            U16 *to_keys = keys + (key - first_key) / LANES * groups, *to_values = values + (key - first_key) / LANES * vectors;
            if (key >= end || key + LANES <= first_seen) {
                std::memset(to_keys, 0, groups * sizeof(U16));
                std::memset(to_values, 0, vectors * sizeof(U16));
                continue;
            }
            const uint8_t *from = place.key(key);
            const Element *k = reinterpret_cast<const Element *>(from), *v = reinterpret_cast<const Element *>(from + a.value_offset);
            if (!is_plain<Kind>(a.stored)) {
                for (int64_t row = 0; row < LANES; row++, from += a.slot_stride) {
                    decode<Kind>(a.stored, from, rows + row * a.head_dim, a.head_dim);
                    decode<Kind>(a.stored, from + a.value_offset, rows + (LANES + row) * a.head_dim, a.head_dim);
                }
                k = rows, v = rows + LANES * a.head_dim;
            }
            transpose(reinterpret_cast<const uint32_t *>(k), groups, to_keys, groups);
            pack_values(v, key, end, to_values);
            ahead.fetch();
        }
    }

    // Turn a row's scores into probabilities beside what it has seen so far, which is scaled down where it must be.
    inline void probable(int64_t row, const F16 *scores, int64_t num_sub, Element *probability) {
        F16 most = splat(-std::numeric_limits<float>::infinity());
        for (int64_t sub = 0; sub < num_sub; sub++) most = larger(scores[sub], most);
        const float before = maxima[row], maximum = std::max(before, max_of(most));
        if (maximum == -std::numeric_limits<float>::infinity()) { // it sees nothing here
            std::memset(probability, 0, num_sub * LANES * sizeof(Element));
            return;
        }
        F16 total{};
        for (int64_t sub = 0; sub < num_sub; sub++) {
            const F16 value = exp(scores[sub] - splat(maximum));
            total += value;
            Kind::write(probability + sub * LANES, value);
        }
        if (maximum != before) {
            const F16 shrink = exp(splat(before - maximum));
            float *sum = sums + row * a.head_dim;
            denominators[row] *= shrink[0];
            for (int64_t d = 0; d < a.head_dim; d += LANES) store(sum + d, load<F16>(sum + d) * shrink);
            maxima[row] = maximum;
        }
        denominators[row] += sum_of(total);
    }

    template <int ROWS, int COUNT> inline void add_values(int64_t row, int64_t panel, int64_t num_groups) {
        const int64_t panels = a.head_dim / LANES;
        F16 part[ROWS][COUNT];
        tile<Kind, ROWS, COUNT>(reinterpret_cast<const Group *>(probabilities), TILE_KEYS / Kind::STEP, values + panel, 1, panels, num_groups, part);
        for (int r = 0; r < ROWS; r++)
            for (int p = 0; p < COUNT; p++) {
                float *at = sums + (row + r) * a.head_dim + (panel + p) * LANES;
                store(at, load<F16>(at) + part[r][p]);
            }
    }

    // `ROWS` rows from `row` on over the packed tile; row r stands at position first_position + r / group.
    template <int ROWS> void attend(int64_t row, int64_t group, int64_t first_position, int64_t first_key, int64_t end) {
        const int64_t groups = a.head_dim / Kind::STEP;
        const int64_t num_sub = (end - first_key + PANELS_AT_ONCE * LANES - 1) / (PANELS_AT_ONCE * LANES) * PANELS_AT_ONCE;
        F16 scores[ROWS][TILE_KEYS / LANES];
        const I16 ramp = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const F16 nothing = splat(-std::numeric_limits<float>::infinity());
        for (int64_t sub = 0; sub < num_sub; sub += PANELS_AT_ONCE) {
            F16 part[ROWS][PANELS_AT_ONCE];
            tile<Kind, ROWS, PANELS_AT_ONCE>(reinterpret_cast<const Group *>(q + row * a.head_dim), groups, keys + sub * groups, groups, 1, groups, part);
            ahead.fetch();
            for (int r = 0; r < ROWS; r++) {
                const int32_t position = int32_t(first_position + (row + r) / group - first_key);
                const int32_t oldest = a.window ? position - int32_t(a.window) + 1 : std::numeric_limits<int32_t>::min();
                for (int64_t p = 0; p < PANELS_AT_ONCE; p++) {
                    const int32_t base = int32_t((sub + p) * LANES);
                    const F16 score = part[r][p] * splat(a.scale);
                    const bool is_seen = base + LANES - 1 <= position && base >= oldest;
                    scores[r][sub + p] = is_seen ? score : ((ramp + base <= position) & (ramp + base >= oldest)) ? score : nothing;
                }
            }
        }
        for (int r = 0; r < ROWS; r++) {
            probable(row + r, scores[r], num_sub, probabilities + r * TILE_KEYS);
            ahead.fetch();
        }
        const int64_t panels = a.head_dim / LANES, num_groups = num_sub * LANES / Kind::STEP;
        int64_t panel = 0;
        for (; panel + PANELS_AT_ONCE <= panels; panel += PANELS_AT_ONCE) add_values<ROWS, PANELS_AT_ONCE>(row, panel, num_groups);
        for (; panel < panels; panel++) add_values<ROWS, 1>(row, panel, num_groups);
    }

    // `next` is where this thread goes on, its first keys are fetched at the end.
    void run(int64_t sequence, int64_t kv_head, int64_t first_query, int64_t end_query, const Place &next, int64_t next_keys) {
        const int64_t dim = a.head_dim, group = a.num_q_heads / a.num_kv_heads, num_rows = (end_query - first_query) * group;
        const int64_t first_position = a.kv_lengths[sequence] - a.lengths[sequence] + first_query;
        const int64_t head = kv_head;
        place = {&a, a.table + sequence * a.table_width, head};
        num_keys = first_position + end_query - first_query;
        first_seen = a.window ? std::max<int64_t>(0, first_position - a.window + 1) : 0;
        const auto row_at = [&](int64_t row) {
            return ((a.starts[sequence] + first_query + row / group) * a.num_q_heads + head * group + row % group) * dim;
        };
        std::memset(sums, 0, num_rows * dim * sizeof(float));
        for (int64_t row = 0; row < num_rows; row++) {
            std::memcpy(q + row * dim, static_cast<const Element *>(a.q) + row_at(row), dim * sizeof(Element));
            maxima[row] = -std::numeric_limits<float>::infinity();
            denominators[row] = 0;
        }
        for (int64_t first_key = first_seen / TILE_KEYS * TILE_KEYS; first_key < num_keys; first_key += TILE_KEYS) {
            const int64_t end = std::min<int64_t>(num_keys, first_key + TILE_KEYS);
            if (end < num_keys)
                ahead.aim(place, end, std::min<int64_t>(num_keys, end + TILE_KEYS));
            else
                ahead.aim(next, 0, std::min<int64_t>(next_keys, TILE_KEYS));
            pack(first_key, end);
            in_parts(num_rows, [&](auto rows, int64_t row) { attend<rows.value>(row, group, first_position, first_key, end); });
        }
        for (int64_t row = 0; row < num_rows; row++)
            for (int64_t d = 0; d < dim; d += LANES)
                Kind::write(static_cast<Element *>(a.out) + row_at(row) + d, load<F16>(sums + row * dim + d) / splat(denominators[row]));
    }
};

template <typename Kind> void attention(const Attention &a) {
    const auto parts = [&](int64_t sequence) { return (a.lengths[sequence] + TILE_QUERIES - 1) / TILE_QUERIES * a.num_kv_heads; };
    int64_t num_tasks = 0, longest = 0;
    for (int64_t sequence = 0; sequence < a.num_sequences; sequence++) {
        num_tasks += parts(sequence);
        longest = std::max(longest, a.lengths[sequence]);
    }
    const int64_t num_rows = std::min<int64_t>(longest, TILE_QUERIES) * (a.num_q_heads / a.num_kv_heads);
    // The heads of a sequence lie side by side: one thread's, where there are sequences enough for all.
    const int64_t at_once = a.num_sequences >= 4 * omp_get_max_threads() ? a.num_kv_heads : 1;
#pragma omp parallel for schedule(dynamic, at_once)
    for (int64_t task = 0; task < num_tasks; task++) {
        int64_t rest = task, sequence = 0;
        for (; rest >= parts(sequence); sequence++) rest -= parts(sequence);
        Worker<Kind> worker(a, scratch(Worker<Kind>::size(num_rows, a.head_dim)), num_rows);
        const int64_t first = rest / a.num_kv_heads * TILE_QUERIES, head = rest % a.num_kv_heads;
        const Place next{&a, a.table + sequence * a.table_width, head + 1};
        const bool is_followed = at_once > 1 && head + 1 < a.num_kv_heads && a.window == 0;
        worker.run(sequence, head, first, std::min(first + TILE_QUERIES, a.lengths[sequence]), next, is_followed ? a.kv_lengths[sequence] : 0);
    }
}

} // namespace
