// Tests the kernels for matrix engines on devices without them: any OpenCL device with subgroups of
// 8 and 16 lanes can emulate them. The oracle is told that the device has matrix engines.
#include <gtest/gtest.h>

#include <string>

#include "conformance/conformance.h"
#include "kernels/opencl/opencl_matrix_plan.h"
#include "support/device.h"

namespace moracle::opencl_matrix_test {
namespace {

using conformance::Case;
using conformance::Outcome;

constexpr GpuFeature kNeeded =
    GpuFeature::kSharedPointers | GpuFeature::kAtomics64 | GpuFeature::kSubgroups;

/// This machine; its first OpenCL device claims to have matrix engines.
Machine machine_with_engines() {
  Machine machine = Machine::here();
  for (GpuInfo& gpu : machine.gpus) {
    if (gpu.platform == Platform::kOpenCl) gpu.features = gpu.features | GpuFeature::kMatrix;
  }
  return machine;
}

/// Why the first OpenCL device cannot emulate matrix engines; empty: it can.
std::string lacks(const Machine& machine) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform != Platform::kOpenCl) continue;
    const GpuFeature lacking = missing(kNeeded, gpu.features);
    return lacking == GpuFeature::kNone ? "" : gpu.model + " lacks " + names(lacking);
  }
  return "this machine has no OpenCL device";
}

struct Row {
  const char* backend;
  int lanes;
};

class OpenClMatrix : public ::testing::TestWithParam<Row> {};

TEST_P(OpenClMatrix, HoldsInEveryCaseWithEmulatedEngines) {
  const Machine machine = machine_with_engines();
  if (const std::string reason = lacks(machine); !reason.empty()) GTEST_SKIP() << reason;
  const auto device = testing::open_test_device("opencl");
  ASSERT_TRUE(device) << device.error().to_string();
  opencl::emulate_matrix_engines(GetParam().lanes);
  int passed = 0;
  double worst = 0;
  for (const Case& c : conformance::cases()) {
    if (c.backend != GetParam().backend) continue;
    const Outcome outcome = conformance::run(c, *device, &machine);
    ASSERT_NE(outcome.kind, Outcome::kFailed) << outcome.message;
    passed += outcome.kind == Outcome::kPassed;
    worst = std::max(worst, outcome.worst);
  }
  RecordProperty("passed", passed);
  RecordProperty("worst_share_of_bound", std::to_string(worst));
  EXPECT_GT(passed, 100);
}

INSTANTIATE_TEST_SUITE_P(Rows, OpenClMatrix,
                         ::testing::Values(Row{"opencl-matrix", 8}, Row{"opencl-matrix", 16},
                                           Row{"opencl-matrix-wide", 8},
                                           Row{"opencl-matrix-wide", 16}),
                         [](const auto& tested) {
                           const std::string name = tested.param.backend;
                           return std::string(name == "opencl-matrix" ? "FourBits" : "Wide") +
                                  std::to_string(tested.param.lanes) + "Lanes";
                         });

// A device without matrix engines never gets these rows.
TEST(OpenClMatrix, NeedMatrixEngines) {
  const Scheme scheme{int4_static_group(32), {}};
  const Selection selection =
      select(conformance::request_of({"opencl-matrix", scheme, {4, 64, 32, 2}, 3}),
             *Machine::find("mi300x"));
  ASSERT_FALSE(selection.plan);
  const std::string why = selection.chosen().error().to_string();
  EXPECT_NE(why.find("device-features: needs "), std::string::npos) << why;
}

}  // namespace
}  // namespace moracle::opencl_matrix_test
