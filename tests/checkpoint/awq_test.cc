// AWQ's reader, against the published formula; and one matrix in the orders of all producers.
#include <array>
#include <random>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "base/text.h"
#include "checkpoint/packed.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "read_stored.h"
#include "synthetic_checkpoint.h"

namespace moracle {
namespace {

using nlohmann::json;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::SyntheticCheckpoint;
using testing::SyntheticSize;

const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj");
const std::string kUp = SyntheticCheckpoint::expert(0, 1, "up_proj");
const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj");
const std::string kConfig = "/config.json: quantization_config.";

struct Awq {
  int64_t group_size = 8;  // -1: one group
  bool zero_point = true;
};
std::ostream& operator<<(std::ostream& out, const Awq& format) {
  format.group_size == -1 ? out << "all" : out << "g" << format.group_size;
  return out << (format.zero_point ? "_zero_points" : "_symmetric");
}

void add_awq(SyntheticCheckpoint& checkpoint, const std::string& module, int64_t n, int64_t k,
             const Awq& format, std::mt19937& random) {
  const int64_t size = format.group_size == -1 ? k : format.group_size;
  const int64_t groups = (k + size - 1) / size;
  std::vector<uint32_t> codes(k * n / 8), zeros(groups * n / 8, 0x88888888u);
  for (uint32_t& code : codes) code = static_cast<uint32_t>(random());
  for (uint32_t& zero : zeros) zero = format.zero_point ? static_cast<uint32_t>(random()) : zero;
  std::vector<uint16_t> scales(groups * n);
  for (uint16_t& scale : scales) {
    scale = float_to_f16(0.01f + static_cast<float>(random() >> 8) * 0x1p-28f);
  }
  checkpoint.tensors.erase(module + ".weight");
  checkpoint.add(module + ".qweight", DType::kI32, {k, n / 8}, codes);
  checkpoint.add(module + ".qzeros", DType::kI32, {groups, n / 8}, zeros);
  checkpoint.add(module + ".scales", DType::kF16, {groups, n}, scales);
}

SyntheticCheckpoint awq_checkpoint(const Awq& format = {}) {
  const SyntheticSize size{.layers = 1, .experts = 2};
  auto checkpoint = SyntheticCheckpoint::plain(size);
  std::mt19937 random(5);
  for (int64_t e = 0; e < size.experts; ++e) {
    for (const char* part : {"gate_proj", "up_proj"}) {
      add_awq(checkpoint, SyntheticCheckpoint::expert(0, e, part), 16, 32, format, random);
    }
    add_awq(checkpoint, SyntheticCheckpoint::expert(0, e, "down_proj"), 32, 16, format, random);
  }
  checkpoint.config["quantization_config"] = {{"quant_method", "awq"},
                                              {"bits", 4},
                                              {"group_size", format.group_size},
                                              {"zero_point", format.zero_point},
                                              {"version", "gemm"}};
  return checkpoint;
}

// (code - zero) · scale; a word's nibbles from the lowest are columns 0 2 4 6 1 3 5 7 of its eight.
double published_value(const SyntheticCheckpoint& checkpoint, const std::string& module,
                       const Awq& format, int64_t n, int64_t k) {
  constexpr std::array<int64_t, 8> kColumns = {0, 2, 4, 6, 1, 3, 5, 7};
  const int64_t width = checkpoint.tensors.at(module + ".qweight").shape[1];
  const int64_t group = format.group_size == -1 ? 0 : k / format.group_size;
  int shift = 0;
  while (kColumns[shift / 4] != n % 8) shift += 4;
  auto nibble = [&](const char* part, int64_t row) {
    return static_cast<int>(checkpoint.get<uint32_t>(module + part, row * width + n / 8) >> shift &
                            15);
  };
  const auto scale = checkpoint.get<uint16_t>(module + ".scales", group * width * 8 + n);
  return (nibble(".qweight", k) - nibble(".qzeros", group)) *
         static_cast<double>(f16_to_float(scale));
}

void expect_values(const SyntheticCheckpoint& checkpoint, const Awq& format,
                   const CanonicalMatrix& matrix, const std::vector<std::string>& modules) {
  std::vector<double> row(matrix.k);
  const int64_t rows = matrix.n / static_cast<int64_t>(modules.size());
  for (int64_t n = 0; n < matrix.n; ++n) {
    dequantize_row(matrix, n, row.data());
    for (int64_t k = 0; k < matrix.k; ++k) {
      ASSERT_EQ(row[k], published_value(checkpoint, modules[n / rows], format, n % rows, k))
          << modules[n / rows] << " row " << n % rows << " column " << k;
    }
  }
}

class AwqFormats : public ::testing::TestWithParam<Awq> {};

TEST_P(AwqFormats, GiveThePublishedValues) {
  const Awq format = GetParam();
  const auto checkpoint = awq_checkpoint(format);
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(opened->producer(), "awq");
  const auto weights = opened->moe_layer(0);
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(name(weights->spec.scheme),
            str("int4-w4a16-", format.group_size == -1 ? "channel" : str("g", format.group_size),
                format.zero_point ? "-asym" : ""));
  const auto w13 = weights->w13.expert(1), w2 = weights->w2.expert(1);
  ASSERT_TRUE(w13.ok() && w2.ok()) << (w13.ok() ? w2 : w13).error().to_string();
  expect_values(checkpoint, format, *w13, {kGate, kUp});
  expect_values(checkpoint, format, *w2, {kDown});
  EXPECT_EQ(w2->zero_points.empty(), !format.zero_point);
}

INSTANTIATE_TEST_SUITE_P(All, AwqFormats,
                         ::testing::Values(Awq{8, true}, Awq{8, false}, Awq{16, true},
                                           Awq{12, true}, Awq{128, true}, Awq{-1, true},
                                           Awq{-1, false}),
                         [](const auto& instance) { return str(instance.param); });

TEST(Awq, AWordHoldsColumnsInItsOwnOrder) {
  auto checkpoint = awq_checkpoint();
  // Columns 0 to 7 of row 0 hold 0 to 7; in the lowest nibbles are the even ones.
  checkpoint.set<uint32_t>(kDown + ".qweight", 0, 0x75316420u);
  checkpoint.set<uint32_t>(kDown + ".qzeros", 0, 0x75316420u);
  const auto w2 = checkpoint.experts()->w2.expert(1);
  std::vector<double> row(16);
  for (int n = 0; n < 8; ++n) {
    decode_row(*w2, n, row.data());
    EXPECT_EQ(row[0], n - 8);
    EXPECT_EQ(w2->zero_points[2 * n], n - 8);  // stored as they are, not less 1
  }
}

TEST(Awq, WithoutZeroPointsTheTensorMayBeAbsent) {
  auto checkpoint = awq_checkpoint({.zero_point = false});
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    for (int e : {0, 1}) checkpoint.remove(SyntheticCheckpoint::expert(0, e, part) + ".qzeros");
  }
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto with = awq_checkpoint({.zero_point = false});
  expect_values(with, {.zero_point = false}, *weights->w2.expert(1), {kDown});
}

TEST(Awq, AZeroPointThatTheConfigDeniesIsNamed) {
  auto checkpoint = awq_checkpoint({.zero_point = false});
  checkpoint.set<uint32_t>(kDown + ".qzeros", 5, 0x88868888u);  // nibble 4 is column 1 of word 1
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  expect_bad(weights->w2.expert(1),
             {"model.safetensors", "tensor '" + kDown + ".qzeros'",
              "needs the zero point 8 everywhere, since the config says zero_point false",
              "group 1, column 9 has 6"});
}

TEST(Awq, ScalesMayBeBf16) {
  auto checkpoint = awq_checkpoint();
  std::vector<uint16_t> scales(32 * 2);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = float_to_bf16(static_cast<float>(i));
  checkpoint.add(kDown + ".scales", DType::kBF16, {2, 32}, scales);
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(weights->w2.expert(1)->scales[2 * 3 + 1], 32 + 3);
}

TEST(Awq, BadTensorsAreNamed) {
  struct Case {
    const char* part;
    DType dtype;
    std::vector<int64_t> shape;
    const char* line;
  };
  const Case cases[] = {
      {".qweight", DType::kI64, {32, 2}, "needs i32 [K, N/8]; it is i64 [32, 2]"},
      {".qweight", DType::kI8, {32, 2}, "needs i32 [K, N/8]; it is i8 [32, 2]"},
      {".qweight", DType::kI32, {64}, "needs i32 [K, N/8]; it is i32 [64]"},
      {".qzeros", DType::kI8, {4, 2}, "needs i32 [4, 2]; it is i8 [4, 2]"},
      {".qzeros", DType::kI32, {2, 4}, "needs i32 [4, 2]; it is i32 [2, 4]"},
      {".scales", DType::kI32, {4, 16}, "needs f32, f16 or bf16; it is i32 [4, 16]"},
      {".scales", DType::kF16, {2, 16}, "needs shape [4, 16] (groups of 8); it is f16 [2, 16]"},
  };
  for (const Case& c : cases) {
    auto checkpoint = awq_checkpoint();
    checkpoint.retype(kGate + c.part, c.dtype);
    checkpoint.reshape(kGate + c.part, c.shape);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kGate + c.part + "'", c.line});
  }
  for (const char* part : {".qzeros", ".scales"}) {
    auto checkpoint = awq_checkpoint();
    checkpoint.remove(kUp + part);
    expect_bad(checkpoint.experts(), {"tensor '" + kUp + part + "'", "it is missing"});
  }
  auto checkpoint = awq_checkpoint();
  checkpoint.remove(kUp + ".qweight");
  expect_bad(checkpoint.experts(), {kUp + ".weight or " + kUp + ".{qweight,qzeros,scales}"});
  checkpoint = awq_checkpoint();
  checkpoint.set<uint16_t>(kUp + ".scales", 21, 0x7e00);
  expect_bad(checkpoint.experts()->w13.expert(1),
             {"tensor '" + kUp + ".scales'", "needs finite numbers; element 21 is nan"});
}

