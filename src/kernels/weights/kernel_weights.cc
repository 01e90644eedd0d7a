#include "kernels/weights/kernel_weights.h"

#include "base/try.h"

namespace moracle {

Status replace(const KernelWeights& live, const KernelWeights& fresh, Device& device,
               Stream stream) {
  MORACLE_CHECK(device.copy(live.buffer.data(), fresh.buffer.data(), fresh.buffer.bytes(), stream));
  return device.copy(live.input_scales.data(), fresh.input_scales.data(),
                     fresh.input_scales.bytes(), stream);
}

}  // namespace moracle
