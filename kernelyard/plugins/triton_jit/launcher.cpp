// Calls compiled Triton code: one C++ function bound to a kernel's handle, grid and the types of its parameters.
//
// A call hands over tensors and numbers as they are. Addresses, the device and torch's current stream are read here, from what tvm_ffi
// was given; Python would pay 0.1 to 0.2 us for each of them. The driver is found at run time, so this is built where there is none.
#include <cuda.h>
#include <dlfcn.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

using namespace tvm::ffi;

namespace {

constexpr int MOST = 48;  // parameters; our widest kernel has half as many

template <typename F>
F driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
  void* found = library ? dlsym(library, name) : nullptr;
  if (found == nullptr) TVM_FFI_THROW(RuntimeError) << "libcuda.so.1 has no " << name << ": is there an NVIDIA driver?";
  return reinterpret_cast<F>(found);
}

using Launch = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);
using Words = CUresult (*)(CUresult, const char**);
using Current = CUresult (*)(CUcontext*);

union Slot {
  void* address;
  int64_t i64;
  int32_t i32;
  float f32;
  int8_t i1;
};

struct Bound {
  CUfunction function;
  CUlaunchConfig config;
  std::array<CUlaunchAttribute, 1> attributes;
  std::string kinds;  // one letter an argument: see `bound`
  int hidden;         // parameters that Triton adds behind ours: scratch memory, of which our kernels have none
  DLDevice device;
  CUcontext context;
  Launch launch;
  Current current;

  // True where it was launched; false where a tensor is not what the code was compiled for, and another way must be taken.
  bool operator()(const AnyView* args, int count) const {
    if (count != static_cast<int>(kinds.size()))
      TVM_FFI_THROW(TypeError) << "the kernel takes " << kinds.size() << " run-time arguments, not " << count;
    std::array<Slot, MOST> slots;
    std::array<void*, MOST> places;
    int used = 0;
    for (int i = 0; i < count; ++i) {
      Slot& slot = slots[used];
      switch (kinds[i]) {
        case '-': continue;
        case 'p':
        case 'm': {
          auto tensor = args[i].cast<TensorView>();
          auto at = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + tensor.byte_offset();
          if (tensor.device().device_type != device.device_type || tensor.device().device_id != device.device_id) return false;
          if (kinds[i] == 'p' && at % 16 != 0) return false;
          slot.address = reinterpret_cast<void*>(at);
          break;
        }
        case 'i': slot.i32 = args[i].cast<int32_t>(); break;
        case 'l': slot.i64 = args[i].cast<int64_t>(); break;
        case 'f': slot.f32 = static_cast<float>(args[i].cast<double>()); break;
        case 'b': slot.i1 = args[i].cast<bool>() ? 1 : 0; break;
        default: TVM_FFI_THROW(ValueError) << "no kind '" << kinds[i] << "' of argument";
      }
      places[used] = &slot;
      ++used;
    }
    for (int i = 0; i < hidden; ++i, ++used) slots[used].address = nullptr, places[used] = &slots[used];
    CUcontext here = nullptr;
    if (current(&here) != CUDA_SUCCESS || here != context) return false;
    CUlaunchConfig now = config;
    auto copies = attributes;
    now.attrs = copies.data();
    now.hStream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    CUresult result = launch(&now, function, places.data(), nullptr);
    if (result != CUDA_SUCCESS) {
      const char* words = nullptr;
      driver<Words>("cuGetErrorString")(result, &words);
      TVM_FFI_THROW(RuntimeError) << "the launch failed: " << (words ? words : "unknown error") << " (" << static_cast<int>(result) << ")";
    }
    return true;
  }
};

// function: the loaded code's CUfunction. kinds: p a tensor that must lie at 16 bytes, m one that may lie anywhere, i and l integers of 32
// and 64 bits, f a float32, b a truth value, - one that the code has as a constant. To be called on the device, whose context is kept.
Function bound(int64_t function, Array<int64_t> grid, int64_t threads, int64_t shared, bool pdl, String kinds, int64_t hidden,
               int64_t device_type, int64_t device) {
  auto it = std::make_shared<Bound>();
  it->function = reinterpret_cast<CUfunction>(function);
  it->config = {};
  it->config.gridDimX = grid[0], it->config.gridDimY = grid[1], it->config.gridDimZ = grid[2];
  it->config.blockDimX = threads, it->config.blockDimY = 1, it->config.blockDimZ = 1;
  it->config.sharedMemBytes = shared;
  it->config.numAttrs = pdl ? 1 : 0;
  it->attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  it->attributes[0].value.programmaticStreamSerializationAllowed = 1;
  it->kinds = kinds;
  it->hidden = static_cast<int>(hidden);
  if (kinds.size() + hidden > MOST) TVM_FFI_THROW(ValueError) << kinds.size() << " arguments: at most " << MOST - hidden << " are taken";
  it->device = {static_cast<DLDeviceType>(device_type), static_cast<int32_t>(device)};
  it->launch = driver<Launch>("cuLaunchKernelEx");
  it->current = driver<Current>("cuCtxGetCurrent");
  if (it->current(&it->context) != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "no CUDA context is current";
  return Function::FromPacked([it](const AnyView* args, int32_t count, Any* result) { *result = (*it)(args, count); });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bound, bound);
