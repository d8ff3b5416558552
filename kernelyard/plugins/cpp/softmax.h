// What both softmax kernels mean by an exponential, and how a row without a finite maximum is shifted.
#pragma once

#include "rows.h"

namespace ky {

// exp(x) for x <= 0, within 2 units in the last place, subnormal results included; exp(-inf) = 0, exp(NaN) = NaN.
// x = n ln2 + r with |r| <= ln2 / 2, then 2^n * p(r). Source: Cephes expf (Moshier), the polynomial of degree 7.
inline vf exp_of_nonpositive(vf x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which stands in the low bits
  const vf v = x < -104.0f ? splat(-104.0f) : x;  // exp(-104) rounds to 0; a NaN compares false and stays
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

// The largest of a row, NaNs passed over: they come back through the sum.
template <class T, int Unroll>
float largest_of(const T* x, int64_t cols) {
  const float lowest = -std::numeric_limits<float>::infinity();
  vf most[Unroll];
  for (int u = 0; u < Unroll; ++u) most[u] = splat(lowest);
  int64_t i = 0;
  for (; i + Unroll * kLanes <= cols; i += Unroll * kLanes) {
#pragma GCC unroll 8
    for (int u = 0; u < Unroll; ++u) most[u] = larger(most[u], load(x + i + u * kLanes));
  }
  for (; i + kLanes <= cols; i += kLanes) most[0] = larger(most[0], load(x + i));
  if (i < cols) most[Unroll - 1] = larger(most[Unroll - 1], load_some(x + i, cols - i, lowest));
  for (int u = 1; u < Unroll; ++u) most[0] = larger(most[0], most[u]);
  return largest(most[0]);
}

// What is taken from each element. A row without a number above -inf is shifted by 0: its terms are then 0, or NaN where it has one.
// +inf stays: inf - inf makes the row NaN, as in torch.
inline float shift_of(float most) { return most == -std::numeric_limits<float>::infinity() ? 0.0f : most; }

// A sum of 0 is an all-masked row: zeros. NaN compares false and stays.
inline float inverse(float total) { return total == 0.0f ? 0.0f : 1.0f / total; }

}  // namespace ky
