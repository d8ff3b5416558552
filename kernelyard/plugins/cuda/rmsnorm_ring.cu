// rmsnorm: y = x * rsqrt(mean(x^2) + eps) * (w + offset), sums in float32; rows come through a ring in shared memory.
//
// Algorithm  See ring.cuh. Squares are added over lanes, then warps (one barrier a row). The weight stays in registers for all rows of a
//            block where they hold it, so that nothing is on the way of a row but its own bytes; else each row loads it, from L1 or L2.
// Moves      2 * rows * cols * size bytes, w once a block; 4 flops an element.
// Bound      Memory: a row of 32768 columns takes some 2500 of the 7000 cycles in which its bytes come and go.
// Casting    As rmsnorm.cu.
#include "ring.cuh"
#include "rmsnorm.cuh"

namespace {

constexpr int kWeightWords = kVector * sizeof(W) / 4;
// 28: addresses, sums and one vector as float32.
constexpr bool kHeld = HAS_WEIGHT && VECTORS * (4 + kWeightWords) + 28 <= 65536 / (ROW_THREADS * CTAS);

// As loaded until here: a compiler keeps the float32 of the sum else, twice the registers of 16 bits, and spills the weight.
__device__ __forceinline__ void keep_packed(Pack& p) { asm volatile("" : "+r"(p.bits.x), "+r"(p.bits.y), "+r"(p.bits.z), "+r"(p.bits.w)); }

template <bool kAlike>
__global__ void __launch_bounds__(ROW_THREADS, CTAS) normalise_from_ring(
    T* out, const T* x, const W* w, int64_t rows, int cols, int64_t stride, float eps, float offset) {
  extern __shared__ __align__(128) uint4 places[];
  __shared__ uint64_t full[STAGES];
  __shared__ float slots[2][kSlots];  // two: of the next row while others still add this one's
  Ring ring(places, full, x, rows, cols, stride);
  WeightPack held[VECTORS];
  if constexpr (kHeld) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if (ring.has(i)) load_weight<false>(held[i], w, ring.vector(i) * kVector, cols);
    }
  }

  int place = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Pack v[VECTORS];
    ring.read(v, rounded<T>(0.f));
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum += wide(v[i].each[j]) * wide(v[i].each[j]);
    }
    sum = over_lanes<32>(sum, Add());
    if (threadIdx.x % 32 == 0) slots[place][threadIdx.x / 32] = sum;
    __syncthreads();
    ring.release(row);
    const float rstd = rsqrtf(gather<kSlots>(slots[place], Add()) / cols + eps);
    place ^= 1;

    T* to = out + row * cols;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if (!ring.has(i)) break;
      keep_packed(v[i]);
      WeightPack again;
      if constexpr (HAS_WEIGHT && !kHeld) load_weight<false>(again, w, ring.vector(i) * kVector, cols);
      Pack y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float gain = HAS_WEIGHT ? wide(kHeld ? held[i].each[j] : again.each[j]) : 1.f;
        y.each[j] = scaled(wide(v[i].each[j]), rstd, gain, offset);
      }
      store_vector<true>(to + ring.vector(i) * kVector, y, kAlike);
    }
  }
}

void rmsnorm_ring(TensorView out, TensorView x, TensorView w, int64_t rows, int64_t cols, int64_t stride, double eps, double offset,
                  int64_t multiprocessors) {
  if (rows == 0 || cols == 0) return;
  check_cols(cols);
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  T* to = static_cast<T*>(out.data_ptr());
  launch(multiple_of_16(to) ? normalise_from_ring<true> : normalise_from_ring<false>, 1, walkers(rows, multiprocessors), ROW_THREADS,
         STAGES * cols * sizeof(T), stream_of(x), to, static_cast<const T*>(x.data_ptr()), static_cast<const W*>(w.data_ptr()), rows, cols,
         stride, eps, offset);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm_ring, rmsnorm_ring);
