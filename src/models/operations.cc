#include "models/operations.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

std::vector<Operation> operations_of(const GroupedQueryDescription& attention) {
  if (attention.spec.output_gate == OutputGate::kNone) return {};
  return {Operation::kGate};
}
std::vector<Operation> operations_of(const LatentDescription&) {
  return {};
}
std::vector<Operation> operations_of(const GatedDeltaDescription&) {
  return {Operation::kGatedDelta, Operation::kConvolution, Operation::kGate};
}

std::vector<Operation> operations_of(const ShortConvolutionDescription&) {
  return {Operation::kConvolution, Operation::kGate};
}

}  // namespace

Status check_operations(const Description& description, Platform platform) {
  for (size_t l = 0; l < description.layers.size(); ++l) {
    const std::vector<Operation> needed =
        std::visit([](const auto& attention) { return operations_of(attention); },
                   description.layers[l].attention);
    for (const Operation operation : needed) {
      if (has_operation(platform, operation)) continue;
      return Error{ErrorKind::kUnsupported, "", str("layer ", l, ", ", name(operation)),
                   "a device with this operation: a CPU or an NVIDIA GPU",
                   str("the device is of the kind ", name(platform))};
    }
  }
  return {};
}

}  // namespace moracle
