// The content of an open Checkpoint, for internal use. It does not change after opening.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "checkpoint/config.h"
#include "checkpoint/experts/convention.h"
#include "checkpoint/producers/producer.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

struct Checkpoint::State {
  std::string folder;  ///< or the GGUF file that was opened
  Config config;       ///< of the language model: text_config, where a multimodal model wraps one
  Tensors tensors;
  std::string producer = "plain";
  std::vector<std::string> not_used = {};  ///< see Checkpoint::not_used, beside the reader's
  std::unique_ptr<Reader> reader;          // null if the checkpoint is plain
  std::string architecture;
  const ExpertConvention* convention = nullptr;  // null for an unknown family
  int64_t num_layers = 0;
  std::optional<Config> wrapper = {};  ///< the whole config.json, if `config` is a part of it
  /// A model in GGUF: its metadata, from which `config` was translated.
  std::optional<Config> gguf = {};
  /// Where the tensors of the language model are: "model.", or "model.language_model.".
  std::string root = "model.";
  std::string output = "lm_head";  ///< the output layer
};

/// The tensors that calls of one Checkpoint have requested, from any thread.
struct Checkpoint::Claims {
  void add(const std::unordered_set<std::string>& names) {
    const std::lock_guard lock(mutex);
    claimed.insert(names.begin(), names.end());
  }
  std::mutex mutex;
  std::unordered_set<std::string> claimed;
  /// Families describe the layer for multi-token prediction as a model of its own.
  bool next_tokens = false;
};

/// The names whose tensors exist for this layer: first the family's, then those that several
/// families share. nullptr if the layer has no experts.
const ExpertNames* expert_names(const Checkpoint::State& state, int64_t layer);
/// The family's convention, or the generic one.
const ExpertConvention& convention_of(const Checkpoint::State& state);
/// Where files have a layer. A layer for multi-token prediction comes after the last one of the
/// model: "model.layers.61.", in Qwen's files "mtp.layers.0.", in MiMo's "model.mtp.layers.0.".
struct LayerPlace {
  std::string root;
  int64_t number;
};
LayerPlace place_of(const Checkpoint::State& state, int64_t layer);
/// The name with {L} replaced by the layer's number, and "model." by its root.
std::string of_layer(const Checkpoint::State& state, std::string_view name, int64_t layer);
/// "model.layers.3.mlp.experts"
std::string experts_prefix(const Checkpoint::State& state, const ExpertNames& names, int64_t layer);
/// The two tensors that hold all experts, if names.fused is set.
std::string fused_gate_up(const ExpertNames& names, const std::string& experts);
std::string fused_down(const ExpertNames& names, const std::string& experts);
/// "model.layers.3.mlp.experts.0.gate_proj": for each way to name experts, the tensor searched for.
std::vector<std::string> known_expert_names(const Checkpoint::State& state, int64_t layer);
/// For a checkpoint of an unknown family: what moe_layer() took for granted about its experts, as a
/// further part of a sentence. Empty for a known family.
std::string assumptions(const Checkpoint::State& state);

}  // namespace moracle
