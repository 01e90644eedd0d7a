// compressed-tensors as llm-compressor writes it. Read here: format "int-quantized" with 8-bit
// channel weights and dynamic per-token activations:
//   weight       i8 [N, K]       two's complement codes
//   weight_scale bf16/f32 [N, 1] (or [N])
// value = code · scale[n].
#include <algorithm>
#include <initializer_list>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/pattern.h"
#include "checkpoint/producer.h"

namespace moracle {
namespace {

class CompressedTensorsReader : public Reader {
 public:
  CompressedTensorsReader(std::vector<Pattern> targets, std::vector<Pattern> ignore)
      : targets_(std::move(targets)), ignore_(std::move(ignore)) {}

  Says says(const std::string& module) const override {
    auto names = [&](const Pattern& pattern) { return pattern.matches(module); };
    if (std::any_of(ignore_.begin(), ignore_.end(), names)) return Says::kPlain;
    if (std::any_of(targets_.begin(), targets_.end(), names)) return Says::kQuantized;
    return Says::kPlain;
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    const TensorView* weight = tensors.find(module + ".weight");
    return tensors.find(module + ".weight_scale") != nullptr ||
           (weight != nullptr && weight->dtype == DType::kI8);
  }
  std::string expected(const std::string& module) const override {
    return module + ".{weight,weight_scale}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module) const override;

 private:
  std::vector<Pattern> targets_;
  std::vector<Pattern> ignore_;
};

Result<DescribedLinear> CompressedTensorsReader::describe(const Tensors& tensors,
                                                          const std::string& module) const {
  std::vector<std::string> names = {module + ".weight", module + ".weight_scale"};
  MORACLE_TRY(const TensorView codes, tensors.get(names[0]));
  if (codes.dtype != DType::kI8 || codes.shape.size() != 2) {
    return tensors.wrong(names[0], "i8 of two dimensions", "it is " + to_string(codes));
  }
  DescribedLinear linear;
  linear.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
  linear.shape = {.n = codes.shape[0], .k = codes.shape[1], .key = linear.scheme.weight};
  MORACLE_TRY(const TensorView scale, get_floats(tensors, names[1]));
  const int64_t n = linear.shape.n;
  if (scale.shape != std::vector<int64_t>{n, 1} && scale.shape != std::vector<int64_t>{n}) {
    return tensors.wrong(names[1], str("shape [", n, ", 1], one scale per channel"),
                         "it is " + to_string(scale));
  }
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, n, names));
  linear.part = part_of(tensors, n, std::move(names));
  linear.part.read = [&tensors, module, codes, shape = linear.shape]() -> Result<CanonicalMatrix> {
    CanonicalMatrix matrix;
    matrix.n = shape.n;
    matrix.k = shape.k;
    matrix.key = shape.key;
    matrix.codes = {codes.data, codes.num_bytes()};
    MORACLE_TRY(matrix.scales, read_scales(tensors, module + ".weight_scale"));
    if (shape.bias) {
      MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
    }
    return matrix;
  };
  return linear;
}

// Parts of the format that would change the numbers and that nothing here reads.
Status check_unused(const Config& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto* value = config.find({key});
    if (value == nullptr || value->empty()) continue;
    return config.unsupported({key}, "nothing", "it is " + Config::shown(*value));
  }
  return {};
}

// The one combination that this reader serves; everything else is refused by name.
Status check_group(const Config& group) {
  struct Expected {
    const char* operand;
    const char* key;
    nlohmann::json value;
  };
  const Expected expected[] = {
      {"weights", "num_bits", 8},           {"weights", "type", "int"},
      {"weights", "strategy", "channel"},   {"weights", "symmetric", true},
      {"weights", "dynamic", false},        {"input_activations", "num_bits", 8},
      {"input_activations", "type", "int"}, {"input_activations", "strategy", "token"},
      {"input_activations", "symmetric", true}, {"input_activations", "dynamic", true},
  };
  for (const Expected& e : expected) {
    MORACLE_TRY(const auto operand, group.object({e.operand}));
    if (!operand) {
      return group.unsupported({e.operand}, "8-bit channel weights with dynamic 8-bit token activations",
                               "it is not there");
    }
    const auto* value = operand->find({e.key});
    if (value == nullptr || *value != e.value) {
      return operand->unsupported({e.key}, e.value.dump(),
                                  value == nullptr ? "it is not there" : "it is " + Config::shown(*value));
    }
  }
  return check_unused(group, {"output_activations"});
}

}  // namespace

Result<std::unique_ptr<Reader>> open_compressed_tensors(const Config& config) {
  MORACLE_TRY(const std::string format, config.text({"format"}));
  if (format != "int-quantized") {
    return config.unsupported({"format"}, "int-quantized", "it is " + format);
  }
  MORACLE_CHECK(check_unused(config, {"kv_cache_scheme", "transform_config"}));
  MORACLE_TRY(const auto groups, config.object({"config_groups"}));
  if (!groups || groups->value().size() != 1) {
    return config.unsupported({"config_groups"}, "one group",
                              str("there are ", groups ? groups->value().size() : 0));
  }
  const std::string group_name = groups->value().begin().key();
  MORACLE_TRY(const auto group, groups->object({group_name.c_str()}));
  if (!group) return groups->wrong({group_name.c_str()}, "an object", "it is null");
  MORACLE_CHECK(check_group(*group));

  MORACLE_TRY(const auto target_texts, group->texts({"targets"}));
  MORACLE_TRY(const auto ignore_texts, config.texts({"ignore"}));
  std::vector<Pattern> targets, ignore;
  for (const std::string& text : target_texts) {
    MORACLE_TRY(Pattern pattern, Pattern::make(text, config.path()));
    targets.push_back(std::move(pattern));
  }
  for (const std::string& text : ignore_texts) {
    MORACLE_TRY(Pattern pattern, Pattern::make(text, config.path()));
    ignore.push_back(std::move(pattern));
  }
  return std::unique_ptr<Reader>(
      new CompressedTensorsReader(std::move(targets), std::move(ignore)));
}

}  // namespace moracle
