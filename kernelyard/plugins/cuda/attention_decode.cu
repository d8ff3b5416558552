// attention_decode: a few new tokens over a cache, in one launch: the parts of a KV head's tokens are a thread block cluster.
//
// Algorithm  CLUSTER CTAs take a KV head of a sequence, each a part of its tokens, so that the query rows that share the head (heads of the
//            group times new tokens, 16 at most: the rows of mma.m16n8k16) read keys and values once. Each warp has tiles of its own, 32
//            tokens by cp.async into its own STAGES of shared memory: no barrier of the block in the loop. Scores, the online
//            softmax and the weighted values stay in registers, as weights do between the two products. Then warps are merged, and CTAs through
//            distributed shared memory, each CTA a share of the result.
// Moves      2 * length * head_dim * size bytes a KV head and sequence; 4 * head_dim flops a token and query row, of which there are 16.
// Bound      Memory. (STAGES - 1) * 32 tokens on their way a warp: 24 KiB at 128 columns and 3 stages, 96 KiB a CTA of 4 warps.
// Layout     A token's columns are 16-byte pieces, piece p of token t at p ^ (t % 8): ldmatrix meets every bank once.
// Not loaded Tokens past a length or part, or of a block that is none: cp.async writes zeros for them, and their scores are -inf.
// Measured   H200, bf16, 32/8 heads of 128, first defaults: from batch 16 on best (16 x 4096 tokens 63.7 us, where triton.split takes 98.9 and
//            plain torch 79.2; 64 x 4096 241 against 254 of plain torch). Loses at batch 1, where 8 clusters of 16 CTAs are the whole
//            grid: 9.9, 14.7, 50.1 us at 1024, 4096, 32768 tokens, where triton.split takes 6.3, 10.1, 38.3.
// Source     Dao et al., "Flash-Decoding for long-context inference" (2023); the merge is that of contracts/online_softmax.py.
//
// Defines beside those of rows.cuh: HEAD_DIM (64 or 128), WARPS, STAGES, PAGED.
#include "rows.cuh"

namespace {

constexpr int kRows = 16, kTokens = 32, kPieces = HEAD_DIM / 8, kTokenBytes = HEAD_DIM * 2, kTileBytes = kTokens * kTokenBytes;
constexpr int kThreads = WARPS * 32, kStageBytes = 2 * kTileBytes, kWarpBytes = STAGES * kStageBytes;
constexpr float kLog2E = 1.4426950408889634f;
static_assert(sizeof(T) == 2 && (HEAD_DIM == 64 || HEAD_DIM == 128) && STAGES >= 2 && ROW_THREADS == kThreads);
static_assert(kWarpBytes >= kRows * HEAD_DIM * 4, "a warp leaves its sums where its tiles were");

struct Shape {
  int q_heads, kv_heads, q_len, capacity, entries, block_size;
  int64_t q_batch, q_head, q_token, k_entry, k_head, k_token, v_entry, v_head, v_token, length_step, table_row, table_column;
  float scale;
};

// What is merged: of each warp, then of the CTA, whose values lie in the first warp's stages.
struct State {
  float top[WARPS + 1][kRows], sum[WARPS + 1][kRows];
  uint32_t counts[WARPS][STAGES];
};

__device__ __forceinline__ float finite(float x) { return x == -INFINITY ? 0.f : x; }

__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory"); }

__device__ __forceinline__ void matrices(uint32_t (&m)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void transposed(uint32_t (&m)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(from) : "memory");
}
[[maybe_unused]] __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
[[maybe_unused]] __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t pair(float low, float high) {
  union { T each[2]; uint32_t bits; } both;
  both.each[0] = rounded<T>(low), both.each[1] = rounded<T>(high);
  return both.bits;
}
__device__ __forceinline__ float from_other_cta(const float* here, unsigned rank) {
#if CLUSTER > 1
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(over_there(here, rank)) : "memory");
  return x;
#else
  return *here;
#endif
}
// All CTAs of the cluster have come here, and what they wrote to shared memory is seen.
__device__ __forceinline__ void meet_all() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

