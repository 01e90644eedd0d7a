// A whole model: tokens to logits, logits to tokens.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "moracle/checkpoint.h"
#include "moracle/device.h"
#include "moracle/oracle.h"
#include "moracle/text.h"

namespace moracle {

struct ModelOptions {
  std::string backend = "auto";  ///< or a row's name, or a map of patterns (see BackendMap)
  std::string quantization;      ///< an online scheme, or a QuantizationMap; "": as in the file
  /// "int8": float activations beside weights in integers or fp4 become int8 per token (W4A8,
  /// W8A8), faster and less exact. "16bit": activations that the scheme would quantize stay floats
  /// (W8A16), for GPUs without products of fp8. "bf16": kernels may round activations that are
  /// floats to bf16 (Request::bf16_activations). "": as the checkpoint says.
  std::string activations;
  /// What caches keep keys and values as: "f32"; "bf16" and "f16" take half of the memory and of
  /// the time to read it. Rounded once, when a token is appended; read exactly. A key or value that
  /// f16 has no number for ends forward() with an error. "auto": as the device's activations are,
  /// f32 on a CPU, bf16 on a GPU.
  std::string kv_cache = "auto";
  /// Memory that the keys and values of all sequences may take together; 0: all that the device
  /// has. It is taken as sequences grow.
  int64_t cache_bytes = 0;
  /// On a GPU steps of one token of each sequence are recorded, and replayed for the next tokens.
  bool graphs = true;
  std::string device = "cpu";
  int threads = 0;               ///< CPU threads; below 1: all that the process may use
  bool pin = false;              ///< each stays on its CPU (see open_device)
  int64_t max_num_tokens = 512;  ///< tokens per step: longer prompts are cut into steps
  bool deterministic = false;    ///< a token's bits depend on nothing but its own sequence
  /// Folders of LoRA adapters (see LoraAdapter), all loaded; Step::adapter says which is used.
  std::vector<std::string> adapters;
  std::vector<TunedLayer> tuned;  ///< measurements for the oracle, as Machine::tuned
  Progress progress;              ///< while loading, in bytes of the checkpoint
};

/// Keys and values of one sequence, all layers. One thread at a time may use it; a Step that names
/// it uses it until forward returns.
class KvCache {
 public:
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();
  int64_t length() const;
  int64_t capacity() const;
  /// Forgets everything after the first `length` positions.
  void truncate(int64_t length);
  struct State;  ///< internal

