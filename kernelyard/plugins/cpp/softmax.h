// What both softmax kernels share: a row's maximum, and how a row without a finite one is shifted.
#pragma once

#include "exponential.h"
#include "sweeps.h"

namespace ky {

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
