#include "kernels/weights/expert_transfers.h"

#include "base/try.h"
#include "kernels/kernel_device.h"
#include "layout/unpack.h"

namespace moracle {
namespace {

class PlainTransfers final : public ExpertTransfers {
 public:
  PlainTransfers(Device& device, Buffer packed) : device_(device), packed_(std::move(packed)) {}

  bool in_background(std::span<const ExpertMatrix>) const override { return false; }
  Result<int64_t> begin(std::span<const ExpertMatrix> matrices, const Mark&,
                        Stream stream) override {
    for (const ExpertMatrix& m : matrices) {
      const PackedRows rows{m.from, m.from_shape, m.packed, 0, m.from_shape->n};
      auto* const packed = packed_.as<std::byte>();
      MORACLE_CHECK(
          repack(rows, *m.to, *m.to_shape, kernel_device(device_).host_threads(), packed));
      const size_t bytes = m.to->sections(*m.to_shape).bytes;
      MORACLE_CHECK(device_.enqueue_upload(m.out, packed, bytes, stream));
    }
    return ++begun_;
  }
  Result<Mark> mark(Stream) override { return Mark(); }
  Result<bool> arrived(int64_t) override { return true; }
  Status wait(int64_t, Stream) override { return {}; }
  Status finish() override { return device_.synchronize(); }

 private:
  Device& device_;
  Buffer packed_;
  int64_t begun_ = 0;
};

}  // namespace

Result<std::unique_ptr<ExpertTransfers>> plain_transfers(Device& device, int64_t max_bytes) {
  MORACLE_TRY(Buffer packed, device.allocate_host(static_cast<size_t>(max_bytes)));
  return std::unique_ptr<ExpertTransfers>(new PlainTransfers(device, std::move(packed)));
}

}  // namespace moracle
