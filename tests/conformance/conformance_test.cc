// Tests every backend of this build in every scheme, over all shapes, token counts and spreads.
// Also proves that the bound detects faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "base/text.h"
#include "conformance/conformance.h"
#include "conformance/machine_refuses.h"
#include "oracle/backend.h"
#include "oracle/rules/rules.h"
#include "support/device.h"
#include "support/floats.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::conformance::conformance_test {
namespace {

using ::testing::HasSubstr;

/// The first device of a kind, or the reason why none exists.
const Result<std::shared_ptr<Device>>& device(Platform platform = Platform::kCpu) {
  static std::map<Platform, Result<std::shared_ptr<Device>>> opened;
  auto at = opened.find(platform);
  if (at == opened.end())
    at = opened.emplace(platform, testing::open_test_device(name(platform), 2)).first;
  return at->second;
}

struct Row {
  std::string backend;
  Platform platform;
  Scheme scheme;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.backend << " in " << name(row.scheme);
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const Backend& backend : backends()) {
    for (const Scheme& scheme : schemes()) {
      if (backend.built()) all.push_back({std::string(backend.name), backend.platform, scheme});
    }
  }
  return all;
}

std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  std::string text = info.param.backend + "_in_" + name(info.param.scheme);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

class Conformance : public ::testing::TestWithParam<Row> {};

TEST_P(Conformance, Holds) {
  const Result<std::shared_ptr<Device>>& there = device(GetParam().platform);
  if (!there) GTEST_SKIP() << there.error().to_string();
  int passed = 0, refused = 0;
  double worst = 0;
  testing::Sample sample(str(GetParam().backend, " in ", name(GetParam().scheme)));
  for (const Case& c : cases()) {
    if (c.backend != GetParam().backend || c.scheme != GetParam().scheme) continue;
    if (!sample.takes()) continue;
    const Outcome outcome = run(c, *there);
    ASSERT_NE(outcome.kind, Outcome::kFailed) << outcome.message;
    passed += outcome.kind == Outcome::kPassed;
    refused += outcome.kind == Outcome::kRefused;
    worst = std::max(worst, outcome.worst);
    if (outcome.kind != Outcome::kRefused) continue;
    // A rejection names the row and the rule.
    EXPECT_THAT(outcome.message, HasSubstr(GetParam().backend));
    const auto names_rule = [&](const Rule& rule) {
      return outcome.message.find(std::string(rule.name) + ": needs ") != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(rules().begin(), rules().end(), names_rule)) << outcome.message;
  }
  RecordProperty("passed", passed);
  RecordProperty("worst_share_of_bound", std::to_string(worst));
  EXPECT_GT(passed + refused, 0);
  EXPECT_LE(worst, 1);
  EXPECT_TRUE(GetParam().backend != "reference" || refused == 0) << "the reference serves all";
}

INSTANTIATE_TEST_SUITE_P(Tables, Conformance, ::testing::ValuesIn(rows()), row_name);

// Sizes of large layers: hidden_size much larger than intermediate_size, groups as long as the rows
// of w2, and sums of several thousand products.
TEST(Conformance, HoldsWhenOneGroupSpansIntermediateSize) {
  for (const Backend& backend : backends()) {
    if (backend.linear_only || !backend.built() || !device(backend.platform)) continue;
    for (const Scheme& scheme : {Scheme{int4_static_group(128), {}},
                                 Scheme{kInt8StaticChannelSym, kInt8DynamicTokenSym}}) {
      const Case c{backend.name, scheme, {2, 4096, 128, 2}, 2};
      const Outcome outcome = run(c, *device(backend.platform));
      EXPECT_EQ(outcome.kind, served_or_refused(c)) << outcome.message;
    }
  }
}

/// The shapes, spreads and variants that the cases of one row cover.
struct Coverage {
  std::set<std::string> variants, shapes_by_spread, shapes_with_bias, shapes_without_tokens,
      shapes_of_many_tokens;
};

