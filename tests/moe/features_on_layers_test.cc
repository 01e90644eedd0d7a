// Tests features around the grouped GEMM through the public API: expert maps, the batched format,
// adapters, reload while serving. Conformance tests cover correct values in every scheme on every
// backend. This file covers the other guarantees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "conformance/conformance.h"
#include "moracle/moracle.h"
#include "oracle/backend.h"
#include "support/must.h"

namespace moracle::features_on_layers_test {
namespace {

using conformance::random_weights;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 70, kExperts = 6, kTopK = 2, kTokens = 9;

Request request_for(const Scheme& scheme, std::string_view backend = "cpu") {
  Request request;
  request.layer = {.name = "layers.3.experts",
                   .num_experts = kExperts,
                   .hidden_size = kHidden,
                   .intermediate_size = 34,
                   .top_k = kTopK,
                   .scheme = scheme};
  request.max_num_tokens = kTokens;
  request.backend = backend;
  return request;
}

const Scheme kW8A8{kInt8StaticChannelSym, kInt8DynamicTokenSym};

std::shared_ptr<Device> device() {
  static const std::shared_ptr<Device> shared = *open_device("cpu", 2);
  return shared;
}

FusedMoe make(const Request& request, uint64_t seed = 1) {
  return testing::must(FusedMoe::make(random_weights(request.layer, seed),
                                      select(request, Machine::here()), device()));
}

conformance::Inputs inputs(const Request& request) {
  return conformance::random_inputs(request, kTokens, conformance::Spread::kUniform, 5);
}

/// The bits of the output, so that -0 does not equal 0.
std::vector<uint32_t> apply(FusedMoe& moe, conformance::Inputs in) {
  std::vector<float> output(in.hidden.size(), NAN);
  const int32_t* lora = in.lora_ids.empty() ? nullptr : in.lora_ids.data();
  const Status done =
      moe.apply(Matrix::f32(in.hidden.data(), kTokens, kHidden), {in.ids.data()},
                {in.weights.data()}, Matrix::f32(output.data(), kTokens, kHidden), {}, {lora});
  EXPECT_TRUE(done) << done.error().to_string();
  std::vector<uint32_t> bits;
  for (float value : output) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

struct Row {
  std::string_view backend;
  Scheme scheme;
};
std::vector<Row> rows() {
  std::vector<Row> all;
  for (const Backend& backend : backends()) {
    for (const Scheme& scheme : conformance::schemes()) {
      if (backend.platform == Platform::kCpu &&
          select(request_for(scheme, backend.name), Machine::here()).plan)
        all.push_back({backend.name, scheme});
    }
  }
  return all;
}

// A separate stage applies the activation, or the GEMM before it.
TEST(Activations, RejectsMissingLimitOnEveryRow) {
  for (const Row& row : rows()) {
    Request request = request_for(row.scheme, row.backend);
    request.layer.intermediate_size = 32;
    request.layer.activation.function = Activation::kSwigluOai;
    const auto chosen = select(request, Machine::here()).chosen();
    ASSERT_FALSE(chosen.ok()) << row.backend << ", " << name(row.scheme);
    EXPECT_NE(chosen.error().to_string().find("limit: needs a finite number above 0; it is 0"),
              std::string::npos);
  }
}

// ---- expert parallelism ----

TEST(ExpertParallel, ReadsOnlyLocalExperts) {
  Request request = request_for(kW8A8);
  const int64_t whole = make(request).weight_bytes();
  request.parallel = {.ep_size = 3, .ep_rank = 1};
  FusedMoe part = make(request);
  EXPECT_EQ(part.weight_bytes(), whole / 3);
  EXPECT_EQ(part.plan().weight_bytes, part.weight_bytes());
}

TEST(ExpertParallel, AcceptsCallerExpertMap) {
  Request request = request_for(kW8A8);
  FusedMoe whole = make(request);
  request.parallel.expert_map = *ExpertMap::from({5, 4, 3, 2, 1, 0});
  FusedMoe reversed = make(request);
  // The sum of a token's experts follows the local expert numbers.
  const auto got = apply(reversed, inputs(request)), want = apply(whole, inputs(request));
  for (size_t i = 0; i < want.size(); ++i) {
    const float value = std::bit_cast<float>(want[i]);
    EXPECT_NEAR(std::bit_cast<float>(got[i]), value, 1e-5f * std::fabs(value) + 1e-6f);
  }
}

TEST(ExpertParallel, RankWithoutExpertsGivesZero) {
  Request request = request_for(kW8A8);
  request.parallel = {.ep_size = 8, .ep_rank = 7};
  FusedMoe none = make(request);
  EXPECT_EQ(none.weight_bytes(), 0);
  EXPECT_THAT(apply(none, inputs(request)), ::testing::Each(0u));
}

// ---- ids ----

TEST(BadIds, AddNothingAndAreReportedOnce) {
  const Request request = request_for(kW8A8);
  FusedMoe moe = make(request);
  conformance::Inputs holes = inputs(request), wrong = holes;
  holes.ids[3] = holes.ids[8] = -1;
  wrong.ids[3] = kExperts;
  wrong.ids[8] = std::numeric_limits<int32_t>::min();
  const auto want = apply(moe, holes);
  EXPECT_TRUE(device()->synchronize());
  EXPECT_EQ(apply(moe, wrong), want);
  const Status said = device()->synchronize();
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().place, request.layer.name + ": topk_ids");
  EXPECT_EQ(said.error().need, "-1, or an expert from 0 to 5");
  EXPECT_EQ(said.error().fact, "choice 1 of token 1 is 6");
  EXPECT_TRUE(device()->synchronize());
}

// ---- the batched format ----

class Batched : public ::testing::Test {
 protected:
  Request request() {
    Request batched = request_for(kW8A8);
    batched.parallel.format = ActivationFormat::kBatched;
    return batched;
  }
  Status run(FusedMoe& moe, std::vector<int32_t> counts, int64_t rows = kExperts * kTokens) {
    std::vector<float> hidden(rows * kHidden, 0.5f);
    output_.assign(rows * kHidden, NAN);
    return moe.apply_batched(Matrix::f32(hidden.data(), rows, kHidden), {counts.data()},
                             Matrix::f32(output_.data(), rows, kHidden));
  }
  std::vector<float> output_;
};

TEST_F(Batched, ClampsAndReportsTooLargeCounts) {
  FusedMoe moe = make(request());
  ASSERT_TRUE(run(moe, {9, 0, 9, 0, 0, 1}));
  const std::vector<float> want = output_;
  EXPECT_TRUE(device()->synchronize());
  ASSERT_TRUE(run(moe, {10, -1, 9, 0, 0, 1}));
  EXPECT_EQ(output_, want);
  const Status said = device()->synchronize();
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().place, "layers.3.experts: expert_num_tokens");
  EXPECT_EQ(said.error().need, "0 to 9 tokens for each expert");
  EXPECT_EQ(said.error().fact, "expert 0 has 10");
}

TEST_F(Batched, RejectsFewerRowsThanSlots) {
  FusedMoe moe = make(request());
  const Status fewer = run(moe, {0, 0, 0, 0, 0, 0}, kExperts * kTokens - 1);
  ASSERT_FALSE(fewer);
  EXPECT_THAT(fewer.error().need, HasSubstr("54 rows of 70 columns"));
}

TEST_F(Batched, RejectsCallsThatDifferFromPlan) {
  FusedMoe batched = make(request()), standard = make(request_for(kW8A8));
  conformance::Inputs in = inputs(request_for(kW8A8));
  std::vector<float> output(in.hidden.size());
  const Status wrong =
      batched.apply(Matrix::f32(in.hidden.data(), kTokens, kHidden), {in.ids.data()},
                    {in.weights.data()}, Matrix::f32(output.data(), kTokens, kHidden));
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().need, "a call of apply_batched, as planned");
  const Status other = run(standard, {0, 0, 0, 0, 0, 0});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().need, "a call of apply, as planned");
}

