// Tests that layers reject calls that would access invalid memory, and work after the error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "conformance/conformance.h"
#include "layer_on_rows.h"
#include "oracle/backend.h"
#include "support/must.h"

namespace moracle::refusals_test {
namespace {

using conformance::random_weights;
using ::testing::HasSubstr;
using testing::odd_layer;

const Scheme kW8A8{kInt8StaticChannelSym, kInt8DynamicTokenSym};

std::shared_ptr<Device> cpu() {
  return *open_device("cpu", 2);
}
Request request_for(const LayerSpec& spec, const char* row = "cpu") {
  return {.layer = spec, .max_num_tokens = 8, .backend = row};
}
FusedMoe make(const Request& request, uint64_t seed = 1) {
  return testing::must(
      FusedMoe::make(random_weights(request.layer, seed), select(request, Machine::here()), cpu()));
}
PackedWeights pack(const FusedMoe& moe, uint64_t seed) {
  return testing::must(moe.pack(random_weights(moe.plan().layer, seed)));
}

std::vector<float> output_of(FusedMoe& moe) {
  const LayerSpec& spec = moe.plan().layer;
  testing::TokenBatch batch = testing::random_batch(spec, 4);
  std::vector<float> output(batch.hidden.size(), NAN);
  const Status done =
      moe.apply(Matrix::f32(batch.hidden.data(), 4, spec.hidden_size), {batch.ids.data()},
                {batch.weights.data()}, Matrix::f32(output.data(), 4, spec.hidden_size));
  EXPECT_TRUE(done) << done.error().to_string();
  return output;
}

// The other layer rejects the weights. The right layer then accepts them.
void expect_refused(FusedMoe& refusing, FusedMoe& right, const char* fact) {
  PackedWeights packed = pack(right, 2);
  const std::vector<float> before = output_of(refusing);
  for (int again = 0; again < 2; ++again) {
    const Status refused = refusing.swap(std::move(packed));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(refused.error().fact, HasSubstr(fact));
  }
  EXPECT_EQ(output_of(refusing), before);
  const Status taken = right.swap(std::move(packed));
  EXPECT_TRUE(taken) << taken.error().to_string();
  FusedMoe cold = make(request_for(right.plan().layer, right.plan().backend->name.data()), 2);
  EXPECT_EQ(output_of(right), output_of(cold));
}

TEST(Swap, KeepsWeightsOfOtherLayerUsable) {
  LayerSpec other = odd_layer(kW8A8);
  other.intermediate_size += 2;
  FusedMoe right = make(request_for(odd_layer(kW8A8))), refusing = make(request_for(other));
  expect_refused(refusing, right, "packed for layers.3.experts");
}

TEST(Swap, KeepsWeightsOfOtherBackendUsable) {
  const LayerSpec spec = odd_layer(kW8A8);
  FusedMoe right = make(request_for(spec)), refusing = make(request_for(spec, "reference"));
  expect_refused(refusing, right, "packed for cpu");
}

TEST(Swap, RejectsWeightsOfOtherRank) {
  Request request = request_for(odd_layer(kW8A8, 6));
  request.parallel = {.ep_size = 2, .ep_rank = 0};
  FusedMoe first = make(request);
  request.parallel.ep_rank = 1;
  FusedMoe second = make(request);
  const std::vector<float> before = output_of(second);
  const Status refused = second.swap(pack(first, 2));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact, HasSubstr("packed for other experts"));
  EXPECT_EQ(output_of(second), before);
}

TEST(Swap, RejectsUsedUpWeights) {
  FusedMoe moe = make(request_for(odd_layer(kW8A8)));
  PackedWeights packed = pack(moe, 2);
  ASSERT_TRUE(moe.swap(std::move(packed)));
  const std::vector<float> before = output_of(moe);
  const Status refused = moe.swap(std::move(packed));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().to_string(),
            "layers.3.experts: needs packed weights; an earlier swap or move has consumed them");
  EXPECT_EQ(output_of(moe), before);
}

