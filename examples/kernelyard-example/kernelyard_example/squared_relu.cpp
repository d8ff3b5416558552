// Squared ReLU of contiguous float32: y = max(x, 0)^2. One pass; 8 bytes moved and 2 flops done an element: memory bounds it.
// A NaN is neither less than 0 nor not: written as `x < 0 ? 0 : x * x` it propagates, as the contract asks;
// `x > 0 ? x * x : 0` would turn it into 0.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>

using tvm::ffi::TensorView;

void squared_relu(TensorView y, TensorView x, int64_t threads) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  const int64_t n = x.numel();
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1) schedule(static)
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] < 0.0f ? 0.0f : from[i] * from[i];
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(squared_relu, squared_relu);
