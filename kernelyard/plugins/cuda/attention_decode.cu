// attention_decode: a few new tokens over a cache, in one launch: the parts of a KV head's tokens are a thread block cluster. Or in two: of
// PARTS clusters a KV head, merged by a second, small grid.
//
// Algorithm  CLUSTER CTAs take a KV head of a sequence, so that the query rows that share the head (heads of the group times new tokens, 16 at
//            most: the rows of mma.m16n8k16) read keys and values once. Tiles of TOKENS tokens go to the warps of all CTAs in turn, by
//            cp.async into each warp's own STAGES of shared memory: no barrier of the block in the loop. Scores, the online softmax and
//            the weighted values stay in registers, as weights do between the two products. Then warps are merged, and CTAs: each owns a
//            share of the result, to which the others send theirs by st.async; it waits for their bytes, and nobody else waits.
//            PARTS > 1: tiles go to the warps of PARTS clusters in turn. Each cluster leaves maximum, sum and weighted values of the rows
//            that exist, in float32; a second grid, placed while the first runs, merges a row a CTA. Its scratch is each call's own: a
//            counter by which the last cluster would merge has to be zero before, which calls on two streams can't agree on.
//            EARLY: a warp's first STAGES - 1 tiles are asked for before the length is known, up to the capacity; values past the length are
//            overwritten with zeros once they are here.
// Moves      2 * length * head_dim * size bytes a KV head and sequence; 4 * head_dim flops a token and query row, of which there are 16.
//            Of parts, twice 4 * head_dim + 8 bytes a part and query row beside, in L2: 1.1 MB at 33 parts of 32 rows of 128.
// Bound      Memory, at few tokens latency: length or table, then tiles, then the merge. (STAGES - 1) * TOKENS tokens on their way a warp:
//            16 KiB at 128 columns, 16 tokens and 3 stages. Two CTAs of 4 such warps fit a multiprocessor, which is what lets all clusters
//            of 16 be placed where a GPC has fewer multiprocessors than that, and one CTA load while the other merges.
// Addresses  Of a contiguous cache a step behind the last, past the length too: the loop has 452 instructions where a product a token took
//            521, and the first tile is on its way 63 instructions sooner (sm_90a, bf16, 128 columns, 16 tokens).
// Layout     A token's columns are 16-byte pieces, piece p of token t at p ^ (t % 8): ldmatrix meets every bank once.
// Not loaded Tokens past a length, or of a block that is none: cp.async writes zeros for them, and their scores are -inf.
// Measured   H200, bf16, 32/8 heads of 128, one sequence of 1024, 4096, 32768 tokens, in one run: by clusters of 16 5.64, 9.95, 50.7 us (the
//            last in another run), EARLY 5.25, 9.59; by 33 parts of one CTA 9.39, 35.7, EARLY 9.26, 35.6; by 16 parts of 8 warps 35.3 (93%
//            of a copy); triton.split 6.3, 9.7, 38.7. 63.6 us at 16 sequences of 4096 (plain torch 79), 241 at 64 (255).
// Lost       Clusters of 4 and 8 by parts: 12.4 and 13.3 us at 4096, 43.0 (of 4) at 32768. 66 parts: 37.6 there; tiles of 32 tokens 37.0.
//            One CTA of 192 KB a multiprocessor, contiguous parts, merged by loads from the other CTAs: 9.9, 14.7, 50.1 us. First tiles asked for
//            in L2 ahead of the wait: no gain.
// Source     Dao et al., "Flash-Decoding for long-context inference" (2023); the merge is that of contracts/online_softmax.py.
//
// Defines beside those of rows.cuh: HEAD_DIM (64 or 128), WARPS, STAGES, TOKENS (16 or 32), PAGED, PARTS, EARLY.
#include "rows.cuh"

