// Conversion consumes its source. Converting an lvalue source must not compile.
#include "kernels/weights/kernel_weights.h"

using namespace moracle;

Result<KernelWeights> convert_it(DescribedMatrix& described, const Layout& layout, Device& device) {
#ifdef MORACLE_MUST_NOT_COMPILE
  return convert(described, layout, device);
#else
  return convert(std::move(described), layout, device);
#endif
}
