// Moves activations through host memory, over any transport. A GPU's values are copied to the host
// and back. Sums are taken in the order of the ranks, so every rank gets the same bits, and two
// runs get the same.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "parallel/exchange_makers.h"
#include "parallel/host_sums.h"

namespace moracle {
namespace {

using Bytes = std::vector<std::byte>;
using Block = Group::Block;

// Up to this size all-reduce is an all-gather and a local sum, which waits for one message instead
// of two.
constexpr size_t kMostGathered = size_t{64} << 10;

class HostExchange final : public Exchange {
 public:
  HostExchange(std::shared_ptr<Group> group, std::shared_ptr<Device> device)
      : group_(std::move(group)), device_(std::move(device)) {}
  std::string_view name() const override { return "host"; }
  bool through_host() const override { return device_->host_visible(); }

  Status all_reduce(const Matrix& x, Stream stream) override;
  using Exchange::all_gather;
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override;
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override;
  Status exchange(std::span<const Block> send, std::span<const Block> receive,
                  Stream stream) override;

 private:
  // The values on the host: in place, or copied to `staging`.
  Result<std::byte*> on_host(const void* data, size_t bytes, Bytes& staging, Stream stream) {
    if (device_->host_visible()) return static_cast<std::byte*>(const_cast<void*>(data));
    if (staging.size() < bytes) staging.resize(bytes);
    MORACLE_CHECK(device_->download(staging.data(), data, bytes, stream));
    MORACLE_CHECK(device_->synchronize(stream));
    return staging.data();
  }
  Status to_device(void* to, const std::byte* from, size_t bytes, Stream stream) {
    if (from == to || bytes == 0) return {};
    if (device_->host_visible()) {
      std::memcpy(to, from, bytes);
      return {};
    }
    MORACLE_CHECK(device_->upload(to, from, bytes, stream));
    return device_->synchronize(stream);  // before the staging memory is overwritten
  }
  // All-reduce of small x: all-gather, then every rank sums all values.
  Status gather_and_sum(std::byte* values, const Matrix& x, int64_t count);
  // All-reduce of large x: each rank sums one slice (reduce-scatter), then all-gather.
  Status scatter_and_gather(std::byte* values, const Matrix& x, int64_t count);

