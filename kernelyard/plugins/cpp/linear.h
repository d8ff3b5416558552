// Few rows against many weights: dot products of m rows of x with every row of a weight (n, k), m up to 16.
//
// Algorithm  Rows of x are widened to float32 once. The weight is taken in blocks of 64 rows, spread over threads; within a block
//            `streams` of its rows at a time meet one, two, four or eight rows of x: so many sums stand in registers, each its own
//            chain, and a row of the weight comes from memory once, from L1 for further rows of x. With more than two rows of x the
//            sums are made by 512 columns at a time, so that what is used of x stays in L1.
// Moves      n * k * size bytes of weight; 2 * m * n * k flops.
// Bound      Memory while m is 1 to 4, products from then on.
// Threads    Whole blocks each: the same bits whatever `threads` is.
#pragma once

#include "sweeps.h"

namespace ky {

constexpr int64_t kMostRows = 16, kBlock = 64, kColumns = 512;

// A (n, k) weight whose rows lie `pitch` elements apart.
template <class T>
struct Weight {
  const T* at;
  int64_t pitch;
};

// Columns [from, until) of rows of x that are k long, of the weight, and so of the sums, which are added to.
struct Slice {
  int64_t k, from, until;
};

// sums[m * kBlock + r] += R rows of the weight times M rows of x.
template <int R, int M, class T>
inline void dots(float* sums, Weight<T> w, const float* x, Slice s) {
  vf total[R][M] = {};
  int64_t i = s.from;
  auto step = [&](auto part) KY_INLINE {
    vf row[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) row[m] = load(x + m * s.k + i, part);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vf weight = load(w.at + r * w.pitch + i, part);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[r][m] += weight * row[m];
    }
  };
  for (; i + kLanes <= s.until; i += kLanes) step(Whole{});
  if (i < s.until) step(Part{s.until - i});
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) sums[m * kBlock + r] += sum(total[r][m]);
  }
}

// Rows of x after those before, eight and four and two and one at a time; no more sums at once than there are registers for.
template <int R, class T>
inline void against_rows(float* sums, Weight<T> w, const float* x, int64_t rows, Slice s) {
  constexpr int kAtOnce = R >= 8 ? 2 : R >= 4 ? 4 : 8;
  int64_t m = 0;
  if constexpr (kAtOnce >= 8) {
    for (; m + 8 <= rows; m += 8) dots<R, 8>(sums + m * kBlock, w, x + m * s.k, s);
  }
  if constexpr (kAtOnce >= 4) {
    for (; m + 4 <= rows; m += 4) dots<R, 4>(sums + m * kBlock, w, x + m * s.k, s);
  }
  for (; m + 2 <= rows; m += 2) dots<R, 2>(sums + m * kBlock, w, x + m * s.k, s);
  if (m < rows) dots<R, 1>(sums + m * kBlock, w, x + m * s.k, s);
}

// sums[m * kBlock + j] = row m of x times row j of the weight, for `count` <= kBlock rows of it.
template <class T>
inline void block_of(float* sums, Weight<T> w, int64_t count, const float* x, int64_t rows, int64_t k, int64_t streams) {
  auto from = [&](int64_t row) { return Weight<T>{w.at + row * w.pitch, w.pitch}; };
  for (int64_t m = 0; m < rows; ++m) std::memset(sums + m * kBlock, 0, static_cast<size_t>(count) * sizeof(float));
  const int64_t step = rows > 2 ? kColumns : k;
  for (int64_t start = 0; start < k; start += step) {
    const Slice s{k, start, start + step < k ? start + step : k};
    int64_t j = 0;
    if (streams >= 8) {
      for (; j + 8 <= count; j += 8) against_rows<8>(sums + j, from(j), x, rows, s);
    }
    if (streams >= 4) {
      for (; j + 4 <= count; j += 4) against_rows<4>(sums + j, from(j), x, rows, s);
    }
    for (; j + 2 <= count; j += 2) against_rows<2>(sums + j, from(j), x, rows, s);
    if (j < count) against_rows<1>(sums + j, from(j), x, rows, s);
  }
}

// The rows of x in float32, one behind the other: itself where it is so already.
template <class T>
inline const float* widened(const TensorView& x, const Rows& rows, float* into) {
  const T* from = static_cast<const T*>(data(x));
  if constexpr (sizeof(T) == 4) {
    bool dense = true;
    for (int64_t m = 0; m < rows.count; ++m) dense = dense && rows.offset(m) == m * rows.cols;
    if (dense) return from;
  }
  for (int64_t m = 0; m < rows.count; ++m) {
    const T* row = from + rows.offset(m);
    sweep(0, rows.cols, [&](int64_t i, auto part) KY_INLINE { put<false>(into + m * rows.cols + i, load(row + i, part), part); });
  }
  return into;
}

inline void few(const Rows& rows, const char* name) {
  if (rows.count > kMostRows) TVM_FFI_THROW(ValueError) << name << " has " << rows.count << " rows, the most is " << kMostRows;
}

}  // namespace ky
