// Kinds of elements, bf16 and fp32: how they are read, written, rounded and multiplied. bf16 products are summed in fp32:
// by the AVX512-BF16 instruction where there is one that is fast, and as products of fp32 otherwise.
#pragma once
#include "vectors.h"

namespace {

inline float from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
inline Floats from_bf16(Halves bits) { return (Floats)(widened(bits) << 16); }

// Rounds to nearest even, as torch does; NaN stays NaN.
inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7FC0;
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline Halves to_bf16(Floats value) {
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
    const Words bits = (Words)value;
    const Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const Ints is_nan = value != value;
    return __builtin_convertvector((Words)(is_nan & (Ints)splat(0x7FC0u)) | (Words)(~is_nan & (Ints)rounded), Halves);
#endif
}

// How elements of a type are multiplied. `STEP` of a weight lie behind one another in a lane, a group. Of a row there are
// `FACTORS` for each group, in order, and each multiplies its part of the group.
struct Bf16 {
    typedef uint16_t Element;
    static constexpr int STEP = 2;
#if defined(__AVX512BF16__) && !defined(SLOW_BF16_PRODUCTS)
    typedef uint32_t Factor; // the group itself
    static constexpr int FACTORS = 1;
    static inline Factor factor(const Element *row, int64_t at) { return load<Factor>(row + STEP * at); }
    template <int> static inline Words part(Words group) { return group; }
    static inline Floats dot(Floats sum, Words part, Factor factor) { return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)part, (__m512bh)splat(factor)); }
#else
    typedef float Factor;
    static constexpr int FACTORS = 2;
    static inline Factor factor(const Element *row, int64_t at) { return from_bf16(row[at]); }
    template <int NUMBER> static inline Words part(Words group) { return NUMBER ? group & 0xFFFF0000u : group << 16; }
    static inline Floats dot(Floats sum, Words part, Factor factor) { return sum + (Floats)part * splat(factor); }
#endif
    static inline Floats read(const Element *at) { return from_bf16(load<Halves>(at)); }
    static inline void write(Element *at, Floats value) { store(at, to_bf16(value)); }
    static inline void write(Element *at, Floats first, Floats second) {
#if defined(__AVX512BF16__)
        store(at, _mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
        write(at, first), write(at + LANES, second);
#endif
    }
    static inline Floats rounded(Floats value) { return from_bf16(to_bf16(value)); }
    static inline float read_one(Element value) { return from_bf16(value); }
    static inline Element write_one(float value) { return to_bf16(value); }
};

struct Fp32 {
    typedef float Element;
    typedef float Factor;
    static constexpr int STEP = 1, FACTORS = 1;
    static inline Factor factor(const Element *row, int64_t at) { return row[at]; }
    template <int> static inline Words part(Words group) { return group; }
    static inline Floats dot(Floats sum, Words part, Factor factor) { return sum + (Floats)part * splat(factor); }
    static inline Floats read(const Element *at) { return load<Floats>(at); }
    static inline void write(Element *at, Floats value) { store(at, value); }
    static inline void write(Element *at, Floats first, Floats second) { store(at, first), store(at + LANES, second); }
    static inline Floats rounded(Floats value) { return value; }
    static inline float read_one(Element value) { return value; }
    static inline Element write_one(float value) { return value; }
};

// Calls `each(std::integral_constant<int, number>)` for each factor of a group.
template <typename Kind, typename Each> inline void each_factor(const Each &each) {
    each(std::integral_constant<int, 0>());
    if constexpr (Kind::FACTORS == 2) each(std::integral_constant<int, 1>());
}

// Whether factors are something else than the elements as they lie.
template <typename Kind> constexpr bool ARE_WIDENED = sizeof(typename Kind::Factor) * Kind::FACTORS > sizeof(typename Kind::Element) * Kind::STEP;

// The factors of `count` elements: those themselves, or in `room`, which has place for as many floats then.
template <typename Kind> inline const typename Kind::Factor *factors_of(const typename Kind::Element *row, int64_t count, float *room) {
    if constexpr (!ARE_WIDENED<Kind>) return reinterpret_cast<const typename Kind::Factor *>(row);
    else {
        for (int64_t at = 0; at < count; at++) room[at] = Kind::factor(row, at);
        return room;
    }
}

// Reads a vector of a row, of which `left` are left: -inf stands for what would be behind its end.
template <typename Kind> inline Floats read_to_the_end(const typename Kind::Element *at, int64_t left) {
    if (left >= LANES) return Kind::read(at);
    typename Kind::Element last[LANES];
    std::fill(last, last + LANES, Kind::write_one(-std::numeric_limits<float>::infinity()));
    std::copy(at, at + left, last);
    return Kind::read(last);
}

} // namespace
