// The kernels for all aarch64 CPUs: ARMv8.0 with NEON.
#include "kernels.hpp"

#ifdef __aarch64__
#pragma GCC optimize("no-schedule-insns")  // otherwise GCC 12 spills accumulators
#include <arm_neon.h>

namespace dragoman {
namespace {

constexpr char kName[] = "neon";
constexpr int kCenter = 128;
constexpr int kProductRows = 4;  // largest number of rows of a tile

#include "vectors_neon.inc"
#include "products_neon.inc"
#include "products_centered.inc"
#include "kernels.inc"

}  // namespace

const Kernels* neon_kernels() { return &kTable; }

}  // namespace dragoman

#endif
