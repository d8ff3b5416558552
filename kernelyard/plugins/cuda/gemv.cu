// Few rows against a linear layer's weight, by tensor cores straight from memory: matmul for m up to 16, and linear_swiglu (GATED).
//
// Algorithm  A CTA has 16 rows of the weight (GATED: 16 of either layer): the rows of mma.m16n8k16. Its columns are the rows of x, 8 or 16, those
//            that are not there the last one again. A product sums over k in any order, so a lane loads 16 bytes of a weight's row and of x's, and gives both
//            as the terms that its fragments hold: no shared memory, no conversion, 2 loads and 2 products for 16 x 32 weights. The
//            warps of a CTA share k, UNROLL such loads each at a time; their sums are added in order of warps.
// Moves      n * k * size bytes; x once a CTA, from L2. 2 * 8 * n * k flops or twice that.
// Bound      Memory. WARPS * UNROLL KiB on their way a CTA (GATED: twice).
// Ahead      Before the wait for the kernel ahead each row's first bytes are asked for in L2, one instruction a row: that reads nothing, and what
//            the kernel ahead still writes passes through L2. Loads follow the wait, and are not .nc.
//
// Defines beside those of rows.cuh: ROWS (of x), WARPS, UNROLL, ACTIVATION (its number), GATED, AHEAD; LOAD_CS marks the weight evict_first.
#include "rows.cuh"

#include <type_traits>

namespace {

constexpr int kThreads = WARPS * 32, kWeights = 16, kTiles = (ROWS + 7) / 8, kLayers = GATED ? 2 : 1, kTerms = 32, kStep = UNROLL * kTerms;
constexpr int kAheadBytes = 4096;  // of a row: what CTAs of 132 multiprocessors ask for at once stays well below L2
static_assert(sizeof(T) == 2 && ROWS >= 1 && ROWS <= 16 && ROW_THREADS == kThreads && CLUSTER == 1);

struct Shape {
  int n, k;
  int64_t x_row, w_row, r_row, r_column;
  float scale;
};

[[maybe_unused]] __device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                          uint32_t b1, __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
[[maybe_unused]] __device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                          uint32_t b1, __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_once(const T* p, uint64_t policy) {
  uint4 v;
  if constexpr (LOAD_CS) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
  } else {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  }
  return v;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float activated(float x) {
  if constexpr (ACTIVATION == 1) return x < 0.f ? 0.f : x;  // a NaN stays
  if constexpr (ACTIVATION == 2) return 0.5f * x * (1.f + erff(x * 0.7071067811865476f));
  if constexpr (ACTIVATION == 3) return x * sigmoid(1.5957691216057308f * x * (1.f + 0.044715f * x * x));
  if constexpr (ACTIVATION == 4) return x * sigmoid(x);
  return x;
}

__global__ void __launch_bounds__(kThreads) gemv(T* out, const T* x, const T* w, const T* bias, const T* residual, Shape s) {
  __shared__ float sums[WARPS][kLayers][kTiles * 8][kWeights];
  let_dependents_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, eighth = lane / 4, quarter = lane % 4, first = blockIdx.x * kWeights;
  // Rows beyond the last are that one again, and are not written.
  auto row_of = [&](int layer, int i) { return w + (int64_t(layer) * s.n + min(first + i, s.n - 1)) * s.w_row; };
#if AHEAD
  if (threadIdx.x < kLayers * kWeights && s.k > 0) {
    const int bytes = min(s.k * 2, kAheadBytes);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row_of(threadIdx.x / kWeights, threadIdx.x % kWeights)), "r"(bytes)
                 : "memory");
  }
#endif
  uint64_t policy = 0;
  if constexpr (LOAD_CS) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const T* rows[kLayers][2];
