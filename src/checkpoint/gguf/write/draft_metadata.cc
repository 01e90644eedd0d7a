#include "checkpoint/gguf/write/draft_metadata.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace draft_metadata {
namespace {

using nlohmann::json;

// Endings of keys whose value llama.cpp reads as f32, even if config.json has an integer.
constexpr std::string_view kFloatKeys[] = {
    "epsilon",       "rope.freq_base",         "rope.freq_base_swa", "rope.scaling.factor",
    "attn_factor",   "yarn_beta_fast",         "yarn_beta_slow",     "yarn_log_multiplier",
    "weights_scale", "attention.scale",        "embedding_scale",    "residual_scale",
    "logit_scale",   "final_logit_softcapping"};

bool is_float_key(std::string_view key) {
  return std::any_of(std::begin(kFloatKeys), std::end(kFloatKeys),
                     [&](std::string_view end) { return key.ends_with(end); });
}

class Draft {
 public:
  Draft(const Config& config, const std::optional<Config>& rope, const ExpertConvention& family,
        const GgufConvention& gguf)
      : config_(config), rope_(rope), family_(family), gguf_(gguf) {}

  json run(int64_t num_layers) {
    metadata_["general.architecture"] = gguf_.architecture;
    metadata_[full("block_count")] = num_layers;
    std::vector<std::span<const GgufKey>> tables = {gguf_.keys, kGgufDecoderKeys};
    if (gguf_.usual_heads) tables.push_back(kGgufHeadKeys);
    for (const std::span<const GgufKey> table : tables) {
      for (const GgufKey& key : table) {
        if (seen_.insert(key.from).second) add(key);
      }
    }
    // llama.cpp requires it for every architecture.
    constexpr GgufKey kFeedForward = {"feed_forward_length", "intermediate_size", false};
    if (!metadata_.contains(full(kFeedForward.from))) add(kFeedForward);
    return std::move(metadata_);
  }

 private:
  std::string full(std::string_view key) const { return str(gguf_.architecture, ".", key); }

  void add(const GgufKey& key) {
    const std::string place(key.to);
    json value = value_of(place);
    if (value.is_null()) return;
    // An array with one number for each layer.
    const bool equal = value.is_array() && !value.empty() &&
                       std::all_of(value.begin(), value.end(), [&](const json& one) {
                         return one.is_number() && one == value[0];
                       });
    if (equal) value = json(value[0]);
    if (value.is_number() && is_float_key(key.from)) value = value.get<double>();
    metadata_[full(key.from)] = std::move(value);
  }

  json value_of(const std::string& place) const {
    constexpr std::string_view kScaling = "rope_scaling.";
    if (place.starts_with(kScaling)) return scaling(place.substr(kScaling.size()));
    if (place == "rope_theta" && rope_ && rope_->has({"rope_theta"}))
      return *rope_->find({"rope_theta"});
    if (place == "num_experts") return first_of(family_.num_experts, place);
    if (place == "num_experts_per_tok") return first_of(family_.top_k, place);
    if (place == "moe_intermediate_size") return first_of(family_.intermediate_size, place);
    if (place == "n_shared_experts") {
      constexpr const char* kOther[] = {"num_shared_experts"};
      return first_of(kOther, place);
    }
    const size_t dot = place.find('.');
    const json* at = config_.find({place.substr(0, dot).c_str()});
    for (std::string_view rest = dot == place.npos ? "" : std::string_view(place).substr(dot + 1);
         at != nullptr && !rest.empty();) {
      const size_t end = std::min(rest.find('.'), rest.size());
      const auto found = at->find(std::string(rest.substr(0, end)));
      at = found == at->end() ? nullptr : &*found;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return at == nullptr ? json() : *at;
  }

  json first_of(ConfigKeys keys, const std::string& place) const {
    Config::Keys all = {place.c_str()};
    all.insert(all.end(), keys.begin(), keys.end());
    const json* const value = config_.find(all);
    return value == nullptr ? json() : *value;
  }

  // llama.cpp has no names for other kinds: their frequencies are a tensor.
  json scaling(const std::string& key) const {
    if (!rope_) return {};
    const json* const type = rope_->find({"rope_type", "type"});
    const bool named =
        type != nullptr && (*type == "linear" || *type == "yarn" || *type == "longrope");
    if (!named) return {};
    if (key == "rope_type") return *type;
    const json* value = rope_->find({key.c_str()});
    // Older configs have the key outside the rotary settings. That value takes precedence.
    if (key == "original_max_position_embeddings" && config_.has({key.c_str()}))
      value = config_.find({key.c_str()});
    return value == nullptr ? json() : *value;
  }

  const Config& config_;
  const std::optional<Config>& rope_;
  const ExpertConvention& family_;
  const GgufConvention& gguf_;
  std::set<std::string_view> seen_;
  json metadata_ = json::object();
};

}  // namespace
}  // namespace draft_metadata

nlohmann::json draft_gguf_metadata(const Config& config, const std::optional<Config>& rope,
                                   const ExpertConvention& family, const GgufConvention& gguf,
                                   int64_t num_layers) {
  return draft_metadata::Draft(config, rope, family, gguf).run(num_layers);
}

Status require_gguf_keys(const nlohmann::json& metadata, const Config& config,
                         const GgufConvention& gguf) {
  std::set<std::string_view> seen;
  for (const std::span<const GgufKey> table :
       {gguf.keys, std::span<const GgufKey>(kGgufDecoderKeys)}) {
    for (const GgufKey& key : table) {
      const std::string full = str(gguf.architecture, ".", key.from), place(key.to);
      if (!seen.insert(key.from).second || !key.required || metadata.contains(full)) continue;
      return config.unsupported({place.c_str()}, "a value, for GGUF's " + full, "it is missing");
    }
  }
  return {};
}

}  // namespace moracle
