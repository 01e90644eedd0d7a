// Tests graph recording: nothing runs until replay, unsupported work gives an error, and the device
// stays usable.
#include <gmock/gmock.h>

#include "kernels/cuda/cuda_test.h"

namespace moracle::cuda_record_test {
namespace {

using ::testing::Each;

class CudaRecordTest : public CudaTest {};

TEST_F(CudaRecordTest, RunsNothingUntilReplayed) {
  const Buffer from = upload(std::vector<int32_t>(1 << 20, 7)), to = allocate(from.bytes());
  const auto recording =
      device_->record([&] { return device_->copy(to.data(), from.data(), from.bytes()); });
  ASSERT_TRUE(recording) << recording.error().to_string();
  EXPECT_THAT(download<int32_t>(to), Each(0));
  const auto timeline = device_->timeline();
  ASSERT_TRUE(timeline) << timeline.error().to_string();
  for (const size_t times : {1, 5, 3}) {
    ASSERT_TRUE((*timeline)->mark());
    for (size_t i = 0; i < times; ++i) {
      ASSERT_TRUE((*recording)->replay());
      ASSERT_TRUE((*timeline)->mark());
    }
    const Result<std::vector<double>> us = (*timeline)->take();
    ASSERT_TRUE(us) << us.error().to_string();
    ASSERT_EQ(us->size(), times);
    for (const double one : *us) {
      EXPECT_GT(one, 0);
      EXPECT_LT(one, 1e6);
    }
  }
  EXPECT_THAT(download<int32_t>(to), Each(7));
}

TEST_F(CudaRecordTest, ReturnsErrorOfRecordedWork) {
  const auto recording = device_->record([]() -> Status {
    return Error{ErrorKind::kUnsupported, "", "work", "something else", "this"};
  });
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().place, "work");
}

TEST_F(CudaRecordTest, RejectsWaitWhileRecordingAndKeepsDeviceUsable) {
  const auto recording = device_->record([&] { return device_->synchronize(); });
  EXPECT_FALSE(recording);
  EXPECT_THAT(download<int32_t>(upload(std::vector<int32_t>{1, 2})), ::testing::ElementsAre(1, 2));
  const Buffer to = allocate(8);
  const auto again =
      device_->record([&] { return device_->copy(to.data(), to.as<std::byte>() + 4, 4); });
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_TRUE((*again)->replay());
  EXPECT_TRUE(device_->synchronize());
}

}  // namespace
}  // namespace moracle::cuda_record_test
