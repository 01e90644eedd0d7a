// Qwen3-Next and Qwen3.5-MoE: most layers are gated DeltaNet, the others attention with gates.
// Experts beside a shared expert with a gate of its own.
#pragma once

#include "models/families/decoder_parts.h"

namespace moracle {

struct HybridMoe {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  GatedDeltaSpec delta;
  std::vector<bool> is_delta;  ///< by layer
  bool biased = false;         ///< q, k, v and o
};

/// Reads the sizes. Errors: missing or invalid values (kBadFile); other kinds of layers.
Result<HybridMoe> read_hybrid_moe(const Config& config, int64_t num_layers);

/// Describes the layer. `qkvz` and `ba` are the modules of gated DeltaNet, with their rows.
struct DeltaModules {
  std::vector<std::string> qkvz, ba;
  std::vector<int64_t> qkvz_rows, ba_rows;
};
Result<LayerDescription> describe_hybrid_layer(const Checkpoint& checkpoint, const HybridMoe& spec,
                                               int64_t layer, const DeltaModules& modules);

}  // namespace moracle
