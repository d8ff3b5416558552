// softmax: y = exp(x - max) / sum(exp(x - max)) in float32; a row of all -inf gives zeros. Rows wait in shared memory.
//
// Algorithm  See staged.cuh. A warp finds its maximum as its vectors arrive, adds its exponentials, and sends the pair (maximum, sum) to all
//            of its row: one exchange. KEPT: the exponentials stay in registers, less the warp's maximum, and are multiplied by
//            exp(the warp's maximum - the row's) / sum; else the row is read from shared memory again and they are taken anew.
// Moves      2 * rows * cols * size bytes; 5 flops and 1 (KEPT) or 2 exponentials an element, which at 4 TB/s of bf16 keep the exponential
//            units at 28 or 55% of their rate.
// Bound      Memory.
// Resources  32768 columns, a cluster of two blocks of 256 threads, eight vectors (sm_90a, bf16), no spills: 80 registers with KEPT, so three
//            blocks a multiprocessor, 40 without, so six; 32 KiB of shared memory each.
// Measured   H200, bf16, 2048x32768, one run: 65.6 us (98% of a copy), by clusters of four of 128 threads 65.3; quack 66.5, cuda.cluster 70.5,
//            triton.packed 71.8, cuda.ring 76.5.
// Lost       Without KEPT, in four or six blocks a multiprocessor 66.2 and 67.3; one block a row of 512 threads 67.5; two blocks of 512 69.6.
// NaN        As softmax_ring.cu.
#include "softmax.cuh"
#include "staged.cuh"

namespace {

template <bool kAlike>
__global__ void __launch_bounds__(ROW_THREADS, CTAS) softmax_staged_rows(T* out, const T* x, int64_t rows, int cols, int64_t stride) {
  extern __shared__ __align__(128) uint4 place[];
  __shared__ float2 slots[kSlots];
  __shared__ uint64_t barriers[1];
  greet(barriers);
  depend();
  let_dependents_start();
  const int64_t row = blockIdx.x / CLUSTER;
  Stage stage(place, cols);
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    stage.ask(i, x + row * stride);
    stage.together();
  }

  const T nothing = rounded<T>(-INFINITY);
  Largest largest;
  for_each_vector([&](auto index) {
    constexpr int i = decltype(index)::value;
    wait_for_all_but<VECTORS - 1 - i>();
    largest.take(stage.read(i, nothing));
  });
  const float maximum = over_lanes<32>(largest.value(), Maximum()), own_shift = finite(maximum);
  float kept[KEPT ? VECTORS : 1][kVector], sum = 0.f;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const Pack v = stage.read(i, nothing);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += kept[KEPT ? i : 0][j] = power(wide(v.each[j]) - own_shift);
  }
  meet();
  publish(slots, barriers, threadIdx.x / 32, float2{maximum, over_lanes<32>(sum, Sum())});
  await(barriers, 0);
  const float2 whole = gather<kSlots>(slots, MergeParts());
  const float shift = finite(whole.x), inverse = whole.y == 0.f ? 0.f : 1.f / whole.y;
  const float factor = KEPT ? power(maximum - shift) * inverse : inverse;

  T* to = out + row * cols;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    if (!stage.has(i)) break;
    Pack y;
    if constexpr (KEPT) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) narrow(kept[i][j] * factor, y.each[j]);
    } else {
      const Pack v = stage.read(i, nothing);
#pragma unroll
      for (int j = 0; j < kVector; ++j) narrow(power(wide(v.each[j]) - shift) * factor, y.each[j]);
    }
    store_vector<true>(to + stage.element(i), y, kAlike);
  }
}

void softmax_staged(TensorView out, TensorView x, int64_t rows, int64_t cols, int64_t stride) {
  if (rows == 0 || cols == 0) return;
  check_cols(cols);
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  T* to = static_cast<T*>(out.data_ptr());
  launch_staged(multiple_of_16(to) ? softmax_staged_rows<true> : softmax_staged_rows<false>, rows, 1, stream_of(x), to,
                static_cast<const T*>(x.data_ptr()), rows, cols, stride);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax_staged, softmax_staged);
