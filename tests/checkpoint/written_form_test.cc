// Compares written checkpoints with facts about the files of the producers' own libraries:
// llmcompressor 0.14 (compressed-tensors 0.19), ModelOpt 0.47 and the published FP8 files of
// DeepSeek. Their loaders accept files of this form (docs/formats.md).
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors_image.h"
#include "moracle/checkpoint.h"
#include "reader_fixture.h"

namespace moracle::testing::written_form_test {
namespace {

using nlohmann::json;

struct Form {
  const char *scheme, *format;
  std::map<std::string, std::pair<DType, size_t>> tensors;  // of a module: type and dimensions
  json config;                                              // values of quantization_config
};

json compressed_tensors(const char* format, const json& weights, const json& activations) {
  json group = {{"format", format}, {"targets", {"Linear"}}, {"weights", weights}};
  group["input_activations"] = activations;
  return {{"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"format", format},
          {"config_groups", {{"group_0", group}}}};
}

json args(const char* type, const char* strategy, bool dynamic, const json& more = json::object()) {
  json values = {{"num_bits", 8},
                 {"type", type},
                 {"strategy", strategy},
                 {"symmetric", true},
                 {"dynamic", dynamic}};
  values.update(more);
  return values;
}

std::vector<Form> forms() {
  const json per_token = args("float", "token", true);
  const json groups = {{"group_size", 32}, {"scale_dtype", "torch.uint8"}};
  const json modelopt = {{"quant_method", "modelopt"}, {"quant_algo", "MXFP8"}};
  const json fp8 = {{"quant_method", "fp8"},
                    {"fmt", "e4m3"},
                    {"activation_scheme", "dynamic"},
                    {"weight_block_size", {128, 128}}};
  return {
      {"int8-per-channel",
       "compressed-tensors",
       {{"weight", {DType::kI8, 2}}, {"weight_scale", {DType::kF32, 2}}},
       compressed_tensors("int-quantized", args("int", "channel", false),
                          args("int", "token", true))},
      {"int8-per-channel-weight-only",
       "compressed-tensors",
       {{"weight_packed", {DType::kI32, 2}},
        {"weight_scale", {DType::kF32, 2}},
        {"weight_shape", {DType::kI64, 1}}},
       compressed_tensors("pack-quantized", args("int", "channel", false), nullptr)},
      {"fp8-per-tensor",
       "compressed-tensors",
       {{"weight", {DType::kF8E4M3, 2}}, {"weight_scale", {DType::kF32, 1}}},
       compressed_tensors("float-quantized", args("float", "tensor", false), per_token)},
      {"fp8-per-channel",
       "compressed-tensors",
       {{"weight", {DType::kF8E4M3, 2}}, {"weight_scale", {DType::kF32, 2}}},
       compressed_tensors("float-quantized", args("float", "channel", false), per_token)},
      {"fp8-per-block",
       "compressed-tensors",
       {{"weight", {DType::kF8E4M3, 2}}, {"weight_scale", {DType::kF32, 2}}},
       compressed_tensors("float-quantized",
                          args("float", "block", false, {{"block_structure", {128, 128}}}),
                          args("float", "group", true, {{"group_size", 128}}))},
      {"mxfp8",
       "compressed-tensors",
       {{"weight", {DType::kF8E4M3, 2}}, {"weight_scale", {DType::kU8, 2}}},
       compressed_tensors("mxfp8-quantized", args("float", "group", false, groups),
                          args("float", "group", true, groups))},
      {"fp8-per-block",
       "fp8",
       {{"weight", {DType::kF8E4M3, 2}}, {"weight_scale_inv", {DType::kF32, 2}}},
       fp8},
      {"mxfp8",
       "modelopt",
       {{"weight", {DType::kF8E4M3, 2}}, {"weight_scale", {DType::kU8, 2}}},
       modelopt},
  };
}

// Every value of `want` must be in `got`, which may hold more.
void expect_has(const json& got, const json& want, const std::string& place) {
  for (const auto& [key, value] : want.items()) {
    SCOPED_TRACE(place + key);
    ASSERT_TRUE(got.contains(key));
    if (value.is_object())
      expect_has(got[key], value, place + key + ".");
    else
      EXPECT_EQ(got[key], value);
  }
}

TEST(WrittenForm, MatchesProducersOwnFiles) {
  const SyntheticCheckpoint source = SyntheticCheckpoint::plain(
      {.layers = 1, .experts = 2, .hidden = 160, .intermediate = 96, .heads = 3, .head_dim = 32});
  for (const Form& form : forms()) {
    SCOPED_TRACE(std::string(form.scheme) + ", " + form.format);
    const TemporaryFolder folder;
    const std::string from = folder.path() + "/plain", to = folder.path() + "/quantized";
    std::filesystem::create_directory(from);
    must(source.write(from));
    QuantizeOptions options;
    options.format = form.format;
    must(quantize(must(Checkpoint::open(from)), must(QuantizationMap::parse(form.scheme)), to,
                  options));
    std::ifstream file(to + "/config.json");
    const json config = json::parse(file)["quantization_config"];
    expect_has(config, form.config, "");
    // Names of modules that the loaders must not quantize.
    const char* const left =
        form.format == std::string("fp8") ? "modules_to_not_convert" : "ignore";
    const auto names = config[left].get<std::set<std::string>>();
    EXPECT_TRUE(names.contains("lm_head"));
    EXPECT_TRUE(names.contains("model.layers.0.mlp.gate"));

    const SafetensorsImage image = must(SafetensorsImage::open(to + "/model.safetensors"));
    for (const char* module :
         {"model.layers.0.mlp.experts.1.down_proj.", "model.layers.0.self_attn.q_proj."}) {
      std::map<std::string, std::pair<DType, size_t>> tensors;
      for (const auto& [name, tensor] : image.tensors()) {
        if (name.starts_with(module))
          tensors[name.substr(std::string_view(module).size())] = {tensor.dtype,
                                                                   tensor.shape.size()};
      }
      EXPECT_EQ(tensors, form.tensors) << module;
    }
  }
}

}  // namespace
}  // namespace moracle::testing::written_form_test
