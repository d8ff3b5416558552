// rmsnorm: y = x * rsqrt(mean(x^2) + eps) * (w + offset), and add_rmsnorm: r = x + residual, y = rmsnorm(r as rounded); sums in float32.
// Rows wait in shared memory.
//
// Algorithm  See staged.cuh. Squares are added as vectors arrive, over lanes, warps and the cluster in one exchange. ADDED: x and residual
//            come beside each other; their sum is rounded, written at once, and put in x's place in shared memory. Then what is there is
//            read again, scaled and written. The weight is on its way during the exchange: 4 registers a vector, of 16 bits. x goes past L1
//            (cp.async.cg), so that the weight stays there.
// Moves      2 (ADDED: 4) * rows * cols * size bytes, w from L1 or L2; 4 (5) flops an element.
// Bound      Memory.
// Resources  32768 columns, a cluster of two blocks of 256 threads, eight vectors (sm_90a, bf16), no spills: 64 registers, four blocks of 32
//            KiB a multiprocessor; ADDED 80, three of 64 KiB.
// Measured   H200, bf16, 2048x32768, one run each: rmsnorm 65.9 us with three blocks and 66.0 with four (triton.sweep 66.4, compiled torch 66.8);
//            add_rmsnorm 130.2 by clusters of four, 130.9 of two (Liger 131.9, triton.row 133.2).
// Lost       Clusters of two blocks of 512 threads: 71.6; ADDED 131.6.
// In place   A thread writes only where it has read itself: results may be x and residual.
// Casting    As rmsnorm.cu.
#include "rmsnorm.cuh"
#include "staged.cuh"

namespace {

template <bool kAlike>
__global__ void __launch_bounds__(ROW_THREADS, CTAS) normalise_staged(
    T* out, T* sums, const T* x, const T* residual, const W* w, int64_t rows, int cols, int64_t stride, int64_t residual_stride, float eps,
    float offset) {
  extern __shared__ __align__(128) uint4 place[];
  __shared__ float slots[kSlots];
  __shared__ uint64_t barriers[1];
  greet(barriers);
  depend();
  let_dependents_start();
  const int64_t row = blockIdx.x / CLUSTER;
  Stage stage(place, cols), beside(place + VECTORS * ROW_THREADS, cols);
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    stage.ask(i, x + row * stride);
    if constexpr (ADDED) beside.ask(i, residual + row * residual_stride);
    stage.together();
  }

  const T nothing = rounded<T>(0.f);
  float squares = 0.f;
  for_each_vector([&](auto index) {
    constexpr int i = decltype(index)::value;
    wait_for_all_but<VECTORS - 1 - i>();
    Pack v = stage.read(i, nothing);
    if constexpr (ADDED) {
      const Pack u = beside.read(i, nothing);
#pragma unroll
      for (int j = 0; j < kVector; ++j) narrow(wide(v.each[j]) + wide(u.each[j]), v.each[j]);
      if (stage.has(i)) {
        stage.write(i, v);
        store_vector<true>(sums + row * cols + stage.element(i), v, kAlike);
      }
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares += wide(v.each[j]) * wide(v.each[j]);
  });
  meet();
  publish(slots, barriers, threadIdx.x / 32, over_lanes<32>(squares, Add()));
  WeightPack gain[VECTORS];
  if constexpr (HAS_WEIGHT) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if (stage.has(i)) load_weight<false>(gain[i], w, stage.element(i), cols);
    }
  }
  await(barriers, 0);
  const float rstd = rsqrtf(gather<kSlots>(slots, Add()) / cols + eps);

  T* to = out + row * cols;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    if (!stage.has(i)) break;
    const Pack v = stage.read(i, nothing);
    Pack y;
#pragma unroll
    for (int j = 0; j < kVector; ++j) y.each[j] = scaled(wide(v.each[j]), rstd, HAS_WEIGHT ? wide(gain[i].each[j]) : 1.f, offset);
    store_vector<true>(to + stage.element(i), y, kAlike);
  }
}

void normalise(TensorView out, TensorView sums, TensorView x, TensorView residual, TensorView w, int64_t rows, int64_t cols, int64_t stride,
               int64_t residual_stride, double eps, double offset) {
  if (rows == 0 || cols == 0) return;
  check_cols(cols);
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  T *to = static_cast<T*>(out.data_ptr()), *sums_to = static_cast<T*>(sums.data_ptr());
  const bool alike = multiple_of_16(to) && multiple_of_16(sums_to);
  launch_staged(alike ? normalise_staged<true> : normalise_staged<false>, rows, ADDED ? 2 : 1, stream_of(x), to, sums_to,
                static_cast<const T*>(x.data_ptr()), static_cast<const T*>(residual.data_ptr()), static_cast<const W*>(w.data_ptr()), rows, cols,
                stride, residual_stride, eps, offset);
}

#if ADDED
void add_rmsnorm_staged(TensorView out, TensorView sums, TensorView x, TensorView residual, TensorView w, int64_t rows, int64_t cols,
                        int64_t stride, int64_t residual_stride, double eps, double offset) {
  normalise(out, sums, x, residual, w, rows, cols, stride, residual_stride, eps, offset);
}
#else
void rmsnorm_staged(TensorView out, TensorView x, TensorView w, int64_t rows, int64_t cols, int64_t stride, double eps, double offset) {
  normalise(out, out, x, x, w, rows, cols, stride, stride, eps, offset);
}
#endif

}  // namespace

#if ADDED
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_rmsnorm_staged, add_rmsnorm_staged);
#else
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm_staged, rmsnorm_staged);
#endif
