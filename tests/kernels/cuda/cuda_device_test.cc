// Tests GPU memory: uploads through pinned memory, and errors with the free bytes. device_test.cc
// holds the tests of all devices.
#include <gmock/gmock.h>

#include <numeric>

#include "kernels/cuda/cuda_test.h"

namespace moracle::cuda_device_test {
namespace {

using ::testing::HasSubstr;

using CudaDeviceTest = CudaTest;

TEST_F(CudaDeviceTest, DescribesTheGpu) {
  EXPECT_EQ(device_->name(), "cuda:0");
  EXPECT_EQ(device_->platform(), Platform::kCuda);
  EXPECT_EQ(device_->activation_dtype(), DType::kBF16);
  EXPECT_FALSE(device_->host_visible());
}

TEST_F(CudaDeviceTest, UploadsMoreThanPinnedMemoryAndReleasesSource) {
  std::vector<uint32_t> host((20 << 20) / sizeof(uint32_t) + 3);  // several pieces, the last ragged
  std::iota(host.begin(), host.end(), 17u);
  const Buffer buffer = allocate(host.size() * sizeof(uint32_t));
  {
    std::vector<uint32_t> source = host;
    expect_done(device_->upload(buffer.data(), source.data(), buffer.bytes()));
    std::fill(source.begin(), source.end(), 0u);
  }
  EXPECT_EQ(download<uint32_t>(buffer), host);
}

TEST_F(CudaDeviceTest, RejectsTooLargeAllocationAndStaysUsable) {
  const Result<Buffer> refused = device_->allocate(size_t{1} << 46);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(refused.error().need, HasSubstr("70368744177664 bytes"));
  EXPECT_THAT(refused.error().fact, HasSubstr("bytes are free"));
  EXPECT_EQ(download<int32_t>(upload(std::vector<int32_t>{1, 2, 3})),
            (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(CudaDeviceTest, UnknownGpuNumberListsGpus) {
  const auto refused = open_device("cuda:4096");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(refused.error().fact, HasSubstr("this machine has "));
}

TEST(CudaDevice, ReportsMissingGpu) {
  const auto opened = open_device("cuda");
  if (opened) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(opened.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(opened.error().need, HasSubstr("an NVIDIA GPU"));
}

}  // namespace
}  // namespace moracle::cuda_device_test
