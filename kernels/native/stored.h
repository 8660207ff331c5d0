// How keys and values lie in a pool, whatever is computed with: kernels/kv_elements.py defines it, and of finite numbers
// this is bit for bit the same. A quantised slot is `dim` codes of one byte, and behind them their scale, a bfloat16.
#pragma once
#include "kinds.h"

namespace {

enum Stored : int64_t { STORED_BF16, STORED_FP32, STORED_INT8, STORED_FP8 };
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));

constexpr float SMALLEST_SCALE = 0x1p-100f;
constexpr float MAGIC = 12582912.0f; // added and subtracted, it rounds to an integer

// What is computed with lies in the pool as it is.
template <typename Kind> inline bool is_plain(int64_t stored) { return stored == (std::is_same_v<Kind, Bf16> ? STORED_BF16 : STORED_FP32); }

// Where no instruction is named, in two steps, each to twice or half the width: gcc finds none for both at once.
inline Ints widened(Bytes codes) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtepi8_epi32(0xFFFF, (__m128i)codes);
#else
    return __builtin_convertvector(__builtin_convertvector(codes, Shorts), Ints);
#endif
}
inline Bytes narrowed(Ints codes) { return __builtin_convertvector(__builtin_convertvector(codes, Shorts), Bytes); }

inline Floats from_int8(Bytes codes, Floats scale) { return __builtin_convertvector(widened(codes), Floats) * scale; }
// Ties to even. By an instruction where there is one: a sum might be fused with the product that `value` is, and then be
// the nearest of what that was before it was rounded.
inline Ints nearest(Floats value) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtps_epi32(0xFFFF, (__m512)value);
#elif defined(__AVX__)
    return (Ints)_mm256_cvtps_epi32((__m256)value);
#elif defined(__aarch64__)
    return (Ints)vcvtnq_s32_f32((float32x4_t)value);
#else
    return __builtin_convertvector((value + splat(MAGIC)) - splat(MAGIC), Ints);
#endif
}
inline Bytes to_int8(Floats value) { return narrowed(nearest(value)); }

// e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; no code but those of finite numbers. What they are times a scale.
inline Floats from_fp8(Bytes codes, Floats scale) {
#if defined(__AVX512F__)
    // The same bits in a half, whose bias is 15, are a number 2^-8 times as large, subnormal ones too; no scale is so large
    // that 2^8 times it is no float. Above the seven bits of a number its sign comes twice.
    const Shorts half = __builtin_convertvector(codes, Shorts) << 7 & int16_t(0xBFFF);
    return (Floats)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)half) * (scale * splat(0x1p8f));
#else
    const Words bits = (Words)widened(codes), rest = bits & 0x7F;
    const Floats subnormal = __builtin_convertvector((Ints)rest, Floats) * splat(0x1p-9f), normal = (Floats)((rest << 20) + (120u << 23));
    return (Floats)((Words)(rest < 8 ? subnormal : normal) | (bits & 0x80) << 24) * scale;
#endif
}

inline Bytes to_fp8(Floats value) { // of at most 464: what lies between two codes goes to the nearer, ties to even
    const Words bits = (Words)value, positive = bits & 0x7FFFFFFFu;
    const Words normal = ((positive + 0x7FFFF + (positive >> 20 & 1)) >> 20) - (120u << 3);
    const Words subnormal = (Words)nearest((Floats)positive * splat(0x1p9f));
    return narrowed((Ints)(((Floats)positive < splat(0x1p-6f) ? subnormal : normal) | (bits >> 24 & 0x80)));
}

// The largest of some numbers by their bits. A NaN has the most of all, so it makes its scale NaN, and with it whatever is
// read.
template <typename Kind> inline float largest_of(const typename Kind::Element *from, int64_t count) {
    const auto more = [](Words left, Words right) { return left > right ? left : right; };
    Words most{};
    for (int64_t at = 0; at < count; at += LANES) most = more((Words)Kind::read(from + at) & 0x7FFFFFFFu, most);
    return ((Floats)reduced(most, more))[0];
}

template <typename Kind> inline uint16_t scale_of(const typename Kind::Element *from, int64_t dim, float largest_code) {
    const uint16_t scale = to_bf16(largest_of<Kind>(from, dim) / largest_code);
    return from_bf16(scale) < SMALLEST_SCALE ? to_bf16(SMALLEST_SCALE) : scale;
}

// `dim` numbers of one token and head into the pool.
template <typename Kind> inline void encode(int64_t stored, const typename Kind::Element *from, uint8_t *to, int64_t dim) {
    if (stored == STORED_BF16 || stored == STORED_FP32) {
        for (int64_t d = 0; d < dim; d += LANES)
            if (stored == STORED_BF16) store(to + 2 * d, to_bf16(Kind::read(from + d)));
            else store(to + 4 * d, Kind::read(from + d));
        return;
    }
    const uint16_t bits = scale_of<Kind>(from, dim, stored == STORED_INT8 ? 127.0f : 448.0f);
    const Floats scale = splat(from_bf16(bits));
    for (int64_t d = 0; d < dim; d += LANES) {
        const Floats value = Kind::read(from + d) / scale;
        store(to + d, stored == STORED_FP8 ? to_fp8(value) : to_int8(value));
    }
    store(to + dim, bits);
}

// By twos, since two vectors are rounded by one instruction.
template <typename Kind, typename Value> inline void decode_codes(const uint8_t *from, typename Kind::Element *to, int64_t dim, const Value &value_of) {
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) Kind::write(to + d, value_of(load<Bytes>(from + d)), value_of(load<Bytes>(from + d + LANES)));
    if (d < dim) Kind::write(to + d, value_of(load<Bytes>(from + d)));
}

// And out of it, rounded to what is computed with.
template <typename Kind> inline void decode(int64_t stored, const uint8_t *from, typename Kind::Element *to, int64_t dim) {
    switch (stored) {
    case STORED_BF16:
        for (int64_t d = 0; d < dim; d += LANES) Kind::write(to + d, from_bf16(load<Halves>(from + 2 * d)));
        break;
    case STORED_FP32:
        for (int64_t d = 0; d < dim; d += LANES) Kind::write(to + d, load<Floats>(from + 4 * d));
        break;
    default:
        const Floats scale = splat(from_bf16(load<uint16_t>(from + dim)));
        if (stored == STORED_FP8) decode_codes<Kind>(from, to, dim, [&](Bytes codes) { return from_fp8(codes, scale); });
        else decode_codes<Kind>(from, to, dim, [&](Bytes codes) { return from_int8(codes, scale); });
    }
}

} // namespace
