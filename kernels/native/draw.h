// A token for each row of logits, as `kernels/sampling.py` defines it: the largest of logit / temperature + noise over
// what top-k, top-p, min-p and typical-p leave. A team divides the rows.
//
// Nothing is sorted but what lies about a bound: a first pass finds by a histogram of the distances from the largest
// logit, for typical-p of those from the expected surprise, in which bucket the bound is; what is in the buckets before stays
// without being looked at again, and what is in those behind goes. And of most
// tokens the noise, two logarithms, is not needed: g = -ln(-ln u) <= -ln(1 - u), which the leading bits of 1 - u bound.
#pragma once
#include "kinds.h"
#include "team.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

constexpr int WIDE = LANES / 2; // doubles of a register
typedef double Doubles __attribute__((vector_size(8 * WIDE)));
typedef int64_t Longs __attribute__((vector_size(8 * WIDE)));
typedef uint64_t LongWords __attribute__((vector_size(8 * WIDE)));
typedef float FewFloats __attribute__((vector_size(4 * WIDE)));
typedef int32_t FewInts __attribute__((vector_size(4 * WIDE)));

// A double from 2^52 to below 2^53 has its integer in its last bits. To and from them by this way, for not every processor with
// doubles in vectors converts these.
constexpr double TWO_TO_52 = 0x1p52;
inline Doubles to_doubles(LongWords below) { return (Doubles)(below | 0x4330000000000000ull) - TWO_TO_52; } // each below 2^52

constexpr int NUM_BUCKETS = 2048, BUCKETS_PER_UNIT = 64;
constexpr int64_t FEW = 2048; // are sorted at once
constexpr double NO_VALUE = -std::numeric_limits<double>::infinity();

struct Draws { // columns of `count` rows
    const void *logits; // [., size]
    int64_t size, count;
    const int64_t *rows; // which of the logits
    const double *temperature, *top_p, *log_min_p, *typical_p; // 1, -inf and 1 where they are off
    const int64_t *top_k, *keys; // 0 where it is off; the hash of seed, sequence and position
    int64_t *tokens;
};

// What is left of a row, in the order of the ids. Vectors are kept from call to call.
struct Left {
    std::vector<float> values;
    std::vector<int32_t> ids;
    std::vector<double> weights, distances;
    std::vector<int32_t> buckets, order;
    int64_t count = 0;
    float best = 0;
    double reached = 0; // mass, by those that stay so far

    template <typename Kind> void read(const typename Kind::Element *x, int64_t size) {
        const int64_t padded = size + LANES;
        values.resize(padded), ids.resize(padded), weights.resize(padded), buckets.resize(padded);
        Floats most = splat(-std::numeric_limits<float>::infinity());
        const auto take = [&](int64_t at, Floats value) {
            most = larger(most, value);
            store(values.data() + at, value);
        };
        const int64_t whole = size - size % LANES;
        for (int64_t at = 0; at < whole; at += LANES) take(at, Kind::read(x + at));
        if (whole < size) take(whole, read_to_the_end<Kind>(x + whole, size - whole));
        best = max_of(most);
        for (int64_t id = 0; id < size; id++) ids[id] = int32_t(id);
        count = size;
    }

    // Keeps where `stays(place)`.
    template <typename Stays> void keep(const Stays &stays) {
        int64_t kept = 0;
        for (int64_t at = 0; at < count; at++)
            if (stays(at)) values[kept] = values[at], ids[kept] = ids[at], buckets[kept] = buckets[at], weights[kept] = weights[at], kept++;
        count = kept;
    }

    // Finds each value's bucket: how far it is below the largest, `per_unit` buckets for 1.
    void spread(float per_unit) {
        const float most = NUM_BUCKETS - 1;
        for (int64_t at = 0; at < count; at++) {
            const float bucket = (best - values[at]) * per_unit;
            buckets[at] = int32_t(bucket < most ? bucket : most);
        }
    }

