// Layers of which host memory holds some experts, and files the others.
#include <gmock/gmock.h>

#include <numeric>

#include "placement/host_pool.h"
#include "placement/placed_layers.h"

namespace moracle::from_files_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<PlacedMoe> make_from_files(const LayerSpec& spec, const RowNames& rows, int64_t on_host,
                                  int64_t num_slots, bool deterministic = false,
                                  std::shared_ptr<DevicePair> devices = device_pair(),
                                  uint64_t seed = 3) {
  return PlacedMoe::make_from_files(
      conformance::random_weights(spec, seed), select_slots(spec, rows.host, on_host),
      select_slots(spec, rows.slots, num_slots), std::move(devices), deterministic);
}

TEST(ExpertsInFiles, MatchOneDeviceForEverySchemeRowAndNumberInMemory) {
  int compared = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    LayerSpec spec = layer_of(scheme);
    const TokenBatch batch = batch_of(spec);
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    spec = weights.spec;
    for (const std::string& row : cpu_rows(spec)) {
      const RowNames rows{row, "reference"};
      const conformance::Expected want = expected_of_both(weights, batch, rows);
      for (const int64_t on_host : {int64_t{1}, int64_t{2}, kExperts - 1}) {
        SCOPED_TRACE(name(scheme) + ", " + row + ", " + std::to_string(on_host));
        PlacedMoe moe = must(make_from_files(spec, rows, on_host, 2));
        EXPECT_EQ(moe.counts().reads, 0);
        must(moe.place(kExperts - 1, 1));  // of which memory has none
        for (int call = 0; call < 2; ++call)
          EXPECT_LE(share_of_bound(want, output_of(moe, batch)), 1);
        EXPECT_GT(moe.counts().reads, 1);
        EXPECT_GT(moe.counts().bytes_read, 0);
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 200);
}

TEST(ExpertsInFiles, StayWithinBoundsWhileExpertsMoveAtEveryStep) {
  for (const Scheme& scheme : {*parse_scheme("int4-w4a16-g32"), *parse_scheme("int8-w8a8"), kStatic,
                               *parse_scheme("bf16")}) {
    const LayerSpec spec = layer_of(scheme);
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    for (const int64_t on_host : {1, 2, 5}) {
      SCOPED_TRACE(name(scheme) + ", " + std::to_string(on_host));
      const RowNames rows{"cpu", "reference"};
      const auto devices = device_pair();
      PlacedMoe one = must(make_from_files(spec, rows, on_host, 2, false, devices)),
                other = must(make_from_files(spec, rows, on_host, 3, false, devices));
      for (PlacedMoe* moe : {&one, &other})
        moe->set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
      for (uint32_t step = 0; step < 24; ++step) {
        const TokenBatch batch = random_batch(spec, 1 + step % 2, step);
        const conformance::Expected want = expected_of_both(weights, batch, rows);
        for (PlacedMoe* moe : {&one, &other})
          EXPECT_LE(share_of_bound(want, output_of(*moe, batch)), 1) << "step " << step;
        must(devices->move(2));
      }
      EXPECT_GT(one.counts().moves, 5);
      EXPECT_GT(one.counts().hits, 3);
    }
  }
}

// What calls before have read must not change the order of a sum.
TEST(ExpertsInFiles, DeterministicBitsDependOnCallAlone) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  for (const int64_t on_host : {1, 2, 3, 5}) {
    PlacedMoe moe = must(make_from_files(spec, {"cpu", "reference"}, on_host, 1, true));
    std::vector<std::vector<float>> first;
    for (uint32_t seed = 0; seed < 8; ++seed) first.push_back(output_of(moe, batch_of(spec, seed)));
    for (uint32_t seed = 8; seed-- > 0;) {
      (void)output_of(moe, random_batch(spec, 1, 77 + seed));
      EXPECT_EQ(output_of(moe, batch_of(spec, seed)), first[seed]) << on_host << " in memory";
    }
  }
}

TEST(ExpertsInFiles, RepeatedChoicesReadNothing) {
  const LayerSpec spec = layer_of("bf16");
  PlacedMoe moe = must(make_from_files(spec, {"cpu", "reference"}, 3, 0));
  TokenBatch batch = random_batch(spec, 2);
  for (size_t i = 0; i < batch.ids.size(); ++i) batch.ids[i] = static_cast<int32_t>(3 + i % 3);
  (void)output_of(moe, batch);
  EXPECT_EQ(moe.counts().reads, 3);
  for (int call = 0; call < 3; ++call) (void)output_of(moe, batch);
  EXPECT_EQ(moe.counts().reads, 3);
}

TEST(ExpertsInFiles, SwapUsesNewFiles) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const RowNames rows{"cpu", "reference"};
  PlacedMoe moe = must(make_from_files(spec, rows, 2, 2, true)),
            cold = must(make_from_files(spec, rows, 2, 2, true, device_pair(), 77));
  for (PlacedMoe* one : {&moe, &cold}) must(one->place(3, 0));
  const TokenBatch batch = batch_of(spec);
  const std::vector<float> before = output_of(moe, batch);
  PackedWeights checked = must(moe.pack(conformance::random_weights(spec, 77)));
  EXPECT_EQ(output_of(moe, batch), before);
  must(moe.swap(std::move(checked)));
  EXPECT_THAT(moe.placed(), ElementsAre(3, -1));
  EXPECT_EQ(output_of(moe, batch), output_of(cold, batch));
  const Result<PackedWeights> other = moe.pack(conformance::random_weights(layer_of("bf16"), 3));
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().to_string(), HasSubstr("needs weights of the planned layer"));
}

