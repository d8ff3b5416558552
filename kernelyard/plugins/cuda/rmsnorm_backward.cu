// rmsnorm_backward: dx = r * (g - x * r^2 * mean(g * x)) with r = rsqrt(mean(x^2) + eps), g = dy * (w + offset); dw = sum of dy * x * r.
//
// Algorithm  A grid of persistent clusters, each of CLUSTER CTAs; a cluster walks every step-th row, its threads at the same columns of
//            each, so that a thread adds up dw of its VECTORS * kVector columns in float32 registers. x and dy of the next STAGES - 1 rows
//            are on their way into shared memory (cp.async: a thread reads back what it asked for itself, no barrier). x^2 and g * x are
//            added together over lanes, warps and the cluster, through distributed shared memory: one barrier a row.
//            AHEAD: a row's sums are sent before the row ahead of it is written, which hides the way through the cluster; rows are read
//            from shared memory twice then.
//            At the end each cluster writes its sums, in float32, and a second grid adds those of all clusters in one order: equal bits.
// Moves      3 * rows * cols * size bytes, and 8 * cols * clusters of partial sums, mostly in L2; about 12 flops an element.
// Bound      Memory. In flight a multiprocessor: CTAs * ROW_THREADS * VECTORS * 32 * (STAGES - 1) bytes, of which 25 to 40 KB are needed.
// Resources  64 registers with 512 threads and 2 blocks a multiprocessor (sm_90a, bf16): one vector a thread doesn't spill, two spill 24
//            bytes only in the form for any width. Shared memory: 32 * VECTORS * ROW_THREADS + 128 bytes a stage.
// Seen       One H200, bf16, of 3 * rows * cols * size: (2048, 32768) 3259 GB/s with a cluster of eight and two vectors a thread, 2853 with
//            one; (1000, 4095) 1886; (16384, 4096) 3410, where the persistent Triton kernel makes 4033.
// Widths     Rows off a multiple of 16 bytes are cut by address (rows.cuh). Where they begin repeats every 16 / gcd(16, row bytes) rows:
//            the host makes `step` a multiple of it, and a thread's columns stay the same. x and dy must lie alike, dx need not.
#include "rows.cuh"

#include <algorithm>
#include <atomic>

namespace {

constexpr int kGroup = CLUSTER * ROW_THREADS;
constexpr int kSegment = ROW_THREADS * kVector;  // columns that a CTA covers with one vector a thread
constexpr size_t kStage = sizeof(uint4) * 2 * VECTORS * ROW_THREADS + sizeof(uint32_t) * 2 * 16;
constexpr size_t kShared = STAGES * kStage > sizeof(float) * kSegment ? STAGES * kStage : sizeof(float) * kSegment;
static_assert(ROW_THREADS % 32 == 0, "whole warps");

// One row of x and dy on its way; `beside` has the words of the elements beside the vectors.
struct Stage {
  uint4 x[VECTORS][ROW_THREADS], dy[VECTORS][ROW_THREADS];
  uint32_t x_beside[16], dy_beside[16];
};
static_assert(sizeof(Stage) == kStage);

__device__ __forceinline__ void copy16(uint4* to, const T* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The aligned word that holds an element. After a `last` one there may be nothing: where its word goes on, it is read alone, and waited for.
// (Of a copy of 4 bytes that is told to take 2, memcheck still sees a read of 4.)
__device__ __forceinline__ void copy_word(uint32_t* to, const T* element, bool last) {
  const char* address = reinterpret_cast<const char*>(element);
  const unsigned beyond = static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) & 3);
  if (sizeof(T) == 2 && last && beyond == 0) {
    *to = *reinterpret_cast<const unsigned short*>(address);
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(address - beyond) : "memory");
  }
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <bool kShifted>
__device__ __forceinline__ float element_of(const uint32_t* word, const T* address) {
  const unsigned beyond = static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) & 3);
  return wide(*reinterpret_cast<const T*>(reinterpret_cast<const char*>(word) + beyond));
}

