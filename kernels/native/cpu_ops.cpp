// The ops of a decoder on a CPU, as a plain C interface: pointers and sizes, no torch. Here threads begin and end.
#include "attention.h"
#include "draw.h"
#include "largest.h"
#include "layer.h"
#include "linear.h"
#include "penalties.h"
#include "rows.h"
#include "tiles.h"

namespace {

// All threads do `op` as a team, or one of them where it is little.
template <typename Op> inline void together(bool is_much, const Op &op) {
#pragma omp parallel if (is_much)
    {
        op(Team::together());
        release_tiles();
    }
}

} // namespace

extern "C" {

bool tiles_are_on = false;

// Before anything else; returns whether products are made by tiles from now on.
bool use_tiles() { return tiles_are_on = may_use_tiles(); }
// Bytes for each row that products of codes, of rows of so many inputs, need as `room`.
int64_t room_per_row(int64_t inputs) { return coded_row_size(inputs); }
void linear_bf16(const void *x, const Matrix *weight, const float *bias, void *room, void *y, int64_t rows, int64_t inputs, int64_t outputs) {
    together(true, [&](const Team &team) { linear<Bf16, Bf16>(x, *weight, bias, room, y, rows, inputs, outputs, team); });
}
void linear_fp32(const void *x, const Matrix *weight, const float *bias, void *room, void *y, int64_t rows, int64_t inputs, int64_t outputs) {
    together(true, [&](const Team &team) { linear<Fp32, Fp32>(x, *weight, bias, room, y, rows, inputs, outputs, team); });
}
void attention_bf16(const Attention *a) {
    std::atomic<int64_t> taken{0};
    together(true, [&](const Team &team) { attention<Bf16>(*a, taken, team); });
}
void attention_fp32(const Attention *a) {
    std::atomic<int64_t> taken{0};
    together(true, [&](const Team &team) { attention<Fp32>(*a, taken, team); });
}
void largest_bf16(const void *x, int64_t rows, int64_t size, float *values, int64_t *places) {
    together(rows > 1, [&](const Team &team) { largest<Bf16>(x, rows, size, values, places, team); });
}
void largest_fp32(const void *x, int64_t rows, int64_t size, float *values, int64_t *places) {
    together(rows > 1, [&](const Team &team) { largest<Fp32>(x, rows, size, values, places, team); });
}
void draw_bf16(const Draws *draws) {
    together(draws->count > 1, [&](const Team &team) { draw<Bf16>(*draws, team); });
}
void draw_fp32(const Draws *draws) {
    together(draws->count > 1, [&](const Team &team) { draw<Fp32>(*draws, team); });
}
void penalise_fp32(const Penalties *asked) {
    together(asked->count > 1, [&](const Team &team) { penalise(*asked, team); });
}
void rms_norm_bf16(const void *x, const void *residual, const void *weight, void *normed, void *total, int64_t outer, int64_t inner, int64_t size, int64_t stride, float eps) {
    together(outer > 64, [&](const Team &team) { rms_norm<Bf16>(x, residual, weight, normed, total, outer, inner, size, stride, inner * size, eps, team); });
}
void rms_norm_fp32(const void *x, const void *residual, const void *weight, void *normed, void *total, int64_t outer, int64_t inner, int64_t size, int64_t stride, float eps) {
    together(outer > 64, [&](const Team &team) { rms_norm<Fp32>(x, residual, weight, normed, total, outer, inner, size, stride, inner * size, eps, team); });
}
void silu_and_mul_bf16(const void *gate_up, void *out, int64_t rows, int64_t size) {
    together(rows > 16, [&](const Team &team) { silu_and_mul<Bf16>(gate_up, out, rows, size, team); });
}
void silu_and_mul_fp32(const void *gate_up, void *out, int64_t rows, int64_t size) {
    together(rows > 16, [&](const Team &team) { silu_and_mul<Fp32>(gate_up, out, rows, size, team); });
}
void append_kv_bf16(const Append *a) {
    together(a->num_rows > 64, [&](const Team &team) { append_kv<Bf16>(*a, team); });
}
void append_kv_fp32(const Append *a) {
    together(a->num_rows > 64, [&](const Team &team) { append_kv<Fp32>(*a, team); });
}
void layers_bf16(const Layer *weights, int64_t count, const Pass *pass, void *kv, int64_t layer_bytes, bool is_first) {
    std::vector<std::atomic<int64_t>> taken(count); // from 0
    together(true, [&](const Team &team) { layers<Bf16>(weights, count, *pass, kv, layer_bytes, is_first, taken.data(), team); });
}
void layers_fp32(const Layer *weights, int64_t count, const Pass *pass, void *kv, int64_t layer_bytes, bool is_first) {
    std::vector<std::atomic<int64_t>> taken(count); // from 0
    together(true, [&](const Team &team) { layers<Fp32>(weights, count, *pass, kv, layer_bytes, is_first, taken.data(), team); });
}
void layer_before_bf16(const Layer *weights, const Pass *pass, void *kv, bool is_first) {
    together(true, [&](const Team &team) { layer_before<Bf16>(*weights, *pass, kv, is_first, team); });
}
void layer_before_fp32(const Layer *weights, const Pass *pass, void *kv, bool is_first) {
    together(true, [&](const Team &team) { layer_before<Fp32>(*weights, *pass, kv, is_first, team); });
}
void layer_after_bf16(const Layer *weights, const Pass *pass) {
    together(true, [&](const Team &team) { layer_after<Bf16>(*weights, *pass, team); });
}
void layer_after_fp32(const Layer *weights, const Pass *pass) {
    together(true, [&](const Team &team) { layer_after<Fp32>(*weights, *pass, team); });
}
}
