// What kFreeMemory stands for.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/device/device_memory.h"
#include "models/host_experts/place_experts.h"
#include "oracle/machine/detect.h"

namespace moracle {
namespace free_memory_of {
namespace {

Result<int64_t> unused(const DeviceName& device, const Machine& machine) {
  const bool here = machine.name == "here";
  if (device.platform == Platform::kCpu)
    return here ? free_host_memory() : machine.cpu.memory_bytes;
  const auto gpu =
      std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const GpuInfo& other) {
        return other.platform == device.platform && other.index == device.index;
      });
  if (gpu == machine.gpus.end()) {
    return Error{ErrorKind::kInvalidArgument, "", "device_memory",
                 str("a number of bytes, because machine ", machine.name, " has no ", name(device)),
                 "it is what is free there"};
  }
  return here ? free_gpu_memory(*gpu) : gpu->memory_bytes;
}

}  // namespace
}  // namespace free_memory_of

Result<int64_t> free_memory(const DeviceName& device, const Machine& machine) {
  MORACLE_TRY(const int64_t unused, free_memory_of::unused(device, machine));
  const bool is_cpu = device.platform == Platform::kCpu;
  const int64_t least = int64_t{is_cpu ? 1024 : 512} << 20;
  const int64_t reserve = std::max(memory_of(machine, device) / (is_cpu ? 16 : 32), least);
  return std::max<int64_t>(unused - reserve, 1);
}

Status set_free_memory(ModelOptions& options, const Machine& machine) {
  if (options.device_memory == kFreeMemory) {
    MORACLE_TRY(options.device_memory, free_memory(options.device, machine));
    for (const DeviceName& device : options.slot_devices) {
      MORACLE_TRY(const int64_t there, free_memory(device, machine));
      options.device_memory = std::min(options.device_memory, there);
    }
  }
  if (options.host_memory == kFreeMemory) {
    MORACLE_TRY(options.host_memory, free_memory({}, machine));
  }
  return {};
}

}  // namespace moracle