TEST(Conformance, CoversEveryShapeSpreadAndVariantOnEveryRow) {
  std::map<std::string, Coverage> covered;
  for (const Case& c : cases()) {
    Coverage& row = covered[str(c.backend, " in ", name(c.scheme))];
    row.shapes_by_spread.insert(str(name(c.shape), ' ', static_cast<int>(c.spread)));
    row.variants.insert(std::string(c.variant));
    if (c.variant == "bias") row.shapes_with_bias.insert(name(c.shape));
    if (c.num_tokens == 0) row.shapes_without_tokens.insert(name(c.shape));
    if (c.num_tokens > 8) row.shapes_of_many_tokens.insert(name(c.shape));
  }
  for (const Row& row : rows()) {
    SCOPED_TRACE(::testing::PrintToString(row));
    const Coverage& of = covered[str(row.backend, " in ", name(row.scheme))];
    for (const Shape& shape : shapes()) {
      for (Spread spread : {Spread::kUniform, Spread::kOneExpert, Spread::kHoles})
        EXPECT_TRUE(of.shapes_by_spread.contains(str(name(shape), ' ', static_cast<int>(spread))));
      EXPECT_TRUE(of.shapes_with_bias.contains(name(shape)));
      EXPECT_TRUE(of.shapes_without_tokens.contains(name(shape)));
      EXPECT_TRUE(of.shapes_of_many_tokens.contains(name(shape)));
    }
    for (const Shape& shape : shapes_of_odd_blocks(row.scheme))
      EXPECT_TRUE(of.shapes_of_many_tokens.contains(name(shape)));
    for (const Variant& variant : variants())
      EXPECT_TRUE(of.variants.contains(std::string(variant.name))) << variant.name;
  }
}

// gpt-oss has 22.5 blocks of 128 columns, and 11.25 of two ranks each.
TEST(Conformance, EveryRowOfFp8BlocksHasShapesThatEndWithinBlock) {
  int schemes_in_blocks = 0;
  for (const Scheme& scheme : schemes()) {
    const QuantKey& key = scheme.weight;
    if (key.dtype != DType::kF8E4M3 || key.group.cols != 128) continue;
    ++schemes_in_blocks;
    int halves = 0, quarters = 0;
    for (const Shape& shape : shapes_of_odd_blocks(scheme)) {
      halves += shape.hidden_size % 128 == 64 && shape.intermediate_size % 128 == 64;
      quarters += shape.hidden_size % 64 == 32 && shape.intermediate_size % 64 == 32;
    }
    EXPECT_GT(halves, 0) << name(scheme);
    EXPECT_GT(quarters, 0) << name(scheme);
  }
  EXPECT_GE(schemes_in_blocks, 3);
}

TEST(Conformance, NamesCommandThatRunsOneCase) {
  const Case c{"cpu", *parse_scheme("int4-w4a16-g32"), {8, 130, 34, 2}, 5, Spread::kHoles, "lora"};
  EXPECT_EQ(reproducer(c),
            "moracle check --backend cpu --scheme int4-w4a16-g32 --shape 8x130x34x2 --tokens 5 "
            "--spread holes --variant lora");
}

