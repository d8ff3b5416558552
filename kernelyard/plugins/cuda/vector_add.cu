// vector_add, a stream: out = a + b in float32, rounded once.
//
// Algorithm  Vectors of 16 bytes; a block takes THREADS * UNROLL consecutive ones, a thread every THREADS-th of them, so that a warp
//            covers 512 consecutive bytes an instruction. All loads of a thread are issued before the first addition.
// Moves      3 * n * size bytes; 1 flop an element.
// Bound      Memory. By Little's law some 25 KB must be in flight a multiprocessor (4.8 TB/s, 700 ns, 132 of them): 16 bytes from each
//            of two inputs by 2048 threads is 64 KB for each unit of UNROLL, if all fit; the tuner says what does.
// Tail       The last n % (16 / size) elements, one a thread, in the last block. An address that is no multiple of 16 makes the whole
//            array go element by element: one kernel more, chosen on the host by looking at three pointers.
// Lost       A grid-stride loop (a division and a branch a step, and nothing gained on independent blocks).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace {

using tvm::ffi::TensorView;
using T = ELEMENT;
constexpr int kVector = 16 / sizeof(T);

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(float x, __half& y) { y = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& y) { y = __float2bfloat16_rn(x); }

__device__ __forceinline__ T sum(T a, T b) {
  T y;
  narrow(wide(a) + wide(b), y);
  return y;
}

__device__ __forceinline__ uint4 load(const uint4* p) { return STREAMING ? __ldcs(p) : __ldg(p); }
__device__ __forceinline__ void store(uint4* p, uint4 v) {
  if (STREAMING) __stcs(p, v); else *p = v;
}

__device__ __forceinline__ uint4 sum(uint4 a, uint4 b) {
  union Bits { uint4 all; T each[kVector]; __device__ Bits() {} } x, y, z;
  x.all = a, y.all = b;
#pragma unroll
  for (int i = 0; i < kVector; ++i) z.each[i] = sum(x.each[i], y.each[i]);
  return z.all;
}

__global__ void __launch_bounds__(THREADS) by_vectors(T* out, const T* a, const T* b, int64_t n) {
  const int64_t vectors = n / kVector, first = int64_t(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
  const uint4 *left = reinterpret_cast<const uint4*>(a), *right = reinterpret_cast<const uint4*>(b);
  uint4* y = reinterpret_cast<uint4*>(out);
  if ((int64_t(blockIdx.x) + 1) * (THREADS * UNROLL) <= vectors) {
    uint4 u[UNROLL], v[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) u[i] = load(left + first + i * THREADS), v[i] = load(right + first + i * THREADS);
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) store(y + first + i * THREADS, sum(u[i], v[i]));
  } else {
    for (int64_t i = first; i < vectors && i < first + THREADS * UNROLL; i += THREADS) store(y + i, sum(load(left + i), load(right + i)));
  }
  const int64_t rest = vectors * kVector + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && rest < n) out[rest] = sum(a[rest], b[rest]);
}

__global__ void __launch_bounds__(THREADS) by_elements(T* out, const T* a, const T* b, int64_t n) {
  const int64_t first = int64_t(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    const int64_t at = first + i * THREADS;
    if (at < n) out[at] = sum(a[at], b[at]);
  }
}

T* data(const TensorView& t) { return static_cast<T*>(t.data_ptr()); }

void expect(const TensorView& t, const char* name, const TensorView& a) {
  if (t.device().device_type != kDLCUDA) TVM_FFI_THROW(ValueError) << name << " must be on a CUDA device";
  if (t.numel() != a.numel()) TVM_FFI_THROW(ValueError) << name << " has " << t.numel() << " elements, a has " << a.numel();
  if (t.dtype().bits != 8 * sizeof(T)) TVM_FFI_THROW(TypeError) << name << " has elements of " << int(t.dtype().bits) << " bits";
  if (!t.is_contiguous()) TVM_FFI_THROW(ValueError) << name << " must be contiguous";
}

void vector_add(TensorView out, TensorView a, TensorView b) {
  expect(a, "a", a), expect(b, "b", a), expect(out, "the output", a);
  const int64_t n = a.numel();
  if (n == 0) return;
  tvm::ffi::CUDADeviceGuard guard(a.device().device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(a.device().device_type, a.device().device_id));
  const auto address = reinterpret_cast<uintptr_t>(data(out)) | reinterpret_cast<uintptr_t>(data(a)) | reinterpret_cast<uintptr_t>(data(b));
  const bool aligned = address % 16 == 0;
  // At least one block, for an array shorter than a vector is all tail.
  const int64_t pieces = aligned ? n / kVector : n, each = THREADS * UNROLL;
  const auto blocks = static_cast<unsigned>(pieces ? (pieces + each - 1) / each : 1);
  (aligned ? by_vectors : by_elements)<<<blocks, THREADS, 0, stream>>>(data(out), data(a), data(b), n);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(vector_add, vector_add);
