// The kernels for AVX2 with VNNI.
#include "kernels.hpp"

#ifdef __x86_64__
#pragma GCC target("avxvnni,avx2,fma")
#include <immintrin.h>

namespace dragoman {
namespace {

constexpr char kName[] = "avxvnni";
constexpr int kCenter = 0;
constexpr int kProductRows = 6;  // largest number of rows of a tile

#include "vectors_avx2.inc"
#include "vectors_x86.inc"
#include "products_avxvnni.inc"
#include "kernels.inc"

}  // namespace

const Kernels* avxvnni_kernels() { return &kTable; }

}  // namespace dragoman

#endif
