// The ops of a decoder on a CPU: linears over prepacked weights, and attention in place on the blocks of the pool.
//
// Vectors are 16 floats wide whatever the processor has: gcc splits them where it must. bf16 products are summed in
// fp32, by the AVX512-BF16 instruction where there is one. Every result is computed in an order of its own that does
// not depend on what else is in the batch, so a row's values are the same in any batch. Plain C interface; no torch.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));

constexpr int LANES = 16;

inline F16 splat(float value) { return value - F16{}; }
inline U16 splat(uint32_t value) { return value - U16{}; }
template <typename V> inline V load(const void *at) {
    V value;
    std::memcpy(&value, at, sizeof(V));
    return value;
}
template <typename V> inline void store(void *at, V value) { std::memcpy(at, &value, sizeof(V)); }

inline float from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
inline F16 from_bf16(H16 bits) { return (F16)(__builtin_convertvector(bits, U16) << 16); }

// Rounds to nearest even, as torch does; NaN stays NaN.
inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7FC0;
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline H16 to_bf16(F16 value) {
    const U16 bits = (U16)value;
    const U16 rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const I16 is_nan = value != value;
    return __builtin_convertvector((U16)(is_nan & (I16)splat(0x7FC0u)) | (U16)(~is_nan & (I16)rounded), H16);
}

