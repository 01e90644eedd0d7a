#include "base/text.h"
#include "kernels/cpu/cpu_device.h"

namespace moracle {

Result<std::shared_ptr<Device>> open_device(std::string_view name, int threads) {
  if (name == "cpu") return std::shared_ptr<Device>(std::make_shared<CpuDevice>(threads));
  return Error{ErrorKind::kUnsupported, "", str("device '", name, "'"),
               "a device of this build: cpu", "this build has no such device"};
}

}  // namespace moracle
