// Which vectors of a row a thread has, where a row is held by VECTORS of them a thread.
//
// Defines: VECTORS (16 bytes each), WHOLE (those of all threads are exactly a row: no thread asks whether it has one), those of rows.cuh.
#pragma once
#include "rows.cuh"

namespace {

template <bool kShifted>
__device__ __forceinline__ bool has(const Split<kShifted>& split, int vector) {
  return (WHOLE && !kShifted) || vector < split.vectors;
}

// Raises where the threads of this build don't hold such a row.
inline void check_cols(int64_t cols) {
  constexpr int64_t kMost = int64_t(CLUSTER) * ROW_THREADS * VECTORS;
  if (cols / kVector > kMost || (WHOLE && cols != kMost * kVector)) TVM_FFI_THROW(ValueError) << cols << " columns don't fit this build";
}

}  // namespace
