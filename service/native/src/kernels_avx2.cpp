// The kernels for AVX2 without VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#define KERNELS_NAME "avx2"

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

}  // namespace dragoman

#endif