    // The k largest, and whatever equals the last of them.
    void top_k(int64_t k) {
        if (k <= 0 || k >= count) return;
        if (count > FEW) {
            int64_t counts[NUM_BUCKETS] = {}, reached = 0;
            spread(BUCKETS_PER_UNIT);
            for (int64_t at = 0; at < count; at++) counts[buckets[at]]++;
            int32_t last = 0;
            while ((reached += counts[last]) < k) last++;
            keep([&](int64_t at) { return buckets[at] <= last; });
        }
        std::vector<float> sorted(values.begin(), values.begin() + count);
        std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
        const float least = sorted[k - 1];
        keep([&](int64_t at) { return values[at] >= least; });
    }

    // Finds the bucket in which masses reach `bound`: `reached` is that of the buckets before, `order` has the places in it.
    int32_t cross(const double (&masses)[NUM_BUCKETS], double bound) {
        int32_t crossed = 0;
        reached = 0;
        while (crossed < NUM_BUCKETS - 1 && reached + masses[crossed] < bound) reached += masses[crossed++];
        order.clear();
        for (int64_t at = 0; at < count; at++)
            if (buckets[at] == crossed) order.push_back(int32_t(at));
        return crossed;
    }

    // The likeliest whose mass reaches `p`, the one that crosses it included; of equals those with the lower ids.
    void top_p(double p, double temperature) {
        if (p >= 1) return;
        weigh(temperature);
        double masses[NUM_BUCKETS] = {}, total = 0;
        if (count > FEW)
            spread(float(BUCKETS_PER_UNIT / temperature));
        else
            std::fill(buckets.begin(), buckets.begin() + count, 0);
        for (int64_t at = 0; at < count; at++) masses[buckets[at]] += weights[at];
        for (int bucket = NUM_BUCKETS - 1; bucket >= 0; bucket--) total += masses[bucket];
        const double bound = p * total;
        const int32_t crossed = cross(masses, bound);
        std::sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
            return values[left] != values[right] ? values[left] > values[right] : left < right;
        });
        bool is_first = crossed == 0; // of all: it stays
        for (const int32_t at : order) {
            if (reached >= bound && !is_first) buckets[at] = NUM_BUCKETS;
            reached += weights[at], is_first = false;
        }
        keep([&](int64_t at) { return buckets[at] <= crossed; });
    }

    void min_p(double log_min_p, double temperature) {
        if (log_min_p == NO_VALUE) return;
        const double least = best / temperature + log_min_p;
        keep([&](int64_t at) { return values[at] / temperature >= least; });
    }

    // Those whose surprise is nearest the expected one, up to a mass of `p`, and whatever is as near as the last of them.
    void typical(double p, double temperature) {
        if (p >= 1) return;
        weigh(temperature);
        distances.resize(values.size());
        double total = 0, expected = 0, furthest = 0; // of surprises less a constant, the same for all
        for (int64_t at = 0; at < count; at++) distances[at] = (double(best) - values[at]) / temperature;
        for (int64_t at = 0; at < count; at++) {
            total += weights[at];
            expected += weights[at] > 0 ? weights[at] * distances[at] : 0; // 0 x inf is NaN
        }
        expected /= total;
        for (int64_t at = 0; at < count; at++) {
            distances[at] = std::abs(distances[at] - expected);
            furthest = std::max(furthest, weights[at] > 0 ? distances[at] : 0);
        }
        const double last = NUM_BUCKETS - 1, per_unit = furthest > 0 ? last / furthest : 0, bound = p * total;
        double masses[NUM_BUCKETS] = {};
        for (int64_t at = 0; at < count; at++) {
            const double bucket = distances[at] * per_unit;
            buckets[at] = int32_t(bucket < last ? bucket : last);
            masses[buckets[at]] += weights[at];
        }
        cross(masses, bound);
        std::sort(order.begin(), order.end(), [&](int32_t left, int32_t right) { return distances[left] < distances[right]; });
        double most = furthest;
        for (const int32_t at : order) {
            most = distances[at];
            if ((reached += weights[at]) >= bound) break;
        }
        keep([&](int64_t at) { return distances[at] <= most; });
    }

    // e^((value - best) / temperature), relative error some 1e-15.
    void weigh(double temperature) {
        constexpr double TERMS[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                    1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0}; // of e^x, x^12 first
        constexpr double NEAREST = 0x1.8p52; // its last bits are 0
        for (int64_t at = 0; at < count; at += WIDE) {
            const Doubles x = (__builtin_convertvector(load<FewFloats>(values.data() + at), Doubles) - double(best)) / temperature;
            const Doubles bits = x * 1.4426950408889634, shifted = bits + NEAREST;
            const Doubles whole = shifted - NEAREST; // the nearest integer
            const Doubles rest = (bits - whole) * 0.69314718055994531;
            Doubles power = Doubles{} + 1.0 / 6227020800.0;
            for (const double term : TERMS) power = power * rest + term;
            const Doubles scale = (Doubles)(((Longs)shifted + 1023) << 52); // of the last 12 bits
            store(weights.data() + at, whole > -1000.0 ? power * scale : Doubles{}); // no more than 1e-301 are left of the others
        }
    }
};

