// The kernels for AVX-512 with VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#include <immintrin.h>

namespace dragoman {
namespace {

constexpr char kName[] = "avx512";
constexpr int kCenter = 0;
constexpr int kProductRows = 6;  // largest number of rows of a tile

#include "vectors_avx512.inc"
#include "vectors_x86.inc"
#include "products_avx512.inc"
#include "kernels.inc"

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

}  // namespace dragoman

#endif
