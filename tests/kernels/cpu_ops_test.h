// Fixture: operations on a CPU with a given thread count, and repeatable random numbers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "kernels/ops.h"

namespace moracle {

class CpuOpsTest : public ::testing::TestWithParam<int> {
 protected:
  std::shared_ptr<Device> device_ = *open_device("cpu", GetParam());
  Ops& ops_ = device_->ops();
  std::mt19937 random_{42};

  std::vector<float> normal(int64_t count, float size = 1) {
    std::normal_distribution<float> distribution(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random_);
    return values;
  }
};

inline Matrix view(std::vector<float>& values, int64_t rows, int64_t cols) {
  return Matrix::f32(values.data(), rows, cols);
}

}  // namespace moracle
