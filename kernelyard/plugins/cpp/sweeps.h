// Sweeps over the columns of a row: whole vectors, and what is left before and after them.
//
// A sweep's body is f(i, part): `part` is Whole{} for the kLanes elements from i on, Part{n} for n < kLanes of them. `load` and `put`
// take it, so that a body is written once.
#pragma once

#include "rows.h"

#define KY_INLINE __attribute__((always_inline))  // a body is used two or three times: GCC would call it

namespace ky {

struct Whole {};
struct Part {
  int64_t n;
};

template <class T> inline vf load(const T* p, Whole) { return load(p); }
template <class T> inline vf load(const T* p, Part part) { return load_some(p, part.n, 0.0f); }

template <bool Stream, class T>
inline void put(T* p, vf v, Whole) {
  if constexpr (Stream) {
    stream(p, v);
  } else {
    store(p, v);
  }
}
template <bool Stream, class T>
inline void put(T* p, vf v, Part part) { store_some(p, v, part.n); }

// Elements to take apart so that the whole vectors of y start where they may be streamed.
template <bool Stream, class T>
inline int64_t head_of(const T* y) { return Stream ? until_aligned(y) : 0; }

// `head` elements apart, whole vectors, and what is left.
template <class F>
inline void sweep(int64_t head, int64_t cols, F f) {
  int64_t i = 0;
  if (head > 0) f(int64_t{0}, Part{i = head < cols ? head : cols});
#pragma GCC unroll 2
  for (; i + kLanes <= cols; i += kLanes) f(i, Whole{});
  if (i < cols) f(i, Part{cols - i});
}

// N sums over a row at once, each in `Unroll` accumulators: f(total, i, part) adds to total[0..N).
template <int N, int Unroll, class F>
inline void sums(float (&result)[N], int64_t cols, F f) {
  vf total[Unroll][N] = {};
  int64_t i = 0;
  for (; i + Unroll * kLanes <= cols; i += Unroll * kLanes) {
#pragma GCC unroll 8
    for (int u = 0; u < Unroll; ++u) f(total[u], i + u * kLanes, Whole{});
  }
  for (; i + kLanes <= cols; i += kLanes) f(total[0], i, Whole{});
  if (i < cols) f(total[Unroll - 1], i, Part{cols - i});
  for (int n = 0; n < N; ++n) {
    for (int half = Unroll / 2; half > 0; half /= 2) {
      for (int u = 0; u < half; ++u) total[u][n] += total[u + half][n];
    }
    result[n] = sum(total[0][n]);
  }
}

}  // namespace ky
