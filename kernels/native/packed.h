// Packed weights: stripes of 32 outputs, `[ceil(N / 32), K / STEP, 32, STEP]`, zeros behind the last output: who does some
// stripes reads one stream. A panel is a vector of its outputs; 16 gates and their `up` lie in one stripe.
#pragma once
#include "vectors.h"

namespace {

constexpr int STRIPE = 32, PANELS = STRIPE / LANES;

struct Matrix {
    const void *packed;     // elements of a kind, or where there are scales, codes: see coded.h
    const uint16_t *scales; // bf16, or null
};

} // namespace
