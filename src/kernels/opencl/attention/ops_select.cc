// The indexer of sparse attention.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_select {
namespace {

const KernelName kScore{"attention/select.cl", "score_positions"};
const KernelName kScoreBlocks{"attention/select.cl", "score_blocks"};
const KernelName kSelect{"attention/select.cl", "select_positions"};

constexpr int64_t kThreads = 256;  // MOST_ITEMS in select.cl

int32_t number(int64_t value) {
  return static_cast<int32_t>(value);
}

// The tokens whose rows of scores fit the scratch.
Result<int64_t> tokens_together(int64_t rows_of_token, int64_t stride, int64_t longest) {
  const int64_t scores = static_cast<int64_t>(select_scratch_bytes(DType::kBF16) / sizeof(float));
  const int64_t most = scores / (rows_of_token * stride);
  if (most > 0) return most;
  return Error{ErrorKind::kUnsupported, "", "indexer",
               str("contexts of at most ", scores / rows_of_token, " scores"),
               str("one has up to ", longest, " tokens")};
}

}  // namespace
}  // namespace opencl::ops_select

Status OpenClOps::select_positions(const Matrix& q, const Matrix& weights, const Batch& batch,
                                   const IndexShape& shape, int32_t* selected, std::byte* scratch,
                                   Stream stream) {
  using namespace opencl::ops_select;
  MORACLE_CHECK(opencl::check_floats({&q, &weights}));
  const int64_t stride = batch.longest;
  MORACLE_TRY(const int64_t most, tokens_together(1, stride, batch.longest));
  auto* const scores = reinterpret_cast<float*>(scratch);
  for (int64_t first = 0; first < q.rows; first += most) {
    const int64_t tokens = std::min(most, q.rows - first);
    MORACLE_CHECK(opencl::launch_elements(
        queue_, stream, kScore, tokens, stride, q, weights, batch.positions, batch.sequences,
        batch.first_page, batch.pages, number(batch.page), shape.cache.index_keys,
        shape.cache.index_dtype, number(shape.num_heads), number(shape.head_dim),
        number(shape.top_k), shape.scale, first, tokens, stride, scores));
    MORACLE_CHECK(opencl::launch(
        queue_, stream, kSelect, tokens, std::min(kThreads, queue_.max_group), scores, stride,
        batch.positions, number(shape.top_k), 1, 1, first, tokens, selected));
  }
  return {};
}

Status OpenClOps::select_blocks(const Matrix& q, const Batch& batch, const IndexShape& shape,
                                int32_t* selected, std::byte* scratch, Stream stream) {
  using namespace opencl::ops_select;
  MORACLE_CHECK(opencl::check_floats({&q}));
  const int64_t stride = (batch.longest + shape.block - 1) / shape.block;
  MORACLE_TRY(const int64_t most, tokens_together(shape.num_heads, stride, batch.longest));
  auto* const scores = reinterpret_cast<float*>(scratch);
  for (int64_t first = 0; first < q.rows; first += most) {
    const int64_t tokens = std::min(most, q.rows - first);
    MORACLE_CHECK(opencl::launch_elements(
        queue_, stream, kScoreBlocks, tokens * shape.num_heads, stride, q, batch.positions,
        batch.sequences, batch.first_page, batch.pages, number(batch.page), shape.cache.index_keys,
        shape.cache.index_dtype, number(shape.num_heads), number(shape.head_dim),
        number(shape.top_k), number(shape.block), number(shape.local_blocks), first, tokens, stride,
        scores));
    MORACLE_CHECK(opencl::launch(queue_, stream, kSelect, tokens * shape.num_heads,
                                 std::min(kThreads, queue_.max_group), scores, stride,
                                 batch.positions, number(shape.top_k), number(shape.block),
                                 number(shape.num_heads), first, tokens, selected));
  }
  return {};
}

}  // namespace moracle