inline bool any(Longs lanes) {
#if defined(__AVX512DQ__)
    return _mm512_movepi64_mask((__m512i)lanes);
#else
    int64_t found = 0;
    for (int lane = 0; lane < WIDE; lane++) found |= lanes[lane];
    return found;
#endif
}

inline LongWords mixed(LongWords value) { // splitmix64's finaliser
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

inline int64_t drawn(Left &left, double temperature, uint64_t key) {
    constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ull, MASK = (1ull << 52) - 1;
    for (int64_t at = left.count; at % WIDE; at++) left.values[at] = -std::numeric_limits<float>::infinity(), left.ids[at] = 0;
    const double inverse = 1 / temperature, slack = 1e-12 * (1 + std::abs(left.best * inverse));
    double most = NO_VALUE;
    int64_t token = left.ids[0];
    for (int64_t at = 0; at < left.count; at += WIDE) {
        const FewFloats value = load<FewFloats>(left.values.data() + at);
        const LongWords id = (LongWords)__builtin_convertvector(load<FewInts>(left.ids.data() + at), Longs);
        const LongWords uniform = mixed(key + (id + 1) * GOLDEN) & MASK; // u = (uniform + 1/2) / 2^52
        const Doubles other = to_doubles(uniform ^ MASK) + 0.5; // (1 - u) 2^52
        const Doubles noise = to_doubles(1023 + 52 - ((LongWords)other >> 52)) * 0.69314718055994531; // at most
        const Longs may_win = __builtin_convertvector(value, Doubles) * inverse + noise > most - slack;
        if (!any(may_win)) continue;
        for (int lane = 0; lane < WIDE; lane++) {
            if (!may_win[lane] || value[lane] == -std::numeric_limits<float>::infinity()) continue;
            const double score = value[lane] / temperature - std::log(-std::log((double(uniform[lane]) + 0.5) * 0x1p-52));
            if (score > most) most = score, token = left.ids[at + lane];
        }
    }
    return token;
}

template <typename Kind> void draw(const Draws &draws, const Team &team) {
    static thread_local Left left;
    for (int64_t at = team.first(draws.count); at < team.end(draws.count); at++) {
        const auto *logits = static_cast<const typename Kind::Element *>(draws.logits) + draws.rows[at] * draws.size;
        const double temperature = draws.temperature[at];
        left.read<Kind>(logits, draws.size);
        left.top_k(draws.top_k[at]);
        left.top_p(draws.top_p[at], temperature);
        left.min_p(draws.log_min_p[at], temperature);
        left.typical(draws.typical_p[at], temperature);
        draws.tokens[at] = drawn(left, temperature, uint64_t(draws.keys[at]));
    }
    team.meet();
}

} // namespace
