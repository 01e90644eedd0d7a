// Tests one layer written by four tools. After reading, the producer makes no difference. The test
// packs codes and zero points by each tool's documented rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "base/text.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "kernels/weights/kernel_weights.h"
#include "moe/layer_on_rows.h"

namespace moracle::producers_test {
namespace {

using testing::SyntheticCheckpoint;

constexpr int64_t kExperts = 4, kHidden = 64, kIntermediate = 32, kGroup = 16;

/// One linear layer: unsigned codes [n, k], unsigned zero points and f16 scales [n, k / 8].
struct Stored {
  int64_t n, k;
  std::vector<int> codes, zeros;
  std::vector<uint16_t> scales;
  int64_t groups() const { return k / kGroup; }
};

std::map<std::string, Stored> make_layer(bool symmetric) {
  std::map<std::string, Stored> modules;
  std::mt19937 random(11);
  for (int64_t e = 0; e < kExperts; ++e) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = std::string_view(part) == "down_proj";
      Stored m{down ? kHidden : kIntermediate, down ? kIntermediate : kHidden, {}, {}, {}};
      for (int64_t i = 0; i < m.n * m.k; ++i) m.codes.push_back(static_cast<int>(random() % 16));
      for (int64_t i = 0; i < m.n * m.groups(); ++i) {
        // Every zero point occurs. The lowest wraps around in files that store the zero point minus
        // one.
        m.zeros.push_back(symmetric ? 8 : static_cast<int>(i % 16));
        m.scales.push_back(float_to_f16(0.01f + static_cast<float>(random() >> 8) * 0x1p-28f));
      }
      modules[SyntheticCheckpoint::expert(0, e, part)] = std::move(m);
    }
  }
  return modules;
}

/// The position of element (row, column): a word, and its nibble, lowest first.
struct Place {
  int64_t word, nibble;
};

template <class PlaceOf>
std::vector<uint32_t> pack(int64_t rows, int64_t cols, const std::vector<int>& values, int less,
                           PlaceOf place_of) {
  std::vector<uint32_t> words(rows * cols / 8);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const Place at = place_of(r, c);
      words[at.word] |= (static_cast<uint32_t>(values[r * cols + c] - less) & 15u)
                        << (4 * at.nibble);
    }
  }
  return words;
}

std::vector<uint16_t> transposed(const std::vector<uint16_t>& values, int64_t rows, int64_t cols) {
  std::vector<uint16_t> other(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) other[c * rows + r] = values[r * cols + c];
  }
  return other;
}

// Version 1 stores each zero point minus one.
void add_gptq(SyntheticCheckpoint& to, const std::string& module, const Stored& m, bool v2) {
  const int64_t n = m.n, groups = m.groups();
  to.add(module + ".qweight", DType::kI32, {m.k / 8, n},
         pack(n, m.k, m.codes, 0, [&](int64_t r, int64_t c) {
           return Place{c / 8 * n + r, c % 8};
         }));
  to.add(module + ".qzeros", DType::kI32, {groups, n / 8},
         pack(n, groups, m.zeros, v2 ? 0 : 1, [&](int64_t r, int64_t g) {
           return Place{g * (n / 8) + r / 8, r % 8};
         }));
  to.add(module + ".scales", DType::kF16, {groups, n}, transposed(m.scales, n, groups));
  std::vector<int32_t> order(m.k);
  for (int64_t c = 0; c < m.k; ++c) order[c] = static_cast<int32_t>(c / kGroup);
  to.add(module + ".g_idx", DType::kI32, {m.k}, order);
}

void add_awq(SyntheticCheckpoint& to, const std::string& module, const Stored& m) {
  constexpr int64_t kNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const int64_t n = m.n, groups = m.groups();
  const auto along_rows = [&](int64_t r, int64_t c) {
    return Place{c * (n / 8) + r / 8, kNibble[r % 8]};
  };
  to.add(module + ".qweight", DType::kI32, {m.k, n / 8}, pack(n, m.k, m.codes, 0, along_rows));
  to.add(module + ".qzeros", DType::kI32, {groups, n / 8}, pack(n, groups, m.zeros, 0, along_rows));
  to.add(module + ".scales", DType::kF16, {groups, n}, transposed(m.scales, n, groups));
}

void add_compressed_tensors(SyntheticCheckpoint& to, const std::string& module, const Stored& m,
                            bool symmetric) {
  const int64_t n = m.n, groups = m.groups();
  to.add(module + ".weight_packed", DType::kI32, {n, m.k / 8},
         pack(n, m.k, m.codes, 0, [&](int64_t r, int64_t c) {
           return Place{r * (m.k / 8) + c / 8, c % 8};
         }));
  to.add(module + ".weight_shape", DType::kI64, {2}, std::vector<int64_t>{n, m.k});
  to.add(module + ".weight_scale", DType::kF16, {n, groups}, m.scales);
  if (symmetric) return;
  to.add(module + ".weight_zero_point", DType::kI32, {n / 8, groups},
         pack(n, groups, m.zeros, 0, [&](int64_t r, int64_t g) {
           return Place{r / 8 * groups + g, r % 8};
         }));
}