TEST(Awq, AnotherVersionIsRefusedByName) {
  const std::pair<json, const char*> cases[] = {
      {{{"version", "gemv"}}, "version: needs gemm; it is gemv"},
      {{{"version", "GEMV_FAST"}}, "version: needs gemm; it is GEMV_FAST"},
      {{{"version", "marlin"}}, "version: needs gemm; it is marlin"},
      {{{"checkpoint_format", "gemv"}}, "checkpoint_format: needs gemm; it is gemv"},
      {{{"format", "llm-awq"}}, "format: needs gemm; it is llm-awq"},
      {{{"backend", "llm-awq"}}, "backend: needs autoawq; it is llm-awq"},
      {{{"bits", 8}}, "bits or w_bit: needs 4; it is 8"},
      {{{"bits", 3}}, "bits or w_bit: needs 4; it is 3"},
  };
  for (const auto& [change, line] : cases) {
    auto checkpoint = awq_checkpoint();
    checkpoint.quantization().update(change);
    expect_unsupported(checkpoint.open(), {kConfig + line});
  }
  auto checkpoint = awq_checkpoint();
  checkpoint.quantization()["version"] = "GEMM";
  EXPECT_TRUE(checkpoint.experts().ok());
  checkpoint.quantization()["group_size"] = 0;
  expect_bad(checkpoint.open(), {"group_size or q_group_size: needs -1 or a positive size"});
  checkpoint.quantization().erase("bits");
  expect_bad(checkpoint.open(), {"bits or w_bit: needs a whole number", "it is not there"});
}

