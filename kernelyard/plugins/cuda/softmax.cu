// softmax: y = exp(x - max) / sum(exp(x - max)) in float32; a row of all -inf gives zeros. One read of x.
//
// Algorithm  As rmsnorm.cu: ROW_THREADS threads of each of CLUSTER CTAs hold a row in registers, VECTORS loads of 16 bytes a thread in
//            flight at once, ROWS rows side by side in a CTA and EACH rows at a time. A warp finds its maximum by shuffles, adds its
//            exponentials, and publishes the pair; pairs are merged with one exponential each (Milakov and Gimelshein 2018, the merge of
//            algorithm 3), so that one barrier does where a maximum and then a sum would take two.
// Moves      2 * rows * cols * size bytes; 5 flops and 2 exponentials an element: at 4 TB/s of bf16 the exponential units run at some 55%.
// Bound      Memory; a few rows: latency.
// Resources  Registers (sm_90a, bf16; whole vectors / any width), no spills: four vectors a thread 48 / 63, eight 80 / 95.
// Seen       One H200, bf16: (8192, 4096) 97% of a copy; (2048, 32768) over a cluster of four 84%, of eight 68%; (1000, 4095) 78%.
//            A warp a row at (4096, 768): 5.30 us by four rows a block; without OVERLAP 5.06 by one, 5.15 by two, 5.28 by eight; half a warp
//            5.78, three 5.86; triton.row 5.01, quack 4.98 in the same run.
// NaN        fmaxf passes over it and the sum does not; +inf: inf - inf is NaN. -inf alone: the maximum is put to 0 and 1 / sum to 0.
// Widths     Rows off a multiple of 16 bytes: see rows.cuh.
#include "softmax.cuh"

namespace {

constexpr int kThreads = ROW_THREADS * ROWS;
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps, for shuffles name all lanes");
static_assert(CLUSTER == 1 || (ROWS == 1 && EACH == 1), "a cluster has one row");

template <bool kShifted>
__global__ void __launch_bounds__(kThreads) softmax_rows(T* out, const T* x, int64_t rows, int cols, int64_t stride) {
  __shared__ float2 slots[ROWS][EACH][kSlots];
  __shared__ uint64_t barriers[1];
  greet(barriers);
  depend();
  let_dependents_start();
  const int group = threadIdx.x / ROW_THREADS, thread = threadIdx.x % ROW_THREADS, mine = cluster_rank() * ROW_THREADS + thread;
  const int64_t first_row = int64_t(blockIdx.x / CLUSTER) * (ROWS * EACH) + group;

  Pack v[EACH][VECTORS];
  T beside[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int64_t row = first_row + k * ROWS;
    const T* from = x + row * stride;
    const Split<kShifted> split(from, cols);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int vector = mine + i * (CLUSTER * ROW_THREADS);
#pragma unroll
      for (int j = 0; j < kVector; ++j) v[k][i].each[j] = rounded<T>(-INFINITY);
      if (row < rows && has(split, vector)) v[k][i].bits = load16(from + split.first(vector));
    }
    if constexpr (kShifted) {
      const int edge = split.edge(mine, cols);
      beside[k] = row < rows && edge >= 0 ? load_element(from + edge) : rounded<T>(-INFINITY);
    }
  }

  float2 parts[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    Largest largest;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) largest.take(v[k][i]);
    float maximum = largest.value();
    if constexpr (kShifted) maximum = fmaxf(maximum, wide(beside[k]));
    maximum = over_lanes<kLanes>(maximum, Maximum());
    const float shift = finite(maximum);
    float sum = kShifted ? power(wide(beside[k]) - shift) : 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum += power(wide(v[k][i].each[j]) - shift);
    }
    parts[k] = {maximum, over_lanes<kLanes>(sum, Sum())};
  }
  if constexpr (kSlots > 1) {
    meet();
#pragma unroll
    for (int k = 0; k < EACH; ++k) publish(slots[group][k], barriers, thread / 32, parts[k]);
    await(barriers, 0);
#pragma unroll
    for (int k = 0; k < EACH; ++k) parts[k] = gather<kSlots>(slots[group][k], MergeParts());
  }

#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int64_t row = first_row + k * ROWS;
    if (row >= rows) break;
    const T* from = x + row * stride;
    T* to = out + row * cols;
    const Split<kShifted> split(from, cols);
    const bool alike = beyond16(from) == beyond16(to);
    const float shift = finite(parts[k].x), inverse = parts[k].y == 0.f ? 0.f : 1.f / parts[k].y;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int vector = mine + i * (CLUSTER * ROW_THREADS);
      if (!has(split, vector)) break;
      Pack y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) narrow(power(wide(v[k][i].each[j]) - shift) * inverse, y.each[j]);
      store_vector<kShifted>(to + split.first(vector), y, alike);
    }
    if constexpr (kShifted) {
      const int edge = split.edge(mine, cols);
      if (edge >= 0) narrow(power(wide(beside[k]) - shift) * inverse, to[edge]);
    }
  }
}

void softmax(TensorView out, TensorView x, int64_t rows, int64_t cols, int64_t stride) {
  if (rows == 0 || cols == 0) return;
  check_cols(cols);
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  T* to = static_cast<T*>(out.data_ptr());
  const T* from = static_cast<const T*>(x.data_ptr());
  const bool whole = multiple_of_16(to) && multiple_of_16(from) && cols % kVector == 0 && (rows == 1 || stride % kVector == 0);
  const int64_t blocks = (rows + ROWS * EACH - 1) / (ROWS * EACH) * CLUSTER;
  launch(whole ? softmax_rows<false> : softmax_rows<true>, CLUSTER, blocks, kThreads, 0, stream_of(x), to, from, rows, cols, stride);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax, softmax);
