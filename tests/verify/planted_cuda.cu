// vector_add in float32 through a tile in shared memory: thread t brings element t of the tile, and adds the one that thread
// THREADS - 1 - t has brought. FAULT 0: right. 1: the store is not masked, and passes the end of the output. 2: no barrier between
// bringing and adding, so a warp reads what another may not have written yet.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace {

constexpr int kThreads = 128;

__global__ void planted(float* out, const float* a, const float* b, int64_t n) {
  __shared__ float tile[kThreads];
  const int64_t first = int64_t(blockIdx.x) * kThreads, mine = first + threadIdx.x;
  tile[threadIdx.x] = mine < n ? a[mine] : 0.0f;
#if FAULT != 2
  __syncthreads();
#endif
  const int other = kThreads - 1 - threadIdx.x;
  const int64_t at = first + other;
  const float left = tile[other];
#if FAULT == 1
  out[at] = left + (at < n ? b[at] : 0.0f);
#else
  if (at < n) out[at] = left + b[at];
#endif
}

float* data(const tvm::ffi::TensorView& t) { return static_cast<float*>(t.data_ptr()); }

void vector_add(tvm::ffi::TensorView out, tvm::ffi::TensorView a, tvm::ffi::TensorView b) {
  const int64_t n = a.numel();
  if (n == 0) return;
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(a.device().device_type, a.device().device_id));
  planted<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(data(out), data(a), data(b), n);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(vector_add, vector_add);
