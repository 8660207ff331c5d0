// 2^x of vectors, and what is made of it.
#pragma once
#include "vectors.h"

namespace {

// 2^x by its whole part and a polynomial of the rest: relative error 1e-7; 0 far below, NaN where x is.
inline Floats exp2(Floats x) {
#if defined(__AVX512DQ__)
    const Floats f = (Floats)_mm512_maskz_reduce_ps(0xFFFF, (__m512)x, 1); // x - floor(x)
    Floats p = splat(1.877576587e-3f);
    p = p * f + splat(8.989340304e-3f);
    p = p * f + splat(5.582631787e-2f);
    p = p * f + splat(2.401536171e-1f);
    p = p * f + splat(6.931530732e-1f);
    p = p * f + splat(0.9999999251f);
    return (Floats)_mm512_maskz_scalef_ps(0xFFFF, (__m512)p, (__m512)x); // times 2^floor(x)
#else
    const Floats t = larger(x < splat(127.0f) ? x : splat(127.0f), splat(-126.0f));
    const Floats n = (t + splat(12582912.0f)) - splat(12582912.0f);
    const Floats f = t - n;
    Floats p = splat(1.5353362e-4f);
    p = p * f + splat(1.3398874e-3f);
    p = p * f + splat(9.6184373e-3f);
    p = p * f + splat(5.5503324e-2f);
    p = p * f + splat(2.4022648e-1f);
    p = p * f + splat(6.9314718e-1f);
    p = p * f + splat(1.0f);
    const Floats result = (Floats)((Ints)p + (__builtin_convertvector(n, Ints) << 23));
    return x < splat(-126.0f) ? Floats{} : x == x ? result : x;
#endif
}

constexpr float LOG2_E = 1.44269504f;

// 1 / (1 + e^-x); of bf16 to 1e-7, where the processor begins with 14 bits of an inverse.
template <typename Kind> inline Floats sigmoid(Floats x) {
    const Floats power = x * splat(-LOG2_E), sum = splat(1.0f) + exp2(power < splat(126.0f) ? power : splat(126.0f));
#if defined(__AVX512F__)
    if constexpr (Kind::STEP == 2) {
        const Floats inverse = (Floats)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)sum);
        return inverse * (splat(2.0f) - sum * inverse);
    }
#endif
    return splat(1.0f) / sum;
}

} // namespace
