// Tests FusedMoe and Linear as an engine author uses them: shapes, types, errors, sums over ranks,
// and properties that do not change the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <new>
#include <ostream>
#include <random>
#include <vector>

#include "base/scalar.h"
#include "conformance/conformance.h"
#include "kernels/weights/kernel_weights.h"
#include "moe/layer_on_rows.h"
#include "moracle/moe.h"
#include "oracle/carve.h"
#include "quant/codec.h"
#include "support/floats.h"
#include "support/must.h"

// Counts every allocation of this program. Tests compare the count before and after. Not inlined:
// g++ would warn about malloc with delete.
namespace {
std::atomic<int64_t> allocations{0};
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// The standard library allocates temporary buffers with this one.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace moracle {

// gtest finds this function for its messages.
static void PrintTo(const Scheme& scheme, std::ostream* out) {
  *out << name(scheme);
}

}  // namespace moracle

namespace moracle::fused_moe_test {

namespace {

using conformance::random_weights;
using ::testing::HasSubstr;

constexpr double kU = 0x1p-24;

const Scheme kW8A8{kInt8StaticChannelSym, kInt8DynamicTokenSym};
const Scheme kW8A16{kInt8StaticChannelSym, {}};

LayerSpec layer(const Scheme& scheme, int64_t num_experts = 6, int64_t top_k = 2) {
  return testing::odd_layer(scheme, num_experts, top_k);
}

std::shared_ptr<Device> cpu(int threads = 2) {
  return *open_device("cpu", threads);
}

Selection choose(const LayerSpec& spec, int64_t max_num_tokens = 32, const char* backend = "cpu") {
  static const Machine here = Machine::here();  // every test process lists all schemes
  return select({.layer = spec, .max_num_tokens = max_num_tokens, .backend = backend}, here);
}

FusedMoe make(const LayerSpec& spec, uint64_t seed = 1, std::shared_ptr<Device> device = cpu(),
              const char* backend = "cpu") {
  return testing::must(
      FusedMoe::make(random_weights(spec, seed), choose(spec, 32, backend), std::move(device)));
}

/// Inputs of one apply.
struct Batch {
  int64_t tokens;
  std::vector<float> hidden;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  Batch(const LayerSpec& spec, int64_t num_tokens, uint32_t seed = 5) : tokens(num_tokens) {
    std::mt19937 random(seed);
    hidden = testing::normal_floats(random, tokens * spec.hidden_size);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < spec.top_k; ++j) {
        ids.push_back(static_cast<int32_t>((random() % spec.num_experts + j) % spec.num_experts));
        weights.push_back(0.1f + static_cast<float>(random() % 1000) / 1000);
      }
    }
  }
};

std::vector<float> apply(FusedMoe& moe, const LayerSpec& spec, Batch batch) {
  std::vector<float> output(batch.hidden.size(), NAN);
  const Status done = moe.apply(Matrix::f32(batch.hidden.data(), batch.tokens, spec.hidden_size),
                                {batch.ids.data()}, {batch.weights.data()},
                                Matrix::f32(output.data(), batch.tokens, spec.hidden_size));
  testing::must(done);
  return output;
}

void expect_as_expected(const LayerSpec& spec, uint64_t seed, const Batch& batch,
                        const std::vector<float>& got) {
  const auto want = conformance::expected(spec, random_weights(spec, seed), batch.hidden, batch.ids,
                                          batch.weights);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want.output[i], want.bound[i]) << "element " << i;
  }
}

/// Bytes, so that NaN equals itself and -0 does not equal 0.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::string scheme_name(const ::testing::TestParamInfo<Scheme>& info) {
  std::string text = name(info.param);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

/// Tests that hold for every scheme that the cpu backend serves.
class FusedMoeInScheme : public ::testing::TestWithParam<Scheme> {};

std::vector<Scheme> served() {
  std::vector<Scheme> schemes;
  for (const Scheme& scheme : conformance::schemes()) {
    if (choose(layer(scheme)).plan) schemes.push_back(scheme);
  }
  return schemes;
}

