// Whole decoder layers: norms, fused projections, paged attention and the gated MLP, with what adapters add, in one region
// of threads that meet between any two of them: to send threads home and call them again costs twice as much. What is
// before and after attention may be asked for alone, where attention is somebody else's.
#pragma once
#include "attention.h"
#include "linear.h"
#include "rows.h"

namespace {

constexpr int MANY_ROWS = 192;    // of each thread: it may read all weights for itself
constexpr int ROWS_AT_ONCE = 256; // through a layer, about: what they become stays in the second cache
constexpr int ROWS_MULTIPLE = 2 * TILE_ROWS;

struct Layer {
    const void *input_norm, *q_norm, *k_norm, *post_norm;      // no q_norm: null
    Matrix qkv, o, gate_up, down;
    const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias; // or null
    int64_t hidden_size, inner_size, num_q_heads, num_kv_heads, head_dim, window;
    const Adapter *adapters;
    float eps, scale;
};

struct Pass {
    void *hidden, *residual;                            // [T, H]; in place
    void *normed, *qkv, *rotated, *attended, *inner;    // [T, H], [T, (Hq + 2 Hk) D], [T, Hq D] twice, [T, I]; scratch
    const float *cos, *sin;                             // [T, D / 2]
    const int64_t *slots, *table, *starts, *lengths, *kv_lengths; // [T], [S, M], and [S] each
    int64_t num_rows, num_sequences, table_width, block_size;
    int64_t block_stride, value_offset, head_stride, slot_stride, stored; // in bytes; how the pool keeps numbers
    const int64_t *adapters; // [T]: the number of each row's, from 1 on, or 0; null where none has any
    void *low;               // [T, low_width], scratch: as wide as the widest rank
    int64_t low_width;
    void *room;              // [T, room_per_row of the widest inputs] bytes, scratch of products of codes, for teams of several
};

// Rows of a pass, from and up to, that are computed through a layer some at a time, as if there were no others.
struct Share {
    int64_t first, end, at_once;

    // All of them, at once.
    static Share whole(int64_t num_rows) { return {0, num_rows, std::max<int64_t>(num_rows, 1)}; }

    // A team's part of many, in parts as equal as they can be.
    static Share of_many(int64_t num_rows, const Team &team) {
        const auto up = [](int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple; };
        const int64_t pieces = up(num_rows, ROWS_MULTIPLE), first = team.first(pieces) * ROWS_MULTIPLE, end = std::min(num_rows, team.end(pieces) * ROWS_MULTIPLE);
        const int64_t parts = std::max<int64_t>((end - first + ROWS_AT_ONCE / 2) / ROWS_AT_ONCE, 1);
        return {first, end, up(up(end - first, parts), ROWS_MULTIPLE) * ROWS_MULTIPLE};
    }

