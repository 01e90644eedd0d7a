// Shared by the GPU tests: the device, or the reason to skip.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/scalar.h"
#include "kernels/one_device_test.h"
#include "kernels/ops.h"
#include "moracle/device.h"

namespace moracle {

class CudaTest : public OneDeviceTest {
 protected:
  CudaTest() : OneDeviceTest("cuda") {}
};

/// Rounds values to bf16, so that uploading them to a GPU changes nothing.
inline std::vector<float> rounded_to_bf16(std::vector<float> values) {
  for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  return values;
}
inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float value : values) bits.push_back(float_to_bf16(value));
  return bits;
}
inline std::vector<float> from_bf16(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (uint16_t value : bits) values.push_back(bf16_to_float(value));
  return values;
}
inline Matrix bf16_matrix(const Buffer& buffer, int64_t rows, int64_t cols) {
  return {buffer.data(), DType::kBF16, rows, cols, cols};
}

}  // namespace moracle
