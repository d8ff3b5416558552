// attention_decode: a few new tokens over a cache of keys and values, by the online softmax.
//
// Algorithm  One task is a KV head of a sequence, or a part of its tokens. The query heads that share it, times the new tokens, are
//            its rows, up to 16 at a time, scaled and widened once. 64 tokens after the other: scores by the products of linear.h, the
//            largest so far, exponentials, and the sum of values weighted by them, for four rows and 64 columns at a time in registers.
//            With parts, each leaves (m, l, acc) in float32, and a second sweep merges them in order.
// Moves      2 * kv_heads * length * head_dim * size bytes a sequence: keys and values once for all heads that share them.
// Bound      Memory while few heads share one of the cache; the products from eight on.
// Threads    Whole tasks each: the same bits whatever `threads` is. `parts` changes the order of the sums.
// Source     Dao et al., "Flash-Decoding for long-context inference" (2023), for the parts.
#include "exponential.h"
#include "linear.h"

namespace ky {

struct Cache {
  const void* at;
  int64_t entry, head, token, entries, size;  // strides in elements; how many entries there are, and tokens in each
};

struct Shape {
  int64_t batch, q_heads, kv_heads, q_len, dim, capacity, blocks;  // blocks: of each sequence's table, 0 where there is none
  int64_t rows() const { return q_heads / kv_heads * q_len; }
};

// Up to 16 rows and what they have seen so far.
struct State {
  float largest[kMostRows], total[kMostRows];
  float* sum;  // rows of `dim`
};

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// sum[m] = sum[m] * keep[m] + weights[m] times the values of `count` tokens, for M rows.
template <int M, class T>
inline void weigh(float* sum, int64_t dim, const float* keep, const float* weights, const T* values, int64_t token, int64_t count) {
  constexpr int kWide = 4;
  auto columns = [&](int64_t at, auto wide, auto part) KY_INLINE {
    constexpr int W = decltype(wide)::value;
    vf total[M][W];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int c = 0; c < W; ++c) total[m][c] = load(sum + m * dim + at + c * kLanes, part) * keep[m];
    }
    for (int64_t t = 0; t < count; ++t) {
      vf value[W];
#pragma GCC unroll 4
      for (int c = 0; c < W; ++c) value[c] = load(values + t * token + at + c * kLanes, part);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const float weight = weights[m * kBlock + t];
#pragma GCC unroll 4
        for (int c = 0; c < W; ++c) total[m][c] += weight * value[c];
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int c = 0; c < W; ++c) put<false>(sum + m * dim + at + c * kLanes, total[m][c], part);
    }
  };
  int64_t at = 0;
  for (; at + kWide * kLanes <= dim; at += kWide * kLanes) columns(at, std::integral_constant<int, kWide>{}, Whole{});
  for (; at + kLanes <= dim; at += kLanes) columns(at, std::integral_constant<int, 1>{}, Whole{});
  if (at < dim) columns(at, std::integral_constant<int, 1>{}, Part{dim - at});
}

inline vf seen(const float* p, Whole) { return load(p); }
inline vf seen(const float* p, Part part) { return load_some(p, part.n, kNothing); }

// Scores of `count` tokens, those beyond a row's `sees` as if they were not there; the state with them folded in.
template <class T>
inline void fold(State& state, float* scores, int64_t rows, int64_t count, const int64_t* sees, const T* values, int64_t token, int64_t dim) {
  float keep[kMostRows];
  for (int64_t m = 0; m < rows; ++m) {
    float* s = scores + m * kBlock;
    for (int64_t t = sees[m] < 0 ? 0 : sees[m]; t < count; ++t) s[t] = kNothing;
    vf most = splat(state.largest[m]);
    sweep(0, count, [&](int64_t i, auto part) KY_INLINE { most = larger(most, seen(s + i, part)); });
    const float now = largest(most), base = now == kNothing ? 0.0f : now;
    keep[m] = state.largest[m] == kNothing ? 0.0f : exp_of_nonpositive(splat(state.largest[m] - base))[0];
    vf total{};
    sweep(0, count, [&](int64_t i, auto part) KY_INLINE {
      const vf weight = exp_of_nonpositive(seen(s + i, part) - base);
      total += weight;
      put<false>(s + i, weight, part);
    });
    state.total[m] = state.total[m] * keep[m] + sum(total);
    state.largest[m] = now;
  }
  int64_t m = 0;
  for (; m + 4 <= rows; m += 4) weigh<4>(state.sum + m * dim, dim, keep + m, scores + m * kBlock, values, token, count);
  for (; m < rows; ++m) weigh<1>(state.sum + m * dim, dim, keep + m, scores + m * kBlock, values, token, count);
}

