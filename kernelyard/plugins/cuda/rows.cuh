// What the row kernels share: how a row divides into 16-byte vectors, loads and stores, sums over lanes, warps and a cluster, the launch.
//
// Rows that don't start at a multiple of 16 bytes (an odd width) are cut by address: up to kVector - 1 elements before the first whole
// vector, the vectors, and as many after. A thread takes vectors, and the first threads one of the elements beside them. The output's
// rows lie as the input's where both are contiguous, so that stores are whole vectors too; else they go element by element. The weight
// is then the one array whose vectors lie across: two neighbours are read (from L1) and shifted into one.
//
// A cluster. Warps send their sums into the shared memory of all CTAs of the cluster (st.async), where an mbarrier counts the bytes, and
// each warp adds them in one order: equal bits in all threads, run after run. A barrier of the cluster would do too, but its release is
// a fence of the whole GPU (MEMBAR.ALL.GPU waits for the last row's stores) and its acquire empties L1 (CCTL.IVALL): once, at the start.
// Loads are volatile and not .nc: with OVERLAP this grid starts before the last one ends, and nothing may be read before `depend`.
//
// Defines: ELEMENT (of x), WEIGHT (of w), ROW_THREADS (threads of a CTA for a row), CLUSTER, LOAD_CS, STORE_CS, OVERLAP.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 && (CLUSTER > 1 || OVERLAP)
#error "thread block clusters and programmatic dependent launch need sm_90"
#endif

namespace {

using tvm::ffi::TensorView;
using T = ELEMENT;
using W = WEIGHT;

constexpr int kVector = 16 / sizeof(T);
constexpr int kLanes = ROW_THREADS < 32 ? ROW_THREADS : 32;
constexpr int kWarps = ROW_THREADS < 32 ? 1 : ROW_THREADS / 32;
static_assert(ROW_THREADS >= 16 && (ROW_THREADS == 16 || ROW_THREADS % 32 == 0), "the elements beside the vectors need 14 threads");
static_assert(CLUSTER >= 1 && CLUSTER <= 16, "8 is what every Hopper can place, 16 what `launch` has to ask for");

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(float x, __half& y) { y = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& y) { y = __float2bfloat16_rn(x); }
template <typename To>
__device__ __forceinline__ To rounded(float x) {
  To y;
  narrow(x, y);
  return y;
}

union Pack {
  uint4 bits;
  T each[kVector];
  __device__ Pack() {}
};

union WeightPack {
  uint32_t words[kVector * sizeof(W) / 4];
  W each[kVector];
  __device__ WeightPack() {}
};

// Loads and stores -------------------------------------------------------------------------------------

__device__ __forceinline__ uint4 load16(const void* p) {
  uint4 v;
  if constexpr (LOAD_CS) {
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  } else {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  }
  return v;
}

// Of what others read too: the weight.
__device__ __forceinline__ uint4 load16_shared_by_rows(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ void store16(void* p, uint4 v) {
  if constexpr (STORE_CS) {
    __stcs(static_cast<uint4*>(p), v);
  } else {
    *static_cast<uint4*>(p) = v;
  }
}

__device__ __forceinline__ unsigned short load2(const void* p) {
  unsigned short v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
// Not through a volatile pointer: that is a load at system scope, which passes L1 by.
__device__ __forceinline__ float load_element(const float* p) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ __half load_element(const __half* p) { return __ushort_as_half(load2(p)); }
__device__ __forceinline__ __nv_bfloat16 load_element(const __nv_bfloat16* p) { return __ushort_as_bfloat16(load2(p)); }

__device__ __forceinline__ unsigned beyond16(const void* p) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) & 15); }

