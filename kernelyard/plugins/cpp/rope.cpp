// rope: each pair (p, q) of a head's elements becomes (p * c - q * s, q * c + p * s), tokens spread over threads.
//
// Algorithm  Once a token its row of cosines and sines is laid out as the heads need it, in float32: for 'half' as it is, for
//            'interleaved' each twice, the sines with their signs. Every head then is two loads, four products and two stores ('half'),
//            or one vector times cosines plus the same vector with neighbours swapped times sines ('interleaved'). With `prefetch`
//            the next token's heads are asked for.
// Moves      2 * tokens * heads * dim * size bytes, and of the tables 2 * tokens * dim / 2; 3 flops an element.
// Bound      Memory from L2 on; calls of one token by the host's side of the call.
// Threads    A token belongs to one thread: the same bits whatever `threads` is.
// In place   The result may be x: both elements of a pair are read before either is stored.
#include <type_traits>

#include "sweeps.h"

namespace ky {

typedef uint64_t vpairs __attribute__((vector_size(kLanes * 4)));

inline vf swapped(vf v) {  // neighbours; a rotation of 64 bits by 32 is one on any byte order
  const vpairs pairs = bits_as<vpairs>(v);
  return bits_as<vf>((pairs << 32) | (pairs >> 32));
}

template <class T, bool Stream>
void halves(T* y, const T* x, const float* cosines, const float* sines, int64_t dim) {
  const int64_t half = dim / 2;
  sweep(0, half, [&](int64_t i, auto part) KY_INLINE {
    const vf p = load(x + i, part), q = load(x + half + i, part), c = load(cosines + i, part), s = load(sines + i, part);
    put<Stream>(y + i, p * c - q * s, part);
    put<Stream>(y + half + i, q * c + p * s, part);
  });
}

template <class T, bool Stream>
void neighbours(T* y, const T* x, const float* cosines, const float* sines, int64_t dim) {
  sweep(0, dim, [&](int64_t i, auto part) KY_INLINE {
    const vf v = load(x + i, part);
    put<Stream>(y + i, v * load(cosines + i, part) + swapped(v) * load(sines + i, part), part);
  });
}

// Rows of the two tables, as the heads of one token need them.
template <class C>
void lay_out(float* cosines, float* sines, const C* cos, const C* sin, int64_t half, bool interleaved, bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  sweep(0, half, [&](int64_t i, auto part) KY_INLINE {
    put<false>(cosines + i, load(cos + i, part), part);
    put<false>(sines + i, load(sin + i, part) * sign, part);
  });
  if (!interleaved) return;
  for (int64_t i = half - 1; i >= 0; --i) {  // from the end, so that nothing is overwritten before it is read
    const float c = cosines[i], s = sines[i];
    cosines[2 * i] = cosines[2 * i + 1] = c;
    sines[2 * i] = -s;
    sines[2 * i + 1] = s;
  }
}

// Positions as (rows, cols) of int64 or int32, one a token.
struct Positions {
  const void* at;
  Rows rows;
  bool wide;

  explicit Positions(const TensorView& t) : at(data(t)), rows(t, "positions"), wide(t.dtype().bits == 64) {
    if (t.dtype().code != kDLInt || (t.dtype().bits != 64 && t.dtype().bits != 32)) {
      TVM_FFI_THROW(TypeError) << "positions must be int64 or int32";
    }
  }
  int64_t operator[](int64_t token) const {
    const int64_t i = rows.offset(token / rows.cols) + token % rows.cols;
    return wide ? static_cast<const int64_t*>(at)[i] : static_cast<const int32_t*>(at)[i];
  }
};

struct Config {
  int64_t threads, chunk, stream, prefetch;
};

template <class T, class C>
void tokens_of(T* y, const T* x, const C* cos, const C* sin, const Positions& positions, const Rows& to, const Rows& from, int64_t tokens,
               int64_t cos_stride, int64_t sin_stride, bool interleaved, bool inverse, Config config) {
  const int64_t dim = from.cols, heads = from.count / tokens, step = interleaved ? dim : dim / 2;
  // Every store of a vector must be aligned for streaming: rows that start, and halves that end, on a vector's boundary.
  const bool streams = config.stream && until_aligned(y) == 0 && step % kLanes == 0 && to.strides_divide_by(kLanes);
  const auto rotate = interleaved ? (streams ? neighbours<T, true> : neighbours<T, false>) : (streams ? halves<T, true> : halves<T, false>);
  spread(tokens, config.threads, config.chunk, [&](int64_t begin, int64_t end) {
    float *cosines = scratch<Scratch::row>(2 * (dim + kLanes)), *sines = cosines + dim + kLanes;
    for (int64_t token = begin; token < end; ++token) {
      const int64_t position = positions[token];
      lay_out(cosines, sines, cos + position * cos_stride, sin + position * sin_stride, dim / 2, interleaved, inverse);
      for (int64_t row = token * heads; row < (token + 1) * heads; ++row) {
        if (config.prefetch && token + 1 < end) {
          const T* next = x + from.offset(row + heads);
          for (int64_t i = 0; i < dim; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(next + i);
        }
        rotate(y + to.offset(row), x + from.offset(row), cosines, sines, dim);
      }
    }
    if (streams) stream_fence();
  });
}

inline void check_table(const TensorView& table, const char* name, int64_t half) {
  const Rows rows(table, name);
  if (table.ndim() != 2 || rows.cols != half) TVM_FFI_THROW(ValueError) << name << " must be (most_positions, " << half << ")";
}

void rope(TensorView y, TensorView x, TensorView cos, TensorView sin, TensorView positions, bool interleaved, bool inverse, int64_t threads,
          int64_t chunk, int64_t stream, int64_t prefetch) {
  same_shape(y, "the output", x, "x");
  same_shape(sin, "sin", cos, "cos");
  const Rows to(y, "the output"), from(x, "x");
  const int64_t tokens = positions.numel();
  if (x.ndim() < 2 || from.cols % 2) TVM_FFI_THROW(ValueError) << "x must be (tokens..., heads, dim) with an even dim";
  if (tokens * x.size(x.ndim() - 2) != from.count) TVM_FFI_THROW(ValueError) << "positions must have one element a token of x";
  check_table(cos, "cos", from.cols / 2);
  check_table(sin, "sin", from.cols / 2);
  if (from.count * from.cols == 0) return;
  const Positions at(positions);
  for (int64_t token = 0; token < tokens; ++token) {  // before any thread starts: nothing can be thrown from there
    const int64_t position = at[token];
    if (position < 0 || position >= cos.size(0)) {
      TVM_FFI_THROW(ValueError) << "positions has " << position << ", cos and sin have " << cos.size(0) << " rows";
    }
  }
  const Config config{threads, chunk, stream, prefetch};
  ask_for_large_pages(y);
  by_type(x, "x", [&](auto element) {
    using T = decltype(element);
    by_type(cos, "cos", [&](auto entry) {
      using C = decltype(entry);
      if constexpr (sizeof(C) == 4 || std::is_same<C, T>::value) {
        tokens_of(static_cast<T*>(data(y)), static_cast<const T*>(data(x)), static_cast<const C*>(data(cos)), static_cast<const C*>(data(sin)),
                  at, to, from, tokens, cos.stride(0), sin.stride(0), interleaved, inverse, config);
      } else {
        TVM_FFI_THROW(TypeError) << "cos and sin must be float32 or have the dtype of x";
      }
    });
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rope, ky::rope);
