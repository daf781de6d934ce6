// The kernels for all aarch64 CPUs: ARMv8.0 with NEON.
#include "kernels.hpp"

#ifdef __aarch64__
#pragma GCC optimize("no-schedule-insns")  // otherwise GCC 12 spills accumulators
#include <arm_neon.h>

#define KERNELS_NAME "neon"
#define KERNELS_NEON

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* neon_kernels() { return &kTable; }

}  // namespace dragoman

#endif
