// The gradient of softmax, one pass over memory: dx = y * (dy - sum(dy * y)), rows spread over threads.
//
// Algorithm  The first sweep of a row sums dy * y, in four accumulators; the second finds both in cache and stores dx. With `prefetch` it
//            asks for the next row of both.
// Moves      3 * rows * cols * size bytes; 4 flops an element.
// Bound      Memory from L2 on; calls of one row by the host's side of the call.
// Threads    A row belongs to one thread, so a result has the same bits whatever `threads` is.
#include "sweeps.h"

namespace ky {

template <class T>
float dot(const T* a, const T* b, int64_t cols) {
  float total[1];
  sums<1, 4>(total, cols, [&](vf* t, int64_t i, auto part) KY_INLINE { t[0] += load(a + i, part) * load(b + i, part); });
  return total[0];
}

template <class T, bool Stream>
void write_row(T* dx, const T* dy, const T* y, float mean, int64_t cols, const T* next_dy, const T* next_y) {
  sweep(head_of<Stream>(dx), cols, [&](int64_t i, auto part) KY_INLINE {
    if (next_y) __builtin_prefetch(next_dy + i), __builtin_prefetch(next_y + i);
    put<Stream>(dx + i, load(y + i, part) * (load(dy + i, part) - mean), part);
  });
}

void softmax_backward(TensorView dx, TensorView dy, TensorView y, int64_t threads, int64_t chunk, int64_t streaming, int64_t prefetch) {
  same_shape(dx, "dx", y, "y");
  same_shape(dy, "dy", y, "y");
  const Rows to(dx, "dx"), from_dy(dy, "dy"), from_y(y, "y");
  const int64_t cols = from_y.cols;
  if (from_y.count * cols == 0) return;
  ask_for_large_pages(dx);
  by_type(y, "y", [&](auto element) {
    using T = decltype(element);
    T* out = static_cast<T*>(data(dx));
    const T *grad = static_cast<const T*>(data(dy)), *result = static_cast<const T*>(data(y));
    const auto write = streaming ? write_row<T, true> : write_row<T, false>;
    spread(from_y.count, threads, chunk, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const bool ahead = prefetch && row + 1 < end;
        const T *g = grad + from_dy.offset(row), *r = result + from_y.offset(row);
        write(out + to.offset(row), g, r, dot(g, r, cols), cols, ahead ? grad + from_dy.offset(row + 1) : nullptr,
              ahead ? result + from_y.offset(row + 1) : nullptr);
      }
      if (streaming) stream_fence();
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax_backward, ky::softmax_backward);
