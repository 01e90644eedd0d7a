// Exchanges between the GPUs of this machine. The ranks are threads, each with a GPU of its own.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/scalar.h"
#include "base/try.h"
#include "moracle/moracle.h"
#include "ranks_of_threads.h"
#include "support/must.h"

namespace moracle::cuda_exchange_test {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::on_ranks;

class CudaExchange : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (cudaGetDeviceCount(&gpus_) != cudaSuccess || gpus_ < 2)
      GTEST_SKIP() << "needs two NVIDIA GPUs; there are " << gpus_;
    ExchangeRequest request{Platform::kCuda, 2};
    request.row = must(parse_exchange(GetParam()));
    const ExchangeSelection selection = select_exchange(request);
    if (selection.chosen == nullptr) GTEST_SKIP() << explain(selection);
  }

  int gpus_ = 0;
};

// One rank's GPU with its exchange.
struct Gpu {
  std::shared_ptr<Device> device;
  std::unique_ptr<Exchange> exchange;
  int64_t rank, ranks;

  Gpu(const std::shared_ptr<Group>& group, std::string_view row)
      : device(must(open_device("cuda:" + std::to_string(group->rank()), 1))),
        exchange(must(open_exchange(group, device, must(parse_exchange(row))))),
        rank(group->rank()),
        ranks(group->size()) {}
  Buffer put(const std::vector<uint16_t>& values) const {
    Buffer buffer = must(device->allocate(values.size() * 2));
    must(device->upload(buffer.data(), values.data(), values.size() * 2));
    return buffer;
  }
  std::vector<uint16_t> get(const Buffer& buffer) const {
    std::vector<uint16_t> values(buffer.bytes() / 2);
    must(device->download(values.data(), buffer.data(), buffer.bytes()));
    must(device->synchronize());
    return values;
  }
};

// Small integers, whose sums bf16 holds.
float value(int64_t rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 31) % 97 - 48);
}
std::vector<uint16_t> values_of(int64_t rank, int64_t count) {
  std::vector<uint16_t> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = float_to_bf16(value(rank, i));
  return values;
}
uint16_t sum_at(int64_t ranks, int64_t i) {
  float sum = 0;
  for (int64_t r = 0; r < ranks; ++r) sum += value(r, i);
  return float_to_bf16(sum);
}

// Low-latency protocol: one thread block, many rounds, a size that no packet divides. Then chunks:
// a part of one, one round and several, a size that no chunk divides, one that 16 bytes do not
// divide.
constexpr int64_t kCounts[] = {4,     2048,    70'000,    131'072,   300'004,   2'000'000,
                               9'999, 262'152, 1'048'576, 2'097'160, 5'000'008, 5'000'004};

TEST_P(CudaExchange, RepeatedAllReduceGivesTheSumOnEveryRank) {
  for (int ranks = 2; ranks <= std::min(gpus_, 4); ++ranks) {
    std::atomic<int> good{0};
    on_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
      const Gpu gpu(group, GetParam());
      bool same = true;
      for (int again = 0; again < 3; ++again) {
        for (const int64_t count : kCounts) {
          const Buffer x = gpu.put(values_of(gpu.rank, count));
          must(gpu.exchange->all_reduce({x.data(), DType::kBF16, 1, count, count}, {}));
          const auto got = gpu.get(x);
          for (int64_t i = 0; i < count; ++i) same = same && got[i] == sum_at(gpu.ranks, i);
        }
      }
      good += same;
    });
    EXPECT_EQ(good, ranks);
  }
}

TEST_P(CudaExchange, GraphOfSumsReplays) {
  std::atomic<int> good{0};
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Gpu gpu(group, GetParam());
    constexpr int64_t kCount = 2048;
    const Buffer x = gpu.put(values_of(gpu.rank, kCount));
    const auto sum = [&] {
      return gpu.exchange->all_reduce({x.data(), DType::kBF16, 1, kCount, kCount}, {});
    };
    must(sum());
    must(gpu.device->synchronize());
    auto graph = must(gpu.device->record([&] { return sum(); }));
    bool same = true;
    for (int again = 0; again < 50; ++again) {
      const auto values = values_of(gpu.rank + again, kCount);
      must(gpu.device->upload(x.data(), values.data(), kCount * 2));
      must(graph->replay());
      const auto got = gpu.get(x);
      for (int64_t i = 0; i < kCount; ++i)
        same = same && got[i] == float_to_bf16(value(again, i) + value(again + 1, i));
    }
    good += same;
  });
  EXPECT_EQ(good, 2);
}

