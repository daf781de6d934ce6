// The kernels for AVX2 without VNNI.
#include "kernels.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC target("avx2,fma")
#include <immintrin.h>

#define KERNELS_NAME "avx2"

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

}  // namespace dragoman

#else

namespace dragoman {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace dragoman

#endif
