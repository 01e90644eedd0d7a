// Dispatch and combine of tokens between ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "dispatched_layers.h"
#include "inner_exchange.h"
#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/dispatch/dispatch_message.h"
#include "parallel/dispatch/gathered_experts.h"
#include "ranks_of_threads.h"

namespace moracle::dispatched_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

// Rows are sent outside the message, as between devices that the host cannot read.
class RowsApart final : public InnerExchange {
 public:
  using InnerExchange::InnerExchange;
  std::string_view name() const override { return "apart"; }
};

struct Ran {
  std::string error;
  double difference = 0;
  int64_t sent_bytes = 0;
};

// Each rank has counts[rank] tokens.
std::vector<Ran> run_ranks(const Scheme& scheme, const std::vector<int64_t>& counts, bool gathered,
                           bool apart = false) {
  const LayerSpec layer = layer_of(scheme);
  const auto size = static_cast<int64_t>(counts.size());
  std::vector<Ran> results(size);
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    Ran& ran = results[group->rank()];
    const auto run = [&]() -> Status {
      const std::shared_ptr<Device> device = *open_device("cpu", 1);
      auto exchange = open_exchange(group, device);
      if (!exchange) return exchange.error();
      if (apart)
        exchange = std::unique_ptr<Exchange>(std::make_unique<RowsApart>(*std::move(exchange)));
      std::vector<ExpertMap> maps;
      for (int64_t r = 0; r < size; ++r) maps.push_back(*ExpertMap::place(kExperts, size, r));
      Parallelism parallel;
      parallel.ep_size = size, parallel.ep_rank = group->rank();
      auto moe = make_moe(layer, parallel, device, kMostTokens);
      if (!moe) return moe.error();
      const auto copies = ExpertCopies::from(maps, /*one_each=*/true);
      if (!copies) return copies.error();
      AllToAllExperts all_to_all(*group, **exchange, *device);
      GatheredExperts gathered_experts(*group, **exchange, *device);
      Tokens own = tokens_of(group->rank(), counts[group->rank()]);
      std::vector<float> output(own.hidden.size());
      const Matrix hidden = Matrix::f32(own.hidden.data(), own.count(), kHidden),
                   out = Matrix::f32(output.data(), own.count(), kHidden);
      const TopkIds ids{own.ids.data()};
      const TopkWeights weights{own.weights.data()};
      const Status done = gathered
                              ? gathered_experts.run(*moe, *copies, hidden, ids, weights, out, {})
                              : all_to_all.run(*moe, *copies, hidden, ids, weights, out, {});
      if (!done) return done;
      ran.difference = largest_difference(output, expected(layer, own));
      ran.sent_bytes = all_to_all.sent_bytes();
      return {};
    };
    const Status done = run();
    if (done) return;
    ran.error = done.error().to_string();
    group->abort(done.error());
  });
  return results;
}

// The largest results are about 1; sums over ranks differ in their order only.
void expect_close(const std::vector<Ran>& results) {
  for (const Ran& ran : results) {
    EXPECT_EQ(ran.error, "");
    EXPECT_LT(ran.difference, kOrderOfSums);
  }
}

Scheme scheme(const char* text) {
  return *parse_scheme(text);
}

