// The exponential that softmax and silu are made of, and the reciprocal that goes with it.
#pragma once

#include "simd.h"

namespace ky {

// exp(x) for x <= 0, within 2 units in the last place, subnormal results included; exp(-inf) = 0, exp(NaN) = NaN.
// x = n ln2 + r with |r| <= ln2 / 2, then 2^n * p(r). Source: Cephes expf (Moshier), the polynomial of degree 7.
inline vf exp_of_nonpositive(vf x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which stands in the low bits
  const vf v = larger(x, splat(-104.0f));  // exp(-104) rounds to 0; a NaN stays
  const vf shifted = v * 1.44269504088896341f + magic;
  const vf n = shifted - magic;
  const vf r = (v - n * 0.693359375f) - n * -2.12194440e-4f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
#if defined(KY_AVX512)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const vi whole = bits_as<vi>(shifted) - bits_as<vi>(splat(magic));
  const vi half = whole >> 1;  // 2^-150 is no float, two factors of it are
  return p * bits_as<vf>((half + 127) << 23) * bits_as<vf>((whole - half + 127) << 23);
#endif
}

// 1 / v for v in [1, 2], within 2 units in the last place. With 16 lanes a division takes 16 cycles, an estimate of 14 bits
// and one Newton step 4.
inline vf reciprocal_of_1_to_2(vf v) {
#if defined(KY_AVX512)
  const vf guess = (vf)_mm512_rcp14_ps((__m512)v);
  return guess + guess * (1.0f - v * guess);
#else
  return 1.0f / v;
#endif
}

// 1 / (1 + exp(-x)) and 1 less that, neither from a difference of near equals; NaN gives NaN.
struct Sigmoid {
  vf value, rest;
};
inline Sigmoid sigmoid(vf x) {
  const vf e = exp_of_nonpositive(bits_as<vf>(bits_as<vu>(x) | 0x80000000u));
  const vf larger = reciprocal_of_1_to_2(1.0f + e), smaller = e * larger;
  return {x > 0.0f ? larger : smaller, x > 0.0f ? smaller : larger};
}

}  // namespace ky
