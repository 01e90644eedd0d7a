// Top-k of long rows, in rounds.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/opencl_ops.h"
#include "kernels/top_k_key.h"

namespace moracle {
namespace opencl::ops_top_k {
namespace {

const KernelName kTopKOfTiles{"ops/top_k.cl", "top_k_of_tiles"};

constexpr int64_t kThreads = 256;
static_assert(2 * kMostTopK <= kTopKTile, "each round must leave less than there was");

int64_t tiles_of(int64_t count) {
  return (count + kTopKTile - 1) / kTopKTile;
}

}  // namespace
}  // namespace opencl::ops_top_k

Status OpenClOps::find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                             std::byte* scratch, Stream stream) {
  using opencl::ops_top_k::tiles_of;
  MORACLE_CHECK(check_top_k(numbers, k));
  const int64_t threads = std::min(opencl::ops_top_k::kThreads, queue_.max_group);
  const uint32_t run = std::bit_ceil(static_cast<uint32_t>(k));
  auto* to = reinterpret_cast<uint64_t*>(scratch);
  uint64_t* other = to + numbers.rows * tiles_of(numbers.cols) * k;
  const uint64_t* keys = nullptr;  // of the round before
  for (int64_t count = numbers.cols;;) {
    const int64_t tiles = tiles_of(count);
    const auto longest = static_cast<uint32_t>(std::min(count, kTopKTile));
    MORACLE_CHECK(opencl::launch(queue_, stream, opencl::ops_top_k::kTopKOfTiles,
                                 numbers.rows * tiles, threads, numbers.data, numbers.stride, keys,
                                 count, k, numbers.rows, run, std::bit_ceil(longest),
                                 tiles > 1 ? to : nullptr, ids, values));
    if (tiles == 1) return {};
    keys = to;
    count = tiles * k;
    std::swap(to, other);
  }
}

}  // namespace moracle
