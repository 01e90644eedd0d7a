// The link between a GPU and the host that computes a part of a layer. Where the host answers
// before it enqueues add(), no kernel waits for it: compute-sanitizer, which hangs where one does,
// takes that test.
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/cuda/cuda_test.h"
#include "kernels/host_link.h"
#include "kernels/kernel_device.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_host_link_test {
namespace {

using testing::must;
using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 3, kTopK = 2;

class CudaHostLink : public CudaTest {
 protected:
  struct Call {
    std::vector<uint16_t> hidden, output;
    std::vector<int32_t> ids;
    std::vector<float> weights;
    Buffer on_hidden, on_output, on_ids, on_weights;
    int64_t cols;
    Matrix out() const { return bf16_matrix(on_output, kTokens, cols); }
    HostLink::Call sent() const {
      return {bf16_matrix(on_hidden, kTokens, cols), on_ids.as<int32_t>(), on_weights.as<float>(),
              kTokens * kTopK};
    }
  };
  std::vector<uint16_t> numbers(int64_t count) {
    return to_bf16(testing::normal_floats(random_, count));
  }
  Call call_of(int64_t cols) {
    Call call{.hidden = numbers(kTokens * cols), .output = numbers(kTokens * cols), .cols = cols};
    for (int64_t i = 0; i < kTokens * kTopK; ++i) {
      call.ids.push_back(static_cast<int32_t>(i * 3 % 5) - 1);
      call.weights.push_back(0.25F * static_cast<float>(i));
    }
    call.on_hidden = upload(call.hidden);
    call.on_output = upload(call.output);
    call.on_ids = upload(call.ids);
    call.on_weights = upload(call.weights);
    return call;
  }
  std::unique_ptr<HostLink> open_link(int64_t cols) {
    return must(kernel_device(*device_).host_link({kTokens, cols, kTopK, DType::kBF16}));
  }
  static void expect_arrived(const HostLink& link, const Call& call) {
    EXPECT_EQ(std::memcmp(link.hidden(), call.hidden.data(), call.hidden.size() * 2), 0);
    EXPECT_EQ(std::memcmp(link.ids(), call.ids.data(), call.ids.size() * 4), 0);
    EXPECT_EQ(std::memcmp(link.weights(), call.weights.data(), call.weights.size() * 4), 0);
  }

  std::mt19937 random_{7};
};

// Rows of whole words of 16 bytes, and others.
TEST_F(CudaHostLink, AddsSumsOfTheHost) {
  for (const int64_t cols : {64, 72, 70, 33}) {
    SCOPED_TRACE(cols);
    const DeviceLock lock = device_->lock();
    const auto link = open_link(cols);
    for (int step = 0; step < 3; ++step) {
      const Call call = call_of(cols);
      must(link->send(call.sent(), {}));
      must(link->arrived({}));
      expect_arrived(*link, call);
      const bool part = step != 1;
      const std::vector<uint16_t> sum = numbers(kTokens * cols);
      std::memcpy(link->sum(), sum.data(), sum.size() * 2);
      link->answer(part ? HostLink::Part::kSum : HostLink::Part::kNone);
      must(link->add(call.out(), {}));
      std::vector<float> want = from_bf16(call.output);
      const std::vector<float> added = from_bf16(sum);
      for (size_t i = 0; part && i < want.size(); ++i) want[i] += added[i];
      EXPECT_EQ(download<uint16_t>(call.on_output), to_bf16(want)) << "step " << step;
    }
    EXPECT_GE(link->waited_us(), 0);
  }
}

TEST_F(CudaHostLink, TellsHowLongTheGpuWaited) {
  const DeviceLock lock = device_->lock();
  const auto link = open_link(64);
  double before = 0;
  for (int step = 0; step < 3; ++step) {
    const Call call = call_of(64);
    const auto start = Clock::now();
    must(link->send(call.sent(), {}));
    must(link->add(call.out(), {}));
    must(link->arrived({}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    link->answer(HostLink::Part::kNone);
    must(device_->synchronize());
    const std::chrono::duration<double, std::micro> passed = Clock::now() - start;
    const double waited = link->waited_us() - before;
    EXPECT_GT(waited, 10'000);
    EXPECT_LE(waited, passed.count());
    before = link->waited_us();
  }
}

}  // namespace
}  // namespace moracle::cuda_host_link_test