// How a row divides: `head` elements, whole vectors, the rest. Without kShifted all rows are whole vectors.
template <bool kShifted>
struct Split {
  int head = 0, vectors;
  __device__ __forceinline__ Split(const T* row, int cols) {
    if constexpr (kShifted) head = min(static_cast<int>((16 - beyond16(row)) % 16 / sizeof(T)), cols);
    vectors = (cols - head) / kVector;
  }
  // The element that thread i of the row takes beside its vectors, or -1: first the head's, then those after the vectors.
  __device__ __forceinline__ int edge(int i, int cols) const {
    if constexpr (!kShifted) return -1;
    const int element = i < head ? i : vectors * kVector + i;
    return element < cols ? element : -1;
  }
  __device__ __forceinline__ int first(int vector) const { return head + vector * kVector; }
};

// The vector of y that belongs to elements first.. of the row; `alike`: y lies to 16 bytes as x does.
template <bool kShifted>
__device__ __forceinline__ void store_vector(T* y, const Pack& v, bool alike) {
  if (!kShifted || alike) {
    store16(y, v.bits);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) y[j] = v.each[j];
  }
}

// 16 bytes from any address, all inside [begin, end): two aligned loads shifted into one. False where those would reach outside.
__device__ __forceinline__ bool load_across(const W* p, const W* begin, const W* end, uint32_t* words) {
  const unsigned beyond = beyond16(p);
  const char* aligned = reinterpret_cast<const char*>(p) - beyond;
  if (aligned < reinterpret_cast<const char*>(begin) || aligned + (beyond ? 32 : 16) > reinterpret_cast<const char*>(end)) return false;
  const uint4 a = load16_shared_by_rows(aligned), b = beyond ? load16_shared_by_rows(aligned + 16) : a;
  uint32_t all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  if (beyond & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) all[i] = all[i + 2];
  }
  if (beyond & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) all[i] = all[i + 1];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(all[i], all[i + 1], (beyond & 3) * 8);
  return true;
}

// w[first .. first + kVector), wherever it lies with kShifted, else at a multiple of its own 16 (or 8) bytes.
template <bool kShifted>
__device__ __forceinline__ void load_weight(WeightPack& v, const W* w, int first, int cols) {
  constexpr int kWords = kVector * sizeof(W) / 4;
  if constexpr (!kShifted) {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 u = load16_shared_by_rows(reinterpret_cast<const uint32_t*>(w + first) + i);
        v.words[i] = u.x, v.words[i + 1] = u.y, v.words[i + 2] = u.z, v.words[i + 3] = u.w;
      }
    } else {
      static_assert(kWords == 2 || kWords % 4 == 0);
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.words[0]), "=r"(v.words[1]) : "l"(w + first));
    }
  } else {
    if constexpr (kWords == 4) {
      if (load_across(w + first, w, w + cols, v.words)) return;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) v.each[j] = load_element(w + first + j);
  }
}

// Sums ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ float exchange(float p, int distance) { return __shfl_xor_sync(~0u, p, distance); }
__device__ __forceinline__ float2 exchange(float2 p, int distance) { return {exchange(p.x, distance), exchange(p.y, distance)}; }

struct Add {
  static constexpr int kInOneThread = 16;
  __device__ __forceinline__ static float neutral(float) { return 0.f; }
  __device__ __forceinline__ static float2 neutral(float2) { return {0.f, 0.f}; }
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
  __device__ __forceinline__ float2 operator()(float2 a, float2 b) const { return {a.x + b.x, a.y + b.y}; }
};

template <int kCount, typename P, typename Merge>
__device__ __forceinline__ P over_lanes(P p, Merge merge) {
#pragma unroll
  for (int distance = kCount / 2; distance > 0; distance /= 2) p = merge(p, exchange(p, distance));
  return p;
}

// A recursion and not loops over an array: 16 pairs in one went to local memory.
template <int kCount, typename P, typename Merge>
__device__ __forceinline__ P tree(const P* slots, Merge merge) {
  if constexpr (kCount == 1) {
    return slots[0];
  } else {
    constexpr int kLeft = (kCount + 1) / 2;
    return merge(tree<kLeft>(slots, merge), tree<kCount - kLeft>(slots + kLeft, merge));
  }
}

