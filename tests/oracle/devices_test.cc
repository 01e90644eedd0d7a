// A row runs on one GPU. That GPU must have every feature that the row needs; other GPUs do not
// count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "oracle/fake_rows.h"
#include "support/sample.h"

namespace moracle::devices_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMemory = int64_t{1} << 36;
constexpr GpuFeature kMatrix = GpuFeature::kSharedPointers | GpuFeature::kAtomics64 |
                               GpuFeature::kSubgroups | GpuFeature::kMatrix;

/// GPUs that each lack another feature.
std::vector<GpuInfo> gpus() {
  return {{Platform::kCuda, 0, "old", 75, kMemory, 227 * 1024},
          {Platform::kCuda, 0, "small", 90, 1 << 10, 227 * 1024},
          {Platform::kCuda, 0, "narrow", 90, kMemory, 48 * 1024},
          {Platform::kCuda, 0, "new", 120, kMemory, 227 * 1024},
          {Platform::kCuda, 0, "right", 90, kMemory, 227 * 1024},
          {Platform::kOpenCl, 0, "plain", 0, kMemory, 64 * 1024},
          {Platform::kOpenCl, 0, "little", 0, 1 << 10, 64 * 1024, kMatrix},
          {Platform::kOpenCl, 0, "cut", 0, kMemory, 64 * 1024, kMatrix, 1 << 10},
          {Platform::kOpenCl, 0, "engines", 0, kMemory, 64 * 1024, kMatrix}};
}

Machine with(std::vector<GpuInfo> devices) {
  Machine machine{"fake", {"a CPU", Isa::kNone, 1, kMemory}, {}};
  for (size_t i = 0; i < devices.size(); ++i) devices[i].index = static_cast<int>(i);
  machine.gpus = std::move(devices);
  machine.every_platform = true;
  return machine;
}

TEST(Devices, ServeOnlyWhatASingleDeviceServes) {
  int together = 0, neither = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    const Request request{.layer = fake::layer(scheme), .max_num_tokens = 16};
    const std::vector<GpuInfo> all = gpus();
    std::vector<Selection> single;
    for (const GpuInfo& gpu : all) single.push_back(select(request, with({gpu})));
    testing::Sample sample(name(scheme));
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < all.size(); ++j) {
        if (!sample.takes()) continue;
        const GpuInfo &one = all[i], &other = all[j];
        const Selection both = select(request, with({one, other}));
        for (const Backend& row : backends()) {
          SCOPED_TRACE(str(row.name, ", ", name(scheme), ", ", one.model, ", ", other.model));
          const bool alone = fake::verdict(single[i], row.name)->accepted() ||
                             fake::verdict(single[j], row.name)->accepted();
          ASSERT_EQ(fake::verdict(both, row.name)->accepted(), alone);
          ++(alone ? together : neither);
        }
      }
    }
  }
  EXPECT_GT(together, 0);
  EXPECT_GT(neither, 0);
}

TEST(Devices, NamedWithMissingFeaturesOfEach) {
  const Request request{.layer = fake::layer(kBF16Weight), .backend = "cuda-sm90"};
  const std::vector<GpuInfo> all = gpus();
  const Selection selection = select(request, with({all[0], all[1], all[2]}));
  const Verdict* row = fake::verdict(selection, "cuda-sm90");
  std::string text;
  for (const Reason& reason : row->reasons) text += str(reason.rule, ": ", reason.have, "\n");
  EXPECT_EQ(text,
            "architecture: old (cuda:0) has 7.5\n"
            "shared-memory: narrow (cuda:2) has 48 KiB\n"
            "memory: small (cuda:1) has 0 MB\n");
}

// An old driver is no missing GPU.
TEST(Devices, DriverThatGivesNoneIsNamed) {
  const Request request{.layer = fake::layer(kBF16Weight), .backend = "cuda-sm90"};
  Machine machine = with({});
  EXPECT_THAT(select(request, machine).chosen().error().fact, HasSubstr("this machine has none"));
  machine.cuda_fault =
      "the driver is for CUDA 12.8; this build needs a driver for CUDA 13 or later";
  EXPECT_THAT(select(request, machine).chosen().error().fact,
              HasSubstr("the driver is for CUDA 12.8"));
}

TEST(Devices, SingleDeviceIsNamedWithoutNumber) {
  Request request{.layer = fake::layer(kBF16Weight), .backend = "cuda-sm90"};
  EXPECT_THAT(select(request, with({gpus()[0]})).chosen().error().fact, HasSubstr("old has 7.5"));
  // If the request names one GPU, the other does not count.
  const Machine machine = with({gpus()[4], gpus()[0]});
  EXPECT_TRUE(select(request, machine).plan);
  request.device_index = 1;
  const auto refused = select(request, machine).chosen();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact, HasSubstr("old has 7.5"));
  EXPECT_THAT(refused.error().fact, Not(HasSubstr("right")));
}

}  // namespace
}  // namespace moracle::devices_test
