#include "quant/e4m3_scales.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/first_error.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"

namespace moracle {
namespace {

// With half of the rounding, because a row's own factor comes from its largest scale.
bool fit(std::span<const float> scales, float factor) {
  bool all = true;
  for (const float scale : scales)
    all &= is_e4m3_times(factor, scale, kScaleRounding / 2) && !(std::abs(scale) > 448 * factor);
  return all;
}

}  // namespace

Status check_e4m3_scales(const CanonicalMatrix& matrix, int64_t first_row, ThreadPool& pool) {
  const int64_t groups = matrix.scale_cols();
  if (matrix.key != kNvfp4Static || groups < 2) return {};
  FirstError first_error;
  const auto rows = [&](int64_t begin, int64_t end) {
    float factor = 0;  // of a row before, which most often is one of this row, too
    for (int64_t r = begin; r < end; ++r) {
      const std::span scales(matrix.scales.data() + r * groups, static_cast<size_t>(groups));
      if (factor > 0 && fit(scales, factor)) continue;
      const RowFactor own = row_factor(groups, [&](int64_t g) { return scales[g]; });
      factor = own.factor;
      if (own.exact) continue;
      return first_error.keep(
          r, {ErrorKind::kInvalidArgument, "", str("scales of row ", first_row + r),
              "e4m3 numbers times one number, as NVFP4 has them",
              str("they begin with ", scales[0], " and ", scales[1])});
    }
  };
  constexpr int64_t kLeastScales = 1 << 14;  // waking a thread takes as long as fewer
  pool.split(matrix.n, rows, kLeastScales / std::max<int64_t>(groups, 1) + 1);
  return std::move(first_error).status();
}

}  // namespace moracle