 private:
  friend class Model;
  friend struct ModelAccess;  // internal
  explicit KvCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// One choice of the oracle, for a group of layers that are equal but for their names.
struct Choice {
  std::string part;             ///< "experts", "attention", "router", "output"
  std::vector<int64_t> layers;  ///< empty: outside the layers
  Selection selection;
};

/// Everything about a model that is decided before a weight is read.
struct ModelPlan {
  std::vector<Choice> choices;        ///< each with a plan
  int64_t weight_bytes = 0;           ///< packed weights and tables, all layers
  int64_t workspace_bytes = 0;        ///< shared by all layers
  int64_t scratch_bytes = 0;          ///< of the kernels
  int64_t activation_bytes = 0;       ///< between the layers, logits included
  int64_t cache_bytes_per_token = 0;  ///< keys and values of one position, all layers
  DType cache_dtype = DType::kF32;    ///< of those
  int64_t memory_bytes = 0;           ///< that the device has
  int64_t total_bytes() const {
    return weight_bytes + workspace_bytes + scratch_bytes + activation_bytes;
  }
};

/// Describes every tensor and lets the oracle choose for every layer, as Model::load does. Errors:
/// as there; more memory needed than the device has; a pattern of `backend` that matches nothing.
Result<ModelPlan> plan(const Checkpoint& checkpoint, const ModelOptions& options = {},
                       const Machine& machine = Machine::here());

/// A checkpoint loaded for one device, which the model opens for itself. Its calls take turns (see
/// Device), so several threads may call one model. forward and logits are two calls: another
/// thread's forward between them replaces what logits reads, so threads that use both need a lock
/// of their own over the two. generate() and perplexity() need none.
class Model {
 public:
  /// Describes everything first (missing, extra and wrongly typed tensors are errors by name), lets
  /// the oracle choose for every layer (see plan), then reads, packs and releases tensor by tensor.
  static Result<Model> load(const Checkpoint& checkpoint, const ModelOptions& options = {});
  /// Other weights for the same model, quantized while loading as the ones before, in the same
  /// memory; adapters stay. All of them are described, read, checked and packed before the first
  /// takes its place: until then memory holds the packed weights twice. Sequences must begin anew
  /// (KvCache::truncate), as what caches hold was made by the old weights. Errors, after which the
  /// old weights serve on, bit for bit: another architecture, other sizes, schemes or dtypes;
  /// whatever load refuses; memory; kCancelled. Other calls on this model wait for it.
  Status reload(const Checkpoint& checkpoint, const Progress& progress = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  int64_t vocab_size() const;
  int64_t max_context() const;
  int64_t max_num_tokens() const;
  int64_t weight_bytes() const;  ///< packed weights and tables, all layers
  const std::vector<Choice>& choices() const;

  /// For at most `capacity` tokens of one sequence; memory is taken as they come.
  Result<KvCache> make_cache(int64_t capacity) const;

  /// Tokens of one sequence that follow what its cache holds.
  struct Step {
    std::span<const int32_t> tokens;
    KvCache* cache;
    int32_t adapter = -1;  ///< a number below that of ModelOptions::adapters; -1: none
  };
  /// Runs all layers over the tokens of all steps, at most max_num_tokens() together, and appends
  /// to the caches. No steps, and a step of no tokens, are allowed. Errors, naming the step: ids
  /// outside the vocabulary; no cache, one that is full, one that another model made, one that two
  /// of the steps have; what a cache of f16 cannot hold; kOutOfMemory where caches have all that
  /// they may take. The caches are then as long as before.
  Status forward(std::span<const Step> steps);
  /// Logits [count, vocab_size] of the last forward's tokens [first, first + count); at most
  /// kMaxLogitRows. Valid until the next call on this model, of whichever thread.
  Result<std::span<const float>> logits(int64_t first, int64_t count);
  static constexpr int64_t kMaxLogitRows = 64;
  /// The largest of those of each token, larger first and the lower id first among equals. NaN
  /// comes first, as in PyTorch: where the first is finite, none is NaN or positive infinity.
  struct TopKLogits {
    std::span<const int32_t> ids;   ///< [count, k]
    std::span<const float> logits;  ///< likewise
  };
  /// They are found where they lie: from a GPU k of them come instead of a vocabulary. Errors: a k
  /// below 1, or above vocab_size() or kMaxTopK. Otherwise as logits().
  Result<TopKLogits> top_k_logits(int64_t first, int64_t count, int64_t k);
  static constexpr int64_t kMaxTopK = 256;
  struct State;  ///< internal

 private:
  friend struct ModelAccess;  // internal
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// How the next token is drawn. The order is temperature, top_k, top_p, min_p, as in transformers.
struct SamplingOptions {
  float temperature = 0;  ///< 0: the largest logit, lowest id first
  int64_t top_k = 0;      ///< 0: off
  float top_p = 1;        ///< 1: off
  float min_p = 0;        ///< 0: off
  uint64_t seed = 0;
};

/// Errors: numbers out of their range, named as on the command line.
Status check(const SamplingOptions& options);

/// What generation_config.json (else config.json) says.
struct GenerationConfig {
  std::vector<int32_t> eos_ids;
  SamplingOptions sampling;  ///< greedy unless do_sample
  static Result<GenerationConfig> open(const Checkpoint& checkpoint);
};

struct GenerateOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  int32_t adapter = -1;           ///< see Model::Step
  std::vector<int32_t> stop_ids;  ///< empty: nothing but max_tokens and the context stops it
  /// Called with each new id; false stops.
  std::function<bool(int32_t id)> on_token;
  Progress on_prompt;  ///< tokens of the prompt done
};

struct Generation {
  std::vector<int32_t> ids;  ///< the stopping id included
  std::string stop_reason;   ///< "eos", "length", "cancelled"
  double prompt_seconds = 0;
  double generation_seconds = 0;  ///< of all tokens but the first, which the prompt gives
};

/// Continues `prompt`. Errors: an empty prompt; one that leaves no room in the context; logits that
/// no token can be drawn from (NaN or positive infinity among them, or nothing but negative
/// infinity), with the position and the part of the model that the first such number came from.
Result<Generation> generate(Model& model, std::span<const int32_t> prompt,
                            const GenerateOptions& options);

struct Perplexity {
  double perplexity = 0;
  double nll = 0;  ///< mean negative log likelihood, natural logarithm
  int64_t scored_tokens = 0;
};

/// Over non-overlapping windows, each alone from position 0, its first token not scored. Errors: as
/// of generate() where logits are not finite.
Result<Perplexity> perplexity(Model& model, std::span<const int32_t> ids, int64_t window,
                              const Progress& progress = {}, int32_t adapter = -1);

/// What a checkpoint holds, by part, without reading a weight.
struct Outline {
  struct Part {
    std::string what;  ///< "experts", "attention", "router", "norms", "embedding", "output"
    std::vector<int64_t> layers;  ///< empty: outside the layers
    std::string scheme;
    bool quantized = false;
    int64_t num_tensors = 0;
    int64_t bytes = 0;
  };
  std::string architecture;
  std::string producer;
  int64_t num_layers = 0, hidden_size = 0, vocab_size = 0, max_context = 0;
  int64_t num_experts = 0, top_k = 0, intermediate_size = 0;
  int64_t bytes = 0;
  std::vector<Part> parts;
  /// Why the model as a whole cannot run here, where that is so: then only the experts are
  /// described, and everything else is one part. Empty: it can.
  std::string not_runnable;
};
/// Errors: as Model::load's description.
Result<Outline> outline(const Checkpoint& checkpoint);

}  // namespace moracle
