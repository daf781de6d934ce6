// The kernels for aarch64 with dot products of bytes (SDOT).
#include "kernels.hpp"

#ifdef __aarch64__
#pragma GCC target("arch=armv8.2-a+dotprod")
#pragma GCC optimize("no-schedule-insns")  // otherwise GCC 12 spills accumulators
#include <arm_neon.h>

#define KERNELS_NAME "dotprod"
#define KERNELS_NEON
#define KERNELS_DOTPROD

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* dotprod_kernels() { return &kTable; }

}  // namespace dragoman

#endif
