// The kernels for aarch64 with products of byte matrices (USMMLA).
#include "kernels.hpp"

#ifdef __aarch64__
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#pragma GCC optimize("no-schedule-insns")  // otherwise GCC 12 spills accumulators
#include <arm_neon.h>

namespace dragoman {
namespace {

constexpr char kName[] = "i8mm";
constexpr int kCenter = 0;
constexpr int kProductRows = 8;  // largest number of rows of a tile

#include "vectors_neon.inc"

// Adds the products of 4 columns of 4 inputs each and the inputs 4 J to 4 J + 3 of `x`.
template <int J>
INLINE int32x4_t dot(int32x4_t sums, int8x16_t columns, uint8x16_t x) {
  return vsudotq_laneq_s32(sums, columns, x, J);
}

#include "products_dots.inc"
#include "products_i8mm.inc"
#include "kernels.inc"

}  // namespace

const Kernels* i8mm_kernels() { return &kTable; }

}  // namespace dragoman

#endif
