// Placed layers with adapters, and with the experts of one of several ranks.
#include <gmock/gmock.h>

#include "placement/placed_layers.h"

namespace moracle::placed_parts_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::HasSubstr;

Request with_adapters(Request request) {
  request.lora_rank = 4;
  request.max_adapters = 2;
  return request;
}

Request slots_with_adapters(const LayerSpec& spec, const std::string& row, int64_t num_slots) {
  Request request = with_adapters(request_of(spec, row));
  request.parallel = must(slots_of(spec.num_experts, num_slots));
  return request;
}

std::vector<float> output_with(auto& moe, TokenBatch batch, const std::vector<int32_t>& lora_ids) {
  const auto hidden = static_cast<int64_t>(batch.hidden.size()) / batch.tokens;
  std::vector<float> output(batch.hidden.size(), NAN);
  must(moe.apply(Matrix::f32(batch.hidden.data(), batch.tokens, hidden), {batch.ids.data()},
                 {batch.weights.data()}, Matrix::f32(output.data(), batch.tokens, hidden), {},
                 {lora_ids.data()}));
  return output;
}

std::vector<int32_t> adapter_ids() {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kTokens; ++t) ids.push_back(static_cast<int32_t>(t % 3) - 1);
  return ids;
}

TEST(PlacedAdapters, HaveBitsOfOneDeviceForEverySchemeAndNumberOfSlots) {
  int compared = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    const LayerSpec spec = layer_of(scheme);
    const Request one = with_adapters(request_of(spec, "reference"));
    const std::vector<LoraWeights> adapters = conformance::random_adapters(one, 3);
    const TokenBatch batch = batch_of(spec);
    FusedMoe whole =
        must(FusedMoe::make(conformance::random_weights(spec, 3), select(one, Machine::here()),
                            must(open_device("cpu", 2))));
    for (int32_t id = 0; id < 2; ++id) must(whole.set_adapter(id, adapters[id]));
    const std::vector<float> want = output_with(whole, batch, adapter_ids());
    EXPECT_NE(want, output_of(whole, batch));
    for (const std::string& host : cpu_rows(spec)) {
      SCOPED_TRACE(name(scheme) + ", " + host);
      const Selection on_host = select(with_adapters(request_of(spec, host)), Machine::here());
      if (!on_host.plan) continue;
      PlacedMoe moe = must(
          PlacedMoe::make(conformance::random_weights(spec, 3), on_host,
                          select(slots_with_adapters(spec, "reference", kExperts), Machine::here()),
                          device_pair()));
      must(moe.set_adapter(0, adapters[0]));
      for (int64_t slot = 0; slot < kExperts; ++slot) must(moe.place(slot, slot));
      must(moe.set_adapter(1, adapters[1]));  // the other one before the experts arrive
      const QuantKey& key = scheme.weight;
      const bool folded = key.minimums && !key.symmetric && key.scale_dtype != DType::kI8;
      if (!folded || host == "reference") {
        EXPECT_EQ(output_with(moe, batch, adapter_ids()), want);
      }
      must(moe.clear_adapter(0));
      must(moe.clear_adapter(1));
      EXPECT_EQ(output_with(moe, batch, adapter_ids()), output_of(moe, batch));
      ++compared;
    }
  }
  EXPECT_GE(compared, 60);
}

// Half of the experts on each device, and shares in long calls: each part adds its own adapters.
TEST(PlacedAdapters, FollowExpertsThatMoveAndStream) {
  const LayerSpec spec = layer_of(Scheme{kF32Weight, {}});
  const Request one = with_adapters(request_of(spec, "reference"));
  const std::vector<LoraWeights> adapters = conformance::random_adapters(one, 3);
  FusedMoe whole = must(FusedMoe::make(conformance::random_weights(spec, 3),
                                       select(one, Machine::here()), must(open_device("cpu", 1))));
  const auto devices = device_pair();
  PlacedMoe moe = must(
      PlacedMoe::make(conformance::random_weights(spec, 3), select(one, Machine::here()),
                      select(slots_with_adapters(spec, "reference", 2), Machine::here()), devices));
  for (int32_t id = 0; id < 2; ++id) {
    must(whole.set_adapter(id, adapters[id]));
    must(moe.set_adapter(id, adapters[id]));
  }
  must(moe.stream(select(slots_with_adapters(spec, "reference", 4), Machine::here())));
  moe.set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
  for (uint32_t step = 0; step < 24; ++step) {
    moe.set_stream_from(step % 3 == 2 ? 1 : kTokens + 1);
    const TokenBatch batch = step % 3 == 2 ? batch_of(spec, step) : random_batch(spec, 2, step);
    const std::vector<float> want = output_with(whole, batch, adapter_ids()),
                             got = output_with(moe, batch, adapter_ids());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-5 * (1 + std::fabs(want[i]))) << "step " << step;
    must(devices->move(2));
  }
  EXPECT_GT(moe.counts().moves, 5);
  EXPECT_EQ(moe.counts().streamed_calls, 8);
}