TEST_P(FusedMoeInScheme, ReadsAndWritesAllFloatTypes) {
  const LayerSpec spec = layer(GetParam());
  FusedMoe moe = make(spec);
  for (DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
    Batch batch(spec, 9);
    std::vector<uint16_t> halves(batch.hidden.size());
    for (size_t i = 0; i < halves.size() && in != DType::kF32; ++i) {
      halves[i] =
          in == DType::kBF16 ? float_to_bf16(batch.hidden[i]) : float_to_f16(batch.hidden[i]);
      batch.hidden[i] = in == DType::kBF16 ? bf16_to_float(halves[i]) : f16_to_float(halves[i]);
    }
    const std::vector<float> want = apply(moe, spec, batch);
    expect_as_expected(spec, 1, batch, want);
    const Matrix hidden{in == DType::kF32 ? static_cast<void*>(batch.hidden.data()) : halves.data(),
                        in, 9, spec.hidden_size, spec.hidden_size};
    for (DType out : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<uint32_t> words(want.size());
      const Matrix output{words.data(), out, 9, spec.hidden_size, spec.hidden_size};
      ASSERT_TRUE(moe.apply(hidden, {batch.ids.data()}, {batch.weights.data()}, output));
      for (size_t i = 0; i < want.size(); ++i) {
        const auto* half = static_cast<const uint16_t*>(output.data) + i;
        if (out == DType::kF32) {
          ASSERT_EQ(std::bit_cast<float>(words[i]), want[i]);
        } else {
          ASSERT_EQ(*half, out == DType::kBF16 ? float_to_bf16(want[i]) : float_to_f16(want[i]));
        }
      }
    }
  }
}

TEST_P(FusedMoeInScheme, AcceptsAnyRowStride) {
  const LayerSpec spec = layer(GetParam());
  FusedMoe moe = make(spec);
  const Batch batch(spec, 5);
  const std::vector<float> want = apply(moe, spec, batch);
  const int64_t stride = spec.hidden_size + 3, out_stride = spec.hidden_size + 11;
  std::vector<float> hidden(5 * stride, NAN), output(5 * out_stride, 42.0f);
  for (int64_t t = 0; t < 5; ++t) {
    std::copy_n(&batch.hidden[t * spec.hidden_size], spec.hidden_size, &hidden[t * stride]);
  }
  ASSERT_TRUE(moe.apply({hidden.data(), DType::kF32, 5, spec.hidden_size, stride},
                        {batch.ids.data()}, {batch.weights.data()},
                        {output.data(), DType::kF32, 5, spec.hidden_size, out_stride}));
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t c = 0; c < out_stride; ++c) {
      const float expected = c < spec.hidden_size ? want[t * spec.hidden_size + c] : 42.0f;
      ASSERT_EQ(output[t * out_stride + c], expected);
    }
  }
}

// Ids select experts, weights scale their outputs, and a weight scales the bias of w2 too.
TEST_P(FusedMoeInScheme, IsWeightedSumOfExpertOutputs) {
  LayerSpec spec = layer(GetParam(), 5, 3);
  spec.bias = true;
  FusedMoe moe = make(spec);
  const int64_t tokens = 7;
  Batch batch(spec, tokens);
  std::vector<std::vector<float>> alone;  // each expert's output for every token, weight 1
  for (int32_t e = 0; e < spec.num_experts; ++e) {
    Batch single = batch;
    for (size_t slot = 0; slot < single.ids.size(); ++slot) {
      single.ids[slot] = slot % 3 == 1 ? e : -1;
      single.weights[slot] = 1;
    }
    alone.push_back(apply(moe, spec, single));
  }
  auto expect_sum = [&](const Batch& b) {
    const std::vector<float> got = apply(moe, spec, b);
    for (int64_t i = 0; i < tokens * spec.hidden_size; ++i) {
      double want = 0, size = 0;
      for (int64_t slot = i / spec.hidden_size * 3; slot < i / spec.hidden_size * 3 + 3; ++slot) {
        const double term = double{b.weights[slot]} * alone[b.ids[slot]][i];
        want += term;
        size += std::fabs(term);
      }
      // The summation order of a row may depend on the other rows of the batch.
      EXPECT_NEAR(got[i], want, 1e-5 * (size + 1));
    }
    return got;
  };
  const std::vector<float> first = expect_sum(batch);
  Batch changed = batch;
  for (float& weight : changed.weights) weight *= 2;
  const std::vector<float> doubled = expect_sum(changed);
  for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(doubled[i], 2 * first[i]);
  changed = batch;
  for (int64_t t = 0; t < tokens; ++t) {
    float* const weights = changed.weights.data() + t * 3;
    std::rotate(weights, weights + 1, weights + 3);
  }
  EXPECT_NE(expect_sum(changed), first) << "other weights, other sums";
  for (int64_t t = 0; t < tokens; ++t) {
    int32_t* const ids = changed.ids.data() + t * 3;
    std::rotate(ids, ids + 1, ids + 3);
  }
  expect_sum(changed);
  changed = batch;
  for (int32_t& id : changed.ids) id = (id + 1) % 5;
  EXPECT_NE(expect_sum(changed), first) << "other experts, other outputs";
}

