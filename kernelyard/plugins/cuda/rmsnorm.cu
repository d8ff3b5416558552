// rmsnorm: y = x * rsqrt(mean(x^2) + eps) * (w + offset), sums in float32, one read of x.
//
// Algorithm  ROW_THREADS threads of each of CLUSTER CTAs hold a row in registers: VECTORS loads of 16 bytes a thread, all issued before
//            the first is used. A CTA has ROWS such groups side by side, each with EACH rows at a time (narrow rows: one load a row is too
//            little in flight). Squares are added over lanes, then warps (one barrier), then the cluster through distributed shared memory.
// Moves      2 * rows * cols * size bytes, w from L2 (or L1); 4 flops an element.
// Bound      Memory; a few rows: latency, of a launch (OVERLAP hides it), a load, 5 shuffles, a barrier and a store. There the weight is
//            loaded beside x (EARLY) and a row has as many threads as vectors.
// Widths     Rows off a multiple of 16 bytes: see rows.cuh. One kernel more, chosen on the host from addresses and strides.
// Resources  Registers (sm_90a, bf16; whole vectors / any width), no spills: one vector a thread 40 / 40, four and a cluster of four
//            48 / 58, eight 87 / 80: 11 blocks of 64 threads a multiprocessor, 90 KB in flight. 4 bytes of shared memory a warp.
// Seen       One H200, bf16: (1, 4096) 1.45 us, 2.3 without OVERLAP; (8192, 4096) 97% of a copy; (2048, 32768) over a cluster of four 91%,
//            of two 87%, in one block of 1024 threads 88%; (1000, 4095) 79%; (32768, 128) 94%.
//            A warp a row at (4096, 768): 4.93 us by four rows a block, streamed, without OVERLAP; 5.13 with it, 5.00 by eight rows; three
//            warps a row 5.86, the weight beside x 5.61; quack 4.87 in the same run.
// Casting    LLAMA rounds x * rstd to x's dtype before the product with the weight, itself in that dtype.
#include "rmsnorm.cuh"

namespace {

constexpr int kThreads = ROW_THREADS * ROWS;
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps, for shuffles name all lanes");
static_assert(CLUSTER == 1 || (ROWS == 1 && EACH == 1), "a cluster has one row");

template <bool kShifted>
__global__ void __launch_bounds__(kThreads) normalise(
    T* out, const T* x, const W* w, int64_t rows, int cols, int64_t stride, float eps, float offset) {
  __shared__ float slots[ROWS][EACH][kSlots];
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
      v[k][i].bits = make_uint4(0, 0, 0, 0);
      if (row < rows && has(split, vector)) v[k][i].bits = load16(from + split.first(vector));
    }
    if constexpr (kShifted) {
      const int edge = split.edge(mine, cols);
      beside[k] = row < rows && edge >= 0 ? load_element(from + edge) : rounded<T>(0.f);
    }
  }
  // Of the first row, whose division the others share only where none is shifted.
  constexpr bool kEarly = HAS_WEIGHT && EARLY && !(kShifted && EACH > 1);
  WeightPack early[VECTORS];
  if constexpr (kEarly) {
    const Split<kShifted> split(x + first_row * stride, cols);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int vector = mine + i * (CLUSTER * ROW_THREADS);
      if (has(split, vector)) load_weight<kShifted>(early[i], w, split.first(vector), cols);
    }
  }

  float squares[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum += wide(v[k][i].each[j]) * wide(v[k][i].each[j]);
    }
    if constexpr (kShifted) sum += wide(beside[k]) * wide(beside[k]);
    squares[k] = over_lanes<kLanes>(sum, Add());
  }
  if constexpr (kSlots > 1) {
    meet();
#pragma unroll
    for (int k = 0; k < EACH; ++k) publish(slots[group][k], barriers, thread / 32, squares[k]);
    await(barriers, 0);
#pragma unroll
    for (int k = 0; k < EACH; ++k) squares[k] = gather<kSlots>(slots[group][k], Add());
  }

#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int64_t row = first_row + k * ROWS;
    if (row >= rows) break;
    const T* from = x + row * stride;
    T* to = out + row * cols;
    const Split<kShifted> split(from, cols);
    const bool alike = beyond16(from) == beyond16(to);
    const float rstd = rsqrtf(squares[k] / cols + eps);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int vector = mine + i * (CLUSTER * ROW_THREADS);
      if (!has(split, vector)) break;
      WeightPack late;
      if constexpr (HAS_WEIGHT && !kEarly) load_weight<kShifted>(late, w, split.first(vector), cols);
      Pack y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float gain = HAS_WEIGHT ? wide(kEarly ? early[i].each[j] : late.each[j]) : 1.f;
        y.each[j] = scaled(wide(v[k][i].each[j]), rstd, gain, offset);
      }
      store_vector<kShifted>(to + split.first(vector), y, alike);
    }
    if constexpr (kShifted) {
      const int edge = split.edge(mine, cols);
      if (edge >= 0) to[edge] = scaled(wide(beside[k]), rstd, HAS_WEIGHT ? wide(load_element(w + edge)) : 1.f, offset);
    }
  }
}

void rmsnorm(TensorView out, TensorView x, TensorView w, int64_t rows, int64_t cols, int64_t stride, double eps, double offset) {
  if (rows == 0 || cols == 0) return;
  check_cols(cols);
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  T* to = static_cast<T*>(out.data_ptr());
  const T* from = static_cast<const T*>(x.data_ptr());
  const W* weight = static_cast<const W*>(w.data_ptr());
  const bool whole = multiple_of_16(to) && multiple_of_16(from) && (!HAS_WEIGHT || multiple_of_16(weight)) && cols % kVector == 0 &&
                     (rows == 1 || stride % kVector == 0);
  const int64_t blocks = (rows + ROWS * EACH - 1) / (ROWS * EACH) * CLUSTER;
  launch(whole ? normalise<false> : normalise<true>, CLUSTER, blocks, kThreads, 0, stream_of(x), to, from, weight, rows, cols, stride, eps,
         offset);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, rmsnorm);
