// The largest of each row and where it is, the first of equals; NaN, and any place, where a row has NaN. A team
// divides the rows.
#pragma once
#include "kinds.h"
#include "team.h"
#include <limits>

namespace {

template <typename Kind> void largest(const void *x_, int64_t num_rows, int64_t size, float *values, int64_t *places, const Team &team) {
    for (int64_t row = team.first(num_rows); row < team.end(num_rows); row++) {
        const auto *x = static_cast<const typename Kind::Element *>(x_) + row * size;
        Floats most = splat(-std::numeric_limits<float>::infinity());
        Ints place = RAMP, are_nan{}; // of each lane
        for (int64_t at = 0; at < size; at += LANES) {
            const Floats value = read_to_the_end<Kind>(x + at, size - at);
            const Ints is_more = value > most;
            are_nan |= value != value;
            most = is_more ? value : most;
            place = is_more ? RAMP + int32_t(at) : place;
        }
        values[row] = -std::numeric_limits<float>::infinity(), places[row] = 0;
        for (int lane = 0; lane < LANES; lane++) {
            if (are_nan[lane]) values[row] = std::numeric_limits<float>::quiet_NaN();
            if (most[lane] > values[row] || (most[lane] == values[row] && place[lane] < places[row])) values[row] = most[lane], places[row] = place[lane];
        }
    }
    team.meet();
}

} // namespace
