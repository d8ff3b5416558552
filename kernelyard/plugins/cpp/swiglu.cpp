// swiglu and its gradient, streams: y = silu(a) * b with silu(a) = a * s, s = 1 / (1 + exp(-a)), and
//   da = dy * b * s * (1 + a * (1 - s))        db = dy * a * s
//
// Algorithm  Rows cut into pieces of 1024 columns, pieces spread over threads; where no tensor has gaps all rows are one. Packed, the
//            halves of a row are two pointers, so nothing is copied apart. s and 1 - s come from exp(-|a|) without a difference of
//            near equals, and by a reciprocal of one Newton step where a division takes 16 cycles (AVX-512).
// Moves      3 * rows * cols * size bytes forward, 5 backward; about 20 and 27 flops an element, 14 of them the exponential.
// Bound      Memory from L2 on, arithmetic before. `streaming` stores spare reading the lines that they overwrite.
// Threads    Elementwise: the same bits whatever `threads` is.
// Lost       -O1 instead of -O2: a third less to compile, 1.6x slower (16x4096 float32 in cache): the exponential's chains need scheduling.
#include "exponential.h"
#include "pieces.h"

namespace ky {

template <class T, bool Stream>
void forward(T* y, const T* a, const T* b, int64_t n) {
  sweep(head_of<Stream>(y), n, [&](int64_t i, auto part) KY_INLINE {
    const vf x = load(a + i, part);
    put<Stream>(y + i, x * sigmoid(x).value * load(b + i, part), part);
  });
}

template <class T, bool Stream>
void backward(T* da, T* db, const T* dy, const T* a, const T* b, int64_t n) {
  sweep(head_of<Stream>(da), n, [&](int64_t i, auto part) KY_INLINE {
    const vf x = load(a + i, part), grad = load(dy + i, part);
    const Sigmoid s = sigmoid(x);
    put<Stream>(da + i, grad * load(b + i, part) * (s.value * (1.0f + x * s.rest)), part);
    put<Stream>(db + i, grad * (x * s.value), part);
  });
}

// A tensor of (..., cols) or half of one of (..., 2 * cols): rows, and where their elements start.
struct Half {
  Rows rows;
  void* at;

  Half(const TensorView& t, const char* name) : rows(t, name), at(data(t)) {}
  Half(const TensorView& packed, const char* name, int64_t which) : rows(packed, name) {
    if (rows.cols % 2) TVM_FFI_THROW(ValueError) << name << " has " << rows.cols << " columns, which have no halves";
    rows.cols /= 2;
    at = static_cast<char*>(data(packed)) + which * rows.cols * (packed.dtype().bits / 8);
  }
  template <class T> T* row(int64_t i) const { return static_cast<T*>(at) + rows.offset(i); }
};

inline Half gate(const TensorView& a, const Optional<TensorView>& b, const char* name) {
  return b.has_value() ? Half(a, name) : Half(a, name, 0);
}
inline Half up(const TensorView& a, const Optional<TensorView>& b, const char* name) {
  return b.has_value() ? Half(b.value(), name) : Half(a, name, 1);
}

inline void same_rows(const Rows& a, const char* name, const Rows& b) {
  if (a.count != b.count || a.cols != b.cols) TVM_FFI_THROW(ValueError) << name << " must have the rows and columns of swiglu's result";
}

void swiglu(TensorView y, TensorView a, Optional<TensorView> b, int64_t threads, int64_t chunk, int64_t streaming) {
  if (b.has_value()) same_shape(b.value(), "b", a, "a");
  const Half to(y, "the output"), left = gate(a, b, "a"), right = up(a, b, "b");
  same_rows(to.rows, "the output", left.rows);
  ask_for_large_pages(y);
  by_type(a, "a", [&](auto element) {
    using T = decltype(element);
    if (!is<T>(y)) TVM_FFI_THROW(TypeError) << "the output must have the dtype of a";
    const auto run = streaming ? forward<T, true> : forward<T, false>;
    pieces(Alike(to.rows, left.rows, right.rows), threads, chunk, streaming, [&](int64_t row, int64_t from, int64_t until) {
      run(to.row<T>(row) + from, left.row<const T>(row) + from, right.row<const T>(row) + from, until - from);
    });
  });
}

void swiglu_backward(TensorView da, TensorView db, TensorView dy, TensorView a, Optional<TensorView> b, int64_t threads, int64_t chunk,
                     int64_t streaming) {
  same_shape(da, "da", a, "a");
  if (b.has_value()) same_shape(b.value(), "b", a, "a"), same_shape(db, "db", a, "a");
  const Optional<TensorView> second = b.has_value() ? Optional<TensorView>(db) : b;
  const Half to_a = gate(da, second, "da"), to_b = up(da, second, "db"), left = gate(a, b, "a"), right = up(a, b, "b"), grad(dy, "dy");
  same_rows(grad.rows, "dy", left.rows);
  ask_for_large_pages(da);
  ask_for_large_pages(db);
  by_type(a, "a", [&](auto element) {
    using T = decltype(element);
    if (!is<T>(dy)) TVM_FFI_THROW(TypeError) << "dy must have the dtype of a";
    pieces(Alike(to_a.rows, to_b.rows, left.rows, right.rows, grad.rows), threads, chunk, streaming,
           [&](int64_t row, int64_t from, int64_t until) {
             T *first = to_a.row<T>(row) + from, *other = to_b.row<T>(row) + from;
             const bool alike = until_aligned(first) == until_aligned(other);  // both can be streamed in one sweep
             const auto run = streaming && alike ? backward<T, true> : backward<T, false>;
             run(first, other, grad.row<const T>(row) + from, left.row<const T>(row) + from, right.row<const T>(row) + from, until - from);
           });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(swiglu, ky::swiglu);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(swiglu_backward, ky::swiglu_backward);
