// rmsnorm of bf16 rows of COLS columns: y = x * rsqrt(mean(x^2) + eps) * (w + offset), in float32, rounded once. One read of x.
//
// ROWS groups of THREADS threads a block, a row each, held in registers as loads of VECTOR elements that are all issued before the first
// is used. No header is included and elements are 16 bits of an integer, so that NVRTC, nvcc and numpy, which knows no bf16, agree on it.
//
// Defines: COLS, THREADS, VECTOR (4: 8 bytes a load, 8: 16 bytes), ROWS, STREAM (1: x and y are marked as used once).
#if VECTOR == 8
typedef uint4 Bits;
#else
typedef uint2 Bits;
#endif

union Pack {
  Bits all;
  unsigned pairs[VECTOR / 2];
};

static __device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
static __device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
static __device__ __forceinline__ unsigned rounded(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS)
normalise(unsigned short* out, const unsigned short* x, const unsigned short* w, int rows, float eps, float offset) {
  constexpr int kLoads = COLS / (THREADS * VECTOR), kWarps = THREADS / 32;
  static_assert(kLoads * THREADS * VECTOR == COLS && kWarps * 32 == THREADS, "a row is whole loads of whole warps");
  __shared__ float sums[ROWS][kWarps];
  const int row = blockIdx.x * ROWS + threadIdx.y;
  const Bits* from = reinterpret_cast<const Bits*>(x + static_cast<long long>(row) * COLS) + threadIdx.x;
  Bits* to = reinterpret_cast<Bits*>(out + static_cast<long long>(row) * COLS) + threadIdx.x;
  const Bits* gain = reinterpret_cast<const Bits*>(w) + threadIdx.x;

  Pack v[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    v[i].all = Bits();
    if (row < rows) v[i].all = STREAM ? __ldcs(from + i * THREADS) : __ldg(from + i * THREADS);
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
#pragma unroll
    for (int j = 0; j < VECTOR / 2; ++j) sum += low(v[i].pairs[j]) * low(v[i].pairs[j]) + high(v[i].pairs[j]) * high(v[i].pairs[j]);
  }
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (kWarps > 1) {
    if (threadIdx.x % 32 == 0) sums[threadIdx.y][threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += sums[threadIdx.y][i];
  }
  if (row >= rows) return;
  const float rstd = rsqrtf(sum / COLS + eps);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    Pack weight, y;
    weight.all = __ldg(gain + i * THREADS);
#pragma unroll
    for (int j = 0; j < VECTOR / 2; ++j) {
      y.pairs[j] = rounded(low(v[i].pairs[j]) * rstd * (low(weight.pairs[j]) + offset),
                           high(v[i].pairs[j]) * rstd * (high(weight.pairs[j]) + offset));
    }
    if (STREAM) __stcs(to + i * THREADS, y.all); else to[i * THREADS] = y.all;
  }
}