template <bool kShifted>
__device__ __forceinline__ void ask(Stage& stage, const T* x, const T* dy, const Split<kShifted>& split, int mine, int edge, bool last) {
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const int vector = mine + i * kGroup;
    if (vector < split.vectors) {
      copy16(&stage.x[i][threadIdx.x], x + split.first(vector));
      copy16(&stage.dy[i][threadIdx.x], dy + split.first(vector));
    }
  }
  if (kShifted && edge >= 0) {
    copy_word(&stage.x_beside[mine], x + edge, last);
    copy_word(&stage.dy_beside[mine], dy + edge, last);
  }
}

// x and dy of a row in registers.
template <bool kShifted>
struct Row {
  Pack x[VECTORS], dy[VECTORS];
  float x_beside, dy_beside;

  // Its return: this thread's part of (x^2, g * x).
  __device__ __forceinline__ float2 read(const Stage& stage, const T* x_row, const T* dy_row, const Split<kShifted>& split, int mine,
                                         int edge, const WeightPack (&gain)[VECTORS], float gain_beside, float offset) {
    float2 sum{0.f, 0.f};
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      x[i].bits = dy[i].bits = make_uint4(0, 0, 0, 0);
      if (mine + i * kGroup < split.vectors) {
        x[i].bits = stage.x[i][threadIdx.x], dy[i].bits = stage.dy[i][threadIdx.x];
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float value = wide(x[i].each[j]), slope = wide(dy[i].each[j]);
          sum.x += value * value;
          sum.y += value * (HAS_WEIGHT ? slope * (wide(gain[i].each[j]) + offset) : slope);
        }
      }
    }
    x_beside = dy_beside = 0.f;
    if (kShifted && edge >= 0) {
      x_beside = element_of<kShifted>(&stage.x_beside[mine], x_row + edge);
      dy_beside = element_of<kShifted>(&stage.dy_beside[mine], dy_row + edge);
      sum.x += x_beside * x_beside, sum.y += x_beside * dy_beside * gain_beside;
    }
    return sum;
  }
};

// Sums of one row after another from all warps of the cluster, each in the next of kTurns places. A place is written again when every
// warp has read it: a warp sends for a row after it has received for the one before, with AHEAD for the one before that.
constexpr int kTurns = AHEAD ? 4 : 2;
static_assert(!AHEAD || (kSlots > 1 && STAGES > 2), "a lone warp has nobody to wait for, and two rows are in use at once");
struct Exchange {
  float2 (*slots)[kSlots];
  uint64_t* barriers;
  __device__ __forceinline__ void send(int turn, float2 sums) const {
    publish(slots[turn % kTurns], &barriers[turn % kTurns], threadIdx.x / 32, sums);
  }
  __device__ __forceinline__ float2 receive(int turn) const {
    await(&barriers[turn % kTurns], turn / kTurns & 1);
    return gather<kSlots>(slots[turn % kTurns], Add());
  }
};

