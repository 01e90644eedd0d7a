// A description with its linear layers quantized online.
#include "checkpoint/online.h"
#include "models/modules.h"

namespace moracle {
Result<Description> describe(const Checkpoint& checkpoint, std::string_view quantization) {
  if (quantization.empty()) return describe(checkpoint);
  MORACLE_TRY(const QuantizationMap map, QuantizationMap::parse(quantization));
  MORACLE_TRY(const OnlineChoice choice, OnlineChoice::make(checkpoint, map));
  MORACLE_TRY(Description description, describe(checkpoint));
  const auto apply = [&](const ModulePlace&, auto& weights) -> Status {
    MORACLE_TRY(weights, choice.apply(std::move(weights)));
    return {};
  };
  MORACLE_CHECK(visit_modules(description, apply));
  return description;
}

}  // namespace moracle
