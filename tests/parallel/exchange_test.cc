// Sums and gathers between ranks on the CPU, and which exchange serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/scalar.h"
#include "base/text.h"
#include "moracle/parallel.h"
#include "ranks_of_threads.h"

namespace moracle::exchange_test {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;

// A value that differs by rank and place, whose sum depends on the order.
float value(int64_t rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 31) % 97) * (rank % 2 == 0 ? 1.37e3f : -1.1e-3f);
}
float sum_of_ranks(int64_t size, int64_t i) {
  float sum = value(0, i);
  for (int64_t r = 1; r < size; ++r) sum += value(r, i);
  return sum;
}

// Small sums are all-gathered, large ones reduce-scattered; 3 does not divide the sizes.
TEST(HostExchange, SumsInRankOrderOnEveryRank) {
  for (const int64_t cols : {5, 20'003}) {
    std::atomic<int> good{0};
    on_ranks(3, [&](const std::shared_ptr<Group>& group) {
      const auto device = *open_device("cpu", 1);
      const auto exchange = *open_exchange(group, device);
      ASSERT_EQ(exchange->name(), "host");
      std::vector<float> x(2 * cols);
      for (size_t i = 0; i < x.size(); ++i) x[i] = value(group->rank(), static_cast<int64_t>(i));
      ASSERT_TRUE(exchange->all_reduce(Matrix::f32(x.data(), 2, cols), {}));
      bool same = true;
      for (size_t i = 0; i < x.size(); ++i)
        same = same && x[i] == sum_of_ranks(3, static_cast<int64_t>(i));
      good += same;
    });
    EXPECT_EQ(good, 3) << cols << " columns";
  }
}

TEST(HostExchange, Sums16BitNumbersInF32) {
  std::atomic<int> good{0};
  on_ranks(3, [&](const std::shared_ptr<Group>& group) {
    const auto exchange = *open_exchange(group, *open_device("cpu", 1));
    // 256 + 1 + 1 in bf16 step by step would stay 256.
    std::vector<uint16_t> x(64, float_to_bf16(group->rank() == 0 ? 256.0f : 1.0f));
    ASSERT_TRUE(exchange->all_reduce({x.data(), DType::kBF16, 1, 64, 64}, {}));
    good += bf16_to_float(x[63]) == 258.0f;
  });
  EXPECT_EQ(good, 3);
}

TEST(HostExchange, ReduceScatterGivesEachRankItsRows) {
  std::atomic<int> good{0};
  on_ranks(3, [&](const std::shared_ptr<Group>& group) {
    const auto exchange = *open_exchange(group, *open_device("cpu", 1));
    constexpr int64_t kRows = 2, kCols = 9;
    std::vector<float> all(3 * kRows * kCols), mine(kRows * kCols);
    for (size_t i = 0; i < all.size(); ++i) all[i] = value(group->rank(), static_cast<int64_t>(i));
    ASSERT_TRUE(exchange->reduce_scatter(Matrix::f32(all.data(), 3 * kRows, kCols),
                                         Matrix::f32(mine.data(), kRows, kCols), {}));
    bool same = true;
    for (int64_t i = 0; i < kRows * kCols; ++i)
      same = same && mine[i] == sum_of_ranks(3, group->rank() * kRows * kCols + i);
    good += same;
  });
  EXPECT_EQ(good, 3);
}

TEST(Exchanges, OneProcessMovesNothing) {
  const auto group = *open_group({});
  const auto exchange = *open_exchange(group, *open_device("cpu", 1));
  EXPECT_EQ(exchange->name(), "one");
  float x = 3;
  EXPECT_TRUE(exchange->all_reduce(Matrix::f32(&x, 1, 1), {}));
  EXPECT_EQ(x, 3);
}

TEST(Exchanges, ExplainListsReasonsOfEveryRow) {
  const ExchangeSelection selection = select_exchange({Platform::kCpu, 4});
  ASSERT_NE(selection.chosen, nullptr);
  EXPECT_EQ(selection.chosen->name, "host");
  EXPECT_EQ(selection.considered.size(), exchanges().size());
  EXPECT_THAT(explain(selection), HasSubstr("no   ranks needs one rank; there are 4"));
}

TEST(Exchanges, GpuRowsNameWhatTheMachineLacks) {
  const ExchangeSelection selection = select_exchange({Platform::kCuda, 2});
  ASSERT_NE(selection.chosen, nullptr);
  const std::string text = explain(selection);
  for (const ExchangeVerdict& verdict : selection.considered) {
    if (verdict.row->platform != Platform::kCuda) continue;
    // A build without NCCL says what the build needs, another one what was not found.
    if (verdict.row->make == nullptr) {
      EXPECT_THAT(text,
                  HasSubstr(str("build needs ", verdict.row->build, "; this build has none")));
    } else if (!verdict.reasons.empty()) {
      EXPECT_FALSE(verdict.reasons.front().have.empty());
    }
  }
}

TEST(Exchanges, PeerMemoryNeedsOneHostAndAtMostEightRanks) {
  const auto reason = [](const ExchangeRequest& request) {
    const ExchangeSelection selection = select_exchange(request, true);
    for (const ExchangeVerdict& verdict : selection.considered) {
      if (verdict.row->name == "cuda-peer" && !verdict.reasons.empty())
        return std::string(verdict.reasons.front().rule);
    }
    return std::string();
  };
  EXPECT_EQ(reason({Platform::kCuda, 8}), "");
  EXPECT_EQ(reason({Platform::kCuda, 9}), "ranks");
  EXPECT_EQ(reason({Platform::kCuda, 8, nullptr, false}), "hosts");
  EXPECT_EQ(reason({Platform::kCpu, 8}), "platform");
  EXPECT_EQ(select_exchange({Platform::kCuda, 16, nullptr, false}, true).chosen->name, "nccl");
}

// A machine with one GPU has no second one to reach. Ranks of several machines use NCCL.
TEST(Exchanges, PeerMemoryNeedsADeviceForEachRank) {
  const auto selection = [](int64_t devices) {
    return select_exchange({Platform::kCuda, 8, nullptr, true, devices}, true);
  };
  EXPECT_EQ(selection(0).chosen->name, "cuda-peer") << "the number is unknown";
  EXPECT_EQ(selection(8).chosen->name, "cuda-peer");
  EXPECT_EQ(selection(7).chosen->name, "nccl");
  EXPECT_THAT(explain(selection(1)),
              HasSubstr("cuda-peer  no   devices needs a device of one host for each of 8 ranks; "
                        "this machine has 1\n"));
}

TEST(Exchanges, NamedRowIsTheOnlyOneThatServes) {
  const auto nccl = parse_exchange("nccl");
  ASSERT_TRUE(nccl);
  const ExchangeSelection selection = select_exchange({Platform::kCuda, 2, *nccl}, true);
  EXPECT_EQ(selection.chosen->name, "nccl");
  EXPECT_THAT(explain(selection),
              HasSubstr("host       no   name needs host; 'nccl' is requested"));
  const auto all = parse_exchange("auto");
  ASSERT_TRUE(all);
  EXPECT_EQ(*all, nullptr);
}

TEST(Exchanges, NamedRowThatCannotServeIsRefusedWithReasons) {
  const auto group = *open_group({});
  const auto exchange = open_exchange(group, *open_device("cpu", 1), *parse_exchange("nccl"));
  ASSERT_FALSE(exchange);
  EXPECT_THAT(exchange.error().to_string(),
              HasSubstr("nccl: platform needs cuda; the device is cpu"));
}

TEST(Exchanges, UnknownNameIsRefusedWithKnownOnes) {
  const auto row = parse_exchange("pigeons");
  ASSERT_FALSE(row);
  EXPECT_EQ(row.error().to_string(),
            "exchange: needs one of auto, one, cuda-peer, nccl, host; 'pigeons' is unknown");
}

TEST(ExchangeBytes, FollowFromTheShape) {
  LayerSpec layer;
  layer.num_experts = 128, layer.top_k = 8, layer.hidden_size = 2048, layer.intermediate_size = 768;
  const ExchangeBytes sum = exchange_bytes(layer, 4, Spread::kReplicated, DType::kBF16, false);
  EXPECT_EQ(sum.dispatch, 3072);  // 3/4 of 4096 bytes
  EXPECT_EQ(sum.combine, 3072);
  EXPECT_EQ(exchange_bytes(layer, 4, Spread::kReplicated, DType::kBF16, true).dispatch, 8 * 3072);
  EXPECT_EQ(exchange_bytes(layer, 1, Spread::kDispatched, DType::kBF16, false).dispatch, 0);
  EXPECT_EQ(exchange_bytes(layer, 4, Spread::kDispatched, DType::kBF16, true).combine, 6 * 4096);
  // Two ranks: a token with 8 experts has one elsewhere except once in 256 times; half of the
  // holders are its own rank.
  const ExchangeBytes two = exchange_bytes(layer, 2, Spread::kDispatched, DType::kBF16, false);
  EXPECT_NEAR(static_cast<double>(two.combine), 4096 * (1 - 1.0 / 256), 1);
  EXPECT_NEAR(static_cast<double>(two.dispatch), (4096 + 64) * (1 - 1.0 / 256), 1);
  // fp8 codes with 16 scales, and results in bf16.
  layer.scheme = *parse_scheme("fp8-w8a8-block128x128");
  const ExchangeBytes codes = exchange_bytes(layer, 2, Spread::kDispatched, DType::kBF16, false);
  EXPECT_NEAR(static_cast<double>(codes.dispatch), (2048 + 64 + 64) * (1 - 1.0 / 256), 1);
  EXPECT_EQ(codes.combine, two.combine);
}

}  // namespace
}  // namespace moracle::exchange_test
