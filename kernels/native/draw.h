// A token for each row of logits, as `kernels/sampling.py` defines it: the largest of logit / temperature + noise over
// what top-k, top-p and min-p leave. A team divides the rows.
//
// Nothing is sorted but what lies about a bound: a first pass finds by a histogram of the distances from the largest
// logit within which 64th of a unit the bound is, and what weighs more stays without being looked at again. And of most
// tokens the noise, two logarithms, is not needed: g = -ln(-ln u) <= -ln(1 - u), which the leading bits of 1 - u bound.
#pragma once
#include "kinds.h"
#include "team.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

typedef uint64_t Q8 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef int64_t L8 __attribute__((vector_size(64)));

constexpr int NUM_BUCKETS = 2048, BUCKETS_PER_UNIT = 64;
constexpr int64_t FEW = 2048; // are sorted at once
constexpr double NO_VALUE = -std::numeric_limits<double>::infinity();

struct Draws { // columns of `count` rows
    const void *logits; // [., size]
    int64_t size, count;
    const int64_t *rows; // which of the logits
    const double *temperature, *top_p, *log_min_p; // 1 and -inf where they are off
    const int64_t *top_k, *keys; // 0 where it is off; the hash of seed, sequence and position
    int64_t *tokens;
};

// What is left of a row, in the order of the ids. Vectors are kept from call to call.
struct Left {
    std::vector<float> values;
    std::vector<int32_t> ids;
    std::vector<double> weights;
    std::vector<int32_t> buckets, order;
    int64_t count = 0;
    float best = 0;

    template <typename Kind> void read(const typename Kind::Element *x, int64_t size) {
        const int64_t padded = size + std::max(LANES, 8); // vectors of eight doubles, too
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
        double before = 0;
        int32_t crossed = 0;
        while (crossed < NUM_BUCKETS - 1 && before + masses[crossed] < bound) before += masses[crossed++];
        order.clear();
        for (int64_t at = 0; at < count; at++)
            if (buckets[at] == crossed) order.push_back(int32_t(at));
        std::sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
            return values[left] != values[right] ? values[left] > values[right] : left < right;
        });
        bool is_first = crossed == 0; // of all: it stays
        for (const int32_t at : order) {
            if (before >= bound && !is_first) buckets[at] = NUM_BUCKETS;
            before += weights[at], is_first = false;
        }
        keep([&](int64_t at) { return buckets[at] <= crossed; });
    }

    void min_p(double log_min_p, double temperature) {
        if (log_min_p == NO_VALUE) return;
        const double least = best / temperature + log_min_p;
        keep([&](int64_t at) { return values[at] / temperature >= least; });
    }

    // e^((value - best) / temperature), relative error some 1e-15.
    void weigh(double temperature) {
        constexpr double TERMS[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                    1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0}; // of e^x, x^12 first
        for (int64_t at = 0; at < count; at += 8) {
            const D8 x = (__builtin_convertvector(load<F8>(values.data() + at), D8) - double(best)) / temperature;
            const D8 bits = x * 1.4426950408889634;
            const D8 whole = (bits + 0x1.8p52) - 0x1.8p52; // the nearest integer
            const D8 rest = (bits - whole) * 0.69314718055994531;
            D8 power = D8{} + 1.0 / 6227020800.0;
            for (const double term : TERMS) power = power * rest + term;
            const D8 is_much = whole > -1000.0 ? whole : D8{}; // no more than 1e-301 are left of the others
            const D8 scale = (D8)((__builtin_convertvector(is_much, L8) + 1023) << 52);
            store(weights.data() + at, whole > -1000.0 ? power * scale : D8{});
        }
    }
};

inline bool any(L8 lanes) {
#if defined(__AVX512DQ__)
    return _mm512_movepi64_mask((__m512i)lanes);
#else
    return lanes[0] | lanes[1] | lanes[2] | lanes[3] | lanes[4] | lanes[5] | lanes[6] | lanes[7];
#endif
}

inline Q8 mixed(Q8 value) { // splitmix64's finaliser
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

inline int64_t drawn(Left &left, double temperature, uint64_t key) {
    constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ull, MASK = (1ull << 52) - 1;
    for (int64_t at = left.count; at % 8; at++) left.values[at] = -std::numeric_limits<float>::infinity(), left.ids[at] = 0;
    const double inverse = 1 / temperature, slack = 1e-12 * (1 + std::abs(left.best * inverse));
    double most = NO_VALUE;
    int64_t token = left.ids[0];
    for (int64_t at = 0; at < left.count; at += 8) {
        const F8 value = load<F8>(left.values.data() + at);
        const Q8 id = __builtin_convertvector(load<I8>(left.ids.data() + at), Q8);
        const Q8 uniform = mixed(key + (id + 1) * GOLDEN) & MASK; // u = (uniform + 1/2) / 2^52
        const D8 other = __builtin_convertvector((L8)(uniform ^ MASK), D8) + 0.5; // (1 - u) 2^52
        const D8 noise = __builtin_convertvector(1023 + 52 - (L8)((Q8)other >> 52), D8) * 0.69314718055994531; // at most
        const L8 may_win = __builtin_convertvector(value, D8) * inverse + noise > most - slack;
        if (!any(may_win)) continue;
        for (int lane = 0; lane < 8; lane++) {
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
        draws.tokens[at] = drawn(left, temperature, uint64_t(draws.keys[at]));
    }
    team.meet();
}

} // namespace