  std::shared_ptr<Group> group_;
  std::shared_ptr<Device> device_;
  Bytes staging_, arrived_;
};

Status check_sum(const Matrix& x) {
  const bool is_float = x.dtype == DType::kF32 || x.dtype == DType::kBF16 || x.dtype == DType::kF16;
  if (is_float && x.stride == x.cols) return {};
  return Error{ErrorKind::kInvalidArgument, "", "sum over ranks", "f32, bf16 or f16 without gaps",
               str("it is ", name(x.dtype), " with stride ", x.stride, " of ", x.cols, " columns")};
}

Status HostExchange::gather_and_sum(std::byte* values, const Matrix& x, int64_t count) {
  const size_t bytes = static_cast<size_t>(count * bits(x.dtype) / 8);
  arrived_.resize(std::max(arrived_.size(), bytes * group_->size()));
  MORACLE_CHECK(group_->all_gather({values, bytes}, {arrived_.data(), bytes * group_->size()}));
  std::vector<const void*> inputs;
  for (int64_t r = 0; r < group_->size(); ++r) inputs.push_back(arrived_.data() + r * bytes);
  sum_inputs(inputs, x.dtype, count, values, kernel_device(*device_).host_threads());
  return {};
}

Status HostExchange::scatter_and_gather(std::byte* values, const Matrix& x, int64_t count) {
  const int64_t size = group_->size(), rank = group_->rank(), element = bits(x.dtype) / 8;
  const auto slice = [&](int64_t r) {
    const ThreadPool::Range range = ThreadPool::range_of(count, static_cast<int>(r), size);
    return Block{values + range.begin * element,
                 static_cast<size_t>((range.end - range.begin) * element)};
  };
  const Block own = slice(rank);
  arrived_.resize(std::max(arrived_.size(), own.bytes * size));
  std::vector<Block> send, receive;
  std::vector<const void*> inputs;
  for (int64_t r = 0; r < size; ++r) {
    send.push_back(slice(r));
    receive.push_back({r == rank ? own.data : arrived_.data() + r * own.bytes, own.bytes});
    inputs.push_back(receive.back().data);
  }
  MORACLE_CHECK(group_->exchange(send, receive));
  sum_inputs(inputs, x.dtype, static_cast<int64_t>(own.bytes) / element, own.data,
             kernel_device(*device_).host_threads());
  const std::vector<Block> finished(size, own);
  return group_->exchange(finished, send);
}

Status HostExchange::all_reduce(const Matrix& x, Stream stream) {
  MORACLE_CHECK(check_sum(x));
  const int64_t count = x.rows * x.cols;
  const size_t bytes = static_cast<size_t>(count * bits(x.dtype) / 8);
  if (bytes == 0) return {};
  MORACLE_TRY(std::byte* const values, on_host(x.data, bytes, staging_, stream));
  MORACLE_CHECK(bytes <= kMostGathered ? gather_and_sum(values, x, count)
                                       : scatter_and_gather(values, x, count));
  return to_device(x.data, values, bytes, stream);
}

Status HostExchange::all_gather(const void* mine, size_t bytes, void* all, Stream stream) {
  MORACLE_TRY(std::byte* const own, on_host(mine, bytes, staging_, stream));
  const size_t total = bytes * group_->size();
  if (device_->host_visible())
    return group_->all_gather({own, bytes}, {static_cast<std::byte*>(all), total});
  arrived_.resize(std::max(arrived_.size(), total));
  MORACLE_CHECK(group_->all_gather({own, bytes}, {arrived_.data(), total}));
  return to_device(all, arrived_.data(), total, stream);
}

Status HostExchange::reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) {
  MORACLE_CHECK(check_sum(all));
  const int64_t size = group_->size();
  const size_t own = static_cast<size_t>(mine.rows * mine.cols * bits(mine.dtype) / 8);
  if (all.rows != mine.rows * size || all.cols != mine.cols || mine.stride != mine.cols)
    return Error{ErrorKind::kInvalidArgument, "", "reduce-scatter",
                 str(mine.rows * size, " rows of ", mine.cols, " columns, for ", size, " ranks"),
                 str("there are ", all.rows, " of ", all.cols)};
  if (own == 0) return {};
  MORACLE_TRY(std::byte* const values, on_host(all.data, own * size, staging_, stream));
  arrived_.resize(std::max(arrived_.size(), own * size));
  std::vector<Block> send, receive;
  std::vector<const void*> inputs;
  for (int64_t r = 0; r < size; ++r) {
    send.push_back({values + r * own, own});
    receive.push_back({arrived_.data() + r * own, own});
    inputs.push_back(receive.back().data);
  }
  MORACLE_CHECK(group_->exchange(send, receive));
  const bool here = device_->host_visible();
  std::byte* const to = here ? static_cast<std::byte*>(mine.data) : arrived_.data();
  sum_inputs(inputs, mine.dtype, mine.rows * mine.cols, to, kernel_device(*device_).host_threads());
  return to_device(mine.data, to, own, stream);
}

Status HostExchange::exchange(std::span<const Block> send, std::span<const Block> receive,
                              Stream stream) {
  if (device_->host_visible()) return group_->exchange(send, receive);
  // Packs all blocks into host memory.
  const auto lay_out = [](std::span<const Block> blocks, Bytes& memory) {
    size_t bytes = 0;
    for (const Block& block : blocks) bytes += block.bytes;
    memory.resize(std::max(memory.size(), bytes));
    std::vector<Block> placed;
    size_t at = 0;
    for (const Block& block : blocks) {
      placed.push_back({memory.data() + at, block.bytes});
      at += block.bytes;
    }
    return placed;
  };
  const std::vector<Block> out = lay_out(send, staging_), in = lay_out(receive, arrived_);
  for (size_t r = 0; r < send.size(); ++r) {
    if (send[r].bytes > 0)
      MORACLE_CHECK(device_->download(out[r].data, send[r].data, send[r].bytes, stream));
  }
  MORACLE_CHECK(device_->synchronize(stream));
  MORACLE_CHECK(group_->exchange(out, in));
  for (size_t r = 0; r < receive.size(); ++r) {
    if (receive[r].bytes > 0)
      MORACLE_CHECK(device_->upload(receive[r].data, in[r].data, in[r].bytes, stream));
  }
  return device_->synchronize(stream);
}

}  // namespace

Result<std::unique_ptr<Exchange>> make_host(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device) {
  return std::unique_ptr<Exchange>(
      std::make_unique<HostExchange>(std::move(group), std::move(device)));
}

}  // namespace moracle