// Tokens [begin, end) of a sequence of `length`, for rows [first, first + rows) of a KV head: `queries` are theirs.
template <class T>
inline void attend(State& state, const Shape& shape, const Cache& k, const Cache& v, const int32_t* table, int64_t own, int64_t head,
                   int64_t length, int64_t begin, int64_t end, const float* queries, int64_t first, int64_t rows, int64_t streams) {
  for (int64_t m = 0; m < rows; ++m) state.largest[m] = kNothing, state.total[m] = 0.0f;
  std::memset(state.sum, 0, static_cast<size_t>(rows * shape.dim) * sizeof(float));
  float scores[kMostRows * kBlock];
  for (int64_t t = begin; t < end;) {
    const int64_t in_entry = shape.blocks ? t % k.size : t, left = k.size - in_entry;
    int64_t count = end - t < kBlock ? end - t : kBlock;
    if (left < count) count = left;
    const int64_t entry = shape.blocks ? table[t / k.size] : own;
    if (entry >= 0 && entry < k.entries) {
      const T* keys = static_cast<const T*>(k.at) + entry * k.entry + head * k.head + in_entry * k.token;
      const T* values = static_cast<const T*>(v.at) + entry * v.entry + head * v.head + in_entry * v.token;
      block_of(scores, Weight<T>{keys, k.token}, count, queries, rows, shape.dim, streams);
      int64_t sees[kMostRows];
      for (int64_t m = 0; m < rows; ++m) sees[m] = length - shape.q_len + (first + m) % shape.q_len + 1 - t;
      fold(state, scores, rows, count, sees, values, v.token, shape.dim);
    }
    t += count;
  }
}

// (m, l, acc) of the parts merged in order, and the result's row.
template <class T>
inline void merge(T* out, const float* parts, int64_t count, int64_t step, int64_t dim) {
  float most = kNothing, total = 0.0f;
  for (int64_t p = 0; p < count; ++p) most = parts[p * step] > most ? parts[p * step] : most;
  const float base = most == kNothing ? 0.0f : most;
  float keep[64];
  for (int64_t p = 0; p < count; ++p) {
    keep[p] = exp_of_nonpositive(splat(parts[p * step] - base))[0];
    total += parts[p * step + 1] * keep[p];
  }
  const float share = total == 0.0f ? 0.0f : 1.0f / total;
  sweep(0, dim, [&](int64_t i, auto part) KY_INLINE {
    vf acc{};
    for (int64_t p = 0; p < count; ++p) acc += load(parts + p * step + 2 + i, part) * keep[p];
    put<false>(out + i, acc * share, part);
  });
}

inline Cache cache_of(const TensorView& t, const char* name, int64_t dim) {
  if (t.ndim() != 4 || t.size(3) != dim) TVM_FFI_THROW(ValueError) << name << " must be (entries, heads, tokens, " << dim << ")";
  if (t.numel() && dim > 1 && t.stride(3) != 1) TVM_FFI_THROW(ValueError) << name << ": the last dimension must be contiguous";
  return {data(t), t.stride(0), t.stride(1), t.stride(2), t.size(0), t.size(2)};
}

