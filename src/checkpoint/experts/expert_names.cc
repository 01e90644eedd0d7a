#include "base/text.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

constexpr ExpertNames kExpertNames[] = {
    {.experts = "model.layers.{L}.mlp.experts",
     .fused = true,
     .transposed = true,
     .interleaved = true,
     .architecture = "GptOssForCausalLM"},
    // The form in memory of transformers 5, and in files that were saved without conversion.
    {.experts = "model.layers.{L}.mlp.experts", .fused = true},
    // Qwen, DeepSeek
    {"model.layers.{L}.mlp.experts", "gate_proj", "up_proj", "down_proj"},
    // Mixtral: the published names, then those of llm-compressor; gptqmodel uses the names above
    {"model.layers.{L}.block_sparse_moe.experts", "w1", "w3", "w2"},
    {"model.layers.{L}.block_sparse_moe.experts", "gate_proj", "up_proj", "down_proj"},
};

// True if a tensor's name starts with `prefix` and later contains `part`. The text between may be
// anything, so that a missing tensor does not hide the existing experts.
bool has(const Tensors& tensors, const std::string& prefix, const std::string& part) {
  for (auto it = tensors.all().lower_bound(prefix); it != tensors.all().end(); ++it) {
    if (!it->first.starts_with(prefix)) return false;
    if (it->first.find(part, prefix.size()) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::string experts_prefix(const ExpertNames& names, int64_t layer) {
  std::string prefix(names.experts);
  return prefix.replace(prefix.find("{L}"), 3, std::to_string(layer));
}

const ExpertNames* expert_names(const Checkpoint::State& state, int64_t layer) {
  for (const ExpertNames& names : kExpertNames) {
    if (!names.architecture.empty() && names.architecture != state.architecture) continue;
    const std::string experts = experts_prefix(names, layer);
    if (names.fused ? has(state.tensors, experts + ".gate_up_proj", "")
                    : has(state.tensors, experts + ".", str(".", names.gate, "."))) {
      return &names;
    }
  }
  return nullptr;
}

}  // namespace moracle
