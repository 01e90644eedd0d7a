#include "kernels/opencl/device/requirements.h"

#include "base/text.h"

namespace moracle::opencl {

Status check_requirements(int index, std::span<const GpuInfo> there) {
  constexpr GpuFeature kNeeded = GpuFeature::kSharedPointers | GpuFeature::kAtomics64;
  const auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", str("device 'opencl:", index, "'"), std::move(need),
                 std::move(fact)};
  };
  if (there.empty())
    return wrong("an OpenCL device and its driver, or device cpu", "this machine has none");
  if (index < 0 || index >= static_cast<int>(there.size())) {
    return wrong(
        "an OpenCL device with this index, or device cpu",
        str("this machine has ", there.size(), there.size() == 1 ? " device" : " devices"));
  }
  const GpuInfo& device = there[index];
  const GpuFeature lacking = missing(kNeeded, device.features);
  if (lacking == GpuFeature::kNone) return {};
  return wrong("a device with " + names(lacking),
               str(device.model, " has ",
                   device.features == GpuFeature::kNone ? "neither" : names(device.features)));
}

}  // namespace moracle::opencl
