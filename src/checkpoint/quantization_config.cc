// Builds the quantization section of the written config.json, in the keys of each format's readers.
#include <algorithm>
#include <set>

#include "base/text.h"
#include "checkpoint/write/stored_form.h"

namespace moracle {
namespace {

using Json = nlohmann::ordered_json;

// compressed-tensors' QuantizationArgs for one operand.
Json arguments(const QuantKey& key, bool weight) {
  const bool mx = key.scale_dtype == DType::kF8E8M0;
  const GroupShape group = key.group;
  std::string strategy = "group";
  Json block = nullptr, size = nullptr;
  if (group == GroupShape{}) {
    strategy = "tensor";
  } else if (group == kPerRow) {
    strategy = weight ? "channel" : "token";
  } else if (group.rows > 1) {
    strategy = "block";
    block = {group.rows, group.cols};
  } else {
    size = group.cols;
  }
  const Json exponents = mx ? Json("torch.uint8") : Json(nullptr);
  return {{"actorder", nullptr},
          {"block_structure", block},
          {"dynamic", key.dynamic},
          {"group_size", size},
          {"num_bits", bits(key.dtype)},
          {"observer", nullptr},
          {"observer_kwargs", Json::object()},
          {"scale_dtype", exponents},
          {"strategy", strategy},
          {"symmetric", true},
          {"type", key.dtype == DType::kI8 ? "int" : "float"},
          {"zp_dtype", exponents}};
}

std::string ct_format(const Scheme& scheme) {
  if (scheme.weight.scale_dtype == DType::kF8E8M0) return "mxfp8-quantized";
  if (scheme.weight.dtype == DType::kF8E4M3) return "float-quantized";
  return scheme.activation ? "int-quantized" : "pack-quantized";
}

// Fused experts are listed under the name of their tensor and the name of the module around it.
void add_name(const StoredModule& module, std::set<std::string>& names) {
  names.insert(module.name);
  if (module.fused) names.insert(module.name.substr(0, module.name.rfind('.')));
}

std::set<std::string> left_out(const std::vector<StoredModule>& modules, bool embeddings) {
  std::set<std::string> names = {"lm_head"};  // also if it is tied and has no tensor
  for (const StoredModule& module : modules) {
    const bool embedding = module.name.ends_with("embed_tokens");
    if (!module.scheme && (embeddings || !embedding)) add_name(module, names);
  }
  return names;
}

Json compressed_tensors_config(const std::vector<StoredModule>& modules) {
  std::vector<Scheme> schemes;
  for (const StoredModule& module : modules) {
    const bool is_new =
        module.scheme && std::find(schemes.begin(), schemes.end(), *module.scheme) == schemes.end();
    if (is_new) schemes.push_back(*module.scheme);
  }
  Json groups = Json::object();
  std::set<std::string> formats;
  for (size_t i = 0; i < schemes.size(); ++i) {
    const Scheme& scheme = schemes[i];
    Json targets = Json::array();
    if (schemes.size() == 1) {
      targets.push_back("Linear");
    } else {
      for (const StoredModule& module : modules) {
        if (module.scheme == scheme) targets.push_back(module.name);
      }
    }
    formats.insert(ct_format(scheme));
    groups[str("group_", i)] = {
        {"format", ct_format(scheme)},
        {"input_activations",
         scheme.activation ? arguments(*scheme.activation, false) : Json(nullptr)},
        {"output_activations", nullptr},
        {"targets", targets},
        {"weights", arguments(scheme.weight, true)}};
  }
  return {{"config_groups", groups},
          {"format", formats.size() == 1 ? *formats.begin() : "mixed-precision"},
          {"global_compression_ratio", nullptr},
          {"ignore", left_out(modules, false)},
          {"kv_cache_scheme", nullptr},
          {"quant_method", name(WriteFormat::kCompressedTensors)},
          {"quantization_status", "compressed"}};
}

}  // namespace

Json quantization_config(WriteFormat format, const std::vector<StoredModule>& modules) {
  switch (format) {
    case WriteFormat::kFp8:
      return {{"activation_scheme", "dynamic"},
              {"fmt", "e4m3"},
              {"modules_to_not_convert", left_out(modules, true)},
              {"quant_method", name(format)},
              {"weight_block_size", {128, 128}}};
    case WriteFormat::kModelOpt:
      return {{"ignore", left_out(modules, true)},
              {"quant_algo", "MXFP8"},
              {"producer", {{"name", "moracle"}}},
              {"quant_method", name(format)}};
    default:
      return compressed_tensors_config(modules);
  }
}

}  // namespace moracle
