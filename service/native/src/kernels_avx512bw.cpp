// The kernels for AVX-512 without VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#include <immintrin.h>

#define KERNELS_NAME "avx512bw"
#define KERNELS_AVX512

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* avx512bw_kernels() { return &kTable; }

}  // namespace dragoman

#endif