    // Calls `visit` with each pass over some of them. They have scratch in common where nobody reads it afterwards.
    template <typename Element, typename Visit> void each(const Pass &whole, const Layer &w, const Visit &visit) const {
        const int64_t q_size = w.num_q_heads * w.head_dim, half = w.head_dim / 2;
        for (int64_t row = first; row < end; row += at_once) {
            Pass p = whole;
            const auto skip = [&](void *&at, int64_t row, int64_t width) { at = static_cast<Element *>(at) + row * width; };
            skip(p.hidden, row, w.hidden_size), skip(p.residual, row, w.hidden_size), skip(p.rotated, row, q_size), skip(p.attended, row, q_size);
            skip(p.normed, first, w.hidden_size), skip(p.qkv, first, q_size + 2 * w.num_kv_heads * w.head_dim), skip(p.inner, first, w.inner_size);
            p.cos += row * half, p.sin += row * half, p.slots += row, p.num_rows = std::min(at_once, end - row);
            if (p.adapters) skip(p.low, first, p.low_width), p.adapters += row;
            visit(p);
        }
    }
};

// What adapters add to the product of `x` `[T, K]` that is next. Threads divide the rows; those side by side that have one
// adapter are multiplied together.
template <typename Kind> Added lowered(const Layer &w, const Pass &p, LowRank Adapter::*part, const void *x, int64_t num_inputs, const Team &team) {
    typedef typename Kind::Element Element;
    if (!p.adapters) return {};
    const int64_t end = team.end(p.num_rows);
    for (int64_t row = team.first(p.num_rows), next; row < end; row = next) {
        for (next = row + 1; next < end && p.adapters[next] == p.adapters[row];) next++;
        if (!p.adapters[row]) continue;
        const LowRank &own = w.adapters[p.adapters[row] - 1].*part;
        if (!own.down) continue;
        auto *low = static_cast<Element *>(p.low) + row * p.low_width;
        const auto keep = [&](int64_t r, int64_t stripe, const Floats (&sums)[PANELS]) {
            for (int64_t panel = 0, at = stripe * PANELS * LANES; panel < PANELS && at < own.rank; panel++, at += LANES) Kind::write(low + r * p.low_width + at, sums[panel]);
        };
        product<Kind>(static_cast<const Element *>(x) + row * num_inputs, own.down, next - row, num_inputs, own.rank, Team{}, keep);
    }
    team.meet();
    return {w.adapters, part, p.adapters, p.low, p.low_width};
}

// Up to attention: `rotated` and the pool have what it reads. Before the first layer there is no `residual`.
template <typename Kind> void layer_before(const Layer &w, const Pass &p, void *kv, bool is_first, const Team &team) {
    typedef typename Kind::Element Element;
    const int64_t q_size = w.num_q_heads * w.head_dim, kv_size = w.num_kv_heads * w.head_dim, row = q_size + 2 * kv_size;
    auto *q = static_cast<Element *>(p.qkv), *k = q + q_size, *v = k + kv_size;
    if (is_first) {
        const int64_t first = team.first(p.num_rows) * w.hidden_size, end = team.end(p.num_rows) * w.hidden_size;
        std::memcpy(static_cast<Element *>(p.residual) + first, static_cast<const Element *>(p.hidden) + first, (end - first) * sizeof(Element));
    }
    rms_norm<Kind>(p.hidden, is_first ? nullptr : p.residual, w.input_norm, p.normed, p.residual, p.num_rows, 1, w.hidden_size, w.hidden_size, w.hidden_size, w.eps, team);
    const Added added = lowered<Kind>(w, p, &Adapter::qkv, p.normed, w.hidden_size, team);
    linear<Kind, Kind>(p.normed, w.qkv, w.qkv_bias, p.room, p.qkv, p.num_rows, w.hidden_size, row, team, added);
    if (w.q_norm) {
        rms_norm<Kind>(q, nullptr, w.q_norm, q, nullptr, p.num_rows, w.num_q_heads, w.head_dim, row, row, w.eps, team);
        rms_norm<Kind>(k, nullptr, w.k_norm, k, nullptr, p.num_rows, w.num_kv_heads, w.head_dim, row, row, w.eps, team);
    }
    append_kv<Kind>({q, k, v, p.rotated, kv, p.cos, p.sin, p.slots, p.num_rows, w.num_q_heads, w.num_kv_heads, w.head_dim, p.block_size,
                     row, row, row, p.block_stride, p.value_offset, p.head_stride, p.slot_stride, p.stored}, team);
}

// From `attended` on: `hidden` becomes the layer's output and `residual` what it is to be added to.
template <typename Kind> void layer_after(const Layer &w, const Pass &p, const Team &team) {
    const int64_t q_size = w.num_q_heads * w.head_dim;
    const auto added = [&](LowRank Adapter::*part, const void *x, int64_t num_inputs) { return lowered<Kind>(w, p, part, x, num_inputs, team); };
    linear<Kind, Kind>(p.attended, w.o, w.o_bias, p.room, p.hidden, p.num_rows, q_size, w.hidden_size, team, added(&Adapter::o, p.attended, q_size));
    rms_norm<Kind>(p.hidden, p.residual, w.post_norm, p.normed, p.residual, p.num_rows, 1, w.hidden_size, w.hidden_size, w.hidden_size, w.eps, team);
    gated_linear<Kind>(p.normed, w.gate_up, w.gate_up_bias, p.room, p.inner, p.num_rows, w.hidden_size, w.inner_size, team, added(&Adapter::gate_up, p.normed, w.hidden_size));
    linear<Kind, Kind>(p.inner, w.down, w.down_bias, p.room, p.hidden, p.num_rows, w.inner_size, w.hidden_size, team, added(&Adapter::down, p.inner, w.inner_size));
}

// Layers one after another, `layer_bytes` apart in the pool; `taken` is a counter for each. Of few rows, threads divide
// the outputs, so that each weight is read once; of many, the rows: what one has computed is then read by itself, some
// rows at a time, from its own second cache.
template <typename Kind>
void layers(const Layer *weights, int64_t count, const Pass &p, void *kv_, int64_t layer_bytes, bool is_first, std::atomic<int64_t> *taken, const Team &team) {
    typedef typename Kind::Element Element;
    const bool are_many = p.num_rows >= MANY_ROWS * team.parts;
    const Share share = are_many ? Share::of_many(p.num_rows, team) : Share::whole(p.num_rows);
    const Team own = are_many ? Team{} : team;
    const auto kv = [&](int64_t number) { return static_cast<uint8_t *>(kv_) + number * layer_bytes; };
    share.each<Element>(p, weights[0], [&](const Pass &rows) { layer_before<Kind>(weights[0], rows, kv(0), is_first, own); });
    for (int64_t number = 0; number < count; number++) {
        const Layer &w = weights[number];
        if (are_many) team.meet();
        attention<Kind>({p.rotated, kv(number), p.attended, p.table, p.starts, p.lengths, p.kv_lengths, p.num_sequences, p.table_width, p.block_size,
                         w.num_q_heads, w.num_kv_heads, w.head_dim, w.window, p.block_stride, p.value_offset, p.head_stride, p.slot_stride, p.stored, w.scale, 0, nullptr}, taken[number], team);
        share.each<Element>(p, w, [&](const Pass &rows) {
            layer_after<Kind>(w, rows, own);
            if (number + 1 < count) layer_before<Kind>(weights[number + 1], rows, kv(number + 1), false, own);
        });
    }
    if (are_many) team.meet();
}

} // namespace