nlohmann::json config_of(const std::string& producer, bool symmetric) {
  if (producer == "awq") {
    return {{"quant_method", "awq"},
            {"bits", 4},
            {"group_size", kGroup},
            {"zero_point", !symmetric},
            {"version", "gemm"}};
  }
  if (producer == "compressed-tensors") {
    const nlohmann::json weights = {{"num_bits", 4},          {"type", "int"},
                                    {"strategy", "group"},    {"group_size", kGroup},
                                    {"symmetric", symmetric}, {"dynamic", false}};
    return {{"quant_method", producer},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  }
  return {{"quant_method", "gptq"},
          {"bits", 4},
          {"group_size", kGroup},
          {"sym", symmetric},
          {"checkpoint_format", producer}};
}

const char* const kProducers[] = {"gptq", "gptq_v2", "awq", "compressed-tensors"};

/// The layer as a checkpoint of this tool. "gptq" is version 1 of GPTQ.
SyntheticCheckpoint written_by(const std::string& producer, bool symmetric) {
  auto checkpoint = SyntheticCheckpoint::plain(
      {.layers = 1, .experts = kExperts, .hidden = kHidden, .intermediate = kIntermediate});
  for (const auto& [module, stored] : make_layer(symmetric)) {
    checkpoint.remove(module + ".weight");
    if (producer == "awq") {
      add_awq(checkpoint, module, stored);
    } else if (producer == "compressed-tensors") {
      add_compressed_tensors(checkpoint, module, stored, symmetric);
    } else {
      add_gptq(checkpoint, module, stored, producer == "gptq_v2");
    }
  }
  checkpoint.quantization() = config_of(producer, symmetric);
  return checkpoint;
}

DescribedWeights read(const std::string& producer, bool symmetric) {
  auto weights = written_by(producer, symmetric).experts();
  if (weights) return *std::move(weights);
  ADD_FAILURE() << producer << ": " << weights.error().to_string();
  return {{}, DescribedMatrix::from({}, {}), DescribedMatrix::from({}, {})};
}

/// The layer by the formula (code - zero) * scale, without a file.
DescribedWeights by_formula(const LayerSpec& spec, bool symmetric) {
  const auto modules = make_layer(symmetric);
  const auto matrix = [&](const std::vector<std::string>& names) {
    CanonicalMatrix m;
    m.key = int4_static_group(kGroup);
    m.key.symmetric = symmetric;
    for (const std::string& name : names) {
      const Stored& stored = modules.at(name);
      m.k = stored.k;
      m.n += stored.n;
      for (size_t i = 0; i < stored.codes.size(); i += 2) {
        const int low = stored.codes[i] - 8, high = stored.codes[i + 1] - 8;
        m.storage.push_back(static_cast<std::byte>((low & 15) | (high & 15) << 4));
      }
      for (size_t i = 0; i < stored.zeros.size(); ++i) {
        m.scales.push_back(f16_to_float(stored.scales[i]));
        if (!symmetric) m.zero_points.push_back(static_cast<int8_t>(stored.zeros[i] - 8));
      }
    }
    m.codes = m.storage;
    return m;
  };
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto module = [&](const char* part) { return SyntheticCheckpoint::expert(0, e, part); };
    w13.push_back(matrix({module("gate_proj"), module("up_proj")}));
    w2.push_back(matrix({module("down_proj")}));
  }
  return {spec, DescribedMatrix::from(spec.scheme, std::move(w13)),
          DescribedMatrix::from(spec.scheme, std::move(w2))};
}

std::vector<std::byte> packed(DescribedMatrix&& matrix, const Layout& layout) {
  const auto device = *open_device("cpu", 1);
  const auto weights = convert(std::move(matrix), layout, *device);
  if (!weights) {
    ADD_FAILURE() << weights.error().to_string();
    return {};
  }
  const auto* bytes = weights->buffer.as<std::byte>();
  return {bytes, bytes + weights->buffer.bytes()};
}

// Only the reader knows the packing order of a tool. All tools give the same layer,
// the same scheme and the same bytes in every layout.
TEST(Producers, GiveSamePackedBytesForOneLayer) {
  for (const bool symmetric : {true, false}) {
    const LayerSpec spec = read("gptq", symmetric).spec;
    EXPECT_EQ(name(spec.scheme), symmetric ? "int4-w4a16-g16" : "int4-w4a16-g16-asym");
    for (const std::string producer : kProducers) {
      SCOPED_TRACE(producer + (symmetric ? "" : ", with zero points"));
      EXPECT_TRUE(read(producer, symmetric).spec.same_but_name(spec));
      for (const Layout* layout : layouts()) {
        if (!holds(*layout, spec.scheme.weight.dtype)) continue;
        EXPECT_EQ(packed(read(producer, symmetric).w13, *layout),
                  packed(by_formula(spec, symmetric).w13, *layout));
        EXPECT_EQ(packed(read(producer, symmetric).w2, *layout),
                  packed(by_formula(spec, symmetric).w2, *layout));
      }
    }
  }
}

// The choice depends on the layer, not on its producer.
TEST(Producers, GetSameChoiceOnEveryMachineForOneLayer) {
  for (const bool symmetric : {true, false}) {
    for (const Machine& machine : Machine::known()) {
      const std::string first = explain(select({.layer = read("gptq", symmetric).spec}, machine));
      for (const std::string producer : kProducers) {
        EXPECT_EQ(explain(select({.layer = read(producer, symmetric).spec}, machine)), first)
            << producer << ", " << machine.name;
      }
    }
  }
}

// Compares outputs of every backend, symmetric and asymmetric, including version 1's zero points
// minus one.
TEST(Producers, MatchFormulaOnEveryRowForOneLayer) {
  for (const bool symmetric : {true, false}) {
    const LayerSpec spec = read("gptq", symmetric).spec;
    const testing::TokenBatch batch = testing::random_batch(spec, 7);
    for (const std::string& row : testing::cpu_rows(spec)) {
      const auto want = testing::expected_of(by_formula(spec, symmetric), batch, row);
      const auto first = testing::output_on(row, read("gptq", symmetric), batch);
      EXPECT_LE(testing::share_of_bound(want, first), 1) << row;
      for (const std::string producer : kProducers)
        EXPECT_EQ(testing::output_on(row, read(producer, symmetric), batch), first) << producer;
    }
  }
}

}  // namespace
}  // namespace moracle::producers_test
