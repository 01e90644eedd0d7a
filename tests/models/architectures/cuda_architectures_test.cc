// Compares every architecture on an NVIDIA GPU with transformers.
#include "device_architectures.h"

namespace moracle::cuda_architectures_test {
namespace {

class CudaArchitectures : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaArchitectures, MatchTransformers) {
  testing::expect_architecture_matches(GetParam(), "cuda");
}

INSTANTIATE_TEST_SUITE_P(OnGpu, CudaArchitectures, ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& tested) { return tested.param; });
INSTANTIATE_TEST_SUITE_P(Compressed, CudaArchitectures,
                         ::testing::ValuesIn(testing::compressed_models()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace moracle::cuda_architectures_test
