// rmsnorm of float32 rows of COLS columns on one thread: y = x * (w + offset) / sqrt(mean(x^2) + eps). A row is read twice, then from cache.
//
// Defines: COLS, SUMS (independent sums of squares: they hide the latency of an addition), AHEAD (lines of the next row are asked for while
// this one is written: 1).
#pragma once
#include <math.h>

static void normalise(float* out, const float* x, const float* w, int rows, float eps, float offset) {
  for (int row = 0; row < rows; ++row) {
    const float* from = x + static_cast<long>(row) * COLS;
    float* to = out + static_cast<long>(row) * COLS;
    float sums[SUMS] = {};
    for (int i = 0; i < COLS; i += SUMS) {
      for (int j = 0; j < SUMS; ++j) sums[j] += from[i + j] * from[i + j];
    }
    float sum = 0.f;
    for (int j = 0; j < SUMS; ++j) sum += sums[j];
    const float rstd = 1.f / sqrtf(sum / COLS + eps);
    for (int i = 0; i < COLS; i += 16) {
      if (AHEAD && row + 1 < rows) __builtin_prefetch(from + COLS + i);
      for (int j = 0; j < 16; ++j) to[i + j] = from[i + j] * rstd * (w[i + j] + offset);
    }
  }
}