TEST(Awq, AnyPartOfANameExcludesAModule) {
  auto checkpoint = awq_checkpoint();
  checkpoint.quantization()["modules_to_not_convert"] = {"self_attn", "experts.1.do"};
  expect_bad(checkpoint.experts(),
             {"module '" + kDown + "'",
              "needs to be stored unquantized, since the quantization config leaves it out"});
  checkpoint.quantization()["modules_to_not_convert"] = {"mlp.gate", "lm_head"};
  EXPECT_TRUE(checkpoint.experts().ok());
  checkpoint.quantization()["modules_to_not_convert"] = "mlp.gate";
  expect_bad(checkpoint.open(), {"modules_to_not_convert: needs an array of texts"});
}

TEST(Awq, TheConfigMayLieInAFileOfItsOwn) {
  auto checkpoint = awq_checkpoint();
  checkpoint.config.erase("quantization_config");
  const json old = {{"zero_point", true}, {"q_group_size", 8}, {"w_bit", 4}, {"version", "GEMM"}};
  checkpoint.files["quant_config.json"] = old.dump();
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(opened->producer(), "awq");
  EXPECT_EQ(name(opened->moe_layer(0)->spec.scheme), "int4-w4a16-g8-asym");

  json named = old;
  named["quant_method"] = "awq";
  checkpoint.files = {{"quantize_config.json", named.dump()}};
  EXPECT_EQ(checkpoint.open()->producer(), "awq");
  named["version"] = "gemv";
  checkpoint.files = {{"quant_config.json", named.dump()}};
  expect_unsupported(checkpoint.open(), {"/quant_config.json: version: needs gemm; it is gemv"});
}

TEST(Awq, FilesOfGptqModelAreRead) {
  testing::expect_stored("qwen3moe-awq-int4-g128", "awq", "int4-w4a16-g128-asym");
}

// One matrix of codes and zero points, packed by each producer's rule written out.

constexpr int64_t kN = 24, kK = 40, kSize = 16, kGroups = 3;

struct Packed {
  std::vector<uint32_t> codes, zeros;
  std::vector<int64_t> codes_shape, zeros_shape;
};

