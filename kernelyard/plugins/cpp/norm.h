// What the kernels around rmsnorm share: its weight in the three casts, and the sweep that scales a row.
//
// Of x's own dtype the weight is read as it is; of another dtype, or with an offset, or in 'llama' casting, it is made float32 once a
// call. 'llama' rounds the normalised row to x's dtype, then multiplies by the weight in that dtype.
#pragma once

#include "sweeps.h"

namespace ky {

template <class T>
inline vf rounded(vf v) {  // to T and back
  if constexpr (sizeof(T) == 4) {
    return v;
  } else {
    return widen(narrow(v, T{}), T{});
  }
}

struct NoWeight {
  using Element = float;
  template <class T, class P> static vf apply(vf v, const Element*, P) { return v; }
};
template <class W, bool Llama>
struct Weight {
  using Element = W;
  template <class T, class P> static vf apply(vf v, const W* w, P part) { return (Llama ? rounded<T>(v) : v) * load(w, part); }
};

// y = x * r * weight. `next` is asked for on the way, where it is no null.
template <class T, class Scale, bool Stream>
void scale_row(T* y, const T* x, const typename Scale::Element* w, float r, int64_t cols, const T* next) {
  sweep(head_of<Stream>(y), cols, [&](int64_t i, auto part) KY_INLINE {
    if (next) __builtin_prefetch(next + i);
    put<Stream>(y + i, Scale::template apply<T>(load(x + i, part) * r, w + i, part), part);
  });
}

inline void check_weight(const Optional<TensorView>& w, int64_t cols) {
  if (!w.has_value()) return;
  const Rows weight(w.value(), "w");
  if (w.value().ndim() != 1 || weight.cols != cols) TVM_FFI_THROW(ValueError) << "w must be (" << cols << ",)";
}

// (w + offset) in float32; in 'llama' casting rounded to T, as the product's other factor is.
template <class T>
const float* float_weight(const TensorView& weight, int64_t cols, float offset, bool llama) {
  float* to = scratch<Scratch::weight>(cols);
  by_type(weight, "w", [&](auto element) {
    const auto* w = static_cast<const decltype(element)*>(data(weight));
    sweep(0, cols, [&](int64_t i, auto part) KY_INLINE {
      const vf v = load(w + i, part) + offset;
      put<false>(to + i, llama ? rounded<T>(v) : v, part);
    });
  });
  return to;
}

// Calls f(Scale{}, w) with how rows of T are to be scaled, and by what.
template <class T, class F>
inline void by_weight(const Optional<TensorView>& w, int64_t cols, double offset, bool llama, F f) {
  if (!w.has_value()) {
    f(NoWeight{}, static_cast<const float*>(nullptr));
  } else if (is<T>(w.value()) && offset == 0 && (!llama || sizeof(T) == 4)) {
    f(Weight<T, false>{}, static_cast<const T*>(data(w.value())));
  } else {
    const float* scale = float_weight<T>(w.value(), cols, static_cast<float>(offset), llama);
    if (llama && sizeof(T) < 4) {
      f(Weight<float, sizeof(T) < 4>{}, scale);
    } else {
      f(Weight<float, false>{}, scale);
    }
  }
}

}  // namespace ky