// ---- a dense layer ----

constexpr int64_t kN = 33, kK = 65;

DescribedMatrix matrix(uint64_t seed, int64_t n = kN) {
  std::vector<CanonicalMatrix> one;
  one.push_back(conformance::random_matrix({.n = n, .k = kK, .key = kInt8StaticChannelSym}, seed));
  return DescribedMatrix::from(kW8A8, std::move(one));
}
Linear make_linear(int64_t n = kN, const char* row = "cpu") {
  return testing::must(Linear::make(
      matrix(1, n), select(request_for(linear_spec("q_proj", matrix(1, n)), row), Machine::here()),
      std::make_shared<Workspace>(cpu())));
}

TEST(LinearSwap, KeepsWeightsUsableUntilSwapSucceeds) {
  Linear right = make_linear(), larger = make_linear(kN + 1),
         elsewhere = make_linear(kN, "reference");
  auto packed = right.pack(matrix(2));
  ASSERT_TRUE(packed) << packed.error().to_string();
  for (Linear* refusing : {&larger, &elsewhere}) EXPECT_FALSE(refusing->swap(std::move(*packed)));
  EXPECT_TRUE(right.swap(std::move(*packed)));
  const Status refused = right.swap(std::move(*packed));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact, HasSubstr("consumed them"));
}

TEST(LinearSwap, RejectsWeightsOfExperts) {
  Linear linear = make_linear();
  FusedMoe moe = make(request_for(odd_layer(kW8A8)));
  EXPECT_FALSE(linear.swap(pack(moe, 2)));
  auto packed = linear.pack(matrix(2));
  ASSERT_TRUE(packed);
  EXPECT_FALSE(moe.swap(*std::move(packed)));
}

// ---- pointers ----

// Memory of `bytes` bytes that starts `past` bytes after a multiple of 16.
struct Memory {
  std::vector<std::byte> bytes;
  std::byte* at(size_t past) {
    return bytes.data() + (16 - reinterpret_cast<uintptr_t>(bytes.data()) % 16) % 16 + past;
  }
  explicit Memory(size_t count) : bytes(count + 32) {}
};

void expect_named(const Status& refused, const char* argument, const char* fact) {
  ASSERT_FALSE(refused) << argument;
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(refused.error().place, HasSubstr(argument));
  EXPECT_THAT(refused.error().fact, HasSubstr(fact));
}

TEST(FusedMoeApply, RejectsNullAndMisalignedPointersByName) {
  Request request = request_for(odd_layer(kW8A8));
  request.lora_rank = 2, request.max_adapters = 1;
  FusedMoe moe = make(request);
  const int64_t hidden = request.layer.hidden_size;
  Memory x(8 * hidden * 4), y(8 * hidden * 4), ids(8 * 8), weights(8 * 8), adapters(8 * 4);
  struct Call {
    size_t x = 0, y = 0, ids = 0, weights = 0, adapters = 0;
    DType dtype = DType::kF32;
  };
  const auto apply = [&](const Call& call) {
    const auto i32 = [](Memory& memory, size_t past) {
      return reinterpret_cast<int32_t*>(memory.at(past));
    };
    return moe.apply({x.at(call.x), call.dtype, 4, hidden, hidden}, {i32(ids, call.ids)},
                     {reinterpret_cast<float*>(weights.at(call.weights))},
                     {y.at(call.y), call.dtype, 4, hidden, hidden}, {},
                     {i32(adapters, call.adapters)});
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const size_t size = static_cast<size_t>(bits(dtype) / 8);
    const Status done = apply({.x = size, .y = 3 * size, .ids = 4, .weights = 12, .dtype = dtype});
    EXPECT_TRUE(done) << done.error().to_string();
    expect_named(apply({.x = 1, .dtype = dtype}), "hidden", "1 bytes past such an address");
    expect_named(apply({.y = size + 1, .dtype = dtype}), "output", "1 bytes past such an address");
  }
  expect_named(apply({.x = 2}), "hidden", "2 bytes past such an address");
  expect_named(apply({.ids = 2}), "topk_ids", "2 bytes past such an address");
  expect_named(apply({.weights = 3}), "topk_weights", "3 bytes past such an address");
  expect_named(apply({.adapters = 1}), "lora_ids", "1 bytes past such an address");
  const Matrix good{x.at(0), DType::kF32, 4, hidden, hidden},
      none{nullptr, DType::kF32, 4, hidden, hidden};
  const TopkIds some_ids{reinterpret_cast<int32_t*>(ids.at(0))};
  const TopkWeights some_weights{reinterpret_cast<float*>(weights.at(0))};
  expect_named(moe.apply(none, some_ids, some_weights, good), "hidden", "it is null");
  expect_named(moe.apply(good, {}, some_weights, good), "topk_ids", "it is null");
  expect_named(moe.apply(good, some_ids, {}, good), "topk_weights", "it is null");
  expect_named(moe.apply(good, some_ids, some_weights, none), "output", "it is null");
}

