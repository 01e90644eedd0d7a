#include "checkpoint/producers/compressed_tensors/compressed_tensors_integers.h"
#include "checkpoint/producers/module_tensors.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/packed.h"

namespace moracle {
namespace {

Result<std::optional<QuantKey>> read_activations(const Config& group, int width) {
  MORACLE_TRY(const auto activations, group.object({"input_activations"}));
  if (!activations) return std::optional<QuantKey>();
  MORACLE_CHECK(one_of(*activations, "num_bits", {8}));
  MORACLE_TRY(const auto type, one_of(*activations, "type", {"int", "float"}));
  // Only W8A8 (int8 weights and activations) may store activation scales.
  std::initializer_list<nlohmann::json> token = {"token"}, any = {"token", "tensor"};
  const bool is_int8 = type == "int" && width == 8;
  MORACLE_TRY(const auto strategy, one_of(*activations, "strategy", is_int8 ? any : token));
  MORACLE_CHECK(one_of(*activations, "symmetric", {true}, true));
  if (strategy == "tensor") {
    MORACLE_CHECK(one_of(*activations, "dynamic", {false}, false));
    return std::optional<QuantKey>(kInt8StaticTensorSym);
  }
  MORACLE_CHECK(one_of(*activations, "dynamic", {true}));
  return std::optional<QuantKey>(type == "int" ? kInt8DynamicTokenSym : kFp8DynamicTokenSym);
}

// compressed-tensors fills an unused index with -1.
bool is_unused(const TensorView& index) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(index.data);
  return std::all_of(bytes, bytes + index.num_bytes(), [](unsigned char b) { return b == 255; });
}

}  // namespace

Result<CtScheme> read_int_scheme(const Config& group,
                                 std::initializer_list<nlohmann::json> strategies) {
  MORACLE_TRY(const Config weights, weights_of(group, "int"));
  MORACLE_TRY(const auto width, one_of(weights, "num_bits", {4, 8}));
  MORACLE_TRY(const auto strategy, one_of(weights, "strategy", strategies));
  MORACLE_TRY(const auto symmetric, one_of(weights, "symmetric", {true, false}, true));
  // "weight" and its alias "static" order the columns only during quantization, not in the file.
  MORACLE_TRY(
      const auto order,
      one_of(weights, "actorder", {"weight", "static", "group", "dynamic", true, false}, false));
  CtScheme scheme;
  scheme.per_tensor = strategy == "tensor";
  scheme.group_index = order == "group" || order == "dynamic" || order == true;
  int64_t size = GroupShape::kAll;
  if (strategy == "group") {
    MORACLE_TRY(size, weights.integer({"group_size"}, 1));
  } else if (scheme.group_index) {
    return weights.wrong({"actorder"}, "the strategy group",
                         "the strategy is " + strategy.get<std::string>());
  }
  scheme.scheme.weight = width == 4 ? int4_static_group(size) : int8_static_group(size);
  scheme.scheme.weight.symmetric = symmetric.get<bool>();
  MORACLE_TRY(scheme.scheme.activation, read_activations(group, width.get<int>()));
  return scheme;
}

Status describe_int_groups(const Tensors& tensors, const std::string& module,
                           const CtScheme& scheme, int64_t zero_rows, DType zeros,
                           DescribedLinear& linear, std::vector<std::string>& names) {
  using Shape = std::vector<int64_t>;
  const QuantKey& key = linear.shape.key;
  const int64_t n = linear.shape.n, k = linear.shape.k;
  const bool channel = key.group.cols == GroupShape::kAll;
  const int64_t groups = channel ? 1 : (k + key.group.cols - 1) / key.group.cols;
  names.push_back(module + ".weight_scale");
  MORACLE_TRY(const TensorView scale, get_floats(tensors, names.back()));
  const bool flat = channel && scale.shape == Shape{n};
  const bool fits = scheme.per_tensor ? scale.shape == Shape{} || scale.shape == Shape{1}
                                      : flat || scale.shape == Shape{n, groups};
  if (!fits) {
    const std::string of = channel ? "one scale per channel" : str("groups of ", key.group.cols);
    return tensors.wrong(names.back(),
                         scheme.per_tensor ? "shape [1], one scale for the tensor"
                                           : str("shape [", n, ", ", groups, "], ", of),
                         "it is " + to_string(scale));
  }
  const std::string zero_point = module + ".weight_zero_point", order = module + ".weight_g_idx";
  if (key.symmetric) {
    MORACLE_CHECK(check_absent(tensors, zero_point, "symmetric is true"));
  } else {
    names.push_back(zero_point);
    MORACLE_CHECK(tensors.get(zero_point, zeros, {zero_rows, groups}));
  }
  if (scheme.scheme.activation && !scheme.scheme.activation->dynamic) {
    names.push_back(module + ".input_scale");
    MORACLE_TRY(linear.input_scale, read_input_scale(tensors, names.back()));
  }
  if (!scheme.group_index) return check_absent(tensors, order, "actorder is not group");
  names.push_back(order);
  MORACLE_CHECK(tensors.get(order, DType::kI32, {k}));
  MORACLE_TRY(TensorData index, tensors.read(order));
  linear.shape.group_index = !in_order(index.view, key.group.cols) && !is_unused(index.view);
  if (linear.shape.group_index) linear.column_groups = std::move(index);
  return {};
}

}  // namespace moracle
