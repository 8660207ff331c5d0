// Whole decoder layers: norms, fused projections, paged attention and the gated MLP, in one region of threads that meet
// between any two of them: to send threads home and call them again costs twice as much. What is before and after
// attention may be asked for alone, where attention is somebody else's.
#pragma once
#include "attention.h"
#include "linear.h"
#include "rows.h"

namespace {

struct Layer {
    const void *input_norm, *qkv, *q_norm, *k_norm, *o, *post_norm, *gate_up, *down; // matrices packed; no q_norm: null
    const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias;                       // or null
    int64_t hidden_size, inner_size, num_q_heads, num_kv_heads, head_dim, window;
    float eps, scale;
};

struct Pass {
    void *hidden, *residual;                            // [T, H]; in place
    void *normed, *qkv, *rotated, *attended, *inner;    // [T, H], [T, (Hq + 2 Hk) D], [T, Hq D] twice, [T, I]; scratch
    const float *cos, *sin;                             // [T, D / 2]
    const int64_t *slots, *table, *starts, *lengths, *kv_lengths; // [T], [S, M], and [S] each
    int64_t num_rows, num_sequences, table_width, block_size;
    int64_t block_stride, value_offset, head_stride, slot_stride, stored; // in bytes; how the pool keeps numbers
};

// Up to attention: `rotated` and the pool have what it reads. Before the first layer there is no `residual`.
template <typename Kind> void layer_before(const Layer &w, const Pass &p, void *kv, bool is_first) {
    typedef typename Kind::Element Element;
    const int64_t q_size = w.num_q_heads * w.head_dim, kv_size = w.num_kv_heads * w.head_dim, row = q_size + 2 * kv_size;
    auto *q = static_cast<Element *>(p.qkv), *k = q + q_size, *v = k + kv_size;
    if (is_first) {
#pragma omp single
        std::memcpy(p.residual, p.hidden, p.num_rows * w.hidden_size * sizeof(Element));
    }
    rms_norm<Kind>(p.hidden, is_first ? nullptr : p.residual, w.input_norm, p.normed, p.residual, p.num_rows, 1, w.hidden_size, w.hidden_size, w.hidden_size, w.eps);
    linear<Kind, Kind>(p.normed, w.qkv, w.qkv_bias, p.qkv, p.num_rows, w.hidden_size, row);
    if (w.q_norm) {
        rms_norm<Kind>(q, nullptr, w.q_norm, q, nullptr, p.num_rows, w.num_q_heads, w.head_dim, row, row, w.eps);
        rms_norm<Kind>(k, nullptr, w.k_norm, k, nullptr, p.num_rows, w.num_kv_heads, w.head_dim, row, row, w.eps);
    }
    append_kv<Kind>({q, k, v, p.rotated, kv, p.cos, p.sin, p.slots, p.num_rows, w.num_q_heads, w.num_kv_heads, w.head_dim, p.block_size,
                     row, row, row, p.block_stride, p.value_offset, p.head_stride, p.slot_stride, p.stored});
}

// From `attended` on: `hidden` becomes the layer's output and `residual` what it is to be added to.
template <typename Kind> void layer_after(const Layer &w, const Pass &p) {
    linear<Kind, Kind>(p.attended, w.o, w.o_bias, p.hidden, p.num_rows, w.num_q_heads * w.head_dim, w.hidden_size);
    rms_norm<Kind>(p.hidden, p.residual, w.post_norm, p.normed, p.residual, p.num_rows, 1, w.hidden_size, w.hidden_size, w.hidden_size, w.eps);
    gated_linear<Kind>(p.normed, w.gate_up, w.gate_up_bias, p.inner, p.num_rows, w.hidden_size, w.inner_size);
    linear<Kind, Kind>(p.inner, w.down, w.down_bias, p.hidden, p.num_rows, w.inner_size, w.hidden_size);
}

// Layers one after another, `layer_bytes` apart in the pool; `taken` is a counter for each.
template <typename Kind>
void layers(const Layer *weights, int64_t count, const Pass &p, void *kv_, int64_t layer_bytes, bool is_first, std::atomic<int64_t> *taken) {
    for (int64_t number = 0; number < count; number++) {
        const Layer &w = weights[number];
        uint8_t *kv = static_cast<uint8_t *>(kv_) + number * layer_bytes;
        layer_before<Kind>(w, p, kv, is_first && number == 0);
        attention<Kind>({p.rotated, kv, p.attended, p.table, p.starts, p.lengths, p.kv_lengths, p.num_sequences, p.table_width, p.block_size,
                         w.num_q_heads, w.num_kv_heads, w.head_dim, w.window, p.block_stride, p.value_offset, p.head_stride, p.slot_stride, p.stored, w.scale}, taken[number]);
        layer_after<Kind>(w, p);
    }
}

} // namespace
