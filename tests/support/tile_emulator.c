// The instructions on tiles of a processor that has none (AMX: tiles and their bf16 product), done by the handler of the
// signal that such a processor answers them with. As Intel's manual defines them, volume 2, chapter 3: denormals are
// zeros, and of 32 products those at even and at odd places are summed apart. Slow, and true to what is encoded.
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static __thread struct {
    uint8_t shape[64]; // palette 1: bytes of a row from 16 on, rows from 48 on
    uint8_t data[TILES][ROWS][ROW_BYTES];
} tiles;
static struct sigaction before;

static int rows_of(int tile) { return tiles.shape[48 + tile]; }
static int bytes_of(int tile) { return tiles.shape[16 + 2 * tile] | tiles.shape[17 + 2 * tile] << 8; }

// A tile that is not configured, or a product of shapes that do not meet, is an error of the processor's too.
static void require(bool condition) {
    if (!condition) abort();
}

static float flushed(float value) { return fpclassify(value) == FP_SUBNORMAL ? copysignf(0, value) : value; }

static float wide(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return flushed(value);
}

static void multiply(int sums, int left, int right) {
    require(rows_of(sums) && rows_of(sums) == rows_of(left) && bytes_of(sums) == bytes_of(right) && rows_of(right) == bytes_of(left) / 4);
    for (int row = 0; row < rows_of(sums); row++)
        for (int column = 0; column < bytes_of(sums) / 4; column++) {
            float even = 0, odd = 0, sum;
            for (int pair = 0; pair < rows_of(right); pair++) {
                const uint8_t *x = tiles.data[left][row] + 4 * pair, *y = tiles.data[right][pair] + 4 * column;
                even = flushed(fmaf(wide(x), wide(y), even));
                odd = flushed(fmaf(wide(x + 2), wide(y + 2), odd));
            }
            memcpy(&sum, tiles.data[sums][row] + 4 * column, 4);
            sum = flushed(flushed(sum) + flushed(even + odd));
            memcpy(tiles.data[sums][row] + 4 * column, &sum, 4);
        }
}

static uint8_t *base_of(const greg_t *registers, int number) {
    static const int PLACES[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint8_t *)registers[PLACES[number]];
}

// Does the instruction at `code`; returns its length, 0 where it is none of these.
static int done(const uint8_t *code, const greg_t *registers) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || code[2] & 0x84) return 0; // VEX.128.0F38.W0
    const int prefix = code[2] & 3, operation = code[3] << 4 | prefix;
    const int mode = code[4] >> 6, reg = code[4] >> 3 & 7, rm = code[4] & 7;
    if (mode == 3) {
        if (operation == 0x490) memset(&tiles, 0, sizeof tiles); // tilerelease
        else if (operation == 0x493) require(rows_of(reg)), memset(tiles.data[reg], 0, sizeof tiles.data[reg]); // tilezero
        else if (operation == 0x5C2) multiply(reg, rm, ~code[2] >> 3 & 15);
        else return 0;
        return 5;
    }
    int length = 5, index = 4, scale = 0, base = rm | (code[1] & 0x20 ? 0 : 8);
    if (rm == 4) {
        scale = code[5] >> 6, index = (code[5] >> 3 & 7) | (code[1] & 0x40 ? 0 : 8), base = (code[5] & 7) | (code[1] & 0x20 ? 0 : 8);
        length++;
    }
    if (mode == 0 && (base & 7) == 5) return 0; // relative to the instruction, or no base: not made here
    int32_t displacement = 0;
    if (mode == 1) displacement = (int8_t)code[length], length += 1;
    else if (mode == 2) memcpy(&displacement, code + length, 4), length += 4;
    uint8_t *at = base_of(registers, base) + displacement;
    const int64_t stride = index == 4 ? 0 : (int64_t)base_of(registers, index) << scale;
    if (operation == 0x490) { // ldtilecfg
        require(at[0] == 1 && at[1] == 0);
        memset(&tiles, 0, sizeof tiles);
        memcpy(tiles.shape, at + stride, sizeof tiles.shape);
        for (int tile = 0; tile < TILES; tile++) require(rows_of(tile) <= ROWS && bytes_of(tile) <= ROW_BYTES && !rows_of(tile) == !bytes_of(tile));
    } else if (operation == 0x4B3 || operation == 0x4B1) { // tileloadd, tileloaddt1
        require(rm == 4 && rows_of(reg));
        memset(tiles.data[reg], 0, sizeof tiles.data[reg]);
        for (int row = 0; row < rows_of(reg); row++) memcpy(tiles.data[reg][row], at + row * stride, bytes_of(reg));
    } else if (operation == 0x4B2) { // tilestored
        require(rm == 4 && rows_of(reg));
        for (int row = 0; row < rows_of(reg); row++) memcpy(at + row * stride, tiles.data[reg][row], bytes_of(reg));
    } else {
        return 0;
    }
    return length;
}

static void handle(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const int length = done((const uint8_t *)registers[REG_RIP], registers);
    if (length) registers[REG_RIP] += length;
    else sigaction(SIGILL, &before, NULL); // it comes again, to whoever handled it before
}

void install(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER, .sa_sigaction = handle};
    sigaction(SIGILL, &action, &before);
}
