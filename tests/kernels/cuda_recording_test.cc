// Recordings: nothing runs until they are repeated, what cannot be recorded is said, and the device
// stays usable.
#include "kernels/recording.h"

#include <gmock/gmock.h>

#include "kernels/cuda_test.h"

namespace moracle {
namespace {

using ::testing::Each;

class CudaRecordingTest : public CudaTest {};

TEST_F(CudaRecordingTest, RunsNothingUntilItIsRepeated) {
  const Buffer from = upload(std::vector<int32_t>(1 << 20, 7)), to = allocate(from.bytes());
  const auto recording = record(*device_, [&](Stream stream) {
    return device_->copy(to.data(), from.data(), from.bytes(), stream);
  });
  ASSERT_TRUE(recording) << recording.error().to_string();
  EXPECT_THAT(download<int32_t>(to), Each(0));
  for (const int64_t times : {1, 5, 3}) {
    const Result<std::vector<double>> seconds = (*recording)->repeat(times);
    ASSERT_TRUE(seconds) << seconds.error().to_string();
    ASSERT_EQ(seconds->size(), static_cast<size_t>(times));
    for (const double one : *seconds) {
      EXPECT_GT(one, 0);
      EXPECT_LT(one, 1);
    }
  }
  EXPECT_THAT(download<int32_t>(to), Each(7));
}

TEST_F(CudaRecordingTest, TellsWhatItsWorkSays) {
  const auto recording = record(*device_, [](Stream) -> Status {
    return Error{ErrorKind::kUnsupported, "", "work", "something else", "this"};
  });
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().place, "work");
}

TEST_F(CudaRecordingTest, RefusesToWaitAndLeavesTheDeviceUsable) {
  const auto recording =
      record(*device_, [&](Stream stream) { return device_->synchronize(stream); });
  EXPECT_FALSE(recording);
  EXPECT_THAT(download<int32_t>(upload(std::vector<int32_t>{1, 2})), ::testing::ElementsAre(1, 2));
  const Buffer to = allocate(8);
  const auto again = record(*device_, [&](Stream stream) {
    return device_->copy(to.data(), to.as<std::byte>() + 4, 4, stream);
  });
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_TRUE((*again)->repeat(1));
}

}  // namespace
}  // namespace moracle