TEST(AllToAllExperts, UnevenTokenCountsMatchOneProcess) {
  expect_close(run_ranks(scheme("bf16"), {3, 8, 5}, false));
}
TEST(AllToAllExperts, RankWithoutTokensTakesPart) {
  expect_close(run_ranks(scheme("bf16"), {0, 6}, false));
}
TEST(AllToAllExperts, RankWithoutExpertsGetsResults) {
  expect_close(run_ranks(scheme("bf16"), {2, 1, 0, 3, 1, 2}, false));
}
// One rank receives 24 tokens for a layer that is planned for 8.
TEST(AllToAllExperts, MoreReceivedRowsThanPlannedRunInChunks) {
  expect_close(run_ranks(scheme("bf16"), {24, 24}, false));
}
// With and without codes: the same bits and sent bytes as with rows in the message.
TEST(AllToAllExperts, RowsOutsideTheMessageGiveTheSameBitsAndBytes) {
  for (const char* text : {"bf16", "int8-w8a8"}) {
    const auto in_message = run_ranks(scheme(text), {3, 0, 24}, false),
               apart = run_ranks(scheme(text), {3, 0, 24}, false, /*apart=*/true);
    expect_close(apart);
    for (size_t r = 0; r < apart.size(); ++r) {
      EXPECT_EQ(apart[r].difference, in_message[r].difference);
      EXPECT_EQ(apart[r].sent_bytes, in_message[r].sent_bytes);
    }
  }
}
TEST(DispatchMessage, MessageOfAnotherLayerIsRefused) {
  const DispatchMessage form{.top_k = 2, .row_bytes = 24, .scale_bytes = 4};
  std::vector<std::byte> message(static_cast<size_t>(form.offsets(3).bytes));
  DispatchMessage::Head head{3, 5};
  std::memcpy(message.data(), &head, sizeof head);
  const auto good = form.read_head(message, 1);
  ASSERT_TRUE(good);
  EXPECT_EQ(good->rows, 3);
  EXPECT_EQ(good->slots, 5);
  for (const DispatchMessage::Head wrong :
       {DispatchMessage::Head{2, 1}, {-1, 0}, {int64_t{1} << 62, 0}, {3, 7}, {3, -1}}) {
    std::memcpy(message.data(), &wrong, sizeof wrong);
    EXPECT_THAT(form.read_head(message, 1).error().to_string(),
                HasSubstr("rank 1: needs rows of the same layer"));
  }
  EXPECT_FALSE(form.read_head(std::span(message).first(8), 1));
}

TEST(GatheredExperts, TokensMatchOneProcess) {
  expect_close(run_ranks(scheme("bf16"), {2, 2, 2}, true));
}
// The plan is for 8 tokens: 5 of each of 3 ranks run in chunks of 2.
TEST(GatheredExperts, MoreTokensThanPlannedRunInChunks) {
  expect_close(run_ranks(scheme("bf16"), {5, 5, 5}, true));
}
TEST(GatheredExperts, CodesMatchOneProcess) {
  expect_close(run_ranks(scheme("int8-w8a8"), {2, 2, 2}, true));
}
TEST(AllToAllExperts, OneProcessSendsNothing) {
  const auto results = run_ranks(scheme("bf16"), {7}, false);
  expect_close(results);
  EXPECT_EQ(results[0].sent_bytes, 0);
}

// Dispatch sends int8 codes with one scale per row, combine floats.
TEST(AllToAllExperts, DispatchSendsCodesOfQuantizedActivations) {
  const auto codes = run_ranks(scheme("int8-w8a8"), {8, 8}, false);
  const auto floats = run_ranks(scheme("bf16"), {8, 8}, false);
  expect_close(codes);
  const int64_t saved = floats[0].sent_bytes - codes[0].sent_bytes;
  EXPECT_GE(saved, 7 * (kHidden * 4 - kHidden - 4)) << floats[0].sent_bytes;
}

// exchange_bytes() assumes evenly chosen experts; here the ranks of each token are known.
TEST(AllToAllExperts, SentBytesCountDispatchedAndCombinedRows) {
  const int64_t floats = kHidden * 4, codes = kHidden + 4;  // codes of int8 with one scale
  for (const auto& [name, row] : {std::pair("bf16", floats), {"int8-w8a8", codes}}) {
    SCOPED_TRACE(name);
    const auto results = run_ranks(scheme(name), {8, 8}, false);
    int64_t dispatched[2] = {}, combined[2] = {};
    for (int64_t r = 0; r < 2; ++r) {
      const Tokens tokens = tokens_of(r, 8);
      for (int64_t t = 0; t < 8; ++t) {
        bool is_sent = false;
        for (int64_t j = 0; j < kTopK; ++j) {
          const int32_t id = tokens.ids[t * kTopK + j];
          is_sent = is_sent || (id >= 0 && (id < 3 ? 0 : 1) != r);  // experts 0 to 2 are on rank 0
        }
        dispatched[r] += is_sent ? row + kTopK * 8 : 0;
        combined[1 - r] += is_sent ? floats : 0;
      }
    }
    for (int64_t r = 0; r < 2; ++r) EXPECT_EQ(results[r].sent_bytes, dispatched[r] + combined[r]);
  }
}

}  // namespace
}  // namespace moracle::dispatched_test
