// What attention reads: whose keys and values lie where in a pool, and who computes what of it.
#pragma once
#include "stored.h"

namespace {

constexpr int TILE_KEYS = 256; // computed with at once, from multiples on

struct Attention {
    const void *q;   // [T, Hq, D]
    const void *kv;  // the pool, at the layer
    void *out;       // [T, Hq, D]
    const int64_t *table, *starts, *lengths, *kv_lengths; // [S, M], and [S] each
    int64_t num_sequences, table_width, block_size, num_q_heads, num_kv_heads, head_dim, window; // blocks: a power of two
    int64_t block_stride, value_offset, head_stride, slot_stride, stored; // in bytes; how the pool keeps numbers
    float scale, softcap; // of scores; no cap: 0
    const float *sinks;   // [Hq]: the score of a key that has no value; or null

    float sink(int64_t q_head) const { return sinks ? sinks[q_head] : -std::numeric_limits<float>::infinity(); }
};

// What a thread does at once: some positions of a sequence, for some KV heads.
struct Task {
    int64_t sequence, first_query, end_query, first_head, end_head;

    // Where its first query stands.
    int64_t first_position(const Attention &a) const { return a.kv_lengths[sequence] - a.lengths[sequence] + first_query; }

    // Keys that any of the positions sees: from, and up to.
    int64_t first_seen(const Attention &a) const { return a.window ? std::max<int64_t>(0, first_position(a) - a.window + 1) : 0; }
    int64_t num_keys(const Attention &a) const { return first_position(a) + end_query - first_query; }
};

// Keys and values of one KV head of one sequence.
struct Place {
    const Attention *a;
    const int64_t *table;
    int64_t head;

    const uint8_t *key(int64_t key) const {
        const int64_t shift = __builtin_ctzll(a->block_size);
        return static_cast<const uint8_t *>(a->kv) + table[key >> shift] * a->block_stride + head * a->head_stride + (key & (a->block_size - 1)) * a->slot_stride;
    }
};

} // namespace