#pragma unroll
  for (int layer = 0; layer < kLayers; ++layer) rows[layer][0] = row_of(layer, eighth), rows[layer][1] = row_of(layer, eighth + 8);
  depend();

  float acc[kLayers][kTiles][4] = {};
  // kStep terms, of which the last step may have fewer.
  auto step = [&](int start, auto full) {
    constexpr bool whole = decltype(full)::value;
    uint4 weights[UNROLL][kLayers][2], inputs[UNROLL][kTiles];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * kTerms + quarter * 8;
#pragma unroll
      for (int layer = 0; layer < kLayers; ++layer) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          weights[u][layer][h] = whole || at < s.k ? load_once(rows[layer][h] + at, policy) : uint4{};
        }
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * kTerms + quarter * 8;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int m = min(tile * 8 + eighth, ROWS - 1);  // columns of a product do not mix: those beyond are not read
        inputs[u][tile] = whole || at < s.k ? load16_shared_by_rows(x + m * s.x_row + at) : uint4{};
      }
    }
    __syncwarp();  // or ptxas puts loads behind products, and two of them are in flight
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
      for (int layer = 0; layer < kLayers; ++layer) {
        const uint4 a = weights[u][layer][0], b = weights[u][layer][1];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 c = inputs[u][tile];
          multiply(acc[layer][tile], a.x, b.x, a.y, b.y, c.x, c.y, T());
          multiply(acc[layer][tile], a.z, b.z, a.w, b.w, c.z, c.w, T());
        }
      }
    }
  };
  int start = warp * kStep;
  for (; start + kStep <= s.k; start += WARPS * kStep) step(start, std::true_type());
  if (start < s.k) step(start, std::false_type());

#pragma unroll
  for (int layer = 0; layer < kLayers; ++layer) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[warp][layer][tile * 8 + quarter * 2 + e % 2][eighth + e / 2 * 8] = acc[layer][tile][e];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * kWeights; i += kThreads) {
    const int m = i / kWeights, within = i % kWeights, column = first + within;
    if (column >= s.n) continue;
    float total[kLayers] = {};
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
#pragma unroll
      for (int layer = 0; layer < kLayers; ++layer) total[layer] += sums[other][layer][m][within];
    }
    float y = total[0];
    if constexpr (GATED) {
      y *= sigmoid(y) * total[kLayers - 1];
    } else {
      if (bias) y += wide(load_element(bias + column));
      y = activated(y) * s.scale;
      if (residual) y += wide(load_element(residual + m * s.r_row + column * s.r_column));
    }
    out[int64_t(m) * s.n + column] = rounded<T>(y);
  }
}

void start(TensorView out, TensorView x, TensorView w, const T* bias, const T* residual, const Shape& s) {
  if (s.n == 0) return;
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  launch(gemv, 1, (int64_t(s.n) + kWeights - 1) / kWeights, kThreads, 0, stream_of(x), static_cast<T*>(out.data_ptr()),
         static_cast<const T*>(x.data_ptr()), static_cast<const T*>(w.data_ptr()), bias, residual, s);
}

inline const T* data_of(const tvm::ffi::Optional<TensorView>& t) { return t.has_value() ? static_cast<const T*>(t.value().data_ptr()) : nullptr; }

void linear(TensorView out, TensorView x, TensorView w, tvm::ffi::Optional<TensorView> bias, tvm::ffi::Optional<TensorView> residual,
            double scale, int64_t n, int64_t k, int64_t x_row, int64_t w_row, int64_t r_row, int64_t r_column) {
  start(out, x, w, data_of(bias), data_of(residual),
        {static_cast<int>(n), static_cast<int>(k), x_row, w_row, r_row, r_column, static_cast<float>(scale)});
}

void gated(TensorView out, TensorView x, TensorView w, int64_t n, int64_t k, int64_t x_row, int64_t w_row) {
  start(out, x, w, nullptr, nullptr, {static_cast<int>(n), static_cast<int>(k), x_row, w_row, 0, 0, 1.f});
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, linear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gated, gated);