__global__ void __launch_bounds__(kThreads) attend(T* out, const T* q, const T* k, const T* v, const int* lengths, const int* table, Shape s) {
  extern __shared__ __align__(128) char stages[];
  __shared__ State state;
  depend();
  let_dependents_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = s.q_heads / s.kv_heads, rows = group * s.q_len;
  const int head = blockIdx.x / CLUSTER % s.kv_heads;
  const int64_t sequence = blockIdx.x / CLUSTER / s.kv_heads;
  const int length = min(max(lengths[sequence * s.length_step], 0), s.capacity);
  const int share = ((length + CLUSTER - 1) / CLUSTER + kTokens - 1) / kTokens * kTokens;
  const int start = static_cast<int>(min(int64_t(cluster_rank()) * share, int64_t(length))), end = min(int64_t(start) + share, int64_t(length));
  const int all = (end - start + kTokens - 1) / kTokens, mine = all > warp ? (all - warp + WARPS - 1) / WARPS : 0;
  char* own = stages + warp * kWarpBytes;
  const uint32_t own_at = shared_address(own);
  k += head * s.k_head, v += head * s.v_head;

  // The entry of the cache that this lane's token of tile i is in, -1 for none.
  auto entry_of = [&](int i) {
    const int token = start + (warp + i * WARPS) * kTokens + lane;
    if (i >= mine || token >= end) return -1;
    if constexpr (!PAGED) return static_cast<int>(sequence);
    const int entry = table[sequence * s.table_row + token / s.block_size * s.table_column];
    return entry >= 0 && entry < s.entries ? entry : -1;
  };
  auto request = [&](int i, int entry) {
    if (i < mine) {
      const int first = start + (warp + i * WARPS) * kTokens, stage = i % STAGES, inside = PAGED ? (first + lane) % s.block_size : first + lane;
      const uint32_t counts = __ballot_sync(~0u, entry >= 0);
      if (lane == 0) state.counts[warp][stage] = counts;
      constexpr int kAtOnce = 32 / kPieces;
      const int piece = lane % kPieces;
#pragma unroll
      for (int j = 0; j < kTokens; j += kAtOnce) {
        const int token = j + lane / kPieces;
        const int where = __shfl_sync(~0u, entry, token), at = __shfl_sync(~0u, inside, token);
        const uint32_t to = own_at + stage * kStageBytes + token * kTokenBytes + ((piece ^ (token & 7)) << 4);
        const int64_t known = where >= 0 ? where : 0, row = where >= 0 ? at : 0;
        copy16(to, k + known * s.k_entry + row * s.k_token + piece * 8, where >= 0);
        copy16(to + kTileBytes, v + known * s.v_entry + row * s.v_token + piece * 8, where >= 0);
      }
    }
    commit();
  };

  int next = entry_of(0);
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    const int now = next;
    next = entry_of(i + 1);
    request(i, now);
  }

  // The rows of a fragment: lane / 4 and 8 below it; columns 2 * (lane % 4), and 8 beyond.
  const int below[2] = {lane / 4, lane / 4 + 8};
  uint32_t queries[HEAD_DIM / 16][4];
  int last[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = below[h];
    const bool real = row < rows;
    last[h] = length - s.q_len + row % s.q_len;
    const T* from = q + sequence * s.q_batch + (head * group + row / s.q_len) * s.q_head + row % s.q_len * s.q_token + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 16; ++c) {
      queries[c][h] = real ? *reinterpret_cast<const uint32_t*>(from + c * 16) : 0;
      queries[c][h + 2] = real ? *reinterpret_cast<const uint32_t*>(from + c * 16 + 8) : 0;
    }
  }

  float acc[HEAD_DIM / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int i = 0; i < mine; ++i) {
    arrived<STAGES - 2>();
    __syncwarp();  // all lanes' copies, and all lanes have read the stage that is requested now
    const int now = next;
    next = entry_of(i + STAGES);
    request(i + STAGES - 1, now);
    const int first = start + (warp + i * WARPS) * kTokens, stage = i % STAGES;
    const uint32_t keys = own_at + stage * kStageBytes, values = keys + kTileBytes, counts = state.counts[warp][stage];

    float scores[kTokens / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const int token = n * 8 + lane % 8;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / 32; ++c) {
        uint32_t b[4];
        matrices(b, keys + token * kTokenBytes + (((c * 4 + lane / 8) ^ (token & 7)) << 4));
        multiply(scores[n], queries[2 * c], b[0], b[1], T());
        multiply(scores[n], queries[2 * c + 1], b[2], b[3], T());
      }
    }
    float higher[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = n * 8 + lane % 4 * 2 + e % 2;
        const bool seen = (counts >> token & 1) && first + token <= last[e / 2];
        scores[n][e] = seen ? scores[n][e] * s.scale : -INFINITY;
        higher[e / 2] = fmaxf(higher[e / 2], scores[n][e]);
      }
    }
    float base[2], fade[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      higher[h] = fmaxf(higher[h], __shfl_xor_sync(~0u, higher[h], 1));
      higher[h] = fmaxf(higher[h], __shfl_xor_sync(~0u, higher[h], 2));
      base[h] = finite(higher[h]), fade[h] = exp2f(top[h] - base[h]);
      top[h] = higher[h], sum[h] *= fade[h];
    }
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = exp2f(scores[n][e] - base[e / 2]), sum[e / 2] += scores[n][e];
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 8; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[d][e] *= fade[e / 2];
    }
