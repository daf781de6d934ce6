// 16 floats as one value: a zmm register, two ymm registers, or four registers of NEON.
//
// Each file of an instruction set includes this one inside its own namespace. Only fma() fuses operations (the build
// uses -ffp-contract=off), and sums have a fixed order, so all instruction sets give the same bits.

#define INLINE static inline __attribute__((always_inline))

constexpr float kLowest = -3e38f;  // its exponential is exactly 0

#ifdef KERNELS_AVX512

typedef float f16 __attribute__((vector_size(64)));
typedef float f16u __attribute__((vector_size(64), aligned(4)));
constexpr int kAttentionRows = 4, kValueVectors = 4;  // rows and vectors of an output that are summed in registers

INLINE f16 load(const float* p) { return *reinterpret_cast<const f16u*>(p); }
INLINE void store(float* p, f16 v) { *reinterpret_cast<f16u*>(p) = v; }
INLINE f16 splat(float x) { return (f16)_mm512_set1_ps(x); }
INLINE f16 fma(f16 a, f16 b, f16 c) { return (f16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE f16 max(f16 a, f16 b) { return (f16)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE f16 min(f16 a, f16 b) { return (f16)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE f16 absolute(f16 a) { return (f16)_mm512_abs_ps((__m512)a); }
INLINE unsigned greater(f16 a, f16 b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
INLINE f16 zero_below(f16 x, float bound, f16 v) {
  return (f16)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GE_OQ), (__m512)v);
}
INLINE f16 first(f16 v, int count) { return (f16)_mm512_maskz_mov_ps(__mmask16((1u << count) - 1), (__m512)v); }
INLINE void store_half(float* p, f16 v) { _mm256_storeu_ps(p, _mm512_castps512_ps256((__m512)v)); }
INLINE f16 power_of_two(f16 n) {
  const __m512i exponents = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)n), _mm512_set1_epi32(127));
  return (f16)_mm512_castsi512_ps(_mm512_slli_epi32(exponents, 23));
}
INLINE void store_bytes(uint8_t* p, f16 v, int zero_point) {  // rounds to even; v plus the zero point is in 0..255
  const __m512i rounded = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)v), _mm512_set1_epi32(zero_point));
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(rounded));
}
INLINE f16 widen(const int8_t* p) { return (f16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
INLINE f16 as_floats(const int32_t* p) { return (f16)_mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }

#elif defined(KERNELS_NEON)

struct f16 {
  float32x4_t v[4];
};
constexpr int kAttentionRows = 2, kValueVectors = 2;

template <class F>
INLINE f16 each(const F& quarter) {
  return {quarter(0), quarter(1), quarter(2), quarter(3)};
}
#define EACH(expression) each([&](int i) __attribute__((always_inline)) -> float32x4_t { return expression; })

#define BINARY(op)                                                              \
  INLINE f16 operator op(f16 a, f16 b) { return EACH(a.v[i] op b.v[i]); }       \
  INLINE f16 operator op(f16 a, float b) { return EACH(a.v[i] op b); }          \
  INLINE f16& operator op##=(f16& a, f16 b) { return a = a op b; }
BINARY(+)
BINARY(-)
BINARY(*)
BINARY(/)
#undef BINARY
INLINE f16 load(const float* p) { return EACH(vld1q_f32(p + i * 4)); }
INLINE void store(float* p, f16 a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + i * 4, a.v[i]);
}
INLINE f16 splat(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
INLINE f16 fma(f16 a, f16 b, f16 c) { return EACH(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// As on x86: `b` if one of them is NaN. The instructions for maxima and minima return NaN.
INLINE float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE f16 max(f16 a, f16 b) { return EACH(max4(a.v[i], b.v[i])); }
INLINE f16 min(f16 a, f16 b) { return EACH(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
INLINE f16 absolute(f16 a) { return EACH(vabsq_f32(a.v[i])); }
INLINE float32x4_t masked(float32x4_t v, uint32x4_t mask) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), mask));
}
INLINE unsigned greater(f16 a, f16 b) {
  const uint32x4_t bits = {1, 2, 4, 8};
  uint32x4_t found = vdupq_n_u32(0);
  for (int i = 0; i < 4; ++i) found |= vcgtq_f32(a.v[i], b.v[i]) & bits << i * 4;
  return vaddvq_u32(found);
}
INLINE f16 zero_below(f16 x, float bound, f16 a) { return EACH(masked(a.v[i], vcgeq_f32(x.v[i], vdupq_n_f32(bound)))); }
INLINE f16 first(f16 a, int count) {
  const int32x4_t lanes = {0, 1, 2, 3};
  return EACH(masked(a.v[i], vcltq_s32(lanes, vdupq_n_s32(count - i * 4))));
}
INLINE void store_half(float* p, f16 a) { vst1q_f32(p, a.v[0]), vst1q_f32(p + 4, a.v[1]); }
INLINE f16 power_of_two(f16 n) {
  return EACH(vreinterpretq_f32_s32(vshlq_n_s32(vcvtnq_s32_f32(n.v[i]) + vdupq_n_s32(127), 23)));
}
INLINE void store_bytes(uint8_t* p, f16 a, int zero_point) {
  int16x4_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = vmovn_s32(vcvtnq_s32_f32(a.v[i]) + vdupq_n_s32(zero_point));
  const int8x8_t lo = vmovn_s16(vcombine_s16(words[0], words[1])), hi = vmovn_s16(vcombine_s16(words[2], words[3]));
  vst1q_u8(p, vreinterpretq_u8_s8(vcombine_s8(lo, hi)));
}
INLINE f16 widen(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_high_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))};
}
INLINE f16 as_floats(const int32_t* p) { return EACH(vcvtq_f32_s32(vld1q_s32(p + i * 4))); }
INLINE float sum(f16 a) {
  const float32x4_t b = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
INLINE float greatest(f16 a) {
  const float32x4_t b = max4(max4(a.v[0], a.v[2]), max4(a.v[1], a.v[3]));
  const float32x4_t c = max4(b, vextq_f32(b, b, 2));
  return max4(c, vdupq_laneq_f32(c, 1))[0];
}
#undef EACH

#else

typedef float f8 __attribute__((vector_size(32)));
typedef float f8u __attribute__((vector_size(32), aligned(4)));
struct f16 {
  f8 lo, hi;
};
constexpr int kAttentionRows = 2, kValueVectors = 2;

#define BINARY(op)                                                          \
  INLINE f16 operator op(f16 a, f16 b) { return {a.lo op b.lo, a.hi op b.hi}; } \
  INLINE f16 operator op(f16 a, float b) { return {a.lo op b, a.hi op b}; }     \
  INLINE f16& operator op##=(f16& a, f16 b) { return a = a op b; }
BINARY(+)
BINARY(-)
BINARY(*)
BINARY(/)
#undef BINARY
INLINE f16 load(const float* p) { return {*(const f8u*)p, *(const f8u*)(p + 8)}; }
INLINE void store(float* p, f16 v) { *(f8u*)p = v.lo, *(f8u*)(p + 8) = v.hi; }
INLINE f16 splat(float x) { return {(f8)_mm256_set1_ps(x), (f8)_mm256_set1_ps(x)}; }
INLINE f8 fma8(f8 a, f8 b, f8 c) { return (f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE f16 fma(f16 a, f16 b, f16 c) { return {fma8(a.lo, b.lo, c.lo), fma8(a.hi, b.hi, c.hi)}; }
INLINE f8 max8(f8 a, f8 b) { return (f8)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE f8 min8(f8 a, f8 b) { return (f8)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE f16 max(f16 a, f16 b) { return {max8(a.lo, b.lo), max8(a.hi, b.hi)}; }
INLINE f16 min(f16 a, f16 b) { return {min8(a.lo, b.lo), min8(a.hi, b.hi)}; }
INLINE f8 absolute8(f8 a) { return (f8)_mm256_andnot_ps(_mm256_set1_ps(-0.0f), (__m256)a); }
INLINE f16 absolute(f16 a) { return {absolute8(a.lo), absolute8(a.hi)}; }
INLINE unsigned greater8(f8 a, f8 b) { return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)); }
INLINE unsigned greater(f16 a, f16 b) { return greater8(a.lo, b.lo) | greater8(a.hi, b.hi) << 8; }
INLINE f8 zero_below8(f8 x, float bound, f8 v) {
  return (f8)_mm256_and_ps((__m256)v, _mm256_cmp_ps((__m256)x, _mm256_set1_ps(bound), _CMP_GE_OQ));
}
INLINE f16 zero_below(f16 x, float bound, f16 v) {
  return {zero_below8(x.lo, bound, v.lo), zero_below8(x.hi, bound, v.hi)};
}
INLINE f8 first8(f8 v, int count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (f8)_mm256_and_ps((__m256)v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes)));
}
INLINE f16 first(f16 v, int count) { return {first8(v.lo, count), first8(v.hi, count - 8)}; }
INLINE void store_half(float* p, f16 v) { *(f8u*)p = v.lo; }
INLINE f8 power_of_two8(f8 n) {
  const __m256i exponents = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)n), _mm256_set1_epi32(127));
  return (f8)_mm256_castsi256_ps(_mm256_slli_epi32(exponents, 23));
}
INLINE f16 power_of_two(f16 n) { return {power_of_two8(n.lo), power_of_two8(n.hi)}; }
INLINE void store_bytes(uint8_t* p, f16 v, int zero_point) {
  const __m256i zero = _mm256_set1_epi32(zero_point);
  const __m256i lo = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)v.lo), zero);
  const __m256i hi = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)v.hi), zero);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
