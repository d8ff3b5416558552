// Elementwise work on rows: cut into pieces of columns, so that one wide row is work for several threads too.
#pragma once

#include "sweeps.h"

namespace ky {

constexpr int64_t kPiece = 1024;

// The rows of up to five tensors that lie alike. Where none has gaps they are one long row: widths that no vector divides then
// leave one rest instead of one a row.
struct Alike {
  int64_t rows, cols;
  bool one;

  template <class... Others>
  Alike(const Rows& first, const Others&... others) : rows(first.count), cols(first.cols), one(dense(first) && (dense(others) && ...)) {
    if (one) cols *= rows, rows = 1;
  }
  static bool dense(const Rows& r) { return r.dims == 0 || (r.dims == 1 && r.strides[0] == r.cols); }
};

// body(row, from, until) for every piece [from, until) of columns of every row.
template <class Body>
inline void pieces(const Alike& work, int64_t threads, int64_t chunk, bool streaming, Body body) {
  const int64_t each = (work.cols + kPiece - 1) / kPiece;
  spread(work.rows * each, threads, chunk, [&](int64_t begin, int64_t end) {
    while (begin < end) {  // as many pieces of one row as there are, at once
      const int64_t row = begin / each, piece = begin % each, many = end - begin < each - piece ? end - begin : each - piece;
      const int64_t until = (piece + many) * kPiece;
      body(row, piece * kPiece, until < work.cols ? until : work.cols);
      begin += many;
    }
    if (streaming) stream_fence();
  });
}

}  // namespace ky
