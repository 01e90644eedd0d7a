// State of a loaded model.
#pragma once

#include <optional>
#include <vector>

#include "kernels/batch.h"
#include "models/adapters/adapted_rows.h"
#include "models/decoder/activations.h"
#include "models/decoder/non_finite.h"
#include "models/decoder/recorded_steps.h"
#include "models/decoder/step_observer.h"
#include "models/state/sequence_state.h"
#include "moracle/model.h"
#include "moracle/moe.h"

namespace moracle {

/// OutputStepsDescription in device memory. Empty: no such step. Scales are [max_num_tokens], one
/// value.
struct OutputSteps {
  Buffer norm, scales, sum_scales;
};

/// HyperDescription in device memory. Empty: one residual stream.
struct HyperConnection {
  Buffer projection, base, scale;
  HyperWeights weights() const {
    if (projection.bytes() == 0) return {};  // the mean
    return {projection.as<float>(), base.as<float>(), scale.as<float>()};
  }
};

struct Layer {
  Buffer input_norm, post_norm;  // empty: no norm
  bool parallel = false;         // see LayerDescription
  OutputSteps attention_output, mlp_output;
  HyperConnection attention_hyper, mlp_hyper;
  GatedResidual attention_residual, mlp_residual;
  Ngrams ngrams;
  int64_t ngram_state = 0;  // byte offset in a sequence's state
  LayerCache cache;
  std::unique_ptr<Attention> attention;
  FeedForward feed_forward;
};

struct KvCache::State {
  explicit State(std::shared_ptr<KvPool> states) : recurrent(std::move(states)) {}
  ~State() { pool->shrink(pages, 0); }
  std::shared_ptr<KvPool> pool;  // the model's
  int64_t length = 0;
  int64_t capacity = 0;
  std::vector<std::byte*> pages;
  SequenceState recurrent;
  // LongRoPE: the tokens, to recompute the keys when the length crosses the short context.
  std::vector<int32_t> tokens;
  enum class Keys : uint8_t { kShort, kLong, kMixed } keys = Keys::kShort;  // mixed: of neither
  uint64_t last_call = 0;  // number of the last forward call: no cache may appear twice in one call
};

struct Model::State {
  /// Model::load and Model::reload, without the handling of standard-library exceptions.
  static Result<Model> load(const Checkpoint& checkpoint, const ModelOptions& options);
  Status reload(const Checkpoint& checkpoint, const Progress& progress);

  DecoderSpec spec;
  int64_t max_num_tokens = 0;
  int64_t weight_bytes = 0;
  int64_t num_adapters = 0;
  int64_t tp_size = 1;        // ranks that divide attention and dense layers
  SchemeChanges changes;      // as requested
  std::string architecture;   // of the checkpoint; empty: random weights
  int64_t num_layers = 0;     // 0: likewise
  std::string file_versions;  // of the checkpoint's files, when the weights were read
  std::string weights_text;   // identity_of() the loaded weights; empty: this process alone
  std::map<int64_t, Request> expert_requests;  // of each layer with experts, if there are ranks
  DType cache_dtype = DType::kF32;
  std::vector<Choice> choices;
  std::optional<ResidencyPlan> residency;
  std::shared_ptr<Workspace> workspace;  // shared by all layers

  TensorView embedding;     // in embedding_buffer
  Buffer embedding_buffer;  // a loaded model references nothing in the checkpoint's files
  Buffer final_norm;
  HyperConnection final_hyper;
  GatedResidual final_residual;
  Buffer inverse_streams;   // [max_num_tokens], 1 / num_streams; empty: no gated residual streams
  Buffer embedding_scales;  // [max_num_tokens], one value; empty: 1
  std::vector<Layer> layers;
  std::optional<AdaptedLinear> output;
  OutputShares output_shares;
  std::shared_ptr<KvPool> cache_pool;
  std::shared_ptr<KvPool> state_pool;  // null: no layer is recurrent
  bool batch_invariant = false;        // the bits of a token depend only on its sequence
  bool bf16_attention = false;         // see ModelPlan