#pragma unroll
    for (int c = 0; c < kTokens / 16; ++c) {
      const uint32_t weights[4] = {pair(scores[2 * c][0], scores[2 * c][1]), pair(scores[2 * c][2], scores[2 * c][3]),
                                   pair(scores[2 * c + 1][0], scores[2 * c + 1][1]), pair(scores[2 * c + 1][2], scores[2 * c + 1][3])};
      const int token = c * 16 + lane % 16;
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; ++d) {
        uint32_t b[4];
        transposed(b, values + token * kTokenBytes + (((d * 2 + lane / 16) ^ (token & 7)) << 4));
        multiply(acc[2 * d], weights, b[0], b[1], T());
        multiply(acc[2 * d + 1], weights, b[2], b[3], T());
      }
    }
  }

  arrived<0>();
  __syncwarp();
  float* left = reinterpret_cast<float*>(own);  // (kRows, HEAD_DIM)
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
    sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    if (lane % 4 == 0) state.top[warp][below[h]] = top[h], state.sum[warp][below[h]] = sum[h];
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 8; ++d) {
      *reinterpret_cast<float2*>(left + below[h] * HEAD_DIM + d * 8 + lane % 4 * 2) = make_float2(acc[d][2 * h], acc[d][2 * h + 1]);
    }
  }
  __syncthreads();

  // Warps into one: element by element, each thread its own, so that the first warp's place can take the result.
  for (int i = threadIdx.x; i < rows * HEAD_DIM; i += kThreads) {
    const int row = i / HEAD_DIM;
    float most = -INFINITY, total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) most = fmaxf(most, state.top[w][row]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float keep = exp2f(state.top[w][row] - finite(most));
      total += keep * state.sum[w][row];
      value += keep * reinterpret_cast<const float*>(stages + w * kWarpBytes)[i];
    }
    reinterpret_cast<float*>(stages)[i] = value;
    if (i % HEAD_DIM == 0) state.top[WARPS][row] = most, state.sum[WARPS][row] = total;
  }
  meet_all();

  for (int i = cluster_rank() * kThreads + threadIdx.x; i < rows * HEAD_DIM; i += CLUSTER * kThreads) {
    const int row = i / HEAD_DIM;
    float tops[CLUSTER], sums[CLUSTER], parts[CLUSTER], most = -INFINITY, total = 0.f, value = 0.f;
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) {
      tops[r] = from_other_cta(&state.top[WARPS][row], r), sums[r] = from_other_cta(&state.sum[WARPS][row], r);
      parts[r] = from_other_cta(reinterpret_cast<const float*>(stages) + i, r);
      most = fmaxf(most, tops[r]);
    }
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) {
      const float keep = exp2f(tops[r] - finite(most));
      total += keep * sums[r], value += keep * parts[r];
    }
    const int64_t result = (sequence * s.q_heads + head * group) * s.q_len + row;
    out[result * HEAD_DIM + i % HEAD_DIM] = rounded<T>(total == 0.f ? 0.f : value / total);
  }
  if constexpr (CLUSTER > 1) meet_all();  // a CTA's shared memory stays until the others have read it
}

void attention_decode(TensorView out, TensorView q, TensorView k, TensorView v, TensorView lengths, tvm::ffi::Optional<TensorView> block_table,
                      int64_t capacity, double scale) {
  const int64_t batch = q.size(0), kv_heads = k.size(1);
  if (batch * q.size(1) * q.size(2) == 0) return;
  if (q.size(3) != HEAD_DIM || q.size(1) / kv_heads * q.size(2) > kRows) TVM_FFI_THROW(ValueError) << "q doesn't fit this build";
  tvm::ffi::CUDADeviceGuard guard(q.device().device_id);
  Shape s{};
  s.q_heads = q.size(1), s.kv_heads = kv_heads, s.q_len = q.size(2), s.capacity = capacity, s.entries = k.size(0), s.block_size = k.size(2);
  s.q_batch = q.stride(0), s.q_head = q.stride(1), s.q_token = q.stride(2);
  s.k_entry = k.stride(0), s.k_head = k.stride(1), s.k_token = k.stride(2);
  s.v_entry = v.stride(0), s.v_head = v.stride(1), s.v_token = v.stride(2);
  s.length_step = lengths.stride(0), s.scale = static_cast<float>(scale) * kLog2E;
  const int* table = nullptr;
  if (PAGED) {
    const TensorView& blocks = block_table.value();
    table = static_cast<const int*>(blocks.data_ptr()), s.table_row = blocks.stride(0), s.table_column = blocks.stride(1);
  }
  launch(attend, CLUSTER, batch * kv_heads * CLUSTER, kThreads, WARPS * kWarpBytes, stream_of(q), static_cast<T*>(out.data_ptr()),
         static_cast<const T*>(q.data_ptr()), static_cast<const T*>(k.data_ptr()), static_cast<const T*>(v.data_ptr()),
         static_cast<const int*>(lengths.data_ptr()), table, s);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(attention_decode, attention_decode);
