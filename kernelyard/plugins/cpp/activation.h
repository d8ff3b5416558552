// The activations that end a matrix product: relu, gelu by the error function and by its approximation, silu.
#pragma once

#include "exponential.h"

namespace ky {

enum Activation : int64_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

template <int N>
inline vf polynomial(vf x, const float (&c)[N]) {
  vf y = splat(c[0]);
  for (int i = 1; i < N; ++i) y = y * x + c[i];
  return y;
}

// erfc(x) to a few units in the last place where it is normal. Source: Cephes ndtrf (Moshier): erf by a polynomial up to 1, beyond
// exp(-x^2) / x times one of 1 / x^2, another from 2 on.
inline vf erfc(vf x) {
  static const float inner[] = {7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f, -2.685381193529856e-2f,
                                1.128358514861418e-1f, -3.761262582423300e-1f, 1.128379165726710e+0f};
  static const float middle[] = {2.326819970068386e-2f, -1.387039388740657e-1f, 3.687424674597105e-1f, -5.824733027278666e-1f, 6.210004621745983e-1f,
                                 -4.944515323274145e-1f, 3.404879937665872e-1f, -2.741127028184656e-1f, 5.638259427386472e-1f};
  static const float outer[] = {-1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f, 2.921019019210786e+0f,
                                -1.015265279202700e+0f, 4.218463358204948e-1f, -2.820767439740514e-1f, 5.641895067754075e-1f};
  const vf size = bits_as<vf>(bits_as<vu>(x) & 0x7fffffffu), square = x * x;
  const vf near = 1.0f - x * polynomial(square, inner);
  const vf q = 1.0f / (size > 1.0f ? size : splat(1.0f)), y = q * q;
  const vf tail = exp_of_nonpositive(-square) * q * (size < 2.0f ? polynomial(y, middle) : polynomial(y, outer));
  const vf far = x < 0.0f ? 2.0f - tail : tail;
  return size > 1.0f ? far : near;  // a NaN is not greater, and stays one
}

inline vf activated(vf x, Activation how) {
  switch (how) {
    case kRelu: return larger(x, splat(0.0f));
    case kGelu: return 0.5f * x * erfc(x * -0.70710678118654752f);
    case kGeluTanh: return x * sigmoid(1.5957691216057308f * x * (1.0f + 0.044715f * x * x)).value;  // (1 + tanh(u)) / 2 = sigmoid(2 u)
    case kSilu: return x * sigmoid(x).value;
    default: return x;
  }
}

}  // namespace ky
