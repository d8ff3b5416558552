// softmax, online: maximum and sum in one sweep, exponentials again in the second; no buffer.
//
// Algorithm  The row is taken in blocks. A block whose maximum is above all before rescales the sum so far by exp(old - new), then adds
//            its own exponentials; the second sweep stores exp(x - max) / sum. Source: Milakov and Gimelshein, "Online normalizer
//            calculation for softmax" (2018), algorithm 3, by blocks instead of elements, so that the rescaling costs nothing.
// Moves      3 * rows * cols * size bytes where a row outgrows the cache, else 2; about 25 flops an element: two exponentials.
// Bound      Arithmetic; memory for rows beyond L2. There it beats `onepass`, whose buffer falls out of cache too: 4x1048576 takes
//            4.8 ms, `onepass` 6.8. Where a row fits it loses by the second exponential: 64x32768 takes 1.22 ms, `onepass` 1.05.
// Threads    A row belongs to one thread: the same bits whatever `threads` is. `block` changes the order of the sum, so the last bits.
#include "softmax.h"

namespace ky {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

template <class T>
float sum_of_exponentials(const T* x, float shift, int64_t cols) {
  vf total[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= cols; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) total[u] += exp_of_nonpositive(load(x + i + u * kLanes) - shift);
  }
  for (; i < cols; i += kLanes) total[0] += exp_of_nonpositive(load_some(x + i, cols - i < kLanes ? cols - i : kLanes, kLowest) - shift);
  return sum((total[0] + total[2]) + (total[1] + total[3]));
}

struct Normalizer {
  float most, total;
};

template <class T>
Normalizer normalizer(const T* x, int64_t cols, int64_t block) {
  Normalizer so_far{kLowest, 0.0f};
  for (int64_t i = 0; i < cols; i += block) {
    const int64_t n = cols - i < block ? cols - i : block;
    const float most = largest_of<T, 4>(x + i, n);
    if (most > so_far.most) {
      so_far.total *= std::exp(so_far.most - most);  // 0 * exp(-inf) before the first block
      so_far.most = most;
    }
    so_far.total += sum_of_exponentials(x + i, shift_of(so_far.most), n);
  }
  return so_far;
}

template <class T, bool Stream>
void write_row(T* y, const T* x, float shift, float by, int64_t cols, const T* next) {
  int64_t i = 0;
  if (Stream) {
    const int64_t head = until_aligned(y);
    if ((i = head < cols ? head : cols) > 0) store_some(y, exp_of_nonpositive(load_some(x, i, kLowest) - shift) * by, i);
  }
#pragma GCC unroll 4
  for (; i + kLanes <= cols; i += kLanes) {
    if (next) __builtin_prefetch(next + i);
    const vf v = exp_of_nonpositive(load(x + i) - shift) * by;
    if (Stream) stream(y + i, v); else store(y + i, v);
  }
  if (i < cols) store_some(y + i, exp_of_nonpositive(load_some(x + i, cols - i, kLowest) - shift) * by, cols - i);
}

void softmax(TensorView y, TensorView x, int64_t threads, int64_t chunk, int64_t block, int64_t streaming, int64_t prefetch) {
  same_shape(y, "the output", x, "x");
  const Rows to(y, "the output"), from(x, "x");
  const int64_t cols = from.cols;
  if (from.count * cols == 0) return;
  ask_for_large_pages(y);
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    T* out = static_cast<T*>(data(y));
    const T* in = static_cast<const T*>(data(x));
    const auto write = streaming ? write_row<T, true> : write_row<T, false>;
    spread(from.count, threads, chunk, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* source = in + from.offset(row);
        const T* next = prefetch && row + 1 < end ? in + from.offset(row + 1) : nullptr;
        const Normalizer n = normalizer(source, cols, block);
        write(out + to.offset(row), source, shift_of(n.most), inverse(n.total), cols, next);
      }
      if (streaming) stream_fence();
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax, ky::softmax);
