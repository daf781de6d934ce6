// The kernels for AVX-512 without VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#include <immintrin.h>

namespace dragoman {
namespace {

constexpr char kName[] = "avx512bw";
constexpr int kCenter = 128;
constexpr int kProductRows = 4;  // largest number of rows of a tile

#include "vectors_avx512.inc"
#include "vectors_x86.inc"
#include "products_avx2.inc"
#include "kernels.inc"

}  // namespace

const Kernels* avx512bw_kernels() { return &kTable; }

}  // namespace dragoman

#endif
