// softmax, one pass over memory: maximum, exponentials and their sum, scaling; rows spread over threads.
//
// Algorithm  Three sweeps over a row that stays in cache. The second keeps the exponentials in float32 in a buffer of the thread's own, so
//            each is computed once; the third scales and stores them. With `prefetch` the second sweep, the one bound by arithmetic,
//            asks for the next row.
// Moves      2 * rows * cols * size bytes; about 14 flops an element, 11 of them the exponential.
// Bound      Arithmetic while rows are in cache, then memory.
// Threads    A row belongs to one thread: the same bits whatever `threads` is.
// Lost       Against `online` where the buffer outgrows L2: 4x1048576 takes 6.8 ms, `online` 4.8 (one AVX-512 core).
// Not tried  Exponentials kept in the output instead of a buffer: no streaming stores then, and bfloat16 would round twice.
#include "softmax.h"

namespace ky {

// e = exp(x - shift); returns their sum.
template <class T, int Unroll>
float exponentials(float* e, const T* x, float shift, int64_t cols, const T* next) {
  const float lowest = -std::numeric_limits<float>::infinity();
  vf total[Unroll] = {};
  int64_t i = 0;
  for (; i + Unroll * kLanes <= cols; i += Unroll * kLanes) {
#pragma GCC unroll 8
    for (int u = 0; u < Unroll; ++u) {
      const int64_t at = i + u * kLanes;
      if (next) __builtin_prefetch(next + at);
      const vf v = exp_of_nonpositive(load(x + at) - shift);
      store(e + at, v);
      total[u] += v;
    }
  }
  for (; i < cols; i += kLanes) {
    const int64_t n = cols - i < kLanes ? cols - i : kLanes;
    const vf v = exp_of_nonpositive(load_some(x + i, n, lowest) - shift);  // exp(-inf) adds nothing
    store(e + i, v);  // the buffer is a multiple of a vector long
    total[0] += v;
  }
  for (int half = Unroll / 2; half > 0; half /= 2) {
    for (int u = 0; u < half; ++u) total[u] += total[u + half];
  }
  return sum(total[0]);
}

template <class T, bool Stream>
void scale_row(T* y, const float* e, float by, int64_t cols) {
  int64_t i = 0;
  if (Stream) {
    const int64_t head = until_aligned(y);
    if ((i = head < cols ? head : cols) > 0) store_some(y, load_some(e, i, 0.0f) * by, i);
  }
#pragma GCC unroll 4
  for (; i + kLanes <= cols; i += kLanes) {
    const vf v = load(e + i) * by;
    if (Stream) stream(y + i, v); else store(y + i, v);
  }
  if (i < cols) store_some(y + i, load_some(e + i, cols - i, 0.0f) * by, cols - i);
}

void softmax(TensorView y, TensorView x, int64_t threads, int64_t chunk, int64_t unroll, int64_t streaming, int64_t prefetch) {
  same_shape(y, "the output", x, "x");
  const Rows to(y, "the output"), from(x, "x");
  const int64_t cols = from.cols;
  if (from.count * cols == 0) return;
  ask_for_large_pages(y);
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    T* out = static_cast<T*>(data(y));
    const T* in = static_cast<const T*>(data(x));
    const auto most = unroll >= 4 ? largest_of<T, 4> : unroll >= 2 ? largest_of<T, 2> : largest_of<T, 1>;
    const auto raise = unroll >= 4 ? exponentials<T, 4> : unroll >= 2 ? exponentials<T, 2> : exponentials<T, 1>;
    const auto scale = streaming ? scale_row<T, true> : scale_row<T, false>;
    spread(from.count, threads, chunk, [&](int64_t begin, int64_t end) {
      float* e = scratch<Scratch::row>(cols + kLanes);
      for (int64_t row = begin; row < end; ++row) {
        const T* source = in + from.offset(row);
        const T* next = prefetch && row + 1 < end ? in + from.offset(row + 1) : nullptr;
        const float total = raise(e, source, shift_of(most(source, cols)), cols, next);
        scale(out + to.offset(row), e, inverse(total), cols);
      }
      if (streaming) stream_fence();
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax, ky::softmax);
