// What an element of rmsnorm becomes, in every kernel of it. Defines: LLAMA, HAS_WEIGHT, and those of vectors.cuh.
#pragma once
#include "vectors.cuh"

namespace {

__device__ __forceinline__ T scaled(float x, float rstd, float w, float offset) {
  float y = x * rstd;
  if constexpr (LLAMA) y = wide(rounded<T>(y));
  if constexpr (HAS_WEIGHT) {
    const float gain = LLAMA ? wide(rounded<T>(w + offset)) : w + offset;
    y *= gain;
  }
  return rounded<T>(y);
}

}  // namespace
