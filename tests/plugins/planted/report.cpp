// Writes what it was handed into its output: the tests of calls look there.
#include <tvm/ffi/tvm_ffi.h>

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

bool report(TensorView x, TensorView out, double eps, TensorView w, int64_t mode, bool yes, Optional<TensorView> nothing, double half) {
  if (mode == 2) TVM_FFI_THROW(ValueError) << "asked to raise";
  if (mode == 1) return false;
  const auto* values = static_cast<const float*>(x.data_ptr());
  const auto* weights = static_cast<const float*>(w.data_ptr());
  auto* to = static_cast<float*>(out.data_ptr());
  const double told[] = {double(x.ndim()), double(x.size(0)), values[0], double(eps), weights[1], yes ? 1.0 : 0.0, nothing.has_value() ? 1.0 : 0.0, half};
  for (int i = 0; i < 8; ++i) to[i] = static_cast<float>(told[i]);
  return true;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(report, report);
