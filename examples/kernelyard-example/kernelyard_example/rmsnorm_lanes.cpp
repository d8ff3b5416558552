// RMSNorm of contiguous float32 rows: y = x * rsqrt(mean(x^2) + eps) * (w + offset).
//
// Two sweeps a row: the first reads x from memory and sums squares into LANES partial sums, the second reads it again from the
// cache and writes y. 8 bytes moved and 4 flops done an element, so memory bounds it once the rows no longer fit a cache.
// The partial sums are what lets the compiler use vector registers without -ffast-math: it may not reorder one float sum.
// Their order is fixed, so equal inputs give equal bits whatever the number of threads.
// OpenMP over rows where the compiler has it; else one thread.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cmath>
#include <cstdint>

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

static float sum_of_squares(const float* x, int64_t cols) {
  float lanes[LANES] = {};
  int64_t j = 0;
  for (; j + LANES <= cols; j += LANES)
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] += x[j + lane] * x[j + lane];
  float sum = 0.0f;
  for (; j < cols; ++j) sum += x[j] * x[j];
  for (float lane : lanes) sum += lane;
  return sum;
}

static void scale(float* y, const float* x, const float* w, float rms, float offset, int64_t cols) {
  if (w == nullptr) {
    for (int64_t j = 0; j < cols; ++j) y[j] = x[j] * rms;
  } else {
    for (int64_t j = 0; j < cols; ++j) y[j] = x[j] * rms * (w[j] + offset);
  }
}

void rmsnorm_lanes(TensorView y, TensorView x, Optional<TensorView> w, double eps, double offset, int64_t threads) {
  const int64_t cols = x.size(x.ndim() - 1), rows = cols == 0 ? 0 : x.numel() / cols;
  const float* from = static_cast<const float*>(x.data_ptr());
  const float* weight = w.has_value() ? static_cast<const float*>(w.value().data_ptr()) : nullptr;
  float* to = static_cast<float*>(y.data_ptr());
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const float mean = sum_of_squares(from + row * cols, cols) / static_cast<float>(cols);
    const float rms = 1.0f / std::sqrt(mean + static_cast<float>(eps));
    scale(to + row * cols, from + row * cols, weight, rms, static_cast<float>(offset), cols);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm_lanes, rmsnorm_lanes);
