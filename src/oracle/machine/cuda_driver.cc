#include "oracle/machine/cuda_driver.h"

#include "base/text.h"

namespace moracle::cuda {

std::string no_gpu(int driver, int runtime, std::string said) {
  if (driver == 0) return "this machine has no driver for NVIDIA GPUs: libcuda.so.1 does not load";
  // Every driver of a major version runs every program of it.
  if (driver / 1000 >= runtime / 1000) return said;
  return str("the driver is for CUDA ", driver / 1000, ".", driver % 1000 / 10,
             "; this build needs a driver for CUDA ", runtime / 1000, " or later");
}

}  // namespace moracle::cuda
