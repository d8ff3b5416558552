// add_rmsnorm, one pass over memory: r = x + residual rounded to x's dtype, y = rmsnorm(r); rows spread over threads.
//
// Algorithm  The first sweep of a row adds, rounds, stores r and sums the squares of what it stored; the second reads r again, from
//            cache, scales and stores y. With `streaming` both outputs go past the caches, and r is also kept in a buffer of the
//            thread's own, one row long, for the second sweep to read. With `prefetch` the second sweep asks for the next row.
// Moves      4 * rows * cols * size bytes + the weight; 5 flops an element.
// Bound      Memory from L2 on; calls of one row by the host's side of the call.
// Threads    A row belongs to one thread, so a result has the same bits whatever `threads` is.
// In place   r or y may be x or residual: a row is read whole by the first sweep before y is stored, and r element by element.
#include "norm.h"

namespace ky {

// r = x + residual, into `kept` as well; returns the sum of squares of r as it was rounded.
template <class T, bool Stream>
float add_row(T* r, T* kept, const T* x, const T* residual, int64_t cols) {
  vf total[2] = {};
  sweep(head_of<Stream>(r), cols, [&](int64_t i, auto part) KY_INLINE {
    const vf v = rounded<T>(load(x + i, part) + load(residual + i, part));
    total[i / kLanes % 2] += v * v;
    put<Stream>(r + i, v, part);
    if (Stream) put<false>(kept + i, v, part);
  });
  return sum(total[0] + total[1]);
}

struct Config {
  int64_t threads, chunk, stream, prefetch;
};

// The sweeps are chosen here, once a call, and called by address, as in rmsnorm.cpp.
template <class T, class Scale>
void rows_of(T* y, T* r, const T* x, const T* residual, const typename Scale::Element* w, float eps, const Rows& to, const Rows& to_r,
             const Rows& from, const Rows& from_residual, Config config) {
  const auto add = config.stream ? add_row<T, true> : add_row<T, false>;
  const auto scale = config.stream ? scale_row<T, Scale, true> : scale_row<T, Scale, false>;
  const int64_t cols = from.cols;
  spread(from.count, config.threads, config.chunk, [&](int64_t begin, int64_t end) {
    T* buffer = config.stream ? reinterpret_cast<T*>(scratch<Scratch::row>(cols)) : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      T* result = r + to_r.offset(row);
      T* kept = config.stream ? buffer : result;
      const T* next = config.prefetch && row + 1 < end ? x + from.offset(row + 1) : nullptr;
      const float mean = add(result, kept, x + from.offset(row), residual + from_residual.offset(row), cols) / static_cast<float>(cols);
      scale(y + to.offset(row), kept, w, 1.0f / std::sqrt(mean + eps), cols, next);
    }
    if (config.stream) stream_fence();
  });
}

void add_rmsnorm(TensorView y, TensorView r, TensorView x, TensorView residual, Optional<TensorView> w, double eps_, double offset,
                 bool llama, int64_t threads, int64_t chunk, int64_t stream, int64_t prefetch) {
  same_shape(y, "the output", x, "x");
  same_shape(r, "the sum", x, "x");
  same_shape(residual, "residual", x, "x");
  const Rows to(y, "the output"), to_r(r, "the sum"), from(x, "x"), from_residual(residual, "residual");
  const float eps = static_cast<float>(eps_);
  const Config config{threads, chunk, stream, prefetch};
  if (from.count * from.cols == 0) return;
  check_weight(w, from.cols);
  ask_for_large_pages(y);
  ask_for_large_pages(r);
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    by_weight<T>(w, from.cols, offset, llama, [&](auto scale, const auto* weight) {
      rows_of<T, decltype(scale)>(static_cast<T*>(data(y)), static_cast<T*>(data(r)), static_cast<const T*>(data(x)),
                                  static_cast<const T*>(data(residual)), weight, eps, to, to_r, from, from_residual, config);
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_rmsnorm, ky::add_rmsnorm);
