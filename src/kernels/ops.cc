// Operations composed of other operations, for devices without a fused version.
#include "kernels/ops.h"

#include <algorithm>

#include "base/try.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/top_k_key.h"

namespace moracle {

int64_t cache_page(Platform platform) {
  return platform == Platform::kCpu ? cpu::kKvBlock : 64;  // a CPU: one KV block
}

Status Ops::add_rms_norm(const Matrix& x, const Matrix& y, const float* weight, float epsilon,
                         const Matrix& out, Stream stream) {
  MORACLE_CHECK(add(x, y, stream));
  return rms_norm(x, weight, x.cols, epsilon, out, stream);
}

Status Ops::rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v,
                            const QkNormRope& rope, const Batch& batch, const LayerCache& cache,
                            Stream stream) {
  const auto prepare = [&](const Matrix& heads, const float* norm) -> Status {
    if (norm != nullptr) {
      MORACLE_CHECK(rms_norm(heads, norm, rope.rotary.head_dim, rope.epsilon, heads, stream));
    }
    return rotate(heads, rope.rotary, rope.frequencies, batch.positions, stream);
  };
  MORACLE_CHECK(prepare(q, rope.q_norm));
  MORACLE_CHECK(prepare(k, rope.k_norm));
  return append(k, v, batch, cache, stream);
}

Status Ops::append_index(const Matrix& k, const Batch& batch, const LayerCache& cache,
                         Stream stream) {
  // One head of keys without values.
  Matrix none = k;
  none.cols = 0;
  return append(k, none, batch, {.dtype = cache.index_dtype, .keys = cache.index_keys}, stream);
}

Status Ops::norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by, int64_t by_dim,
                          int64_t count, const Matrix& out, Stream stream) {
  MORACLE_CHECK(rms_norm(x, norm.weight, norm.size, norm.epsilon, out, stream));
  return gate(out, count, by, by_dim, x.cols / count, count, norm.function, stream);
}

namespace {

Error no_kernels(const char* what) {
  return {ErrorKind::kUnsupported, "", what, "a CPU or an NVIDIA GPU",
          "other devices have no kernels for it"};
}

}  // namespace

Status Ops::route_by_token(const Matrix&, const Routing&, const TokenRoutes&, const int32_t*,
                           int64_t, int32_t*, float*, Stream) {
  return no_kernels("hash layer");
}
Status Ops::compress(const Matrix&, const CompressWeights&, const CompressShape&, const Batch&,
                     Stream) {
  return no_kernels("compressed attention");
}
Status Ops::select_entries(const Matrix&, const Matrix&, const Batch&, const EntryIndexShape&,
                           int32_t*, std::byte*, Stream) {
  return no_kernels("compressed attention");
}
Status Ops::attend_compressed(const Matrix&, const Batch&, const CompressedShape&, const Matrix&,
                              Stream) {
  return no_kernels("compressed attention");
}
Status Ops::collapse_streams(const Matrix&, const HyperWeights&, const HyperShape&, const Matrix&,
                             float*, Stream) {
  return no_kernels("hyper-connections");
}
Status Ops::expand_streams(const Matrix&, const Matrix&, int64_t, const float*, Stream) {
  return no_kernels("hyper-connections");
}
Status Ops::inject_streams(const Matrix&, const Matrix&, const Matrix&, Stream) {
  return no_kernels("gated residual streams");
}
Status Ops::hash_ngrams(const NgramShape&, const Batch&, int32_t*, Stream) {
  return no_kernels("n-grams");
}
Status Ops::gate_streams(const Matrix&, const Matrix&, const Matrix&, const Matrix&, Stream) {
  return no_kernels("n-grams");
}

size_t top_k_scratch_bytes(int64_t rows, int64_t cols, int64_t k, DType activations) {
  if (activations == DType::kF32) return 0;
  // Two rounds keep k numbers of each tile of a row (a GPU's blocks sort tiles of kTopKTile
  // numbers).
  const int64_t tiles = (cols + kTopKTile - 1) / kTopKTile;
  return static_cast<size_t>(2 * rows * tiles * k) * sizeof(uint64_t);
}

size_t gated_delta_scratch_bytes(const GatedDeltaShape& shape, int64_t num_tokens,
                                 DType activations) {
  if (activations == DType::kF32 || num_tokens <= kRecurrentDeltaTokens) return 0;
  if (shape.key_dim != kDeltaChunkDim || shape.value_dim != kDeltaChunkDim) return 0;
  if (shape.by_channel) return 0;  // no device has chunks for it that need scratch
  // Chunks that do not fit are processed in turn.
  constexpr int64_t kMost = int64_t{64} << 20;
  const int64_t of_heads = shape.num_value_heads * kDeltaTileBytes;
  return static_cast<size_t>(of_heads * std::clamp<int64_t>(kMost / of_heads, 1, num_tokens));
}

size_t select_scratch_bytes(DType activations) {
  // The scores of 512 tokens at 32,768 positions. Tokens that do not fit are processed in turn.
  return activations == DType::kF32 ? 0 : size_t{64} << 20;
}

size_t attend_scratch_bytes(const AttentionShape& shape, int64_t num_tokens, DType activations) {
  if (activations == DType::kF32) return 0;
  const auto of_token =
      static_cast<size_t>(shape.num_heads * kMaxSplits * (shape.value_dim + 2)) * sizeof(float);
  // Tokens that do not fit are processed in turn.
  constexpr size_t kMost = size_t{64} << 20;
  return std::max(of_token, std::min(kMost, of_token * static_cast<size_t>(num_tokens)));
}

}  // namespace moracle
