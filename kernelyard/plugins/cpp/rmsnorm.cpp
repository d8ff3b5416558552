// rmsnorm, one pass over memory: y = x * rsqrt(mean(x^2) + eps) * (w + offset), rows spread over threads.
//
// Algorithm  A row is read twice: the first sweep sums squares in `unroll` independent accumulators, the second scales and stores.
//            The second finds the row in L1 or L2 (a row of 32768 floats is 128 KiB), so memory sees it once. With `prefetch` the
//            second sweep also asks for the next row, so that loads from memory go on while the core is busy with cached data.
//            `streaming` stores go past the caches: 512x4096 takes 0.30 ms with both, 0.63 with neither (two AVX-512 cores).
// Moves      2 * rows * cols * size bytes + the weight; 4 flops an element.
// Bound      Memory from L2 on; calls of one row by the host's side of the call.
// Threads    A row belongs to one thread, so a result has the same bits whatever `threads` is.
// Lost       -O3 instead of -O2: no faster (the loops are vectors by hand) and 1.3x as long to compile. Every tunable a template
//            parameter: 72 functions instead of 33, 3x as long to compile, no faster. A second thread for 8 rows of 4096: even.
// Weight     Of x's own dtype it is read as it is; of another dtype, or with an offset, or in 'llama' casting, it is made float32 once
//            a call. 'llama' rounds the normalised row to x's dtype, then multiplies by the weight in that dtype.
#include "rows.h"

namespace ky {

template <class T>
vf rounded(vf v) {  // to T and back
  if constexpr (sizeof(T) == 4) {
    return v;
  } else {
    return widen(narrow(v, T{}), T{});
  }
}

template <class T, int Unroll>
float sum_of_squares(const T* x, int64_t cols) {
  vf total[Unroll] = {};
  int64_t i = 0;
  for (; i + Unroll * kLanes <= cols; i += Unroll * kLanes) {
#pragma GCC unroll 8
    for (int u = 0; u < Unroll; ++u) {
      const vf v = load(x + i + u * kLanes);
      total[u] += v * v;
    }
  }
  for (; i + kLanes <= cols; i += kLanes) {
    const vf v = load(x + i);
    total[0] += v * v;
  }
  if (i < cols) {
    const vf v = load_some(x + i, cols - i, 0.0f);
    total[Unroll - 1] += v * v;
  }
  for (int half = Unroll / 2; half > 0; half /= 2) {
    for (int u = 0; u < half; ++u) total[u] += total[u + half];
  }
  return sum(total[0]);
}

struct NoWeight {
  using Element = float;
  template <class T> static vf apply(vf v, const Element*, int64_t, int64_t) { return v; }
};
template <class W, bool Llama>
struct Weight {
  using Element = W;
  template <class T> static vf apply(vf v, const W* w, int64_t i, int64_t n) {
    const vf scale = n == kLanes ? load(w + i) : load_some(w + i, n, 0.0f);
    return (Llama ? rounded<T>(v) : v) * scale;
  }
};

template <class T, class Scale, bool Stream>
void scale_row(T* y, const T* x, const typename Scale::Element* w, float r, int64_t cols, const T* next) {
  const vf by = splat(r);
  int64_t i = 0;
  if (Stream) {
    const int64_t head = until_aligned(y);
    if ((i = head < cols ? head : cols) > 0) store_some(y, Scale::template apply<T>(load_some(x, i, 0.0f) * by, w, 0, i), i);
  }
#pragma GCC unroll 4
  for (; i + kLanes <= cols; i += kLanes) {
    if (next) __builtin_prefetch(next + i);
    const vf v = Scale::template apply<T>(load(x + i) * by, w, i, kLanes);
    if (Stream) stream(y + i, v); else store(y + i, v);
  }
  if (i < cols) store_some(y + i, Scale::template apply<T>(load_some(x + i, cols - i, 0.0f) * by, w, i, cols - i), cols - i);
}

struct Config {
  int64_t threads, chunk, unroll, stream, prefetch;
};

// The sweeps are chosen here, once a call, and called by address: a template over all of it took 5 times as long to compile.
template <class T, class Scale>
void rows_of(T* y, const T* x, const typename Scale::Element* w, float eps, const Rows& to, const Rows& from, Config config) {
  const auto sum_row = config.unroll >= 8 ? sum_of_squares<T, 8> : config.unroll >= 4 ? sum_of_squares<T, 4> : sum_of_squares<T, 2>;
  const auto write_row = config.stream ? scale_row<T, Scale, true> : scale_row<T, Scale, false>;
  const int64_t cols = from.cols;
  spread(from.count, config.threads, config.chunk, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* source = x + from.offset(row);
      const T* next = config.prefetch && row + 1 < end ? x + from.offset(row + 1) : nullptr;
      const float mean = sum_row(source, cols) / static_cast<float>(cols);
      write_row(y + to.offset(row), source, w, 1.0f / std::sqrt(mean + eps), cols, next);
    }
    if (config.stream) stream_fence();
  });
}

// (w + offset) in float32; in 'llama' casting rounded to T, as the product's other factor is.
template <class T>
const float* float_weight(const TensorView& weight, int64_t cols, float offset, bool llama) {
  float* to = scratch(cols);
  by_type(weight, "w", [&](auto element) {
    const auto* w = static_cast<const decltype(element)*>(data(weight));
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = cols - i < kLanes ? cols - i : kLanes;
      vf v = (n == kLanes ? load(w + i) : load_some(w + i, n, 0.0f)) + offset;
      if (llama) v = rounded<T>(v);
      if (n == kLanes) store(to + i, v); else store_some(to + i, v, n);
    }
  });
  return to;
}

void rmsnorm(TensorView y, TensorView x, Optional<TensorView> w, double eps_, double offset, bool llama, int64_t threads, int64_t chunk,
             int64_t unroll, int64_t stream, int64_t prefetch) {
  same_shape(y, "the output", x, "x");
  const Rows to(y, "the output"), from(x, "x");
  const float eps = static_cast<float>(eps_);
  const Config config{threads, chunk, unroll, stream, prefetch};
  if (from.count * from.cols == 0) return;
  if (w.has_value()) {
    const Rows weight(w.value(), "w");
    if (w.value().ndim() != 1 || weight.cols != from.cols) TVM_FFI_THROW(ValueError) << "w must be (" << from.cols << ",)";
  }
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    T* out = static_cast<T*>(data(y));
    const T* in = static_cast<const T*>(data(x));
    if (!w.has_value()) {
      rows_of<T, NoWeight>(out, in, nullptr, eps, to, from, config);
    } else if (is<T>(w.value()) && offset == 0 && (!llama || sizeof(T) == 4)) {
      rows_of<T, Weight<T, false>>(out, in, static_cast<const T*>(data(w.value())), eps, to, from, config);
    } else {
      const float* scale = float_weight<T>(w.value(), from.cols, static_cast<float>(offset), llama);
      if (llama) {
        rows_of<T, Weight<float, true>>(out, in, scale, eps, to, from, config);
      } else {
        rows_of<T, Weight<float, false>>(out, in, scale, eps, to, from, config);
      }
    }
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, ky::rmsnorm);
