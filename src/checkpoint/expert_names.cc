#include "base/text.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {
constexpr ExpertNames kExpertNames[] = {
    // Qwen, DeepSeek
    {"model.layers.{L}.mlp.experts", "gate_proj", "up_proj", "down_proj"},
};
}  // namespace

std::string experts_prefix(const ExpertNames& names, int64_t layer) {
  std::string prefix(names.experts);
  return prefix.replace(prefix.find("{L}"), 3, std::to_string(layer));
}

const ExpertNames* expert_names(const Tensors& tensors, int64_t layer) {
  for (const ExpertNames& names : kExpertNames) {
    const std::string prefix = experts_prefix(names, layer) + ".";
    const auto it = tensors.all().lower_bound(prefix);
    if (it != tensors.all().end() && it->first.starts_with(prefix)) return &names;
  }
  return nullptr;
}

}  // namespace moracle
