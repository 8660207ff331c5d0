// Memory of a thread for the time of one op, and its pieces.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

// Kept from call to call: fresh pages would cost more than what is computed in them. Whoever asks takes it from the last.
inline uint8_t *scratch(size_t size) {
    struct Held {
        uint8_t *memory = nullptr;
        size_t size = 0;
        ~Held() { std::free(memory); }
    };
    static thread_local Held held;
    if (held.size < size) {
        std::free(held.memory);
        held.size = 0;
        held.memory = static_cast<uint8_t *>(std::aligned_alloc(64, (size + 63) / 64 * 64));
        if (held.memory == nullptr) throw std::bad_alloc(); // among threads it ends the process, which then says why
        held.size = size;
    }
    return held.memory;
}

// Takes arrays from some memory, one behind another, each from the beginning of a cache line on.
struct Pieces {
    uint8_t *memory;

    // Bytes that an array takes.
    template <typename T> static size_t size(int64_t count) { return (count * sizeof(T) + 63) / 64 * 64; }

    template <typename T> T *take(int64_t count) {
        uint8_t *taken = memory;
        memory += size<T>(count);
        return reinterpret_cast<T *>(taken);
    }
};

} // namespace