// Experts of other ranks add exactly zero here. The sum over ranks is the whole result.
TEST_P(FusedMoeInScheme, ExpertParallelRanksSumToWhole) {
  const LayerSpec spec = layer(GetParam(), 7, 3);
  FusedMoe moe = make(spec);
  const Batch batch(spec, 11);
  const std::vector<float> whole = apply(moe, spec, batch);
  for (int ranks : {2, 3, 7, 9}) {  // most do not divide 7; some of nine are empty
    std::vector<double> sum(whole.size()), size(whole.size());
    for (int rank = 0; rank < ranks; ++rank) {
      Batch mine = batch;
      for (int32_t& id : mine.ids) id = id * ranks / 7 == rank ? id : -1;
      const std::vector<float> part = apply(moe, spec, mine);
      for (size_t i = 0; i < part.size(); ++i) {
        sum[i] += part[i];
        size[i] += std::fabs(part[i]);
        const auto first = mine.ids.begin() + static_cast<int64_t>(i) / spec.hidden_size * 3;
        if (std::count(first, first + 3, -1) == 3) {
          ASSERT_EQ(std::bit_cast<uint32_t>(part[i]), 0u) << "exactly zero";
        }
      }
    }
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(sum[i], whole[i], 1e-5 * (size[i] + 1));
  }
}

TEST_P(FusedMoeInScheme, GivesSameBitsForAnyThreadCount) {
  const LayerSpec spec = layer(GetParam());
  const Batch batch(spec, 13);
  FusedMoe one = make(spec, 1, cpu(1)), two = make(spec, 1, cpu(2)), three = make(spec, 1, cpu(3));
  const auto want = bits_of(apply(one, spec, batch));
  EXPECT_EQ(bits_of(apply(two, spec, batch)), want);
  EXPECT_EQ(bits_of(apply(three, spec, batch)), want);
  EXPECT_EQ(bits_of(apply(three, spec, batch)), want) << "and again";
}

// With int8 on both sides the sums are exact, so other rows change no bit. With floats the cpu
// backend sums a tile of four rows in another order than a single row. Then other rows change only
// the last bits of a token's result, unless a last bit flips the rounding of an fp8 code between
// the GEMMs.
TEST_P(FusedMoeInScheme, GivesTokenSameResultInAnyBatch) {
  const LayerSpec spec = layer(GetParam());
  FusedMoe moe = make(spec);
  const Batch batch(spec, 9);
  const std::vector<float> together = apply(moe, spec, batch);
  for (int64_t t = 0; t < 9; ++t) {
    Batch single(spec, 1);
    std::copy_n(&batch.hidden[t * spec.hidden_size], spec.hidden_size, single.hidden.begin());
    std::copy_n(&batch.ids[t * 2], 2, single.ids.begin());
    std::copy_n(&batch.weights[t * 2], 2, single.weights.begin());
    const std::vector<float> alone = apply(moe, spec, single);
    for (int64_t c = 0; c < spec.hidden_size; ++c) {
      const float other = together[t * spec.hidden_size + c];
      if (spec.scheme == Scheme{kInt8StaticChannelSym, kInt8DynamicTokenSym}) {
        ASSERT_EQ(alone[c], other) << "token " << t << " column " << c;
      } else if (spec.scheme.activation) {
        ASSERT_NEAR(alone[c], other, 2e-2 * (1 + std::fabs(other)));
      } else {
        ASSERT_NEAR(alone[c], other, 2e-6 * (1 + std::fabs(other)));
      }
    }
  }
}

