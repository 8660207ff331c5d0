// Packed weights: stripes of 32 outputs, `[ceil(N / 32), K / STEP, 32, STEP]`, zeros behind the last output: who does some
// stripes reads one stream. A panel is 16 of its outputs, a vector; a gate and its `up` lie in one stripe.
#pragma once
#include <cstdint>

namespace {

constexpr int PANELS = 2; // of a stripe

struct Matrix {
    const void *packed;     // elements of a kind, or where there are scales, codes: see coded.h
    const uint16_t *scales; // bf16, or null
};

} // namespace
