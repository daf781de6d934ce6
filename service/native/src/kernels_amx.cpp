// The kernels for AMX, on CPUs that also have AVX-512 with VNNI. With EMULATED_TILES they run on each CPU with AVX2.
#include "kernels.hpp"

#ifdef __x86_64__
#ifdef EMULATED_TILES
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,amx-tile,amx-int8")
#endif
#include <immintrin.h>

namespace dragoman {
namespace {

constexpr char kName[] = "amx";
constexpr int kCenter = 0;

#ifdef EMULATED_TILES
constexpr int kProductRows = 4;  // largest number of rows of a tile
#include "vectors_avx2.inc"
#include "vectors_x86.inc"
#include "products_avx2.inc"
#include "tiles_emulated.inc"
#else
constexpr int kProductRows = 6;
#include "vectors_avx512.inc"
#include "vectors_x86.inc"
#include "products_avx512.inc"
#endif
#include "products_amx.inc"
#include "kernels.inc"

}  // namespace

const Kernels* amx_kernels() { return &kTable; }

}  // namespace dragoman

#endif