TEST_P(FusedMoeInScheme, ApplyAllocatesNothing) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const LayerSpec spec = layer(GetParam());
    FusedMoe moe = make(spec, 1, cpu(3));
    Batch batch(spec, 16);
    std::vector<float> output(batch.hidden.size());
    const Matrix hidden{batch.hidden.data(), dtype, 16, spec.hidden_size, spec.hidden_size};
    const Matrix to{output.data(), dtype, 16, spec.hidden_size, spec.hidden_size};
    for (int64_t tokens : {16, 1, 5}) {
      const Matrix from_rows = hidden.slice(0, tokens), to_rows = to.slice(0, tokens);
      const int64_t before = allocations;  // the first call is like every other
      bool good = moe.apply(from_rows, {batch.ids.data()}, {batch.weights.data()}, to_rows).ok();
      good &= moe.apply(from_rows, {batch.ids.data()}, {batch.weights.data()}, to_rows).ok();
      const int64_t after = allocations;
      EXPECT_TRUE(good);
      EXPECT_EQ(after - before, 0) << name(dtype) << ", " << tokens << " tokens";
    }
  }
}

// A token of zeros.
TEST_P(FusedMoeInScheme, ZeroTokenGivesZero) {
  const LayerSpec spec = layer(GetParam());
  FusedMoe moe = make(spec);
  Batch batch(spec, 3);
  std::fill_n(&batch.hidden[spec.hidden_size], spec.hidden_size, 0.0f);
  const std::vector<float> output = apply(moe, spec, batch);
  for (int64_t c = 0; c < spec.hidden_size; ++c) {
    ASSERT_EQ(output[spec.hidden_size + c], 0);
    ASSERT_TRUE(std::isfinite(output[c]));
  }
}

TEST_P(FusedMoeInScheme, NanStaysInItsToken) {
  const LayerSpec spec = layer(GetParam());
  FusedMoe moe = make(spec);
  Batch batch(spec, 5);
  const std::vector<float> clean = apply(moe, spec, batch);
  batch.hidden[2 * spec.hidden_size + 3] = NAN;
  const std::vector<float> wild = apply(moe, spec, batch);
  for (size_t i = 0; i < wild.size(); ++i) {
    if (static_cast<int64_t>(i) / spec.hidden_size == 2) {
      ASSERT_TRUE(std::isnan(wild[i]));
    } else {
      ASSERT_EQ(wild[i], clean[i]);
    }
  }
  batch.hidden[2 * spec.hidden_size + 3] = 0;
  for (float value : apply(moe, spec, batch))
    ASSERT_TRUE(std::isfinite(value)) << "nothing stays behind";
}

INSTANTIATE_TEST_SUITE_P(Schemes, FusedMoeInScheme, ::testing::ValuesIn(served()), scheme_name);

// One outlier per token leaves almost no other information in int8 activations. Weight-only keeps
// the rest of the row. Each scheme gives a different result, and the plan names the executed
// scheme.
TEST(FusedMoeTest, ExecutesSchemeOfPlan) {
  const LayerSpec quantized = layer(kW8A8), weight_only = layer(kW8A16);
  FusedMoe a8 = make(quantized), a16 = make(weight_only);
  EXPECT_EQ(a8.plan().layer.scheme, kW8A8);
  EXPECT_EQ(a16.plan().layer.scheme, kW8A16);
  Batch batch(quantized, 6);
  for (int64_t t = 0; t < 6; ++t) batch.hidden[t * quantized.hidden_size + t] = 300;
  const std::vector<float> by_a8 = apply(a8, quantized, batch),
                           by_a16 = apply(a16, weight_only, batch);
  expect_as_expected(quantized, 1, batch, by_a8);
  expect_as_expected(weight_only, 1, batch, by_a16);
  double difference = 0, size = 0;
  for (size_t i = 0; i < by_a8.size(); ++i) {
    difference += std::pow(by_a8[i] - by_a16[i], 2);
    size += std::pow(by_a16[i], 2);
  }
  EXPECT_GT(std::sqrt(difference / size), 1e-3);
}

