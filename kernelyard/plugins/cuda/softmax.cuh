// How parts of a row of softmax merge, in every kernel of it. Defines: those of vectors.cuh.
#pragma once
#include "vectors.cuh"

namespace {

__device__ __forceinline__ float finite(float maximum) { return maximum == -INFINITY ? 0.f : maximum; }

// e^x, and 0 where that is no normal number. __expf asks each x whether it is, and scales and squares where not: 656 instructions for 24
// elements a thread (cuda.row, sm_90a) where this makes 472.
__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ __half2 larger(__half2 a, __half2 b) { return __hmax2(a, b); }
__device__ __forceinline__ __nv_bfloat162 larger(__nv_bfloat162 a, __nv_bfloat162 b) { return __hmax2(a, b); }
template <typename>
struct PairOf;
template <>
struct PairOf<float> {
  using Type = float;
};
template <>
struct PairOf<__half> {
  using Type = __half2;
};
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};

// The maximum of packs; those of 16 bits two elements at a time, of which none is made a float32.
class Largest {
 public:
  __device__ __forceinline__ void take(const Pack& v) {
    const uint32_t words[4] = {v.bits.x, v.bits.y, v.bits.z, v.bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Pair p;
      memcpy(&p, &words[i], 4);
      all_ = larger(all_, p);
    }
  }
  __device__ __forceinline__ float value() const {
    T each[4 / sizeof(T)];
    memcpy(each, &all_, 4);
    return fmaxf(wide(each[0]), wide(each[4 / sizeof(T) - 1]));
  }
  __device__ __forceinline__ Largest() {
    T each[4 / sizeof(T)];
#pragma unroll
    for (T& element : each) element = rounded<T>(-INFINITY);
    memcpy(&all_, each, 4);
  }

 private:
  using Pair = typename PairOf<T>::Type;
  Pair all_;
};

// (maximum, sum of exponentials less that maximum) of two parts of a row.
struct MergeParts {
  static constexpr int kInOneThread = 4;
  __device__ __forceinline__ static float2 neutral(float2) { return {-INFINITY, 0.f}; }
  __device__ __forceinline__ float2 operator()(float2 a, float2 b) const {
    const float maximum = fmaxf(a.x, b.x), shift = finite(maximum);
    return {maximum, a.y * power(a.x - shift) + b.y * power(b.x - shift)};
  }
};

struct Maximum {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace
