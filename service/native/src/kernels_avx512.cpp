// The kernels for AVX-512 with VNNI.
#include "kernels.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

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

#else

namespace dragoman {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace dragoman

#endif
