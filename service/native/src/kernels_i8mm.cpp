// The kernels for aarch64 with products of byte matrices (USMMLA).
#include "kernels.hpp"

#ifdef __aarch64__
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#pragma GCC optimize("no-schedule-insns")  // otherwise GCC 12 spills accumulators
#include <arm_neon.h>

#define KERNELS_NAME "i8mm"
#define KERNELS_NEON
#define KERNELS_I8MM

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* i8mm_kernels() { return &kTable; }

}  // namespace dragoman

#endif