// ---- adapters ----

Request with_adapters(const Scheme& scheme, std::string_view backend = "cpu") {
  Request request = request_for(scheme, backend);
  request.lora_rank = 4;
  request.max_adapters = 2;
  return request;
}

TEST(Lora, ZeroAdapterChangesNoBit) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(std::string(row.backend) + ", " + name(row.scheme));
    const Request request = with_adapters(row.scheme, row.backend);
    FusedMoe moe = make(request), plain = make(request_for(row.scheme, row.backend));
    const conformance::Inputs in = inputs(request);
    conformance::Inputs none = in;
    none.lora_ids.clear();
    const auto want = apply(plain, none);
    EXPECT_EQ(apply(moe, in), want) << "adapters never set";
    std::vector<LoraWeights> adapters = conformance::random_adapters(request, 3);
    ASSERT_TRUE(moe.set_adapter(0, adapters[0]));
    EXPECT_NE(apply(moe, in), want);
    EXPECT_EQ(apply(moe, none), want) << "no ids";
    for (auto* pairs : {&adapters[0].gate, &adapters[0].up, &adapters[0].down}) {
      for (LoraPair& pair : *pairs) std::fill(pair.b.begin(), pair.b.end(), 0.0f);
    }
    ASSERT_TRUE(moe.set_adapter(0, adapters[0]));
    EXPECT_EQ(apply(moe, in), want) << "B of zeros";
    ASSERT_TRUE(moe.clear_adapter(0));
    EXPECT_EQ(apply(moe, in), want) << "cleared";
  }
}

