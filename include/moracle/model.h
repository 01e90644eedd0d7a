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
#include "moracle/parallel.h"
#include "moracle/placement.h"
#include "moracle/routing.h"
#include "moracle/text.h"

namespace moracle MORACLE_API {

/// Parses `kv_cache`: "f32", "bf16", "f16", "int8" or "fp8", or "auto" for none. Errors: any other
/// word.
Result<std::optional<DType>> parse_kv_cache(std::string_view text);

/// Measured rates of reading, in bytes per second; 0: unknown.
struct MemoryRates {
  double host = 0;    ///< host memory, all threads
  double device = 0;  ///< the device's memory
  double bus = 0;     ///< from host memory to the device
  double files = 0;   ///< the checkpoint's files, where host memory does not hold all experts
};

/// ModelOptions::device_memory and host_memory: what free_memory() says.
inline constexpr int64_t kFreeMemory = -1;

struct ModelOptions {
  BackendMap backend;            ///< empty: auto for every module
  QuantizationMap quantization;  ///< empty: as in the file
  /// Overrides the activation format. kInt8 (W4A8, W8A8) is faster and less exact. k16Bit (W8A16)
  /// serves GPUs without fp8 products.
  ActivationPrecision activations = ActivationPrecision::kStored;
  /// How 4-bit weights beside fp8 activations lie in memory. kFolded needs a plan that multiplies
  /// fp8 by fp8, and all experts on the device; kAuto takes kPacked without them. Several ranks
  /// must choose alike.
  WeightResidency weights = WeightResidency::kPacked;
  /// The type of keys and values in the caches: f32, bf16, f16, i8 or f8_e4m3 (see parse_kv_cache).
  /// None: the device's activation dtype, f32 on a CPU, bf16 on a GPU. bf16 and f16 halve the
  /// memory and the time to read it, 8 bits quarter them. A value is rounded once, when its token
  /// is appended, and read exactly. If f16 cannot represent a key or value, forward() returns an
  /// error. i8: codes with a scale per token and head, on a CPU. f8_e4m3: with the scale s of the
  /// file, or 1; values above 448 · s become 448 · s.
  std::optional<DType> kv_cache;
  /// Maximum memory in bytes for the keys and values of all sequences; 0: all memory of the device.
  /// Memory is allocated as sequences grow. The state of recurrent layers does not count.
  int64_t cache_bytes = 0;
  /// Memory in bytes of `device` that the model may take. The experts that do not fit lie in host
  /// memory, where the CPU computes them; the device keeps as many of each layer in slots as fit
  /// (see PlacedMoe). Between steps, experts in use move into slots; with `deterministic` they do
  /// not. Caches get what is left, unless cache_bytes limits them. 0: the device holds all experts.
  int64_t device_memory = 0;
  /// With device_memory: tokens of all sequences for which caches must have room at least. The
  /// plan leaves room for one context, or for an eighth of the memory if a context is larger.
  int64_t cached_tokens = 0;
  /// Host memory in bytes that experts may take then. 0: all. If that is not enough for all
  /// experts, it holds as many of each layer as fit. The others stay in the checkpoint's mapped
  /// files and are read and packed when a step needs them, in place of the one used longest ago.
  int64_t host_memory = 0;
  /// For ModelPlan::estimate.
  MemoryRates rates;
  /// On a GPU, record steps with one token per sequence as a graph and replay it for later tokens.
  bool graphs = true;
  DeviceName device;
  /// With device_memory, which then holds for each of them: further devices with slots for experts,
  /// of the same platform. `device` computes everything else. Not on several ranks.
  std::vector<DeviceName> slot_devices = {};
  int threads = 0;   ///< CPU threads; 0: all CPUs that the process may use
  bool pin = false;  ///< pins each thread to a CPU (see open_device)
  /// OpenCL: folder for compiled kernels, and the callback before one is compiled (see
  /// DeviceOptions).
  std::string kernel_cache;
  std::function<void(std::string_view file)> compiling;
  /// Maximum tokens per step. Longer prompts are split into several steps. 0: as suits the device,
  /// 4096 on an NVIDIA GPU, else 512.
  int64_t max_num_tokens = 0;
  /// The bits of a token's result depend only on its own sequence.
  bool deterministic = false;
  /// Paths of LoRA adapters (see LoraAdapter::open). All are loaded; Step::adapter selects one.
  std::vector<std::string> adapters;
  /// Adapters that are in memory, with indices after those of `adapters`. The model copies them.
  std::vector<std::shared_ptr<const LoraAdapter>> read_adapters = {};
  size_t num_adapters() const { return adapters.size() + read_adapters.size(); }
  /// The ranks that hold the experts together. Each loads the same checkpoint with the same
  /// options. Null: this process alone.
  std::shared_ptr<Group> group;
  /// kReplicated: every rank runs the same steps and gets the same logits. kDispatched: every rank
  /// has its own sequences and runs its own steps (see Model::rest).
  Spread spread = Spread::kReplicated;
  /// Ranks that divide attention and dense layers by heads and columns: 1, or all ranks of `group`,
  /// which must then be kReplicated.
  int64_t tp_size = 1;
  /// Ranks that divide the rows of lm_head: likewise. Logits keep the bits of a whole lm_head.
  /// Every rank then calls logits() and top_k_logits(), and gets all of them.
  int64_t lm_head_size = 1;
  /// The experts of this rank: its rank and the size are those of `group`. plan() needs no group.
  Parallelism parallel;
  /// Places the experts of each layer by their measured load (place_by_load), the same on every
  /// rank. Null: by parallel.placement.
  std::shared_ptr<const RoutingStatistics> measured_load;
  /// Further copies of the most chosen experts in each layer, on other ranks, which share their
  /// tokens. Needs measured_load and several ranks. A layer has fewer where they lower no load.
  int64_t num_redundant_experts = 0;
  const ExchangeRow* exchange = nullptr;  ///< a row of exchanges(); null: the first that serves
  /// Counts the tokens that choose each expert, for Model::routing_statistics. On a CPU only.
  bool count_routing = false;
  std::vector<TunedLayer> tuned;  ///< measured times for the oracle, as Machine::tuned
  Progress progress;              ///< progress of loading, in bytes of the checkpoint
  /// Also loads the layer for multi-token prediction, for Drafter::kMtp: in the schemes and types
  /// of the options, with its own caches. Errors: has_next_tokens() is false; ranks; experts in
  /// host memory. A model with it cannot be reloaded.
  bool next_tokens = false;
};

/// Sets device and slot_devices from names with commas between them: "cuda:0,cuda:1". Errors: as
/// parse_device.
Status set_devices(ModelOptions& options, std::string_view names);

/// Whether the files have a layer for multi-token prediction that this library runs.
bool has_next_tokens(const Checkpoint& checkpoint);

/// The options with which a model opens its device.
DeviceOptions device_options(const ModelOptions& options);

/// Keys and values of one sequence, all layers, and the state of its recurrent layers. Only one
/// thread at a time may use it. A Step with this cache uses it until forward returns.
class KvCache {
 public:
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();
  int64_t length() const;
  int64_t capacity() const;
  /// Drops all positions after the first `length`. Errors (kUnsupported), only if the model has
  /// recurrent layers: their state is kept for the end of the sequence and for its length before
  /// the last step, so `length` must be one of the two, or 0.
  Status truncate(int64_t length);
  struct State;  ///< internal