TEST(FusedMoeApplyBatched, RejectsNullAndMisalignedPointersByName) {
  Request request = request_for(odd_layer(kW8A8));
  request.parallel.format = ActivationFormat::kBatched;
  FusedMoe moe = make(request);
  const int64_t rows = moe.plan().max_slots(), hidden = request.layer.hidden_size;
  std::vector<float> x(rows * hidden), y(rows * hidden);
  const Matrix in = Matrix::f32(x.data(), rows, hidden), out = Matrix::f32(y.data(), rows, hidden);
  Memory counts(32);
  const auto at = [&](size_t past) { return reinterpret_cast<int32_t*>(counts.at(past)); };
  EXPECT_TRUE(moe.apply_batched(in, {at(4)}, out));
  expect_named(moe.apply_batched(in, {at(2)}, out), "num_tokens", "2 bytes past such an address");
  expect_named(moe.apply_batched(in, {}, out), "num_tokens", "it is null");
}

TEST(LinearApply, RejectsBadArgumentsByName) {
  Linear linear = make_linear();
  Memory x(4 * kK * 4), y(4 * kN * 4);
  const auto apply = [&](size_t of_x, size_t of_y, DType in = DType::kF32, DType out = DType::kF32,
                         int64_t stride = kK) {
    return linear.apply({x.at(of_x), in, 2, kK, stride}, {y.at(of_y), out, 2, kN, kN});
  };
  EXPECT_TRUE(apply(4, 8));
  expect_named(apply(2, 0), "q_proj: x", "2 bytes past such an address");
  expect_named(apply(0, 5), "q_proj: y", "1 bytes past such an address");
  expect_named(linear.apply({nullptr, DType::kF32, 2, kK, kK}, Matrix::f32(nullptr, 2, kN)),
               "q_proj: x", "it is null");
  expect_named(apply(0, 0, DType::kBF16), "q_proj", "bf16 and f32");
  expect_named(apply(0, 0, DType::kF32, DType::kF16), "q_proj", "f32 and f16");
  expect_named(apply(0, 0, DType::kF32, DType::kF32, kK - 1), "q_proj", "strides 64 and 33");
}

// ---- memory ----

TEST(Workspace, KeepsBytesWhenGrowthFails) {
  auto workspace = std::make_shared<Workspace>(cpu());
  const LayerSpec spec = odd_layer(kW8A8);
  auto moe = FusedMoe::make(random_weights(spec, 1), select(request_for(spec), Machine::here()),
                            workspace);
  ASSERT_TRUE(moe) << moe.error().to_string();
  const std::vector<float> before = output_of(*moe);
  const size_t bytes = workspace->bytes();
  const Status refused = workspace->reserve(size_t{1} << 60);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(workspace->bytes(), bytes);
  EXPECT_EQ(output_of(*moe), before);
}

}  // namespace
}  // namespace moracle::refusals_test
