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

const KernelName kTopKOfPieces{"ops/top_k.cl", "top_k_of_pieces"};

constexpr int64_t kThreads = 256;
static_assert(2 * kMostTopK <= kTopKPiece, "each round must leave less than there was");

int64_t pieces_of(int64_t count) {
  return (count + kTopKPiece - 1) / kTopKPiece;
}

}  // namespace
}  // namespace opencl::ops_top_k

Status OpenClOps::find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                             std::byte* scratch, Stream stream) {
  using opencl::ops_top_k::pieces_of;
  MORACLE_CHECK(check_top_k(numbers, k));
  const int64_t threads = std::min(opencl::ops_top_k::kThreads, queue_.max_group);
  const uint32_t run = std::bit_ceil(static_cast<uint32_t>(k));
  auto* to = reinterpret_cast<uint64_t*>(scratch);
  uint64_t* other = to + numbers.rows * pieces_of(numbers.cols) * k;
  const uint64_t* keys = nullptr;  // of the round before
  for (int64_t count = numbers.cols;;) {
    const int64_t pieces = pieces_of(count);
    const auto longest = static_cast<uint32_t>(std::min(count, kTopKPiece));
    MORACLE_CHECK(opencl::launch(queue_, stream, opencl::ops_top_k::kTopKOfPieces,
                                 numbers.rows * pieces, threads, numbers.data, numbers.stride, keys,
                                 count, k, numbers.rows, run, std::bit_ceil(longest),
                                 pieces > 1 ? to : nullptr, ids, values));
    if (pieces == 1) return {};
    keys = to;
    count = pieces * k;
    std::swap(to, other);
  }
}

}  // namespace moracle
