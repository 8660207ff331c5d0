// What adapters (LoRA) add to products: of a row x, its own adapter's up (down x). Of a row without one nothing changes,
// and a row's values are the same in any batch.
#pragma once
#include "packed.h"
#include "products.h"

namespace {

constexpr int CHAINS = 4; // a rank's groups are a multiple

// Of one product, fused or not: both packed; R is a multiple of 16. No down: nothing is added.
struct LowRank {
    const void *down, *up; // [R, K], [N, R]
    int64_t rank;
};

// One adapter's part in a layer.
struct Adapter {
    LowRank qkv, o, gate_up, down;
};

// What is added to the sums of a product: `low` has `down x` of the rows that have an adapter, which `numbers` says, from
// 1 on. No numbers: to none of them.
struct Added {
    const Adapter *adapters = nullptr;
    LowRank Adapter::*part = nullptr;
    const int64_t *numbers = nullptr; // [T]
    const void *low = nullptr;        // [T, width]
    int64_t width = 0;

    // To those of a row and a stripe.
    template <typename Kind> inline void to(int64_t row, int64_t stripe, Floats (&sums)[PANELS]) const {
        if (!numbers || !numbers[row]) return;
        const LowRank &own = adapters[numbers[row] - 1].*part;
        if (!own.down) return;
        const int64_t num_groups = own.rank / Kind::STEP;
        const auto *x = static_cast<const typename Kind::Element *>(low) + row * width;
        const Words *weights = static_cast<const Words *>(own.up) + stripe * PANELS * num_groups;
        Floats parts[CHAINS][PANELS] = {}; // a sum by itself would wait for itself
        for (int64_t group = 0; group < num_groups; group += CHAINS)
            for (int64_t chain = 0; chain < CHAINS; chain++)
                each_factor<Kind>([&](auto number) {
                    const auto factor = Kind::factor(x, (group + chain) * Kind::FACTORS + number.value);
                    for (int panel = 0; panel < PANELS; panel++)
                        parts[chain][panel] = Kind::dot(parts[chain][panel], Kind::template part<number.value>(weights[(group + chain) * PANELS + panel]), factor);
                });
        for (int panel = 0; panel < PANELS; panel++) sums[panel] += (parts[0][panel] + parts[1][panel]) + (parts[2][panel] + parts[3][panel]);
    }
};

} // namespace
