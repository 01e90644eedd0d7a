#include "moe/checks.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

Error wrong(std::string place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", std::move(place), std::move(need), std::move(fact)};
}

}  // namespace

Status check_routing_known(const LayerSpec& layer) {
  if (layer.routing.score != Score::kUnknown) return {};
  return wrong(layer.name,
               "its routing: set DescribedWeights::spec.routing before select and FusedMoe::make",
               "it is unknown, because the checkpoint's architecture is unknown");
}

Status check_device(const Plan& plan, const Device& device) {
  if (plan.backend->platform == device.platform() &&
      plan.activation_dtype == device.activation_dtype()) {
    return {};
  }
  return wrong(plan.layer.name,
               str("a ", name(plan.backend->platform), " device with activations in ",
                   name(plan.activation_dtype), ", as planned"),
               str("it is ", device.name(), " with ", name(device.activation_dtype())));
}

Status check_pointer(const void* data, size_t align, const Plan& plan, const char* argument) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (data != nullptr && address % align == 0) return {};
  return wrong(str(plan.layer.name, ": ", argument),
               str("an address that is a multiple of ", align, " bytes"),
               data == nullptr ? "it is null"
                               : str("it is ", address % align, " bytes past such an address"));
}

Status check_pointer(const Matrix& matrix, const Plan& plan, const char* argument) {
  return check_pointer(matrix.data, static_cast<size_t>(bits(matrix.dtype) / 8), plan, argument);
}

Status check_workspace(const Workspace& workspace, const Plan& plan) {
  if (workspace.bytes() >= static_cast<size_t>(plan.workspace_bytes)) return {};
  return Error{ErrorKind::kOutOfMemory, "", plan.layer.name,
               str("a workspace of ", plan.workspace_bytes, " bytes, as planned"),
               str("it has ", workspace.bytes(), " bytes, because the device refused more")};
}

Status check_swap(const PackedWeights::State* packed, const Plan& plan, const Device& device) {
  const std::string& layer = plan.layer.name;
  if (packed == nullptr)
    return wrong(layer, "packed weights", "an earlier swap or move has consumed them");
  if (!packed->layer.same_but_name(plan.layer)) {
    return wrong(layer, "weights packed for this layer, " + describe(plan.layer),
                 "they were packed for " + packed->layer.name + ", " + describe(packed->layer));
  }
  if (packed->experts != plan.experts) {
    return wrong(layer, "weights packed for the experts of this rank",
                 "they were packed for other experts");
  }
  if (packed->backend->layout != plan.backend->layout) {
    return wrong(layer, str("weights packed for backend ", plan.backend->name),
                 str("they were packed for ", packed->backend->name));
  }
  if (packed->device == device.name()) return {};
  return wrong(layer, str("weights packed on ", device.name()),
               str("they were packed on ", packed->device));
}

}  // namespace moracle