// An adapter on any scheme is the same as weights with the adapter merged in.
TEST(Lora, MatchesMergedWeights) {
  const Request request = with_adapters({kF32Weight, {}});
  const LayerSpec& layer = request.layer;
  const std::vector<LoraWeights> adapters = conformance::random_adapters(request, 3);
  const DescribedWeights base = random_weights(layer, 1);
  auto merge = [](CanonicalMatrix matrix, const LoraPair& pair, int64_t first) {
    if (matrix.storage.empty()) matrix.storage.assign(matrix.codes.begin(), matrix.codes.end());
    auto* values = reinterpret_cast<float*>(matrix.storage.data());
    for (int64_t n = 0; pair.rank > 0 && n < static_cast<int64_t>(pair.b.size()) / pair.rank; ++n) {
      for (int64_t k = 0; k < matrix.k; ++k) {
        float delta = 0;
        for (int64_t j = 0; j < pair.rank; ++j)
          delta += pair.b[n * pair.rank + j] * pair.a[j * matrix.k + k];
        values[(first + n) * matrix.k + k] += pair.scale * delta;
      }
    }
    matrix.codes = matrix.storage;
    return matrix;
  };
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < kExperts; ++e) {
    w13.push_back(merge(merge(*base.w13.expert(e), adapters[0].gate[e], 0), adapters[0].up[e],
                        layer.intermediate_size));
    w2.push_back(merge(*base.w2.expert(e), adapters[0].down[e], 0));
  }
  DescribedWeights merged{layer, DescribedMatrix::from(layer.scheme, std::move(w13)),
                          DescribedMatrix::from(layer.scheme, std::move(w2))};
  auto whole = FusedMoe::make(std::move(merged), select(request_for(layer.scheme), Machine::here()),
                              device());
  ASSERT_TRUE(whole) << whole.error().to_string();
  FusedMoe moe = make(request);
  ASSERT_TRUE(moe.set_adapter(1, adapters[0]));
  conformance::Inputs in = inputs(request), none = in;
  std::fill(in.lora_ids.begin(), in.lora_ids.end(), 1);
  none.lora_ids.clear();
  const auto got = apply(moe, in), want = apply(*whole, none);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(std::bit_cast<float>(got[i]), std::bit_cast<float>(want[i]), 2e-5) << i;
}

