// What a loaded model holds.
#pragma once

#include <optional>
#include <vector>

#include "kernels/batch.h"
#include "models/decoder/activations.h"
#include "models/decoder/non_finite.h"
#include "models/decoder/on_part.h"
#include "models/decoder/recorded_steps.h"
#include "models/state/kv_pool.h"
#include "moracle/model.h"
#include "moracle/moe.h"

namespace moracle {

struct Layer {
  Buffer input_norm, post_norm;
  LayerCache cache;
  std::unique_ptr<Attention> attention;
  FeedForward feed_forward;
};

struct KvCache::State {
  ~State() { pool->shrink(pages, 0); }
  std::shared_ptr<KvPool> pool;  // the model's
  int64_t length = 0;
  int64_t capacity = 0;
  std::vector<std::byte*> pages;
  uint64_t last_call = 0;  // of forward, by the model's count: no cache comes twice in one
};

struct Model::State {
  /// Model's, but for what the standard library throws.
  static Result<Model> load(const Checkpoint& checkpoint, const ModelOptions& options);
  Status reload(const Checkpoint& checkpoint, const Progress& progress);

  DecoderSpec spec;
  int64_t max_num_tokens = 0;
  int64_t weight_bytes = 0;
  int64_t num_adapters = 0;
  SchemeChanges changes;  // as asked for
  DType cache_dtype = DType::kF32;
  std::vector<Choice> choices;
  std::shared_ptr<Workspace> workspace;  // shared by all layers

  TensorView embedding;     // in embedding_buffer
  Buffer embedding_buffer;  // nothing of a loaded model lies in the checkpoint's files
  Buffer final_norm;
  std::vector<Layer> layers;
  std::optional<Linear> output;
  std::shared_ptr<KvPool> cache_pool;
  bool batch_invariant = false;  // a token's bits follow from its sequence alone

  Buffer activations_buffer;
  Activations activations;
  int64_t num_rows = 0;           // of the last step
  std::vector<int32_t> lora_ids;  // likewise, while the device may still read them
  Buffer host_logits;  // where the device's memory cannot be read; grows to what was asked for
  OnPart on_part;
  OnOutput on_output;
  uint64_t num_calls = 0;  // of forward
  BatchTable batch;
  RecordedSteps recorded;
};

/// The way in for the library's own scratch.
struct ModelAccess {
  /// Model::load from here on. `total_bytes` is what options.progress counts to.
  static Result<Model> load(Description&& description, const ModelOptions& options,
                            std::span<const LoraAdapter> adapters, int64_t total_bytes);
  static Model::State& state(Model& model) { return *model.state_; }
  static KvCache::State& state(KvCache& cache) { return *cache.state_; }
  /// False once the cache was moved away.
  static bool has_state(const KvCache& cache) { return cache.state_ != nullptr; }
};

}  // namespace moracle