template <bool kShifted>
__global__ void __launch_bounds__(ROW_THREADS, CTAS) walk(
    T* dx, float* partial, const T* dy, const T* x, const W* w, int64_t rows, int cols, int64_t dy_stride, int64_t x_stride, float eps,
    float offset, int64_t step) {
  extern __shared__ uint4 dynamic[];
  __shared__ float2 slots[kTurns][kSlots];
  Stage* stages = reinterpret_cast<Stage*>(dynamic);
  __shared__ uint64_t barriers[kTurns];
  const Exchange exchange_sums{slots, barriers};
  greet(barriers);
  depend();
  const int mine = cluster_rank() * ROW_THREADS + threadIdx.x;
  const int64_t cluster = blockIdx.x / CLUSTER;
  const Split<kShifted> split(x + cluster * x_stride, cols);  // of all rows of this cluster
  const int edge = split.edge(mine, cols);
  const bool apart = min(x_stride, dy_stride) >= cols;  // else rows lie over one another, as broadcast ones do
  const auto ends = [&](int64_t row) { return row == rows - 1 || !apart; };

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    const int64_t row = cluster + s * step;
    if (row < rows) ask(stages[s], x + row * x_stride, dy + row * dy_stride, split, mine, edge, ends(row));
    commit();
  }
  WeightPack gain[VECTORS];
  float gain_beside = 1.f;
  float dw[VECTORS][kVector] = {}, dw_beside = 0.f;
  if constexpr (HAS_WEIGHT) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if (mine + i * kGroup < split.vectors) load_weight<kShifted>(gain[i], w, split.first(mine + i * kGroup), cols);
    }
    if (kShifted && edge >= 0) gain_beside = wide(load_element(w + edge)) + offset;
  }
  meet();

  int at = 0, turn = 0;
  Row<kShifted> held;
  const auto read = [&](int stage, int64_t row) {
    return held.read(stages[stage], x + row * x_stride, dy + row * dy_stride, split, mine, edge, gain, gain_beside, offset);
  };
  if constexpr (AHEAD) {
    wait_for_all_but<STAGES - 2>();
    exchange_sums.send(0, over_lanes<32>(read(0, cluster), Add()));
  }
  for (int64_t row = cluster; row < rows; row += step) {
    const int64_t ahead = row + (STAGES - 1) * step, after = row + step;
    const int next = at == 0 ? STAGES - 1 : at - 1;
    if (ahead < rows) ask(stages[next], x + ahead * x_stride, dy + ahead * dy_stride, split, mine, edge, ends(ahead));
    commit();
    wait_for_all_but<STAGES - 1 - AHEAD>();

    float2 sums;
    if constexpr (AHEAD) {
      if (after < rows) exchange_sums.send(turn + 1, over_lanes<32>(read(at + 1 == STAGES ? 0 : at + 1, after), Add()));
      sums = exchange_sums.receive(turn);
      read(at, row);  // again, for its elements; nobody asks for these sums
    } else {
      sums = over_lanes<32>(read(at, row), Add());
      if constexpr (kSlots > 1) {
        exchange_sums.send(turn, sums);
        sums = exchange_sums.receive(turn);
      }
    }
    ++turn;

    const float rstd = rsqrtf(sums.x / cols + eps), along = rstd * rstd * sums.y / cols;
    T* to = dx + row * cols;
    const bool alike = beyond16(to) == beyond16(x + row * x_stride);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int vector = mine + i * kGroup;
      if (vector < split.vectors) {
        Pack slope;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float value = wide(held.x[i].each[j]), down = wide(held.dy[i].each[j]);
          const float scaled = HAS_WEIGHT ? down * (wide(gain[i].each[j]) + offset) : down;
          narrow(rstd * (scaled - value * along), slope.each[j]);
          if constexpr (HAS_WEIGHT) dw[i][j] += down * (value * rstd);
        }
        store_vector<kShifted>(to + split.first(vector), slope, alike);
      }
    }
    if (kShifted && edge >= 0) {
      narrow(rstd * (held.dy_beside * gain_beside - held.x_beside * along), to[edge]);
      dw_beside += held.dy_beside * (held.x_beside * rstd);
    }
    at = at + 1 == STAGES ? 0 : at + 1;
  }
  let_dependents_start();

  if constexpr (HAS_WEIGHT) {  // through shared memory, so that a warp writes 128 neighbouring bytes at a time
    wait_for_all_but<0>();
    float* columns = reinterpret_cast<float*>(dynamic);
    float* to = partial + cluster * cols;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kVector; ++j) columns[threadIdx.x * kVector + j] = dw[i][j];
      __syncthreads();
      const int first = split.head + (mine - static_cast<int>(threadIdx.x) + i * kGroup) * kVector, end = split.first(split.vectors);
      for (int j = threadIdx.x; j < kSegment && first + j < end; j += ROW_THREADS) to[first + j] = columns[j];
    }
    if (kShifted && edge >= 0) to[edge] = dw_beside;
  }
}

constexpr int kSummers = 32;