 private:
  friend class Model;
  friend struct ModelAccess;  // internal
  explicit KvCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// One oracle selection, for a group of layers that differ only in their names.
struct Choice {
  std::string part;             ///< "experts", "attention", "router", "output"
  std::vector<int64_t> layers;  ///< layer indices; empty: outside the layers
  Selection selection;
};

/// The word of ModelOptions::kv_cache for ModelPlan::cache_dtype: "int8", "fp8", or the dtype's
/// name.
std::string_view kv_cache_name(DType dtype);

/// Another way to divide a model's experts among the same devices, and what the estimate says.
struct SplitEstimate {
  std::string split;   ///< "all on the CPU"
  std::string reason;  ///< what takes longer; empty: it is faster
  double tokens_per_second = 0;
};

/// What a decode step of one sequence with an empty cache takes by MemoryRates alone: bytes over
/// rate, both devices at once. Its experts are those of a generated trace whose hit rates are those
/// of published models (placement.md); the rates and the plan's sizes are all other inputs.
struct DecodeEstimate {
  double tokens_per_second = 0;
  double without_slots = 0;    ///< likewise, if the CPU computed all experts
  double hit_rate = 0;         ///< choices of experts in slots
  double read_rate = 0;        ///< choices of experts that are read from files
  int64_t crossing_bytes = 0;  ///< for each token: activations both ways, experts that move
  std::vector<SplitEstimate> others = {};
};

/// Slots of a device of ModelOptions::slot_devices.
struct SlotDevicePlan {
  DeviceName device;
  int64_t num_slots = 0;     ///< of each layer
  int64_t bytes = 0;         ///< that the model takes there
  int64_t memory_bytes = 0;  ///< of the device
};

/// Median times of the experts of a layer, from `moracle tune`.
struct ResidencyTime {
  int64_t num_tokens = 0;
  double us_packed = 0, us_folded = 0;
};

/// The choice for ModelOptions::weights.
struct ResidencyPlan {
  WeightResidency chosen = WeightResidency::kPacked;
  /// Weights and tables of all layers on this rank; 0: not planned, because of `reason`.
  int64_t packed_bytes = 0, folded_bytes = 0;
  std::string schemes = {};  ///< "int4-w4afp8-g128 as fp8-w8a8-g128-token"; empty: not planned
  std::string reason = {};
  std::vector<ResidencyTime> times = {};  ///< where both were measured
};

/// All decisions about a model that are made before a weight is read. Sizes are in bytes.
struct ModelPlan {
  std::vector<Choice> choices;        ///< each with a plan
  int64_t weight_bytes = 0;           ///< packed weights and tables, all layers
  int64_t workspace_bytes = 0;        ///< shared by all layers
  int64_t scratch_bytes = 0;          ///< kernel scratch
  int64_t activation_bytes = 0;       ///< activations between layers, including logits
  int64_t cache_bytes_per_token = 0;  ///< keys, values and scales of one position, all layers
  int64_t state_bytes = 0;            ///< state of one sequence's recurrent layers, held twice
  DType cache_dtype = DType::kF32;    ///< dtype of the keys and values
  bool bf16_attention = false;        ///< prompts' attention may multiply in bf16 on this CPU
  std::string attention_reason = {};  ///< why, if the CPU's measured rates decided
  int64_t memory_bytes = 0;           ///< total memory of the device
  /// None: ModelOptions::weights is kPacked, and nothing else is possible.
  std::optional<ResidencyPlan> residency = {};
  /// With device_memory: slots of each layer, and packed experts in host memory. -1, 0: no slots.
  int64_t num_slots = -1;
  int64_t host_bytes = 0;
  int64_t transfer_bytes = 0;  ///< for experts on their way to the device
  int64_t num_on_host = -1;    ///< experts of each layer in host memory; fewer than all: files have
                               ///< the others
  std::vector<SlotDevicePlan> slot_devices = {};
  /// None without slots, or without the rates that it needs.
  std::optional<DecodeEstimate> estimate = {};
  int64_t total_bytes() const {
    return weight_bytes + workspace_bytes + scratch_bytes + activation_bytes + transfer_bytes;
  }
};

/// Bytes of a device's memory that a model may take now: those that are free, less a reserve for
/// the driver, graphs and other programs of 1/32, at least 512 MiB; on a CPU 1/16, at least 1 GiB.
/// Drivers of OpenCL do not tell what is free: then, and on a machine other than here, all memory
/// counts as free. Errors: those of the driver; a machine without the device.
Result<int64_t> free_memory(const DeviceName& device, const Machine& machine = Machine::here());

/// Describes every tensor and selects a backend for every layer, as Model::load does. Errors: those
/// of Model::load at this stage; the model needs more memory than the device has; a pattern of
/// `backend` that matches no module.
Result<ModelPlan> plan(const Checkpoint& checkpoint, const ModelOptions& options = {},
                       const Machine& machine = Machine::here());

/// A checkpoint loaded on one device. The model opens the device itself. Several threads may call
/// one model: calls run one after another (see Device). forward and logits are separate calls, and
/// another thread's forward between them replaces the logits. Threads that use both must hold
/// device().lock() over the two calls. generate() and perplexity() need no lock.
class Model {
 public:
  /// Describes every tensor, selects a backend for every layer (see plan), then reads, packs and
  /// releases tensor by tensor. Errors: missing, extra and wrongly typed tensors, by name.
  static Result<Model> load(const Checkpoint& checkpoint, const ModelOptions& options = {});
  /// Replaces the weights with other weights of the same model, in the same memory. They are
  /// quantized as at load time. Adapters stay. All new weights are described, read, checked and
  /// packed before the first one is replaced. Until then memory holds the packed weights twice.
  /// Sequences must restart (KvCache::truncate), because the caches hold results of the old
  /// weights. Other calls on this model wait. With a group every rank calls it, each with its own
  /// checkpoint: either all ranks have the same new weights, or all keep the old ones.
  /// Errors: another architecture; other sizes, schemes or dtypes; the errors of load; memory;
  /// kCancelled. After an error the old weights stay in use, bit for bit.
  Status reload(const Checkpoint& checkpoint, const Progress& progress = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  int64_t vocab_size() const;
  int64_t max_context() const;
  int64_t max_num_tokens() const;
  int64_t weight_bytes() const;  ///< packed weights and tables, all layers
  const std::vector<Choice>& choices() const;
  /// None: loaded with WeightResidency::kPacked.
  const std::optional<ResidencyPlan>& residency() const;
  /// The ranks that run the model together; null: this process alone.
  const std::shared_ptr<Group>& group() const;
  /// The tokens that chose each expert since loading or the last reload; with ranks, those of all,
  /// but with kDispatched those of this rank. Errors: it was loaded without count_routing.
  Result<RoutingStatistics> routing_statistics() const;
  /// What the steps since loading found in slots; none without device_memory.
  PlacementCounts placement_counts() const;
  /// The device that runs the model. Hold its lock() over a forward and the logits that it gives.
  Device& device() const;

  /// A cache for at most `capacity` tokens of one sequence. Memory is allocated as tokens arrive.
  Result<KvCache> make_cache(int64_t capacity) const;

  /// Tokens of one sequence that follow the tokens in its cache.
  struct Step {
    std::span<const int32_t> tokens;
    KvCache* cache;
    int32_t adapter = -1;  ///< index into ModelOptions::adapters; -1: none
  };
  /// Runs all layers over the tokens of all steps and appends to the caches. The steps together
  /// have at most max_num_tokens() tokens. An empty list of steps and a step without tokens are
  /// allowed.
  /// Errors, with the step: ids outside the vocabulary; a cache that is missing, full, made by
  /// another model, or used by two of the steps; keys or values that an f16 cache cannot represent;
  /// kOutOfMemory if the caches reach their memory limit. After an error the caches have their
  /// previous length.
  /// With Spread::kDispatched each call is one step of all ranks, whatever tokens each of them has;
  /// it waits for the others' next forward or rest(). After an error from within a step, which the
  /// other ranks do not have, only Group::abort may follow.
  Status forward(std::span<const Step> steps);
  /// With Spread::kDispatched: takes part in the steps of the other ranks, without tokens, until
  /// every rank calls this. Call it when this rank has no more tokens. Else it does nothing.
  Status rest();
  /// Logits f32 [count, vocab_size] of the last forward's tokens [first, first + count). `count` is
  /// at most kMaxLogitRows. Valid until the next call on this model from any thread.
  Result<std::span<const float>> logits(int64_t first, int64_t count);
  static constexpr int64_t kMaxLogitRows = 64;
  /// The k largest logits of each token, in descending order. Equal logits are ordered by ascending
  /// id. NaN comes first, as in PyTorch: if the first logit is finite, none is NaN or positive
  /// infinity.
  struct TopKLogits {
    std::span<const int32_t> ids;   ///< [count, k]
    std::span<const float> logits;  ///< [count, k]
  };
  /// The top-k logits, selected on the device: a GPU transfers k values per token instead of the
  /// vocabulary. Errors: k below 1, or above vocab_size() or kMaxTopK; the errors of logits().
  Result<TopKLogits> top_k_logits(int64_t first, int64_t count, int64_t k);
  static constexpr int64_t kMaxTopK = 256;
  struct State;  ///< internal

 private:
  friend struct ModelAccess;  // internal
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Options for sampling. The filters run in this order: temperature, top_k, top_p, min_p,
/// typical_p, as in transformers.
struct SamplingOptions {
  float temperature = 0;  ///< 0: greedy, the largest logit with the lowest id
  int64_t top_k = 0;      ///< 0: off
  float top_p = 1;        ///< 1: off
  float min_p = 0;        ///< 0: off
  float typical_p = 1;    ///< 1: off; locally typical sampling
  /// XTC, after the others: with this probability, of all tokens whose probability reaches
  /// xtc_threshold only the least likely one stays. 0: off.
  float xtc_probability = 0;
  float xtc_threshold = 0.1F;
  uint64_t seed = 0;
  /// Ids that are never drawn, in ascending order: see Tokenizer::ids_without_token.
  std::vector<int32_t> excluded_ids;
};

/// Errors: values out of range, under their command-line names; excluded_ids out of order.
Status check(const SamplingOptions& options);

/// DRY: tokens that would continue a repetition of n tokens get logits lower by
/// multiplier * base^(n - allowed_length).
struct DryOptions {
  float multiplier = 0;  ///< 0: off
  float base = 1.75F;
  int64_t allowed_length = 2;   ///< shorter repetitions cost nothing
  int64_t penalty_last_n = -1;  ///< tokens that are searched, the latest ones; -1: all; 0: off
  /// A repetition ends before these ids, in ascending order, and they are never lowered.
  std::vector<int32_t> breaker_ids{};
};

/// Changes of the logits before sampling, in this order: that of transformers' processors, with
/// vLLM's penalties after the first. Greedy draws follow them, too. Ids that a model does not have
/// change nothing.
struct LogitEdits {
  std::map<int32_t, float> bias;  ///< added per id
  float repetition_penalty = 1;   ///< above 1: less likely if in the prompt or generated
  float frequency_penalty = 0;    ///< subtracted per occurrence in the generated tokens
  float presence_penalty = 0;     ///< subtracted once if among the generated tokens
  DryOptions dry{};               ///< repetitions in the prompt and the generated tokens
  /// No run of this many tokens occurs twice, in the prompt and the generated tokens; 0: off.
  int64_t no_repeat_ngram_size = 0;
  /// Runs of tokens whose last token never follows the others.
  std::vector<std::vector<int32_t>> bad_words_ids;
  int64_t min_tokens = 0;  ///< no stop id before this many generated tokens
  int64_t min_length = 0;  ///< no stop id before this many tokens, with those of the prompt
  std::vector<int32_t> suppress_tokens;        ///< never drawn
  std::vector<int32_t> begin_suppress_tokens;  ///< never drawn as the first token
  bool changes_nothing() const;
};

/// Errors: values out of range, under their names in generation_config.json.
Status check(const LogitEdits& edits);

/// Defaults from generation_config.json or a GGUF file, and end-of-text tokens of all files that
/// name some.
struct GenerationConfig {
  /// Of generation_config.json, else of config.json, and the tokenizer's own.
  std::vector<int32_t> eos_ids;
  SamplingOptions sampling;  ///< greedy unless the file sets do_sample
  LogitEdits edits;
  std::optional<int64_t> max_tokens;      ///< "max_new_tokens"
  std::vector<std::string> stop_strings;  ///< texts that end an answer
  /// What the file asks for and generate() does not do, one text each.
  std::vector<std::string> not_followed;
  /// `tokenizer` may be null. Errors: values of a wrong type or out of range.
  static Result<GenerationConfig> open(const Checkpoint& checkpoint,
                                       const Tokenizer* tokenizer = nullptr);
};

/// Speculative decoding: drafted tokens are verified in one step and accepted where the sampler
/// draws the same. Seeds, edits and filters act as without drafts, so the distribution of the text
/// is the same. With ModelOptions::deterministic the text is the same, bit for bit.
enum class Drafter : uint8_t {
  kNone,
  kNgram,  ///< the tokens that followed the text's last tokens where they occurred before
  kMtp,    ///< the model's layer for multi-token prediction; needs ModelOptions::next_tokens
  kAuto,   ///< kMtp if the model was loaded with the layer, else kNgram
};
struct Speculation {
  Drafter drafter = Drafter::kNone;
  int64_t max_drafts = 8;  ///< per step, at most kMaxDrafts
  /// Drafts only where the measured acceptance and step times gain. False: always max_drafts.
  bool adaptive = true;
  static constexpr int64_t kMaxDrafts = 32;
};
/// Parses "off", "ngram", "mtp" or "auto". Errors: any other word.
Result<Drafter> parse_drafter(std::string_view text);
/// Errors: values out of range.
Status check(const Speculation& speculation);

/// What drafts did.
struct SpeculationCounts {
  int64_t steps = 0;  ///< with drafts
  int64_t drafted = 0, accepted = 0;
  /// Time that accepted drafts saved minus the time that drafts took, by measured step times.
  double saved_seconds = 0;
};

/// A sequence that stays between calls of generate(). A prompt that begins with the same ids takes
/// less time.
struct KeptSequence {
  KvCache cache;               ///< its capacity limits a prompt and its answer together
  std::vector<int32_t> ids{};  ///< of the tokens in the cache
};

struct GenerateOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  LogitEdits edits;
  int32_t adapter = -1;  ///< see Model::Step
  /// Ids that stop generation. Empty: only max_tokens and the context length stop it.
  std::vector<int32_t> stop_ids;
  /// Called with each new id. Return false to stop.
  std::function<bool(int32_t id)> on_token;
  Progress on_prompt;  ///< in tokens of the prompt
  Speculation speculation;
  /// Continue this sequence: tokens of the prompt that it begins with are not computed again,
  /// except the last. Later it holds the prompt and the generated tokens except the last, or fewer
  /// of them after drafts of a model with recurrent layers. Use one
  /// only with one adapter, and start it again after Model::reload. Null: a new sequence.
  KeptSequence* kept = nullptr;
};

struct Generation {
  std::vector<int32_t> ids;   ///< including the stop id
  std::string stop_reason;    ///< "eos", "length", "cancelled"
  int64_t reused_tokens = 0;  ///< of the prompt, from GenerateOptions::kept
  double prompt_seconds = 0;
  double generation_seconds = 0;  ///< all tokens except the first, which the prompt's step produces
  SpeculationCounts speculation;
};

/// Continues `prompt`. With Spread::kDispatched each rank continues a prompt of its own, and calls
/// Model::rest after its last one. Errors: an empty prompt; a prompt with an excluded id, or one
/// that leaves no space in the context or in a kept sequence; edits that forbid every token; logits
/// without a valid next token (NaN or positive infinity, or only negative infinity). The last error
/// names the position and the part of the model with the first such number.
Result<Generation> generate(Model& model, std::span<const int32_t> prompt,
                            const GenerateOptions& options);

struct Perplexity {
  double perplexity = 0;
  double nll = 0;  ///< mean negative log likelihood, natural logarithm
  int64_t scored_tokens = 0;
};

/// Perplexity over non-overlapping windows of `window` tokens. Each window starts at position 0,
/// and its first token is not scored. With Spread::kDispatched all ranks pass the same ids, share
/// the windows, and get the same result. Errors: logits that are not finite, as in generate().
Result<Perplexity> perplexity(Model& model, std::span<const int32_t> ids, int64_t window,
                              const Progress& progress = {}, int32_t adapter = -1);

/// The content of a checkpoint, by part. No weight is read.
struct Outline {
  struct Part {
    std::string what;  ///< "experts", "attention", "router", "norms", "embedding", "output"
    std::vector<int64_t> layers;  ///< layer indices; empty: outside the layers
    std::string scheme;
    bool quantized = false;
    int64_t num_tensors = 0;
    int64_t bytes = 0;
  };
  std::string architecture;
  std::string producer;
  int64_t num_layers = 0, hidden_size = 0, vocab_size = 0, max_context = 0;
  int64_t num_experts = 0, top_k = 0, intermediate_size = 0;
  Routing routing;  ///< of the experts, if there are any
  int64_t bytes = 0;
  std::vector<Part> parts;
  /// The reason why the model cannot run here; empty if it can. If it cannot run, only the experts
  /// are described in detail, and all other tensors form one part.
  std::string not_runnable;
};
/// Errors: those of Model::load when it describes tensors.
Result<Outline> outline(const Checkpoint& checkpoint);

}  // namespace MORACLE_API
