// Products in 8 bits, as `coded_weight.py` defines them: codes of rows times codes of weights, summed in integers, and each
// group's sum times both scales.
//
// Integers have no order of summing, and groups are taken in theirs: a row is the same in any batch. Packed weights are as
// in packed.h with a STEP of 4, each code 128 larger, since the instruction (VNNI) takes one of its factors unsigned; their
// scales are `[ceil(N / 32), ceil(K / GROUP_INPUTS), 32]`.
#pragma once
#include "packed.h"
#include "products.h"
#include "scratch.h"
#include "stored.h"
#include "team.h"

namespace {

constexpr int CODED_STEP = 4, GROUP_INPUTS = 32, GROUP_STEPS = GROUP_INPUTS / CODED_STEP;
constexpr int CODED_ROWS = std::clamp((REGISTERS - 4) / PANELS, 1, 10); // multiplied at once: their sums in integers are in registers
constexpr int FEW_ROWS = 4;                // each thread codes them for itself rather than wait for others
constexpr float LEAST_LARGEST = 0x1p-100f; // what the largest number of a group is taken to be at least

// What the integers of a group are to be taken as: less 128 times the sum of the row's codes, and times its scale.
struct GroupScale {
    float scale;
    int32_t offset;
};

inline int64_t num_coded_groups(int64_t num_inputs) { return (num_inputs + GROUP_INPUTS - 1) / GROUP_INPUTS; }

// Bytes of a row: the codes of whole groups, zeros behind the last, and a scale for each. From a cache line's beginning on.
inline int64_t coded_row_size(int64_t num_inputs) { return (num_coded_groups(num_inputs) * int64_t(GROUP_INPUTS + sizeof(GroupScale)) + 63) / 64 * 64; }

template <typename Kind> inline void code_row(const typename Kind::Element *x, int64_t num_inputs, uint8_t *to) {
    auto *codes = reinterpret_cast<int8_t *>(to);
    auto *scales = reinterpret_cast<GroupScale *>(to + num_coded_groups(num_inputs) * GROUP_INPUTS);
    for (int64_t first = 0; first < num_inputs; first += GROUP_INPUTS, codes += GROUP_INPUTS, scales++) {
        const int64_t count = std::min<int64_t>(GROUP_INPUTS, num_inputs - first);
        float largest = largest_of<Kind>(x + first, count);
        if (largest < LEAST_LARGEST) largest = LEAST_LARGEST; // a NaN stays one
        const Floats inverse = splat(127.0f / largest);
        Words sums{}; // of what is no number nobody asks for them, and they wrap
        for (int64_t at = 0; at < GROUP_INPUTS; at += LANES) {
            const Ints each = nearest(at < count ? Kind::read(x + first + at) * inverse : Floats{});
            store(codes + at, narrowed(each));
            sums += (Words)each;
        }
        const uint32_t sum = reduced(sums, [](Words left, Words right) { return left + right; })[0];
        *scales = {largest / 127.0f, int32_t(-128u * sum)};
    }
}

// Of a panel's outputs, adds to their sums the products of four inputs' codes: unsigned those of weights, `codes` those of a row.
inline Ints dot_codes(Ints sum, Words weights, int32_t codes) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(codes));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(codes));
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
    // The first and third, and the second and fourth, as pairs of 16 bits: in 8 bits, sums of pairs would be cut off.
    const auto pair = [](int32_t first, int32_t second) { return splat((int8_t(first) & 0xFFFFu) | uint32_t(int8_t(second)) << 16); };
    const auto dot_pairs = [](Words left, Words right) {
#if defined(__AVX512BW__)
        return (Ints)_mm512_madd_epi16((__m512i)left, (__m512i)right);
#else
        return (Ints)_mm256_madd_epi16((__m256i)left, (__m256i)right);
#endif
    };
    return sum + dot_pairs(weights & 0x00FF00FFu, pair(codes, codes >> 16)) + dot_pairs(weights >> 8 & 0x00FF00FFu, pair(codes >> 8, codes >> 24));
