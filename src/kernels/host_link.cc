#include "kernels/host_link.h"

#include "base/try.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"

namespace moracle {
namespace {

class PlainHostLink final : public HostLink {
 public:
  explicit PlainHostLink(Device& device) : device_(device) {}
  Status start(const HostLinkSize& size) {
    MORACLE_CHECK(open(device_, size));
    MORACLE_TRY(sum_arrived_, device_.allocate(static_cast<size_t>(size.bytes())));
    return {};
  }

  bool device_waits() const override { return false; }
  Status send(const Call& call, Stream stream) override {
    const Matrix& rows = call.hidden;
    const auto bytes = static_cast<size_t>(rows.rows * rows.cols * bits(rows.dtype) / 8);
    MORACLE_CHECK(device_.download(ids(), call.ids, call.choices * sizeof(int32_t), stream));
    MORACLE_CHECK(device_.download(weights(), call.weights, call.choices * sizeof(float), stream));
    if (call.lora_ids != nullptr) {
      MORACLE_CHECK(
          device_.download(lora_ids(), call.lora_ids, rows.rows * sizeof(int32_t), stream));
    }
    return device_.download(hidden(), rows.data, bytes, stream);
  }
  Status arrived(Stream stream) override { return device_.synchronize(stream); }
  void answer(Part part) override { part_ = part; }
  Status add(const Matrix& output, Stream stream) override {
    if (part_ == Part::kNone) return {};
    const Matrix arrived{sum_arrived_.data(), output.dtype, output.rows, output.cols, output.cols};
    const auto bytes = static_cast<size_t>(output.rows * output.cols * bits(output.dtype) / 8);
    MORACLE_CHECK(device_.enqueue_upload(sum_arrived_.data(), sum(), bytes, stream));
    return kernel_device(device_).ops().add(output, arrived, stream);
  }

 private:
  Device& device_;
  Buffer sum_arrived_;
  Part part_ = Part::kNone;
};

}  // namespace

Status HostLink::open(Device& device, const HostLinkSize& size) {
  const auto bytes = static_cast<size_t>(size.bytes()),
             choices = static_cast<size_t>(size.choices());
  MORACLE_TRY(hidden_, device.allocate_host(bytes));
  MORACLE_TRY(sum_, device.allocate_host(bytes));
  MORACLE_TRY(ids_, device.allocate_host(choices * sizeof(int32_t)));
  MORACLE_TRY(weights_, device.allocate_host(choices * sizeof(float)));
  MORACLE_TRY(lora_ids_,
              device.allocate_host(static_cast<size_t>(size.num_tokens) * sizeof(int32_t)));
  return {};
}

Result<std::unique_ptr<HostLink>> plain_host_link(Device& device, const HostLinkSize& size) {
  auto link = std::make_unique<PlainHostLink>(device);
  MORACLE_CHECK(link->start(size));
  return std::unique_ptr<HostLink>(std::move(link));
}

}  // namespace moracle
