// What tokens that were there lose or gain, as `kernels/logit_edits.py` defines it: in place, and nothing is touched but
// the logits of those tokens. A team divides the rows.
#pragma once
#include "team.h"
#include <vector>

namespace {

struct Penalties { // columns of `count` rows; either `repetition` or the other two
    float *logits; // [., size]
    int64_t size, count, width;
    const int64_t *rows, *tokens; // which of the logits; [count, width], where what is no token pads
    const float *repetition, *presence, *frequency;
};

inline void penalise(const Penalties &asked, const Team &team) {
    static thread_local std::vector<int32_t> counts; // by token; zeros between calls
    static thread_local std::vector<int64_t> there;
    if (int64_t(counts.size()) < asked.size) counts.resize(asked.size);
    for (int64_t at = team.first(asked.count); at < team.end(asked.count); at++) {
        const int64_t *tokens = asked.tokens + at * asked.width;
        float *logits = asked.logits + asked.rows[at] * asked.size;
        there.clear();
        for (int64_t place = 0; place < asked.width; place++)
            if (tokens[place] >= 0 && tokens[place] < asked.size && counts[tokens[place]]++ == 0) there.push_back(tokens[place]);
        for (const int64_t token : there) {
            float &x = logits[token];
            if (asked.repetition) {
                x = x < 0 ? x * asked.repetition[at] : x / asked.repetition[at];
            } else {
                // By way of a double, or the compiler would fuse product and difference, which rounds otherwise.
                x -= float(double(asked.frequency[at]) * counts[token]);
                x -= asked.presence[at];
            }
            counts[token] = 0;
        }
    }
    team.meet();
}

} // namespace
