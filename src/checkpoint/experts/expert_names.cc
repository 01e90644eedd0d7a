#include <algorithm>

#include "base/text.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

// Names that several families have.
constexpr ExpertNames kSharedNames[] = {
    // The form in memory of transformers 5, and in files that were saved without conversion.
    {.experts = "model.layers.{L}.mlp.experts", .fused = true},
    {"model.layers.{L}.mlp.experts", "gate_proj", "up_proj", "down_proj"},
    // The published names, then those of llm-compressor; gptqmodel uses the names above.
    {"model.layers.{L}.block_sparse_moe.experts", "w1", "w3", "w2"},
    {"model.layers.{L}.block_sparse_moe.experts", "gate_proj", "up_proj", "down_proj"},
};
// Names and sizes that are assumed for unknown families, and reported by assumptions(). The routing
// is never assumed.
constexpr ExpertConvention kGeneric = {.intermediate_size = kOnlySizeKeys};

// True if a tensor's name starts with `prefix` and later contains `infix`. The text between may be
// anything, so that a missing tensor does not hide the existing experts.
bool has(const Tensors& tensors, const std::string& prefix, const std::string& infix) {
  for (auto it = tensors.all().lower_bound(prefix); it != tensors.all().end(); ++it) {
    if (!it->first.starts_with(prefix)) return false;
    if (it->first.find(infix, prefix.size()) != std::string::npos) return true;
  }
  return false;
}

// The first module of one expert.
std::string_view first_module(const ExpertNames& names) {
  return names.gate.empty() ? names.up : names.gate;
}

}  // namespace

LayerPlace place_of(const Checkpoint::State& state, int64_t layer) {
  if (layer >= state.num_layers) {
    if (state.tensors.find("mtp.fc.weight") != nullptr) return {"mtp.", layer - state.num_layers};
    const std::string own = state.root + "mtp.";
    if (state.tensors.find(own + "layers.0.enorm.weight") != nullptr)
      return {own, layer - state.num_layers};
  }
  return {state.root, layer};
}

std::string of_layer(const Checkpoint::State& state, std::string_view name, int64_t layer) {
  constexpr std::string_view kRoot = "model.";
  const LayerPlace place = place_of(state, layer);
  std::string text(name);
  text.replace(text.find("{L}"), 3, std::to_string(place.number));
  return text.starts_with(kRoot) ? text.replace(0, kRoot.size(), place.root) : text;
}

std::string experts_prefix(const Checkpoint::State& state, const ExpertNames& names,
                           int64_t layer) {
  return of_layer(state, names.experts, layer);
}

std::string fused_gate_up(const ExpertNames& names, const std::string& experts) {
  return str(experts, ".", names.up.empty() ? "gate_up_proj" : names.up);
}
std::string fused_down(const ExpertNames& names, const std::string& experts) {
  return str(experts, ".", names.down.empty() ? "down_proj" : names.down);
}

const ExpertNames* expert_names(const Checkpoint::State& state, int64_t layer) {
  auto exist = [&](const ExpertNames& names) {
    const std::string experts = experts_prefix(state, names, layer);
    return names.fused ? has(state.tensors, fused_gate_up(names, experts), "")
                       : has(state.tensors, experts + ".", str(".", first_module(names), "."));
  };
  for (const std::span<const ExpertNames> names :
       {convention_of(state).names, std::span<const ExpertNames>(kSharedNames)}) {
    const auto found = std::find_if(names.begin(), names.end(), exist);
    if (found != names.end()) return &*found;
  }
  return nullptr;
}

std::vector<std::string> known_expert_names(const Checkpoint::State& state, int64_t layer) {
  std::vector<std::string> known;
  for (const std::span<const ExpertNames> names :
       {convention_of(state).names, std::span<const ExpertNames>(kSharedNames)}) {
    for (const ExpertNames& one : names) {
      const std::string experts = experts_prefix(state, one, layer);
      const std::string name =
          one.fused ? fused_gate_up(one, experts) : str(experts, ".0.", first_module(one));
      const std::string tensor = one.fused ? name : name + ".weight";
      const std::string shown = state.tensors.shown(tensor);
      if (!state.gguf) known.push_back(name);
      if (state.gguf && shown != tensor) known.push_back(shown);
    }
  }
  return known;
}

const ExpertConvention& convention_of(const Checkpoint::State& state) {
  return state.convention != nullptr ? *state.convention : kGeneric;
}

}  // namespace moracle
