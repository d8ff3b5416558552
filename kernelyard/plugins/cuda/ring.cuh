// A ring of rows in shared memory that bulk copies fill: what rmsnorm_ring.cu and softmax_ring.cu share.
//
// Algorithm  A grid of persistent CTAS blocks a multiprocessor; each walks every gridDim.x-th row. One thread asks for a whole row by one
//            cp.async.bulk, STAGES rows ahead; its bytes are counted by an mbarrier. A row is read from shared memory into registers once
//            (VECTORS packs a thread), and the barrier that adds the warps' sums is also the one after which its place in the ring is free:
//            the next copy into it runs while this row is computed and stored.
// In flight  (STAGES - 1) to STAGES rows a block, whatever the threads do; a multiprocessor needs some 25 to 40 KB.
// Widths     A bulk copy wants addresses and sizes of whole 16 bytes; other rows are refused, for cuda.row. The output may start anywhere.
//
// Defines: STAGES, CTAS (blocks a multiprocessor), and those of vectors.cuh with a CLUSTER of 1.
#pragma once
#include "vectors.cuh"

#include <algorithm>

static_assert(CLUSTER == 1 && ROW_THREADS % 32 == 0, "a row is one block's, in whole warps");

namespace {

class Ring {
 public:
  // By all threads; nothing may be asked for before the grid ahead has ended.
  __device__ __forceinline__ Ring(uint4* places, uint64_t* full, const T* x, int64_t rows, int cols, int64_t stride)
      : places_(places), full_(full), x_(x), rows_(rows), stride_(stride), vectors_(cols / kVector) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < STAGES; ++i) make_barrier(&full_[i]);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    depend();
    let_dependents_start();
    if (threadIdx.x == 0) {
      for (int i = 0; i < STAGES; ++i) ask(i, blockIdx.x + int64_t(i) * gridDim.x);
    }
  }

  // This thread's vectors of the row that is next in the ring, `beyond` where the row has none.
  __device__ __forceinline__ void read(Pack (&v)[VECTORS], T beyond) {
    wait_for(&full_[at_], turn_);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) v[i].each[j] = beyond;
      if (has(i)) v[i].bits = places_[at_ * vectors_ + vector(i)];
    }
  }

  // After a barrier that all threads passed with the row in their registers: its place is for the row STAGES on.
  __device__ __forceinline__ void release(int64_t row) {
    if (threadIdx.x == 0) ask(at_, row + int64_t(STAGES) * gridDim.x);
    if (++at_ == STAGES) at_ = 0, turn_ ^= 1;
  }

  __device__ __forceinline__ static int vector(int i) { return threadIdx.x + i * ROW_THREADS; }
  __device__ __forceinline__ bool has(int i) const { return WHOLE || vector(i) < vectors_; }

 private:
  __device__ __forceinline__ void ask(int place, int64_t row) {
    if (row >= rows_) return;
    const unsigned bytes = vectors_ * 16;
    const uint32_t to = shared_address(places_ + place * vectors_), barrier = shared_address(&full_[place]);
    const T* from = x_ + row * stride_;
    expect(&full_[place], bytes);
    if constexpr (LOAD_CS) {
      uint64_t policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from),
          "r"(bytes), "r"(barrier), "l"(policy) : "memory");
    } else {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                   "r"(barrier) : "memory");
    }
  }

  uint4* places_;
  uint64_t* full_;
  const T* x_;
  int64_t rows_, stride_;
  int vectors_, at_ = 0;
  unsigned turn_ = 0;
};

inline int64_t walkers(int64_t rows, int64_t multiprocessors) { return std::min(rows, multiprocessors * CTAS); }

}  // namespace