TEST_P(CudaExchange, AllGatherAndReduceScatterGiveExpectedValues) {
  std::atomic<int> good{0};
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Gpu gpu(group, GetParam());
    bool same = true;
    for (const int64_t count : kCounts) {
      const int64_t few = 4 * (1 + count % 5);
      const Buffer mine = gpu.put(values_of(gpu.rank, count)),
                   also = gpu.put(values_of(gpu.rank + 5, few));
      const Buffer all = must(gpu.device->allocate(2 * count * 2)),
                   all_also = must(gpu.device->allocate(2 * few * 2));
      const Exchange::Gathered parts[] = {{mine.data(), mine.bytes(), all.data()},
                                          {also.data(), also.bytes(), all_also.data()}};
      must(gpu.exchange->all_gather(parts, {}));
      const auto got = gpu.get(all), got_also = gpu.get(all_also);
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t i = 0; i < count; ++i)
          same = same && got[r * count + i] == float_to_bf16(value(r, i));
        for (int64_t i = 0; i < few; ++i)
          same = same && got_also[r * few + i] == float_to_bf16(value(r + 5, i));
      }
      // The two ranks have the same rows: the sums are twice the values.
      must(gpu.exchange->reduce_scatter({all.data(), DType::kBF16, 2, count, count},
                                        {mine.data(), DType::kBF16, 1, count, count}, {}));
      const auto sums = gpu.get(mine);
      for (int64_t i = 0; i < count; ++i)
        same = same && sums[i] == float_to_bf16(2 * value(gpu.rank, i));
    }
    good += same;
  });
  EXPECT_EQ(good, 2);
}

// Both protocols by turns in a graph: the numbers of their rounds continue through its replays.
TEST_P(CudaExchange, ReplayedAllGatherAndReduceScatterMatchHostExchange) {
  constexpr int64_t kMany = 1'300'008, kFew = 2048;
  struct Results {
    Buffer all, all_few, sums;
  };
  std::atomic<int> good{0};
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Gpu gpu(group, GetParam()), host(group, "host");
    const auto results_of = [](const Gpu& on) {
      return Results{must(on.device->allocate(4 * kMany)), must(on.device->allocate(4 * kFew)),
                     must(on.device->allocate(2 * kMany))};
    };
    const Results here = results_of(gpu), there = results_of(host);
    std::vector<uint16_t> values(2 * kMany);
    const auto fill = [&](int64_t seed) {  // numbers whose sums bf16 rounds
      for (int64_t i = 0; i < 2 * kMany; ++i)
        values[i] = float_to_bf16(0.37f * value(gpu.rank * 5 + seed, i));
    };
    fill(0);
    const Buffer rows = gpu.put(values);
    const auto step = [&](const Gpu& on, const Results& to) -> Status {
      const Exchange::Gathered parts[] = {{rows.data(), 2 * kMany, to.all.data()},
                                          {rows.data(), 2 * kFew, to.all_few.data()}};
      MORACLE_CHECK(on.exchange->all_gather(parts, {}));
      MORACLE_CHECK(on.exchange->all_gather({parts + 1, 1}, {}));
      return on.exchange->reduce_scatter({rows.data(), DType::kBF16, 2, kMany, kMany},
                                         {to.sums.data(), DType::kBF16, 1, kMany, kMany}, {});
    };
    must(step(gpu, here));
    must(gpu.device->synchronize());
    auto graph = must(gpu.device->record([&] { return step(gpu, here); }));
    bool same = true;
    for (int again = 1; again <= 40; ++again) {
      if (again % 8 == 0) {  // the host takes longer
        fill(again);
        must(gpu.device->upload(rows.data(), values.data(), rows.bytes()));
      }
      must(graph->replay());
      if (again % 8 != 0) continue;
      must(gpu.device->synchronize());
      must(step(host, there));
      same = same && gpu.get(here.all) == host.get(there.all) &&
             gpu.get(here.all_few) == host.get(there.all_few) &&
             gpu.get(here.sums) == host.get(there.sums);
    }
    good += same;
  });
  EXPECT_EQ(good, 2);
}

