// Embeddings of n-grams (Qwen3.8-Flash-Next): hashes of the last tokens choose rows of a table,
// which gates of the residual streams weigh.
//
//   e = rows of the table, one for each head and length of n-grams
//   g_k = norm(W_key e)_k · norm(stream_k) / √hidden_size
//   v_k = σ(sign(g_k) √|g_k|) · W_value e
//   stream_k ← stream_k + v_k + silu(convolution of norm(v)_k over every `size`-th token)
#pragma once

#include "kernels/ops.h"
#include "models/description.h"
#include "models/loader.h"

namespace moracle {

/// Bytes in a sequence's state, a multiple of 64: the last tokens, then the convolution's rows.
int64_t ngram_state_bytes(const NgramSpec& spec);

/// Memory of a step, in the device's activation dtype.
struct NgramScratch {
  int32_t* rows = nullptr;
  Matrix embeddings, value;
  Matrix keys, queries, gated;  ///< of all streams
  size_t bytes = 0;
};
NgramScratch carve_ngrams(const NgramSpec& spec, int64_t tokens, DType dtype, std::byte* base);

class Ngrams {
 public:
  Status load(NgramDescription&& from, Loader& loader);
  bool loaded() const { return key_.has_value(); }
  /// Adds to the streams. `state`: byte offset in a sequence's state.
  Status apply(const Matrix& streams, const Batch& batch, int64_t state, std::byte* scratch,
               Ops& ops, Stream stream);
  /// The table, which the model loads.
  Buffer table;
  DType table_type = DType::kBF16;

 private:
  NgramSpec spec_;
  Buffer multipliers_, sizes_, offsets_;
  Buffer key_norm_, query_norm_, value_norm_, convolution_;
  std::optional<AdaptedLinear> key_, value_;
};

}  // namespace moracle