// How elements of a type are multiplied: `STEP` of them at a time lie behind one another in a lane.
struct Bf16 {
    typedef uint16_t Element;
    typedef uint32_t Group; // of STEP elements
    static constexpr int STEP = 2;
    static inline F16 dot(F16 sum, U16 left, Group right) { return dot(sum, left, splat(right)); }
    static inline F16 dot(F16 sum, U16 left, U16 right) {
#if defined(__AVX512BF16__)
        return (F16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
#else
        sum += (F16)(left << 16) * (F16)(right << 16);
        return sum + (F16)(left & 0xFFFF0000u) * (F16)(right & 0xFFFF0000u);
#endif
    }
    static inline F16 read(const Element *at) { return from_bf16(load<H16>(at)); }
    static inline void write(Element *at, F16 value) { store(at, to_bf16(value)); }
    static inline float read_one(Element value) { return from_bf16(value); }
    static inline Element write_one(float value) { return to_bf16(value); }
};

struct Fp32 {
    typedef float Element;
    typedef float Group;
    static constexpr int STEP = 1;
    static inline F16 dot(F16 sum, U16 left, Group right) { return sum + (F16)left * splat(right); }
    static inline F16 dot(F16 sum, U16 left, U16 right) { return sum + (F16)left * (F16)right; }
    static inline F16 read(const Element *at) { return load<F16>(at); }
    static inline void write(Element *at, F16 value) { store(at, value); }
    static inline float read_one(Element value) { return value; }
    static inline Element write_one(float value) { return value; }
};

// ---- linear -----------------------------------------------------------------------------------------------------
//
// Packed weights: panels of 16 outputs, `[ceil(N / 16), K / STEP, 16, STEP]`, zeros behind the last output.

constexpr int PANELS = 4; // at once: as many streams as a prefetcher follows, 64 outputs of a row side by side

// `ROWS` rows against `COUNT` panels, over all of K.
template <typename Kind, int ROWS, int COUNT>
inline void tile(const typename Kind::Group *x, int64_t x_stride, const U16 *panel, int64_t num_groups, F16 (&sums)[ROWS][COUNT]) {
    for (int row = 0; row < ROWS; row++)
        for (int part = 0; part < COUNT; part++) sums[row][part] = F16{};
    for (int64_t group = 0; group < num_groups; group++) {
        U16 weights[COUNT];
        for (int part = 0; part < COUNT; part++) weights[part] = panel[part * num_groups + group];
        for (int row = 0; row < ROWS; row++)
            for (int part = 0; part < COUNT; part++)
                sums[row][part] = Kind::dot(sums[row][part], weights[part], x[row * x_stride + group]);
    }
}

template <typename Kind, typename Out, int ROWS, int COUNT>
inline void rows_of(const typename Kind::Group *x, const U16 *panel, const float *bias, typename Out::Element *y, int64_t num_groups,
                    int64_t num_outputs, int64_t first) {
    F16 sums[ROWS][COUNT];
    tile<Kind, ROWS, COUNT>(x, num_groups, panel, num_groups, sums);
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
    int64_t row = 0;
    for (; row + 6 <= num_rows; row += 6)
        rows_of<Kind, Out, 6, COUNT>(x + row * num_groups, panel, bias, y + row * num_outputs, num_groups, num_outputs, first);
    x += row * num_groups;
    y += row * num_outputs;
    switch (num_rows - row) {
    case 1: rows_of<Kind, Out, 1, COUNT>(x, panel, bias, y, num_groups, num_outputs, first); break;
    case 2: rows_of<Kind, Out, 2, COUNT>(x, panel, bias, y, num_groups, num_outputs, first); break;
    case 3: rows_of<Kind, Out, 3, COUNT>(x, panel, bias, y, num_groups, num_outputs, first); break;
    case 4: rows_of<Kind, Out, 4, COUNT>(x, panel, bias, y, num_groups, num_outputs, first); break;
    case 5: rows_of<Kind, Out, 5, COUNT>(x, panel, bias, y, num_groups, num_outputs, first); break;
    }
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


// ---- attention --------------------------------------------------------------------------------------------------
//
// Flash attention on blocks: keys and values of a tile are packed as weights are, and both products are tiles of a
// linear. The G query heads of a KV head are rows like others, so K and V are read once for them.

constexpr int TILE_KEYS = 256;  // packed at once; tiles begin at multiples, so a row's sums do not depend on its neighbours
constexpr int TILE_QUERIES = 64; // positions of a task

inline F16 exp(F16 x) { // 2^n 2^f, f in [-0.5, 0.5], a polynomial of degree 6: relative error 1e-7; 0 below -87
    const I16 is_small = x < splat(-87.0f), is_large = x > splat(88.0f), is_usual = ~(is_small | is_large) & (x == x);
    const F16 t = (F16)((is_usual & (I16)x) | (is_large & (I16)splat(88.0f))) * splat(1.44269504f);
    const F16 n = (t + splat(12582912.0f)) - splat(12582912.0f);
    const F16 f = t - n;
    F16 p = splat(1.5353362e-4f);
    p = p * f + splat(1.3398874e-3f);
    p = p * f + splat(9.6184373e-3f);
    p = p * f + splat(5.5503324e-2f);
    p = p * f + splat(2.4022648e-1f);
    p = p * f + splat(6.9314718e-1f);
    p = p * f + splat(1.0f);
    const I16 result = (I16)p + (__builtin_convertvector(n, I16) << 23), is_nan = x != x;
    return (F16)((~(is_small | is_nan) & result) | (is_nan & (I16)x));
}

inline float max_of(F16 x) {
    float most = x[0];
    for (int lane = 1; lane < LANES; lane++) most = std::max(most, x[lane]);
    return most;
}
inline float sum_of(F16 x) {
    x += __builtin_shuffle(x, I16{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    x += __builtin_shuffle(x, I16{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    x += __builtin_shuffle(x, I16{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    return x[0] + x[1];
}

// Columns of 16 rows of 32-bit pieces become vectors: `[16, n]` at `stride` -> `[n, 16]`.
inline void transpose(const uint32_t *from, int64_t stride, U16 *to, int64_t count) {
    int64_t column = 0;
    for (; column + LANES <= count; column += LANES) {
        U16 rows[LANES], next[LANES];
        for (int row = 0; row < LANES; row++) rows[row] = load<U16>(from + row * stride + column);
        for (int row = 0; row < LANES; row += 2) {
            next[row] = __builtin_shuffle(rows[row], rows[row + 1], U16{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30});
            next[row + 1] = __builtin_shuffle(rows[row], rows[row + 1], U16{1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31});
        }
        for (int row = 0; row < LANES; row += 4)
            for (int k = 0; k < 2; k++) {
                rows[row + k] = __builtin_shuffle(next[row + k], next[row + k + 2], U16{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29});
                rows[row + k + 2] = __builtin_shuffle(next[row + k], next[row + k + 2], U16{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31});
            }
        for (int row = 0; row < LANES; row += 8)
            for (int k = 0; k < 4; k++) {
                next[row + k] = __builtin_shuffle(rows[row + k], rows[row + k + 4], U16{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27});
                next[row + k + 4] = __builtin_shuffle(rows[row + k], rows[row + k + 4], U16{4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31});
            }
        for (int k = 0; k < 8; k++) {
            to[column + k] = __builtin_shuffle(next[k], next[k + 8], U16{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
            to[column + k + 8] = __builtin_shuffle(next[k], next[k + 8], U16{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
        }
    }
    for (; column < count; column++)
        for (int row = 0; row < LANES; row++) to[column][row] = from[row * stride + column];
}

struct Attention {
    const void *q;   // [T, Hq, D]
    const void *kv;  // the pool, at the layer
    void *out;       // [T, Hq, D]
    const int64_t *table, *starts, *lengths, *kv_lengths; // [S, M], and [S] each
    int64_t num_sequences, table_width, block_size, num_q_heads, num_kv_heads, head_dim, window;
    int64_t block_stride, value_offset, head_stride; // in elements
    float scale;
};

template <typename Kind> struct Worker {
    typedef typename Kind::Element Element;
    const Attention &a;
    U16 *keys;    // [TILE_KEYS / 16, D / STEP] of 16 lanes
    U16 *values;  // [D / 16, TILE_KEYS / STEP] of 16 lanes
    Element *probabilities; // [rows, TILE_KEYS]
    float *sums;  // [rows, D], then a maximum and a denominator for each
    Element *q;   // [rows, D]

    void pack(const int64_t *table, int64_t head, int64_t first_key, int64_t first_seen, int64_t end) {
        const int64_t dim = a.head_dim, groups = dim / Kind::STEP;
        const int64_t count = (end - first_key + 4 * LANES - 1) / (4 * LANES) * (4 * LANES); // whole calls of `tile`
        const auto *pool = static_cast<const Element *>(a.kv);
        for (int64_t at = 0; at < count; at += LANES) {
            const int64_t key = first_key + at;
            if (key >= end || key + LANES <= first_seen) {
                std::memset(keys + at / LANES * groups, 0, groups * sizeof(U16));
                for (int64_t panel = 0; panel < dim / LANES; panel++)
                    std::memset(values + (panel * TILE_KEYS + at) / Kind::STEP, 0, LANES / Kind::STEP * sizeof(U16));
                continue;
            }
            const Element *k = pool + table[key / a.block_size] * a.block_stride + head * a.head_stride + key % a.block_size * dim;
            transpose(reinterpret_cast<const uint32_t *>(k), groups, keys + at / LANES * groups, groups);
            const Element *v = k + a.value_offset;
            for (int64_t panel = 0; panel < dim / LANES; panel++) {
                U16 *to = values + (panel * TILE_KEYS + at) / Kind::STEP;
                for (int64_t row = 0; row < LANES; row += Kind::STEP, to++) {
                    U16 packed{};
                    for (int64_t part = 0; part < Kind::STEP; part++) {
                        // A slot without a token may hold anything, NaN too: it must not meet a zero probability.
                        if (key + row + part >= end || key + row + part < first_seen) continue;
                        const Element *from = v + (row + part) * dim + panel * LANES;
                        if constexpr (Kind::STEP == 2)
                            packed |= __builtin_convertvector(load<H16>(from), U16) << int(16 * part);
                        else
                            packed = load<U16>(from);
                    }
                    *to = packed;
                }
            }
        }
    }

    // Turn a row's scores into probabilities beside what it has seen so far, which is scaled down where it must be.
    template <typename To>
    inline void probable(int64_t row, const F16 *scores, int64_t num_sub, To *probability, float *maxima, float *denominators) {
        F16 most = splat(-std::numeric_limits<float>::infinity());
        for (int64_t sub = 0; sub < num_sub; sub++) {
            const I16 more = scores[sub] > most;
            most = (F16)((more & (I16)scores[sub]) | (~more & (I16)most));
        }
        const float before = maxima[row], maximum = std::max(before, max_of(most));
        if (maximum == -std::numeric_limits<float>::infinity()) { // it sees nothing here
            std::memset(probability, 0, num_sub * LANES * sizeof(To));
            return;
        }
        F16 total{};
        for (int64_t sub = 0; sub < num_sub; sub++) {
            const F16 value = exp(scores[sub] - splat(maximum));
            total += value;
            if constexpr (sizeof(To) == 2)
                store(probability + sub * LANES, to_bf16(value));
            else
                store(probability + sub * LANES, value);
        }
        if (maximum != before) {
            const float shrink = exp(splat(before - maximum))[0];
            float *sum = sums + row * a.head_dim;
            denominators[row] *= shrink;
            for (int64_t d = 0; d < a.head_dim; d += LANES) store(sum + d, load<F16>(sum + d) * splat(shrink));
            maxima[row] = maximum;
        }
        denominators[row] += sum_of(total);
    }

    // One position's `ROWS` heads over a tile's keys, read where they lie: packing pays only for many rows.
    template <int ROWS>
    void attend_one(const int64_t *table, int64_t head, int64_t first_key, int64_t first_seen, int64_t end, float *maxima, float *denominators) {
        const int64_t dim = a.head_dim, begin = std::max(first_key, first_seen);
        const int64_t per_vector = LANES * Kind::STEP, num_sub = (end - first_key + LANES - 1) / LANES;
        const auto *pool = static_cast<const Element *>(a.kv);
        const auto place = [&](int64_t key) {
            return pool + table[key / a.block_size] * a.block_stride + head * a.head_stride + key % a.block_size * dim;
        };
        F16 scores[ROWS][TILE_KEYS / LANES];
        for (int r = 0; r < ROWS; r++)
            for (int64_t sub = 0; sub < num_sub; sub++) scores[r][sub] = splat(-std::numeric_limits<float>::infinity());
        for (int64_t key = begin; key < end; key++) {
            const Element *k = place(key);
            F16 part[ROWS];
            for (int r = 0; r < ROWS; r++) part[r] = F16{};
            for (int64_t d = 0; d < dim; d += per_vector) {
                const U16 piece = load<U16>(k + d);
                for (int r = 0; r < ROWS; r++) part[r] = Kind::dot(part[r], piece, load<U16>(q + r * dim + d));
            }
            for (int r = 0; r < ROWS; r++)
                reinterpret_cast<float *>(scores[r])[key - first_key] = sum_of(part[r]) * a.scale;
        }
        float weights[ROWS][TILE_KEYS];
        for (int r = 0; r < ROWS; r++) probable(r, scores[r], num_sub, weights[r], maxima, denominators);
        for (int64_t d = 0; d < dim; d += LANES) {
            F16 part[ROWS];
            for (int r = 0; r < ROWS; r++) part[r] = load<F16>(sums + r * dim + d);
            for (int64_t key = begin; key < end; key++) {
                const F16 piece = Kind::read(place(key) + a.value_offset + d);
                for (int r = 0; r < ROWS; r++) part[r] += piece * splat(weights[r][key - first_key]);
            }
            for (int r = 0; r < ROWS; r++) store(sums + r * dim + d, part[r]);
        }
    }

    // `ROWS` rows from `row` on over the packed tile; row r stands at position first_position + r / group.
    template <int ROWS>
    void attend(int64_t row, int64_t group, int64_t first_position, int64_t first_key, int64_t end, float *maxima, float *denominators) {
        const int64_t dim = a.head_dim, groups = dim / Kind::STEP, num_sub = (end - first_key + 4 * LANES - 1) / (4 * LANES) * 4;
        const auto *queries = reinterpret_cast<const typename Kind::Group *>(q + row * dim);
        F16 scores[ROWS][TILE_KEYS / LANES];
        const I16 ramp = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const F16 nothing = splat(-std::numeric_limits<float>::infinity());
        for (int64_t sub = 0; sub < num_sub; sub += 4) {
            F16 part[ROWS][4];
            tile<Kind, ROWS, 4>(queries, groups, keys + sub * groups, groups, part);
            for (int r = 0; r < ROWS; r++) {
                const int32_t position = int32_t(first_position + (row + r) / group - first_key);
                const int32_t oldest = a.window ? position - int32_t(a.window) + 1 : std::numeric_limits<int32_t>::min();
                for (int64_t p = 0; p < 4; p++) {
                    const int32_t base = int32_t((sub + p) * LANES);
                    F16 score = part[r][p] * splat(a.scale);
                    if (base + LANES - 1 > position || base < oldest) {
                        const I16 place = ramp + base;
                        const I16 seen = (place <= position) & (place >= oldest);
                        score = (F16)((seen & (I16)score) | (~seen & (I16)nothing));
                    }
                    scores[r][sub + p] = score;
                }
            }
        }
        float *sum = sums + row * dim;
        for (int r = 0; r < ROWS; r++) probable(row + r, scores[r], num_sub, probabilities + r * TILE_KEYS, maxima, denominators);
        const auto *weights = reinterpret_cast<const typename Kind::Group *>(probabilities);
        const int64_t used = num_sub * LANES / Kind::STEP;
        for (int64_t panel = 0; panel < dim / LANES; panel++) {
            F16 part[ROWS][1];
            tile_strided<ROWS>(weights, values + panel * TILE_KEYS / Kind::STEP, used, part);
            for (int r = 0; r < ROWS; r++) {
                float *at = sum + r * dim + panel * LANES;
                store(at, load<F16>(at) + part[r][0]);
            }
        }
    }

    template <int ROWS> static inline void tile_strided(const typename Kind::Group *x, const U16 *panel, int64_t used, F16 (&part)[ROWS][1]) {
        tile<Kind, ROWS, 1>(x, TILE_KEYS / Kind::STEP, panel, used, part);
    }

    void run(int64_t sequence, int64_t head, int64_t first_query, int64_t end_query) {
        const int64_t dim = a.head_dim, group = a.num_q_heads / a.num_kv_heads, num_rows = (end_query - first_query) * group;
        const int64_t *table = a.table + sequence * a.table_width;
        const int64_t first_position = a.kv_lengths[sequence] - a.lengths[sequence] + first_query;
        const int64_t end = first_position + end_query - first_query;
        const int64_t first_seen = a.window ? std::max<int64_t>(0, first_position - a.window + 1) : 0;
        const bool is_direct = end_query - first_query == 1 && num_rows <= 8 && dim % (LANES * Kind::STEP) == 0;
        float *maxima = sums + num_rows * dim, *denominators = maxima + num_rows;
        std::memset(sums, 0, num_rows * dim * sizeof(float));
        const auto *from = static_cast<const Element *>(a.q);
        auto *to = static_cast<Element *>(a.out);
        const auto place = [&](int64_t row) {
            return ((a.starts[sequence] + first_query + row / group) * a.num_q_heads + head * group + row % group) * dim;
        };
        for (int64_t row = 0; row < num_rows; row++) {
            std::memcpy(q + row * dim, from + place(row), dim * sizeof(Element));
            maxima[row] = -std::numeric_limits<float>::infinity();
            denominators[row] = 0;
        }
        for (int64_t first_key = first_seen / TILE_KEYS * TILE_KEYS; first_key < end; first_key += TILE_KEYS) {
            const int64_t end_key = std::min<int64_t>(end, first_key + TILE_KEYS);
            if (is_direct) {
                switch (num_rows) {
                case 1: attend_one<1>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                case 2: attend_one<2>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                case 3: attend_one<3>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                case 4: attend_one<4>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                case 5: attend_one<5>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                case 6: attend_one<6>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                case 7: attend_one<7>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                default: attend_one<8>(table, head, first_key, first_seen, end_key, maxima, denominators); break;
                }
                continue;
            }
            pack(table, head, first_key, first_seen, end_key);
            int64_t row = 0;
            for (; row + 6 <= num_rows; row += 6) attend<6>(row, group, first_position, first_key, end_key, maxima, denominators);
            switch (num_rows - row) {
            case 1: attend<1>(row, group, first_position, first_key, end_key, maxima, denominators); break;
            case 2: attend<2>(row, group, first_position, first_key, end_key, maxima, denominators); break;
            case 3: attend<3>(row, group, first_position, first_key, end_key, maxima, denominators); break;
            case 4: attend<4>(row, group, first_position, first_key, end_key, maxima, denominators); break;
            case 5: attend<5>(row, group, first_position, first_key, end_key, maxima, denominators); break;
            }
        }
        for (int64_t row = 0; row < num_rows; row++)
            for (int64_t d = 0; d < dim; d += LANES)
                Kind::write(to + place(row) + d, load<F16>(sums + row * dim + d) / splat(denominators[row]));
    }
};

// Memory of a thread, kept from call to call: fresh pages would cost more than what is computed in them.
inline uint8_t *scratch(size_t size) {
    struct Held {
        uint8_t *memory = nullptr;
        size_t size = 0;
        ~Held() { std::free(memory); }
    };
    static thread_local Held held;
    if (held.size < size) {
        std::free(held.memory);
        held.memory = static_cast<uint8_t *>(std::aligned_alloc(64, (size + 63) / 64 * 64));
        held.size = size;
    }
    return held.memory;
}

template <typename Kind> void attention(const Attention &a) {
    typedef typename Kind::Element Element;
    const int64_t group = a.num_q_heads / a.num_kv_heads, dim = a.head_dim;
    int64_t num_tasks = 0;
    for (int64_t sequence = 0; sequence < a.num_sequences; sequence++)
        num_tasks += (a.lengths[sequence] + TILE_QUERIES - 1) / TILE_QUERIES * a.num_kv_heads;
    const int64_t rows = TILE_QUERIES * group;
    const size_t packed = size_t(TILE_KEYS) * dim * sizeof(Element);
    const size_t size = 2 * packed + 6 * TILE_KEYS * sizeof(Element) + rows * (dim + 2) * sizeof(float) + rows * dim * sizeof(Element) + 256;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t task = 0; task < num_tasks; task++) {
        int64_t rest = task, sequence = 0;
        for (;; sequence++) {
            const int64_t own = (a.lengths[sequence] + TILE_QUERIES - 1) / TILE_QUERIES * a.num_kv_heads;
            if (rest < own) break;
            rest -= own;
        }
        uint8_t *memory = scratch(size);
        Worker<Kind> worker{a, nullptr, nullptr, nullptr, nullptr, nullptr};
        worker.keys = reinterpret_cast<U16 *>(memory);
        worker.values = reinterpret_cast<U16 *>(memory += packed);
        worker.probabilities = reinterpret_cast<Element *>(memory += packed);
        worker.sums = reinterpret_cast<float *>(memory += 6 * TILE_KEYS * sizeof(Element));
        worker.q = reinterpret_cast<Element *>(memory += (rows * (dim + 2) * sizeof(float) + 63) / 64 * 64);
        const int64_t first = rest / a.num_kv_heads * TILE_QUERIES;
        worker.run(sequence, rest % a.num_kv_heads, first, std::min(first + TILE_QUERIES, a.lengths[sequence]));
    }
}


// ---- what is done to rows ---------------------------------------------------------------------------------------
//
// Rounded where torch rounds: a sum, a norm and its product with the weight, a silu and its product with `up`.

template <typename Kind> inline F16 rounded(F16 value) {
    typename Kind::Element kept[LANES];
    Kind::write(kept, value);
    return Kind::read(kept);
}

template <typename Kind>
void rms_norm(const void *x_, const void *residual_, const void *weight_, void *normed_, void *total_, int64_t num_rows, int64_t size,
              int64_t stride, float eps) {
    typedef typename Kind::Element Element;
    const auto *weight = static_cast<const Element *>(weight_);
#pragma omp parallel for schedule(static) if (num_rows > 64)
    for (int64_t row = 0; row < num_rows; row++) {
        const Element *x = static_cast<const Element *>(x_) + row * stride;
        Element *normed = static_cast<Element *>(normed_) + row * size;
        F16 squares{};
        if (residual_) {
            const Element *residual = static_cast<const Element *>(residual_) + row * size;
            Element *total = static_cast<Element *>(total_) + row * size;
            for (int64_t at = 0; at < size; at += LANES) {
                Kind::write(total + at, Kind::read(x + at) + Kind::read(residual + at));
                const F16 value = Kind::read(total + at);
                squares += value * value;
            }
            x = total;
        } else {
            for (int64_t at = 0; at < size; at += LANES) squares += Kind::read(x + at) * Kind::read(x + at);
        }
        const float factor = 1.0f / std::sqrt(sum_of(squares) / float(size) + eps);
        for (int64_t at = 0; at < size; at += LANES)
            Kind::write(normed + at, rounded<Kind>(Kind::read(x + at) * splat(factor)) * Kind::read(weight + at));
    }
}

template <typename Kind> void silu_and_mul(const void *gate_up_, void *out_, int64_t num_rows, int64_t size) {
    typedef typename Kind::Element Element;
#pragma omp parallel for schedule(static) if (num_rows > 16)
    for (int64_t row = 0; row < num_rows; row++) {
        const Element *gate = static_cast<const Element *>(gate_up_) + row * 2 * size, *up = gate + size;
        Element *out = static_cast<Element *>(out_) + row * size;
        for (int64_t at = 0; at < size; at += LANES) {
            const F16 value = Kind::read(gate + at);
            const F16 silu = value / (splat(1.0f) + exp(-value));
            Kind::write(out + at, rounded<Kind>(silu) * Kind::read(up + at));
        }
    }
}

struct Append {
    const void *q, *k, *v;   // [T, H*, D], rows `q_stride`, `k_stride`, `v_stride` elements apart
    void *rotated, *kv;      // [T, Hq, D]; the pool, at the layer
    const float *cos, *sin;  // [T, D / 2]
    const int64_t *slots;    // [T]
    int64_t num_rows, num_q_heads, num_kv_heads, head_dim, block_size, q_stride, k_stride, v_stride;
    int64_t block_stride, value_offset, head_stride; // in elements
};

template <typename Kind> inline void rotate(const typename Kind::Element *from, typename Kind::Element *to, const float *cos, const float *sin, int64_t half) {
    int64_t d = 0;
    for (; d + LANES <= half; d += LANES) {
        const F16 first = Kind::read(from + d), second = Kind::read(from + half + d), c = load<F16>(cos + d), s = load<F16>(sin + d);
        Kind::write(to + d, first * c - second * s);
        Kind::write(to + half + d, second * c + first * s);
    }
    for (; d < half; d++) {
        const float first = Kind::read_one(from[d]), second = Kind::read_one(from[half + d]);
        to[d] = Kind::write_one(first * cos[d] - second * sin[d]);
        to[half + d] = Kind::write_one(second * cos[d] + first * sin[d]);
    }
}

template <typename Kind> void append_kv(const Append &a) {
    typedef typename Kind::Element Element;
    const int64_t dim = a.head_dim, half = dim / 2;
#pragma omp parallel for schedule(static) if (a.num_rows > 64)
    for (int64_t row = 0; row < a.num_rows; row++) {
        const float *cos = a.cos + row * half, *sin = a.sin + row * half;
        const Element *q = static_cast<const Element *>(a.q) + row * a.q_stride;
        const Element *k = static_cast<const Element *>(a.k) + row * a.k_stride;
        const Element *v = static_cast<const Element *>(a.v) + row * a.v_stride;
        Element *to = static_cast<Element *>(a.rotated) + row * a.num_q_heads * dim;
        Element *slot = static_cast<Element *>(a.kv) + a.slots[row] / a.block_size * a.block_stride + a.slots[row] % a.block_size * dim;
        for (int64_t head = 0; head < a.num_q_heads; head++) rotate<Kind>(q + head * dim, to + head * dim, cos, sin, half);
        for (int64_t head = 0; head < a.num_kv_heads; head++, slot += a.head_stride) {
            rotate<Kind>(k + head * dim, slot, cos, sin, half);
            std::memcpy(slot + a.value_offset, v + head * dim, dim * sizeof(Element));
        }
    }
}

} // namespace

extern "C" {

void linear_bf16(const void *x, const void *packed, const float *bias, void *y, int64_t rows, int64_t inputs, int64_t outputs) {
    linear<Bf16, Bf16>(x, packed, bias, y, rows, inputs, outputs);
}
void linear_bf16_fp32(const void *x, const void *packed, const float *bias, void *y, int64_t rows, int64_t inputs, int64_t outputs) {
    linear<Bf16, Fp32>(x, packed, bias, y, rows, inputs, outputs);
}
void linear_fp32(const void *x, const void *packed, const float *bias, void *y, int64_t rows, int64_t inputs, int64_t outputs) {
    linear<Fp32, Fp32>(x, packed, bias, y, rows, inputs, outputs);
}
void attention_bf16(const Attention *a) { attention<Bf16>(*a); }
void attention_fp32(const Attention *a) { attention<Fp32>(*a); }
void rms_norm_bf16(const void *x, const void *residual, const void *weight, void *normed, void *total, int64_t rows, int64_t size, int64_t stride, float eps) {
    rms_norm<Bf16>(x, residual, weight, normed, total, rows, size, stride, eps);
}
void rms_norm_fp32(const void *x, const void *residual, const void *weight, void *normed, void *total, int64_t rows, int64_t size, int64_t stride, float eps) {
    rms_norm<Fp32>(x, residual, weight, normed, total, rows, size, stride, eps);
}
void silu_and_mul_bf16(const void *gate_up, void *out, int64_t rows, int64_t size) { silu_and_mul<Bf16>(gate_up, out, rows, size); }
void silu_and_mul_fp32(const void *gate_up, void *out, int64_t rows, int64_t size) { silu_and_mul<Fp32>(gate_up, out, rows, size); }
void append_kv_bf16(const Append *a) { append_kv<Bf16>(*a); }
void append_kv_fp32(const Append *a) { append_kv<Fp32>(*a); }
}