TEST(Lora, RejectsMismatchedAdapterAndKeepsOldOne) {
  const Request request = with_adapters(kW8A8);
  FusedMoe moe = make(request);
  const std::vector<LoraWeights> good = conformance::random_adapters(request, 3);
  ASSERT_TRUE(moe.set_adapter(0, good[0]));
  const auto before = apply(moe, inputs(request));
  auto expect_refused = [&](int32_t id, LoraWeights bad, const char* need, const char* fact) {
    const Status set = moe.set_adapter(id, bad);
    ASSERT_FALSE(set) << need;
    EXPECT_THAT(set.error().need, HasSubstr(need));
    EXPECT_THAT(set.error().fact, HasSubstr(fact));
    EXPECT_EQ(apply(moe, inputs(request)), before);
  };
  LoraWeights bad = good[0];
  expect_refused(2, bad, "an adapter id from 0 to 1, as planned", "it is 2");
  expect_refused(-1, bad, "an adapter id from 0 to 1, as planned", "it is -1");
  bad.down.pop_back();
  expect_refused(0, bad, "one adapter for each of 6 experts", "there are 5");
  bad = good[0];
  bad.up[4].rank = 5;
  expect_refused(0, bad, "a rank of at most 4", "it is 5");
  bad = good[0];
  bad.gate[2].a.pop_back();
  expect_refused(0, bad, "A [4, 70] and B [34, 4]", "279 and 136");
}

TEST(Lora, UnknownAdapterIdAddsNothingAndIsReported) {
  const Request request = with_adapters(kW8A8);
  FusedMoe moe = make(request);
  ASSERT_TRUE(moe.set_adapter(0, conformance::random_adapters(request, 3)[0]));
  conformance::Inputs in = inputs(request), wrong = in;
  in.lora_ids[2] = -1;
  wrong.lora_ids[2] = 2;
  const auto want = apply(moe, in);
  EXPECT_EQ(apply(moe, wrong), want);
  const Status said = device()->synchronize();
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().fact, "token 2 has 2");
  FusedMoe plain = make(request_for(kW8A8));
  std::vector<float> output(in.hidden.size());
  const Status unplanned = plain.apply(
      Matrix::f32(in.hidden.data(), kTokens, kHidden), {in.ids.data()}, {in.weights.data()},
      Matrix::f32(output.data(), kTokens, kHidden), {}, {in.lora_ids.data()});
  ASSERT_FALSE(unplanned);
  EXPECT_EQ(unplanned.error().need, "a plan with adapters");
}

// ---- new weights while serving ----

// The state left by one load must not affect the next.
TEST(Reload, MatchesColdLoadBitForBitInEverySchemeOnEveryRow) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(std::string(row.backend) + ", " + name(row.scheme));
    Request request = request_for(row.scheme, row.backend);
    request.layer.bias = true;
    FusedMoe moe = make(request, 1), cold = make(request, 2);
    const auto a = apply(moe, inputs(request)), b = apply(cold, inputs(request));
    ASSERT_NE(a, b);
    auto packed = moe.pack(random_weights(request.layer, 2));
    ASSERT_TRUE(packed) << packed.error().to_string();
    EXPECT_EQ(apply(moe, inputs(request)), a) << "packed, not yet swapped";
    ASSERT_TRUE(moe.swap(*std::move(packed)));
    EXPECT_EQ(apply(moe, inputs(request)), b);
    ASSERT_TRUE(moe.swap(*moe.pack(random_weights(request.layer, 2))));
    EXPECT_EQ(apply(moe, inputs(request)), b) << "the same again";
  }
}

