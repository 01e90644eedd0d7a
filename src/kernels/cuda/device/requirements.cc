#include "kernels/cuda/device/requirements.h"

#include "base/text.h"

namespace moracle::cuda {
namespace {

std::string with_point(int number) {
  return str(number / 10, ".", number % 10);
}

}  // namespace

std::string capability_list(const std::vector<int>& capabilities) {
  std::vector<std::string> texts;
  for (const int capability : capabilities) texts.push_back(with_point(capability));
  return join(texts);
}

}  // namespace moracle::cuda
