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
#include "norm.h"

namespace ky {

template <class T, int Unroll>
float sum_of_squares(const T* x, int64_t cols) {
  float total[1];
  sums<1, Unroll>(total, cols, [&](vf* t, int64_t i, auto part) KY_INLINE {
    const vf v = load(x + i, part);
    t[0] += v * v;
  });
  return total[0];
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

void rmsnorm(TensorView y, TensorView x, Optional<TensorView> w, double eps_, double offset, bool llama, int64_t threads, int64_t chunk,
             int64_t unroll, int64_t stream, int64_t prefetch) {
  same_shape(y, "the output", x, "x");
  const Rows to(y, "the output"), from(x, "x");
  const float eps = static_cast<float>(eps_);
  const Config config{threads, chunk, unroll, stream, prefetch};
  if (from.count * from.cols == 0) return;
  check_weight(w, from.cols);
  ask_for_large_pages(y);
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    by_weight<T>(w, from.cols, offset, llama, [&](auto scale, const auto* weight) {
      rows_of<T, decltype(scale)>(static_cast<T*>(data(y)), static_cast<const T*>(data(x)), weight, eps, to, from, config);
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, ky::rmsnorm);