#else
    for (int byte = 0; byte < 4; byte++) sum += (Ints)(weights >> 8 * byte & 0xFFu) * (int8_t(codes >> 8 * byte) - Ints{});
    return sum;
#endif
}

// `ROWS` rows, `row_size` bytes apart, times the panels of a stripe; `meanwhile` is done for each four inputs.
template <int ROWS, typename Meanwhile>
inline void coded_tile(const uint8_t *x, int64_t row_size, const Words *weights, const uint16_t *scales, int64_t num_inputs, Floats (&sums)[ROWS][PANELS], Meanwhile &&meanwhile) {
    const int64_t num_groups = num_coded_groups(num_inputs);
    for (int row = 0; row < ROWS; row++)
        for (int panel = 0; panel < PANELS; panel++) sums[row][panel] = Floats{};
    for (int64_t group = 0; group < num_groups; group++) {
        const uint8_t *codes = x + group * GROUP_INPUTS;
        const auto scale = [&](int row) { return load<GroupScale>(x + row * row_size + num_groups * GROUP_INPUTS + group * sizeof(GroupScale)); };
        Ints whole[ROWS][PANELS];
        for (int row = 0; row < ROWS; row++)
            for (int panel = 0; panel < PANELS; panel++) whole[row][panel] = scale(row).offset - Ints{};
        const int64_t steps = std::min<int64_t>(GROUP_STEPS, num_inputs / CODED_STEP - group * GROUP_STEPS);
        for (int64_t step = 0; step < steps; step++, weights += PANELS) {
            meanwhile();
            for (int row = 0; row < ROWS; row++) {
                const int32_t four = load<int32_t>(codes + row * row_size + step * CODED_STEP);
                for (int panel = 0; panel < PANELS; panel++) whole[row][panel] = dot_codes(whole[row][panel], weights[panel], four);
            }
        }
        for (int panel = 0; panel < PANELS; panel++, scales += LANES) {
            const Floats own = from_bf16(load<Halves>(scales));
            for (int row = 0; row < ROWS; row++) sums[row][panel] += __builtin_convertvector(whole[row][panel], Floats) * (own * splat(scale(row).scale));
        }
    }
}

// Calls `finish(row, stripe, sums)` as `product` does. Rows' codes go to `room`, which all threads have in common, of
// `coded_row_size` for each, unless each thread codes rows for itself.
template <typename Kind, typename Finish>
void coded_product(const void *x_, const Matrix &weight, void *room, int64_t num_rows, int64_t num_inputs, int64_t num_outputs, const Team &team, const Finish &finish) {
    const auto *x = static_cast<const typename Kind::Element *>(x_);
    if (num_rows == 0) return; // for all threads: none waits
    const int64_t row_size = coded_row_size(num_inputs), stripe_size = num_inputs / CODED_STEP * PANELS;
    const bool is_own = team.parts == 1 || num_rows <= FEW_ROWS;
    uint8_t *coded = is_own ? scratch(num_rows * row_size) : static_cast<uint8_t *>(room);
    const Team coders = is_own ? Team{} : team;
    for (int64_t row = coders.first(num_rows); row < coders.end(num_rows); row++) code_row<Kind>(x + row * num_inputs, num_inputs, coded + row * row_size);
    coders.meet();
    const int64_t num_stripes = (num_outputs + STRIPE - 1) / STRIPE;
    for (int64_t stripe = team.first(num_stripes); stripe < team.end(num_stripes); stripe++) {
        const Words *at = static_cast<const Words *>(weight.packed) + stripe * stripe_size;
        const uint16_t *scales = weight.scales + stripe * num_coded_groups(num_inputs) * STRIPE;
        int64_t part = 0;
        in_parts<CODED_ROWS>(num_rows, [&](auto rows, int64_t row) {
            Floats sums[rows.value][PANELS];
            coded_tile<rows.value>(coded + row * row_size, row_size, at, scales, num_inputs, sums, StripesAhead(at, stripe_size, part++, num_parts_of(num_rows, CODED_ROWS)));
            for (int r = 0; r < rows.value; r++) finish(row + r, stripe, sums[r]);
        });
    }
    team.meet();
}

} // namespace
