// Tests the kernels for matrix engines on devices without them: any OpenCL device with subgroups of
// 8 and 16 lanes can emulate them. The oracle is told that the device has matrix engines.
#include <gtest/gtest.h>

#include <string>

#include "conformance/conformance.h"
#include "kernels/opencl/matrix/opencl_matrix_plan.h"
#include "moe/emulated_engines.h"
#include "support/device.h"

namespace moracle::opencl_matrix_test {
namespace {

using conformance::Case;
using conformance::Outcome;

struct Row {
  const char* backend;
  int lanes;
};

class OpenClMatrix : public ::testing::TestWithParam<Row> {};

TEST_P(OpenClMatrix, HoldsInEveryCaseWithEmulatedEngines) {
  const Machine machine = testing::machine_with_engines();
  if (const std::string reason = testing::lacks_for_engines(machine); !reason.empty())
    GTEST_SKIP() << reason;
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