TEST_P(CudaExchange, ExchangesUnevenBlocks) {
  std::atomic<int> good{0};
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Gpu gpu(group, GetParam());
    // Rank 0 sends nothing to rank 1, which sends 70,000.
    const int64_t out = gpu.rank == 0 ? 0 : 70'000, in = gpu.rank == 0 ? 70'000 : 0;
    const Buffer own = gpu.put(values_of(gpu.rank, 8)), other = gpu.put(values_of(9, 70'000));
    const Buffer kept = must(gpu.device->allocate(16)),
                 arrived = must(gpu.device->allocate(140'000));
    std::vector<Group::Block> send(2), receive(2);
    send[gpu.rank] = {own.as<std::byte>(), 16};
    receive[gpu.rank] = {kept.as<std::byte>(), 16};
    send[1 - gpu.rank] = {other.as<std::byte>(), static_cast<size_t>(out * 2)};
    receive[1 - gpu.rank] = {arrived.as<std::byte>(), static_cast<size_t>(in * 2)};
    must(gpu.exchange->exchange(send, receive, {}));
    bool same = gpu.get(kept) == values_of(gpu.rank, 8);
    if (gpu.rank == 0) same = same && gpu.get(arrived) == values_of(9, 70'000);
    must(gpu.device->synchronize());
    good += same;
  });
  EXPECT_EQ(good, 2);
}

// Kernels of both protocols wait for the other GPU when its rank ends.
TEST_P(CudaExchange, WaitForARankThatEndedNamesIt) {
  for (const int64_t count : {2048, 2'000'000}) {
    std::string error;
    double seconds = 0;
    std::atomic<bool> connected{false};  // rank 1 ends afterwards
    on_ranks(2, [&](const std::shared_ptr<Group>& group) {
      const Gpu gpu(group, GetParam());
      if (group->rank() == 1) {
        while (!connected) std::this_thread::yield();
        return;
      }
      connected = true;
      const Buffer x = gpu.put(values_of(0, count));
      const auto start = std::chrono::steady_clock::now();
      Status done = gpu.exchange->all_reduce({x.data(), DType::kBF16, 1, count, count}, {});
      if (done) done = gpu.device->synchronize();
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      error = done ? "no error" : done.error().to_string();
    });
    EXPECT_THAT(error, HasSubstr("rank 1: needs to take part until the end"));
    EXPECT_LT(seconds, 10);
  }
}

TEST_P(CudaExchange, WaitForASilentRankEndsAtTheTimeout) {
  std::string error;
  std::atomic<bool> over{false};
  on_ranks(
      2,
      [&](const std::shared_ptr<Group>& group) {
        const Gpu gpu(group, GetParam());
        if (group->rank() == 1) {
          while (!over) std::this_thread::yield();
          return;
        }
        const Buffer x = gpu.put(values_of(0, 2048));
        Status done = gpu.exchange->all_reduce({x.data(), DType::kBF16, 1, 2048, 2048}, {});
        if (done) done = gpu.device->synchronize();
        error = done ? "no error" : done.error().to_string();
        over = true;
      },
      10);
  EXPECT_THAT(error, HasSubstr("rank 1: needs an answer within 10 s (timeout_seconds)"));
}

INSTANTIATE_TEST_SUITE_P(CudaRows, CudaExchange, ::testing::Values("nccl", "cuda-peer"),
                         [](const auto& row) {
                           return std::string(row.param) == "nccl" ? "Nccl" : "Peer";
                         });

}  // namespace
}  // namespace moracle::cuda_exchange_test
