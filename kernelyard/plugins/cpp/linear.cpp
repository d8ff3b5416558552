// matmul of few rows with a linear layer's weight, and linear_swiglu: see linear.h for how the products are made.
//
//   y = act(a @ w.T + bias) * scale + residual        y = silu(x @ g.T) * (x @ u.T), g and u one above the other in w
//
// A block's sums stand in 4 KiB of stack; what follows the product is done on them, in vectors, and rounded once.
// Lost       Sums of a block kept for all rows of x at once, and no block: 1 row of the weight against 16 of x takes 16 loads of x for
//            each of the weight's, 8 against 2 takes 10 for 16 products.
#include "activation.h"
#include "linear.h"

namespace ky {

// Weight blocks [first, first + 64) spread over threads: body(first, count).
template <class Body>
inline void blocks(int64_t n, int64_t threads, Body body) {
  spread((n + kBlock - 1) / kBlock, threads, threads > 1 ? 1 : 0, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(b * kBlock, n - b * kBlock < kBlock ? n - b * kBlock : kBlock);
  });
}

template <class T>
inline Weight<T> weight_of(const TensorView& w, int64_t pitch) { return {static_cast<const T*>(data(w)), pitch}; }

// `w` is (n, k) with rows `pitch` apart, told apart from the tensor that holds it: b is (k, n), its transpose.
void linear(TensorView y, TensorView a, TensorView b, Optional<TensorView> bias, Optional<TensorView> residual, double scale, int64_t activation,
            int64_t threads, int64_t streams) {
  const Rows rows(a, "a"), to(y, "the output");
  few(rows, "a");
  const int64_t k = rows.cols, n = to.cols;
  if (b.ndim() != 2 || b.size(0) != k || b.size(1) != n) TVM_FFI_THROW(ValueError) << "b must be (" << k << ", " << n << ")";
  if (k > 1 && n > 0 && b.stride(0) != 1) TVM_FFI_THROW(ValueError) << "b must be the transpose of rows without gaps";
  const int64_t pitch = n > 1 ? b.stride(1) : k;
  if (residual.has_value()) same_shape(residual.value(), "residual", y, "the output");
  const Rows added(residual.has_value() ? residual.value() : y, "residual");
  by_type(a, "a", [&](auto element) {
    using T = decltype(element);
    if (!is<T>(b) || !is<T>(y)) TVM_FFI_THROW(TypeError) << "a, b and the output must have one dtype";
    const float* x = widened<T>(a, rows, scratch<Scratch::row>(rows.count * k));
    const auto w = weight_of<T>(b, pitch);
    const T* shift = bias.has_value() ? static_cast<const T*>(data(bias.value())) : nullptr;
    const T* more = residual.has_value() ? static_cast<const T*>(data(residual.value())) : nullptr;
    T* out = static_cast<T*>(data(y));
    const auto how = static_cast<Activation>(activation);
    const float factor = static_cast<float>(scale);
    blocks(n, threads, [&](int64_t first, int64_t count) {
      float sums[kMostRows * kBlock];
      block_of(sums, Weight<T>{w.at + first * pitch, pitch}, count, x, rows.count, k, streams);
      for (int64_t m = 0; m < rows.count; ++m) {
        T* to_row = out + to.offset(m) + first;
        const T* more_row = more ? more + added.offset(m) + first : nullptr;
        sweep(0, count, [&](int64_t i, auto part) KY_INLINE {
          vf v = load(sums + m * kBlock + i, part);
          if (shift) v += load(shift + first + i, part);
          v = activated(v, how) * factor;
          if (more_row) v += load(more_row + i, part);
          put<false>(to_row + i, v, part);
        });
      }
    });
  });
}

void linear_swiglu(TensorView y, TensorView x, TensorView w, int64_t threads, int64_t streams) {
  const Rows rows(x, "x"), weights(w, "w"), to(y, "the output");
  few(rows, "x");
  const int64_t k = rows.cols, n = to.cols;
  if (w.ndim() != 2 || w.size(0) != 2 * n || w.size(1) != k) TVM_FFI_THROW(ValueError) << "w must be (" << 2 * n << ", " << k << ")";
  const int64_t pitch = weights.count > 1 ? w.stride(0) : k;
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    if (!is<T>(w) || !is<T>(y)) TVM_FFI_THROW(TypeError) << "x, w and the output must have one dtype";
    const float* wide = widened<T>(x, rows, scratch<Scratch::row>(rows.count * k));
    const auto weight = weight_of<T>(w, pitch);
    T* out = static_cast<T*>(data(y));
    blocks(n, threads, [&](int64_t first, int64_t count) {
      float gates[kMostRows * kBlock], ups[kMostRows * kBlock];
      block_of(gates, Weight<T>{weight.at + first * pitch, pitch}, count, wide, rows.count, k, streams);
      block_of(ups, Weight<T>{weight.at + (n + first) * pitch, pitch}, count, wide, rows.count, k, streams);
      for (int64_t m = 0; m < rows.count; ++m) {
        T* to_row = out + to.offset(m) + first;
        sweep(0, count, [&](int64_t i, auto part) KY_INLINE {
          put<false>(to_row + i, activated(load(gates + m * kBlock + i, part), kSilu) * load(ups + m * kBlock + i, part), part);
        });
      }
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, ky::linear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_swiglu, ky::linear_swiglu);