class OnePackedMatrix : public ::testing::Test {
 protected:
  OnePackedMatrix() : code(kN * kK), zero(kN * kGroups) {
    std::mt19937 random(3);
    for (int& c : code) c = static_cast<int>(random() % 16);
    for (int& z : zero) z = static_cast<int>(random() % 16);
    zero[0] = 0;
    zero[1] = 15;
  }
  // `place` puts element (row, column) of [rows, columns] into a word and a slot of it.
  template <class Place>
  static std::vector<uint32_t> pack(size_t words, int64_t rows, int64_t cols,
                                    const std::vector<int>& values, int less, Place place) {
    std::vector<uint32_t> packed(words);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto [word, slot] = place(r, c);
        const auto value = static_cast<uint32_t>(values[r * cols + c] - less) & 15u;
        packed[word] |= value << (4 * slot);
      }
    }
    return packed;
  }
  using At = std::pair<int64_t, int64_t>;

  Packed gptq(int less) const {
    return {pack(kK / 8 * kN, kN, kK, code, 0,
                 [](int64_t n, int64_t k) {
                   return At{k / 8 * kN + n, k % 8};
                 }),
            pack(kGroups * kN / 8, kN, kGroups, zero, less,
                 [](int64_t n, int64_t g) {
                   return At{g * (kN / 8) + n / 8, n % 8};
                 }),
            {kK / 8, kN},
            {kGroups, kN / 8}};
  }
  Packed awq() const {
    constexpr int64_t kSlot[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return {pack(kK * kN / 8, kN, kK, code, 0,
                 [&](int64_t n, int64_t k) {
                   return At{k * (kN / 8) + n / 8, kSlot[n % 8]};
                 }),
            pack(kGroups * kN / 8, kN, kGroups, zero, 0,
                 [&](int64_t n, int64_t g) {
                   return At{g * (kN / 8) + n / 8, kSlot[n % 8]};
                 }),
            {kK, kN / 8},
            {kGroups, kN / 8}};
  }
  Packed compressed_tensors() const {
    return {pack(kN * kK / 8, kN, kK, code, 0,
                 [](int64_t n, int64_t k) {
                   return At{n * (kK / 8) + k / 8, k % 8};
                 }),
            pack(kN / 8 * kGroups, kN, kGroups, zero, 0,
                 [](int64_t n, int64_t g) {
                   return At{n / 8 * kGroups + g, n % 8};
                 }),
            {kN, kK / 8},
            {kN / 8, kGroups}};
  }
  void expect_same(PackOrder order, const Packed& packed, int less) const {
    const auto view = [](const std::vector<uint32_t>& words, const std::vector<int64_t>& shape) {
      return TensorView{reinterpret_cast<const std::byte*>(words.data()), DType::kI32, shape};
    };
    CanonicalMatrix matrix;
    matrix.n = kN;
    matrix.k = kK;
    matrix.key = int4_static_group(kSize);
    unpack_codes(order, view(packed.codes, packed.codes_shape), matrix);
    const auto zeros =
        unpack_zero_points(order, view(packed.zeros, packed.zeros_shape), matrix, less);
    std::vector<double> row(kK);
    for (int64_t n = 0; n < kN; ++n) {
      decode_row(matrix, n, row.data());
      for (int64_t k = 0; k < kK; ++k) EXPECT_EQ(row[k], code[n * kK + k] - 8) << n << " " << k;
      for (int64_t g = 0; g < kGroups; ++g) {
        EXPECT_EQ(zeros[n * kGroups + g], zero[n * kGroups + g] - 8) << n << " " << g;
      }
    }
  }

  std::vector<int> code, zero;
};

TEST_F(OnePackedMatrix, IsTheSameFromGptqVersion1) {
  expect_same(PackOrder::kGptq, gptq(1), 1);
}
TEST_F(OnePackedMatrix, IsTheSameFromGptqVersion2) {
  expect_same(PackOrder::kGptq, gptq(0), 0);
}
TEST_F(OnePackedMatrix, IsTheSameFromAwq) {
  expect_same(PackOrder::kAwq, awq(), 0);
}
TEST_F(OnePackedMatrix, IsTheSameFromCompressedTensors) {
  expect_same(PackOrder::kCompressedTensors, compressed_tensors(), 0);
}
TEST_F(OnePackedMatrix, IsAnotherInAnotherOrder) {
  EXPECT_NE(gptq(0).codes, awq().codes);
  EXPECT_NE(gptq(0).codes, compressed_tensors().codes);
  EXPECT_NE(gptq(0).zeros, awq().zeros);
  EXPECT_NE(gptq(0).zeros, gptq(1).zeros);
  EXPECT_NE(gptq(0).zeros, compressed_tensors().zeros);
}

}  // namespace
}  // namespace moracle
