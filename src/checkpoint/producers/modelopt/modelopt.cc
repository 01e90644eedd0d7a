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
// MIXED_PRECISION: quantized_layers gives an algorithm to each module, or to a module around it.
#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/fp4_matrix.h"
#include "checkpoint/producers/fp8_matrix.h"
#include "checkpoint/producers/modelopt/modelopt_layers.h"

namespace moracle {
namespace modelopt {
namespace {

constexpr std::string_view kMixed = "MIXED_PRECISION";

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

// Some versions write FP8_PB_WO in lower case. nullptr: not one of them.
const Algorithm* find_algorithm(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto* found = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                                   [&](const Algorithm& a) { return a.name == upper; });
  return found == std::end(kAlgorithms) ? nullptr : found;
}

std::string known_algorithms() {
  std::vector<std::string_view> known;
  for (const Algorithm& a : kAlgorithms) known.push_back(a.name);
  return "one of " + join(known);
}

// Infers the algorithm of a module that quantized_layers does not name from its tensors.
const Algorithm* stored_algorithm(const Tensors& tensors, const std::string& module) {
  const TensorView* const weight = tensors.find(module + ".weight");
  const TensorView* scale = tensors.find(module + ".weight_scale");
  if (scale == nullptr) scale = tensors.find(module + ".weight_scale_inv");
  if (weight != nullptr && weight->dtype == DType::kU8) return find_algorithm("NVFP4");
  if (scale == nullptr) return find_algorithm("FP8");
  const bool exponents = scale->dtype == DType::kU8 || scale->dtype == DType::kF8E8M0;
  if (exponents) return find_algorithm("MXFP8");
  if (scale->shape.size() > 1) return find_algorithm("FP8_PB_WO");
  return find_algorithm(scale->num_elements() == 1 ? "FP8" : "FP8_PER_CHANNEL_PER_TOKEN");
}

class ModelOptReader : public Reader {
 public:
  // `algorithm` applies to modules that `layers` does not name; nullptr: their tensors decide.
  ModelOptReader(std::string file, const Algorithm* algorithm, ModelOptLayers layers,
                 std::vector<std::string> not_used)
      : file_(std::move(file)),
        algorithm_(algorithm),
        layers_(std::move(layers)),
        not_used_(std::move(not_used)) {}

  bool excludes(const std::string& module) const override {
    return layers_.algorithm_of(module) == nullptr && layers_.excludes(module);
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return stores_fp8(tensors, module);
  }
  std::string expected(const std::string& module) const override {
    return module + ".{weight,weight_scale}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    MORACLE_TRY(const Algorithm* algorithm, algorithm_of(tensors, module));
    const Scheme& scheme = algorithm->scheme;
    if (scheme.weight == kNvfp4Static) {
      return describe_fp4(tensors, module,
                          {.weight = kNvfp4Static,
                           .codes = "weight",
                           .global = "weight_scale_2",
                           .unused = "input_scale"});
    }
    return describe_fp8(tensors, module, {.scheme = scheme});
  }
  std::vector<std::string> not_used() const override { return not_used_; }

 private:
  Result<const Algorithm*> algorithm_of(const Tensors& tensors, const std::string& module) const {
    const std::string* const listed = layers_.algorithm_of(module);
    if (listed == nullptr) return algorithm_ ? algorithm_ : stored_algorithm(tensors, module);
    if (const Algorithm* found = find_algorithm(*listed)) return found;
    return Error{ErrorKind::kUnsupported, file_, "quantized_layers: module '" + module + "'",
                 known_algorithms(), "it is " + *listed};
  }

  std::string file_;
  const Algorithm* algorithm_;
  ModelOptLayers layers_;
  std::vector<std::string> not_used_;
};

// Checks that a group size in the config is that of the algorithm.
Status check_group_size(const Config& config, const Algorithm& algorithm) {
  const int64_t group = algorithm.scheme.weight.group.cols;
  MORACLE_TRY(const int64_t stated, config.integer_or(0, {"group_size"}));
  if (group == GroupShape::kAll || stated == 0 || stated == group) return {};
  return config.unsupported({"group_size"}, str(group, ", as ", algorithm.name, " has it"),
                            str("it is ", stated));
}

// quantized_layers: module → {quant_algo, group_size}.
Result<std::map<std::string, std::string>> read_layers(const Config& config) {
  std::map<std::string, std::string> layers;
  MORACLE_TRY(const auto listed, config.object({"quantized_layers"}));
  if (!listed) return layers;
  for (const auto& item : listed->value().items()) {
    MORACLE_TRY(const auto entry, listed->object({item.key().c_str()}));
    if (!entry || !entry->has({"quant_algo"})) continue;
    MORACLE_TRY(const std::string algorithm, entry->text({"quant_algo"}));
    if (const Algorithm* known = find_algorithm(algorithm))
      MORACLE_CHECK(check_group_size(*entry, *known));
    layers[item.key()] = algorithm;
  }
  return layers;
}

Result<std::unique_ptr<Reader>> open_flat(const Config& config) {
  MORACLE_TRY(const std::string text, config.text({"quant_algo"}));
  std::string upper = text;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const Algorithm* const algorithm = find_algorithm(text);
  if (algorithm == nullptr && upper != kMixed) {
    return config.unsupported({"quant_algo"}, str(known_algorithms(), ", ", kMixed),
                              "it is " + text);
  }
  // MIXED_PRECISION may state the group size of one of its algorithms beside them.
  if (algorithm != nullptr) MORACLE_CHECK(check_group_size(config, *algorithm));
  MORACLE_TRY(auto listed, read_layers(config));
  bool drops = algorithm != nullptr && algorithm->drops_activations;
  for (const auto& [module, name] : listed) {
    const Algorithm* const known = find_algorithm(name);
    drops = drops || (known != nullptr && known->drops_activations);
  }
  std::vector<std::string> not_used;
  if (drops) not_used.push_back(unused_4bit_activations("quant_algo NVFP4"));
  MORACLE_TRY(std::vector<std::string> excluded, config.texts({"ignore", "exclude_modules"}));
  return std::unique_ptr<Reader>(new ModelOptReader(
      config.path(), algorithm, ModelOptLayers(std::move(listed), std::move(excluded)),
      std::move(not_used)));
}

Result<std::unique_ptr<Reader>> open(const Config& config) {
  MORACLE_TRY(const auto nested, config.object({"quantization"}));
  return open_flat(nested ? *nested : config);
}

constexpr std::string_view kMethods[] = {"modelopt-fp4", "modelopt-fp8", "modelopt-mxfp8",
                                         "modelopt-mixed"};

}  // namespace
}  // namespace modelopt

constinit const Producer kModelOptProducer{.name = "modelopt",
                                           .open = modelopt::open,
                                           .config_file = "hf_quant_config.json",
                                           .also = modelopt::kMethods};

}  // namespace moracle
