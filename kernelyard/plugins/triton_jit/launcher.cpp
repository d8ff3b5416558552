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

constexpr int MOST = 64;  // parameters, and arguments; our widest kernel has half as many
constexpr int MOST_MAPS = 4, MOST_DIMENSIONS = 5;

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
using Encode = decltype(&cuTensorMapEncodeTiled);

[[noreturn]] void refuse(const char* what, CUresult result) {
  const char* words = nullptr;
  driver<Words>("cuGetErrorString")(result, &words);
  TVM_FFI_THROW(RuntimeError) << what << ": " << (words ? words : "unknown error") << " (" << static_cast<int>(result) << ")";
}

union Slot {
  void* address;
  int64_t i64;
  int32_t i32;
  float f32;
  int8_t i1;
};

// What the compiler decided of a descriptor.
struct Tiled {
  CUtensorMapSwizzle swizzle;
  CUtensorMapDataType type;
  int64_t bytes;
  int dimensions;
  std::array<cuuint32_t, MOST_DIMENSIONS> block;  // innermost first, as all that follows
};

struct Bound {
  CUfunction function;
  CUlaunchConfig config;
  std::array<CUlaunchAttribute, 1> attributes;
  std::string kinds;  // one letter an argument: see `bound`
  int arguments;      // of a call: a descriptor is a tensor, its sizes and strides
  int hidden;         // parameters that Triton adds behind ours: scratch memory, of which our kernels have none
  DLDevice device;
  CUcontext context;
  Launch launch;
  Current current;
  std::vector<Tiled> tiled;
  Encode encode;

  // Where a tensor's elements start; `here` tells whether that is on the device.
  uintptr_t address(const AnyView& value, int8_t* here) const {
    auto tensor = value.cast<TensorView>();
    *here = tensor.device().device_type == device.device_type && tensor.device().device_id == device.device_id;
    return reinterpret_cast<uintptr_t>(tensor.data_ptr()) + tensor.byte_offset();
  }

  // The map of a tensor of these sizes and strides in elements, outermost first. Encoding takes a fraction of a microsecond, and so no map is kept.
  void map(CUtensorMap* into, const Tiled& how, uintptr_t at, const int64_t* sizes, const int64_t* strides) const {
    std::array<cuuint64_t, MOST_DIMENSIONS> extents, steps;
    std::array<cuuint32_t, MOST_DIMENSIONS> ones;
    ones.fill(1);
    const int n = how.dimensions;
    for (int i = 0; i < n; ++i) extents[n - 1 - i] = sizes[i];
    for (int i = 0; i + 1 < n; ++i) steps[n - 2 - i] = strides[i] * how.bytes;
    const CUresult result = encode(into, how.type, n, reinterpret_cast<void*>(at), extents.data(), steps.data(), how.block.data(), ones.data(),
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, how.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) refuse("a tensor map was refused", result);
  }

