#include <array>

#include "base/text.h"
#include "moracle/checkpoint.h"

namespace moracle {
namespace {

// In enumerator order.
constexpr std::array<std::string_view, 10> kNames = {
    "silu",        "gelu",        "gelu_tanh",        "relu2",       "swigluoai", "swiglustep",
    "silu_no_mul", "gelu_no_mul", "gelu_tanh_no_mul", "relu2_no_mul"};

constexpr std::pair<std::string_view, Activation> kOtherNames[] = {
    {"swish", Activation::kSilu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh}};

}  // namespace

std::string_view name(Activation activation) {
  return kNames[static_cast<size_t>(activation)];
}

Result<Activation> parse_activation(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<Activation>(i);
  }
  for (const auto& [other, activation] : kOtherNames) {
    if (text == other) return activation;
  }
  return Error{ErrorKind::kUnsupported, "", "activation", "one of " + join(kNames),
               str("it is '", text, "'")};
}

}  // namespace moracle
