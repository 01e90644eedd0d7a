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

Status check(Operation operation, const std::string& place, Platform platform) {
  if (has_operation(platform, operation)) return {};
  const bool on_cuda = has_operation(Platform::kCuda, operation);
  return Error{ErrorKind::kUnsupported, "", str(place, ", ", name(operation)),
               str("a device with this operation: a CPU", on_cuda ? " or an NVIDIA GPU" : ""),
               str("the device is of the kind ", name(platform))};
}

}  // namespace

Status check_operations(const Description& description, Platform platform) {
  for (size_t l = 0; l < description.layers.size(); ++l) {
    const LayerDescription& layer = description.layers[l];
    const std::vector<Operation> needed =
        std::visit([](const auto& attention) { return operations_of(attention); }, layer.attention);
    for (const Operation operation : needed)
      MORACLE_CHECK(check(operation, str("layer ", l), platform));
  }
  return {};
}

}  // namespace moracle
