// How parts of a row of softmax merge, in every kernel of it. Defines: those of rows.cuh.
#pragma once
#include "rows.cuh"

namespace {

__device__ __forceinline__ float finite(float maximum) { return maximum == -INFINITY ? 0.f : maximum; }

// (maximum, sum of exponentials less that maximum) of two parts of a row.
struct MergeParts {
  static constexpr int kInOneThread = 4;
  __device__ __forceinline__ static float2 neutral(float2) { return {-INFINITY, 0.f}; }
  __device__ __forceinline__ float2 operator()(float2 a, float2 b) const {
    const float maximum = fmaxf(a.x, b.x), shift = finite(maximum);
    return {maximum, a.y * __expf(a.x - shift) + b.y * __expf(b.x - shift)};
  }
};

struct Maximum {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace
