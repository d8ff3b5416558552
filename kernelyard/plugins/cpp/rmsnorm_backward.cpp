// The gradients of rmsnorm and add_rmsnorm, one pass over memory. With s = dy * (w + offset), n = x * rstd:
//   dx = rstd * (s - n * mean(s * n)) + dr        dw = sum over rows of dy * n
//
// Algorithm  Rows in blocks of `block`. The first sweep of a row sums x^2 and s * x at once; the second goes over the columns of all rows
//            of the block together, stores dx and adds to dw: with a block of 4 the weight and dw's partial sums are read a quarter
//            as often. Rows are in cache for it, so memory sees each once. With `prefetch` it asks for the next block's rows.
// dw         Each thread adds its rows, in order, into a float32 row of its own. The second stage adds those rows, in the order of the
//            threads, and rounds once: the same bits in every run of one config; another number of threads sums in another order.
// Moves      3 * rows * cols * size bytes (4 with dr), and threads * cols partial sums that stay in cache; 11 flops an element.
// Bound      Memory from L2 on; calls of one row by the host's side of the call.
// Block      4 takes 20 us where 1 takes 30 on 16x4096 float32 in cache; with streaming stores on 64x32768 1 takes 1.4 ms, 4 1.7 (one
//            AVX-512 core, its own time): the default is 4 without streaming and 1 with it.
// Threads    One equal share of rows each. Tasks taken when free would need a partial row for each task, or lose the fixed order.
#include "norm.h"

namespace ky {

template <class T>
struct Row {
  const T *dy, *x, *dr;
  T* dx;
  const T *next_dy, *next_x;
  float rstd, mean;  // mean of s * n
};

template <class T, bool Weighted>
void reduce(Row<T>& row, const float* w, int64_t cols, float eps) {
  float total[2];
  sums<2, 4>(total, cols, [&](vf* t, int64_t i, auto part) KY_INLINE {
    const vf x = load(row.x + i, part);
    vf s = load(row.dy + i, part);
    if constexpr (Weighted) s *= load(w + i, part);
    t[0] += x * x;
    t[1] += s * x;
  });
  row.rstd = 1.0f / std::sqrt(total[0] / static_cast<float>(cols) + eps);
  row.mean = total[1] / static_cast<float>(cols) * row.rstd;
}

template <class T, bool Weighted, bool Stream, int Block>
void write(const Row<T>* rows, float* dw, const float* w, int64_t cols) {
  sweep(head_of<Stream>(rows[0].dx), cols, [&](int64_t i, auto part) KY_INLINE {
    vf total = {}, weight = {};
    if constexpr (Weighted) total = load(dw + i, part), weight = load(w + i, part);
#pragma GCC unroll 4
    for (int k = 0; k < Block; ++k) {
      const Row<T>& row = rows[k];
      const vf dy = load(row.dy + i, part), n = load(row.x + i, part) * row.rstd;
      vf s = dy;
      if constexpr (Weighted) s *= weight, total += dy * n;
      vf dx = (s - n * row.mean) * row.rstd;
      if (row.dr) dx += load(row.dr + i, part);
      if (row.next_x) __builtin_prefetch(row.next_x + i), __builtin_prefetch(row.next_dy + i);
      put<Stream>(row.dx + i, dx, part);
    }
    if constexpr (Weighted) put<false>(dw + i, total, part);
  });
}

template <class T>
bool alike(const Row<T>* rows) {  // all four can be streamed in one sweep
  bool same = true;
  for (int k = 1; k < 4; ++k) same = same && until_aligned(rows[k].dx) == until_aligned(rows[0].dx);
  return same;
}

struct Config {
  int64_t threads, block, stream, prefetch;
};

template <class T>
struct Operands {
  T* dx;
  const T *dy, *dr, *x;
  const Rows &to, &from_dy, &from_dr, &from;

  Row<T> at(int64_t row, int64_t next) const {
    return {dy + from_dy.offset(row), x + from.offset(row), dr ? dr + from_dr.offset(row) : nullptr, dx + to.offset(row),
            next < 0 ? nullptr : dy + from_dy.offset(next), next < 0 ? nullptr : x + from.offset(next), 0.0f, 0.0f};
  }
};

template <class T, bool Weighted, bool Stream>
void rows_of(const Operands<T>& o, float* partials, int64_t stride, const float* w, float eps, Config config) {
  const int64_t cols = o.from.cols;
  spread(config.threads, config.threads, 0, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {  // one, but where OpenMP is absent all
      float* dw = partials + thread * stride;
      if (Weighted) std::memset(dw, 0, static_cast<size_t>(cols) * sizeof(float));
      int64_t row = o.from.count * thread / config.threads;
      const int64_t end = o.from.count * (thread + 1) / config.threads;
      while (row < end) {
        const int64_t block = config.block == 4 && row + 4 <= end ? 4 : 1;
        Row<T> rows[4];
        for (int64_t k = 0; k < block; ++k) {
          const int64_t next = row + k + block;
          rows[k] = o.at(row + k, config.prefetch && next < end ? next : -1);
          reduce<T, Weighted>(rows[k], w, cols, eps);
        }
        if (block == 4 && (!Stream || alike(rows))) {
          write<T, Weighted, Stream, 4>(rows, dw, w, cols);
        } else {
          for (int64_t k = 0; k < block; ++k) write<T, Weighted, Stream, 1>(rows + k, dw, w, cols);
        }
        row += block;
      }
      if (Stream) stream_fence();
    }
  });
}

// dw = the partial rows added in order. Threads help where there is more of it than one of them adds in the time that it takes to wake others.
inline void combine(TensorView dw, const float* partials, int64_t stride, int64_t count, int64_t cols) {
  constexpr int64_t kPiece = 1024, kAlone = 1 << 18;
  by_type(dw, "dw", [&](auto element) {
    auto* to = static_cast<decltype(element)*>(data(dw));
    spread((cols + kPiece - 1) / kPiece, cols * count < kAlone ? 1 : count, 0, [&](int64_t begin, int64_t end) {
      const int64_t from = begin * kPiece, until = end * kPiece < cols ? end * kPiece : cols;
      sweep(0, until - from, [&](int64_t i, auto part) KY_INLINE {
        vf total = {};
        for (int64_t p = 0; p < count; ++p) total += load(partials + p * stride + from + i, part);
        put<false>(to + from + i, total, part);
      });
    });
  });
}

// `dr` is absent for rmsnorm's own gradient; so is dw, as a tensor of no elements, where w is.
void rmsnorm_backward(TensorView dx, TensorView dw, TensorView dy, Optional<TensorView> dr, TensorView x, Optional<TensorView> w, double eps,
                      double offset, int64_t threads, int64_t block, int64_t stream, int64_t prefetch) {
  same_shape(dx, "dx", x, "x");
  same_shape(dy, "dy", x, "x");
  if (dr.has_value()) same_shape(dr.value(), "dr", x, "x");
  if (w.has_value()) same_shape(dw, "dw", w.value(), "w");
  const Rows to(dx, "dx"), from_dy(dy, "dy"), from(x, "x"), from_dr(dr.has_value() ? dr.value() : x, "dr");
  const int64_t cols = from.cols;
  if (cols == 0) return;
  check_weight(w, cols);
  const int64_t most = from.count > 0 ? from.count : 1;
  const Config config{threads > most ? most : threads, block, stream, prefetch};
  const int64_t stride = (cols + 15) / 16 * 16;  // so that no two threads write one cache line
  ask_for_large_pages(dx);
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    const Operands<T> o{static_cast<T*>(data(dx)), static_cast<const T*>(data(dy)),
                        dr.has_value() ? static_cast<const T*>(data(dr.value())) : nullptr, static_cast<const T*>(data(x)),
                        to, from_dy, from_dr, from};
    if (w.has_value()) {
      float* partials = scratch<Scratch::partials>(config.threads * stride);
      const bool as_it_is = is<float>(w.value()) && offset == 0;
      const float* weight = as_it_is ? static_cast<const float*>(data(w.value()))
                                     : float_weight<float>(w.value(), cols, static_cast<float>(offset), false);
      const auto run = stream ? rows_of<T, true, true> : rows_of<T, true, false>;
      run(o, partials, stride, weight, static_cast<float>(eps), config);
      combine(dw, partials, stride, config.threads, cols);
    } else {
      const auto run = stream ? rows_of<T, false, true> : rows_of<T, false, false>;
      run(o, nullptr, 0, nullptr, static_cast<float>(eps), config);
    }
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm_backward, ky::rmsnorm_backward);
