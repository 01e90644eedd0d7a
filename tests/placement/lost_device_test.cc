// A device whose calls fail, at every call of a script. Whatever failed, a device that works again
// gives right sums.
#include <gmock/gmock.h>

#include "kernels/cpu/device/cpu_device.h"
#include "placement/placed_layers.h"

namespace moracle::lost_device_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::HasSubstr;

/// A CPU device that is lost for all calls from a number on.
class FailingDevice final : public CpuDevice {
 public:
  FailingDevice() : CpuDevice(1) {}
  void fail_from(int64_t call) { calls_ = 0, fails_from_ = call; }
  bool failed() const { return calls_ > fails_from_; }

  Status upload(void* to, const void* from, size_t bytes, Stream stream) override {
    const Status works = call();
    return works ? CpuDevice::upload(to, from, bytes, stream) : works;
  }
  Status download(void* to, const void* from, size_t bytes, Stream stream) override {
    const Status works = call();
    return works ? CpuDevice::download(to, from, bytes, stream) : works;
  }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    const Status works = call();
    return works ? CpuDevice::copy(to, from, bytes, stream) : works;
  }
  Status synchronize(Stream stream) override {
    const Status works = call();
    return works ? CpuDevice::synchronize(stream) : works;
  }

 private:
  Status call() {
    if (calls_++ < fails_from_) return {};
    return Error{ErrorKind::kIo, "", "gpu:0", "a device that works", "it is lost"};
  }

  int64_t calls_ = 0, fails_from_ = std::numeric_limits<int64_t>::max();
};

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Lost {
  std::shared_ptr<FailingDevice> device = std::make_shared<FailingDevice>();
  std::shared_ptr<DevicePair> devices =
      std::make_shared<DevicePair>(std::make_shared<Workspace>(must(open_device("cpu", 1))),
                                   std::make_shared<Workspace>(device));
};

Status apply(PlacedMoe& moe, TokenBatch batch, std::vector<float>& output) {
  const int64_t hidden = moe.host_plan().layer.hidden_size;
  output.assign(batch.hidden.size(), NAN);
  return moe.apply(Matrix::f32(batch.hidden.data(), batch.tokens, hidden), {batch.ids.data()},
                   {batch.weights.data()}, Matrix::f32(output.data(), batch.tokens, hidden));
}

TEST(LostDevice, IsErrorOfEveryCallAndWorksAgain) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const RowNames rows{"cpu", "reference"};
  const DescribedWeights weights = conformance::random_weights(spec, 3);
  const bool from_files[] = {false, true};
  for (const bool files : from_files) {
    int64_t failures = 0;
    for (int64_t from = 0;; ++from) {
      SCOPED_TRACE(std::to_string(from) + (files ? ", files" : ""));
      ASSERT_LT(from, 500);
      Lost lost;
      PlacedMoe moe =
          files ? must(PlacedMoe::make_from_files(
                      conformance::random_weights(spec, 3), select_slots(spec, rows.host, 2),
                      select_slots(spec, rows.slots, 2), lost.devices, false))
                : must(make(spec, rows, 2, 3, lost.devices));
      if (!files) must(moe.stream(select_slots(spec, rows.slots, 4)));
      moe.set_policy(kEager);
      std::vector<float> output;
      lost.device->fail_from(from);
      std::vector<Status> done;
      constexpr CallWay kWays[] = {CallWay::kDivided, CallWay::kFetched, CallWay::kStreamed};
      for (uint32_t step = 0; step < 3; ++step) {
        moe.set_ways({kWays[step]});
        done.push_back(apply(moe, batch_of(spec, step), output));
        done.push_back(moe.place(static_cast<int64_t>(step), 1));
        const Result<int64_t> moved = lost.devices->move(2);
        done.push_back(moved ? Status() : moved.error());
      }
      const bool failed = lost.device->failed();
      for (const Status& one : done) {
        if (one) continue;
        EXPECT_THAT(one.error().to_string(), HasSubstr("it is lost"));
        ++failures;
      }
      lost.device->fail_from(kNever);
      for (uint32_t step = 0; step < 4; ++step) {
        moe.set_ways({kWays[step % std::size(kWays)]});
        const TokenBatch batch = batch_of(spec, 50 + step);
        must(apply(moe, batch, output));
        EXPECT_LE(share_of_bound(expected_of_both(weights, batch, rows), output), 1)
            << "step " << step;
        must(lost.devices->move(2));
      }
      if (!failed) break;
    }
    EXPECT_GT(failures, 20);
  }
}

}  // namespace
}  // namespace moracle::lost_device_test
