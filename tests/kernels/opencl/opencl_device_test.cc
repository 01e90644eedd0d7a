// Tests features of OpenCL devices: requirements, uploads through pinned memory, and errors with
// the largest allocation. device_test.cc holds the tests of all devices.
#include <algorithm>
#include <numeric>

#include "kernels/opencl/device/requirements.h"
#include "kernels/opencl/opencl_test.h"

namespace moracle::opencl_device_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using OpenClDeviceTest = OpenClTest;

TEST_F(OpenClDeviceTest, DescribesTheDevice) {
  EXPECT_EQ(device_->name(), "opencl:0");
  EXPECT_EQ(device_->platform(), Platform::kOpenCl);
  EXPECT_EQ(device_->activation_dtype(), DType::kBF16);
  EXPECT_FALSE(device_->host_visible());
}

TEST_F(OpenClDeviceTest, UploadsMoreThanPinnedMemoryAndReleasesSource) {
  std::vector<uint32_t> host((20 << 20) / sizeof(uint32_t) + 3);  // several pieces, the last ragged
  std::iota(host.begin(), host.end(), 17u);
  const Buffer buffer = allocate(host.size() * sizeof(uint32_t));
  {
    std::vector<uint32_t> source = host;
    expect_done(device_->enqueue_upload(buffer.data(), source.data(), buffer.bytes()));
    std::fill(source.begin(), source.end(), 0u);
  }
  EXPECT_EQ(download<uint32_t>(buffer), host);
}

TEST_F(OpenClDeviceTest, HostWritesInPlaceWhereMemoryIsShared) {
  const Buffer buffer = allocate(3 * sizeof(int32_t));
  auto access = device_->host_access(buffer);
  ASSERT_TRUE(access) << access.error().to_string();
  EXPECT_EQ(*access != nullptr, queue().unified);
  if (*access == nullptr) GTEST_SKIP() << "the device has memory of its own";
  std::iota(buffer.as<int32_t>(), buffer.as<int32_t>() + 3, 5);
  expect_done((*access)->end());
  expect_done((*access)->end());  // has ended already
  EXPECT_EQ(download<int32_t>(buffer), (std::vector<int32_t>{5, 6, 7}));
}

TEST_F(OpenClDeviceTest, AllocatesZeroedMemoryOfAnySize) {
  for (const size_t bytes : {1, 127, 128, 129, 4097})
    EXPECT_EQ(download<uint8_t>(allocate(bytes)), std::vector<uint8_t>(bytes)) << bytes;
  EXPECT_EQ(allocate(0).data(), nullptr);
}

// The oracle refuses larger allocations before a weight is read.
TEST_F(OpenClDeviceTest, RejectsMoreThanMachineReportsAsLargestAllocation) {
  const std::vector<GpuInfo> gpus = Machine::here().gpus;
  const auto gpu = std::find_if(gpus.begin(), gpus.end(), [](const GpuInfo& one) {
    return one.platform == Platform::kOpenCl && one.index == 0;
  });
  ASSERT_NE(gpu, gpus.end());
  const int64_t most = gpu->max_allocation_bytes;
  EXPECT_GT(most, 0);
  EXPECT_LE(most, gpu->memory_bytes);
  const auto refused = device_->allocate(static_cast<size_t>(most) + 1);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact,
              HasSubstr("the largest allocation is " + std::to_string(most) + " bytes"));
}

TEST_F(OpenClDeviceTest, RejectsTooLargeAllocationAndStaysUsable) {
  for (const size_t bytes : {size_t{1} << 46, SIZE_MAX, SIZE_MAX - 126}) {
    const Result<Buffer> refused = device_->allocate(bytes);
    ASSERT_FALSE(refused) << bytes;
    EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
    EXPECT_EQ(refused.error().place, "opencl:0");
    EXPECT_THAT(refused.error().need, StartsWith(std::to_string(bytes) + " bytes"));
    EXPECT_THAT(refused.error().fact, HasSubstr("the largest allocation is "));
  }
  EXPECT_EQ(download<int32_t>(upload(std::vector<int32_t>{1, 2, 3})),
            (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(OpenClDeviceTest, CountsMemoryInUse) {
  const Buffer some = allocate(1 << 20);
  const Result<Buffer> refused = device_->allocate(size_t{1} << 46);
  ASSERT_FALSE(refused);
  // The device's own memory counts, too.
  const std::string& fact = refused.error().fact;
  const size_t at = fact.find("; ");
  ASSERT_NE(at, fact.npos) << fact;
  EXPECT_GE(std::stoull(fact.substr(at + 2)), some.bytes()) << fact;
}

TEST_F(OpenClDeviceTest, BufferOutlivesDevice) {
  Buffer buffer = allocate(4096);
  device_.reset();
  buffer = Buffer();
  SetUp();
  EXPECT_EQ(download<uint8_t>(allocate(8)), std::vector<uint8_t>(8));
}

TEST_F(OpenClDeviceTest, UnknownDeviceNumberCountsDevices) {
  const auto refused = open_device("opencl:4096");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(refused.error().place, "device 'opencl:4096'");
  EXPECT_THAT(refused.error().fact, HasSubstr("this machine has "));
}

// ---- requirements, of devices that this machine need not have ----

constexpr GpuFeature kEnough = GpuFeature::kSharedPointers | GpuFeature::kAtomics64;

Error refusal(int index, const std::vector<GpuInfo>& there) {
  const Status checked = opencl::check_requirements(index, there);
  return checked ? Error() : checked.error();
}

TEST(OpenClRequirements, AcceptDeviceWithSharedPointersAnd64BitAtomics) {
  EXPECT_TRUE(opencl::check_requirements(
      1, std::vector<GpuInfo>{{.model = "old"},
                              {.model = "new", .features = kEnough | GpuFeature::kSubgroups}}));
}

TEST(OpenClRequirements, NameFeaturesThatDeviceLacks) {
  const struct {
    GpuFeature has;
    const char* need;
    const char* fact;
  } cases[] = {{GpuFeature::kNone, "a device with shared_pointers atomics64", "a GPU has neither"},
               {GpuFeature::kAtomics64, "a device with shared_pointers", "a GPU has atomics64"},
               {GpuFeature::kSubgroups | GpuFeature::kSharedPointers, "a device with atomics64",
                "a GPU has subgroups shared_pointers"}};
  for (const auto& one : cases) {
    const Error error = refusal(0, {{.model = "a GPU", .features = one.has}});
    EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
    EXPECT_EQ(error.place, "device 'opencl:0'");
    EXPECT_EQ(error.need, one.need);
    EXPECT_EQ(error.fact, one.fact);
  }
}

TEST(OpenClRequirements, MissingDeviceIsReportedWithNumberOfDevices) {
  EXPECT_EQ(refusal(0, {}).fact, "this machine has none");
  EXPECT_THAT(refusal(0, {}).need, HasSubstr("device cpu"));
  EXPECT_EQ(refusal(1, {{.features = kEnough}}).fact, "this machine has 1 device");
  EXPECT_EQ(refusal(2, {{.features = kEnough}, {.features = kEnough}}).fact,
            "this machine has 2 devices");
}

}  // namespace
}  // namespace moracle::opencl_device_test