TEST(PlacedAdapters, RejectsIdsWithoutPlanForThem) {
  PlacedMoe moe = must(make(layer_of("bf16"), {"cpu", "cpu"}, 2));
  const TokenBatch batch = batch_of(layer_of("bf16"));
  std::vector<float> output(batch.hidden.size());
  TokenBatch in = batch;
  const Status refused =
      moe.apply(Matrix::f32(in.hidden.data(), kTokens, 70), {in.ids.data()}, {in.weights.data()},
                Matrix::f32(output.data(), kTokens, 70), {}, {adapter_ids().data()});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("needs a plan with adapters"));
}

/// The layer of one of `size` ranks, with slots for some of its experts.
PlacedMoe of_rank(const LayerSpec& spec, const RowNames& rows, int64_t size, int64_t rank,
                  int64_t num_slots, std::shared_ptr<DevicePair> devices = device_pair()) {
  Request host = request_of(spec, rows.host);
  host.parallel.ep_size = size;
  host.parallel.ep_rank = rank;
  host.parallel.placement = Placement::kRoundRobin;
  return must(PlacedMoe::make(conformance::random_weights(spec, 3), select(host, Machine::here()),
                              select_slots(spec, rows.slots, num_slots), std::move(devices)));
}

// The sum of all ranks is the layer, whatever lies in slots, with moves at every step and shares.
TEST(PlacedRanks, SumOfRanksIsLayer) {
  for (const Scheme& scheme : {*parse_scheme("int4-w4a16-g32"), *parse_scheme("int8-w8a8"), kStatic,
                               *parse_scheme("bf16")}) {
    const LayerSpec spec = layer_of(scheme);
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    for (const RowNames& rows : pairs_of_rows(spec)) {
      for (const int64_t size : {2, 4}) {
        SCOPED_TRACE(name(scheme) + ", " + rows.host + " and " + rows.slots);
        std::vector<std::shared_ptr<DevicePair>> devices;
        std::vector<PlacedMoe> ranks;
        for (int64_t rank = 0; rank < size; ++rank) {
          devices.push_back(device_pair());
          ranks.push_back(of_rank(spec, rows, size, rank, 1, devices.back()));
          ranks.back().set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
          must(ranks.back().stream(select_slots(spec, rows.slots, 1)));
        }
        for (uint32_t step = 0; step < 12; ++step) {
          const TokenBatch batch = batch_of(spec, step);
          std::vector<float> sum(batch.hidden.size());
          for (int64_t rank = 0; rank < size; ++rank) {
            ranks[rank].set_stream_from(step % 4 == 3 ? 1 : kTokens + 1);
            const std::vector<float> part = output_of(ranks[rank], batch);
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
            must(devices[rank]->move(1));
          }
          conformance::Expected want = expected_of_both(weights, batch, rows);
          for (size_t i = 0; i < want.bound.size(); ++i)  // of the sum over ranks
            want.bound[i] += 0x1p-20 * std::fabs(want.output[i]);
          EXPECT_LE(share_of_bound(want, sum), 1) << "step " << step;
        }
        int64_t choices = 0;
        for (const PlacedMoe& rank : ranks) {
          EXPECT_GT(rank.counts().moves, 0);
          choices += rank.counts().hits + rank.counts().misses;
        }
        int64_t valid = 0;
        for (uint32_t step = 0; step < 12; ++step)
          for (const int32_t id : batch_of(spec, step).ids) valid += step % 4 != 3 && id >= 0;
        EXPECT_EQ(choices, valid) << "each choice on one rank";
      }
    }
  }
}

TEST(PlacedRanks, RejectsExpertOfAnotherRank) {
  PlacedMoe moe = of_rank(layer_of("bf16"), {"cpu", "cpu"}, 2, 1, 2);
  must(moe.place(3, 0));
  EXPECT_THAT(moe.place(2, 0).error().to_string(),
              HasSubstr("needs one of the 3 experts of this rank; expert 2 is another rank's"));
}

}  // namespace
}  // namespace moracle::placed_parts_test
