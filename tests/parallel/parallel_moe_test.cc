// The public classes for experts over ranks, with ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/try.h"
#include "dispatched_layers.h"
#include "ranks_of_threads.h"

namespace moracle::parallel_moe_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

const Scheme kScheme = *parse_scheme("bf16");

/// Two layers of each rank share what an engine makes once. Returns the error of each rank.
std::vector<std::string> on_each_rank(int64_t size, Spread spread, bool same_bits,
                                      const std::function<Status(ParallelMoe&, int64_t rank)>& run,
                                      bool all_on_each = false) {
  std::vector<std::string> errors(size);
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    const auto work = [&]() -> Status {
      const std::shared_ptr<Device> device = *open_device("cpu", 1);
      MORACLE_TRY(std::unique_ptr<Exchange> exchange, open_exchange(group, device));
      const auto ranks =
          std::make_shared<ExpertParallel>(group, std::move(exchange), device, spread, same_bits);
      EXPECT_EQ(ranks->spread(), spread);
      for (int layer = 0; layer < 2; ++layer) {
        Parallelism parallel;
        if (!all_on_each) parallel.ep_size = size, parallel.ep_rank = group->rank();
        MORACLE_TRY(FusedMoe moe, make_moe(layer_of(kScheme), parallel, device, kMostTokens));
        MORACLE_TRY(ParallelMoe spread_moe, ParallelMoe::make(std::move(moe), ranks));
        MORACLE_CHECK(run(spread_moe, group->rank()));
      }
      return {};
    };
    const Status done = work();
    if (done) return;
    errors[group->rank()] = done.error().to_string();
    group->abort(done.error());
  });
  return errors;
}

Status apply(ParallelMoe& moe, const Tokens& own, std::vector<float>& output, bool even = false) {
  output.resize(own.hidden.size());
  const ConstMatrix hidden = ConstMatrix::f32(own.hidden.data(), own.count(), kHidden);
  const Matrix out = Matrix::f32(output.data(), own.count(), kHidden);
  return even ? moe.apply_even(hidden, {own.ids.data()}, {own.weights.data()}, out)
              : moe.apply(hidden, {own.ids.data()}, {own.weights.data()}, out);
}

TEST(ParallelMoe, ReplicatedTokensGetWhatOneProcessGives) {
  const Tokens tokens = tokens_of(0, 7);
  const std::vector<float> want = expected(layer_of(kScheme), tokens);
  for (const bool same_bits : {false, true}) {
    for (const bool copies : {false, true}) {
      const auto errors = on_each_rank(
          3, Spread::kReplicated, same_bits,
          [&](ParallelMoe& moe, int64_t) {
            std::vector<float> output;
            const Status done = apply(moe, tokens, output);
            EXPECT_LE(largest_difference(output, want), same_bits ? 0 : kOrderOfSums);
            return done;
          },
          copies);
      EXPECT_THAT(errors, ::testing::Each(""));
    }
  }
}

TEST(ParallelMoe, DispatchedTokensOfEachRankGetWhatOneProcessGives) {
  for (const bool even : {false, true}) {
    const auto errors =
        on_each_rank(3, Spread::kDispatched, false, [&](ParallelMoe& moe, int64_t rank) {
          const Tokens own = tokens_of(rank, even ? 5 : 3 * rank);  // rank 0 has none
          std::vector<float> output;
          const Status done = apply(moe, own, output, even);
          EXPECT_LE(largest_difference(output, expected(layer_of(kScheme), own)), kOrderOfSums);
          return done;
        });
    EXPECT_THAT(errors, ::testing::Each(""));
  }
}

TEST(ParallelMoe, RejectsCallsThatItsSpreadCannotServe) {
  const Tokens tokens = tokens_of(0, 2);
  std::vector<float> output;
  auto errors = on_each_rank(1, Spread::kReplicated, false, [&](ParallelMoe& moe, int64_t) {
    return apply(moe, tokens, output, /*even=*/true);
  });
  EXPECT_THAT(errors[0], HasSubstr("layer: needs dispatched tokens; they are replicated"));
  errors = on_each_rank(1, Spread::kDispatched, false, [&](ParallelMoe& moe, int64_t) {
    const std::vector<int32_t> lora(2);
    return moe.apply(ConstMatrix::f32(tokens.hidden.data(), 2, kHidden), {tokens.ids.data()},
                     {tokens.weights.data()},
                     Matrix::f32(const_cast<float*>(tokens.hidden.data()), 2, kHidden), {},
                     {lora.data()});
  });
  EXPECT_THAT(errors[0], HasSubstr("layer: needs replicated tokens, where adapters run"));
  errors = on_each_rank(1, Spread::kDispatched, false, [&](ParallelMoe& moe, int64_t) {
    return apply(moe, tokens_of(0, kMostTokens + 1), output);
  });
  EXPECT_THAT(errors[0], HasSubstr("layer: needs hidden and output in f32 [at most 8, 64]"));
}

TEST(ParallelMoe, RejectsExpertsThatNoRankHolds) {
  std::vector<std::string> errors(2);
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::shared_ptr<Device> device = *open_device("cpu", 1);
    auto ranks = std::make_shared<ExpertParallel>(group, *open_exchange(group, device), device,
                                                  Spread::kReplicated);
    Parallelism parallel;
    parallel.ep_size = 2;  // both are rank 0
    auto moe = make_moe(layer_of(kScheme), parallel, device, kMostTokens);
    const auto made = ParallelMoe::make(*std::move(moe), ranks);
    errors[group->rank()] = made ? "accepted" : made.error().to_string();
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("expert 3")));
}

TEST(ConnectNccl, RejectsWhatIsNoCommunicatorOfTheDevice) {
  const std::shared_ptr<Device> device = *open_device("cpu", 1);
  const auto group = *open_group({});
  int any = 0;
  EXPECT_EQ(connect_nccl(group, device, &any).error().to_string(),
            "communicator: needs a CUDA device; it is cpu");
}

}  // namespace
}  // namespace moracle::parallel_moe_test
