// One vector of floats, as wide as the compiler's target has, and its loads and stores in float32, bfloat16 and float16.
//
// Arithmetic is GCC and Clang vector extensions: `a * b + c` works on any CPU and becomes an FMA where there is one. Intrinsics stand
// only where the language has no word: half-precision conversion, masked tails, stores past the caches. Nothing here, and no flag,
// lets the compiler assume that NaN or infinity don't occur, or reorder a sum: each reduction names its accumulators.
// The AVX-512 BF16 conversion is not used: it takes subnormals for zero.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ky {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define KY_AVX512 1
constexpr int kLanes = 16;
#elif defined(__AVX2__) && defined(__F16C__)
#define KY_AVX2 1
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline vf splat(float value) { return value - vf{}; }  // not vf{} + value, which turns -0 into 0

// Conversions of 16-bit lanes -------------------------------------------------------------------------------------------------------

#if defined(KY_AVX512)
// A bfloat16 is the upper half of a float: one permutation of words instead of a conversion and a shift, 1 step instead of 2 or 3.
inline vf widen(vh h, bf16) {
  const __m512i to_upper = _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16, 7 << 16, 6 << 16,
                                            5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
  return (vf)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, to_upper, _mm512_castsi256_si512((__m256i)h));
}
inline vh narrow(vf v, bf16) {  // to nearest, ties to even; a NaN stays one, quiet
  const __m512i u = (__m512i)v;
  const __m512i half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  const __m512i even = _mm512_mask_add_epi32(half, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), half, _mm512_set1_epi32(1));
  const __m512i kept = _mm512_mask_or_epi32(even, _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  const __m512i upper = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015, 0x130011, 0xf000d, 0xb0009, 0x70005,
                                         0x30001);  // words 1, 3, 5, ...
  return (vh)_mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, kept));
}
#else
inline vf widen(vh h, bf16) { return bits_as<vf>(__builtin_convertvector(h, vu) << 16); }
inline vh narrow(vf v, bf16) {
  const vu u = bits_as<vu>(v);
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const vu quiet = (u >> 16) | 0x40u;
  return __builtin_convertvector(v != v ? quiet : rounded, vh);
}
#endif

#if defined(KY_AVX512)
inline vf widen(vh h, f16) { return (vf)_mm512_cvtph_ps((__m256i)h); }
inline vh narrow(vf v, f16) { return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(KY_AVX2)
inline vf widen(vh h, f16) { return (vf)_mm256_cvtph_ps((__m128i)h); }
inline vh narrow(vf v, f16) { return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__aarch64__)
inline vf widen(vh h, f16) { return bits_as<vf>(vcvt_f32_f16(bits_as<float16x4_t>(h))); }
inline vh narrow(vf v, f16) { return bits_as<vh>(vcvt_f16_f32(bits_as<float32x4_t>(v))); }
#else
// Without half-precision instructions: 2^112 moves a float16's exponent into place, subnormals included.
inline vf widen(vh h, f16) {
  const vu u = __builtin_convertvector(h, vu);
  const vf finite = bits_as<vf>((u & 0x7fffu) << 13) * splat(0x1p112f);
  const vu special = 0x7f800000u | ((u & 0x3ffu) << 13);
  return bits_as<vf>(((u & 0x8000u) << 16) | ((u & 0x7c00u) == 0x7c00u ? special : bits_as<vu>(finite)));
}
inline vh narrow(vf v, f16) {
  const vu u = bits_as<vu>(v), magnitude = u & 0x7fffffffu;
  const vu normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const vu subnormal = bits_as<vu>(bits_as<vf>(magnitude) + splat(0.5f)) - 0x3f000000u;  // the addition rounds
  const vu finite = magnitude < 0x38800000u ? subnormal : normal;
  const vu bounded = magnitude >= 0x477ff000u ? (vu{} + 0x7c00u) : finite;
  return __builtin_convertvector(((u >> 16) & 0x8000u) | (magnitude > 0x7f800000u ? (vu{} + 0x7e00u) : bounded), vh);
}
#endif

// Loads and stores ------------------------------------------------------------------------------------------------------------------

inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof(v)); }

template <class T>
inline vf load(const T* p) {
  vh h;
  std::memcpy(&h, p, sizeof(h));
  return widen(h, T{});
}
template <class T>
inline void store(T* p, vf v) {
  const vh h = narrow(v, T{});
  std::memcpy(p, &h, sizeof(h));
}

// The first n <= kLanes elements; the other lanes hold `fill`. No byte outside is touched.
template <class T>
inline vf load_some(const T* p, int64_t n, float fill) {
#if defined(KY_AVX512)
  const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1u);
  if constexpr (sizeof(T) == 4) {
    return (vf)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask, p);
  } else {
    return (vf)_mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), (__m512)widen((vh)_mm256_maskz_loadu_epi16(mask, p), T{}));
  }
#else
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  vf v = load(lanes);
  for (int64_t i = n; i < kLanes; ++i) v[i] = fill;
  return v;
#endif
}
template <class T>
inline void store_some(T* p, vf v, int64_t n) {
#if defined(KY_AVX512)
  const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1u);
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, mask, (__m512)v);
  } else {
    _mm256_mask_storeu_epi16(p, mask, (__m256i)narrow(v, T{}));
  }
#else
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
#endif
}

// A store that goes past the caches: no line is read in order to be overwritten. p is a multiple of the vector's own size;
// `stream_fence` comes before another thread may read. A plain store where the CPU (or the compiler) has none.
inline void stream(float* p, vf v) {
#if defined(KY_AVX512)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(KY_AVX2)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(p, (__m128)v);
#else
  store(p, v);
#endif
}
template <class T>
inline void stream(T* p, vf v) {
#if defined(KY_AVX512)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)narrow(v, T{}));
#elif defined(KY_AVX2)
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)narrow(v, T{}));
#else
  store(p, v);
#endif
}
inline void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Elements before the first address at which `stream` may store.
template <class T>
inline int64_t until_aligned(const T* p) {
  constexpr uintptr_t bytes = kLanes * sizeof(T);
  return static_cast<int64_t>((bytes - reinterpret_cast<uintptr_t>(p) % bytes) % bytes / sizeof(T));
}

// Reductions over the lanes, by halves: one order on every machine of one width ----------------------------------------------------

inline float sum(vf v) {
#if defined(KY_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
#endif
}

// The larger of two; a where either is NaN.
#if defined(KY_AVX512)
inline vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)b, (__m512)a); }
#else
inline vf larger(vf a, vf b) { return b > a ? b : a; }
#endif

inline float largest(vf v) {
#if defined(KY_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = v[i + half] > v[i] ? v[i + half] : v[i];
  }
  return v[0];
#endif
}

}  // namespace ky
