// softmax: y = exp(x - max) / sum(exp(x - max)) in float32; a row of all -inf gives zeros. Rows come through a ring in shared memory.
//
// Algorithm  See ring.cuh. A warp finds its own maximum and keeps its exponentials less that; (maximum, sum) pairs of the warps are merged
//            behind one barrier a row, and what is kept is multiplied by exp(the warp's maximum - the row's) / sum. So an element takes one
//            exponential and not two: of 32768 columns those alone would be 4100 of the 7000 cycles that a row's bytes take.
// Moves      2 * rows * cols * size bytes; 4 flops and 1 exponential an element.
// Bound      Memory.
// NaN        As softmax.cu: a NaN or +inf is seen by its warp's sum, and the row's sum makes all of the row NaN. A warp that has only -inf
//            beside others has kept zeros, and its factor is exp(-inf) = 0.
#include "ring.cuh"
#include "softmax.cuh"

namespace {

template <bool kAlike>
__global__ void __launch_bounds__(ROW_THREADS, CTAS) softmax_from_ring(T* out, const T* x, int64_t rows, int cols, int64_t stride) {
  extern __shared__ __align__(128) uint4 places[];
  __shared__ uint64_t full[STAGES];
  __shared__ float2 slots[2][kSlots];  // two: of the next row while others still add this one's
  Ring ring(places, full, x, rows, cols, stride);

  int place = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Pack v[VECTORS];
    ring.read(v, rounded<T>(-INFINITY));
    Largest largest;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) largest.take(v[i]);
    const float maximum = over_lanes<32>(largest.value(), Maximum());
    const float own_shift = finite(maximum);
    float kept[VECTORS][kVector], sum = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum += kept[i][j] = power(wide(v[i].each[j]) - own_shift);
    }
    sum = over_lanes<32>(sum, Sum());
    if (threadIdx.x % 32 == 0) slots[place][threadIdx.x / 32] = {maximum, sum};
    __syncthreads();
    ring.release(row);
    const float2 whole = gather<kSlots>(slots[place], MergeParts());
    place ^= 1;
    const float factor = power(maximum - finite(whole.x)) * (whole.y == 0.f ? 0.f : 1.f / whole.y);

    T* to = out + row * cols;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if (!ring.has(i)) break;
      Pack y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) narrow(kept[i][j] * factor, y.each[j]);
      store_vector<true>(to + ring.vector(i) * kVector, y, kAlike);
    }
  }
}

void softmax_ring(TensorView out, TensorView x, int64_t rows, int64_t cols, int64_t stride, int64_t multiprocessors) {
  if (rows == 0 || cols == 0) return;
  check_cols(cols);
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  T* to = static_cast<T*>(out.data_ptr());
  launch(multiple_of_16(to) ? softmax_from_ring<true> : softmax_from_ring<false>, 1, walkers(rows, multiprocessors), ROW_THREADS,
         STAGES * cols * sizeof(T), stream_of(x), to, static_cast<const T*>(x.data_ptr()), rows, cols, stride);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax_ring, softmax_ring);
