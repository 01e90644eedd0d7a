#include "kernels/cuda/device/requirements.h"

#include "base/text.h"

namespace moracle::cuda {
namespace {

std::string with_point(int number) {
  return str(number / 10, ".", number % 10);
}

}  // namespace

std::string no_gpu(int driver, int runtime, std::string said) {
  if (driver == 0) return "this machine has no driver for NVIDIA GPUs: libcuda.so.1 does not load";
  // Every driver of a major version runs every program of it.
  if (driver / 1000 >= runtime / 1000) return said;
  return str("the driver is for CUDA ", driver / 1000, ".", driver % 1000 / 10,
             "; this build needs a driver for CUDA ", runtime / 1000, " or later");
}

std::string capability_list(const std::vector<int>& capabilities) {
  std::vector<std::string> texts;
  for (const int capability : capabilities) texts.push_back(with_point(capability));
  return join(texts);
}

}  // namespace moracle::cuda
