// NVIDIA ModelOpt. config.json has flat keys (quant_algo, ignore). hf_quant_config.json has keys
// below "quantization" (quant_algo, exclude_modules). Weights are e4m3 [N, K], except for NVFP4:
//   MXFP8                      weight_scale u8 [N, K/32], exponents
//   FP8                        weight_scale f32 [], input_scale f32 []
//   FP8_PER_CHANNEL_PER_TOKEN  weight_scale f32 [N]
//   FP8_PB_WO                  weight_scale f32 [N/128, 1, K/128, 1] or [N/128, K/128], or
//                              weight_scale_inv; served with activations by token and group of 128
//   NVFP4, W4A16_NVFP4         weight u8 [N, K/2], two e2m1 codes per byte; weight_scale e4m3 [N,
//   K/16];
//                              weight_scale_2 f32 [], which multiplies; input_scale, unused:
//                              activations stay floats
#include <fnmatch.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/fp4_matrix.h"
#include "checkpoint/producers/fp8_matrix.h"

namespace moracle {
namespace {

struct Algorithm {
  std::string_view name;
  Scheme scheme;
  bool drops_activations = false;  // it quantizes activations to 4 bits
};
constexpr Algorithm kAlgorithms[] = {
    {"FP8", {kFp8StaticTensorSym, kFp8StaticTensorSym}},
    {"FP8_PER_CHANNEL_PER_TOKEN", {kFp8StaticChannelSym, kFp8DynamicTokenSym}},
    {"FP8_PB_WO", {kFp8Static128BlockSym, kFp8Dynamic128Sym}},
    {"FP8_BLOCK_SCALES", {kFp8Static128BlockSym, kFp8Dynamic128Sym}},
    {"MXFP8", {kMxfp8Static, kMxfp8Dynamic}},
    {"NVFP4", {kNvfp4Static, {}}, true},
    {"W4A16_NVFP4", {kNvfp4Static, {}}},
};

// True if `text` is a sequence of whole dot-separated names: "mlp.gate" does not match
// "mlp.gate_proj".
bool holds(const std::string& module, const std::string& text) {
  return !text.empty() && str(".", module, ".").find(str(".", text, ".")) != std::string::npos;
}

class ModelOptReader : public Reader {
 public:
  ModelOptReader(const Algorithm& algorithm, std::vector<std::string> excluded)
      : scheme_(algorithm.scheme), excluded_(std::move(excluded)) {
    if (algorithm.drops_activations)
      not_used_.push_back(unused_4bit_activations(str("quant_algo ", algorithm.name)));
  }

  Says says(const std::string& module) const override {
    const auto excludes = [&](const std::string& text) {
      return holds(module, text) || ::fnmatch(text.c_str(), module.c_str(), FNM_NOESCAPE) == 0;
    };
    return std::any_of(excluded_.begin(), excluded_.end(), excludes) ? Says::kPlain
                                                                     : Says::kNothing;
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return stores_fp8(tensors, module, scale_name(tensors, module));
  }
  std::string expected(const std::string& module) const override {
    return module + ".{weight,weight_scale}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    if (scheme_.weight == kNvfp4Static) {
      return describe_fp4(tensors, module,
                          {.weight = kNvfp4Static,
                           .codes = "weight",
                           .global = "weight_scale_2",
                           .unused = "input_scale"});
    }
    return describe_fp8(tensors, module, {.scheme = scheme_, .scale = scale_name(tensors, module)});
  }
  std::vector<std::string> not_used() const override { return not_used_; }

 private:
  // Block scales may also have DeepSeek's name.
  std::string scale_name(const Tensors& tensors, const std::string& module) const {
    const bool has_inv = tensors.find(module + ".weight_scale_inv") != nullptr;
    return has_inv && scheme_.weight.group.rows > 1 ? "weight_scale_inv" : "weight_scale";
  }

  Scheme scheme_;
  std::vector<std::string> excluded_, not_used_;
};

Result<std::unique_ptr<Reader>> open_flat(const Config& config) {
  MORACLE_TRY(const std::string text, config.text({"quant_algo"}));
  std::string upper = text;  // some versions write FP8_PB_WO in lower case
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto* algorithm = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                                       [&](const Algorithm& a) { return a.name == upper; });
  if (algorithm == std::end(kAlgorithms)) {
    std::vector<std::string_view> known;
    for (const Algorithm& a : kAlgorithms) known.push_back(a.name);
    return config.unsupported({"quant_algo"}, "one of " + join(known), "it is " + text);
  }
  const int64_t group = algorithm->scheme.weight.group.cols;
  MORACLE_TRY(const int64_t stated, config.integer_or(0, {"group_size"}));
  if (group != GroupShape::kAll && stated != 0 && stated != group) {
    return config.unsupported({"group_size"}, str(group, ", as ", algorithm->name, " has it"),
                              str("it is ", stated));
  }
  for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"}) {
    if (!config.has({key})) continue;
    return config.unsupported({key}, "null, because Moracle does not quantize the KV cache",
                              "it is " + JsonField::shown(*config.find({key})));
  }
  if (config.has({"quantized_layers"}) && !config.find({"quantized_layers"})->empty()) {
    return config.unsupported({"quantized_layers"}, "one algorithm for all layers",
                              "it is " + JsonField::shown(*config.find({"quantized_layers"})));
  }
  MORACLE_TRY(std::vector<std::string> excluded, config.texts({"ignore", "exclude_modules"}));
  return std::unique_ptr<Reader>(new ModelOptReader(*algorithm, std::move(excluded)));
}

Result<std::unique_ptr<Reader>> open_modelopt(const Config& config) {
  MORACLE_TRY(const auto nested, config.object({"quantization"}));
  return open_flat(nested ? *nested : config);
}

}  // namespace

constinit const Producer kModelOptProducer{
    .name = "modelopt", .open = open_modelopt, .config_file = "hf_quant_config.json"};

}  // namespace moracle