  // True where it was launched; false where a tensor is not what the code was compiled for, and another way must be taken.
  bool operator()(const AnyView* args, int count) const {
    if (count != arguments) TVM_FFI_THROW(TypeError) << "the kernel takes " << arguments << " run-time arguments, not " << count;
    std::array<Slot, MOST> slots;
    std::array<void*, MOST> places;
    alignas(64) std::array<CUtensorMap, MOST_MAPS> maps;
    int used = 0, mapped = 0, i = 0;
    for (const char kind : kinds) {
      Slot& slot = slots[used];
      switch (kind) {
        case '-': ++i; continue;
        case '1': case '2': case '3': case '4': case '5': {
          const int n = kind - '0';
          int8_t here;
          const uintptr_t at = address(args[i], &here);
          if (!here || at % 16 != 0) return false;
          int64_t sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
          places[used++] = &maps[mapped];
          for (int d = 0; d < n; ++d) {
            sizes[d] = args[i + 1 + d].cast<int64_t>(), strides[d] = args[i + 1 + n + d].cast<int64_t>();
            slots[used].i32 = static_cast<int32_t>(sizes[d]), places[used] = &slots[used], ++used;
          }
          for (int d = 0; d < n; ++d) slots[used].i64 = strides[d], places[used] = &slots[used], ++used;
          map(&maps[mapped], tiled[mapped], at, sizes, strides);
          ++mapped;
          i += 1 + 2 * n;
          continue;
        }
        case 'p':
        case 'm': {
          int8_t here;
          const uintptr_t at = address(args[i], &here);
          if (!here || (kind == 'p' && at % 16 != 0)) return false;
          slot.address = reinterpret_cast<void*>(at);
          break;
        }
        case 'i': {
          const auto value = args[i].cast<int64_t>();
          if (value != static_cast<int32_t>(value)) return false;  // compiled for a smaller one
          slot.i32 = static_cast<int32_t>(value);
          break;
        }
        case 'l': slot.i64 = args[i].cast<int64_t>(); break;
        case 'f': slot.f32 = static_cast<float>(args[i].cast<double>()); break;
        case 'b': slot.i1 = args[i].cast<bool>() ? 1 : 0; break;
        default: TVM_FFI_THROW(ValueError) << "no kind '" << kind << "' of argument";
      }
      places[used] = &slot;
      ++used, ++i;
    }
    for (int i = 0; i < hidden; ++i, ++used) slots[used].address = nullptr, places[used] = &slots[used];
    CUcontext here = nullptr;
    if (current(&here) != CUDA_SUCCESS || here != context) return false;
    CUlaunchConfig now = config;
    auto copies = attributes;
    now.attrs = copies.data();
    now.hStream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    CUresult result = launch(&now, function, places.data(), nullptr);
    if (result != CUDA_SUCCESS) refuse("the launch failed", result);
    return true;
  }
};

// function: the loaded code's CUfunction. kinds: p a tensor that must lie at 16 bytes, m one that may lie anywhere, i and l integers of 32
// and 64 bits, f a float32, b a truth value, - one that the code has as a constant, a digit a descriptor of so many dimensions, which takes a
// tensor, its sizes and its strides. maps: swizzle, bytes and type of an element, and the block, for each of those. To be called on the device,
// whose context is kept.
Function bound(int64_t function, Array<int64_t> grid, int64_t threads, int64_t shared, bool pdl, String kinds, int64_t hidden,
               Array<Array<int64_t>> maps, int64_t device_type, int64_t device) {
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
  it->arguments = 0;
  int parameters = it->hidden;
  for (const char kind : it->kinds) {
    const int own = kind >= '1' && kind <= '5' ? 1 + 2 * (kind - '0') : 1;
    it->arguments += own, parameters += own;
  }
  if (parameters > MOST || maps.size() > MOST_MAPS) TVM_FFI_THROW(ValueError) << parameters << " parameters: at most " << MOST << " are taken";
  for (const Array<int64_t>& one : maps) {
    Tiled how{static_cast<CUtensorMapSwizzle>(one[0]), static_cast<CUtensorMapDataType>(one[2]), one[1], static_cast<int>(one.size()) - 3, {}};
    for (int d = 0; d < how.dimensions; ++d) how.block[how.dimensions - 1 - d] = static_cast<cuuint32_t>(one[3 + d]);
    it->tiled.push_back(how);
  }
  it->encode = maps.empty() ? nullptr : driver<Encode>("cuTensorMapEncodeTiled");
  it->device = {static_cast<DLDeviceType>(device_type), static_cast<int32_t>(device)};
  it->launch = driver<Launch>("cuLaunchKernelEx");
  it->current = driver<Current>("cuCtxGetCurrent");
  if (it->current(&it->context) != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "no CUDA context is current";
  return Function::FromPacked([it](const AnyView* args, int32_t count, Any* result) { *result = (*it)(args, count); });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bound, bound);