namespace {

constexpr int kRows = 16, kTokens = TOKENS, kPieces = HEAD_DIM / 8, kTokenBytes = HEAD_DIM * 2, kTileBytes = kTokens * kTokenBytes;
constexpr int kThreads = WARPS * 32, kStageBytes = 2 * kTileBytes, kWarpBytes = STAGES * kStageBytes;
constexpr int kSharers = PARTS * CLUSTER;  // CTAs of a KV head
constexpr float kLog2E = 1.4426950408889634f;
static_assert(sizeof(T) == 2 && (HEAD_DIM == 64 || HEAD_DIM == 128) && STAGES >= 2 && ROW_THREADS == kThreads);
static_assert(kWarpBytes >= kRows * HEAD_DIM * 4, "a warp leaves its sums where its tiles were");
static_assert(!(EARLY && PAGED), "which block a token is in comes with the length");
static_assert(kTokens == 16 || kTokens == 32, "a lane knows one token of a tile");
constexpr int kFours = kRows * HEAD_DIM / 4, kOwn = (kFours + CLUSTER - 1) / CLUSTER;  // four columns of a row: what is sent at once

struct Shape {
  int q_heads, kv_heads, q_len, capacity, entries, block_size;
  int64_t q_batch, q_head, q_token, k_entry, k_head, k_token, v_entry, v_head, v_token, length_step, table_row, table_column;
  float scale;
#if PARTS > 1
  float4* part_values;  // (query row of the result, part, column)
  float2* part_tops;    // (query row of the result, part): the maximum, and the sum
#endif
};

// What is merged: of each warp, then of each CTA of the cluster this one's share.
struct State {
  float4 values[CLUSTER > 1 ? CLUSTER * kOwn : 1];
  float2 tops[CLUSTER > 1 ? CLUSTER * kOwn : 1];  // the maximum of a row, and the sum
  float top[WARPS][kRows], sum[WARPS][kRows];
  uint32_t counts[WARPS][STAGES];
  uint64_t all_here[1];
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
__device__ __forceinline__ void send(float4* slot, uint64_t* barrier, unsigned rank, float4 p) {
#if CLUSTER > 1
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(over_there(slot, rank)),
               "f"(p.x), "f"(p.y), "f"(p.z), "f"(p.w), "r"(over_there(barrier, rank)) : "memory");
#endif
}
__device__ __forceinline__ void add(float4& value, float& total, float keep, float4 values, float sum) {
  value.x += keep * values.x, value.y += keep * values.y, value.z += keep * values.z, value.w += keep * values.w;
  total += keep * sum;
}

__device__ __forceinline__ void store(T* to, float4 value, float total) {
  const float by = total == 0.f ? 0.f : 1.f / total, each[4] = {value.x * by, value.y * by, value.z * by, value.w * by};
  if (reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pair(each[0], each[1]), pair(each[2], each[3]));
  } else {
    for (int i = 0; i < 4; ++i) to[i] = rounded<T>(each[i]);
  }
}

