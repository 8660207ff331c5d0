// Who does an op: threads that divide it among them and meet at its end, or one that has it to itself and waits for nobody.
#pragma once
#include <cstdint>
#include <omp.h>

namespace {

struct Team {
    int64_t part = 0, parts = 1;

    // All threads of a region.
    static Team together() { return {omp_get_thread_num(), omp_get_num_threads()}; }

    // Our part of `count` things: from, and up to.
    int64_t first(int64_t count) const { return count * part / parts; }
    int64_t end(int64_t count) const { return count * (part + 1) / parts; }

    // Waits for the others. All of them come here, whether there was anything to do or not.
    void meet() const {
        if (parts == 1) return;
#pragma omp barrier
    }
};

} // namespace
