/* Copies a block and computes its xxh3_64 in the same pass, so that memory is read once and what was summed is what was
 * written. By the description of XXH3 for inputs of more than 240 bytes, with a seed and the default secret:
 * https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Lengths are multiples of 64.
 *
 * Stores go past the caches: through them, each line is fetched before it is overwritten, a third of all that the copy
 * moves. The decode step that reads the blocks next has them from memory either way, but for the smallest prompts.
 */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian processors"
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { STRIPE = 64, LANES = 8, SECRET_SIZE = 192, STRIPES_PER_BLOCK = (SECRET_SIZE - STRIPE) / 8 };

static const uint64_t P32_1 = 0x9E3779B1u, P32_2 = 0x85EBCA77u, P32_3 = 0xC2B2AE3Du;
static const uint64_t P64_1 = 0x9E3779B185EBCA87u, P64_2 = 0xC2B2AE3D27D4EB4Fu, P64_3 = 0x165667B19E3779F9u,
                      P64_4 = 0x85EBCA77C2B2AE63u, P64_5 = 0x27D4EB2F165667C5u;

static const uint8_t SECRET[SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t load64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

/* One stripe: 64 bytes from `source` to `target`, past the caches if a whole line is written, and into the lanes. */
#if defined(__AVX512F__)
static inline void stripe(uint64_t *lanes, uint8_t *target, const uint8_t *source, const uint8_t *secret, int is_line) {
    __m512i data = _mm512_loadu_si512(source);
    __m512i key = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
    __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
    __m512i swapped = _mm512_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
    __m512i sum = _mm512_add_epi64(_mm512_load_si512(lanes), _mm512_add_epi64(product, swapped));
    _mm512_store_si512(lanes, sum);
    if (is_line)
        _mm512_stream_si512((void *)target, data);
    else
        _mm512_storeu_si512(target, data);
}
#elif defined(__AVX2__)
static inline void stripe(uint64_t *lanes, uint8_t *target, const uint8_t *source, const uint8_t *secret, int is_line) {
    for (int half = 0; half < STRIPE; half += 32) {
        __m256i data = _mm256_loadu_si256((const __m256i *)(source + half));
        __m256i key = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)(secret + half)));
        __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
        __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
        __m256i *sum = (__m256i *)((uint8_t *)lanes + half);
        _mm256_store_si256(sum, _mm256_add_epi64(_mm256_load_si256(sum), _mm256_add_epi64(product, swapped)));
        if (is_line)
            _mm256_stream_si256((__m256i *)(target + half), data);
        else
            _mm256_storeu_si256((__m256i *)(target + half), data);
    }
}
#else
static inline void stripe(uint64_t *lanes, uint8_t *target, const uint8_t *source, const uint8_t *secret, int is_line) {
    (void)is_line;
    uint64_t data[LANES];
    memcpy(data, source, STRIPE);
    memcpy(target, data, STRIPE);
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t key = data[lane] ^ load64(secret + 8 * lane);
        lanes[lane ^ 1] += data[lane];
        lanes[lane] += (key & 0xFFFFFFFFu) * (key >> 32);
    }
}
#endif

static inline uint64_t fold(uint64_t left, uint64_t right) {
    unsigned __int128 product = (unsigned __int128)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Copy `size` bytes, a multiple of 64 and more than 240; return their xxh3_64 with `seed`. */
uint64_t summed_copy(uint8_t *target, const uint8_t *source, size_t size, uint64_t seed) {
    uint64_t lanes[LANES] __attribute__((aligned(64))) = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    uint8_t secret[SECRET_SIZE];
    for (int at = 0; at < SECRET_SIZE; at += 16) {
        uint64_t low = load64(SECRET + at) + seed, high = load64(SECRET + at + 8) - seed;
        memcpy(secret + at, &low, 8);
        memcpy(secret + at + 8, &high, 8);
    }
    const int are_lines = (uintptr_t)target % STRIPE == 0;
    const size_t num_stripes = size / STRIPE - 1; /* the last one has a part of the secret of its own */
    for (size_t number = 0; number < num_stripes; number++) {
        const int place = (int)(number % STRIPES_PER_BLOCK);
        stripe(lanes, target + number * STRIPE, source + number * STRIPE, secret + 8 * place, are_lines);
        if (place == STRIPES_PER_BLOCK - 1)
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] = (lanes[lane] ^ lanes[lane] >> 47 ^ load64(secret + SECRET_SIZE - STRIPE + 8 * lane)) * P32_1;
    }
    const size_t last = num_stripes * STRIPE;
    stripe(lanes, target + last, source + last, secret + SECRET_SIZE - STRIPE - 7, are_lines);
#if defined(__AVX2__)
    _mm_sfence(); /* whoever is told that the block is there shall see it */
#endif
    uint64_t sum = size * P64_1;
    for (int pair = 0; pair < LANES; pair += 2)
        sum += fold(lanes[pair] ^ load64(secret + 11 + 8 * pair), lanes[pair + 1] ^ load64(secret + 11 + 8 * pair + 8));
    sum = (sum ^ sum >> 37) * 0x165667919E3779F9u;
    return sum ^ sum >> 32;
}
