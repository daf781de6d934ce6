// The kernels for AVX2 with VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avxvnni,avx2,fma")
#include <immintrin.h>

#define KERNELS_NAME "avxvnni"
#define KERNELS_AVXVNNI

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* avxvnni_kernels() { return &kTable; }

}  // namespace dragoman

#endif
