// How keys and values come into a cache before they are read: a worker's prefetching.
#pragma once
#include "paged_kv.h"

namespace {

// Asked for before they are read, as long as memory takes: longer where tiles leave less of a core's time to wait in.
#if defined(HAS_TILES)
constexpr int BYTES_AHEAD = 24576;
#else
constexpr int BYTES_AHEAD = 12288;
#endif
constexpr int NEAR = 2; // the second cache: more lines may be on their way to it than to the first

// How many lines so many vectors of what is computed with are.
constexpr int64_t lines_of(int64_t vectors) { return (vectors * sizeof(Words) + 63) / 64; }

// Has keys and values in a cache before they are read. It goes where the worker goes, in the same order and some
// pieces before it, a panel's keys or values at a time, for blocks lie anywhere and no other prefetcher knows which
// is next. And it goes at the worker's pace: a core waits for some twenty lines and then stands still, so that lines hide
// behind what is computed where one is asked for whenever one is read, and do not where more are asked for at once.
struct Ahead {
    const Attention &a;
    const Task *task = nullptr, *next = nullptr; // where it is; what comes then, if that is known
    Place place{};
    int64_t first_key = 0, key = 0, end = 0; // of the tile: where it begins, the piece at hand, where it ends
    bool at_values = false;
    int64_t line_bytes = 64;      // of the pool, for a line of what is computed with
    const uint8_t *at = nullptr, *last = nullptr;

    // Follows a task from its beginning, unless it came there by itself.
    void follow(const Task &current, const Task *then, int64_t row_bytes) {
        next = then, line_bytes = 64 * a.slot_stride / row_bytes;
        if (task == &current) return;
        begin(&current);
        for (int64_t bytes = 0; bytes < BYTES_AHEAD && at; bytes += LANES * a.slot_stride) fetch(LANES * row_bytes / 64), turn();
    }

    // What is in the place of so many lines of what is computed with, and at most to the end of a piece: products around
    // it keep their registers.
    inline void fetch(int64_t count) {
        if (at >= last) return;
        for (int64_t line = 0; line < count; line++) __builtin_prefetch(at + line * line_bytes, 0, NEAR);
        at += count * line_bytes;
    }

    // Goes to the next piece where this one is done.
    inline void turn() {
        if (at >= last && at) go();
    }

  private:
    void begin(const Task *other) {
        task = other, at = last = nullptr;
        if (!task) return;
        first_key = task->first_seen(a) / TILE_KEYS * TILE_KEYS;
        begin_tile();
    }

    void begin_tile() {
        place = {&a, a.table + task->sequence * a.table_width, task->first_head};
        end = std::min(task->num_keys(a), first_key + TILE_KEYS);
        begin_piece(first_of_tile());
    }

    int64_t first_of_tile() const { return std::max(first_key, task->first_seen(a) / LANES * LANES); }

    void begin_piece(int64_t from) {
        key = from, at = place.key(key) + (at_values ? a.value_offset : 0), last = at + LANES * a.slot_stride;
    }

    // Of a tile head by head, first all keys and then all values.
    void go() {
        if (key + LANES < end) return begin_piece(key + LANES);
        at_values = !at_values;
        if (at_values || ++place.head < task->end_head) return begin_piece(first_of_tile());
        first_key += TILE_KEYS;
        if (first_key < task->num_keys(a)) return begin_tile();
        begin(std::exchange(next, nullptr));
    }
};

} // namespace