// kCount values of shared memory made one, in one order in every thread. Few: by each thread, as a tree; more: by a warp's lanes.
template <int kCount, typename P, typename Merge>
__device__ __forceinline__ P gather(const P* slots, Merge merge) {
  if constexpr (kCount <= Merge::kInOneThread) {
    return tree<kCount>(slots, merge);
  } else {
    const int lane = threadIdx.x % 32;
    P p = Merge::neutral(P{});
#pragma unroll
    for (int i = 0; i < kCount; i += 32) {
      if (i + 32 <= kCount || lane + i < kCount) p = merge(p, slots[lane + i]);
    }
    return over_lanes<32>(p, merge);
  }
}

// Clusters -----------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
#if CLUSTER > 1
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// The same place in the shared memory of another CTA of the cluster.
__device__ __forceinline__ uint32_t over_there(const void* here, unsigned rank) {
  uint32_t there = 0;
#if CLUSTER > 1
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
#endif
  return there;
}
// A write into another CTA that counts its bytes on a barrier there: no fence, which would wait for this thread's stores to global memory.
__device__ __forceinline__ void send(float* slot, uint64_t* barrier, unsigned rank, float p) {
#if CLUSTER > 1
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(over_there(slot, rank)), "f"(p),
               "r"(over_there(barrier, rank)) : "memory");
#endif
}
__device__ __forceinline__ void send(float2* slot, uint64_t* barrier, unsigned rank, float2 p) {
#if CLUSTER > 1
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(over_there(slot, rank)), "f"(p.x),
               "f"(p.y), "r"(over_there(barrier, rank)) : "memory");
#endif
}
// Of sm_90 and later; what doesn't call them is compiled for older GPUs too.
__device__ __forceinline__ void make_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void expect(uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait_for(uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Makes the barriers of this CTA and says so to the cluster; answered by `meet`, before the first `send`.
template <int kCount>
__device__ __forceinline__ void greet(uint64_t (&barriers)[kCount]) {
#if CLUSTER > 1
  if (threadIdx.x == 0) {
    for (int i = 0; i < kCount; ++i) make_barrier(&barriers[i]);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void meet() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

constexpr int kSlots = CLUSTER * kWarps;

// A warp's value to all that add up its row: kSlots of them, here (no cluster) or in each CTA of the cluster.
template <typename P>
__device__ __forceinline__ void publish(P* slots, uint64_t* barrier, int warp_of_row, P p) {
  const int lane = threadIdx.x % 32;
  if constexpr (CLUSTER > 1) {
    if (threadIdx.x == 0) expect(barrier, kSlots * sizeof(P));
    if (lane < CLUSTER) send(slots + cluster_rank() * kWarps + warp_of_row, barrier, lane, p);
  } else {
    if (lane == 0) slots[warp_of_row] = p;
  }
}
// Until all of them are here; `parity` of the times that this barrier has been waited for.
__device__ __forceinline__ void await(uint64_t* barrier, unsigned parity) {
  if constexpr (CLUSTER > 1) wait_for(barrier, parity); else __syncthreads();
}

// Programmatic dependent launch ------------------------------------------------------------------------

// Lets a dependent grid be placed from now on; it waits for our end by itself.
__device__ __forceinline__ void let_dependents_start() {
#if OVERLAP
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the grid before has ended and its writes are visible. Every thread, before its first access.
__device__ __forceinline__ void depend() {
#if OVERLAP
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The host ---------------------------------------------------------------------------------------------

inline void check(cudaError_t error) {
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

inline cudaStream_t stream_of(const TensorView& t) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(t.device().device_type, t.device().device_id));
}

inline bool multiple_of_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int cluster, int64_t blocks, int threads, size_t shared, cudaStream_t stream,
            Arguments... arguments) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared, config.stream = stream, config.attrs = attributes;
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster, attribute.val.clusterDim.y = 1, attribute.val.clusterDim.z = 1;
  }
  if (OVERLAP) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 8) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  // Beside what a kernel declares itself, 14 KiB at most (attention_decode): both together may be 48 KiB without a word.
  if (shared > 32 << 10) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace
