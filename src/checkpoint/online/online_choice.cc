// Resolves a map of patterns to a scheme, or none, for each module of a checkpoint.
#include <algorithm>
#include <set>

#include "base/named_patterns.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/online/online.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

bool is_float(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

std::string_view last_name(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

// Modules that producers do not quantize: those outside the layers (embeddings, outputs), the
// routers, the indexers of sparse attention, the gates of residual streams, tables of n-grams, and
// the outside modules that DeepSeek's extra layer repeats.
bool is_untouched(std::string_view module) {
  const std::string_view last = last_name(module);
  constexpr std::string_view kNames[] = {"gate",         "wg",  "router", "shared_expert_gate",
                                         "embed_tokens", "head"};
  return module.find(".layers.") == module.npos || module.ends_with(".router.layer") ||
         module.ends_with(".router.proj") || module.ends_with(".router.classifier") ||
         module.find(".indexer.") != module.npos || module.find(".index_") != module.npos ||
         module.find("_hyper_connection.") != module.npos ||
         module.find(".ngram_embedding") != module.npos ||
         std::find(std::begin(kNames), std::end(kNames), last) != std::end(kNames);
}

// A group key: modules with the same key must have the same scheme.
std::string together(const std::string& module) {
  const size_t experts = module.find(".experts.");
  if (experts != module.npos) return module.substr(0, experts + 8);
  const std::string_view last = last_name(module);
  const std::string parent = module.substr(0, module.size() - last.size());
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), last) != names.end();
  };
  if (is_one_of({"q_proj", "k_proj", "v_proj", "g_proj"})) return parent + "qkv";
  if (last == "gate_proj" && parent.ends_with(".self_attn.")) return parent + "qkv";
  if (is_one_of({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})) return parent + "mlp";
  if (is_one_of({"input_linear", "output_linear"})) return parent + "experts";
  if (is_one_of({"in_proj_qkv", "in_proj_z"})) return parent + "qkvz";
  if (is_one_of({"in_proj_a", "in_proj_b"})) return parent + "ba";
  return module;
}

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", "quantization", std::move(need), std::move(fact)};
}

std::string shown(const std::optional<Scheme>& scheme) {
  return scheme ? name(*scheme) : "none";
}

Status check_used(const QuantizationMap& map, const std::vector<LinearModule>& modules) {
  for (const QuantizationMap::Entry& entry : map.entries()) {
    const bool used = entry.pattern.empty() || entry.pattern == "lm_head" ||
                      std::any_of(modules.begin(), modules.end(), [&](const LinearModule& module) {
                        return matches_pattern(entry.pattern, module.name);
                      });
    if (used) continue;
    const auto example = std::find_if(modules.begin(), modules.end(),
                                      [](const LinearModule& module) { return !module.untouched; });
    return wrong(str("patterns that match a linear layer, such as '",
                     example == modules.end() ? "lm_head" : example->name, "'"),
                 "'" + entry.pattern + "' matches no linear layer in 16 or 32 bits");
  }
  return {};
}

// Tensors that hold all experts of a layer.
std::set<std::string> fused_experts(const Checkpoint& checkpoint) {
  const Checkpoint::State& state = checkpoint.state();
  std::set<std::string> tensors;
  for (const int64_t layer : checkpoint.moe_layers()) {
    const ExpertNames& names = *expert_names(state, layer);
    if (!names.fused) continue;
    const std::string experts = experts_prefix(state, names, layer);
    tensors.insert({fused_gate_up(names, experts), fused_down(names, experts)});
    if (!names.gate.empty()) tensors.insert(str(experts, ".", names.gate));
  }
  return tensors;
}

}  // namespace

Status check_plain(const Checkpoint& checkpoint) {
  const Checkpoint::State& state = checkpoint.state();
  if (state.reader == nullptr) return {};
  for (const int64_t layer : checkpoint.moe_layers()) {
    const Result<DescribedWeights> experts = checkpoint.moe_layer(layer);
    if (!experts || !experts->spec.scheme.weight.quantized()) continue;
    return already_quantized(state.folder, experts->spec.name, experts->spec.scheme_name());
  }
  return Error{ErrorKind::kUnsupported, state.folder, "quantization config",
               "unquantized weights for an online scheme", "the file is from " + state.producer};
}

std::vector<LinearModule> linear_modules(const Checkpoint& checkpoint) {
  const std::set<std::string> fused = fused_experts(checkpoint);
  constexpr std::string_view kWeight = ".weight";
  std::vector<LinearModule> modules;
  for (const auto& [tensor, entry] : checkpoint.state().tensors.all()) {
    const TensorView& view = entry.view;
    if (!is_float(view.dtype) || view.num_elements() == 0) continue;
    LinearModule module{tensor, tensor};
    module.fused = view.shape.size() == 3 &&
                   (fused.contains(tensor) || tensor.find(".experts.") != tensor.npos);
    const bool matrix = view.shape.size() == 2 && tensor.ends_with(kWeight);
    if (!matrix && !module.fused) continue;
    if (tensor.ends_with(kWeight)) module.name.resize(tensor.size() - kWeight.size());
    module.untouched = is_untouched(module.name);
    modules.push_back(std::move(module));
  }
  return modules;
}

Result<OnlineChoice> OnlineChoice::make(const Checkpoint& checkpoint, const QuantizationMap& map) {
  const bool for_all = std::any_of(map.entries().begin(), map.entries().end(),
                                   [](const auto& entry) { return entry.pattern.empty(); });
  if (for_all) MORACLE_CHECK(check_plain(checkpoint));
  OnlineChoice choice;
  choice.modules_ = linear_modules(checkpoint);
  MORACLE_CHECK(check_used(map, choice.modules_));
  std::map<std::string, const LinearModule*> first;
  for (const LinearModule& module : choice.modules_) {
    const QuantizationMap::Entry* entry = map.entry_for(module.name);
    std::optional<Scheme> scheme = entry == nullptr ? std::nullopt : entry->scheme;
    if (module.untouched && scheme && !entry->pattern.empty()) {
      return wrong(str("patterns that exclude '", module.name, "', which is never quantized (put '",
                       module.name, "=none' first)"),
                   "'" + entry->pattern + "' matches it");
    }
    if (module.untouched) scheme = {};
    const auto [other, is_new] = first.try_emplace(together(module.name), &module);
    if (!is_new && !module.untouched && choice.schemes_.at(other->second->tensor) != scheme) {
      return wrong(str("one scheme for '", other->second->name, "' and '", module.name,
                       "', because they are multiplied together"),
                   str("they would be ", shown(choice.schemes_.at(other->second->tensor)), " and ",
                       shown(scheme)));
    }
    choice.schemes_.emplace(module.tensor, scheme);
  }
  return choice;
}

Result<std::optional<Scheme>> OnlineChoice::scheme_of(const DescribedMatrix& matrix) const {
  std::optional<Scheme> scheme;
  std::string first;
  for (const std::string& tensor : matrix.tensors()) {
    const auto found = schemes_.find(tensor);
    if (found == schemes_.end()) continue;  // a bias
    if (first.empty()) {
      scheme = found->second;
      first = tensor;
    } else if (found->second != scheme) {
      return wrong(
          str("one scheme for '", first, "' and '", tensor, "', because they form one matrix"),
          str("they would be ", shown(scheme), " and ", shown(found->second)));
    }
  }
  return scheme;
}

Result<DescribedMatrix> OnlineChoice::apply(DescribedMatrix&& matrix) const {
  MORACLE_TRY(const auto scheme, scheme_of(matrix));
  if (!scheme) return std::move(matrix);
  return quantize(std::move(matrix), *scheme);
}

Result<DescribedWeights> OnlineChoice::apply(DescribedWeights&& weights) const {
  MORACLE_TRY(const auto scheme, scheme_of(weights.w13));
  MORACLE_TRY(const auto below, scheme_of(weights.w2));
  if (scheme != below) {
    return wrong("one scheme for " + weights.spec.name,
                 str("w13 would be ", shown(scheme), ", w2 ", shown(below)));
  }
  if (!scheme) return std::move(weights);
  return quantize(std::move(weights), *scheme);
}

Result<DescribedWeights> Checkpoint::moe_layer(int64_t layer, const QuantizationMap& map) const {
  if (map.empty()) return moe_layer(layer);
  MORACLE_TRY(const OnlineChoice choice, OnlineChoice::make(*this, map));
  MORACLE_TRY(DescribedWeights weights, moe_layer(layer));
  return choice.apply(std::move(weights));
}

}  // namespace moracle