__global__ void __launch_bounds__(kThreads, kThreads <= 128 ? 2 : 1) attend(
    T* out, const T* q, const T* k, const T* v, const int* lengths, const int* table, Shape s) {
  extern __shared__ __align__(128) char stages[];
  __shared__ State state;
  let_dependents_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = s.q_heads / s.kv_heads, rows = group * s.q_len;
  const int head = blockIdx.x / kSharers % s.kv_heads, rank = cluster_rank(), place = blockIdx.x / CLUSTER % PARTS * CLUSTER + rank;
  const int64_t sequence = blockIdx.x / kSharers / s.kv_heads;
  char* own = stages + warp * kWarpBytes;
  const uint32_t own_at = shared_address(own);
  k += head * s.k_head, v += head * s.v_head;
  if constexpr (!PAGED) k += sequence * s.k_entry, v += sequence * s.v_entry;
  greet(state.all_here);
  depend();
  const int told = lengths[sequence * s.length_step], before = place * WARPS + warp;
  auto tiles_of = [&](int tokens) {
    const int all = (tokens + kTokens - 1) / kTokens;
    return all > before ? (all - before + kSharers * WARPS - 1) / (kSharers * WARPS) : 0;
  };
  int length = EARLY ? s.capacity : min(max(told, 0), s.capacity), mine = tiles_of(length);

  // The first token of this warp's tile i, and the block of a paged cache that this lane's token of it is in, -1 for none.
  auto first_of = [&](int i) { return ((i * kSharers + place) * WARPS + warp) * kTokens; };
  auto entry_of = [&](int i) {
    const int token = first_of(i) + lane % kTokens;
    if (!PAGED || token >= s.capacity) return -1;  // all of the table may be read, so length and table come together
    const int entry = table[sequence * s.table_row + token / s.block_size * s.table_column];
    return token < length && entry >= 0 && entry < s.entries ? entry : -1;
  };
  // Where the token of a paged tile that this lane copies a piece of, j behind the first ones, starts in k and v.
  constexpr int kAtOnce = 32 / kPieces;
  struct Place { int64_t in_k, in_v; bool there; };
  [[maybe_unused]] auto place_of = [&](int token, int within, int entry) -> Place {
    const int where = __shfl_sync(~0u, entry, within);
    const int64_t known = max(where, 0), at = where >= 0 ? token % s.block_size : 0;
    return {known * s.k_entry + at * s.k_token, known * s.v_entry + at * s.v_token, where >= 0};
  };

  auto request = [&](int i, int entry) {
    if (i < mine) {
      const int stage = i % STAGES;
      if constexpr (PAGED) {
        const uint32_t counts = __ballot_sync(~0u, entry >= 0);
        if (lane == 0) state.counts[warp][stage] = counts;
      }
      const int piece = lane % kPieces, first = first_of(i), mine_first = first + lane / kPieces;
      // Without a table a token is a step behind the last; addresses past the length are made, and not read.
      const T *in_k = k + piece * 8 + (PAGED ? 0 : mine_first * s.k_token), *in_v = v + piece * 8 + (PAGED ? 0 : mine_first * s.v_token);
#pragma unroll
      for (int j = 0; j < kTokens; j += kAtOnce) {
        const int token = j + lane / kPieces;
        const uint32_t to = own_at + stage * kStageBytes + token * kTokenBytes + ((piece ^ (token & 7)) << 4);
        if constexpr (PAGED) {
          const Place place = place_of(first + token, token, entry);
          copy16(to, in_k + place.in_k, place.there);
          copy16(to + kTileBytes, in_v + place.in_v, place.there);
        } else {
          const bool there = first + token < length;
          copy16(to, in_k, there);
          copy16(to + kTileBytes, in_v, there);
          in_k += kAtOnce * s.k_token, in_v += kAtOnce * s.v_token;
        }
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
    if constexpr (!EARLY) last[h] = length - s.q_len + row % s.q_len;
    const T* from = q + sequence * s.q_batch + (head * group + row / s.q_len) * s.q_head + row % s.q_len * s.q_token + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 16; ++c) {
      queries[c][h] = real ? *reinterpret_cast<const uint32_t*>(from + c * 16) : 0;
      queries[c][h + 2] = real ? *reinterpret_cast<const uint32_t*>(from + c * 16 + 8) : 0;
    }
  }

  if constexpr (EARLY) {
    length = min(max(told, 0), s.capacity), mine = tiles_of(length);
#pragma unroll
    for (int h = 0; h < 2; ++h) last[h] = length - s.q_len + below[h] % s.q_len;
  }

  float acc[HEAD_DIM / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int i = 0; i < mine; ++i) {
    arrived<STAGES - 2>();
    __syncwarp();  // all lanes' copies, and all lanes have read the stage that is requested now
    const int now = next;
    next = entry_of(i + STAGES);
    request(i + STAGES - 1, now);
    const int first = first_of(i), stage = i % STAGES;
    const uint32_t keys = own_at + stage * kStageBytes, values = keys + kTileBytes;
    const uint32_t counts = PAGED ? state.counts[warp][stage] : length - first >= 32 ? ~0u : (1u << (length - first)) - 1;

    if (EARLY && i < STAGES - 1 && length - first < kTokens) {  // asked for before the length was known: a weight of 0 times NaN is NaN
      for (int j = (length - first) * kPieces + lane; j < kTokens * kPieces; j += 32) {
        reinterpret_cast<uint4*>(own + stage * kStageBytes + kTileBytes)[j] = make_uint4(0, 0, 0, 0);
      }
      __syncwarp();
    }

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
    if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) {
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 8; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[d][e] *= fade[e / 2];
      }
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

  // Warps into one, four columns of a row a thread, and each such four to the CTA that owns it.
  const int fours = rows * (HEAD_DIM / 4);
  [[maybe_unused]] const int64_t result = ((sequence * s.q_heads + head * group) * s.q_len) * HEAD_DIM;
  auto finish = [&](int four, float4 value, float most, float total) {
#if PARTS > 1
    const int column = four % (HEAD_DIM / 4), part = blockIdx.x / CLUSTER % PARTS;
    const int64_t slot = (result / HEAD_DIM + four / (HEAD_DIM / 4)) * PARTS + part;
    s.part_values[slot * (HEAD_DIM / 4) + column] = value;
    if (column == 0) s.part_tops[slot] = make_float2(most, total);
#else
    store(out + result + four * 4, value, total);
#endif
  };
  if constexpr (CLUSTER > 1) {
    if (threadIdx.x == 0) expect(state.all_here, fours > rank ? CLUSTER * ((fours - rank + CLUSTER - 1) / CLUSTER) * 24 : 0);
    meet();  // the others' barriers are made
  }
  for (int four = threadIdx.x; four < fours; four += kThreads) {
    const int row = four / (HEAD_DIM / 4);
    float most = -INFINITY, total = 0.f;
    float4 value = {};
#pragma unroll
    for (int w = 0; w < WARPS; ++w) most = fmaxf(most, state.top[w][row]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      add(value, total, exp2f(state.top[w][row] - finite(most)), reinterpret_cast<const float4*>(stages + w * kWarpBytes)[four],
          state.sum[w][row]);
    }
    if constexpr (CLUSTER == 1) {
      finish(four, value, most, total);
    } else {
      const int owner = four % CLUSTER, slot = rank * kOwn + four / CLUSTER;
      send(&state.values[slot], state.all_here, owner, value);
      send(&state.tops[slot], state.all_here, owner, make_float2(most, total));
    }
  }
  if constexpr (CLUSTER > 1) {
    wait_for(state.all_here, 0);
    for (int i = threadIdx.x; i * CLUSTER + rank < fours; i += kThreads) {
      float most = -INFINITY, total = 0.f;
      float4 value = {};
#pragma unroll
      for (int r = 0; r < CLUSTER; ++r) most = fmaxf(most, state.tops[r * kOwn + i].x);
#pragma unroll
      for (int r = 0; r < CLUSTER; ++r) {
        const float2 top = state.tops[r * kOwn + i];
        add(value, total, exp2f(top.x - finite(most)), state.values[r * kOwn + i], top.y);
      }
      finish(i * CLUSTER + rank, value, most, total);
    }
  }
}

#if PARTS > 1
// A CTA has a query row, a thread four columns of every kGroups-th part: kEach loads of 16 bytes, all on their way at once. As sums of
// parts without tokens are 0 and their maxima -inf, they need no test.
constexpr int kColumns = HEAD_DIM / 4, kGroups = (PARTS + 7) / 8, kEach = (PARTS + kGroups - 1) / kGroups;

__global__ void __launch_bounds__(kColumns * kGroups) merge(T* out, const float4* values, const float2* tops) {
  let_dependents_start();
  depend();
  const int column = threadIdx.x % kColumns, group = threadIdx.x / kColumns;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * PARTS + group;
  values += slot * kColumns + column, tops += slot;
  float2 top[kEach];
  uint4 each[kEach];  // loaded by volatile instructions: plain ones were scheduled two at a time
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool there = i * kGroups + group < PARTS;
    each[i] = there ? load16(values + i * kGroups * kColumns) : make_uint4(0, 0, 0, 0);
    top[i] = there ? tops[i * kGroups] : make_float2(-INFINITY, 0.f);
  }
  float most = -INFINITY, total = 0.f;
  float4 value = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) most = fmaxf(most, top[i].x);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float4 left = make_float4(__uint_as_float(each[i].x), __uint_as_float(each[i].y), __uint_as_float(each[i].z), __uint_as_float(each[i].w));
    add(value, total, exp2f(top[i].x - finite(most)), left, top[i].y);
  }
  if constexpr (kGroups > 1) {
    __shared__ float4 of_groups[kGroups][kColumns];
    __shared__ float2 top_of_groups[kGroups];
    of_groups[group][column] = value;
    if (column == 0) top_of_groups[group] = make_float2(most, total);
    __syncthreads();
    if (group > 0) return;
    total = 0.f, value = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) most = fmaxf(most, top_of_groups[g].x);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      add(value, total, exp2f(top_of_groups[g].x - finite(most)), of_groups[g][column], top_of_groups[g].y);
    }
  }
  store(out + (static_cast<int64_t>(blockIdx.x) * kColumns + column) * 4, value, total);
}
#endif

