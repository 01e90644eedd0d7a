// Shared by the tests of all readers: the modules under test, a check of a matrix against its
// published formula element by element, and tensors and configs with one defect each.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "support/must.h"
#include "support/sample.h"
#include "synthetic_checkpoint.h"

namespace moracle::testing {

/// Modules of layer 0 and of its expert 1.
inline const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj");
inline const std::string kUp = SyntheticCheckpoint::expert(0, 1, "up_proj");
inline const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj");
inline const std::string kAttention = "model.layers.0.self_attn.";
inline const std::vector<std::string> kQkv = {kAttention + "q_proj", kAttention + "k_proj",
                                              kAttention + "v_proj"};
inline const std::string kConfig = "/config.json: quantization_config.";

/// The definition: four exponent bits with bias 7, three mantissa bits, no infinities.
inline double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -size : size;
}

/// Element [n, k] of a module, by the published formula of its format.
using Value = std::function<double(const std::string& module, int64_t n, int64_t k)>;

/// Compares the matrix of expert e with these modules, stacked in order.
inline void expect_values(const DescribedMatrix& described, int64_t e,
                          const std::vector<std::string>& modules, const Value& value) {
  const CanonicalMatrix matrix = must(described.expert(e));
  const std::vector<int64_t> rows = described.source_rows();
  ASSERT_EQ(rows.size(), modules.size());
  std::vector<double> row(matrix.k);
  int64_t first = 0;
  for (size_t i = 0; i < modules.size(); first += rows[i++]) {
    testing::Sample sample(str(modules[i], e));
    for (int64_t n = 0; n < rows[i]; ++n) {
      if (!sample.takes()) continue;
      dequantize_row(matrix, first + n, row.data());
      for (int64_t k = 0; k < matrix.k; ++k) {
        const double want = value(modules[i], n, k);
        if (std::isnan(want) && std::isnan(row[k])) continue;
        ASSERT_EQ(row[k], want) << modules[i] << " row " << n << " column " << k;
      }
    }
  }
  EXPECT_EQ(first, matrix.n);
}

/// Compares both matrices of expert e of layer 0.
inline void expect_values(const DescribedWeights& weights, int64_t e, const Value& value) {
  const auto module = [e](const char* part) { return SyntheticCheckpoint::expert(0, e, part); };
  expect_values(weights.w13, e, {module("gate_proj"), module("up_proj")}, value);
  expect_values(weights.w2, e, {module("down_proj")}, value);
}

/// One tensor of a module with another type or shape, and the expected message.
struct WrongTensor {
  std::string part;
  DType dtype;
  std::vector<int64_t> shape;
  std::string line;
};
inline void expect_named(SyntheticCheckpoint checkpoint, const std::string& module,
                         const WrongTensor& wrong) {
  const std::string tensor = module + wrong.part;
  checkpoint.retype(tensor, wrong.dtype);
  checkpoint.reshape(tensor, wrong.shape);
  expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + tensor + "'", wrong.line});
}
inline void expect_missing(SyntheticCheckpoint checkpoint, const std::string& tensor) {
  checkpoint.remove(tensor);
  expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + tensor + "'",
                                    "needs to be in the file", "it is missing"});
}

/// Keys of the quantization config with other values, and the expected message.
struct WrongConfig {
  nlohmann::json change;
  std::string line;
};
inline void expect_bad_config(SyntheticCheckpoint checkpoint, const WrongConfig& wrong) {
  checkpoint.quantization().update(wrong.change);
  expect_bad(checkpoint.open(), {kConfig + wrong.line});
}
inline void expect_unsupported_config(SyntheticCheckpoint checkpoint, const WrongConfig& wrong) {
  checkpoint.quantization().update(wrong.change);
  expect_unsupported(checkpoint.open(), {kConfig + wrong.line});
}

inline std::string scheme_of(const SyntheticCheckpoint& checkpoint, const std::string& module) {
  const DescribedMatrix matrix = must(must(checkpoint.open()).linear({module}));
  must(matrix.expert(0));
  return name(matrix.scheme());
}

/// The file holds the module as floats, too: only then does the config decide.
inline SyntheticCheckpoint with_floats(SyntheticCheckpoint checkpoint, const std::string& module,
                                       std::vector<int64_t> shape = {32, 32}) {
  checkpoint.add_floats(module + ".weight", std::move(shape));
  return checkpoint;
}

}  // namespace moracle::testing
