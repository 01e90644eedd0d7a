// quant_method "fp8", as DeepSeek, Qwen and transformers write it:
//   weight            e4m3 [N, K]
//   weight_scale_inv  f32 [ceil(N/bn), ceil(K/bk)]   with weight_block_size [bn, bk]
//   weight_scale      f32 [], [1], [N] or [N, 1]     without
//   input_scale       f32 [] or [1]                  with activation_scheme static
// value = code · scale, in spite of the name "inv". Either name of the weights' scales occurs with
// either shape; input_scale is activation_scale in files of transformers. quant_method "mxfp8", or
// blocks [1, 32] with scales u8, are MXFP8. Tensors of all experts have e as first index; the names
// of their scales are the tensor's name with _scale_inv or _scale. Experts of DeepSeek-V4
// (expert_dtype fp4) are MXFP4, or NVFP4 in NVIDIA's files: codes u8 or i8 in `weight`.
#include <algorithm>
#include <cctype>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/fp4_matrix.h"
#include "checkpoint/producers/fp8_matrix.h"

namespace moracle {
namespace {

class Fp8Reader : public Reader {
 public:
  Fp8Reader(Fp8Format format, const std::vector<std::string>& ignored)
      : format_(std::move(format)), ignored_(ignored.begin(), ignored.end()) {
    for (const std::string& name : ignored_) {
      if (name.find(kExperts) != name.npos) of_experts_.push_back(name);
    }
  }

  // Names match as a whole. For experts, one name below the layer's experts applies to all of them.
  // A loop over all names would be slow: published configs have 800 names and 60,000 modules.
  bool excludes(const std::string& module) const override {
    if (ignored_.contains(module)) return true;
    const size_t experts = module.find(".experts.");
    if (experts == module.npos) return false;
    const std::string prefix = module.substr(0, experts + kExperts.size());
    const auto is_of_layer = [&](const std::string& name) {
      return name.find(prefix) != name.npos;
    };
    return std::any_of(of_experts_.begin(), of_experts_.end(), is_of_layer);
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return stores_fp8(tensors, module) || stores_fp8_experts(tensors, module);
  }
  std::string expected(const std::string& module) const override {
    return module + ".{weight," + format_.scale + "}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    if (has_fp4(tensors, module)) return describe_fp4(tensors, module, fp4_format(tensors, module));
    return describe_fp8(tensors, module, format_);
  }
  Result<DescribedLinear> describe_expert(const Tensors& tensors, const std::string& module,
                                          int64_t e, int64_t num_experts) const override {
    return describe_fp8_expert(tensors, module, format_, e, num_experts);
  }

 private:
  // Bytes beside scales of a byte are pairs of 4-bit codes: experts of DeepSeek-V4 beside layers in
  // fp8.
  static bool has_fp4(const Tensors& tensors, const std::string& module) {
    const TensorView* const weight = tensors.find(module + ".weight");
    const TensorView* scale = tensors.find(module + ".weight_scale");
    if (scale == nullptr) scale = tensors.find(module + ".weight_scale_inv");
    return weight != nullptr && (weight->dtype == DType::kU8 || weight->dtype == DType::kI8) &&
           scale != nullptr && bits(scale->dtype) == 8;
  }
  // NVFP4 has a scale of the scales; the number for activations in 4 bits is not used.
  static Fp4Format fp4_format(const Tensors& tensors, const std::string& module) {
    if (tensors.find(module + ".weight_scale_2") != nullptr)
      return {.weight = kNvfp4Static,
              .codes = "weight",
              .global = "weight_scale_2",
              .unused = "input_scale"};
    const bool inv = tensors.find(module + ".weight_scale_inv") != nullptr;
    return {.weight = kMxfp4Static,
            .codes = "weight",
            .scales = inv ? "weight_scale_inv" : "weight_scale"};
  }