// `scratch` is for what parts leave, of each and each query row HEAD_DIM + 2 floats; of one part it is none.
void attention_decode(TensorView out, TensorView q, TensorView k, TensorView v, TensorView lengths, tvm::ffi::Optional<TensorView> block_table,
                      tvm::ffi::Optional<TensorView> scratch, int64_t capacity, double scale) {
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
#if PARTS > 1
  const int64_t results = batch * q.size(1) * q.size(2);
  if (scratch.value().size(0) < results * PARTS * (HEAD_DIM + 2)) TVM_FFI_THROW(ValueError) << "scratch doesn't hold what parts leave";
  float* left = static_cast<float*>(scratch.value().data_ptr());
  s.part_values = reinterpret_cast<float4*>(left), s.part_tops = reinterpret_cast<float2*>(left + results * PARTS * HEAD_DIM);
#endif
  launch(attend, CLUSTER, batch * kv_heads * kSharers, kThreads, WARPS * kWarpBytes, stream_of(q), static_cast<T*>(out.data_ptr()),
         static_cast<const T*>(q.data_ptr()), static_cast<const T*>(k.data_ptr()), static_cast<const T*>(v.data_ptr()),
         static_cast<const int*>(lengths.data_ptr()), table, s);
#if PARTS > 1
  launch(merge, 1, results, kColumns * kGroups, 0, stream_of(q), static_cast<T*>(out.data_ptr()), s.part_values, s.part_tops);
#endif
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(attention_decode, attention_decode);
