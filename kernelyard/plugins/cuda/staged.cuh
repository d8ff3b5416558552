// A row that waits in shared memory and not in registers: what softmax_staged.cu and rmsnorm_staged.cu share.
//
// Algorithm  A row to each cluster of CLUSTER blocks. A thread asks for its VECTORS packs by cp.async, past L1 and past registers, and reads
//            back only what it asked for itself: no barrier before the row's one reduction, and none after it. What is needed twice is read
//            from shared memory twice, so few registers hold, and what fits beside each other is bounded by 227 KiB and not by 64 Ki words.
// In flight  CTAS * VECTORS * ROW_THREADS * 16 bytes a multiprocessor, wherever its blocks are: some 40 KB have to be on their way at all
//            times, also while others reduce and write; two blocks that hold 64 KB each leave gaps, six of 32 KB none.
// Widths     Rows of whole 16 bytes at multiples of 16; others are refused, for cuda.row. Results may start anywhere.
//
// Defines: CTAS (blocks a multiprocessor, for which registers and shared memory are kept), and those of vectors.cuh.
#pragma once
#include "vectors.cuh"

#include <algorithm>
#include <type_traits>
#include <utility>

static_assert(ROW_THREADS % 32 == 0, "a row is one cluster's, in whole warps");

namespace {

template <typename F, int... kIndices>
__device__ __forceinline__ void for_each_of(F f, std::integer_sequence<int, kIndices...>) {
  (f(std::integral_constant<int, kIndices>{}), ...);
}
// f of 0, 1, ... each as a type, for a wait names its number in the instruction.
template <typename F>
__device__ __forceinline__ void for_each_vector(F f) {
  for_each_of(f, std::make_integer_sequence<int, VECTORS>{});
}

// All but the last kPending vectors that this thread asked for are in shared memory.
template <int kPending>
__device__ __forceinline__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

class Stage {
 public:
  __device__ __forceinline__ Stage(uint4* place, int cols)
      : place_(place + threadIdx.x), vectors_(cols / kVector), first_(cluster_rank() * ROW_THREADS + threadIdx.x) {}

  __device__ __forceinline__ bool has(int i) const { return WHOLE || first_ + i * (CLUSTER * ROW_THREADS) < vectors_; }
  // The element of the row that vector i starts with.
  __device__ __forceinline__ int element(int i) const { return (first_ + i * (CLUSTER * ROW_THREADS)) * kVector; }

  __device__ __forceinline__ void ask(int i, const T* row) {
    if (!has(i)) return;
    const uint32_t to = shared_address(place_ + i * ROW_THREADS);
    if constexpr (LOAD_CS) {
      uint64_t policy;
      asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(row + element(i)), "l"(policy) : "memory");
    } else {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(row + element(i)) : "memory");
    }
  }
  // What was asked for since the last call is waited for together.
  __device__ __forceinline__ static void together() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  // Volatile: a compiler would keep what it read until the last use, as float32, in the registers that this design saves.
  __device__ __forceinline__ Pack read(int i, T beyond) const {
    Pack v;
    if (has(i)) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.bits.x), "=r"(v.bits.y), "=r"(v.bits.z), "=r"(v.bits.w)
                   : "r"(shared_address(place_ + i * ROW_THREADS)) : "memory");
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) v.each[j] = beyond;
    }
    return v;
  }
  __device__ __forceinline__ void write(int i, const Pack& v) { place_[i * ROW_THREADS] = v.bits; }

 private:
  uint4* place_;
  int vectors_, first_;
};

// `arrays` of a row in shared memory. As much of a multiprocessor's 228 KiB is asked for as CTAS blocks take, each with 1 KiB of the
// system's own; the rest is L1.
template <typename... Parameters, typename... Arguments>
void launch_staged(void (*kernel)(Parameters...), int64_t rows, int arrays, cudaStream_t stream, Arguments... arguments) {
  const int shared = arrays * VECTORS * ROW_THREADS * 16;
  const int percent = std::min(100, (CTAS * (shared + 2048) * 100 + (228 << 10) - 1) / (228 << 10));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent));
  launch(kernel, CLUSTER, rows * CLUSTER, ROW_THREADS, shared, stream, arguments...);
}

}  // namespace