void attention_decode(TensorView out, TensorView q, TensorView k, TensorView v, TensorView lengths, Optional<TensorView> block_table,
                      double scale, int64_t threads, int64_t parts, int64_t streams) {
  if (q.ndim() != 4 || out.ndim() != 4) TVM_FFI_THROW(ValueError) << "q must be (batch, heads, tokens, head_dim)";
  const int64_t dim = q.size(3);
  const Cache keys = cache_of(k, "k", dim), values = cache_of(v, "v", dim);
  const bool paged = block_table.has_value();
  Shape shape{q.size(0), q.size(1), k.size(1), q.size(2), dim, 0, paged ? block_table.value().size(1) : 0};
  shape.capacity = paged ? shape.blocks * keys.size : keys.size;
  if (out.numel() == 0) return;
  const auto* ends = static_cast<const int32_t*>(data(lengths));
  const auto* table = paged ? static_cast<const int32_t*>(data(block_table.value())) : nullptr;
  const int64_t step_length = lengths.stride(0), step_table = paged ? block_table.value().stride(0) : 0;
  if (paged && shape.blocks > 1 && block_table.value().stride(1) != 1) TVM_FFI_THROW(ValueError) << "rows of block_table must be contiguous";
  const int64_t rows = shape.rows(), groups = (rows + kMostRows - 1) / kMostRows, tasks = shape.batch * shape.kv_heads * groups;
  const int64_t step = dim + 2;
  float* left = parts > 1 ? scratch<Scratch::partials>(tasks * parts * kMostRows * step) : nullptr;
  by_type(q, "q", [&](auto element) {
    using T = decltype(element);
    if (!is<T>(k) || !is<T>(v) || !is<T>(out)) TVM_FFI_THROW(TypeError) << "q, k, v and the output must have one dtype";
    const T* from = static_cast<const T*>(data(q));
    T* to = static_cast<T*>(data(out));
    auto place = [&](int64_t task, int64_t m, int64_t& sequence, int64_t& head, int64_t& token) {
      const int64_t row = task % groups * kMostRows + m, shared = task / groups % shape.kv_heads;
      sequence = task / groups / shape.kv_heads;
      head = shared * (shape.q_heads / shape.kv_heads) + row / shape.q_len;
      token = row % shape.q_len;
    };
    auto row_of = [&](int64_t task, int64_t m) {
      int64_t b, h, i;
      place(task, m, b, h, i);
      return to + ((b * shape.q_heads + h) * shape.q_len + i) * dim;
    };
    auto rows_in = [&](int64_t task) { return rows - task % groups * kMostRows < kMostRows ? rows - task % groups * kMostRows : kMostRows; };
    spread(tasks * parts, threads, threads > 1 ? 1 : 0, [&](int64_t begin, int64_t end) {
      float* own = scratch<Scratch::row>(2 * kMostRows * dim);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t task = i / parts, part = i % parts, count = rows_in(task);
        int64_t b = 0, h, token;
        for (int64_t m = 0; m < count; ++m) {
          place(task, m, b, h, token);
          const T* row = from + b * q.stride(0) + h * q.stride(1) + token * q.stride(2);
          sweep(0, dim, [&](int64_t c, auto p) KY_INLINE { put<false>(own + m * dim + c, load(row + c, p) * static_cast<float>(scale), p); });
        }
        int64_t length = ends[b * step_length];
        length = length < 0 ? 0 : length > shape.capacity ? shape.capacity : length;
        const int64_t each = ((length + parts - 1) / parts + kBlock - 1) / kBlock * kBlock;
        const int64_t first = part * each < length ? part * each : length, last = first + each < length ? first + each : length;
        State state;
        state.sum = own + kMostRows * dim;
        attend<T>(state, shape, keys, values, table + b * step_table, b, task / groups % shape.kv_heads, length, first, last, own,
                  task % groups * kMostRows, count, streams);
        for (int64_t m = 0; m < count; ++m) {
          if (parts == 1) {
            const float share = state.total[m] == 0.0f ? 0.0f : 1.0f / state.total[m];
            T* row = row_of(task, m);
            sweep(0, dim, [&](int64_t c, auto p) KY_INLINE { put<false>(row + c, load(state.sum + m * dim + c, p) * share, p); });
          } else {
            float* kept = left + (i * kMostRows + m) * step;
            kept[0] = state.largest[m], kept[1] = state.total[m];
            std::memcpy(kept + 2, state.sum + m * dim, static_cast<size_t>(dim) * sizeof(float));
          }
        }
      }
    });
    if (parts > 1) {
      spread(tasks, threads, 0, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          for (int64_t m = 0; m < rows_in(task); ++m) merge(row_of(task, m), left + (task * parts * kMostRows + m) * step, parts, kMostRows * step, dim);
        }
      });
    }
  });
}

}  // namespace ky

TVM_FFI_DLL_EXPORT_TYPED_FUNC(attention_decode, ky::attention_decode);
