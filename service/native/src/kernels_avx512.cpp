// The kernels for AVX-512 with VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#include <immintrin.h>

#define KERNELS_NAME "avx512"
#define KERNELS_AVX512
#define KERNELS_AVX512VNNI

namespace dragoman {
namespace {
#include "kernels.inc"
}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

}  // namespace dragoman

#endif
