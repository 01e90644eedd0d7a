#include "checkpoint/kv_scales.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/state.h"

namespace moracle {
namespace kv_scales {
namespace {

enum class Role { kNone, kKey, kValue, kBoth, kUnused };

// The role of a tensor by its name below the attention. Names as published: k_scale,
// k_proj.k_scale (ModelOpt), attn.k_scale (vLLM), k_proj.output_scale and kv_scale (older files).
Role role_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view module = dot == name.npos ? "" : name.substr(0, dot);
  const std::string_view last = dot == name.npos ? name : name.substr(dot + 1);
  if (!module.empty() && !module.ends_with("_proj") && !module.ends_with("attn"))
    return Role::kNone;
  if (last == "k_scale" || name == "k_proj.output_scale") return Role::kKey;
  if (last == "v_scale" || name == "v_proj.output_scale") return Role::kValue;
  if (last == "kv_scale") return Role::kBoth;
  for (const std::string_view unused : {"q_scale", "prob_scale", "prob_output_scale",
                                        "q_zero_point", "k_zero_point", "v_zero_point"}) {
    if (last == unused) return Role::kUnused;
  }
  return name == "q_proj.output_scale" ? Role::kUnused : Role::kNone;
}

bool is_fp8(const nlohmann::json& value) {
  if (value.is_object()) {
    const auto bits = value.find("num_bits"), type = value.find("type");
    return bits != value.end() && *bits == 8 && type != value.end() && *type == "float";
  }
  if (!value.is_string()) return false;
  std::string text = value.get<std::string>();
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text.starts_with("FP8") || text == "STATIC";  // the latter of AutoFP8
}

// The first scale of keys or values in the file; empty: there is none.
std::string first_scale(const Tensors& tensors) {
  for (const auto& [name, entry] : tensors.all()) {
    for (const std::string_view attention : {".self_attn.", ".mixer."}) {
      const size_t at = name.find(attention);
      if (at == name.npos) continue;
      const Role role = role_of(std::string_view(name).substr(at + attention.size()));
      if (role != Role::kNone && role != Role::kUnused) return name;
    }
  }
  return "";
}

}  // namespace
}  // namespace kv_scales

Result<KvScales> read_kv_scales(const Checkpoint& checkpoint, const std::string& prefix) {
  using kv_scales::Role;
  const Tensors& tensors = checkpoint.state().tensors;
  KvScales scales;
  std::vector<float> both;
  for (auto at = tensors.all().lower_bound(prefix);
       at != tensors.all().end() && at->first.starts_with(prefix); ++at) {
    const Role role = kv_scales::role_of(std::string_view(at->first).substr(prefix.size()));
    if (role == Role::kNone) continue;
    MORACLE_CHECK(checkpoint.tensor(at->first));
    if (role == Role::kUnused) continue;
    auto& to = role == Role::kKey ? scales.keys : role == Role::kValue ? scales.values : both;
    MORACLE_TRY(to, read_scales(tensors, at->first));
  }
  if (scales.keys.empty()) scales.keys = both;
  if (scales.values.empty()) scales.values = both;
  return scales;
}

std::vector<std::string> unused_kv_cache(const Tensors& tensors, const Config* quantization) {
  const std::string scale = kv_scales::first_scale(tensors);
  for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"}) {
    const nlohmann::json* const value = quantization ? quantization->find({key}) : nullptr;
    if (value == nullptr || value->empty()) continue;
    const std::string place = quantization->field({key}).place();
    if (!kv_scales::is_fp8(*value))
      return {str("the type of keys and values (", place, ": ", JsonField::shown(*value),
                  "); kv_cache decides it")};
    return {str("FP8 keys and values (", place, "), unless kv_cache is fp8, with ",
                scale.empty() ? "scale 1: the file has none" : "the scales of the file")};
  }
  if (scale.empty()) return {};
  return {str("scales of FP8 keys and values (", scale, " …), unless kv_cache is fp8")};
}

}  // namespace moracle
