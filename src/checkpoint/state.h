// The content of an open Checkpoint, for internal use. It does not change after opening.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/producers/producer.h"
#include "checkpoint/safetensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

struct Checkpoint::State {
  std::string folder;
  Config config;
  Tensors tensors;
  std::string producer = "plain";
  std::unique_ptr<Reader> reader;  // null if the checkpoint is plain
  std::string architecture;
  int64_t num_layers = 0;
};

/// The tensors that calls of one Checkpoint have requested, from any thread.
struct Checkpoint::Claims {
  void add(const std::set<std::string>& names) {
    const std::lock_guard lock(mutex);
    claimed.insert(names.begin(), names.end());
  }
  std::mutex mutex;
  std::set<std::string> claimed;
};

/// The tensor names of experts in one checkpoint family: {L} is the layer, {E} the expert.
struct ExpertNames {
  std::string_view experts;         ///< prefix of a layer's experts
  std::string_view gate, up, down;  ///< modules of one expert, below `experts`.{E}.
  /// One tensor per matrix holds all experts: `experts`.gate_up_proj and .down_proj. gate, up and
  /// down are empty.
  bool fused = false;
  bool transposed = false;             ///< plain fused tensors are [E, K, N]
  bool interleaved = false;            ///< rows of gate_up alternate: gate, up, gate, up
  std::string_view architecture = {};  ///< only for this architecture; empty: any
};

/// The table row whose tensors exist for this layer; nullptr if the layer has no experts.
const ExpertNames* expert_names(const Checkpoint::State& state, int64_t layer);
/// For example "model.layers.3.mlp.experts".
std::string experts_prefix(const ExpertNames& names, int64_t layer);

}  // namespace moracle
