#include "models/families/latent/deepseek_v4_names.h"

#include <utility>
#include <vector>

namespace moracle {
namespace deepseek_v4_names {
namespace {

using Part = std::pair<std::string_view, std::string_view>;

// Whole names without "model.".
constexpr Part kNames[] = {
    {"embed.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
    {"head.scale", "lm_head.weight_scale_inv"},
    {"hc_head_fn", "model.hc_head.hc_fn"},
    {"hc_head_base", "model.hc_head.hc_base"},
    {"hc_head_scale", "model.hc_head.hc_scale"},
};
// Parts of names inside a layer, between dots.
constexpr Part kParts[] = {
    {"attn", "self_attn"},
    {"ffn", "mlp"},
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"hc_attn_fn", "attn_hc.fn"},
    {"hc_attn_base", "attn_hc.base"},
    {"hc_attn_scale", "attn_hc.scale"},
    {"hc_ffn_fn", "ffn_hc.fn"},
    {"hc_ffn_base", "ffn_hc.base"},
    {"hc_ffn_scale", "ffn_hc.scale"},
    {"attn_sink", "sinks"},
    {"norm", "kv_norm"},
    {"q_norm", "q_a_norm"},
    {"ape", "position_bias"},
    {"wq_a", "q_a_proj"},
    {"wq_b", "q_b_proj"},
    {"wkv", "kv_proj"},
    {"wgate", "gate_proj"},
    {"wo_a", "o_a_proj"},
    {"wo_b", "o_b_proj"},
    {"w1", "gate_proj"},
    {"w3", "up_proj"},
    {"w2", "down_proj"},
};

std::vector<std::string_view> split(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t dot; (dot = name.find('.')) != name.npos; name.remove_prefix(dot + 1))
    parts.push_back(name.substr(0, dot));
  parts.push_back(name);
  return parts;
}

// Part i of a name inside a layer.
std::string name_of(const std::vector<std::string_view>& parts, size_t i) {
  const std::string_view part = parts[i], before = i > 0 ? parts[i - 1] : "";
  const std::string_view after = i + 1 < parts.size() ? parts[i + 1] : "";
  // Published files have the indexer beside the compressor of the layer, and its own inside it.
  const bool beside = part == "indexer" && before != "compressor";
  if (beside && after == "weights_proj") return "compressor.indexer.scorer";
  if (beside) return "compressor.indexer";
  if (part == "compressor" && before == "indexer") return "";
  const bool last = after.empty();
  if (last && part == "bias" && before == "gate") return "e_score_correction_bias";
  if (last && part == "scale" && !before.ends_with("_hc")) return "weight_scale_inv";
  for (const auto& [stored, own] : kParts) {
    if (part == stored) return std::string(own);
  }
  return std::string(part);
}

}  // namespace
}  // namespace deepseek_v4_names

std::string deepseek_v4_name(std::string_view stored) {
  using namespace deepseek_v4_names;
  constexpr std::string_view kRoot = "model.", kLayers = "layers.";
  std::string_view name = stored;
  if (name.starts_with(kRoot)) name.remove_prefix(kRoot.size());
  for (const auto& [from, to] : kNames) {
    if (name == from) return std::string(to);
  }
  if (!name.starts_with(kLayers)) return std::string(stored);
  const std::vector<std::string_view> parts = split(name);
  std::string own = "model";
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = name_of(parts, i);
    if (!part.empty()) own += "." + part;
  }
  return own;
}

}  // namespace moracle