  static constexpr std::string_view kExperts = ".experts";
  Fp8Format format_;
  std::set<std::string, std::less<>> ignored_;
  std::vector<std::string> of_experts_;  // those of ignored_ that name experts
};

Result<Fp8Format> read_blocks(const Config& config, const std::string& activation_scheme) {
  MORACLE_TRY(const auto block, config.integers({"weight_block_size"}));
  const auto fits = [](int64_t size) { return size >= 1 && size <= INT32_MAX; };
  if (block.size() != 2 || !fits(block[0]) || !fits(block[1])) {
    return config.wrong({"weight_block_size"}, "two positive sizes, of rows and columns",
                        "it is " + JsonField::shown(*config.find({"weight_block_size"})));
  }
  if (activation_scheme != "dynamic") {
    return config.unsupported({"activation_scheme"}, "dynamic, because weights have block scales",
                              "it is " + activation_scheme);
  }
  Fp8Format format;
  format.scheme = {fp8_static_block(block[0], block[1]), fp8_dynamic_group(block[1])};
  format.scale = "weight_scale_inv";
  return format;
}

// MXFP8 has groups of 32 columns, whether the config says so or not.
Status read_mxfp8(const Config& config, Fp8Format& format) {
  const bool has_blocks = config.has({"weight_block_size"});
  if (has_blocks && format.scheme.weight.group != kMxfp8Static.group) {
    return config.unsupported({"weight_block_size"}, "[1, 32], as mxfp8 has it",
                              "it is " + JsonField::shown(*config.find({"weight_block_size"})));
  }
  format = Fp8Format();
  format.scheme = {kMxfp8Static, kMxfp8Dynamic};
  return {};
}

Result<std::unique_ptr<Reader>> open_fp8(const Config& config) {
  MORACLE_TRY(const std::string fmt, config.text_or("e4m3", {"fmt"}));
  if (!names_e4m3(fmt)) return config.unsupported({"fmt"}, "e4m3", "it is " + fmt);
  MORACLE_TRY(const std::string stored, config.text_or("e4m3", {"store_dtype"}));
  if (!names_e4m3(stored)) return config.unsupported({"store_dtype"}, "e4m3", "it is " + stored);
  MORACLE_TRY(std::string activations, config.text_or("dynamic", {"activation_scheme"}));
  for (char& c : activations) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (activations != "dynamic" && activations != "static") {
    return config.unsupported({"activation_scheme"}, "dynamic or static", "it is " + activations);
  }
  Fp8Format format;
  format.scheme = {kFp8StaticTensorSym,
                   activations == "static" ? kFp8StaticTensorSym : kFp8DynamicTokenSym};
  format.tensor_or_channel = true;
  if (config.has({"weight_block_size"})) {
    MORACLE_TRY(format, read_blocks(config, activations));
  }
  MORACLE_TRY(std::string method, config.text_or("fp8", {"quant_method"}));
  for (char& c : method) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (method == "mxfp8") MORACLE_CHECK(read_mxfp8(config, format));
  MORACLE_TRY(const std::string scale_fmt, config.text_or("float", {"scale_fmt"}));
  if (scale_fmt != "float" && scale_fmt != "ue8m0") {
    return config.unsupported({"scale_fmt"}, "ue8m0, float or absent", "it is " + scale_fmt);
  }
  format.powers_of_two = scale_fmt == "ue8m0";
  // Weights that are dequantized while they load leave activations as floats.
  MORACLE_TRY(const bool dequantize, config.boolean_or(false, {"dequantize"}));
  if (dequantize) format.scheme.activation.reset();

  MORACLE_TRY(std::vector<std::string> ignored, config.texts({"ignored_layers"}));
  MORACLE_TRY(const auto not_converted, config.texts({"modules_to_not_convert"}));
  ignored.insert(ignored.end(), not_converted.begin(), not_converted.end());
  return std::unique_ptr<Reader>(new Fp8Reader(std::move(format), ignored));
}

constexpr std::string_view kMethods[] = {"mxfp8"};

}  // namespace

constinit const Producer kFp8Producer{.name = "fp8", .open = open_fp8, .also = kMethods};

}  // namespace moracle
