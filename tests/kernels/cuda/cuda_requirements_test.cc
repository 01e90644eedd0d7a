#include <gtest/gtest.h>

#include "kernels/cuda/device/requirements.h"

namespace moracle::cuda_requirements_test {
namespace {

TEST(Requirements, ListCapabilitiesWithAPoint) {
  EXPECT_EQ(cuda::capability_list({80, 89, 90, 120}), "8.0, 8.9, 9.0, 12.0");
}

}  // namespace
}  // namespace moracle::cuda_requirements_test
