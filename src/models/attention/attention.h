// Attention of one layer. Its description determines the memory that it needs. One step over the
// tokens of a batch allocates nothing.
#pragma once

#include <memory>

#include "kernels/ops.h"
#include "models/decoder/layer_input.h"
#include "models/loader.h"

namespace moracle {

/// Memory of one layer's attention; the scratch is in the device's activation dtype.
struct AttentionSizes {
  int64_t num_kv_heads = 0;  ///< heads with keys and values
  int64_t key_size = 0;      ///< elements per token in the cache, all heads
  int64_t value_size = 0;    ///< likewise
  size_t scratch_bytes = 0;  ///< activations between its modules, for max_num_tokens
  size_t state_bytes = 0;    ///< recurrent state of one sequence, a multiple of 64
  int64_t index_size = 0;    ///< elements of an index key per token in the cache
  int64_t selected = 0;      ///< entries of a token's selections; 0: no sparse attention
  /// Compressed attention: positions of an entry, its elements, and those of its index key.
  int64_t entry_rate = 0, entry_size = 0, entry_index_size = 0;
};
AttentionSizes attention_sizes(const AttentionDescription& attention, int64_t max_num_tokens,
                               DType dtype);

/// Bytes of one position in the cache of a layer, all heads.
struct CachedBytes {
  int64_t keys = 0, values = 0;
  int64_t scales = 0;  ///< of keys, and as many of values; 0: the type has none
  int64_t index_keys = 0;
  int64_t entry = 0, entry_key = 0;  ///< of one entry, not of a position
  int64_t entry_rate = 1;            ///< positions of an entry
  int64_t total() const {
    const int64_t of_entry = entry + entry_key;
    return keys + values + 2 * scales + index_keys + (of_entry + entry_rate - 1) / entry_rate;
  }
};
CachedBytes cached_bytes(const AttentionSizes& sizes, DType dtype);
/// The type of index keys in a cache of this type: bf16 where it has 8 bits, because a rounding to
/// 8 bits would choose other positions.
DType index_dtype(DType cache);

/// The type of ModelOptions::kv_cache on a device of this kind with such activations. Errors: a
/// type that no cache has, or that the device has no kernels for.
Result<DType> cache_dtype(std::optional<DType> wanted, Platform platform, DType activations);

/// Sets the scales of an FP8 cache; other types have none. Errors (kUnsupported): several scales;
/// one that is not above 0.
Status set_scales(LayerCache& cache, const LayerDescription& layer);

/// Floats of device memory; null if it is empty.
inline const float* floats(const Buffer& buffer) {
  return buffer.bytes() > 0 ? buffer.as<float>() : nullptr;
}

/// A convolution's weights [columns, kernel] by tap: [kernel, columns].
std::vector<float> by_tap(const std::vector<float>& weights, int64_t kernel);

/// The tokens of one forward, and this layer's memory.
struct AttentionStep {
  Ops& ops;
  const Batch& batch;
  const LayerCache& cache;  ///< of this layer in the batch's pages
  bool batch_invariant;     ///< see AttentionShape
  bool bf16_products;       ///< likewise
  std::byte* scratch;       ///< scratch_bytes
  /// The selections of max_num_tokens tokens, of all layers: what the last indexer chose, see
  /// AttentionShape.
  int32_t* selected;
  Stream stream;
  const StepObserver& observer;
};

class Attention {
 public:
  virtual ~Attention() = default;
  /// Loads the weights, at first and whenever they change. Errors: another kind or other sizes than
  /// at construction.
  virtual Status load(AttentionDescription&& from, Loader& loader) = 0;
  /// True if the first linear layer's kernel runs this norm. apply() then takes it in its input.
  virtual bool starts_with_norm(const NormedInput&) const { return false; }
  /// out [tokens, hidden_size]; appends to the caches. `input` has a norm only where
  /// starts_with_norm().
  virtual Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) = 0;
};

/// Null for NoAttentionDescription.
std::unique_ptr<Attention> make_attention(const AttentionDescription& attention);

// One overload of each name per kind; the functions above dispatch on the kind.
AttentionSizes attention_sizes(const GroupedQuerySpec& spec, int64_t max_num_tokens, DType dtype);
AttentionSizes attention_sizes(const LatentSpec& spec, int64_t max_num_tokens, DType dtype);
AttentionSizes attention_sizes(const GatedDeltaSpec& spec, int64_t max_num_tokens, DType dtype);
std::unique_ptr<Attention> make_attention(const GroupedQuerySpec& spec);
std::unique_ptr<Attention> make_attention(const LatentSpec& spec);
std::unique_ptr<Attention> make_attention(const GatedDeltaSpec& spec);
AttentionSizes attention_sizes(const ShortConvolutionSpec& spec, int64_t max_num_tokens,
                               DType dtype);
std::unique_ptr<Attention> make_attention(const ShortConvolutionSpec& spec);
AttentionSizes attention_sizes(const Mamba2Spec& spec, int64_t max_num_tokens, DType dtype);
std::unique_ptr<Attention> make_attention(const Mamba2Spec& spec);
inline AttentionSizes attention_sizes(const NoAttentionSpec&, int64_t, DType) {
  return {};
}
inline std::unique_ptr<Attention> make_attention(const NoAttentionSpec&) {
  return nullptr;
}
AttentionSizes attention_sizes(const KimiDeltaSpec& spec, int64_t max_num_tokens, DType dtype);
std::unique_ptr<Attention> make_attention(const KimiDeltaSpec& spec);
AttentionSizes attention_sizes(const LightningSpec& spec, int64_t max_num_tokens, DType dtype);
std::unique_ptr<Attention> make_attention(const LightningSpec& spec);

AttentionSizes attention_sizes(const CompressedSpec& spec, int64_t max_num_tokens, DType dtype);
std::unique_ptr<Attention> make_attention(const CompressedSpec& spec);

/// Errors (kUnsupported): a device or a cache that the layer has no kernels for.
Status check_attention(const AttentionDescription& attention, Platform platform, DType cache);

/// Returns the description of the expected kind. Errors: another kind, another spec.
template <class Kind>
Result<Kind*> same_attention(AttentionDescription& from, const decltype(Kind::spec)& spec) {
  auto* kind = std::get_if<Kind>(&from);
  if (kind != nullptr && kind->spec == spec) return kind;
  return Error{ErrorKind::kInvalidArgument, "", "attention", "the attention of the loaded model",
               kind == nullptr ? "it is of another kind" : "its sizes or settings differ"};
}

/// RoPE shape of heads with `head_dim` columns, from column `first` of each head on.
inline RotaryShape rotary_shape(const Rotary& rotary, int64_t head_dim, int64_t first = 0) {
  return {head_dim, static_cast<int64_t>(rotary.frequencies.size()), first, rotary.interleaved,
          rotary.factor};
}
/// Columns [first, first + count).
inline Matrix columns(Matrix matrix, int64_t first, int64_t count) {
  matrix.data = static_cast<std::byte*>(matrix.data) + first * bits(matrix.dtype) / 8;
  matrix.cols = count;
  return matrix;
}

}  // namespace moracle
