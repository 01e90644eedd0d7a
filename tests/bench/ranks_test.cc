// Tests timings that several ranks take together. The ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "bench/dispatched.h"
#include "bench/exchange.h"
#include "moracle/moracle.h"
#include "parallel/ranks_of_threads.h"
#include "support/must.h"

namespace moracle::bench_ranks_test {
namespace {

using testing::must;
using testing::on_ranks;

TEST(RankBench, TimesEveryOperationOnEveryRank) {
  std::mutex mutex;
  std::vector<bench::ExchangeTime> all;
  std::string refusal;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const auto device = must(open_device("cpu", 1));
    const auto exchange = must(open_exchange(group, device));
    const auto times = must(bench::time_exchange(*exchange, *group, *device, {16, 160}));
    const auto refused = bench::time_exchange(*exchange, *group, *device, {24});
    const std::lock_guard lock(mutex);
    all.insert(all.end(), times.begin(), times.end());
    if (!refused) refusal = refused.error().to_string();
  });
  ASSERT_EQ(all.size(), 2u * 2u * 4u);
  for (const bench::ExchangeTime& time : all) {
    EXPECT_GT(time.us, 0) << time.operation;
    EXPECT_EQ(time.us_replayed, 0) << "a CPU has no graphs";
  }
  EXPECT_THAT(refusal, ::testing::HasSubstr("a multiple of 16: 8 for each rank"));
}

TEST(RankBench, TimesDispatchedLayersOnEveryRank) {
  std::mutex mutex;
  std::vector<bench::DispatchedTime> all;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Request request;
    request.layer = {.name = "layer",
                     .num_experts = 8,
                     .hidden_size = 64,
                     .intermediate_size = 32,
                     .top_k = 2,
                     .scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym}};
    request.max_num_tokens = 8;
    request.platform = Platform::kCpu;
    request.parallel = {.ep_size = 2, .ep_rank = group->rank()};
    const auto device = must(open_device("cpu", 1));
    const std::shared_ptr<Exchange> exchange = must(open_exchange(group, device));
    const auto times = must(bench::time_dispatched(
        {select(request, Machine::here()), group, exchange, device, 2}, {1, 4}));
    const std::lock_guard lock(mutex);
    all.insert(all.end(), times.begin(), times.end());
  });
  ASSERT_EQ(all.size(), 4u);
  for (const bench::DispatchedTime& time : all) {
    EXPECT_GT(time.us_gathered, 0);
    EXPECT_GT(time.us_counted, 0);
    EXPECT_GT(time.sent_bytes, 0) << time.num_tokens << " tokens";
  }
}

}  // namespace
}  // namespace moracle::bench_ranks_test
