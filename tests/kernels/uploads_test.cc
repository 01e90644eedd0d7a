// Tests conversion for a device that the host cannot write to: the same bytes, and errors without
// loss of data.
#include "kernels/weights/uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "kernels/convert_cases.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle::uploads_test {
namespace {

// Host memory that only upload() may write.
class FarDevice final : public CpuDevice {
 public:
  explicit FarDevice(int threads) : CpuDevice(threads) {}
  bool host_visible() const override { return false; }
  Status upload(void* to, const void* from, size_t bytes, Stream stream) override {
    if (++uploads > last_upload)
      return Error{ErrorKind::kIo, "", "far device", "an upload", "it is out of reach"};
    return CpuDevice::upload(to, from, bytes, stream);
  }
  int uploads = 0, last_upload = 1 << 30;
};

std::vector<std::byte> bytes_of(const Result<KernelWeights>& weights) {
  EXPECT_TRUE(weights) << weights.error().to_string();
  if (!weights) return {};
  const auto* const bytes = weights->buffer.as<std::byte>();
  return {bytes, bytes + weights->buffer.bytes()};
}

TEST(Uploads, MatchHostConversionBytes) {
  for (const Layout* layout : layouts()) {
    for (const ConvertCase& c : convert_cases()) {
      if (!holds(*layout, c.shape.key.dtype)) continue;
      const auto matrix = [&] { return stacked(c.shape, c.rows, c.num_experts); };
      const std::vector<std::byte> here =
          bytes_of(convert(matrix(), *layout, *open_device()->get()));
      ASSERT_FALSE(here.empty());
      for (const int threads : {1, 3}) {
        FarDevice far(threads);
        EXPECT_TRUE(bytes_of(convert(matrix(), *layout, far)) == here)
            << layout->name << " [" << c.shape.n << ", " << c.shape.k << "], " << threads;
        EXPECT_GT(far.uploads, 0);
      }
    }
  }
}

TEST(Uploads, ReportFirstUnreadableExpertAndDeviceErrors) {
  for (const int threads : {1, 4}) {
    FarDevice far(threads);
    const auto broken =
        convert(stacked({32, 64, kBF16Weight}, {32}, 24, {5, 7, 20}), *layouts()[0], far);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().place, "expert 5");
    far.last_upload = far.uploads + 3;
    const auto cut = convert(stacked({32, 64, kBF16Weight}, {32}, 24), *layouts()[0], far);
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().kind, ErrorKind::kIo);
    EXPECT_EQ(cut.error().place, "far device");
    const auto stopped = convert(stacked({32, 64, kBF16Weight}, {32}, 24), *layouts()[0], far,
                                 [](int64_t, int64_t) { return false; });
    ASSERT_FALSE(stopped);
  }
}

TEST(Uploads, StopOnRequest) {
  FarDevice far(2);
  const auto stopped = convert(stacked({32, 64, kBF16Weight}, {32}, 24), *layouts()[0], far,
                               [](int64_t, int64_t) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
}

TEST(Uploads, RejectDeviceThatDoesNotPack) {
  FarDevice far(1);
  const std::unique_ptr<Uploads> uploads = open_uploads(far);
  const MatrixShape shape{16, 16, kBF16Weight};
  for (const Layout* layout : layouts()) EXPECT_FALSE(uploads->packs(*layout, shape));
  const Status refused = uploads->send_rows(kCanonicalLayout, shape, {}, 0, 0, 16, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace moracle::uploads_test
