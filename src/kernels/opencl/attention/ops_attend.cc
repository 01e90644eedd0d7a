// Paged attention for any head sizes; split-KV for sequences with up to kDecodeTokens tokens in a
// step.
#include <algorithm>
#include <array>
#include <string>

#include "base/text.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_attend {
namespace {

// As in split_kv.cl.
constexpr int64_t kTile = 128, kDecodeTokens = 4;
static_assert(kMaxSplits == 64, "MAX_SPLITS");

// Kernel specialized for HEADS and the cache dtype.
struct Variant {
  int64_t heads;
  DType cache;
  KernelName name;
};
Variant variant(int64_t heads, DType cache) {
  const std::string options = str("-D HEADS=", heads, " -D CACHE=", static_cast<int>(cache));
  return {heads, cache, {"attention/attend.cl", "attend", options, true}};
}
// Sorted by heads, most first.
const std::array kVariants{
    variant(8, DType::kBF16), variant(8, DType::kF16), variant(8, DType::kF32),
    variant(4, DType::kBF16), variant(4, DType::kF16), variant(4, DType::kF32),
    variant(1, DType::kBF16), variant(1, DType::kF16), variant(1, DType::kF32)};
const KernelName kMerge{"attention/attend_merge.cl", "attend_merge"};

int64_t heads_per_kv(const AttentionShape& shape) {
  return shape.num_heads / shape.num_kv_heads;
}

// Bytes of local memory per head that the host sizes: a query and a result.
int64_t sized_bytes(const AttentionShape& shape) {
  return (shape.head_dim + shape.value_dim) * static_cast<int64_t>(sizeof(float));
}
// All bytes of local memory: with scores, addresses of values, and a reserve.
int64_t local_bytes(const AttentionShape& shape, int64_t heads) {
  return heads * (sized_bytes(shape) + (kTile + 16) * 4) + kTile * 8 + 256;
}

// The variant with the fewest unused heads, or null if the heads are too large for the device.
const Variant* find_variant(const AttentionShape& shape, const Queue& queue) {
  const int64_t heads = heads_per_kv(shape), wanted = heads > 4 ? 8 : heads > 1 ? 4 : 1;
  for (const Variant& one : kVariants) {
    if (one.cache == shape.cache.dtype && one.heads <= wanted &&
        local_bytes(shape, one.heads) <= queue.local_bytes)
      return &one;
  }
  return nullptr;
}

// Upper bound on the splits of a view of up to `seen` positions: splits_of() in split_kv.cl.
int64_t most_splits(int64_t seen) {
  const int64_t tiles = (seen + kTile - 1) / kTile;
  if (tiles <= 16) return std::max<int64_t>(tiles, 1);
  return tiles <= 2 * kMaxSplits ? std::max<int64_t>(16, (tiles + 1) / 2) : kMaxSplits;
}

}  // namespace
}  // namespace opencl::ops_attend

Status OpenClOps::attend(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                         const Matrix& out, std::byte* scratch, Stream stream) {
  using namespace opencl::ops_attend;
  MORACLE_CHECK(opencl::check_floats({&q, &out}));
  if (q.rows == 0) return {};
  const Variant* const kernel = find_variant(shape, queue_);
  if (kernel == nullptr) {
    return Error{
        ErrorKind::kUnsupported, "", "attention",
        str("heads that fit in ", queue_.local_bytes, " bytes of the device's local memory"),
        str("they have ", shape.head_dim, " and ", shape.value_dim, " columns")};
  }
  const bool split_kv = shape.batch_invariant || batch.fewest_tokens <= kDecodeTokens;
  const int64_t splits = split_kv ? most_splits(shape.most_seen(batch.longest)) : 1;
  // Process as many tokens at a time as the scratch has splits for.
  const auto of_token = static_cast<int64_t>(attend_scratch_bytes(shape, 1, DType::kBF16));
  const auto all = static_cast<int64_t>(attend_scratch_bytes(shape, q.rows, DType::kBF16));
  const int64_t together = splits == 1 ? q.rows : all / of_token;
  const int64_t head_tiles = (heads_per_kv(shape) + kernel->heads - 1) / kernel->heads;
  const int64_t threads = std::min(kTile, queue_.max_group);
  const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
  const auto local = [&](int64_t columns) {
    return opencl::LocalBytes{static_cast<size_t>(columns * kernel->heads) * sizeof(float)};
  };
  for (int64_t first = 0; first < q.rows; first += together) {
    const int64_t tokens = std::min(together, q.rows - first);
    MORACLE_CHECK(opencl::launch(
        queue_, stream, kernel->name, tokens * splits * head_tiles * shape.num_kv_heads, threads, q,
        out, batch.positions, batch.sequences, batch.first_token, batch.first_page, batch.pages,
        number(batch.page), shape.cache.keys, shape.cache.values, number(shape.num_heads),
        number(shape.num_kv_heads), number(shape.head_dim), number(shape.value_dim), shape.scale,
        number(shape.window), number(shape.chunk), shape.selected, number(shape.top_k),
        number(shape.block), number(shape.selections), shape.sinks, shape.batch_invariant, first,
        tokens, number(splits), scratch, local(shape.head_dim), local(shape.value_dim)));
    if (splits == 1) continue;
    MORACLE_CHECK(opencl::launch(
        queue_, stream, kMerge, tokens * shape.num_heads, threads, out, batch.positions,
        batch.sequences, batch.first_token, number(shape.num_heads), number(shape.value_dim),
        number(shape.window), number(shape.chunk), shape.selected, number(shape.top_k),
        number(shape.block), number(shape.selections), number(shape.num_kv_heads), shape.sinks,
        shape.batch_invariant, first, tokens, scratch));
  }
  return {};
}

}  // namespace moracle
