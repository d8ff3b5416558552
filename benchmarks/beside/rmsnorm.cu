// normalise.cuh as kernelyard launches it.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "normalise.cuh"

namespace {

using tvm::ffi::TensorView;

void rmsnorm(TensorView out, TensorView x, TensorView w, int64_t rows, double eps, double offset) {
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  const auto blocks = static_cast<unsigned>((rows + ROWS - 1) / ROWS);
  normalise<<<blocks, dim3(THREADS, ROWS), 0, stream>>>(
      static_cast<unsigned short*>(out.data_ptr()), static_cast<const unsigned short*>(x.data_ptr()),
      static_cast<const unsigned short*>(w.data_ptr()), static_cast<int>(rows), static_cast<float>(eps), static_cast<float>(offset));
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, rmsnorm);
