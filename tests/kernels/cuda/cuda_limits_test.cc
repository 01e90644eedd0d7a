// Tests the measured limits of a GPU: only for supported instructions, and in a plausible order.
#include <gmock/gmock.h>

#include <map>

#include "kernels/cuda/cuda_test.h"
#include "kernels/limits.h"

namespace moracle::cuda_limits_test {
namespace {

class CudaLimitsTest : public CudaTest {
 protected:
  std::unique_ptr<LimitsProbe> probe(size_t bytes = 0) {
    Result<std::unique_ptr<LimitsProbe>> opened = open_limits(device_, 0, bytes);
    EXPECT_TRUE(opened) << opened.error().to_string();
    return opened ? *std::move(opened) : nullptr;
  }
};

TEST_F(CudaLimitsTest, MeasuredForInstructionsOfGpu) {
  const std::unique_ptr<LimitsProbe> limits_probe = probe();
  ASSERT_NE(limits_probe, nullptr);
  const Result<Limits> limits = limits_probe->measure();
  ASSERT_TRUE(limits) << limits.error().to_string();
  EXPECT_EQ(limits->device, "cuda:0");
  EXPECT_FALSE(limits->model.empty());
  EXPECT_GT(limits_probe->memory_bytes(), limits_probe->buffer_bytes());
  EXPECT_GT(limits->read_bytes_per_second, 5e10);
  EXPECT_LT(limits->read_bytes_per_second, 2e13);
  std::map<std::string, double> ops;
  for (const Peak& peak : limits->peaks) {
    EXPECT_TRUE(peak.name.ends_with(peak.instruction)) << peak.name;
    EXPECT_TRUE(ops.emplace(peak.name, peak.ops_per_second).second) << "twice: " << peak.name;
    // A higher value means that the compiler removed a loop or that the kernel did not run.
    EXPECT_GT(peak.ops_per_second, 1e12) << peak.name;
    EXPECT_LT(peak.ops_per_second, 1e16) << peak.name;
  }
  ASSERT_TRUE(ops.contains("f32 simt"));
  if (ops.contains("bf16 mma")) {
    EXPECT_GT(ops["bf16 mma"], ops["f32 simt"]);
    EXPECT_GT(ops["int8 mma"], 1.5 * ops["bf16 mma"]);
    EXPECT_NEAR(ops["f16 mma"] / ops["bf16 mma"], 1, 0.2);
  }
  if (ops.contains("bf16 wgmma")) {
    EXPECT_GT(ops["bf16 wgmma"], ops["bf16 mma"]);
    EXPECT_GT(ops["fp8 wgmma"], 1.5 * ops["bf16 wgmma"]);
    EXPECT_GT(ops["int8 wgmma"], 1.5 * ops["bf16 wgmma"]);
  }
}

TEST_F(CudaLimitsTest, ProbedAgainByName) {
  const std::unique_ptr<LimitsProbe> limits_probe = probe(64 << 20);
  ASSERT_NE(limits_probe, nullptr);
  EXPECT_EQ(limits_probe->buffer_bytes(), 64 << 20);
  const Result<double> read = limits_probe->read_bytes_per_second(),
                       none = limits_probe->ops_per_second("no such peak"),
                       simt = limits_probe->ops_per_second("f32 simt");
  ASSERT_TRUE(read && none && simt);
  EXPECT_GT(*read, 0);
  EXPECT_EQ(*none, 0);
  EXPECT_GT(*simt, 1e12);
  const Result<double> copy = limits_probe->copy_bytes_per_second();
  ASSERT_TRUE(copy) << copy.error().to_string();
  EXPECT_GT(*copy, 1e9);
  EXPECT_LT(*copy, *read);
}

TEST_F(CudaLimitsTest, RejectTooLargeBuffer) {
  const auto refused = open_limits(device_, 0, size_t{1} << 46);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
}

}  // namespace
}  // namespace moracle::cuda_limits_test
