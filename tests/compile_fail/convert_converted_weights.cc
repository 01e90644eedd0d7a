// Packed weights are not a source. Packing them again must not compile.
#include "kernels/weights/kernel_weights.h"

using namespace moracle;

Result<KernelWeights> convert_it(DescribedMatrix&& described, const Layout& layout,
                                 Device& device) {
  Result<KernelWeights> packed = convert(std::move(described), layout, device);
#ifdef MORACLE_MUST_NOT_COMPILE
  return convert(*std::move(packed), layout, device);
#else
  return packed;
#endif
}
