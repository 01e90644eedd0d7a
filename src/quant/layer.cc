#include "moracle/layer.h"

#include <array>

#include "base/text.h"

namespace moracle {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 10> kActivationNames = {
    "silu",        "gelu",        "gelu_tanh",        "relu2",       "swigluoai", "swiglustep",
    "silu_no_mul", "gelu_no_mul", "gelu_tanh_no_mul", "relu2_no_mul"};

constexpr std::pair<std::string_view, Activation> kOtherNames[] = {
    {"swish", Activation::kSilu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh}};

}  // namespace

std::string_view name(Activation activation) {
  return kActivationNames[static_cast<size_t>(activation)];
}

Result<Activation> parse_activation(std::string_view text) {
  for (size_t i = 0; i < kActivationNames.size(); ++i) {
    if (text == kActivationNames[i]) return static_cast<Activation>(i);
  }
  for (const auto& [other, activation] : kOtherNames) {
    if (text == other) return activation;
  }
  return Error{ErrorKind::kUnsupported, "", "activation", "one of " + join(kActivationNames),
               str("it is '", text, "'")};
}

std::string_view name(Score score) {
  constexpr std::string_view kScores[] = {"softmax",      "sigmoid", "softmax after top-k",
                                          "sparse mixer", "unknown", "sqrt softplus"};
  return kScores[static_cast<int>(score)];
}

std::string name(const Routing& routing) {
  std::string text(name(routing.score));
  if (routing.correction_bias) text += ", biased choice";
  if (routing.num_groups > 1)
    text += str(", ", routing.top_groups, " of ", routing.num_groups, " groups");
  if (routing.renormalize) text += ", renormalised";
  if (routing.weight_on_input) text += ", weighing the input";
  if (routing.expert_scales) text += ", times a scale of the expert";
  if (routing.scaling_factor != 1) text += str(", times ", routing.scaling_factor);
  return text;
}

std::vector<MatrixShape> LayerSpec::matrices() const {
  if (!stored.empty()) return stored;
  MatrixShape w13{.n = linear ? intermediate_size : w13_rows(),
                  .k = hidden_size,
                  .key = scheme.weight,
                  .group_index = group_index,
                  .bias = bias};
  if (w13.key.quantized() && w13.key.group == GroupShape{})
    w13.key.group = kPerRow;  // as in canonical form
  if (linear) return {w13};
  MatrixShape w2 = w13;
  w2.n = hidden_size;
  w2.k = intermediate_size;
  return {w13, w2};
}

void LayerSpec::set_matrices(std::vector<MatrixShape> shapes) {
  stored.clear();
  if (shapes != matrices()) stored = std::move(shapes);
}

std::string LayerSpec::scheme_name() const {
  std::string text = moracle::name(scheme);
  if (stored.size() < 2 || stored[0].key == stored[1].key) return text;
  // Blocks that end inside a stack of matrices have fewer rows there.
  QuantKey second = stored[1].key;
  second.group.rows = stored[0].key.group.rows;
  if (second == stored[0].key) return text;
  return str(text, " + ", moracle::name(Scheme{stored[1].key, scheme.activation}));
}

bool LayerSpec::same_but_name(const LayerSpec& other) const {
  return linear == other.linear && num_experts == other.num_experts &&
         hidden_size == other.hidden_size && intermediate_size == other.intermediate_size &&
         top_k == other.top_k && activation == other.activation && routing == other.routing &&
         scheme == other.scheme && group_index == other.group_index && bias == other.bias &&
         stored == other.stored;
}

std::string describe(const LayerSpec& layer) {
  std::string text = layer.scheme_name() + " · ";
  if (!layer.linear) text += str(layer.num_experts, " experts, top-", layer.top_k, ", ");
  text += str(layer.hidden_size, " → ", layer.intermediate_size);
  if (layer.group_index) text += ", in act-order";
  if (layer.bias) text += ", with biases";
  if (!layer.stored.empty()) text += ", matrices that differ";
  if (layer.linear) return text;
  if (layer.activation != ActivationSpec{}) text += str(", ", name(layer.activation.function));
  if (layer.routing.score == Score::kUnknown) return text + ", routing unknown";
  return str(text, ", routed by ", name(layer.routing));
}

}  // namespace moracle