// dw[column] = the sum of the partial sums of all clusters: warp k adds every 32nd from the k-th, then the warps are added in order.
__global__ void __launch_bounds__(32 * kSummers) finish(W* dw, const float* partial, int cols, int clusters) {
  __shared__ float sums[kSummers][33];
  depend();
  const int lane = threadIdx.x % 32, summer = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float sum = 0.f;
  if (column < cols) {
#pragma unroll 4
    for (int cluster = summer; cluster < clusters; cluster += kSummers) sum += load_element(partial + int64_t(cluster) * cols + column);
  }
  sums[summer][lane] = sum;
  __syncthreads();
  const float total = over_lanes<32>(sums[lane][summer], Add());  // warp `summer` now has column `summer`
  if (lane == 0 && blockIdx.x * 32 + summer < cols) narrow(total, dw[blockIdx.x * 32 + summer]);
}

// Clusters of `kernel` that the device holds at once: one more would wait for another's whole walk. Asked once a device.
template <bool kShifted>
int64_t resident(int device, int64_t multiprocessors) {
  static std::atomic<int> known[64];
  int count = device < 64 ? known[device].load() : 0;
  if (count == 0) {
    check(cudaFuncSetAttribute(walk<kShifted>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)));
    if (CLUSTER > 1) {
      cudaLaunchAttribute attribute;
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = CLUSTER, attribute.val.clusterDim.y = 1, attribute.val.clusterDim.z = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(CLUSTER), config.blockDim = dim3(ROW_THREADS), config.dynamicSmemBytes = kShared;
      config.attrs = &attribute, config.numAttrs = 1;
      check(cudaOccupancyMaxActiveClusters(&count, walk<kShifted>, &config));
    } else {
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, walk<kShifted>, ROW_THREADS, kShared));
      count *= static_cast<int>(multiprocessors);
    }
    if (count == 0) TVM_FFI_THROW(RuntimeError) << "no cluster of this build fits the device";
    if (device < 64) known[device] = count;
  }
  return count;
}

// At most `most` clusters, as `partial` has rows. `period`: rows after which where they begin to 16 bytes repeats.
void rmsnorm_backward(TensorView dx, TensorView dw, TensorView partial, TensorView dy, TensorView x, TensorView w, int64_t rows,
                      int64_t cols, int64_t dy_stride, int64_t x_stride, double eps, double offset, int64_t most, int64_t multiprocessors,
                      int64_t period) {
  if (cols / kVector > int64_t(kGroup) * VECTORS) TVM_FFI_THROW(ValueError) << cols << " columns don't fit this build";
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  const cudaStream_t stream = stream_of(x);
  T* to = static_cast<T*>(dx.data_ptr());
  const T *from = static_cast<const T*>(x.data_ptr()), *down = static_cast<const T*>(dy.data_ptr());
  const W* weight = static_cast<const W*>(w.data_ptr());
  float* sums = static_cast<float*>(partial.data_ptr());
  int64_t walkers = 0;
  if (rows > 0 && cols > 0) {
    const bool whole = multiple_of_16(to) && multiple_of_16(from) && multiple_of_16(down) && (!HAS_WEIGHT || multiple_of_16(weight)) &&
                       cols % kVector == 0 && (rows == 1 || (x_stride % kVector == 0 && dy_stride % kVector == 0));
    const int device = x.device().device_id;
    const int64_t fit = whole ? resident<false>(device, multiprocessors) : resident<true>(device, multiprocessors);
    const int64_t step = std::max(std::min(fit, most) / period, int64_t(1)) * period;
    walkers = std::min(rows, step);
    launch(whole ? walk<false> : walk<true>, CLUSTER, walkers * CLUSTER, ROW_THREADS, kShared, stream, to, sums, down, from, weight, rows,
           cols, dy_stride, x_stride, eps, offset, step);
  }
  if (HAS_WEIGHT && cols > 0) {
    launch(finish, 1, (cols + 31) / 32, 32 * kSummers, 0, stream, static_cast<W*>(dw.data_ptr()), sums, cols, walkers);
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm_backward, rmsnorm_backward);
