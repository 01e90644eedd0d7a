// One process: an all-reduce changes nothing, a gather is a copy.
#include "base/try.h"
#include "parallel/exchange_makers.h"

namespace moracle {
namespace {

class OneExchange final : public Exchange {
 public:
  explicit OneExchange(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::string_view name() const override { return "one"; }
  bool in_graphs() const override { return true; }
  Status all_reduce(const Matrix&, Stream) override { return {}; }
  using Exchange::all_gather;
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override {
    return copy(mine, bytes, all, stream);
  }
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override {
    return copy(all.data, static_cast<size_t>(mine.rows * mine.cols * bits(mine.dtype) / 8),
                mine.data, stream);
  }
  Status exchange(std::span<const Group::Block> send, std::span<const Group::Block> receive,
                  Stream stream) override {
    return copy(send[0].data, send[0].bytes, receive[0].data, stream);
  }

 private:
  Status copy(const void* from, size_t bytes, void* to, Stream stream) const {
    return from == to || bytes == 0 ? Status() : device_->copy(to, from, bytes, stream);
  }
  std::shared_ptr<Device> device_;
};

}  // namespace

Result<std::unique_ptr<Exchange>> make_one(std::shared_ptr<Group>, std::shared_ptr<Device> device) {
  return std::unique_ptr<Exchange>(std::make_unique<OneExchange>(std::move(device)));
}

}  // namespace moracle
