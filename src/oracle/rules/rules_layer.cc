// Rules about the layer: its formats, groups, sizes, and the steps between its matrices.
#include <algorithm>

#include "base/text.h"
#include "layout/layout.h"
#include "oracle/rules/rules.h"
#include "quant/activation.h"

namespace moracle {
namespace rules_layer {
namespace {

using Objection = std::optional<Reason>;

template <class Value>
bool contains(std::span<const Value> values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

template <class Value>
std::string alternatives(std::span<const Value> values) {
  std::vector<std::string_view> texts;
  for (const Value& value : values) texts.push_back(name(value));
  return join(texts, " or ");
}

// The weight key of each matrix. A layer without sizes, as tests and tables have it, has one.
std::vector<QuantKey> weight_keys(const LayerSpec& layer) {
  std::vector<QuantKey> keys = {layer.scheme.weight};
  for (const MatrixShape& matrix : layer.stored) keys.push_back(matrix.key);
  return keys;
}

bool lacks(const Backend& b, Feature feature) {
  return missing(feature, b.features) != Feature::kNone;
}

Objection refuse_experts(const Backend& b, const Request& r, const Machine&) {
  if (!b.linear_only || r.layer.linear) return {};
  return object("a linear layer", "the layer has experts of two matrices");
}

Objection refuse_weights(const Backend& b, const Request& r, const Machine&) {
  for (const QuantKey& weight : weight_keys(r.layer)) {
    if (!contains(b.weights, weight.dtype))
      return object("weights in " + alternatives(b.weights),
                    str("the layer's weights are ", name(weight.dtype)));
  }
  return {};
}

Objection refuse_activations(const Backend& b, const Request& r, const Machine&) {
  const auto& key = r.layer.scheme.activation;
  if (!key || contains(b.activations, key->dtype)) return {};
  return object(
      str("float activations",
          b.activations.empty() ? "" : " or activations in " + alternatives(b.activations)),
      str("the scheme quantizes them to ", name(key->dtype)));
}

Objection refuse_product(const Backend& b, const std::optional<QuantKey>& key, DType weight) {
  std::vector<std::string> products;
  for (const Product& product : b.products) {
    const int64_t group = key->group.cols;
    if (product.activation == key->dtype && product.weight == weight &&
        (group == GroupShape::kAll || group % product.group_multiple == 0)) {
      return {};
    }
    products.push_back(str(name(product.activation), " x ", name(product.weight)));
    if (product.group_multiple > 1)
      products.back() += str(" in groups that are a multiple of ", product.group_multiple);
  }
  return object(
      "a product (activation x weight) of " + join(products, " or "),
      str("the scheme multiplies ", name(key->dtype), " x ", name(weight),
          key->group.cols == GroupShape::kAll ? "" : str(" in groups of ", key->group.cols)));
}

Objection refuse_products(const Backend& b, const Request& r, const Machine&) {
  const auto& key = r.layer.scheme.activation;
  if (!key || b.products.empty()) return {};
  for (const QuantKey& weight : weight_keys(r.layer)) {
    if (Objection objection = refuse_product(b, key, weight.dtype)) return objection;
  }
  return {};
}

// The format also includes which values share a scale and when the scale is computed.
Objection refuse_activation_scales(const Backend& b, const Request& r, const Machine&) {
  const auto& key = r.layer.scheme.activation;
  if (!key || can_quantize(*key) || *key == kFp8StaticTensorSym) return {};
  if (*key == kInt8StaticTensorSym && !lacks(b, Feature::kStoredInt8)) return {};
  return object(
      "activations in int8 per token, mxfp8, or fp8 per token, per group or per tensor (stored "
      "scale)",
      "the scheme is " + describe(r.layer.scheme));
}

Objection refuse_zero_points(const Backend& b, const Request& r, const Machine&) {
  if (!lacks(b, Feature::kZeroPoints)) return {};
  const std::vector<QuantKey> keys = weight_keys(r.layer);
  if (std::all_of(keys.begin(), keys.end(), [](const QuantKey& key) { return key.symmetric; }))
    return {};
  return object("symmetric weights", "the layer's weights have zero points");
}

Objection refuse_minimums(const Backend& b, const Request& r, const Machine&) {
  if (b.layout == nullptr || b.layout->holds_minimums) return {};
  const std::vector<QuantKey> keys = weight_keys(r.layer);
  if (std::none_of(keys.begin(), keys.end(), [](const QuantKey& key) { return key.minimums; }))
    return {};
  return object(str("weights without minimums, which layout ", b.layout->name, " does not hold"),
                "the groups of the layer's weights have minimums");
}

Objection refuse_act_order(const Backend& b, const Request& r, const Machine&) {
  if (!r.layer.group_index) return {};
  if (lacks(b, Feature::kActOrder))
    return object("groups of neighbouring columns", "the layer uses act-order (desc_act)");
  // Sorting the columns would split the activation groups.
  const auto& key = r.layer.scheme.activation;
  if (b.layout == nullptr || !b.layout->sorts_columns || !key || key->group.cols <= 0) return {};
  return object("one activation scale per token if columns are sorted by group",
                str("the layer uses act-order and activation groups of ", key->group.cols));
}

Objection refuse_bias(const Backend& b, const Request& r, const Machine&) {
  if (!lacks(b, Feature::kBias) || !r.layer.bias) return {};
  return object("a layer without biases", "the layer has biases");
}

Objection refuse_group_size(const Backend& b, const Request& r, const Machine&) {
  for (const QuantKey& weight : weight_keys(r.layer)) {
    const int64_t size = weight.group.cols;
    if (weight.quantized() && size != GroupShape::kAll && size % b.group_multiple != 0)
      return object(str("a group size that is a multiple of ", b.group_multiple),
                    str("it is ", size));
  }
  return {};
}

Objection refuse_shape(const Backend& b, const Request& r, const Machine&) {
  const int64_t h = r.layer.hidden_size, i = r.layer.intermediate_size;
  if (h % b.size_multiple == 0 && i % b.size_multiple == 0) return {};
  return object(str("hidden and intermediate sizes that are multiples of ", b.size_multiple),
                str("they are ", h, " and ", i));
}

Objection refuse_long_sums(const Backend& b, const Request& r, const Machine&) {
  if (b.max_integer_k == 0 || !r.layer.scheme.activation) return {};
  for (const MatrixShape& matrix : r.layer.matrices()) {
    if (matrix.k > b.max_integer_k) {
      return object(str("at most ", b.max_integer_k, " columns for exact integer sums"),
                    str("the layer has ", matrix.k));
    }
  }
  return {};
}

constexpr Rule kRules[] = {
    {"experts", refuse_experts},
    {"weights", refuse_weights},
    {"activations", refuse_activations},
    {"products", refuse_products},
    {"activation-scales", refuse_activation_scales},
    {"zero-points", refuse_zero_points},
    {"minimums", refuse_minimums},
    {"act-order", refuse_act_order},
    {"bias", refuse_bias},
    {"group-size", refuse_group_size},
    {"shape", refuse_shape},
    {"sum-length", refuse_long_sums},
};

}  // namespace
}  // namespace rules_layer

std::span<const Rule> layer_rules() {
  return rules_layer::kRules;
}

}  // namespace moracle
