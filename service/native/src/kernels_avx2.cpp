// The kernels for AVX2 without VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avx2,fma")
#include <immintrin.h>

namespace dragoman {
namespace {

constexpr char kName[] = "avx2";
constexpr int kCenter = 128;
constexpr int kProductRows = 4;  // largest number of rows of a tile

#include "vectors_avx2.inc"
#include "vectors_x86.inc"
#include "products_avx2.inc"
#include "kernels.inc"

}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

}  // namespace dragoman

#endif
