// Paged attention: flash attention on the blocks of a pool, one kernel for decodes and chunks alike.
//
// Keys and values of a tile are packed as weights are, and both products are tiles of a linear. The G query heads of a
// KV head are rows like others, so K and V are read once for them. A row's sums begin at the tile's multiple and go over
// its keys in order: its result does not depend on how many rows are computed with it, nor on who else is in the batch.
#pragma once
#include "attention_by_tiles.h"
#include "attention_by_vectors.h"
#include "team.h"
#include <atomic>
#include <vector>

namespace {

constexpr int TILE_QUERIES = 64; // positions of a task

// How many rows may have a tile to themselves.
inline int64_t most_alone(bool by_tiles) { return by_tiles ? TILE_ROWS : MAX_ROWS; }

// Does a task, tile by tile of keys, head by head.
template <typename Kind> struct Worker {
    typedef typename Kind::Element Element;
    const Attention &a;
    const bool goes_by_tiles;
    KvTile<Kind> kv;
    QueryRows<Kind> rows;
    ByVectors<Kind> by_vectors;
    ByTiles<Kind> by_tiles;

    static size_t size(int64_t most_rows, int64_t dim) {
        return KvTile<Kind>::size(dim) + QueryRows<Kind>::size(most_rows, dim) + ByVectors<Kind>::size(dim) + ByTiles<Kind>::size();
    }

    Worker(const Attention &a, int64_t most_rows, bool goes_by_tiles, Pieces pieces)
        : a(a), goes_by_tiles(goes_by_tiles), kv(a, pieces), rows(a, most_rows, pieces), by_vectors(kv, rows, a.head_dim, pieces), by_tiles(kv, rows, a.head_dim, pieces) {}

    // `next` is what this thread goes on with, if it is known.
    void run(const Task &task, const Task *next) {
        const int64_t num_keys = task.num_keys(a);
        rows.num_rows = (task.end_query - task.first_query) * rows.group, rows.first_position = task.first_position(a);
        kv.first_seen = task.first_seen(a), kv.ahead.follow(task, next, a.head_dim * sizeof(Element));
        each_row(task, [&](int64_t row, int64_t at) { rows.begin(row, static_cast<const Element *>(a.q) + at); });
        for (kv.first_key = kv.first_seen / TILE_KEYS * TILE_KEYS; kv.first_key < num_keys; kv.first_key += TILE_KEYS) {
            kv.end = std::min<int64_t>(num_keys, kv.first_key + TILE_KEYS);
            for (int64_t head = task.first_head; head < task.end_head; head++) {
                kv.place = {&a, a.table + task.sequence * a.table_width, head};
                rows.first_row = (head - task.first_head) * rows.num_rows;
                attend();
            }
        }
        each_row(task, [&](int64_t row, int64_t at) { rows.finish(row, static_cast<Element *>(a.out) + at, a.sink(at / a.head_dim % a.num_q_heads)); });
    }

  private:
    // The rows of a head over a tile.
    void attend() {
        const bool are_alone = rows.num_rows <= most_alone(goes_by_tiles);
        if (!are_alone) kv.pack();
        if (goes_by_tiles) are_alone ? by_tiles.attend_alone() : by_tiles.attend_all();
        else are_alone ? by_vectors.template attend_all<true>() : by_vectors.template attend_all<false>();
    }

    // Calls `visit(row, at)` with a row's place among ours, and where it is among all.
    template <typename Visit> void each_row(const Task &task, const Visit &visit) const {
        const int64_t num_rows = rows.num_rows, group = rows.group;
        for (int64_t head = task.first_head; head < task.end_head; head++)
            for (int64_t row = 0; row < num_rows; row++)
                visit((head - task.first_head) * num_rows + row,
                      ((a.starts[task.sequence] + task.first_query + row / group) * a.num_q_heads + head * group + row % group) * a.head_dim);
    }
};

// The threads of a team take tasks by turns: `taken` counts them, from 0, for all of them.
template <typename Kind> void attention(const Attention &a, std::atomic<int64_t> &taken, const Team &team) {
    const int64_t group = a.num_q_heads / a.num_kv_heads;
    const bool are_many = a.num_sequences >= 4 * team.parts, by_tiles = goes_by_tiles<Kind>(a.head_dim);
    std::vector<Task> tasks;
    int64_t num_rows = 0; // of the largest
    for (int64_t sequence = 0; sequence < a.num_sequences; sequence++) {
        const int64_t length = a.lengths[sequence];
        // All heads by one thread where that leaves enough for the others, and their rows are few.
        const int64_t num_heads = are_many && length * group <= most_alone(by_tiles) ? a.num_kv_heads : 1;
        for (int64_t first = 0; first < length; first += TILE_QUERIES)
            for (int64_t head = 0; head < a.num_kv_heads; head += num_heads)
                tasks.push_back({sequence, first, std::min<int64_t>(first + TILE_QUERIES, length), head, head + num_heads});
        num_rows = std::max(num_rows, std::min<int64_t>(length, TILE_QUERIES) * group * num_heads);
    }
    // What comes next is taken before it is begun, so that its keys are there by then.
    const auto take = [&] {
        const int64_t task = taken++;
        return task < int64_t(tasks.size()) ? &tasks[task] : nullptr;
    };
    Worker<Kind> worker(a, num_rows, by_tiles, Pieces{scratch(Worker<Kind>::size(num_rows, a.head_dim))});
    for (const Task *task = take(), *next; task; task = next) {
        next = take();
        worker.run(*task, next);
    }
    team.meet();
}

} // namespace
