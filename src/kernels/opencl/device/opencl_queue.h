// Target of kernel launches: a device, its context and its own queue, the default if the caller
// names no stream.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/opencl/device/opencl_check.h"
#include "moracle/device.h"

namespace moracle::opencl {

class Memory;
class Programs;

struct Queue {
  const Api* cl = nullptr;
  int index = 0;
  cl_device_id device = nullptr;
  cl_context context = nullptr;
  cl_command_queue own = nullptr;
  int64_t compute_units = 1;
  int64_t max_group = 1;    ///< most work-items in one work-group
  int64_t local_bytes = 0;  ///< local memory of one work-group
  bool is_cpu = false;
  bool unified = false;          ///< the device shares its memory with the host
  bool language_3 = false;       ///< the compiler takes OpenCL C 3.0
  bool divides_exactly = false;  ///< the compiler has an option for correctly rounded division
  GpuFeature features = GpuFeature::kNone;
  Memory* memory = nullptr;  ///< owned by the device, as are the programs
  Programs* programs = nullptr;

  cl_command_queue of(Stream stream) const {
    return stream.handle != nullptr ? static_cast<cl_command_queue>(stream.handle) : own;
  }
};

}  // namespace moracle::opencl
