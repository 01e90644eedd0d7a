#include "layout/layout.h"

#include <algorithm>

namespace moracle {

std::span<const Layout* const> layouts() {
#define X(layout) &layout,
  static constexpr const Layout* kAll[] = {
#include "layout/layouts.inc"
  };
#undef X
  return kAll;
}

bool holds(const Layout& layout, DType type) {
  return std::find(layout.holds.begin(), layout.holds.end(), type) != layout.holds.end();
}

void pack(const Layout& layout, const MatrixShape& shape, const CanonicalMatrix& slice,
          int64_t first_row, ThreadPool& pool, std::byte* out) {
  // Waking a thread takes as long as packing fewer bytes than this.
  constexpr int64_t kLeastBytes = 1 << 18;
  const int64_t steps = (slice.n + kRowStep - 1) / kRowStep;
  const int64_t least = kLeastBytes / std::max<int64_t>(slice.row_bytes() * kRowStep, 1) + 1;
  pool.split(
      steps,
      [&](int64_t begin, int64_t end) {
        layout.pack_codes(shape, slice, first_row, begin * kRowStep,
                          std::min(end * kRowStep, slice.n), out);
      },
      least);
  layout.pack_beside(shape, slice, first_row, out);
}

void pack(const Layout& layout, const CanonicalMatrix& expert, std::byte* out) {
  const MatrixShape shape{expert.n, expert.k, expert.key, !expert.group_index.empty(),
                          !expert.bias.empty()};
  layout.pack_codes(shape, expert, 0, 0, expert.n, out);
  layout.pack_beside(shape, expert, 0, out);
}

}  // namespace moracle
