// Compares the architectures that OpenCL devices run with transformers.
#include "device_architectures.h"

namespace moracle::opencl_architectures_test {
namespace {

class OpenClArchitectures : public ::testing::TestWithParam<std::string> {};

TEST_P(OpenClArchitectures, MatchTransformers) {
  testing::expect_architecture_matches(GetParam(), testing::opencl_name());
}

INSTANTIATE_TEST_SUITE_P(OnDevice, OpenClArchitectures,
                         ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace moracle::opencl_architectures_test
