// Tests FP8 activations in groups that are no multiple of 32: a backend gives the right result or
// refuses the layer.
#include <gtest/gtest.h>

#include <string>

#include "conformance/conformance.h"
#include "oracle/backend.h"
#include "support/device.h"

namespace moracle::activation_groups_test {
namespace {

using conformance::Outcome;

class ActivationGroups : public ::testing::TestWithParam<Platform> {};

TEST_P(ActivationGroups, OfAnySizeAreRightOrRefused) {
  const auto device = testing::open_test_device(std::string(name(GetParam())), 2);
  if (!device) GTEST_SKIP() << device.error().to_string();
  int passed = 0;
  for (const Backend& row : backends()) {
    if (!row.built() || row.platform != GetParam()) continue;
    for (const int64_t group : {16, 48}) {
      const Scheme scheme{kFp8StaticChannelSym, fp8_dynamic_group(group)};
      const Outcome outcome = conformance::run({row.name, scheme, {4, 192, 96, 2}, 5}, *device);
      EXPECT_NE(outcome.kind, Outcome::kFailed) << "groups of " << group << ": " << outcome.message;
      passed += outcome.kind == Outcome::kPassed;
    }
  }
  EXPECT_GE(passed, 2) << "the reference takes every group";
}

INSTANTIATE_TEST_SUITE_P(Devices, ActivationGroups,
                         ::testing::Values(Platform::kCpu, Platform::kCuda, Platform::kOpenCl),
                         [](const auto& tested) {
                           return tested.param == Platform::kCpu    ? "Cpu"
                                  : tested.param == Platform::kCuda ? "Cuda"
                                                                    : "OpenCl";
                         });

}  // namespace
}  // namespace moracle::activation_groups_test
