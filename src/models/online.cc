// A description with its linear layers quantized online.
#include "checkpoint/online.h"
#include "base/try.h"
#include "models/description.h"

namespace moracle {
namespace {

// Every matrix that `visit` may replace: all but the router and the output.
template <class Visit>
Status for_each_linear(Description& description, Visit visit) {
  for (LayerDescription& layer : description.layers) {
    MORACLE_CHECK(visit(layer.qkv));
    MORACLE_CHECK(visit(layer.o));
    MORACLE_CHECK(visit(layer.mlp));
  }
  return {};
}

}  // namespace

Result<Description> describe(const Checkpoint& checkpoint, std::string_view quantization) {
  if (quantization.empty()) return describe(checkpoint);
  MORACLE_TRY(const QuantizationMap map, QuantizationMap::parse(quantization));
  MORACLE_TRY(const OnlineChoice choice, OnlineChoice::make(checkpoint, map));
  MORACLE_TRY(Description description, describe(checkpoint));
  const auto apply = [&](auto& weights) -> Status {
    MORACLE_TRY(weights, choice.apply(std::move(weights)));
    return {};
  };
  MORACLE_CHECK(for_each_linear(description, apply));
  return description;
}

}  // namespace moracle
