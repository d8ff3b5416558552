// Tensors as rows, and rows spread over threads.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "simd.h"

namespace ky {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

template <class T> struct Type;
template <> struct Type<float> { static constexpr uint8_t code = kDLFloat, bits = 32; };
template <> struct Type<f16> { static constexpr uint8_t code = kDLFloat, bits = 16; };
template <> struct Type<bf16> { static constexpr uint8_t code = kDLBfloat, bits = 16; };

template <class T>
inline bool is(const TensorView& t) { return t.dtype().code == Type<T>::code && t.dtype().bits == Type<T>::bits && t.dtype().lanes == 1; }

inline void* data(const TensorView& t) { return static_cast<char*>(t.data_ptr()) + t.byte_offset(); }

// Pages of 2 MiB for an output of 32 MiB and more. From that size on glibc maps every new tensor, and its first stores fault in a page
// each: vector_add of 2^24 floats into a new tensor takes 38 ms with pages of 4 KiB and 22 with these (one core, its own time). Of
// memory that is there already nothing changes, and where the system has no such pages it says no, which costs nothing.
inline void ask_for_large_pages(const TensorView& t) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kMapped = 32 << 20, kPage = 2 << 20;
  const uintptr_t bytes = static_cast<uintptr_t>(t.numel()) * t.dtype().bits / 8, start = reinterpret_cast<uintptr_t>(data(t));
  if (bytes < kMapped || !t.is_contiguous()) return;
  const uintptr_t first = (start + kPage - 1) / kPage * kPage, end = (start + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  (void)t;
#endif
}

// Calls f(T{}) with the element type of `t`.
template <class F>
inline void by_type(const TensorView& t, const char* name, F f) {
  if (is<float>(t)) return f(float{});
  if (is<bf16>(t)) return f(bf16{});
  if (is<f16>(t)) return f(f16{});
  TVM_FFI_THROW(TypeError) << name << " must be float32, bfloat16 or float16";
}

// (..., cols) as rows, a single number as a row of one: leading dimensions merged where the strides allow it, walked by index where they don't. 64-bit throughout.
struct Rows {
  static constexpr int kMost = 64;  // as many as torch has
  int64_t count = 1, cols = 1;
  int dims = 0;
  int64_t sizes[kMost], strides[kMost];

  Rows(const TensorView& t, const char* name) {
    const int last = t.ndim() - 1;
    if (last > kMost) TVM_FFI_THROW(ValueError) << name << " must have at most " << kMost << " dimensions";
    if (t.device().device_type != kDLCPU) TVM_FFI_THROW(ValueError) << name << " must be on the CPU";
    if (last < 0) return;
    cols = t.size(last);
    for (int i = 0; i < last; ++i) count *= t.size(i);
    if (count * cols != 0 && cols > 1 && t.stride(last) != 1) {
      TVM_FFI_THROW(ValueError) << name << ": the last dimension must be contiguous, its stride is " << t.stride(last);
    }
    for (int i = 0; i < last; ++i) {
      const int64_t size = t.size(i), stride = t.stride(i);
      if (size == 1) continue;
      if (dims > 0 && strides[dims - 1] == size * stride) {
        sizes[dims - 1] *= size;
        strides[dims - 1] = stride;
      } else {
        sizes[dims] = size;
        strides[dims++] = stride;
      }
    }
  }

  bool strides_divide_by(int64_t n) const {
    bool all = true;
    for (int i = 0; i < dims; ++i) all = all && strides[i] % n == 0;
    return all;
  }

  int64_t offset(int64_t row) const {  // in elements
    if (dims == 0) return 0;
    int64_t at = 0;
    for (int i = dims - 1; i > 0; --i) {
      at += row % sizes[i] * strides[i];
      row /= sizes[i];
    }
    return at + row * strides[0];
  }
};

inline void same_shape(const TensorView& a, const char* a_name, const TensorView& b, const char* b_name) {
  bool same = a.ndim() == b.ndim() && a.dtype().code == b.dtype().code && a.dtype().bits == b.dtype().bits;
  for (int i = 0; same && i < a.ndim(); ++i) same = a.size(i) == b.size(i);
  if (!same) TVM_FFI_THROW(ValueError) << a_name << " must have the shape and dtype of " << b_name;
}

// body(begin, end) over [0, count) on `threads` threads. chunk 0: one block a thread; else blocks of `chunk`, taken as threads get
// free. One thread makes no parallel region, so small work wakes nobody.
template <class Body>
inline void spread(int64_t count, int64_t threads, int64_t chunk, Body body) {
  if (threads > count) threads = count;
  if (threads <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  if (chunk <= 0) {
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(static, 1)
    for (int64_t t = 0; t < threads; ++t) body(count * t / threads, count * (t + 1) / threads);
    return;
  }
  const int64_t blocks = (count + chunk - 1) / chunk;
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(dynamic, 1)
  for (int64_t b = 0; b < blocks; ++b) body(b * chunk, (b + 1) * chunk < count ? (b + 1) * chunk : count);
}

enum class Scratch { row, weight, partials };

// At least n floats on a cache line's boundary, one buffer for each use, kept by the thread that asked and reused by its next call.
template <Scratch Use>
inline float* scratch(int64_t n) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<float[], Free> buffer;
  static thread_local int64_t size = 0;
  if (n > size) {
    const size_t bytes = (static_cast<size_t>(n) * sizeof(float) + 63) / 64 * 64;
    buffer.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    size = buffer ? n : 0;
    if (!buffer) TVM_FFI_THROW(RuntimeError) << "no memory for " << n << " floats";
  }
  return buffer.get();
}

}  // namespace ky