/// A source whose expert cannot be read, from a number of reads on.
DescribedWeights weights_that_fail(const LayerSpec& spec, int32_t expert,
                                   std::shared_ptr<int> left) {
  DescribedWeights good = conformance::random_weights(spec, 3);
  const auto wrap = [&](DescribedMatrix&& from) {
    const auto kept = std::make_shared<DescribedMatrix>(std::move(from));
    std::vector<std::vector<DescribedMatrix::Source>> sources;
    for (int64_t e = 0; e < kept->num_experts(); ++e) {
      DescribedMatrix::Source source;
      source.n = kept->shape().n;
      source.read = [kept, e, expert, left](ThreadPool& pool) -> Result<CanonicalMatrix> {
        if (e == expert && *left <= 0)
          return Error{ErrorKind::kIo, "model.safetensors", "w", "its bytes", "the file was cut"};
        return kept->expert(e, pool);
      };
      sources.emplace_back().push_back(std::move(source));
    }
    return DescribedMatrix(kept->shape(), kept->scheme(), std::move(sources), kept);
  };
  return {good.spec, wrap(std::move(good.w13)), wrap(std::move(good.w2))};
}

TEST(ExpertsInFiles, ReportReadErrorOfCallAndServeOthers) {
  const LayerSpec spec = layer_of("bf16");
  const auto left = std::make_shared<int>(1);
  PlacedMoe moe = must(
      PlacedMoe::make_from_files(weights_that_fail(spec, 5, left), select_slots(spec, "cpu", 3),
                                 select_slots(spec, "cpu", 1), device_pair(), false));
  *left = 0;
  TokenBatch bad = random_batch(spec, 2), good = bad;
  for (size_t i = 0; i < bad.ids.size(); ++i) {
    bad.ids[i] = static_cast<int32_t>(i % 6);
    good.ids[i] = static_cast<int32_t>(i % 5);
  }
  const std::vector<float> want = output_of(moe, good);
  std::vector<float> output(bad.hidden.size());
  const Status failed = moe.apply(Matrix::f32(bad.hidden.data(), 2, 70), {bad.ids.data()},
                                  {bad.weights.data()}, Matrix::f32(output.data(), 2, 70));
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().to_string(), HasSubstr("the file was cut"));
  EXPECT_THAT(moe.place(5, 0).error().to_string(), HasSubstr("the file was cut"));
  EXPECT_THAT(moe.placed(), ElementsAre(-1));
  const std::vector<float> again = output_of(moe, good);
  for (size_t i = 0; i < want.size(); ++i)  // another share of the sum may come first
    EXPECT_NEAR(again[i], want[i], 1e-5 * (1 + std::fabs(want[i])));
  const Result<PackedWeights> reloaded = moe.pack(weights_that_fail(spec, 5, left));
  ASSERT_FALSE(reloaded) << "a reload reads all";
}

TEST(ExpertsInFiles, RejectsAdaptersAndStreaming) {
  const LayerSpec spec = layer_of("bf16");
  Request host = request_of(spec, "cpu");
  host.parallel = must(slots_of(kExperts, 2));
  host.lora_rank = 4;
  host.max_adapters = 1;
  const Result<PlacedMoe> adapts = PlacedMoe::make_from_files(
      conformance::random_weights(spec, 3), select(host, Machine::here()),
      select_slots(spec, "cpu", 1), device_pair(), false);
  ASSERT_FALSE(adapts);
  EXPECT_THAT(
      adapts.error().to_string(),
      HasSubstr("needs host memory for all experts, because adapters lie beside them; it is "
                "for 2 of 6"));
  PlacedMoe moe = must(make_from_files(spec, {"cpu", "cpu"}, 2, 1));
  EXPECT_THAT(moe.stream(select_slots(spec, "cpu", 2)).error().to_string(),
              HasSubstr("needs all experts in host memory; files have some"));
}

// Random calls: each share fits the memory, each expert is in one of them, and memory has the
// share.
TEST(HostPool, SharesCoverEveryCallOnceForRandomCalls) {
  const LayerSpec spec = layer_of("bf16");
  std::mt19937 random(5);
  for (const bool fixed : {false, true}) {
    for (int64_t slots = 1; slots < kExperts; ++slots) {
      DescribedWeights weights = conformance::random_weights(spec, 3);
      FusedMoe layer =
          must(MoeAccess::make_pool(weights, select_slots(spec, "cpu", slots),
                                    std::make_shared<Workspace>(must(open_device("cpu", 1)))));
      HostPool pool(std::move(weights), slots, fixed);
      for (int call = 0; call < 200; ++call) {
        std::vector<int32_t> wanted, seen;
        for (int32_t e = 0; e < kExperts; ++e)
          if (random() % 2 == 0) wanted.push_back(e);
        for (const std::vector<int32_t>& share : pool.shares(wanted)) {
          ASSERT_LE(static_cast<int64_t>(share.size()), slots);
          ASSERT_FALSE(share.empty());
          must(pool.hold(layer, share));
          for (const int32_t e : share) ASSERT_GE(pool.slot_of(e), 0);
          seen.insert(seen.end(), share.begin(), share.end());
        }
        std::sort(seen.begin(), seen.end());
        ASSERT_EQ(seen, wanted);
      }
    }
  }
}

}  // namespace
}  // namespace moracle::from_files_test