TEST(Reload, RejectsOtherLayerAndChangesNothing) {
  const Request request = request_for(kW8A8);
  FusedMoe moe = make(request);
  const auto before = apply(moe, inputs(request));
  Request other = request;
  auto expect_refused = [&](const char* fact) {
    auto packed = moe.pack(random_weights(other.layer, 2));
    ASSERT_FALSE(packed);
    EXPECT_THAT(packed.error().need, HasSubstr("int8-w8a8 · 6 experts, top-2, 70 → 34"));
    EXPECT_THAT(packed.error().fact, HasSubstr(fact));
    EXPECT_EQ(apply(moe, inputs(request)), before);
    other = request;
  };
  other.layer.hidden_size = 72;
  expect_refused("72 → 34");
  other.layer.num_experts = 7;
  expect_refused("7 experts");
  other.layer.scheme = {kInt8StaticChannelSym, {}};
  expect_refused("int8-w8a16-channel");
  other.layer.bias = true;
  expect_refused("with biases");
}

TEST(Reload, StopHalfwayChangesNothing) {
  const Request request = request_for(kW8A8);
  FusedMoe moe = make(request);
  const auto before = apply(moe, inputs(request));
  for (int stop_at = 0; stop_at < 2 * kExperts; ++stop_at) {
    int steps = 0;
    auto packed = moe.pack(random_weights(request.layer, 2),
                           [&](int64_t, int64_t) { return steps++ < stop_at; });
    // Each matrix reports at least once. More reports depend on the threads.
    ASSERT_TRUE(!packed || (stop_at > 1 && steps <= stop_at)) << stop_at;
    if (!packed) {
      EXPECT_EQ(packed.error().kind, ErrorKind::kCancelled);
    }
    EXPECT_EQ(apply(moe, inputs(request)), before) << "stopped at step " << stop_at;
  }
}

TEST(Reload, KeepsExpertMapAndAdapters) {
  Request request = with_adapters(kW8A8);
  request.parallel = {.ep_size = 2, .ep_rank = 1};
  FusedMoe moe = make(request, 1), cold = make(request, 2);
  const LoraWeights adapter = conformance::random_adapters(request, 3)[0];
  ASSERT_TRUE(moe.set_adapter(0, adapter));
  ASSERT_TRUE(cold.set_adapter(0, adapter));
  ASSERT_TRUE(moe.swap(*moe.pack(random_weights(request.layer, 2))));
  EXPECT_EQ(apply(moe, inputs(request)), apply(cold, inputs(request)));
}

TEST(Reload, DenseLayerMatchesColdLoad) {
  const MatrixShape shape{.n = 33, .k = 65, .key = kInt8StaticChannelSym};
  auto described = [&](uint64_t seed) {
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(shape, seed));
    return DescribedMatrix::from(kW8A8, std::move(one));
  };
  Request request;
  request.layer = linear_spec("q_proj", described(1));
  request.platform = Platform::kCpu;
  const Selection selection = select(request, Machine::here());
  auto workspace = std::make_shared<Workspace>(device());
  auto linear = Linear::make(described(1), selection, workspace);
  auto cold = Linear::make(described(2), selection, workspace);
  ASSERT_TRUE(linear && cold);
  std::vector<float> x(2 * 65, 0.25f), got(2 * 33), want(2 * 33);
  x[7] = 3;
  ASSERT_TRUE(linear->swap(*linear->pack(described(2))));
  ASSERT_TRUE(linear->apply(Matrix::f32(x.data(), 2, 65), Matrix::f32(got.data(), 2, 33)));
  ASSERT_TRUE(cold->apply(Matrix::f32(x.data(), 2, 65), Matrix::f32(want.data(), 2, 33)));
  EXPECT_EQ(got, want);
  std::vector<CanonicalMatrix> other;
  other.push_back(conformance::random_matrix({.n = 34, .k = 65, .key = kInt8StaticChannelSym}, 1));
  const auto refused = linear->pack(DescribedMatrix::from(kW8A8, std::move(other)));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact, HasSubstr("65 → 34"));
}

}  // namespace
}  // namespace moracle::features_on_layers_test
