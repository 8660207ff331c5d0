// Products of rows and panels by vectors, and how rows and panels are taken by as many as registers hold. A panel is the
// weights of as many outputs as a vector has lanes: a vector for each group of inputs.
#pragma once
#include "kinds.h"

namespace {

// Calls `each(std::integral_constant<int, count>)` for a count from 1 to MOST.
template <int MOST, typename Each> inline void with_constant(int64_t count, const Each &each) {
    if constexpr (MOST > 1)
        if (count < MOST) return with_constant<MOST - 1>(count, each);
    each(std::integral_constant<int, MOST>());
}

constexpr int64_t num_parts_of(int64_t num_rows, int64_t most) { return (num_rows + most - 1) / most; }

// Calls `each(std::integral_constant<int, ROWS>, row)` for parts of at most MOST rows, as equal as they can be.
template <int MOST, typename Each> inline void in_parts(int64_t num_rows, const Each &each) {
    int64_t row = 0;
    for (int64_t left = num_parts_of(num_rows, MOST); left > 0; left--) {
        const int64_t count = (num_rows - row + left - 1) / left;
        with_constant<MOST>(count, [&](auto rows) { each(rows, row); });
        row += count;
    }
}

// Panels at once, at most: their sums of so many rows are in registers meanwhile, beside a panel's weights and a factor.
template <int ROWS> constexpr int MOST_PANELS = REGISTERS > 16 || ROWS < 3 ? 4 : 2;

// Calls `each(std::integral_constant<int, count>, panel)` for `num_panels` panels, as many at once as there may be.
template <int MOST = 4, typename Each> inline void each_panels(int64_t num_panels, const Each &each) {
    int64_t panel = 0;
    if constexpr (MOST == 4)
        for (; panel + 4 <= num_panels; panel += 4) each(std::integral_constant<int, 4>(), panel);
    for (; panel + 2 <= num_panels; panel += 2) each(std::integral_constant<int, 2>(), panel);
    for (; panel < num_panels; panel++) each(std::integral_constant<int, 1>(), panel);
}

// Asks for weights before they are read, however many rows keep the processor's own prefetching waiting: those of a stripe
// of `size` vectors some vectors ahead, as many as are read, where one part of the rows goes over it; where several do, each
// for its share of the next stripe's, so that memory never rests.
struct StripesAhead {
    static constexpr int64_t LINE = 64, AHEAD = 96 * LINE;
    const uint8_t *next, *end;
    int64_t at_once; // two lines are read in a step; half of them, or fewer, are a share
    StripesAhead(const Words *stripe, int64_t vectors, int64_t part, int64_t num_parts) : at_once(num_parts == 1 ? 2 : 1) {
        const int64_t size = vectors * sizeof(Words);
        next = reinterpret_cast<const uint8_t *>(stripe) + (num_parts == 1 ? AHEAD : size + size * part / num_parts), end = next + size / num_parts;
    }
    inline void operator()() {
        for (int64_t line = 0; line < at_once && next < end; line++, next += LINE) __builtin_prefetch(next, 0, 2);
    }
};

struct Nothing {
    inline void operator()() const {}
};

// Calls `each(std::integral_constant<int, first>, std::integral_constant<int, count>)` for parts of `ALL`, each of `MOST` but
// the last.
template <int ALL, int MOST, int FIRST = 0, typename Each> inline void each_part(const Each &each) {
    each(std::integral_constant<int, FIRST>(), std::integral_constant<int, std::min(MOST, ALL - FIRST)>());
    if constexpr (FIRST + MOST < ALL) each_part<ALL, MOST, FIRST + MOST>(each);
}

// What `tile` does, or `add_tile`, for `COUNT` of the panels: all their sums are in registers meanwhile.
template <typename Kind, bool ADDS, int ROWS, int FIRST, int COUNT, int ALL, typename Meanwhile>
inline void part_of_tile(const typename Kind::Factor *x, int64_t x_stride, const Words *panel, int64_t panel_stride, int64_t group_stride,
                         int64_t num_groups, Floats (*sums)[ALL], Meanwhile &meanwhile) {
    Floats own[ROWS][COUNT]; // nobody else has their address, or each would be written at each group
    const auto each_sum = [&](const auto &each) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
            for (int at = 0; at < COUNT; at++) each(own[row][at], row, at);
    };
    each_sum([&](Floats &sum, int row, int at) { sum = ADDS ? sums[row][FIRST + at] : Floats{}; });
    for (int64_t group = 0; group < num_groups; group++) {
        meanwhile();
        each_factor<Kind>([&](auto number) __attribute__((always_inline)) {
            Words parts[COUNT];
            for (int at = 0; at < COUNT; at++) parts[at] = Kind::template part<number.value>(panel[(FIRST + at) * panel_stride + group * group_stride]);
            each_sum([&](Floats &sum, int row, int at) { sum = Kind::dot(sum, parts[at], x[row * x_stride + group * Kind::FACTORS + number.value]); });
        });
    }
    each_sum([&](Floats &sum, int row, int at) { sums[row][FIRST + at] = sum; });
}

