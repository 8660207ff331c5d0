// What is done to rows: norms, the gated activation, rope and the writing of KV. A team divides the rows.
//
// Rounded where torch rounds: a sum, a norm and its product with the weight, a silu and its product with `up`.
#pragma once
#include "exponential.h"
#include "scratch.h"
#include "stored.h"
#include "team.h"

namespace {

// `num_inner` rows side by side, `num_outer` times, `stride` elements apart in x and `normed_stride` in what comes of them.
template <typename Kind>
void rms_norm(const void *x_, const void *residual_, const void *weight_, void *normed_, void *total_, int64_t num_outer, int64_t num_inner,
              int64_t size, int64_t stride, int64_t normed_stride, float eps, const Team &team) {
    typedef typename Kind::Element Element;
    const auto *weight = static_cast<const Element *>(weight_);
    const int64_t num_rows = num_outer * num_inner;
    for (int64_t row = team.first(num_rows); row < team.end(num_rows); row++) {
        const int64_t outer = row / num_inner, inner = row % num_inner;
        const Element *x = static_cast<const Element *>(x_) + outer * stride + inner * size;
        Element *normed = static_cast<Element *>(normed_) + outer * normed_stride + inner * size;
        Floats squares{};
        if (residual_) {
            const Element *residual = static_cast<const Element *>(residual_) + row * size;
            Element *total = static_cast<Element *>(total_) + row * size;
            for (int64_t at = 0; at < size; at += LANES) {
                const Floats value = Kind::rounded(Kind::read(x + at) + Kind::read(residual + at));
                Kind::write(total + at, value);
                squares += value * value;
            }
            x = total;
        } else {
            for (int64_t at = 0; at < size; at += LANES) squares += Kind::read(x + at) * Kind::read(x + at);
        }
        const float factor = 1.0f / std::sqrt(sum_of(squares) / float(size) + eps);
        for (int64_t at = 0; at < size; at += LANES)
            Kind::write(normed + at, Kind::rounded(Kind::read(x + at) * splat(factor)) * Kind::read(weight + at));
    }
    team.meet();
}

template <typename Kind> inline Floats silu(Floats x) { return Kind::rounded(x * sigmoid<Kind>(x)); }

template <typename Kind> void silu_and_mul(const void *gate_up_, void *out_, int64_t num_rows, int64_t size, const Team &team) {
    typedef typename Kind::Element Element;
    for (int64_t row = team.first(num_rows); row < team.end(num_rows); row++) {
        const Element *gate = static_cast<const Element *>(gate_up_) + row * 2 * size, *up = gate + size;
        Element *out = static_cast<Element *>(out_) + row * size;
        for (int64_t at = 0; at < size; at += LANES) {
            Kind::write(out + at, silu<Kind>(Kind::read(gate + at)) * Kind::read(up + at));
        }
    }
    team.meet();
}

struct Append {
    const void *q, *k, *v;   // [T, H*, D], rows `q_stride`, `k_stride`, `v_stride` elements apart
    void *rotated, *kv;      // [T, Hq, D]; the pool, at the layer
    const float *cos, *sin;  // [T, D / 2]
    const int64_t *slots;    // [T]
    int64_t num_rows, num_q_heads, num_kv_heads, head_dim, block_size, q_stride, k_stride, v_stride;
    int64_t block_stride, value_offset, head_stride, slot_stride, stored; // in bytes; how the pool keeps numbers
};

template <typename Kind> inline void rotate(const typename Kind::Element *from, typename Kind::Element *to, const float *cos, const float *sin, int64_t half) {
    int64_t d = 0;
    for (; d + LANES <= half; d += LANES) {
        const Floats first = Kind::read(from + d), second = Kind::read(from + half + d), c = load<Floats>(cos + d), s = load<Floats>(sin + d);
        Kind::write(to + d, first * c - second * s);
        Kind::write(to + half + d, second * c + first * s);
    }
    for (; d < half; d++) {
        const float first = Kind::read_one(from[d]), second = Kind::read_one(from[half + d]);
        to[d] = Kind::write_one(first * cos[d] - second * sin[d]);
        to[half + d] = Kind::write_one(second * cos[d] + first * sin[d]);
    }
}

template <typename Kind> void append_kv(const Append &a, const Team &team) {
    typedef typename Kind::Element Element;
    const int64_t dim = a.head_dim, half = dim / 2;
    for (int64_t row = team.first(a.num_rows); row < team.end(a.num_rows); row++) {
        const float *cos = a.cos + row * half, *sin = a.sin + row * half;
        const Element *q = static_cast<const Element *>(a.q) + row * a.q_stride;
        const Element *k = static_cast<const Element *>(a.k) + row * a.k_stride;
        const Element *v = static_cast<const Element *>(a.v) + row * a.v_stride;
        Element *to = static_cast<Element *>(a.rotated) + row * a.num_q_heads * dim;
        uint8_t *slot = static_cast<uint8_t *>(a.kv) + a.slots[row] / a.block_size * a.block_stride + a.slots[row] % a.block_size * a.slot_stride;
        for (int64_t head = 0; head < a.num_q_heads; head++) rotate<Kind>(q + head * dim, to + head * dim, cos, sin, half);
        for (int64_t head = 0; head < a.num_kv_heads; head++, slot += a.head_stride) {
            if (is_plain<Kind>(a.stored)) {
                rotate<Kind>(k + head * dim, reinterpret_cast<Element *>(slot), cos, sin, half);
                std::memcpy(slot + a.value_offset, v + head * dim, dim * sizeof(Element));
            } else {
                auto *turned = reinterpret_cast<Element *>(scratch(dim * sizeof(Element)));
                rotate<Kind>(k + head * dim, turned, cos, sin, half);
                encode<Kind>(a.stored, turned, slot, dim);
                encode<Kind>(a.stored, v + head * dim, slot + a.value_offset, dim);
            }
        }
    }
    team.meet();
}

} // namespace