  Buffer activations_buffer;
  Activations activations;
  int64_t num_rows = 0;           // rows of the last step
  std::vector<int32_t> lora_ids;  // of the last step; the device may still read them
  // Used if the host cannot read device memory, or if the output is divided; grows as needed.
  Buffer host_logits;
  Buffer allowed;                    // of the last top_k_allowed_logits()
  std::vector<int32_t> largest_ids;  // of a divided output: the last top_k_logits()
  std::vector<float> largest_logits;
  std::shared_ptr<Group> group;            // null: this process alone
  std::unique_ptr<Exchange> exchange;      // likewise
  Buffer slots;                            // scratch of `ranks`
  ReplicatedMoe ranks;                     // the layers point to it
  std::unique_ptr<DispatchStep> dispatch;  // null: all ranks have the same tokens
  StepObserver observer;
  uint64_t num_calls = 0;  // of forward
  BatchTable batch;
  RecordedSteps recorded;
  double placed_steps_us = 0;      // of all steps so far, for PlacementCounts
  PlacedTimes placed_times = {};   // of a layer with slots, measured at loading
  std::vector<CallWay> call_ways;  // by the number of tokens; see PlacedMoe::set_ways
  // Of a layer for multi-token prediction: see JoinDescription.
  struct Join {
    Buffer embedding_norm, hidden_norm;
    std::optional<AdaptedLinear> matrix;
    Buffer memory;
    Matrix given;      // [max_num_tokens, hidden_size]: hidden states, written before forward()
    Matrix joined;     // [max_num_tokens, 2 * hidden_size]
    bool before_norm;  // the hidden state is that before the last norm
  };
  std::optional<Join> join;
  std::unique_ptr<Model> next_tokens;  // null: none is loaded
  bool keeps_hidden = false;           // Activations::hidden has the last residual sum after a step
};

/// Access for the library's own source folders.
struct ModelAccess {
  /// The rest of Model::load, after the Description. options.progress counts up to `total_bytes`.
  /// `device`: null to open that of the options.
  static Result<Model> load(Description&& description, const ModelOptions& options,
                            AdapterSpan adapters, int64_t total_bytes, ReadRecord* record = nullptr,
                            std::shared_ptr<Device> device = nullptr);
  /// Errors: the checkpoint's files were written or replaced after the model had read them.
  static Status check_unchanged(const Model& model, const Checkpoint& checkpoint);
  static Model::State& state(Model& model) { return *model.state_; }
  static KvCache::State& state(KvCache& cache) { return *cache.state_; }
  /// False with LongRoPE, where a page depends on the length of its sequence. With recurrent layers
  /// a sequence also needs the state at the end of the pages.
  static bool can_share_pages(const Model& model) { return model.state_->spec.short_context == 0; }
  /// The layer for multi-token prediction; null: none is loaded.
  static Model* next_tokens(const Model& model) { return model.state_->next_tokens.get(); }
  /// The drafter that is meant. Errors: the model does not have it.
  static Result<Drafter> drafter(const Model& model, Drafter wanted);
  /// True if a sequence has a recurrent state: see KvCache::truncate.
  static bool is_recurrent(const Model& model) { return model.state_->state_pool != nullptr; }
  /// Number of drafts after `length` tokens that leave the keys of these as they are. With LongRoPE
  /// the keys depend on the length of the sequence.
  static int64_t most_drafts(const Model& model, int64_t length) {
    const int64_t border = model.state_->spec.short_context;
    return border > 0 && length <= border ? border - length : Speculation::kMaxDrafts;
  }
  /// A cache whose first positions are in these full pages. It becomes an owner of each (see
  /// KvPool::share). Truncate it only to whole pages: the next token would change a shared page.
  /// With recurrent layers the caller then restores the state (see SequenceState::restore).
  /// Errors: those of Model::make_cache; a model whose pages cannot be shared.
  static Result<KvCache> make_cache(const Model& model, int64_t capacity,
                                    std::span<std::byte* const> pages);
  /// False if the cache was moved from.
  static bool has_state(const KvCache& cache) { return cache.state_ != nullptr; }
};

}  // namespace moracle