// Makes `sums`, or adds to them, the products of `ROWS` rows, `x_stride` factors apart, and `COUNT` panels. A panel's groups
// lie `group_stride` vectors apart, panels `panel_stride`. Each sum goes over the groups in order; `meanwhile` is done once
// for each group. Of more sums than registers hold, some after others.
template <typename Kind, bool ADDS, int ROWS, int COUNT, typename Meanwhile>
inline void any_tile(const typename Kind::Factor *x, int64_t x_stride, const Words *panel, int64_t panel_stride, int64_t group_stride,
                     int64_t num_groups, Floats (&sums)[ROWS][COUNT], Meanwhile &meanwhile) {
    constexpr int AT_ONCE = std::min(COUNT, MOST_PANELS<ROWS>), MOST_ROWS_AT_ONCE = (REGISTERS - 4) / AT_ONCE;
    constexpr int ROW_PARTS = num_parts_of(ROWS, MOST_ROWS_AT_ONCE), ROWS_AT_ONCE = num_parts_of(ROWS, ROW_PARTS); // equal ones
    each_part<ROWS, ROWS_AT_ONCE>([&](auto row, auto rows) __attribute__((always_inline)) {
        each_part<COUNT, AT_ONCE>([&](auto first, auto count) __attribute__((always_inline)) {
            const auto multiply = [&](auto &&beside) __attribute__((always_inline)) {
                part_of_tile<Kind, ADDS, rows.value, first.value, count.value>(x + row.value * x_stride, x_stride, panel, panel_stride, group_stride, num_groups, sums + row.value, beside);
            };
            if constexpr (row.value == 0 && first.value == 0) multiply(meanwhile);
            else multiply(Nothing());
        });
    });
}
template <typename Kind, int ROWS, int COUNT, typename Meanwhile = Nothing>
inline void tile(const typename Kind::Factor *x, int64_t x_stride, const Words *panel, int64_t panel_stride, int64_t group_stride,
                 int64_t num_groups, Floats (&sums)[ROWS][COUNT], Meanwhile &&meanwhile = {}) {
    any_tile<Kind, false>(x, x_stride, panel, panel_stride, group_stride, num_groups, sums, meanwhile);
}
template <typename Kind, int ROWS, int COUNT, typename Meanwhile = Nothing>
inline void add_tile(const typename Kind::Factor *x, int64_t x_stride, const Words *panel, int64_t panel_stride, int64_t group_stride,
                     int64_t num_groups, Floats (&sums)[ROWS][COUNT], Meanwhile &&meanwhile = {}) {
    any_tile<Kind, true>(x, x_stride, panel, panel_stride, group_stride, num_groups, sums, meanwhile);
}

} // namespace
