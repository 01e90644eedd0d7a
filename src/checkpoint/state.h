// What an open Checkpoint holds, for the rooms above: it does not change after opening.
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
  std::unique_ptr<Reader> reader;  // nothing where the checkpoint is plain
  std::string architecture;
  int64_t num_layers = 0;
};

/// Tensors that the calls of one Checkpoint have asked for, from any thread.
struct Checkpoint::Claims {
  void add(const std::set<std::string>& names) {
    const std::lock_guard lock(mutex);
    claimed.insert(names.begin(), names.end());
  }
  std::mutex mutex;
  std::set<std::string> claimed;
};

/// How one family of checkpoints names its experts: {L} and {E} stand for layer and expert.
struct ExpertNames {
  std::string_view experts;         ///< prefix of one layer's experts
  std::string_view gate, up, down;  ///< modules of one expert, below `experts`.{E}.
  /// All experts in one tensor each: `experts`.gate_up_proj and .down_proj; gate, up, down are
  /// empty.
  bool fused = false;
  bool transposed = false;             ///< plain fused tensors are [E, K, N]
  bool interleaved = false;            ///< rows of gate_up alternate: gate, up, gate, up
  std::string_view architecture = {};  ///< only this one; empty: any
};

/// The row whose tensors exist for this layer; nullptr where the layer holds no experts.
const ExpertNames* expert_names(const Checkpoint::State& state, int64_t layer);
/// "model.layers.3.mlp.experts"
std::string experts_prefix(const ExpertNames& names, int64_t layer);

}  // namespace moracle
