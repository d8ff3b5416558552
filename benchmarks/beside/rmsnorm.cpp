// normalise.h as kernelyard calls it.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include "normalise.h"

namespace {

using tvm::ffi::TensorView;

void rmsnorm(TensorView out, TensorView x, TensorView w, int64_t rows, double eps, double offset) {
  normalise(static_cast<float*>(out.data_ptr()), static_cast<const float*>(x.data_ptr()), static_cast<const float*>(w.data_ptr()),
            static_cast<int>(rows), static_cast<float>(eps), static_cast<float>(offset));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, rmsnorm);