TEST(Conformance, ReadsShapesBack) {
  for (const Shape& shape : shapes()) EXPECT_EQ(*parse_shape(name(shape)), shape);
  for (const char* text : {"", "8", "8x64x32", "8x64x32x", "8x64x32x2x", "8x64x32x2x1", "8x64x32x9",
                           "0x64x32x1", "8x-64x32x1", "8x64x32x0", "ax64x32x1", "8 x64x32x1",
                           "8x64x32x1 ", "8x64x2097153x1", "8x99999999999999999999x1x1"}) {
    const auto shape = parse_shape(text);
    ASSERT_FALSE(shape) << text;
    EXPECT_EQ(shape.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(shape.error().fact, HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(Conformance, NamesRulesThatRejectACase) {
  QuantKey static_int8 = kInt8DynamicTokenSym;
  static_int8.dynamic = false;
  const Scheme scheme{{DType::kF8E5M2, kPerRow}, static_int8};
  const Outcome outcome = run({"cpu", scheme, {4, 64, 32, 2}, 3}, *device());
  ASSERT_EQ(outcome.kind, Outcome::kRefused);
  EXPECT_THAT(outcome.message, HasSubstr("weights: needs "));
  EXPECT_THAT(outcome.message, HasSubstr("activation-scales: needs "));
  EXPECT_EQ(run({"no-such-backend", scheme, {4, 64, 32, 2}, 3}, *device()).kind, Outcome::kRefused);
}

TEST(Conformance, DrawsSameValuesOnEveryRun) {
  const MatrixShape shape{.n = 5, .k = 33, .key = int4_static_group(32), .bias = true};
  const CanonicalMatrix a = random_matrix(shape, 7), b = random_matrix(shape, 7),
                        c = random_matrix(shape, 8);
  EXPECT_EQ(a.storage, b.storage);
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.bias, b.bias);
  EXPECT_NE(a.storage, c.storage);
}

// ---- faults that the bound detects ----

/// The weights of one expert. Tests put faults into them.
struct Expert {
  CanonicalMatrix w13, w2;
};

CanonicalMatrix own(CanonicalMatrix m) {
  m.storage.assign(m.codes.begin(), m.codes.end());
  m.codes = m.storage;
  return m;
}

struct Fault {
  const char* name;
  bool (*possible)(const Scheme&);
  std::function<void(Expert&)> spoil;
};

/// Returns the next code for integers and the next number of the format for floats. For f32 that is
/// within rounding, so f32 changes by a relative 2^-11.
void step(CanonicalMatrix& m, int64_t r, int64_t c) {
  std::byte* row = m.storage.data() + r * m.row_bytes();
  switch (m.key.dtype) {
    case DType::kI4: {
      const int shift = 4 * static_cast<int>(c % 2);
      const int code = (static_cast<int>(row[c / 2]) >> shift & 15) ^ 1;  // a neighbour, both ways
      row[c / 2] = (row[c / 2] & static_cast<std::byte>(15 << (4 - shift))) |
                   static_cast<std::byte>(code << shift);
      break;
    }
    case DType::kI8:
      row[c] ^= std::byte{1};
      break;
    case DType::kF32: {
      float value;
      std::memcpy(&value, row + 4 * c, sizeof value);
      value *= 1 + 0x1p-11f;
      std::memcpy(row + 4 * c, &value, sizeof value);
      break;
    }
    default:
      row[2 * c] ^= std::byte{1};
      break;  // the last bit of a 16-bit float
  }
}

/// The element of a row where one step changes the output most: the largest float, or any code.
int64_t column_to_step(const CanonicalMatrix& m, int64_t r) {
  if (m.key.quantized()) return m.k / 2;
  int64_t best = 0;
  auto magnitude = [&](int64_t c) {
    const std::byte* at = m.codes.data() + r * m.row_bytes() + c * bits(m.key.dtype) / 8;
    uint32_t word = 0;
    std::memcpy(&word, at, bits(m.key.dtype) / 8);
    return word << (32 - bits(m.key.dtype)) << 1;
  };
  for (int64_t c = 0; c < m.k; ++c) {
    if (magnitude(c) > magnitude(best)) best = c;
  }
  return best;
}

bool any(const Scheme&) {
  return true;
}
bool quantized(const Scheme& scheme) {
  return scheme.weight.quantized();
}
bool in_groups(const Scheme& scheme) {
  const int64_t cols = scheme.weight.group.cols;
  return quantized(scheme) && cols != GroupShape::kAll && cols < 32;
}
bool asymmetric(const Scheme& scheme) {
  return !scheme.weight.symmetric;
}

void swap_rows(CanonicalMatrix& m, int64_t a, int64_t b) {
  std::swap_ranges(m.storage.begin() + a * m.row_bytes(),
                   m.storage.begin() + (a + 1) * m.row_bytes(),
                   m.storage.begin() + b * m.row_bytes());
  if (!m.scales.empty()) {
    const int64_t cols = m.scale_cols();
    std::swap_ranges(m.scales.begin() + a * cols, m.scales.begin() + (a + 1) * cols,
                     m.scales.begin() + b * cols);
    if (!m.zero_points.empty()) {
      std::swap_ranges(m.zero_points.begin() + a * cols, m.zero_points.begin() + (a + 1) * cols,
                       m.zero_points.begin() + b * cols);
    }
  }
  if (!m.bias.empty()) std::swap(m.bias[a], m.bias[b]);
}

const Fault kFaults[] = {
    {"a code of gate is one step off", any,
     [](Expert& e) { step(e.w13, 1, column_to_step(e.w13, 1)); }},
    {"a code of up is one step off", any,
     [](Expert& e) { step(e.w13, e.w13.n / 2 + 1, column_to_step(e.w13, e.w13.n / 2 + 1)); }},
    {"a code of down is one step off", any,
     [](Expert& e) { step(e.w2, 2, column_to_step(e.w2, 2)); }},
    {"gate and up are swapped", any,
     [](Expert& e) {
       for (int64_t r = 0; r < e.w13.n / 2; ++r) swap_rows(e.w13, r, e.w13.n / 2 + r);
     }},
    {"two rows of down are swapped", any, [](Expert& e) { swap_rows(e.w2, 0, e.w2.n - 1); }},
    {"a scale of w13 is dropped", quantized, [](Expert& e) { e.w13.scales[0] = 1; }},
    {"a scale of w2 is dropped", quantized, [](Expert& e) { e.w2.scales.back() = 1; }},
    {"a scale is a bit off", quantized, [](Expert& e) { e.w2.scales[0] *= 1 + 0x1p-7f; }},
    {"neighbouring groups have each other's scales", in_groups,
     [](Expert& e) { std::swap(e.w13.scales[0], e.w13.scales[1]); }},
    {"a zero point is ignored", asymmetric, [](Expert& e) { e.w13.zero_points[0] = 0; }},
    {"a zero point is off by one", asymmetric, [](Expert& e) { ++e.w2.zero_points[0]; }},
    {"a bias of w13 is dropped", any, [](Expert& e) { e.w13.bias[0] = 0; }},
    {"a bias of w2 is dropped", any, [](Expert& e) { e.w2.bias[0] = 0; }},
};

/// A small layer, so that one step is larger than all rounding.
LayerSpec small_layer(const Scheme& scheme) {
  return {.name = "case",
          .num_experts = 2,
          .hidden_size = 12,
          .intermediate_size = 10,
          .top_k = 1,
          .scheme = scheme,
          .bias = true};
}

DescribedWeights weights_with(const LayerSpec& spec, const std::function<void(Expert&)>& spoil) {
  const DescribedWeights good = random_weights(spec, 3);
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    Expert expert{own(*good.w13.expert(e)), own(*good.w2.expert(e))};
    if (e == 1) spoil(expert);
    w13.push_back(std::move(expert.w13));
    w2.push_back(std::move(expert.w2));
  }
  DescribedWeights spoiled{spec, DescribedMatrix::from(spec.scheme, std::move(w13)),
                           DescribedMatrix::from(spec.scheme, std::move(w2))};
  spoiled.w13.set_input_scales(good.w13.input_scales());
  spoiled.w2.set_input_scales(good.w2.input_scales());
  return spoiled;
}

struct Batch {
  std::vector<float> hidden;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
// Enough tokens for one step to change the code of some quantized activation.
constexpr int64_t kTokens = 96;

Batch batch(const LayerSpec& spec) {
  std::mt19937 random(11);
  Batch b;
  b.hidden = testing::normal_floats(random, kTokens * spec.hidden_size);
  for (int64_t slot = 0; slot < kTokens * spec.top_k; ++slot) {
    b.ids.push_back(static_cast<int32_t>(slot % spec.num_experts));
    b.weights.push_back(0.5f + static_cast<float>(slot % 7) / 8);
  }
  return b;
}

std::vector<float> output_of(const LayerSpec& spec, DescribedWeights weights, Batch b) {
  // The bounds are those of f32. Only the reference serves groups of eight.
  const std::string row = spec.scheme.weight.group.cols == 8 ? "reference" : "cpu";
  const Selection selection =
      select({.layer = spec, .max_num_tokens = kTokens, .backend = row}, Machine::here());
  FusedMoe moe = testing::must(FusedMoe::make(std::move(weights), selection, *device()));
  std::vector<float> output(b.hidden.size(), NAN);
  testing::must(moe.apply(Matrix::f32(b.hidden.data(), kTokens, spec.hidden_size), {b.ids.data()},
                          {b.weights.data()},
                          Matrix::f32(output.data(), kTokens, spec.hidden_size)));
  return output;
}

/// The largest error divided by its bound. More than 1 is a failure.
double worst(const Expected& want, const std::vector<float>& got) {
  double share = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double ratio = std::fabs(got[i] - want.output[i]) / (want.bound[i] + 0x1p-126);
    share = std::isnan(ratio) ? INFINITY : std::max(share, ratio);
  }
  return share;
}

/// Groups of eight: rows of twelve have one whole group and one ragged group.
// Each row has its own scale, so that a swap of rows is a fault. Activations are not clipped, which
// could hide a small fault.
std::vector<Scheme> schemes_to_spoil() {
  std::vector<Scheme> all = schemes();
  std::erase_if(all, [](const Scheme& scheme) {
    const bool by_block = scheme.weight.quantized() && scheme.weight.group.rows > 1;
    return by_block || (scheme.activation && !scheme.activation->dynamic);
  });
  for (Scheme& scheme : all) {
    if (scheme.weight.quantized() && scheme.weight.group.cols > 0) scheme.weight.group.cols = 8;
    scheme.weight.codes = CodeSet::kAny;  // sets need longer groups
  }
  return all;
}

TEST(ConformanceBound, AcceptsCorrectResult) {
  for (const Scheme& scheme : schemes_to_spoil()) {
    const LayerSpec spec = small_layer(scheme);
    const Batch b = batch(spec);
    const Expected want = expected(spec, random_weights(spec, 3), b.hidden, b.ids, b.weights);
    EXPECT_LE(worst(want, output_of(spec, weights_with(spec, [](Expert&) {}), b)), 1)
        << name(scheme);
  }
}

TEST(ConformanceBound, DetectsEveryInjectedFault) {
  for (const Scheme& scheme : schemes_to_spoil()) {
    const LayerSpec spec = small_layer(scheme);
    const Batch b = batch(spec);
    const Expected want = expected(spec, random_weights(spec, 3), b.hidden, b.ids, b.weights);
    for (const Fault& fault : kFaults) {
      if (!fault.possible(scheme)) continue;
      EXPECT_GT(worst(want, output_of(spec, weights_with(spec, fault.spoil), b)), 2)
          << name(scheme) << ": " << fault.name;
    }
  }
}

TEST(ConformanceBound, DetectsWrongRouting) {
  for (const Scheme& scheme : schemes_to_spoil()) {
    const LayerSpec spec = small_layer(scheme);
    const Batch b = batch(spec);
    const Expected want = expected(spec, random_weights(spec, 3), b.hidden, b.ids, b.weights);
    Batch wrong = b;
    wrong.ids[5] = 1 - wrong.ids[5];
    EXPECT_GT(worst(want, output_of(spec, random_weights(spec, 3), wrong)), 2) << name(scheme);
    wrong = b;
    wrong.ids[5] = -1;
    EXPECT_GT(worst(want, output_of(spec, random_weights(spec, 3), wrong)), 2) << name(scheme);
    wrong = b;
    std::swap(wrong.weights[2], wrong.weights[4]);
    EXPECT_GT(worst(want, output_of(spec, random_weights(spec, 3), wrong)), 2) << name(scheme);
  }
}

// The same weights with the other activation key are outside the bound, in both directions.
TEST(ConformanceBound, DistinguishesQuantizedFromFloatActivations) {
  LayerSpec quantizes = small_layer({kInt8StaticChannelSym, kInt8DynamicTokenSym});
  LayerSpec weight_only = small_layer({kInt8StaticChannelSym, {}});
  const Batch b = batch(quantizes);
  const Expected a8 = expected(quantizes, random_weights(quantizes, 3), b.hidden, b.ids, b.weights);
  const Expected a16 =
      expected(weight_only, random_weights(weight_only, 3), b.hidden, b.ids, b.weights);
  EXPECT_GT(worst(a8, output_of(weight_only, random_weights(weight_only, 3), b)), 2);
  EXPECT_GT(worst(a16, output_of(quantizes, random_weights(quantizes, 3), b)), 2);
}

TEST(ConformanceBound, SpansOnlyAFewRoundings) {
  for (const Scheme& scheme : schemes()) {
    const LayerSpec spec = small_layer(scheme);
    const Batch b = batch(spec);
    const Expected want = expected(spec, random_weights(spec, 3), b.hidden, b.ids, b.weights);
    double bound = 0, size = 0;
    for (size_t i = 0; i < want.bound.size(); ++i) {
      bound += want.bound[i];
      size += std::fabs(want.output[i]);
    }
    // With minimums the bound counts both parts of a weight, of which most cancels.
    EXPECT_LT(bound / size, scheme.weight.minimums ? 2e-4 : 1e-4) << name(scheme);
    EXPECT_GT(bound / size, 1e-8) << name(scheme);
  }
}

}  // namespace
}  // namespace moracle::conformance::conformance_test