TEST(FusedMoeTest, ZeroTokensDoNothing) {
  const LayerSpec spec = layer(kW8A8);
  FusedMoe moe = make(spec);
  const Matrix none{nullptr, DType::kF32, 0, spec.hidden_size, spec.hidden_size};
  EXPECT_TRUE(moe.apply(none, {}, {}, none));
}

TEST(FusedMoeTest, RejectsMoreTokensThanPlanned) {
  const LayerSpec spec = layer(kW8A16);
  FusedMoe moe = make(spec);
  EXPECT_EQ(moe.plan().max_num_tokens, 32);
  Batch batch(spec, 33);
  std::vector<float> output(batch.hidden.size(), 7.0f);
  const Status done =
      moe.apply(Matrix::f32(batch.hidden.data(), 33, spec.hidden_size), {batch.ids.data()},
                {batch.weights.data()}, Matrix::f32(output.data(), 33, spec.hidden_size));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(done.error().to_string(), HasSubstr("layers.3.experts"));
  EXPECT_THAT(done.error().need, HasSubstr("at most 32 rows"));
  EXPECT_THAT(done.error().fact, HasSubstr("[33, 70]"));
  EXPECT_EQ(output, std::vector<float>(output.size(), 7.0f));
}

// The error names the matrix, the need and the fact.
TEST(FusedMoeTest, RejectsMatricesOfWrongShapeOrType) {
  const LayerSpec spec = layer({kBF16Weight, {}});
  FusedMoe moe = make(spec);
  Batch batch(spec, 4);
  std::vector<float> output(batch.hidden.size());
  const Matrix good_in = Matrix::f32(batch.hidden.data(), 4, 70),
               good_out = Matrix::f32(output.data(), 4, 70);
  auto expect_error = [&](Matrix in, Matrix out, const char* place, const char* fact) {
    const Status done = moe.apply(in, {batch.ids.data()}, {batch.weights.data()}, out);
    ASSERT_FALSE(done) << fact;
    EXPECT_EQ(done.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(done.error().place, HasSubstr(place));
    EXPECT_THAT(done.error().fact, HasSubstr(fact));
    EXPECT_FALSE(done.error().need.empty());
  };
  Matrix bad = good_in;
  bad.cols = 69;
  expect_error(bad, good_out, "hidden", "[4, 69]");
  bad = good_out;
  bad.cols = 71;
  expect_error(good_in, bad, "output", "[4, 71]");
  bad = good_in;
  bad.dtype = DType::kI8;
  expect_error(bad, good_out, "hidden", "i8");
  bad = good_out;
  bad.dtype = DType::kF64;
  expect_error(good_in, bad, "output", "f64");
  bad = good_in;
  bad.stride = 69;
  expect_error(bad, good_out, "hidden", "stride 69");
  bad = good_out;
  bad.rows = 3;
  expect_error(good_in, bad, "layers.3.experts", "3 and 4");
  EXPECT_TRUE(moe.apply(good_in, {batch.ids.data()}, {batch.weights.data()}, good_out));
}

TEST(FusedMoeTest, RejectsSelectionMadeForOtherLayer) {
  const LayerSpec spec = layer(kW8A8);
  std::vector<LayerSpec> others(7, spec);
  others[0].num_experts = 5;
  others[1].hidden_size = 71;
  others[2].intermediate_size = 35;
  others[3].top_k = 1;
  others[4].bias = true;
  others[5].scheme = kW8A16;
  others[6].routing.renormalize = true;
  for (LayerSpec& other : others) {
    other.name = "layers.9.experts";
    const auto moe = FusedMoe::make(random_weights(spec, 1), choose(other), cpu());
    ASSERT_FALSE(moe);
    EXPECT_EQ(moe.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(moe.error().place, "layers.3.experts");
    EXPECT_THAT(moe.error().fact, HasSubstr("layers.9.experts"));
  }
  LayerSpec renamed = spec;
  renamed.name = "layers.4.experts";
  EXPECT_TRUE(FusedMoe::make(random_weights(spec, 1), choose(renamed), cpu()))
      << "names do not matter";
}

TEST(FusedMoeTest, RejectsSelectionWithoutChosenRow) {
  QuantKey by_batch = kFp8DynamicTokenSym;  // one scale for the whole batch: no backend serves it
  by_batch.group = GroupShape{};
  const LayerSpec spec = layer({kFp8StaticChannelSym, by_batch});
  const auto moe = FusedMoe::make(random_weights(spec, 1), choose(spec), cpu());
  ASSERT_FALSE(moe);
  EXPECT_EQ(moe.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(moe.error().fact, HasSubstr("activation-scales"));
}

TEST(FusedMoeTest, StopsLoadingOnRequest) {
  const LayerSpec spec = layer(kW8A16);
  int calls = 0;
  auto moe = FusedMoe::make(random_weights(spec, 1), choose(spec), cpu(),
                            [&](int64_t done, int64_t total) {
                              EXPECT_LE(done, total);
                              return ++calls < 2;
                            });
  // Threads that load concurrently report at least once for each matrix.
  ASSERT_FALSE(moe);
  EXPECT_EQ(moe.error().kind, ErrorKind::kCancelled);
  EXPECT_EQ(calls, 2);
}

TEST(FusedMoeTest, UsesPlannedMemory) {
  for (const Scheme& scheme : served()) {
    FusedMoe moe = make(layer(scheme));
    EXPECT_EQ(moe.weight_bytes(), moe.plan().weight_bytes) << name(scheme);
  }
}

TEST(FusedMoeTest, SharesWorkspaceWithOtherLayers) {
  auto device = cpu();
  const auto workspace = std::make_shared<Workspace>(device);
  const LayerSpec small = layer(kW8A8), large = layer({int4_static_group(32), {}}, 12, 5);
  auto first = FusedMoe::make(random_weights(small, 1), choose(small), workspace);
  ASSERT_TRUE(first);
  const size_t bytes = workspace->bytes();
  auto second = FusedMoe::make(random_weights(large, 2), choose(large), workspace);
  ASSERT_TRUE(second);
  EXPECT_GT(workspace->bytes(), bytes) << "it grows while layers are made";
  const size_t grown = workspace->bytes();
  FusedMoe first_alone = make(small, 1, device), second_alone = make(large, 2, device);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const Batch a(small, 32, seed), b(large, 32, seed + 100);
    EXPECT_EQ(apply(*first, small, a), apply(first_alone, small, a));
    EXPECT_EQ(apply(*second, large, b), apply(second_alone, large, b));
  }
  EXPECT_EQ(workspace->bytes(), grown) << "never in apply";
}

TEST(FusedMoeTest, MovesWithItsWeights) {
  const LayerSpec spec = layer(kW8A8);
  FusedMoe moe = make(spec);
  const Batch batch(spec, 3);
  const std::vector<float> want = apply(moe, spec, batch);
  FusedMoe moved = std::move(moe);
  EXPECT_EQ(apply(moved, spec, batch), want);
}

// ---- linear ----

// Compares one linear layer on six tokens with sums in double.
void expect_linear(const Scheme& scheme, bool bias) {
  constexpr int64_t kN = 37, kK = 53, kRows = 6;
  const MatrixShape shape{.n = kN, .k = kK, .key = scheme.weight, .bias = bias};
  std::vector<CanonicalMatrix> one;
  one.push_back(conformance::random_matrix(shape, 3));
  const CanonicalMatrix w = conformance::random_matrix(shape, 3);
  DescribedMatrix described = DescribedMatrix::from(scheme, std::move(one));
  const LayerSpec spec = linear_spec("layers.0.q_proj", described);
  EXPECT_TRUE(spec.linear);
  Linear linear = testing::must(
      Linear::make(std::move(described), choose(spec), std::make_shared<Workspace>(cpu())));
  EXPECT_EQ(linear.weight_bytes(), linear.plan().weight_bytes);
  Batch batch(spec, kRows);
  std::vector<float> y(kRows * kN, NAN);
  testing::must(
      linear.apply(Matrix::f32(batch.hidden.data(), kRows, kK), Matrix::f32(y.data(), kRows, kN)));
  std::vector<double> row(kK);
  for (int64_t i = 0; i < kRows * kN; ++i) {
    const int64_t n = i % kN;
    const float* const x = &batch.hidden[i / kN * kK];
    dequantize_row(w, n, row.data());
    double want = bias ? w.bias[n] : 0, size = std::fabs(want), largest = 0, codes = 0;
    for (int64_t k = 0; k < kK; ++k) {
      want += x[k] * row[k];
      size += std::fabs(x[k] * row[k]);
      largest = std::max(largest, std::fabs(double{x[k]}));
      codes += std::fabs(row[k]);
    }
    // Each activation is off by half a step at most where the scheme quantizes it.
    const double bound =
        (kK + 4) * kU * size + (scheme.activation ? 0.501 * largest / 127 * codes : 0);
    ASSERT_NEAR(y[i], want, bound) << "token " << i / kN << ", output " << n;
  }
}

TEST(LinearTest, MatchesGroupedLinearWithOneExpert) {
  for (const Scheme& scheme : served()) {
    // The bound above is for int8 codes.
    if (scheme.activation && scheme.activation != kInt8DynamicTokenSym) continue;
    for (bool bias : {false, true}) {
      SCOPED_TRACE(name(scheme) + (bias ? ", bias" : ""));
      expect_linear(scheme, bias);
    }
  }
}

TEST(LinearTest, RejectsOtherShapes) {
  std::vector<CanonicalMatrix> one;
  one.push_back(conformance::random_matrix({.n = 8, .k = 16, .key = kBF16Weight}, 3));
  DescribedMatrix described = DescribedMatrix::from({kBF16Weight, {}}, std::move(one));
  const LayerSpec spec = linear_spec("layers.0.q_proj", described);
  auto linear =
      Linear::make(std::move(described), choose(spec, 4), std::make_shared<Workspace>(cpu()));
  ASSERT_TRUE(linear);
  std::vector<float> x(1000), y(1000);
  auto run = [&](int64_t x_rows, int64_t x_cols, int64_t y_rows, int64_t y_cols) {
    return linear->apply(Matrix::f32(x.data(), x_rows, x_cols),
                         Matrix::f32(y.data(), y_rows, y_cols));
  };
  EXPECT_TRUE(run(4, 16, 4, 8));
  EXPECT_TRUE(run(0, 16, 0, 8));
  for (const Status& done :
       {run(5, 16, 5, 8), run(4, 15, 4, 8), run(4, 16, 4, 9), run(4, 16, 3, 8)}) {
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(done.error().place, "layers.0.q_proj");
  }
}

// ---- sizes beyond 32 bits; the test does not touch that much memory ----

TEST(Carver, CountsIn64Bits) {
  Carver carver(nullptr);
  EXPECT_EQ(carver.take_matrix(DType::kF32, int64_t{262144} * 8, 2048).data, nullptr);
  EXPECT_EQ(carver.bytes(), size_t{262144} * 8 * 2048 * 4);
  carver.take<float>(3);
  EXPECT_EQ(carver.bytes(), size_t{262144} * 8 * 2048 * 4 + 64);
}

TEST(KernelWeightsTest, FindExpertsIn64Bits) {
  auto* const base = reinterpret_cast<std::byte*>(uintptr_t{4096});
  KernelWeights weights;
  weights.num_experts = 1000;
  weights.sections.bytes = size_t{1} << 33;
  weights.buffer = Buffer(base, weights.sections.bytes * 1000, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.expert(999)), 4096 + (uintptr_t{999} << 33));
}

}  // namespace
}  // namespace moracle::fused_moe_test
