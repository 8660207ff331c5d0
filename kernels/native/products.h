// Products of rows and panels by vectors, and how rows and panels are taken by as many as registers hold. A panel is 16
// outputs' weights: a vector for each group of inputs.
#pragma once
#include "kinds.h"

namespace {

// Calls `each(std::integral_constant<int, count>)` for a count from 1 to MOST.
template <int MOST, typename Each> inline void with_constant(int64_t count, const Each &each) {
    if constexpr (MOST > 1)
        if (count < MOST) return with_constant<MOST - 1>(count, each);
    each(std::integral_constant<int, MOST>());
}

inline int64_t num_parts_of(int64_t num_rows, int64_t most) { return (num_rows + most - 1) / most; }

// Calls `each(std::integral_constant<int, ROWS>, row)` for parts of at most MOST rows, as equal as they can be.
template <int MOST, typename Each> inline void in_parts(int64_t num_rows, const Each &each) {
    int64_t row = 0;
    for (int64_t left = num_parts_of(num_rows, MOST); left > 0; left--) {
        const int64_t count = (num_rows - row + left - 1) / left;
        with_constant<MOST>(count, [&](auto rows) { each(rows, row); });
        row += count;
    }
}

// Calls `each(std::integral_constant<int, count>, panel)` for `num_panels` panels, as many at once as there may be.
template <typename Each> inline void each_panels(int64_t num_panels, const Each &each) {
    int64_t panel = 0;
    for (; panel + 4 <= num_panels; panel += 4) each(std::integral_constant<int, 4>(), panel);
    for (; panel + 2 <= num_panels; panel += 2) each(std::integral_constant<int, 2>(), panel);
    for (; panel < num_panels; panel++) each(std::integral_constant<int, 1>(), panel);
}

// Asks for weights before they are read, however many rows keep the processor's own prefetching waiting: those of a stripe
// of `size` vectors some vectors ahead, as many as are read, where one part of the rows goes over it; where several do, each
// for its share of the next stripe's, so that memory never rests.
struct StripesAhead {
    static constexpr int64_t AHEAD = 96;
    const U16 *next, *end;
    int64_t at_once; // two are read in a step; half of them, or fewer, are a share
    StripesAhead(const U16 *stripe, int64_t size, int64_t part, int64_t num_parts)
        : next(num_parts == 1 ? stripe + AHEAD : stripe + size + size * part / num_parts), end(next + size / num_parts), at_once(num_parts == 1 ? 2 : 1) {}
    inline void operator()() {
        for (int64_t line = 0; line < at_once && next < end; line++) __builtin_prefetch(next++, 0, 2);
    }
};

struct Nothing {
    inline void operator()() const {}
};

// Calls `each(row, at)` for all sums of some rows and panels, without a loop.
template <int ROWS, int COUNT, typename Each> inline void each_sum(const Each &each) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int at = 0; at < COUNT; at++) each(row, at);
}

// Adds to `sums` the products of `ROWS` rows, `x_stride` factors apart, and `COUNT` panels. A panel's groups lie
// `group_stride` vectors apart, panels `panel_stride`. Each sum goes over the groups in order; `meanwhile` is done once
// for each group.
template <typename Kind, int ROWS, int COUNT, typename Meanwhile = Nothing>
inline void add_tile(const typename Kind::Factor *x, int64_t x_stride, const U16 *panel, int64_t panel_stride, int64_t group_stride,
                     int64_t num_groups, F16 (&sums)[ROWS][COUNT], Meanwhile &&meanwhile = {}) {
    F16 own[ROWS][COUNT]; // in registers: whoever has the address of `sums` might be asked in between
    each_sum<ROWS, COUNT>([&](int row, int at) { own[row][at] = sums[row][at]; });
    for (int64_t group = 0; group < num_groups; group++) {
        meanwhile();
        each_factor<Kind>([&](auto number) __attribute__((always_inline)) {
            U16 parts[COUNT];
            for (int at = 0; at < COUNT; at++) parts[at] = Kind::template part<number.value>(panel[at * panel_stride + group * group_stride]);
            each_sum<ROWS, COUNT>([&](int row, int at) { own[row][at] = Kind::dot(own[row][at], parts[at], x[row * x_stride + group * Kind::FACTORS + number.value]); });
        });
    }
    each_sum<ROWS, COUNT>([&](int row, int at) { sums[row][at] = own[row][at]; });
}

// Likewise, from zero.
template <typename Kind, int ROWS, int COUNT, typename Meanwhile = Nothing>
inline void tile(const typename Kind::Factor *x, int64_t x_stride, const U16 *panel, int64_t panel_stride, int64_t group_stride,
                 int64_t num_groups, F16 (&sums)[ROWS][COUNT], Meanwhile &&meanwhile = {}) {
    each_sum<ROWS, COUNT>([&](int row, int at) { sums[row][at] = F16{}; });
    add_tile<Kind, ROWS, COUNT>(x, x_stride, panel, panel_stride, group_stride, num_groups, sums, meanwhile);
}

} // namespace
