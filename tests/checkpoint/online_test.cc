// Described matrices, quantized when they are read: part by part, and as the producers' files.
#include "checkpoint/online.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_cuts.h"
#include "quant/quantize_weight.h"
#include "read_stored.h"
#include "reader_fixture.h"

namespace moracle::testing {
namespace {

ThreadPool& pool() {
  static ThreadPool threads(3);
  return threads;
}

constexpr Scheme kBlock{kFp8Static128BlockSym, kFp8Dynamic128Sym};
constexpr Scheme kTensor{kFp8StaticTensorSym, kFp8DynamicTokenSym};

void expect_equal(const CanonicalMatrix& a, const CanonicalMatrix& b) {
  EXPECT_EQ(a.n, b.n);
  EXPECT_EQ(a.k, b.k);
  EXPECT_EQ(a.key, b.key);
  EXPECT_TRUE(std::ranges::equal(a.codes, b.codes));
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.bias, b.bias);
}

CanonicalMatrix module_quantized(const Checkpoint& checkpoint, const std::string& module,
                                 const QuantKey& key) {
  return must(quantize_weight(must(must(checkpoint.linear({module})).expert(0)), key, pool()));
}

// q, k and v keep scales of their own: stacking changes no number.
TEST(Online, QuantizesEveryPartByItself) {
  const Checkpoint checkpoint = must(SyntheticCheckpoint::plain().open());
  for (const OnlineScheme& online : online_schemes()) {
    SCOPED_TRACE(online.name);
    const DescribedMatrix qkv = must(quantize(must(checkpoint.linear(kQkv)), online.scheme));
    EXPECT_EQ(qkv.scheme(), online.scheme);
    EXPECT_EQ(qkv.part_rows(), (std::vector<int64_t>{32, 16, 16}));
    const CanonicalMatrix stacked = must(qkv.expert(0));
    EXPECT_EQ(stacked.key, qkv.shape().key);
    std::vector<double> got(32), want(32);
    int64_t row = 0;
    for (const std::string& module : kQkv) {
      const CanonicalMatrix alone = module_quantized(checkpoint, module, online.scheme.weight);
      for (int64_t r = 0; r < alone.n; ++r, ++row) {
        dequantize_row(stacked, row, got.data());
        dequantize_row(alone, r, want.data());
        ASSERT_EQ(got, want) << module << " row " << r;
      }
    }
    EXPECT_EQ(row, stacked.n);
  }
}

// Parts of 16 rows end inside a block of 128: then every row has its scales.
TEST(Online, ExpandsBlocksThatEndInsideAStack) {
  const Checkpoint checkpoint = must(SyntheticCheckpoint::plain().open());
  const DescribedMatrix qkv = must(quantize(must(checkpoint.linear(kQkv)), kBlock));
  EXPECT_EQ(qkv.shape().key.group, per_group(128));
  EXPECT_EQ(must(qkv.expert(0)).scales.size(), 64u);
  const DescribedMatrix o =
      must(quantize(must(checkpoint.linear({kAttention + "o_proj"})), kBlock));
  EXPECT_EQ(o.shape().key.group, (GroupShape{128, 128}));
  EXPECT_EQ(must(o.expert(0)).scales.size(), 1u);
}

TEST(Online, DescribesALayerAsItWillBe) {
  const Checkpoint checkpoint = must(SyntheticCheckpoint::plain().open());
  for (const OnlineScheme& online : online_schemes()) {
    const DescribedWeights layer = must(quantize(must(checkpoint.moe_layer(0)), online.scheme));
    EXPECT_EQ(layer.spec.scheme, online.scheme);
    EXPECT_EQ(layer.spec.matrices()[0], layer.w13.shape());
    EXPECT_EQ(layer.spec.matrices()[1], layer.w2.shape());
    EXPECT_EQ(layer.w13.num_experts(), 4);
    for (int64_t e = 0; e < 4; ++e) {
      expect_equal(must(layer.w2.expert(e)),
                   module_quantized(checkpoint, SyntheticCheckpoint::expert(0, e, "down_proj"),
                                    online.scheme.weight));
    }
  }
}

TEST(Online, KeepsBiases) {
  auto plain = SyntheticCheckpoint::plain();
  plain.add_floats(kAttention + "o_proj.bias", {32});
  const Checkpoint checkpoint = must(plain.open());
  const DescribedMatrix o =
      must(quantize(must(checkpoint.linear({kAttention + "o_proj"})), kBlock));
  EXPECT_TRUE(o.shape().bias);
  EXPECT_EQ(must(o.expert(0)).bias[31],
            bf16_to_float(plain.get<uint16_t>(kAttention + "o_proj.bias", 31)));
}

TEST(Online, NamesTheTensorAndTheElementThatIsNoNumber) {
  auto plain = SyntheticCheckpoint::plain();
  plain.set<uint16_t>(kUp + ".weight", 5 * 32 + 7, 0x7f80);
  const Checkpoint checkpoint = must(plain.open());
  const DescribedWeights layer = must(quantize(must(checkpoint.moe_layer(0)), kTensor));
  EXPECT_TRUE(layer.w13.expert(0).ok());
  expect_bad(layer.w13.expert(1), {"model.safetensors: tensor '" + kUp + ".weight'",
                                   "needs finite numbers; element [5, 7] is inf"});
}

TEST(Online, RefusesWhatIsQuantizedAlreadyAndSchemesItDoesNotKnow) {
  const Checkpoint gptq = must(SyntheticCheckpoint::gptq().open());
  expect_unsupported(quantize(must(gptq.linear({kUp})), kTensor),
                     {"model.safetensors", "tensor '" + kUp + ".qweight'",
                      "needs unquantized weights for an online scheme; the file's are "
                      "int4-w4a16-g8"});
  const Checkpoint plain = must(SyntheticCheckpoint::plain().open());
  for (const char* text : {"int4-w4a16-g128", "fp8-w8a8-block64x64", "mxfp4-w4a16", "bf16",
                           "fp8-w8a8-tensor-static", "int8-w8a16-g128"}) {
    const auto refused = quantize(must(plain.linear({kUp})), must(parse_scheme(text)));
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(refused.error().fact, str("it is ", text));
    EXPECT_THAT(refused.error().need, ::testing::HasSubstr("fp8-w8a8-block128x128"));
  }
}

TEST(Online, RefusesTheFilesOfEveryProducerThatQuantizes) {
  int refused = 0;
  for (const Cut& cut : kCuts) {
    const std::string folder = MORACLE_GOLDEN_DIR "/layers/" + std::string(cut.folder);
    const Checkpoint checkpoint = must(Checkpoint::open(folder));
    for (const OnlineScheme& online : online_schemes()) {
      const auto layer = checkpoint.moe_layer(1, must(QuantizationMap::parse(online.name)));
      if (cut.producer == "plain") {
        EXPECT_TRUE(layer) << layer.error().to_string();
        continue;
      }
      expect_unsupported(layer, {folder, "model.layers.1.mlp.experts", str("are ", cut.scheme)});
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// Experts that lie transposed and interleaved in one tensor, with biases.
TEST(Online, QuantizesFusedExpertsAfterTheyAreGateRowsThenUpRows) {
  const Checkpoint checkpoint = must(Checkpoint::open(MORACLE_GOLDEN_DIR "/layers/gptoss-bf16"));
  const DescribedWeights floats = must(checkpoint.moe_layer(1));
  for (const OnlineScheme& online : online_schemes()) {
    const DescribedWeights layer = must(quantize(must(checkpoint.moe_layer(1)), online.scheme));
    for (const int64_t e : {int64_t{0}, floats.w13.num_experts() - 1}) {
      const QuantKey& key = online.scheme.weight;
      expect_equal(must(layer.w13.expert(e)),
                   must(quantize_weight(must(floats.w13.expert(e)), key, pool())));
      expect_equal(must(layer.w2.expert(e)),
                   must(quantize_weight(must(floats.w2.expert(e)), key, pool())));
      EXPECT_FALSE(must(layer.w2.expert(e)).bias.empty());
    }
  }
}

// Against files that the producers made of the same BF16 model.

std::vector<std::vector<std::string>> linears_of(const Checkpoint& checkpoint) {
  std::vector<std::vector<std::string>> all;
  for (int64_t l = 0; l < checkpoint.num_layers(); ++l) {
    const std::string layer = str("model.layers.", l, ".");
    for (const char* p : {"q_proj", "k_proj", "v_proj", "o_proj"})
      all.push_back({layer + "self_attn." + p});
    for (int64_t e = 0; e < 16; ++e) {
      for (const char* p : {"gate_proj", "up_proj", "down_proj"})
        all.push_back({str(layer, "mlp.experts.", e, ".", p)});
    }
  }
  return all;
}

struct Pair {
  CanonicalMatrix ours, theirs;
};

// Calls `check(module, pair)` for every quantized matrix of the model.
template <class Check>
void compare_with(const std::string& directory, const Scheme& scheme, Check check) {
  const auto plain = open_stored("qwen3moe-bf16"), stored = open_stored(directory);
  if (!plain || !stored) GTEST_SKIP() << "no " << directory;
  int64_t count = 0;
  for (const auto& modules : linears_of(*plain)) {
    DescribedMatrix ours = must(quantize(must(plain->linear(modules)), scheme));
    const DescribedMatrix theirs = must(stored->linear(modules));
    ASSERT_EQ(name(theirs.scheme()), name(scheme)) << modules[0];
    check(modules[0], Pair{must(ours.expert(0)), must(theirs.expert(0))});
    ++count;
  }
  EXPECT_EQ(count, 3 * (4 + 16 * 3));
}

TEST(OnlineAgainstProducers, Fp8BlocksAreBitForBitThoseOfTransformers) {
  compare_with("qwen3moe-fp8-block128", kBlock, [](const std::string& module, const Pair& pair) {
    SCOPED_TRACE(module);
    expect_equal(pair.ours, pair.theirs);
  });
}

TEST(OnlineAgainstProducers, Mxfp8IsBitForBitThatOfModelOpt) {
  compare_with("qwen3moe-modelopt-mxfp8", {kMxfp8Static, kMxfp8Dynamic},
               [](const std::string& module, const Pair& pair) {
                 SCOPED_TRACE(module);
                 expect_equal(pair.ours, pair.theirs);
               });
}

// compressed-tensors keeps its scales in BF16, which moves them by up to one part in 256 (half of
// its last bit), its int8 reaches for 127.5, and it divides in BF16, so that its quotients are
// rounded once before they are rounded to codes. A dequantized weight may then differ by half a
// step of either side, and by that rounding.
struct Difference {
  int64_t weights = 0, codes_differ = 0;
  double largest_step = 0, largest_scale = 0;
};
void add(Difference& sum, const Pair& pair, double divisor, const std::string& module) {
  std::vector<double> a(pair.ours.k), b(pair.ours.k), step_a(pair.ours.k), step_b(pair.ours.k);
  const int64_t rows = pair.theirs.key.group.rows, cols = pair.theirs.group_cols();
  for (int64_t r = 0; r < pair.ours.n; ++r) {
    decode_row(pair.ours, r, a.data());
    decode_row(pair.theirs, r, b.data());
    for (int64_t c = 0; c < pair.ours.k; ++c) {
      const int64_t group = r / rows * pair.theirs.scale_cols() + c / cols;
      const double ours = pair.ours.scales[group], theirs = pair.theirs.scales[group];
      // Half of BF16's last bit is at most 2^-8 of the number, and f32 roundings come on top.
      ASSERT_NEAR(theirs / (ours * divisor), 1, 0x1p-8 + 0x1p-20) << module << " row " << r;
      // A code of e4m3 is off by at most 1/16 of the value, or 2^-10 near zero; of int8 by 1/2.
      const bool fp8 = pair.ours.key.dtype == DType::kF8E4M3;
      const auto half_step = [&](double code) {
        return fp8 ? std::max(std::abs(code) / 15, 0x1p-10) : 0.5;
      };
      // The largest weight reaches beyond the largest code where the scale was rounded down.
      const double clipped = fp8 ? 448 * 0x1p-8 : 1;
      const double bound = half_step(a[c]) * ours +
                           (half_step(b[c]) + std::abs(b[c]) * 0x1p-8) * theirs +
                           (std::abs(b[c]) >= (fp8 ? 448 : 127) ? clipped * theirs : 0);
      const double difference = std::abs(a[c] * ours - b[c] * theirs);
      ASSERT_LE(difference, bound * (1 + 1e-6))
          << module << " [" << r << ", " << c << "] codes " << a[c] << " " << b[c] << " scales "
          << ours << " " << theirs;
      sum.largest_step = std::max(sum.largest_step, difference / bound);
      sum.largest_scale = std::max(sum.largest_scale, std::abs(theirs / (ours * divisor) - 1));
      ++sum.weights;
      sum.codes_differ += a[c] != b[c] ? 1 : 0;
    }
  }
}
void report(const char* what, const Difference& sum) {
  std::printf(
      "%s: %lld of %lld codes differ, scales by up to %.5f, weights by up to %.2f of the "
      "bound\n",
      what, static_cast<long long>(sum.codes_differ), static_cast<long long>(sum.weights),
      sum.largest_scale, sum.largest_step);
}

TEST(OnlineAgainstProducers, Int8DiffersByTheScalesOfCompressedTensors) {
  Difference sum;
  compare_with(
      "qwen3moe-ct-w8a8-int8", {kInt8StaticChannelSym, kInt8DynamicTokenSym},
      [&](const std::string& module, const Pair& pair) { add(sum, pair, 127 / 127.5, module); });
  report("int8", sum);
}

TEST(OnlineAgainstProducers, Fp8ChannelsDifferByTheScalesOfCompressedTensors) {
  Difference sum;
  compare_with("qwen3moe-ct-fp8-dynamic", {kFp8StaticChannelSym, kFp8DynamicTokenSym},
               [&](const std::string& module, const Pair& pair) { add(sum, pair, 1, module); });
  report("fp8 channel", sum);
}

TEST(OnlineAgainstProducers, Fp8BlocksDifferByTheScalesOfCompressedTensors) {
  Difference sum;
  compare_with("qwen3moe-ct-fp8-block", kBlock,
               [&](const std::string& module, const Pair& pair) { add(sum, pair, 1, module); });
  report("fp8 block", sum);
}

}  // namespace
}  // namespace moracle::testing
