#include "bench/exchange.h"

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "base/try.h"
#include "bench/rank_timing.h"

namespace moracle::bench {
namespace {

using Operation = std::function<Status()>;

constexpr int kInGraph = 20;  // operations of one graph
constexpr int64_t kMostCalls = 100;
constexpr int64_t kBytesOfRound = int64_t{1} << 28;

int64_t calls_of(int64_t bytes) {
  return std::clamp<int64_t>(kBytesOfRound / std::max<int64_t>(bytes, 1), 5, kMostCalls);
}

class Timing {
 public:
  Timing(Exchange& exchange, Group& group, Device& device)
      : exchange_(exchange), group_(group), device_(device) {}

  Status run(int64_t bytes, std::vector<ExchangeTime>& times) {
    const int64_t size = group_.size(), count = bytes / 4;
    MORACLE_TRY(const Buffer own, device_.allocate(bytes));
    MORACLE_TRY(const Buffer all, device_.allocate(bytes * size));
    MORACLE_TRY(const Buffer received, device_.allocate(bytes));
    const Matrix x{own.data(), DType::kF32, 1, count, count};
    const Matrix rows{own.data(), DType::kF32, size, count / size, count / size};
    const Matrix row{received.data(), DType::kF32, 1, count / size, count / size};
    std::vector<Group::Block> send, receive;
    const auto each = static_cast<size_t>(bytes / size);
    for (int64_t r = 0; r < size; ++r) {
      send.push_back({own.as<std::byte>() + r * each, each});
      receive.push_back({all.as<std::byte>() + r * each, each});
    }
    MORACLE_CHECK(add(
        "all-reduce", bytes, true, [&] { return exchange_.all_reduce(x, {}); }, times));
    MORACLE_CHECK(add(
        "all-gather", bytes, true,
        [&] {
          return exchange_.all_gather(own.data(), static_cast<size_t>(bytes), all.data(), {});
        },
        times));
    MORACLE_CHECK(add(
        "reduce-scatter", bytes, true, [&] { return exchange_.reduce_scatter(rows, row, {}); },
        times));
    return add(
        "all-to-all", bytes, false, [&] { return exchange_.exchange(send, receive, {}); }, times);
  }

 private:
  Status add(const char* operation, int64_t bytes, bool recordable, const Operation& call,
             std::vector<ExchangeTime>& times) {
    ExchangeTime time{operation, bytes};
    MORACLE_TRY(time.us, time_together(call, calls_of(bytes), group_, device_));
    if (recordable && exchange_.in_graphs()) {
      MORACLE_TRY(const std::unique_ptr<Graph> graph, device_.record([&]() -> Status {
        for (int i = 0; i < kInGraph; ++i) MORACLE_CHECK(call());
        return {};
      }));
      if (graph != nullptr) {
        const int64_t replays = std::max<int64_t>(calls_of(bytes) / kInGraph, 1);
        MORACLE_TRY(const double us,
                    time_together([&] { return graph->replay(); }, replays, group_, device_));
        time.us_replayed = us / kInGraph;
      }
    }
    times.push_back(std::move(time));
    return {};
  }

  Exchange& exchange_;
  Group& group_;
  Device& device_;
};

}  // namespace

Result<std::vector<ExchangeTime>> time_exchange(Exchange& exchange, Group& group, Device& device,
                                                const std::vector<int64_t>& sizes) {
  std::vector<ExchangeTime> times;
  Timing timing(exchange, group, device);
  for (const int64_t bytes : sizes) {
    if (bytes < 1 || bytes % (8 * group.size()) != 0)
      return Error{ErrorKind::kInvalidArgument, "", "bytes of an exchange",
                   str("a multiple of ", 8 * group.size(), ": 8 for each rank"),
                   str("it is ", bytes)};
    MORACLE_CHECK(timing.run(bytes, times));
  }
  return times;
}

}  // namespace moracle::bench
