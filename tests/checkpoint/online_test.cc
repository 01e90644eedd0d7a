// Tests matrices that are quantized when they are read: part by part, with the values of the
// producers' files.
#include "checkpoint/online/online.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_cuts.h"
#include "paths.h"
#include "quant/canonical.h"
#include "quant/quantize_weight.h"
#include "read_stored.h"
#include "reader_fixture.h"

namespace moracle::testing::online_test {
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

// q, k and v keep separate scales: stacking changes no value.
TEST(Online, QuantizesEachStackedSourceSeparately) {
  const Checkpoint checkpoint = must(SyntheticCheckpoint::plain().open());
  for (const OnlineScheme& online : online_schemes()) {
    SCOPED_TRACE(online.name);
    const DescribedMatrix qkv = must(quantize(must(checkpoint.linear(kQkv)), online.scheme));
    EXPECT_EQ(qkv.scheme(), online.scheme);
    EXPECT_EQ(qkv.source_rows(), (std::vector<int64_t>{32, 16, 16}));
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

// Matrices of 32, 16 and 16 rows end inside a block of 128, so blocks get 16 rows.
TEST(Online, DividesBlocksThatEndInsideAStack) {
  const Checkpoint checkpoint = must(SyntheticCheckpoint::plain().open());
  const DescribedMatrix qkv = must(quantize(must(checkpoint.linear(kQkv)), kBlock));
  EXPECT_EQ(qkv.shape().key.group, (GroupShape{16, 128}));
  EXPECT_EQ(must(qkv.expert(0)).scales.size(), 4u);
  const DescribedMatrix o =
      must(quantize(must(checkpoint.linear({kAttention + "o_proj"})), kBlock));
  EXPECT_EQ(o.shape().key.group, (GroupShape{128, 128}));
  EXPECT_EQ(must(o.expert(0)).scales.size(), 1u);
}

TEST(Online, DescribesLayerInOnlineScheme) {
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

TEST(Online, NamesTensorAndElementThatIsNotFinite) {
  auto plain = SyntheticCheckpoint::plain();
  plain.set<uint16_t>(kUp + ".weight", 5 * 32 + 7, 0x7f80);
  const Checkpoint checkpoint = must(plain.open());
  const DescribedWeights layer = must(quantize(must(checkpoint.moe_layer(0)), kTensor));
  EXPECT_TRUE(layer.w13.expert(0).ok());
  expect_bad(layer.w13.expert(1), {"model.safetensors: tensor '" + kUp + ".weight'",
                                   "needs finite numbers; element [5, 7] is inf"});
}

TEST(Online, RejectsQuantizedInputAndUnknownSchemes) {
  const Checkpoint gptq = must(SyntheticCheckpoint::gptq().open());
  expect_unsupported(quantize(must(gptq.linear({kUp})), kTensor),
                     {"model.safetensors", "tensor '" + kUp + ".qweight'",
                      "needs unquantized weights for an online scheme; the file has "
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

TEST(Online, RejectsFilesOfEveryQuantizingProducer) {
  int refused = 0;
  for (const Cut& cut : kCuts) {
    const std::string folder = testing::golden_dir() + "/layers/" + std::string(cut.folder);
    const Checkpoint checkpoint = must(Checkpoint::open(folder));
    for (const OnlineScheme& online : online_schemes()) {
      const auto layer = checkpoint.moe_layer(1, must(QuantizationMap::parse(online.name)));
      if (cut.producer == "plain") {
        EXPECT_TRUE(layer) << layer.error().to_string();
        continue;
      }
      expect_unsupported(layer, {folder, "model.layers.1.mlp.experts", str("has ", cut.scheme)});
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// Experts are transposed and interleaved in one tensor, with biases.
TEST(Online, QuantizesFusedExpertsAsGateRowsThenUpRows) {
  const Checkpoint checkpoint =
      must(Checkpoint::open(testing::golden_dir() + "/layers/gptoss-bf16"));
  const DescribedWeights floats = must(checkpoint.moe_layer(1));
  for (const OnlineScheme& online : online_schemes()) {
    SCOPED_TRACE(online.name);
    const DescribedWeights layer = must(quantize(must(checkpoint.moe_layer(1)), online.scheme));
    for (const int64_t e : {int64_t{0}, floats.w13.num_experts() - 1}) {
      const QuantKey& key = online.scheme.weight;
      const CanonicalMatrix w13 = must(floats.w13.expert(e)), got = must(layer.w13.expert(e));
      EXPECT_EQ(got.bias, w13.bias);
      std::vector<double> got_row(w13.k), want_row(w13.k);
      for (const int64_t first : {int64_t{0}, w13.n / 2}) {
        const CanonicalMatrix want =
            must(quantize_weight(float_rows(w13, first, w13.n / 2), key, pool()));
        for (int64_t r = 0; r < want.n; ++r) {
          dequantize_row(got, first + r, got_row.data());
          dequantize_row(want, r, want_row.data());
          ASSERT_EQ(got_row, want_row) << "row " << first + r;
        }
      }
      expect_equal(must(layer.w2.expert(e)),
                   must(quantize_weight(must(floats.w2.expert(e)), key, pool())));
      EXPECT_FALSE(must(layer.w2.expert(e)).bias.empty());
    }
  }
}

// Three files with the same experts: one tensor per expert; gate_up_proj and down_proj of all
// experts with stacked rows; the same transposed with alternating gate and up columns, as in
// GPT-OSS.
struct Files {
  SyntheticCheckpoint split, fused, gpt_oss;
};
Files files_of_one_model(int64_t hidden, int64_t intermediate) {
  const SyntheticSize size{
      .layers = 1, .experts = 2, .hidden = hidden, .intermediate = intermediate};
  Files files{SyntheticCheckpoint::plain(size), SyntheticCheckpoint::plain(size),
              SyntheticCheckpoint::plain(size)};
  const std::string experts = "model.layers.0.mlp.experts";
  for (SyntheticCheckpoint* to : {&files.fused, &files.gpt_oss}) {
    std::erase_if(to->tensors, [&](const auto& t) { return t.first.starts_with(experts); });
  }
  files.gpt_oss.config["architectures"] = {"GptOssForCausalLM"};
  files.gpt_oss.config["model_type"] = "gpt_oss";
  std::vector<uint16_t> gate_up, down, gate_up_t, down_t;
  for (int64_t e = 0; e < size.experts; ++e) {
    const auto at = [&](const char* part, int64_t index) {
      return files.split.get<uint16_t>(SyntheticCheckpoint::expert(0, e, part) + ".weight", index);
    };
    for (const char* part : {"gate_proj", "up_proj"})
      for (int64_t i = 0; i < intermediate * hidden; ++i) gate_up.push_back(at(part, i));
    for (int64_t i = 0; i < hidden * intermediate; ++i) down.push_back(at("down_proj", i));
    for (int64_t c = 0; c < hidden; ++c)
      for (int64_t r = 0; r < intermediate; ++r)
        for (const char* part : {"gate_proj", "up_proj"})
          gate_up_t.push_back(at(part, r * hidden + c));
    for (int64_t c = 0; c < intermediate; ++c)
      for (int64_t r = 0; r < hidden; ++r) down_t.push_back(at("down_proj", r * intermediate + c));
  }
  const int64_t count = size.experts, rows = 2 * intermediate;
  files.fused.add(experts + ".gate_up_proj", DType::kBF16, {count, rows, hidden}, gate_up);
  files.fused.add(experts + ".down_proj", DType::kBF16, {count, hidden, intermediate}, down);
  files.gpt_oss.add(experts + ".gate_up_proj", DType::kBF16, {count, hidden, rows}, gate_up_t);
  files.gpt_oss.add(experts + ".down_proj", DType::kBF16, {count, intermediate, hidden}, down_t);
  return files;
}

// Gate and up have separate scales, per tensor and per block, in both file forms.
TEST(Online, FusedAndSplitFilesGiveSameValues) {
  // Gate ends inside a block of 128 rows, or at the end of one.
  for (const int64_t intermediate : {160, 128}) {
    const Files files = files_of_one_model(136, intermediate);
    const Checkpoint split = must(files.split.open());
    for (const SyntheticCheckpoint* other : {&files.fused, &files.gpt_oss}) {
      const Checkpoint fused = must(other->open());
      for (const OnlineScheme& online : online_schemes()) {
        SCOPED_TRACE(str(online.name, ", ", intermediate));
        const DescribedWeights want = must(quantize(must(split.moe_layer(0)), online.scheme)),
                               got = must(quantize(must(fused.moe_layer(0)), online.scheme));
        EXPECT_EQ(got.spec.matrices(), want.spec.matrices());
        EXPECT_EQ(got.w13.shape(), want.w13.shape());
        for (int64_t e = 0; e < 2; ++e) {
          const CanonicalMatrix w13 = must(got.w13.expert(e));
          EXPECT_EQ(w13.key, got.w13.shape().key);
          expect_equal(w13, must(want.w13.expert(e)));
          expect_equal(must(got.w2.expert(e)), must(want.w2.expert(e)));
        }
      }
    }
  }
}

// A quantized folder is written and read back. In it every expert has its own tensors.
TEST(Online, FusedFilesGiveValuesOfWrittenFolder) {
  const Files files = files_of_one_model(64, 160);
  const TemporaryFolder folder;
  const std::string plain = folder.path() + "/plain";
  std::filesystem::create_directory(plain);
  must(files.split.write(plain));
  const Checkpoint split = must(Checkpoint::open(plain)), fused = must(files.fused.open());
  for (const OnlineScheme& online : online_schemes()) {
    SCOPED_TRACE(online.name);
    const std::string to = folder.path() + "/" + std::string(online.name);
    must(quantize(split, must(QuantizationMap::parse(online.name)), to));
    const DescribedWeights want = must(must(Checkpoint::open(to)).moe_layer(0)),
                           got = must(quantize(must(fused.moe_layer(0)), online.scheme));
    EXPECT_TRUE(got.spec.same_but_name(want.spec));
    for (int64_t e = 0; e < 2; ++e) {
      expect_equal(must(got.w13.expert(e)), must(want.w13.expert(e)));
      expect_equal(must(got.w2.expert(e)), must(want.w2.expert(e)));
    }
  }
}

TEST(Online, NamesElementOfFusedTensorThatIsNotFinite) {
  SyntheticCheckpoint fused = files_of_one_model(32, 16).fused;
  const std::string tensor = "model.layers.0.mlp.experts.gate_up_proj";
  fused.set<uint16_t>(tensor, (16 + 5) * 32 + 7, 0x7f80);  // expert 0, row 5 of up
  const Checkpoint checkpoint = must(fused.open());
  for (const OnlineScheme& online : online_schemes()) {
    const DescribedWeights layer = must(quantize(must(checkpoint.moe_layer(0)), online.scheme));
    expect_bad(layer.w13.expert(0),
               {"tensor '" + tensor + "', expert 0", "element [0, 21, 7] is inf"});
    EXPECT_TRUE(layer.w13.expert(1).ok());
  }
}

// Compares with files that the producers made from the same BF16 model.

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

TEST(OnlineAgainstProducers, Fp8BlocksMatchTransformersBitForBit) {
  compare_with("qwen3moe-fp8-block128", kBlock, [](const std::string& module, const Pair& pair) {
    SCOPED_TRACE(module);
    expect_equal(pair.ours, pair.theirs);
  });
}

TEST(OnlineAgainstProducers, Mxfp8MatchesModelOptBitForBit) {
  compare_with("qwen3moe-modelopt-mxfp8", {kMxfp8Static, kMxfp8Dynamic},
               [](const std::string& module, const Pair& pair) {
                 SCOPED_TRACE(module);
                 expect_equal(pair.ours, pair.theirs);
               });
}

// compressed-tensors rounds its scales to BF16, a change of up to one part in 256 (half of the last
// bit). Its int8 range ends at 127.5. It divides in BF16, so quotients are rounded twice. A
// dequantized weight may then differ by half a step on each side, and by that rounding.
struct Difference {
  int64_t weights = 0, codes_differ = 0;
  double largest_step = 0, largest_scale = 0;
};
void add(Difference& sum, const Pair& pair, double divisor, const std::string& module) {
  std::vector<double> a(pair.ours.k), b(pair.ours.k), step_a(pair.ours.k), step_b(pair.ours.k);
  const int64_t rows = pair.theirs.key.group.rows, cols = pair.theirs.group_cols();
  for (int64_t r = 0; r < pair.ours.n; ++r) {
    unpack_row(pair.ours, r, a.data());
    unpack_row(pair.theirs, r, b.data());
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
      // The largest weight exceeds the largest code if the scale was rounded down.
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

TEST(OnlineAgainstProducers, Int8DiffersOnlyByCompressedTensorsScales) {
  Difference sum;
  compare_with(
      "qwen3moe-ct-w8a8-int8", {kInt8StaticChannelSym, kInt8DynamicTokenSym},
      [&](const std::string& module, const Pair& pair) { add(sum, pair, 127 / 127.5, module); });
  report("int8", sum);
}

TEST(OnlineAgainstProducers, Fp8ChannelsDifferOnlyByCompressedTensorsScales) {
  Difference sum;
  compare_with("qwen3moe-ct-fp8-dynamic", {kFp8StaticChannelSym, kFp8DynamicTokenSym},
               [&](const std::string& module, const Pair& pair) { add(sum, pair, 1, module); });
  report("fp8 channel", sum);
}

TEST(OnlineAgainstProducers, Fp8BlocksDifferOnlyByCompressedTensorsScales) {
  Difference sum;
  compare_with("qwen3moe-ct-fp8-block", kBlock,
               [&](const std::string& module, const Pair& pair) { add(sum, pair, 1, module); });
  report("fp8 block", sum);
}

}  // namespace
}  // namespace moracle::testing::online_test
