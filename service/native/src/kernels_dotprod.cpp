// The kernels for aarch64 with dot products of bytes (SDOT).
#include "kernels.hpp"

#ifdef __aarch64__
#pragma GCC target("arch=armv8.2-a+dotprod")
#pragma GCC optimize("no-schedule-insns")  // otherwise GCC 12 spills accumulators
#include <arm_neon.h>

namespace dragoman {
namespace {

constexpr char kName[] = "dotprod";
constexpr int kCenter = 128;
constexpr int kProductRows = 8;  // largest number of rows of a tile

#include "vectors_neon.inc"

// Adds the products of 4 columns of 4 inputs each and the inputs 4 J to 4 J + 3 of `x`.
template <int J>
INLINE int32x4_t dot(int32x4_t sums, int8x16_t columns, uint8x16_t x) {
  return vdotq_laneq_s32(sums, columns, vreinterpretq_s8_u8(x), J);
}

#include "products_dots.inc"
#include "products_centered.inc"
#include "kernels.inc"

}  // namespace

const Kernels* dotprod_kernels() { return &kTable; }

}  // namespace dragoman

#endif