INLINE f8 widen8(const int8_t* p) {
  return (f8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
INLINE f16 widen(const int8_t* p) { return {widen8(p), widen8(p + 8)}; }
INLINE f16 as_floats(const int32_t* p) {
  return {(f8)_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)p)),
          (f8)_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)p + 1))};
}

#endif

#ifdef __x86_64__
INLINE float sum8(__m256 v) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
INLINE float sum(f16 v) {
  float a[16];
  store(a, v);
  return sum8(_mm256_add_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(a + 8)));
}
INLINE float greatest(f16 v) {
  float a[16];
  store(a, v);
  const __m256 m = _mm256_max_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(a + 8));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#endif

// The next 16 elements of a row that ends after `num_left`, padded with zeros.
INLINE f16 existing(f16 v, int num_left) { return num_left >= 16 ? v : first(v, num_left); }

// e^x for x <= 0: relative error about 2e-7; exactly 0 below -87. Cody-Waite reduction and the polynomial of Cephes' expf.
INLINE f16 exponential(f16 x) {
  const f16 y = max(x, splat(-87.f));
  const f16 n = fma(y, splat(1.44269504088896341f), splat(12582912.f)) - splat(12582912.f);
  const f16 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), y));
  f16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return zero_below(x, -87.f, p * power_of_two(n));
}

// x / (1 + e^-x).
INLINE f16 swish(f16 x) {
  const f16 e = exponential(splat(0) - absolute(x));  // sigmoid: 1 / (1 + e) for x >= 0, e / (1 + e) for x < 0
  return x * (zero_below(x, 0.0f, splat(1) - e) + e) / (e + splat(1));
}

// x times the normal distribution function: 1 - tail for x >= 0, tail for x < 0. The tail is half of
// erfc(|x| / sqrt(2)), by Abramowitz and Stegun 7.1.26, with an error of at most 1.5e-7.
INLINE f16 gelu(f16 x) {
  const f16 z = absolute(x) * splat(0.70710678118654752f);
  const f16 t = splat(1) / fma(z, splat(0.3275911f), splat(1));
  f16 p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const f16 tail = p * t * exponential(splat(0) - z * z) * splat(0.5f);
  return x * (zero_below(x, 0.0f, splat(1) - tail - tail) + tail);
}
