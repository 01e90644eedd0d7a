// Times a decode step and a prompt, and each part of them: of a checkpoint, or of a model with a
// published shape, a few layers and random weights.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/speculate.h"
#include "models/description.h"
#include "moracle/checkpoint.h"
#include "moracle/model.h"

namespace moracle::bench {

/// MLA sizes (see LatentSpec); no head gets RoPE on all its columns.
struct LatentShape {
  int64_t q_rank = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0, value_dim = 0;
  IndexerSpec indexer = {};   ///< if top_k is set
  int64_t indexer_every = 1;  ///< one layer of so many has an indexer, the next ones share
};

/// Gated DeltaNet (see GatedDeltaSpec) in all layers but the last of every `interval`, whose
/// attention has gates in its queries.
struct DeltaShape {
  int64_t interval = 0, num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0,
          kernel = 0;
  bool by_key_head = false;
};

/// Sizes of a decoder. Its experts are those of the layer shape with the same name.
struct ModelShape {
  std::string name;
  int64_t num_layers = 0, vocab_size = 0, max_context = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  double rope_theta = 10'000;
  bool head_norms = false;        ///< on q and k
  bool renormalize = false;       ///< the router's weights
  SamplingOptions sampling = {};  ///< as its publisher recommends
  Score score = Score::kSoftmax;  ///< of the router
  bool biases = false;            ///< of attention's linear layers and the router
  int64_t window = 0;             ///< window of every other layer, starting with the first; 0: none
  bool sinks = false;             ///< one per head
  LatentShape latent = {};        ///< if kv_rank is set: MLA instead of GQA
  int64_t shared_size = 0;        ///< rows of gate or up of a shared expert; 0: none
  bool shared_gate = false;       ///< the shared expert has a weight for each token
  DeltaShape delta = {};          ///< if interval is set
  double partial_rotary_factor = 1;  ///< of a head's columns, those that RoPE rotates
};
std::span<const ModelShape> known_models();
/// Errors: an unknown shape, listing the known ones.
Result<ModelShape> find_model(std::string_view name);

/// A trace for the model's layers and experts, as persistent as published ones.
inline constexpr const char* kGeneratedTrace = "generated";

struct DecodeOptions {
  int64_t context = 4096;              ///< tokens in the cache
  std::vector<int64_t> batches = {1};  ///< sequences that decode side by side, at most 64
  int64_t prompt = 0;  ///< prompt tokens of each sequence for prefill; 0: no prefill is timed
  double seconds = 1;  ///< time to decode
  ModelOptions model;  ///< backend, device, threads; `progress` is also called while decoding
  /// The experts that tokens of decode steps choose, one step of the trace each, from the start
  /// again after its end; layers likewise: a file, or kGeneratedTrace. Empty: the router chooses.
  std::string routing_trace;
  SpeculateOptions speculate;
};

/// Random weights.
struct RandomModelOptions {
  Scheme scheme;                      ///< of the experts and of the attention's linear layers
  Scheme output = {kBF16Weight, {}};  ///< of the output layer
  int64_t num_layers = 2;             ///< number of layers to build
  int64_t most_bytes = 0;             ///< memory that the weights may fill
};

/// One part of a step.
struct DecodePart {
  std::string name;  ///< "attention linears", "attention", "norms", "router", "experts",
                     ///< "shared expert" where there is one, "embedding", "output", "sampling"
  double us = 0;     ///< median over the steps
  bool per_layer = false;  ///< its time grows with the number of layers
};

/// What the simulator says about steps with experts in slots.
struct PredictedSlots {
  double hit_rate = 0;
  double us = 0;  ///< of a step
};

struct Decode {
  int64_t num_layers = 0, all_layers = 0, context = 0, steps = 0;
  int64_t batch = 1;                             ///< tokens of a step, one of each sequence
  int64_t num_experts = 0, experts_touched = 0;  ///< of a layer; by the last timed step's tokens
  int64_t weight_bytes = 0;
  DType cache_dtype = DType::kF32;
  double us_median = 0, us_min = 0;  ///< of a step; on a GPU, with its parts enqueued one by one
  double us_replayed = 0;            ///< median of a step that is a graph; 0: the device has none
  int64_t prompt_tokens = 0;         ///< prefilled tokens, in steps of max_num_tokens
  double us_prompt = 0;              ///< for all of them
  std::vector<DecodePart> parts;     ///< in the order of a step
  PlacementCounts placed = {};  ///< in the steps of us_replayed, or of us_median without graphs
  int64_t num_slots = -1;       ///< of each layer; -1: all experts lie on the device
  std::optional<PredictedSlots> predicted = {};  ///< with a trace and one sequence
  std::vector<DecodePart> prompt_parts;          ///< likewise, of all prefill steps
  std::vector<Choice> choices;
  std::optional<Speculated> speculated;  ///< with DecodeOptions::speculate, of one sequence
  /// Time of a step with all layers of the model, from the parts.
  double us_all_layers() const;
  double us_all_layers(const std::vector<DecodePart>& of) const;
  /// Same from the time of a whole step, shared out as among the parts.
  double us_all_layers(double us) const;
  double us_all_layers(const DecodePart& part) const {
    return part.per_layer
               ? part.us * static_cast<double>(all_layers) / static_cast<double>(num_layers)
               : part.us;
  }
};

/// Builds the model. For each batch, fills caches with random keys and values, different for each
/// sequence. Then decodes one random token of each sequence at a time at that context. Prompts are
/// random tokens, too. Embedding and router are bf16, as in published files. Errors: a
/// context or a batch that the model does not have; more than `most_bytes`; those of Model::load.
Result<std::vector<Decode>> decode(const ModelShape& shape, const RandomModelOptions& weights,
                                   const DecodeOptions& options);
/// The same with the weights of a checkpoint. All its layers are built.
Result<std::vector<Decode>> decode(const Checkpoint& checkpoint, const DecodeOptions& options);

}  // namespace moracle::bench
