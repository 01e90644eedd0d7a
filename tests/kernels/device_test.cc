// Tests the memory of every device, and the errors of opening one.
#include <numeric>

#include "base/refused_threads.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/ops/device_ops.h"

namespace moracle::device_test {
namespace {

using ::testing::Each;

class DeviceMemory : public testing::DeviceOpsTest {
 protected:
  template <class T>
  std::vector<T> content(const Buffer& buffer) {
    return download(buffer.as<T>(), static_cast<int64_t>(buffer.bytes() / sizeof(T)));
  }
};

TEST_P(DeviceMemory, IsZeroedOnEveryAllocation) {
  for (int i = 0; i < 3; ++i) {
    const Result<Buffer> buffer = device_->allocate(100'003);
    ASSERT_TRUE(buffer) << buffer.error().to_string();
    EXPECT_EQ(buffer->bytes(), 100'003u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_THAT(content<uint8_t>(*buffer), Each(0));
    const std::vector<uint8_t> filled(buffer->bytes(), 0xff);
    expect_done(device_->upload(buffer->data(), filled.data(), filled.size()));
    EXPECT_THAT(content<uint8_t>(*buffer), Each(0xff));
  }
}

TEST_P(DeviceMemory, OfZeroBytesIsEmpty) {
  const Result<Buffer> buffer = device_->allocate(0);
  ASSERT_TRUE(buffer) << buffer.error().to_string();
  EXPECT_EQ(buffer->bytes(), 0u);
  expect_done(device_->upload(nullptr, nullptr, 0));
  expect_done(device_->copy(nullptr, nullptr, 0));
}

TEST_P(DeviceMemory, CopiesInStreamOrder) {
  std::vector<int32_t> host(1000);
  std::iota(host.begin(), host.end(), -500);
  int32_t* const to = upload(std::vector<int32_t>(host.size()));
  expect_done(device_->copy(to, upload(host), host.size() * sizeof(int32_t)));
  EXPECT_EQ(download(to, 1000), host);
}

TEST_P(DeviceMemory, RejectsTooLargeAllocationAndStaysUsable) {
  const size_t bytes = size_t{1} << (is_cpu() ? 62 : 46);  // a CPU may promise 64 TiB
  const Result<Buffer> refused = device_->allocate(bytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(refused.error().need, ::testing::HasSubstr(std::to_string(bytes) + " bytes"));
  EXPECT_THAT(download(upload(std::vector<int32_t>{1, 2, 3}), 3), ::testing::ElementsAre(1, 2, 3));
}

MORACLE_ON_EVERY_DEVICE(DeviceMemory);

TEST(CpuDevice, SharesFloatMemoryWithTheHost) {
  const auto device = *open_device("cpu", 1);
  EXPECT_EQ(device->name(), "cpu");
  EXPECT_EQ(device->platform(), Platform::kCpu);
  EXPECT_EQ(device->activation_dtype(), DType::kF32);
  EXPECT_TRUE(device->host_visible());
}

TEST(CpuDevice, RejectsMoreThreadsThanSystemStarts) {
  const testing::RefusedThreads none;
  ASSERT_TRUE(none.refuses());
  const auto device = open_device("cpu", 4096);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(device.error().place, "threads");
  EXPECT_TRUE(open_device("cpu", 1)) << "the caller's own thread is enough";
}

TEST(CpuDevice, KeepsScratchWhenGrowthFails) {
  CpuDevice device(1);
  ASSERT_TRUE(device.reserve_scratch(1000));
  std::byte* const scratch = device.scratch();
  const Status refused = device.reserve_scratch(size_t{1} << 60);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(device.scratch(), scratch);
}

TEST(CpuDevice, RejectsPlanForInstructionsThatCpuLacks) {
  EXPECT_TRUE(cpu::check_isa(Machine::here().cpu.isa));
  const Status refused = cpu::check_isa(static_cast<Isa>(1u << 31));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
}

TEST(OpenDevice, UnknownNameListsKnownDevices) {
  auto refused = [](const char* name, ErrorKind kind) {
    const auto device = open_device(name);
    ASSERT_FALSE(device) << name;
    EXPECT_EQ(device.error().kind, kind) << name;
    EXPECT_NE(device.error().need.find("cpu"), std::string::npos);
  };
  for (const char* unknown : {"", "gpu", "CPU", "cpu:0", "cuda:", "opencl:x"})
    refused(unknown, ErrorKind::kInvalidArgument);
  for (const char* absent : {"cuda:4096", "opencl:4096"}) refused(absent, ErrorKind::kUnsupported);
  if (open_device("cuda")) return;  // there is a GPU
  for (const char* absent : {"cuda", "cuda:0"}) refused(absent, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace moracle::device_test
